"""What waits for a human."""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from forgetting_assets import metadata
from forgetting_assets.assets.judged_verdicts import judged_verdicts
from forgetting_assets.partitions import daily_tenant, selected
from forgetting_assets.store import invariant, proposals
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "public.retention_proposals"

LINEAGE = metadata.lineage(
    {
        column: [("judged_verdicts", source)]
        for column, source in {
            "id": "id",
            "memory_id": "memory_id",
            "action": "verdict",
            "related_memory_id": "related_memory_id",
            "probability": "probability",
            "probabilities": "probabilities",
            "model": "answer_model",
        }.items()
    }
)


@dg.asset(
    deps=[judged_verdicts],
    partitions_def=daily_tenant,
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres", "sql"},
    tags={"layer": "proposals"},
    code_version="1",
    metadata={"dagster/table_name": TABLE},
    output_required=False,
)
def retention_proposals(
    context: dg.AssetExecutionContext,
    database: Database,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """Confident verdicts as proposals; keeps and unsure ones are kept as dismissed.

    Nothing is applied: a human accepts or rejects with `forgetting review`. A memory has one open
    proposal at most, and no open proposal contradicts another. An open proposal whose memory was
    changed since is withdrawn, and one that nobody decided in time expires. Zero episodic collapse
    is verified before the transaction commits.
    """
    if off := flag.why_pass_is_off():
        context.log.info(off)
        return
    done: list[proposals.WrittenProposals] = []
    for partition in (partitions := list(selected(context, database, clock))):
        if partition.tenant.judgment_enabled:
            now = clock.now()
            with invariant.kept(
                database, partition, "retention_proposals", run_id=context.run.run_id, now=now
            ):
                done.append(proposals.write(database, partition, policy, now))
    if not partitions:
        return
    proposed = sum((each.proposed for each in done), Counter[str]())
    withheld = sum((each.withheld for each in done), Counter[str]())
    dismissed = sum(each.dismissed for each in done)
    yield dg.MaterializeResult(
        metadata={
            "dagster/partition_row_count": proposed.total() + dismissed,
            "dagster/column_schema": metadata.table_schema(database, TABLE),
            "dagster/column_lineage": LINEAGE,
            "preview": metadata.preview(
                [
                    row
                    for each in partitions
                    if each.tenant.judgment_enabled
                    for row in proposals.preview(database, each)
                ]
            ),
            "thresholds_from": policy.thresholds_from,
            "thresholds": policy.thresholds,
            "written": sum(each.written for each in done),
            "proposed": proposed.total(),
            **{f"proposed_{action}": proposed[action] for action in sorted(policy.thresholds)},
            "dismissed": dismissed,
            "withdrawn": sum(each.withdrawn for each in done),
            "expired": sum(each.expired for each in done),
            "withheld": dict(withheld),
            "open_in_all": sum(each.open_in_all for each in done),
        }
    )
