"""The Dagster instance behind the command line: run storage on the same server, files in a folder.

Here belong finding the instance, running one partition in this process and `dagster dev`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from sqlalchemy.exc import DBAPIError

from forgetting_assets import partitions
from forgetting_assets.partition import Partition
from resources.addresses import Addresses
from resources.database import Database, engine, first_line
from resources.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    PartitionError,
)
from resources.logs import cause, json_log
from resources.settings import IS_CHECKOUT, PROJECT, Settings

STOP_SECONDS = 30
OF_THE_COMMAND_LINE = {"forgetting/started_by": "command-line"}
SHIPPED = PROJECT if IS_CHECKOUT else PROJECT / "forgetting_assets"
"""Where dagster.yaml and workspace.yaml are: at the top level, and in a wheel in this package."""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def prepare(places: Addresses, settings: Settings) -> None:
    """Set this process's environment so that Dagster finds its storage. Raises DatabaseUnreachable.

    A DAGSTER_HOME that the user set is left alone; else a folder of FORGETTING_HOME becomes it.
    """
    pool = engine(places.dagster)
    try:
        with pool.connect():
            pass
    except DBAPIError as error:
        raise DatabaseUnreachable(
            f"Dagster's run storage, the database {places.dagster.database}, cannot be opened "
            f"({first_line(error)}): run `forgetting migrate`, or set DAGSTER_DATABASE_URL."
        ) from None
    finally:
        pool.dispose()
    os.environ.update(places.environment())
    if "DAGSTER_HOME" not in os.environ:
        home = settings.forgetting_home / "dagster"
        home.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SHIPPED / "dagster.yaml", home / "dagster.yaml")
        os.environ["DAGSTER_HOME"] = str(home)


def open() -> dg.DagsterInstance:
    """The instance that ``prepare`` made reachable, for a `with`."""
    return dg.DagsterInstance.get()


@dataclass(frozen=True)
class Run:
    """One run of the pass: what each asset said of itself, and why it failed, if it did."""

    success: bool
    run_id: str
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reason: str | None = None


def run_partition(
    database: Database, job: dg.JobDefinition, partition: Partition, *, rejudge: bool = False
) -> Run:
    """Run a job for one partition in this process, recorded where the UI sees it.

    ``rejudge`` asks about every item again. Raises PartitionError for a day before the first
    partition.
    """
    if not partitions.daily.has_partition_key(partition.run_date.isoformat()):
        raise PartitionError(
            f"{partition.run_date} has no partition: the first day is FORGETTING_START_DATE, "
            f"{partitions.daily.get_first_partition_key()}."
        )
    key = partitions.key(partition.run_date, partition.tenant.slug)
    config = QUIET | {"ops": {"judged_verdicts": {"config": {"rejudge": rejudge}}}}
    run_id = str(uuid.uuid4())
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(partitions.tenants.name or "", [partition.tenant.slug])
        end_killed_runs(database, instance)
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
    return Run(result.success, result.run_id, metadata, _reason(result))


def end_killed_runs(database: Database, instance: dg.DagsterInstance) -> None:
    """Record the end of runs whose process was killed, and free their places in the pool.

    No daemon watches over the command line's runs. Dagster would show a killed one as running, and
    the place that it holds would keep every later run waiting for ever.
    """
    unfinished = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags=OF_THE_COMMAND_LINE)
    for run in instance.get_runs(unfinished):
        if not database.is_alive(run.run_id):
            instance.report_run_failed(run, "The process of this run was killed.")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _reason(result: dg.ExecuteInProcessResult) -> str | None:
    """The sentence of the first failure: ours where the error is ours, else its class."""
    for event in result.all_events:
        if event.is_failure:
            error = getattr(event.event_specific_data, "error", None)
            if error is None:
                continue
            if error.cls_name == "DagsterAssetCheckFailedError":
                return (
                    f"The blocking check {event.step_key} failed: its ids and reasons are in "
                    "forgetting.invariant_results."
                )
            kind, sentence = cause(error)
            return sentence or f"{event.step_key or 'The run'} failed: {kind}."
    return None


def require_free(host: str, port: int) -> None:
    """Raise ConfigurationError when the UI's port is taken.

    `dagster dev` would go on without a UI, and its daemon would act beside the other one.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"The UI cannot listen on {host}:{port} ({error.strerror}): stop what does, or "
                "choose another with --port."
            ) from None


def develop(host: str, port: int) -> int:
    """Run `dagster dev` until it ends or is interrupted, and leave none of its processes behind.

    Returns its exit code, or 0 when it was interrupted.
    """
    stopping = threading.Event()
    # Before the child starts: a handler is reset in it, an inherited "ignore" would not be, and
    # dagster dev would then not hear the SIGINT that it is stopped with.
    previous = {
        each: signal.signal(each, lambda _signal, _frame: stopping.set())
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "dagster", "dev"),
            *("-w", str(SHIPPED / "workspace.yaml"), "-h", host, "-p", str(port)),
            *(("--log-format", "json") if json_log() else ()),
        ],
        cwd=PROJECT,
        start_new_session=True,
    )
    try:
        while child.poll() is None and not stopping.is_set():
            stopping.wait(0.2)
        if not stopping.is_set():
            return child.returncode
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=STOP_SECONDS)
        return 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for each, handler in previous.items():
            signal.signal(each, handler)
