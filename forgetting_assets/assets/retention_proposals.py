"""What waits for a human."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from forgetting_assets import isolation, metadata
from forgetting_assets.assets.judged_verdicts import judged_verdicts
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.partition import Partition
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
            "user_id": "user_id",
            "memory_id": "memory_id",
            "action": "verdict",
            "related_memory_id": "related_memory_id",
            "probability": "probability",
            "probabilities": "probabilities",
            "model": "answer_model",
        }.items()
    }
)


@asset_of_the_pass(
    TABLE,
    layer="proposals",
    deps=[judged_verdicts],
    statements=[
        "proposals.read_unproposed",
        "proposals.find_obstacle",
        "proposals.insert_proposal",
    ],
    lineage=LINEAGE,
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
    schema = metadata.table_schema(database, TABLE)

    def propose(partition: Partition) -> Mapping[str, Any]:
        done, rows = proposals.WrittenProposals(), []
        if partition.tenant.judgment_enabled:
            now = clock.now()
            with invariant.kept(
                database, partition, "retention_proposals", run_id=context.run.run_id, now=now
            ):
                done = proposals.write(database, partition, policy, now)
            rows = proposals.preview(database, partition)
        proposed = done.proposed
        return {
            "dagster/partition_row_count": proposed.total() + done.dismissed,
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
            "preview": metadata.preview(rows),
            "thresholds_from": policy.thresholds_from,
            "thresholds": policy.thresholds,
            "written": done.written,
            "proposed": proposed.total(),
            **{f"proposed_{action}": proposed[action] for action in sorted(policy.thresholds)},
            "dismissed": done.dismissed,
            "withdrawn": done.withdrawn,
            "expired": done.expired,
            "withheld": dict(done.withheld),
            "open_in_all": done.open_in_all,
        }

    yield from isolation.materialize(context, database, clock, propose)
