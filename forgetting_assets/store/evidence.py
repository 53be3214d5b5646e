"""Episodic evidence: the utility sweep and reaching an entry by its id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import invariant
from resources.database import Database
from resources.errors import ForgettingError, InvariantViolated
from resources.policy import Policy

QUERIES = sql.load("evidence")


@dataclass(frozen=True)
class Sweep:
    """What one materialization archived, and the tenant's tiers after it."""

    archived: int
    archived_by_partition: int
    archived_in_all: int
    entries: int


@dataclass(frozen=True)
class Entry:
    """One piece of evidence, exactly as it was recorded. ``archived_at`` None: it is hot."""

    id: UUID
    session_id: str
    kind: str
    content: str
    occurred_at: datetime | None
    archived_at: datetime | None


def sweep(database: Database, partition: Partition, policy: Policy, now: datetime) -> Sweep:
    """Archive the partition's batch of evidence that was of no use for the window, and verify.

    A partition materialized again archives only what is left of its own batch (decision 17).
    Raises InvariantViolated, and then nothing is archived.
    """
    with database.tenant(partition.user_id, exclusive=True) as tx:
        # The queue may name what a check of another run refused: nothing is archived beside it.
        invariant.require(tx, partition, "collapse_in_retention_proposals")
        before = tx.one(QUERIES["count_evidence"], run_date=partition.run_date)
        archived = tx.run(
            QUERIES["archive_due"],
            run_date=partition.run_date,
            as_of=partition.as_of,
            due_before=partition.as_of - policy.sweep_window,
            room=max(0, policy.sweep_batch - before.archived_by_partition),
            now=now,
        )
        after = tx.one(QUERIES["count_evidence"], run_date=partition.run_date)
        if after.entries != before.entries:
            raise InvariantViolated(
                f"The sweep of {partition.tenant.slug} on {partition.run_date} changed the number "
                f"of entries from {before.entries} to {after.entries}; it was rolled back."
            )
        invariant.require(tx, partition, "collapse_in_archival_sweep", "losses_of_archive")
    return Sweep(archived, after.archived_by_partition, after.archived, after.entries)


def dereference(database: Database, user_id: UUID, entry_id: UUID) -> Entry:
    """The entry of that id from any tier, with its exact bytes (BR-40).

    Raises ForgettingError when the tenant has no such entry.
    """
    with database.tenant(user_id) as tx:
        row = tx.first(QUERIES["dereference"], id=entry_id)
    if row is None:
        raise ForgettingError(f"The tenant has no evidence with the id {entry_id}.")
    return Entry(**row._mapping)
