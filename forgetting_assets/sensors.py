"""What keeps Dagster's partitions in step with the tenants table."""

import dagster as dg

from forgetting_assets import catalog, partitions
from forgetting_assets.store import tenants
from resources.database import Database


@dg.sensor(
    name="tenant_registry",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds a partition for each new tenant. It never deletes one: deleting a partition "
    "that a backfill targets fails the whole backfill, and a retired tenant keeps its history.",
    owners=catalog.OWNERS,
    metadata={"reads": "public.tenants"},
)
def tenant_registry(
    context: dg.SensorEvaluationContext, database: Database
) -> dg.SensorResult | dg.SkipReason:
    """Adds the tenants that Dagster does not know yet."""
    known = set(context.instance.get_dynamic_partitions(partitions.tenants.name or ""))
    active = {each.slug for each in tenants.all_tenants(database) if each.retired_at is None}
    if new := sorted(active - known):
        return dg.SensorResult(
            dynamic_partitions_requests=[partitions.tenants.build_add_request(new)]
        )
    return dg.SkipReason("Every tenant has its partition.")
