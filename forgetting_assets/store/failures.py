"""What failed of a partition and has not succeeded since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
    """Our own sentence; of a foreign error, which may quote a row, the class alone."""
    return str(error) if isinstance(error, ForgettingError) else f"{type(error).__name__}."


def record(database: Database, partition: Partition, failure: Failure) -> None:
    """Keep a failure, in place of an earlier one of the same step."""
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


def begin(
    database: Database,
    partition: Partition,
    step: str,
    *,
    asset: str,
    ancestors: Sequence[str],
    run_id: str,
) -> str | None:
    """Forget an earlier failure of a step that starts for a partition.

    Returns the step of this run whose failure leaves this one nothing to build on, or None: one of
    an asset upstream, or for a check the asset itself.
    """
    with database.tenant(partition.user_id) as tx:
        tx.run(QUERIES["clear_failure"], run_date=partition.run_date, step=step)
        row = tx.first(
            QUERIES["find_failure_upstream"],
            run_date=partition.run_date,
            run_id=run_id,
            asset=asset,
            upstream=list(ancestors),
        )
    return row.step if row else None


def of_runs(database: Database, partition: Partition, run_ids: Sequence[str]) -> list[Failure]:
    """What failed of a partition in these runs and has not succeeded since, the first first."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["list_failures"], run_date=partition.run_date, run_ids=list(run_ids))
    return [Failure(**row._mapping) for row in rows]
