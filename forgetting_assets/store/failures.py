"""What failed of a partition and has not succeeded since."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from resources.database import Database
from resources.errors import ForgettingError

QUERIES = sql.load("failures")


@dataclass(frozen=True)
class Failure:
    """A step that failed for a tenant, and why; never a memory's text."""

    step: str
    asset: str
    reason: str
    run_id: str
    failed_at: datetime


def reason_of(error: Exception) -> str:
    """Our own sentence; of a foreign error, which may quote a row, its class and its place."""
    if isinstance(error, ForgettingError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}."


def record(database: Database, partition: Partition, failure: Failure) -> None:
    """Keep the failure of a step in a run."""
    with database.tenant(partition.user_id) as tx:
        tx.run(
            QUERIES["write_failure"],
            run_date=partition.run_date,
            step=failure.step,
            asset=failure.asset,
            reason=failure.reason,
            run_id=failure.run_id,
            failed_at=failure.failed_at,
        )


@dataclass(frozen=True)
class Before:
    """What stands before a step starts for a partition.

    ``barrier``: the step whose failure leaves it nothing to build on, or None. ``had_failed``: the
    step itself failed and has not succeeded since.
    """

    barrier: str | None
    had_failed: bool


def before(
    database: Database,
    partition: Partition,
    step: str,
    *,
    asset: str,
    ancestors: Sequence[str],
    run_ids: Sequence[str],
) -> Before:
    """Look at the failures of these runs upstream of a step, and at its own."""
    with database.tenant(partition.user_id) as tx:
        row = tx.one(
            QUERIES["look_before"],
            run_date=partition.run_date,
            run_ids=list(run_ids),
            step=step,
            asset=asset,
            upstream=list(ancestors),
        )
    return Before(row.barrier, row.had_failed)


def clear(database: Database, partition: Partition, step: str, run_id: str) -> None:
    """Forget the failures of a step that succeeded in a run, unless it failed in that very run."""
    with database.tenant(partition.user_id) as tx:
        tx.run(QUERIES["clear_failure"], run_date=partition.run_date, step=step, run_id=run_id)


def failed_days(database: Database, user_id: UUID) -> list[date]:
    """The days of a tenant of which a step failed and has not succeeded since."""
    with database.tenant(user_id) as tx:
        return [row.run_date for row in tx.rows(QUERIES["list_failed_days"])]


def of_runs(database: Database, partition: Partition, run_ids: Sequence[str]) -> list[Failure]:
    """What failed of a partition in these runs and has not succeeded since, the first first."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["list_failures"], run_date=partition.run_date, run_ids=list(run_ids))
    return [Failure(**row._mapping) for row in rows]
