"""The archive tier: the utility sweep, the way back, and how often the sweep was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import invariant
from resources.database import Database, TenantTransaction
from resources.errors import EvidenceRefused, InvariantViolated, some
from resources.policy import Policy

QUERIES = sql.load("tier")

REGRET_WINDOW = timedelta(days=14)
"""A use of an archived entry within this time says that archiving it was wrong."""


@dataclass(frozen=True)
class Sweep:
    """What one materialization archived, and what its partition archived in all.

    ``warming_up``: uses are not recorded for a whole window yet, so nothing could be due (BR-28).
    """

    archived: int = 0
    archived_by_partition: int = 0
    warming_up: bool = False


@dataclass(frozen=True)
class Revival:
    """What one sweep revived instead of archiving, and what is still in the archive tier."""

    revived: int = 0
    remaining: int = 0


@dataclass(frozen=True)
class Regret:
    """How often archiving a kind of evidence was wrong.

    ``recent`` of the ``archived`` ones were archived less than 14 days ago and not used since, so
    that they may be regretted yet.
    """

    kind: str
    archived: int
    regretted: int
    recent: int


def sweep(database: Database, partition: Partition, policy: Policy, now: datetime) -> Sweep:
    """Archive the partition's batch of evidence that was of no use for the window, and verify.

    A partition materialized again archives only what is left of its own batch (decision 17).
    Raises InvariantViolated, and then nothing is archived.
    """
    due_before = partition.as_of - policy.sweep_window
    dates = {"run_date": partition.run_date, "due_before": due_before}
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
    since = partition.tenant.tracked_since
    return Sweep(archived, taken + archived, warming_up=since is None or since > due_before)


def unarchive(database: Database, user_id: UUID, ids: Sequence[UUID], now: datetime) -> int:
    """Bring archived entries back into retrieval, exactly as they were; how many.

    No sweep archives them again before the window has passed. Raises EvidenceRefused, and then
    nothing is revived, when there is none or one of them is not in the tenant's archive tier.
    """
    wanted = set(ids)
    if not wanted:
        raise EvidenceRefused("Name at least one entry to bring back.")
    with database.tenant(user_id, exclusive=True) as tx:
        archived = {row.id for row in tx.rows(QUERIES["lock_archived"], ids=list(wanted))}
        if missing := sorted(wanted - archived):
            raise EvidenceRefused(
                f"The tenant's archive tier does not have {some(missing)}: such an entry is hot, "
                "or there is none. Nothing was brought back."
            )
        return bring_back(tx, list(wanted), "asked", now)


def revive(database: Database, partition: Partition, policy: Policy, now: datetime) -> Revival:
    """Bring back one batch of the archive tier, what was archived last first.

    This is what a sweep does under FORGETTING_UNFORGET, night by night, until the tier is empty.
    """
    with database.tenant(partition.user_id, exclusive=True) as tx:
        ids = [row.id for row in tx.rows(QUERIES["find_archived"], batch=policy.sweep_batch)]
        revived = bring_back(tx, ids, "unforget", now) if ids else 0
        return Revival(revived, tx.one(QUERIES["count_archived"]).entries)


def bring_back(tx: TenantTransaction, ids: Sequence[UUID], reason: str, now: datetime) -> int:
    """Take the marker off locked, archived entries, and keep when and why; how many."""
    tx.run(QUERIES["log_revived"], ids=list(ids), reason=reason, now=now)
    return tx.run(QUERIES["mark_revived"], ids=list(ids))


def regrets(database: Database, user_id: UUID, first_day: date, now: datetime) -> list[Regret]:
    """How often the sweeps of the days since ``first_day`` were wrong, by kind of evidence."""
    with database.tenant(user_id) as tx:
        rows = tx.rows(
            QUERIES["count_regrets"], first_day=first_day, matured_by=now - REGRET_WINDOW
        )
    return [Regret(row.kind, row.archived, row.regretted, row.recent) for row in rows]


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
