"""The verbs of Dagster's event log, which is in a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

import sql
from resources.database import sentences

EVENTS = sql.load("events")

TRIMMED = (
    "STEP_START",
    "STEP_SUCCESS",
    "STEP_INPUT",
    "STEP_OUTPUT",
    "STEP_SKIPPED",
    "STEP_RESTARTED",
    "STEP_UP_FOR_RETRY",
    "STEP_WORKER_STARTING",
    "STEP_WORKER_STARTED",
    "RESOURCE_INIT_STARTED",
    "RESOURCE_INIT_SUCCESS",
    "LOADED_INPUT",
    "HANDLED_OUTPUT",
    "LOGS_CAPTURED",
    "ENGINE_EVENT",
)
"""What Dagster asks for on the page of that one run and nowhere else.

Everything else stays, so also what a later Dagster adds: the events of assets, of checks and of
runs, and every failure.
"""
BATCH = 10_000


@dataclass(frozen=True)
class Trimmable:
    """Events that may go, the runs that they are of, and their bytes."""

    events: int
    runs: int
    bytes: int


def count(dagster: sa.Engine, ended_before: datetime) -> Trimmable:
    """What may go of the runs that ended before a moment."""
    with sentences(), dagster.connect() as connection:
        if not connection.execute(EVENTS["has_event_log"]).scalar_one():
            return Trimmable(0, 0, 0)
        row = connection.execute(EVENTS["count_trimmable"], _bounds(ended_before)).one()
    return Trimmable(row.events, row.runs, int(row.bytes))


def trim(dagster: sa.Engine, ended_before: datetime, batch: int = BATCH) -> Iterator[int]:
    """Take them away, a transaction a batch; yields how many each batch had.

    Stopped half-way it has taken whole batches, and starting again goes on with the rest.
    """
    after = 0
    while True:
        with sentences(), dagster.begin() as connection:
            row = connection.execute(
                EVENTS["trim_batch"], {**_bounds(ended_before), "after": after, "batch": batch}
            ).one()
        if row.events == 0:
            return
        after = row.last_id
        yield row.events


def _bounds(ended_before: datetime) -> dict[str, object]:
    # Dagster keeps a run's end in seconds since 1970.
    return {"ended_before": ended_before.timestamp(), "event_types": list(TRIMMED)}
