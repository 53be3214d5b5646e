"""Episodic evidence that was of no use, moved to the archive tier."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import dagster as dg

from forgetting_assets import isolation, metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.retention_proposals import retention_proposals
from forgetting_assets.catalog import asset_of_the_pass
from forgetting_assets.partition import Partition
from forgetting_assets.store import invariant, tier
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.archival_sweep"
REGRET_DAYS = 90
WARMING_UP = (
    "The uses of {}'s evidence are not recorded for {} days yet, so nothing was archived: no "
    "record of use is not disuse."
)

LINEAGE = metadata.lineage(
    {
        "user_id": [("evidence", "user_id")],
        "evidence_id": [("evidence", "id")],
        "kind": [("evidence", "kind")],
        "occurred_at": [("evidence", "occurred_at")],
        "last_used_at": [("evidence", "last_retrieved_at"), ("evidence", "last_outcome_at")],
        "success_count": [("evidence", "success_count")],
        "reinforcement_count": [("evidence", "reinforcement_count")],
        "content_sha256": [("evidence", "content")],
    }
)


@asset_of_the_pass(
    TABLE,
    layer="archive",
    deps=[retention_proposals, sources.evidence],
    statements=["tier.find_due", "tier.log_archived", "tier.mark_archived"],
    lineage=LINEAGE,
)
def archival_sweep(
    context: dg.AssetExecutionContext,
    database: Database,
    flag: Flag,
    policy: Policy,
    clock: Clock,
) -> Iterator[dg.MaterializeResult[None]]:
    """Traces, logs, tool inputs, tool outputs and step outcomes that nobody used for the window.

    An entry is archived when it is older than 7 days, was never credited, and was neither retrieved
    nor touched by an outcome in that time, while every use was recorded. Without a known time it is
    never archived. Archiving sets a marker: the entry leaves retrieval and stays reachable by its
    id. What was of no use for longest goes first, 500 entries a partition. The sweep verifies the
    invariant and conservation before it commits. `regretted` of the entries archived in the 90 days
    before were used within 14 days all the same. Under FORGETTING_UNFORGET it archives nothing and
    brings back 500 entries, until the tier is empty.
    """
    if off := flag.why_archive_is_off():
        context.log.info(off)
        return
    schema = metadata.table_schema(database, TABLE)

    def sweep(partition: Partition) -> Mapping[str, Any]:
        done, back = tier.Sweep(), tier.Revival()
        slug, now = partition.tenant.slug, clock.now()
        if flag.unforget:
            back = tier.revive(database, partition, policy, now)
        elif partition.tenant.archival_enabled:
            with invariant.kept(
                database, partition, "archival_sweep", run_id=context.run.run_id, now=now
            ):
                done = tier.sweep(database, partition, policy, now)
            if done.warming_up:
                context.log.info(WARMING_UP.format(slug, policy.sweep_window_days))
        else:
            context.log.info(f"{slug} has archival off: no evidence was read.")
        rows, regrets = [], []
        if partition.tenant.archival_enabled:
            rows = tier.preview(database, partition)
            since = partition.run_date - timedelta(days=REGRET_DAYS)
            regrets = tier.regrets(database, partition.user_id, since, clock.now())
        looked_at = sum(each.archived for each in regrets)
        regretted = sum(each.regretted for each in regrets)
        return {
            "dagster/partition_row_count": done.archived_by_partition,
            "dagster/column_schema": schema,
            "dagster/column_lineage": LINEAGE,
            "preview": metadata.preview(rows),
            "archived": done.archived,
            "archived_by_partition": done.archived_by_partition,
            "warming_up": int(done.warming_up),
            "regretted": regretted,
            **({"regret_rate": regretted / looked_at} if looked_at else {}),
            "revived": back.revived,
            **(
                {
                    "revival_order": "the day that was archived last first",
                    "revival_batch": policy.sweep_batch,
                    "archived_remaining": back.remaining,
                }
                if flag.unforget
                else {}
            ),
        }

    yield from isolation.materialize(context, database, clock, sweep)
