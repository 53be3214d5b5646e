"""Episodic evidence that was of no use, moved to the archive tier."""

from collections.abc import Iterator

import dagster as dg

from forgetting_assets import metadata
from forgetting_assets.assets import sources
from forgetting_assets.assets.retention_proposals import retention_proposals
from forgetting_assets.partitions import daily_tenant, selected
from forgetting_assets.store import evidence, invariant
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy

TABLE = "forgetting.archival_sweep"

LINEAGE = metadata.lineage(
    {
        "evidence_id": [("evidence", "id")],
        "kind": [("evidence", "kind")],
        "occurred_at": [("evidence", "occurred_at")],
        "last_used_at": [("evidence", "last_retrieved_at"), ("evidence", "last_outcome_at")],
        "success_count": [("evidence", "success_count")],
        "reinforcement_count": [("evidence", "reinforcement_count")],
        "content_sha256": [("evidence", "content")],
    }
)


@dg.asset(
    deps=[retention_proposals, sources.evidence],
    partitions_def=daily_tenant,
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres", "sql"},
    tags={"layer": "archive"},
    code_version="1",
    metadata={"dagster/table_name": TABLE},
    output_required=False,
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
    nor touched by an outcome in that time. Without a known time it is never archived. Archiving
    sets a marker: the entry leaves retrieval and stays reachable by its id. Oldest first, 500 a
    partition. The sweep verifies the invariant and conservation before it commits. Under
    FORGETTING_UNFORGET it archives nothing and brings back 500 entries, until the tier is empty.
    """
    if off := flag.why_archive_is_off():
        context.log.info(off)
        return
    done: list[evidence.Sweep] = []
    back: list[evidence.Revival] = []
    for partition in (partitions := list(selected(context, database, clock))):
        now = clock.now()
        if flag.unforget:
            back.append(evidence.revive(database, partition, policy, now))
        elif partition.tenant.archival_enabled:
            with invariant.kept(
                database, partition, "archival_sweep", run_id=context.run.run_id, now=now
            ):
                done.append(evidence.sweep(database, partition, policy, now))
        else:
            context.log.info(f"{partition.tenant.slug} has archival off: no evidence was read.")
    if not partitions:
        return
    yield dg.MaterializeResult(
        metadata={
            "dagster/partition_row_count": sum(each.archived_by_partition for each in done),
            "dagster/column_schema": metadata.table_schema(database, TABLE),
            "dagster/column_lineage": LINEAGE,
            "preview": metadata.preview(
                [
                    row
                    for each in partitions
                    if each.tenant.archival_enabled
                    for row in evidence.preview(database, each)
                ]
            ),
            "archived": sum(each.archived for each in done),
            "archived_by_partition": sum(each.archived_by_partition for each in done),
            "revived": sum(each.revived for each in back),
            **(
                {
                    "revival_order": "the day that was archived last first",
                    "revival_batch": policy.sweep_batch,
                    "archived_remaining": sum(each.remaining for each in back),
                }
                if flag.unforget
                else {}
            ),
        }
    )
