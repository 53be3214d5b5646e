"""Runs of the pass: running one in this process, why one failed, the end of a killed one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import dagster as dg

from forgetting_assets import partitions
from forgetting_assets.partition import Partition
from resources.database import Database
from resources.errors import PartitionError
from resources.logs import cause

OF_THE_COMMAND_LINE = {"forgetting/started_by": "command-line"}
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
TENANT_TAG = "dagster/partition/tenant"
PARTITIONED = {TENANT_TAG, "dagster/asset_partition_range_start"}
"""Tags of which a run of the pass has one."""
UNDER_WAY = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
KILLED = "The process of this run was killed."


@dataclass(frozen=True)
class Run:
    """One run of the pass: what each asset said of itself, and why it failed, if it did."""

    success: bool
    run_id: str
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reason: str | None = None


def require_partition(run_date: date) -> None:
    """Raise PartitionError for a day before the first partition."""
    if not partitions.daily.has_partition_key(run_date.isoformat()):
        raise PartitionError(
            f"{run_date} has no partition: the first day is FORGETTING_START_DATE, "
            f"{partitions.daily.get_first_partition_key()}."
        )


def run_partition(
    database: Database, job: dg.JobDefinition, partition: Partition, *, rejudge: bool = False
) -> Run:
    """Run a job for one partition in this process, recorded where the UI sees it.

    ``rejudge`` asks about every item again. Raises PartitionError for a day before the first
    partition.
    """
    require_partition(partition.run_date)
    key = partitions.key(partition.run_date, partition.tenant.slug)
    config = QUIET | {"ops": {"judged_verdicts": {"config": {"rejudge": rejudge}}}}
    run_id = str(uuid.uuid4())
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(partitions.tenants.name or "", [partition.tenant.slug])
        # No daemon watches over the command line's runs.
        end_killed(database, instance, tags=OF_THE_COMMAND_LINE)
        with database.living(run_id):
            result = job.execute_in_process(
                partition_key=key,
                instance=instance,
                raise_on_error=False,
                run_config=config,
                run_id=run_id,
                tags=OF_THE_COMMAND_LINE,
            )
    metadata = {
        event.asset_key.to_user_string(): {
            name: value.value
            for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }
    return Run(result.success, result.run_id, metadata, reason(result.all_events))


def killed(
    database: Database,
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str | list[str]] | None = None,
    since: datetime | None = None,
) -> list[dg.DagsterRun]:
    """The runs of the pass under way whose process shows no life, on whatever machine.

    One that Dagster launched shows it only some seconds after that. ``since`` asks for those of
    which nothing was heard since then.
    """
    under_way = instance.get_run_records(
        dg.RunsFilter(statuses=UNDER_WAY, tags=dict(tags or {}), updated_before=since)
    )
    return [
        each.dagster_run
        for each in under_way
        # Other runs, such as the eval's, may never open the store.
        if PARTITIONED.intersection(each.dagster_run.tags)
        if not database.is_alive(each.dagster_run.run_id)
    ]


def end_killed(database: Database, instance: dg.DagsterInstance, **which: Any) -> int:
    """Record the end of runs that were killed, and free their places in the pool; how many.

    Dagster would show a killed run as running, and the place that it holds would keep every later
    run waiting for ever. ``which`` are the runs, as for ``killed``.
    """
    found = killed(database, instance, **which)
    for run in found:
        instance.report_run_failed(run, KILLED)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return len(found)


def reason(events: Iterable[dg.DagsterEvent]) -> str | None:
    """The sentence of the first failure: ours where the error is ours, else its class."""
    for event in events:
        if event.is_failure:
            error = getattr(event.event_specific_data, "error", None)
            if error is None:
                if event.message == KILLED:
                    return KILLED
                continue
            if error.cls_name == "DagsterAssetCheckFailedError":
                return (
                    f"The blocking check {event.step_key} failed: its ids and reasons are in "
                    "forgetting.invariant_results."
                )
            kind, sentence = cause(error)
            return sentence or f"{event.step_key or 'The run'} failed: {kind}."
    return None
