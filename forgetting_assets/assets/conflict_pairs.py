"""Pairs of memories that may contradict or repeat each other."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from forgetting_assets import isolation, metadata
from forgetting_assets.assets import sources
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.partition import Partition
from forgetting_assets.store import pairs
from resources.clock import Clock
from resources.database import Database
from resources.errors import some
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.conflict_pairs"

LINEAGE = metadata.lineage(
    {
        "user_id": [("memories", "user_id")],
        "older_id": [("memories", "id")],
        "newer_id": [("memories", "id")],
        "memory_type": [("memories", "memory_type")],
        "similarity": [("memories", "embedding")],
        "older_is_stale": [("memories", "updated_at"), ("memories", "last_reviewed_at")],
    }
)


@asset_of_the_pass(
    TABLE,
    layer="candidates",
    deps=[sources.memories],
    statements=["mining.insert_pairs", "pairs.find_due_pairs"],
    lineage=LINEAGE,
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
    schema = metadata.table_schema(database, TABLE)

    def select(partition: Partition) -> Mapping[str, Any]:
        chosen = pairs.SelectedPairs()
        if partition.tenant.judgment_enabled:
            chosen = pairs.select(database, partition, policy, clock.now())
        else:
            context.log.info(f"{partition.tenant.slug} is not opted in: no memory was read.")
        if nowhere := chosen.mined.directionless:
            context.log.warning(
                f"{partition.tenant.slug} has memories with a zero vector, which is like no other: "
                f"{some(nowhere)}. They are in no pair until they are embedded again."
            )
        return {
            "dagster/partition_row_count": len(chosen.pairs),
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
            "pairs": len(chosen.pairs),
            "pairs_at_or_above_floor": chosen.total,
            "memories_seen": chosen.memories,
            "memories_mined": chosen.mined.memories,
            "similar_pairs_mined": chosen.mined.pairs,
            "pairs_with_stale_older_side": sum(pair.older_is_stale for pair in chosen.pairs),
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
                    for pair in chosen.pairs
                ]
            ),
        }

    yield from isolation.materialize(context, database, clock, select)
