"""When the pass runs by itself."""

from collections.abc import Iterator
from datetime import timedelta

import dagster as dg

from forgetting_assets import jobs, partitions
from forgetting_assets.store import tenants
from resources.database import Database
from resources.flag import Flag


@dg.schedule(
    name="nightly",
    job=jobs.forgetting_pass,
    cron_schedule="30 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="At 04:30 UTC, the pass over yesterday for each tenant that opted in to anything.",
)
def nightly(
    context: dg.ScheduleEvaluationContext, database: Database, flag: Flag
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """One run a tenant; with the flag off it skips and reads nothing."""
    if off := flag.why_pass_is_off():
        yield dg.SkipReason(off)
        return
    yesterday = context.scheduled_execution_time.date() - timedelta(days=1)
    known = set(context.instance.get_dynamic_partitions(partitions.tenants.name or ""))
    slugs = [
        tenant.slug
        for tenant in tenants.all_tenants(database)
        if tenant.retired_at is None
        and (tenant.judgment_enabled or tenant.archival_enabled)
        and tenant.slug in known
    ]
    if not slugs:
        yield dg.SkipReason(
            "No tenant is opted in, or the sensor has not added it yet: see "
            "`forgetting tenants list`."
        )
    for slug in slugs:
        key = partitions.key(yesterday, slug)
        yield dg.RunRequest(run_key=key, partition_key=key)
