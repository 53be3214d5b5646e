"""Episodic evidence: the utility sweep, the way back, and reaching an entry by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import invariant
from resources.database import Database, TenantTransaction
from resources.errors import ForgettingError, InvariantViolated, some
from resources.policy import Policy

QUERIES = sql.load("evidence")


@dataclass(frozen=True)
class Sweep:
    """What one materialization archived, and what its partition archived in all."""

    archived: int
    archived_by_partition: int


@dataclass(frozen=True)
class Revival:
    """What one sweep revived instead of archiving, and what is still in the archive tier."""

    revived: int
    remaining: int


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
    dates = {"run_date": partition.run_date, "due_before": partition.as_of - policy.sweep_window}
    with database.tenant(partition.user_id, exclusive=True) as tx:
        # The queue may name what a check of another run refused: nothing is archived beside it.
        invariant.require(tx, partition, "collapse_in_retention_proposals")
        taken: int = tx.one(QUERIES["count_taken"], run_date=partition.run_date).entries
        room = max(0, policy.sweep_batch - taken)
        due = [
            row.id
            for row in tx.rows(QUERIES["find_due"], as_of=partition.as_of, room=room, **dates)
        ]
        archived = 0
        if due:
            tx.run(QUERIES["log_archived"], ids=due, now=now, **dates)
            archived = tx.run(
                QUERIES["mark_archived"], ids=due, now=now, run_date=partition.run_date
            )
        # Conservation: as many rows as were due, and each of them there by id with its bytes.
        if archived != len(due):
            raise InvariantViolated(
                f"The sweep of {partition.tenant.slug} on {partition.run_date} archived {archived} "
                f"of {len(due)} entries; it was rolled back."
            )
        invariant.require(tx, partition, "collapse_in_archival_sweep", "losses_of_archive")
    return Sweep(archived, taken + archived)


def unarchive(database: Database, user_id: UUID, ids: Sequence[UUID], now: datetime) -> int:
    """Bring archived entries back into retrieval, exactly as they were; how many.

    No sweep archives them again before the window has passed. Raises ForgettingError, and then
    nothing is revived, when there is none or one of them is not in the tenant's archive tier.
    """
    wanted = set(ids)
    if not wanted:
        raise ForgettingError("Name at least one entry to bring back.")
    with database.tenant(user_id, exclusive=True) as tx:
        archived = {row.id for row in tx.rows(QUERIES["lock_archived"], ids=list(wanted))}
        if missing := sorted(wanted - archived):
            raise ForgettingError(
                f"The tenant's archive tier does not have {some(missing)}: such an entry is hot, "
                "or there is none. Nothing was brought back."
            )
        return _revive(tx, list(wanted), "asked", now)


def revive(database: Database, partition: Partition, policy: Policy, now: datetime) -> Revival:
    """Bring back one batch of the archive tier, what was archived last first.

    This is what a sweep does under FORGETTING_UNFORGET, night by night, until the tier is empty.
    """
    with database.tenant(partition.user_id, exclusive=True) as tx:
        ids = [row.id for row in tx.rows(QUERIES["find_archived"], batch=policy.sweep_batch)]
        revived = _revive(tx, ids, "unforget", now) if ids else 0
        return Revival(revived, tx.one(QUERIES["count_archived"]).entries)


def _revive(tx: TenantTransaction, ids: list[UUID], reason: str, now: datetime) -> int:
    tx.run(QUERIES["log_revived"], ids=ids, reason=reason, now=now)
    return tx.run(QUERIES["mark_revived"], ids=ids)


def dereference(database: Database, user_id: UUID, entry_id: UUID) -> Entry:
    """The entry of that id from any tier, with its exact bytes (BR-40).

    Raises ForgettingError when the tenant has no such entry.
    """
    with database.tenant(user_id) as tx:
        row = tx.first(QUERIES["dereference"], id=entry_id)
    if row is None:
        raise ForgettingError(f"The tenant has no evidence with the id {entry_id}.")
    return Entry(**row._mapping)


def preview(database: Database, partition: Partition) -> list[dict[str, str]]:
    """A few of the entries that the partition archived: ids, kinds and times."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["preview_archived"], run_date=partition.run_date)
    return [
        {
            "evidence_id": str(row.evidence_id),
            "kind": row.kind,
            "occurred_at": row.occurred_at.isoformat(timespec="seconds"),
        }
        for row in rows
    ]
