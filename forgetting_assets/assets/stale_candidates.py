"""Memories that nobody changed or reviewed for a while."""

from collections.abc import Iterator

import dagster as dg

from forgetting_assets import metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.conflict_pairs import conflict_pairs
from forgetting_assets.partitions import daily_tenant, selected
from forgetting_assets.store import candidates
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.stale_candidates"

LINEAGE = metadata.lineage(
    {
        "memory_id": [("memories", "id")],
        "memory_type": [("memories", "memory_type")],
        "freshness": [("memories", "updated_at"), ("memories", "last_reviewed_at")],
        "in_pair": [("conflict_pairs", "older_id"), ("conflict_pairs", "newer_id")],
        "newer_ids": [("memories", "id")],
        "newer_similarities": [("memories", "embedding")],
    }
)


@dg.asset(
    deps=[conflict_pairs, sources.memories],
    partitions_def=daily_tenant,
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres", "sql"},
    tags={"layer": "candidates"},
    code_version="1",
    metadata={"dagster/table_name": TABLE},
    output_required=False,
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
    found: list[candidates.StaleSingle] = []
    total = 0
    for partition in (partitions := list(selected(context, database, clock))):
        if not partition.tenant.judgment_enabled:
            context.log.info(f"{partition.tenant.slug} is not opted in: no memory was read.")
            continue
        chosen = candidates.select(database, partition, policy, clock.now())
        found += chosen.singles
        total += chosen.total
    if not partitions:
        return
    yield dg.MaterializeResult(
        metadata={
            "dagster/partition_row_count": len(found),
            "dagster/column_schema": metadata.table_schema(database, TABLE),
            "dagster/column_lineage": LINEAGE,
            "stale_candidates": len(found),
            "stale_total": total,
            "judged_in_a_pair": sum(single.in_pair for single in found),
            "preview": metadata.preview(
                [
                    {
                        "memory_id": str(single.memory_id),
                        "memory_type": single.memory_type,
                        "freshness": single.freshness.isoformat(timespec="seconds"),
                        "newer": len(single.newer_ids),
                        "in_pair": single.in_pair,
                    }
                    for single in found
                ]
            ),
        }
    )
