"""Pairs of memories that may contradict or repeat each other."""

from collections.abc import Iterator

import dagster as dg

from forgetting_assets import metadata
from forgetting_assets.assets import sources
from forgetting_assets.partitions import daily_tenant, selected
from forgetting_assets.store import pairs
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.conflict_pairs"

LINEAGE = metadata.lineage(
    {
        "older_id": [("memories", "id")],
        "newer_id": [("memories", "id")],
        "memory_type": [("memories", "memory_type")],
        "similarity": [("memories", "embedding")],
        "older_is_stale": [("memories", "updated_at"), ("memories", "last_reviewed_at")],
    }
)


@dg.asset(
    deps=[sources.memories],
    partitions_def=daily_tenant,
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres", "sql"},
    tags={"layer": "candidates"},
    code_version="1",
    metadata={"dagster/table_name": TABLE},
    output_required=False,
)
def conflict_pairs(
    context: dg.AssetExecutionContext,
    database: Database,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """Live decisions, preferences and facts of one type, scope and project whose vectors are close.

    Similarity selects a pair and decides nothing. Events and notes are never in a pair. A pair is
    here when its cosine is at or above the floor of its embedding model, nobody linked or judged it
    since either side changed, and neither side waits for a human. Pairs with a stale older side
    come first; each memory is in one pair at most; 40 a day.
    """
    if off := flag.why_pass_is_off():
        context.log.info(off)
        return
    found: list[pairs.MinedPair] = []
    mined = 0
    for partition in (partitions := list(selected(context, database, clock))):
        if not partition.tenant.judgment_enabled:
            context.log.info(f"{partition.tenant.slug} is not opted in: no memory was read.")
            continue
        chosen = pairs.select(database, partition, policy)
        found += chosen.pairs
        mined += chosen.mined
    if not partitions:
        return
    yield dg.MaterializeResult(
        metadata={
            "dagster/partition_row_count": len(found),
            "dagster/column_schema": metadata.table_schema(database, TABLE),
            "dagster/column_lineage": LINEAGE,
            "pairs": len(found),
            "pairs_at_or_above_floor": mined,
            "pairs_with_stale_older_side": sum(pair.older_is_stale for pair in found),
            "default_floor": policy.default_floor,
            "conflict_floors": policy.conflict_floors,
            "preview": metadata.preview(
                [
                    {
                        "older_id": str(pair.older_id),
                        "newer_id": str(pair.newer_id),
                        "memory_type": pair.memory_type,
                        "similarity": round(pair.similarity, 3),
                        "older_is_stale": pair.older_is_stale,
                    }
                    for pair in found
                ]
            ),
        }
    )
