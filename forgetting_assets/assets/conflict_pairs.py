"""Pairs of memories that may contradict or repeat each other."""

from collections.abc import Iterator

import dagster as dg

from forgetting_assets import metadata
from forgetting_assets.assets import sources
from forgetting_assets.partitions import daily_tenant, selected
from forgetting_assets.store import pairs
from resources.clock import Clock
from resources.database import Database
from resources.errors import some
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

    Similarity selects a pair and decides nothing. Events and notes are never in a pair. First the
    index of similar pairs is brought up to date for what changed since the tenant's last mining. A
    pair is here when its cosine is at or above the floor of its embedding model, nobody linked or
    judged it since either side changed, and neither side waits for a human. Pairs with a stale
    older side come first; each memory is in one pair at most; 40 a day. It fails when the runtime
    role sees fewer memories of the tenant than there are.
    """
    if off := flag.why_pass_is_off():
        context.log.info(off)
        return
    # The pass starts here: thresholds that cannot be used are refused before anything is read.
    context.log.info(f"The thresholds are from: {policy.thresholds_from}.")
    found: list[pairs.DuePair] = []
    total, seen, mined_memories, mined_pairs = 0, 0, 0, 0
    for partition in (partitions := list(selected(context, database, clock))):
        if not partition.tenant.judgment_enabled:
            context.log.info(f"{partition.tenant.slug} is not opted in: no memory was read.")
            continue
        chosen = pairs.select(database, partition, policy, clock.now())
        found += chosen.pairs
        total += chosen.total
        seen += chosen.memories
        mined_memories += chosen.mined.memories
        mined_pairs += chosen.mined.pairs
        if nowhere := chosen.mined.directionless:
            context.log.warning(
                f"{partition.tenant.slug} has memories with a zero vector, which is like no other: "
                f"{some(nowhere)}. They are in no pair until they are embedded again."
            )
    if not partitions:
        return
    yield dg.MaterializeResult(
        metadata={
            "dagster/partition_row_count": len(found),
            "dagster/column_schema": metadata.table_schema(database, TABLE),
            "dagster/column_lineage": LINEAGE,
            "pairs": len(found),
            "pairs_at_or_above_floor": total,
            "memories_seen": seen,
            "memories_mined": mined_memories,
            "similar_pairs_mined": mined_pairs,
            "pairs_with_stale_older_side": sum(pair.older_is_stale for pair in found),
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
