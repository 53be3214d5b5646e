"""Memories that nobody changed or reviewed for a while."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from forgetting_assets import isolation, metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.conflict_pairs import conflict_pairs
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.partition import Partition
from forgetting_assets.store import candidates
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.stale_candidates"

LINEAGE = metadata.lineage(
    {
        "user_id": [("memories", "user_id")],
        "memory_id": [("memories", "id")],
        "memory_type": [("memories", "memory_type")],
        "freshness": [("memories", "updated_at"), ("memories", "last_reviewed_at")],
        "in_pair": [("conflict_pairs", "older_id"), ("conflict_pairs", "newer_id")],
        "newer_ids": [("memories", "id")],
        "newer_similarities": [("memories", "embedding")],
    }
)


@asset_of_the_pass(
    TABLE,
    layer="candidates",
    deps=[conflict_pairs, sources.memories],
    statements=["candidates.select_stale_singles"],
    lineage=LINEAGE,
)
def stale_candidates(
    context: dg.AssetExecutionContext,
    database: Database,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """Live decisions, preferences, blockers and facts whose freshness is older than 30 days.

    Freshness is the later of the last change and the last review. Stalest first, 60 a day; the
    exact total is in the metadata. A settled memory does not come back until its freshness moves or
    a newer similar memory appears. Each comes with up to three newer live memories of its type and
    scope; a blocker without one is no candidate. A single that a pair covers is marked, and judged
    in the pair.
    """
    if off := flag.why_pass_is_off():
        context.log.info(off)
        return
    schema = metadata.table_schema(database, TABLE)

    def select(partition: Partition) -> Mapping[str, Any]:
        chosen = candidates.SelectedSingles()
        if partition.tenant.judgment_enabled:
            chosen = candidates.select(database, partition, policy, clock.now())
        else:
            context.log.info(f"{partition.tenant.slug} is not opted in: no memory was read.")
        return {
            "dagster/partition_row_count": len(chosen.singles),
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
            "stale_candidates": len(chosen.singles),
            "stale_total": chosen.total,
            "judged_in_a_pair": sum(single.in_pair for single in chosen.singles),
            "preview": metadata.preview(
                [
                    {
                        "memory_id": str(single.memory_id),
                        "memory_type": single.memory_type,
                        "freshness": single.freshness.isoformat(timespec="seconds"),
                        "newer": len(single.newer_ids),
                        "in_pair": single.in_pair,
                    }
                    for single in chosen.singles
                ]
            ),
        }

    yield from isolation.materialize(context, database, clock, select)
