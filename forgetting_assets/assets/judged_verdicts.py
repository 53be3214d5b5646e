"""What the judge says of each candidate."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from forgetting_assets import isolation, metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.conflict_pairs import conflict_pairs
from forgetting_assets.assets.stale_candidates import stale_candidates
from forgetting_assets.calls import Means
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.judge import Judged, judge
from forgetting_assets.partition import Partition
from forgetting_assets.store import verdicts
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.gateway import Gateway
from resources.policy import Policy
from resources.rate import TokenRate

TABLE = "forgetting.judged_verdicts"

FRESHNESS = [("memories", "updated_at"), ("memories", "last_reviewed_at")]
LINEAGE = metadata.lineage(
    {
        "run_date": [("stale_candidates", "run_date"), ("conflict_pairs", "run_date")],
        "user_id": [("stale_candidates", "user_id"), ("conflict_pairs", "user_id")],
        "memory_id": [("stale_candidates", "memory_id"), ("conflict_pairs", "older_id")],
        "newer_id": [("conflict_pairs", "newer_id")],
        "newer_ids": [("stale_candidates", "newer_ids")],
        "memory_type": [("stale_candidates", "memory_type"), ("conflict_pairs", "memory_type")],
        "related_memory_id": [("stale_candidates", "newer_ids"), ("conflict_pairs", "newer_id")],
        "memory_content_hash": [("memories", "content_hash")],
        "memory_freshness": FRESHNESS,
        "related_content_hash": [("memories", "content_hash")],
        "related_freshness": FRESHNESS,
    }
)


class Judging(dg.Config):
    """How a run judges; set it in the launchpad or by `forgetting run --rejudge`."""

    rejudge: bool = Field(
        False,
        description="Ask about every item again, though its input and the model are unchanged. "
        "It is paid for again, and the earlier verdicts stay in the table.",
    )


@asset_of_the_pass(
    TABLE,
    layer="verdicts",
    deps=[stale_candidates, conflict_pairs, sources.memories],
    statements=["verdicts.read_pairs", "verdicts.read_singles", "verdicts.insert_verdict"],
    kinds=["postgres", "llm"],
    pool="judge_gateway",
    lineage=LINEAGE,
)
def judged_verdicts(
    context: dg.AssetExecutionContext,
    config: Judging,
    database: Database,
    gateway: dg.ResourceParam[Gateway],
    budget: Budget,
    rate: TokenRate,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """A typed verdict on each pair and each remaining single: keep, archive, supersede, conflict.

    The judge reads batches of at most 12 items and answers one choice question an item; the
    verdict's probability is the chosen answer's own. The tenant's opt-in is read before every send,
    every call is metered, and each call's verdicts are committed as it returns. A verdict is not
    asked for twice for the same input and model, so a partition materialized again costs nothing.
    What the judge, the budget or the queue of proposals leaves over waits for the next run.
    """
    if off := flag.why_pass_is_off():
        context.log.info(off)
        return
    # Before anything is paid for: verdicts without usable thresholds would be of no use.
    thresholds_from = policy.thresholds_from
    means = Means(database, gateway, budget, rate, clock, policy)
    schema = metadata.table_schema(database, TABLE)

    def ask(partition: Partition) -> Mapping[str, Any]:
        done, rows = Judged(), []
        if partition.tenant.judgment_enabled:
            done = judge(means, partition, context.log.info, rejudge=config.rejudge)
            rows = verdicts.preview(database, partition)
        if done.stopped:
            context.log.warning(done.stopped)
        return {
            "dagster/partition_row_count": done.outcomes.total(),
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
            "preview": metadata.preview(rows),
            "model": gateway.pinned_model,
            "thresholds_from": thresholds_from,
            "items": done.items,
            "judged": done.judged,
            "reused": done.reused,
            "answers_rejected": done.rejected,
            "items_too_large": done.too_large,
            "items_unjudgeable": done.unjudgeable,
            "items_left": done.left,
            "partial": bool(done.stopped),
            "calls": done.calls,
            "lost_calls": done.lost_calls,
            "unpriced_calls": done.unpriced_calls,
            "spend_usd": float(done.spend_usd),
            "stopped": [done.stopped] if done.stopped else [],
            **{f"verdicts_{action}": n for action, n in sorted(done.outcomes.items())},
        }

    yield from isolation.materialize(context, database, clock, ask)
