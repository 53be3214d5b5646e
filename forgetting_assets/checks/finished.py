"""That no tenant of a run was left behind; of a run over many, what makes it fail in the end."""

from collections.abc import Iterator

import dagster as dg

from forgetting_assets import isolation, metadata, partitions
from forgetting_assets.assets.memory_health import memory_health
from forgetting_assets.store import failures
from resources.clock import Clock
from resources.database import Database
from resources.errors import TenantsFailed

NAME = "every_tenant_finished"
NAMED = 20


@dg.multi_asset_check(
    name=f"memory_health_{NAME}",
    specs=[
        dg.AssetCheckSpec(
            NAME,
            asset=memory_health,
            blocking=True,
            partitions_def=partitions.daily_tenant,
            description="Every tenant of the run got through every asset. In a run over many "
            "tenants one that fails is left alone by the later assets and the others go on; this "
            "check comes last, names it with the reason, and fails the run. Run the partitions it "
            "names again: what was judged is not paid for again.",
        )
    ],
)
def every_tenant_finished(
    context: dg.AssetCheckExecutionContext, database: Database, clock: Clock
) -> Iterator[dg.AssetCheckResult]:
    """Raises TenantsFailed, which names the tenants, when a step failed and did not succeed since.

    A run that is executed again from its failure is held to what the first one left.
    """
    run = context.run
    runs = [each for each in (run.run_id, run.parent_run_id, run.root_run_id) if each]
    looked = [
        (partition, failures.of_runs(database, partition, runs))
        for partition in partitions.selected(context, database, clock)
    ]
    if partitions.is_ranged(run):
        for partition, found in looked:
            isolation.report(
                context,
                dg.AssetCheckKey(memory_health.key, NAME),
                partition,
                passed=not found,
                severity=dg.AssetCheckSeverity.ERROR,
                metadata={"reasons": [f"{each.step}: {each.reason}" for each in found]},
            )
    failed = [(partition, found[0]) for partition, found in looked if found]
    yield dg.AssetCheckResult(
        passed=not failed,
        metadata={
            "failed": len(failed),
            "partitions": len(looked),
            "tenants": metadata.table(
                [
                    {
                        "tenant": partition.tenant.slug,
                        "date": partition.run_date.isoformat(),
                        "step": first.step,
                        "reason": first.reason,
                    }
                    for partition, first in failed
                ]
            ),
        },
    )
    if failed:
        named = [
            f"{partition.tenant.slug} on {partition.run_date} in {first.step} "
            f"({first.reason.rstrip('.')})"
            for partition, first in failed[:NAMED]
        ]
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        raise TenantsFailed(
            f"{len(failed)} of {len(looked)} partitions failed, the others finished: "
            f"{'; '.join(named)}{more}."
        )
