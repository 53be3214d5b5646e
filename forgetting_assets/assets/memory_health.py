"""How a tenant's memory is doing after the pass."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from forgetting_assets import isolation, metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.retention_proposals import retention_proposals
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.partition import Partition
from forgetting_assets.store import health
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.memory_health"

LIVE = [("memories", "status"), ("memories", "valid_to")]
USE = [
    ("evidence", column)
    for column in ("success_count", "reinforcement_count", "last_retrieved_at", "last_outcome_at")
]
LINEAGE = metadata.lineage(
    {
        "user_id": [("memories", "user_id"), ("evidence", "user_id")],
        "live_memories": LIVE,
        "stale_memories": [*LIVE, ("memories", "updated_at"), ("memories", "last_reviewed_at")],
        "archived_memories": LIVE,
        "superseded_memories": [("memories", "valid_to")],
        "hot_evidence": [("evidence", "archived_at")],
        "idle_evidence": [("evidence", "kind"), ("evidence", "occurred_at"), *USE],
        "archived_evidence": [("evidence", "archived_at")],
        "oldest_hot_at": [("evidence", "occurred_at")],
        "open_proposals": [("retention_proposals", "status")],
        "oldest_open_at": [("retention_proposals", "created_at")],
        "unresolved_conflicts": [
            ("retention_proposals", "memory_id"),
            ("retention_proposals", "related_memory_id"),
        ],
        "counts": [
            ("memories", "memory_type"),
            ("evidence", "kind"),
            ("retention_proposals", "action"),
            ("retention_proposals", "created_at"),
        ],
    }
)

COUNTED = (
    *("live_memories", "stale_memories", "archived_memories", "superseded_memories"),
    *("hot_evidence", "idle_evidence", "archived_evidence"),
    *("open_proposals", "unresolved_conflicts", "regretted"),
)


@asset_of_the_pass(
    TABLE,
    layer="health",
    # Not the sweep: where its flag is off Dagster skips it, and would skip this as well. In a run
    # it still comes after the sweep and the checks, by its priority.
    deps=[retention_proposals, sources.memories, sources.evidence],
    statements=[
        "health.count_memories",
        "health.count_stale",
        "health.count_evidence",
        "health.count_open",
        "health.count_conflicts",
    ],
    op_tags={"dagster/priority": "-1"},
    lineage=LINEAGE,
)
def memory_health(
    context: dg.AssetExecutionContext,
    database: Database,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """What is live, stale, idle, archived, waiting and contradicted, so that a trend can be seen.

    It counts and changes nothing. Stale are the memories that the pass would take without its cap,
    idle is the evidence that nothing credited or used for 30 days, and regretted are the archivings
    that a use soon after proved wrong. The figures are those of the moment of the materialization:
    a partition that is backfilled shows today's figures under an old day.
    """
    if off := flag.why_everything_is_off():
        context.log.info(off)
        return
    schema = metadata.table_schema(database, TABLE)

    def measure(partition: Partition) -> Mapping[str, Any]:
        shown = {
            "dagster/partition_row_count": 0,
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
        }
        if not (partition.tenant.judgment_enabled or partition.tenant.archival_enabled):
            context.log.info(f"{partition.tenant.slug} agreed to nothing: nothing was counted.")
            return shown
        found = health.record(database, partition, policy, clock.now())
        evidence = found.hot_evidence + found.archived_evidence
        return {
            **shown,
            "dagster/partition_row_count": 1,
            **{name: getattr(found, name) for name in COUNTED},
            "archive_share": found.archived_evidence / evidence if evidence else 0.0,
            "oldest_open_days": found.oldest_open_days,
        }

    yield from isolation.materialize(context, database, clock, measure)
