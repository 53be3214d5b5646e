"""That no tenant of a run was left behind; of a run over many, what makes it fail in the end."""

from collections.abc import Iterator, Sequence

import dagster as dg

from forgetting_assets import isolation, metadata, partitions
from forgetting_assets.assets.memory_health import memory_health
from forgetting_assets.partition import Partition
from forgetting_assets.store import failures, invariant
from forgetting_assets.store.failures import Failure
from resources.clock import Clock
from resources.database import Database
from resources.errors import TenantsFailed

NAME = "every_tenant_finished"
NAMED = 20

DESCRIPTION = """Every tenant of the run got through every asset. In a run over many tenants one
that fails is left alone by the later assets and the others go on; this check comes last, names it
with the reason, and fails the run. Run the partitions that it names again: what was judged is not
paid for again."""


def every_tenant_finished() -> dg.AssetChecksDefinition:
    """The last check of a run. It blocks, and so fails a run in which a tenant failed."""
    spec = dg.AssetCheckSpec(
        NAME,
        asset=memory_health,
        blocking=True,
        partitions_def=partitions.daily_tenant,
        description=" ".join(DESCRIPTION.split()),
    )

    # Of the decorators this is the one that may yield a result and then raise.
    @dg.multi_asset_check(name=f"memory_health_{NAME}", specs=[spec])
    def check(
        context: dg.AssetCheckExecutionContext, database: Database, clock: Clock
    ) -> Iterator[dg.AssetCheckResult]:
        """Raises TenantsFailed, which names the tenants, when a step failed and none mended it.

        A run that is executed again from its failure is held to what the first one left.
        """
        run = context.run
        runs = isolation.lineage(context)
        looked: list[tuple[Partition, list[Failure]]] = []
        # Everybody: who failed and then opted out, or was retired, was still left behind.
        for partition in partitions.selected(context, database, clock, everybody=True):
            found = failures.of_runs(database, partition, runs)
            if not (found or partition.tenant.is_served):
                continue
            had_failed = invariant.record(
                database,
                partition,
                spec.asset_key.to_user_string(),
                NAME,
                [invariant.Violation(each.step, each.reason) for each in found],
                run_id=run.run_id,
                checked_at=clock.now(),
            )
            if partitions.is_ranged(run) and (found or had_failed):
                isolation.report(
                    context,
                    spec.key,
                    partition,
                    passed=not found,
                    severity=dg.AssetCheckSeverity.ERROR,
                    metadata={"reasons": [f"{each.step}: {each.reason}" for each in found]},
                )
            looked.append((partition, found))
        failed = [(partition, found[0]) for partition, found in looked if found]
        yield dg.AssetCheckResult(
            passed=not failed,
            metadata={
                "failed": len(failed),
                "partitions": len(looked),
                "tenants": _table(failed),
            },
        )
        if failed:
            raise TenantsFailed(_sentence(failed, len(looked)))

    return check


def _table(failed: Sequence[tuple[Partition, Failure]]) -> dg.TableMetadataValue:
    return metadata.table(
        [
            {
                "tenant": partition.tenant.slug,
                "date": partition.run_date.isoformat(),
                "step": first.step,
                "reason": first.reason,
            }
            for partition, first in failed
        ]
    )


def _sentence(failed: Sequence[tuple[Partition, Failure]], looked: int) -> str:
    named = [
        f"{partition.tenant.slug} on {partition.run_date} in {first.step} "
        f"({first.reason.rstrip('.')})"
        for partition, first in failed[:NAMED]
    ]
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    return (
        f"{len(failed)} of {looked} partitions failed, the others finished: "
        f"{'; '.join(named)}{more}."
    )
