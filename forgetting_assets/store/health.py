"""How a tenant's memory is doing: counts and times, and no text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.records import is_storable
from resources.database import Database, TenantTransaction
from resources.errors import ForgettingError
from resources.policy import Policy

QUERIES = sql.load("health")

STATES = ("live", "archived", "superseded")
TIERS = ("hot", "archived")
AGES = ("under_7_days", "7_to_30_days", "over_30_days")
LONGEST = 36_500

Counts = dict[str, dict[str, int]]
"""How many there are, by what they are and then by how they stand."""


@dataclass(frozen=True)
class MemoryHealth:
    """What there is of a tenant's memory and how much of it is of use.

    ``memories`` counts by type and state, ``stale`` by type, ``evidence`` by kind and tier, and
    ``proposals``, which are the open ones, by action and age. ``archive_share`` is None when there
    is no evidence. With a ``session_id`` evidence is that session's, and memories and proposals are
    those that cite it.
    """

    measured_at: datetime
    session_id: str | None
    stale_threshold_days: int
    live_memories: int
    stale_memories: int
    archived_memories: int
    superseded_memories: int
    hot_evidence: int
    idle_evidence: int
    archived_evidence: int
    archive_share: float | None
    oldest_hot_at: datetime | None
    open_proposals: int
    oldest_open_at: datetime | None
    unresolved_conflicts: int
    regretted: int
    memories: Counts
    stale: dict[str, int]
    evidence: Counts
    proposals: Counts

    @property
    def entry_counts(self) -> Counts:
        """Evidence by kind and tier, under the name that it has elsewhere."""
        return self.evidence

    @property
    def oldest_open_days(self) -> float:
        """For how many days the oldest open proposal waits; 0 when none does."""
        if self.oldest_open_at is None:
            return 0.0
        return (self.measured_at - self.oldest_open_at) / timedelta(days=1)


def memory_health(
    database: Database,
    user_id: UUID,
    now: datetime,
    session_id: str | None = None,
    stale_threshold_days: int = 30,
) -> MemoryHealth:
    """The figures of a tenant, or of one of its sessions, at this moment.

    Raises ForgettingError for a threshold out of range, and for a session without evidence.
    """
    if not 1 <= stale_threshold_days <= LONGEST:
        raise ForgettingError(f"The stale threshold is a number of days from 1 to {LONGEST}.")
    with database.tenant(user_id) as tx:
        return _measure(tx, now, session_id, stale_threshold_days)


def record(database: Database, partition: Partition, policy: Policy, now: datetime) -> MemoryHealth:
    """Measure the tenant as it is now, and write it down as the partition's row."""
    with database.tenant(partition.user_id, exclusive=True) as tx:
        health = _measure(tx, now, None, policy.stale_window_days)
        figures = asdict(health)
        counts = {name: figures[name] for name in ("memories", "evidence", "proposals")}
        tx.run(QUERIES["clear_health"], run_date=partition.run_date)
        tx.run(
            QUERIES["insert_health"],
            run_date=partition.run_date,
            counts=json.dumps(counts),
            **{name: value for name, value in figures.items() if name not in UNWRITTEN},
        )
    return health


UNWRITTEN = {
    *("session_id", "stale_threshold_days", "archive_share"),
    *("memories", "stale", "evidence", "proposals"),
}


def _measure(
    tx: TenantTransaction, now: datetime, session_id: str | None, days: int
) -> MemoryHealth:
    if session_id is not None and not is_storable(session_id):
        raise _no_session(session_id)
    of = {"session_id": session_id}
    stale_before = now - timedelta(days=days)
    entries = tx.rows(QUERIES["count_evidence"], stale_before=stale_before, **of)
    if session_id is not None and not entries:
        raise _no_session(session_id)
    memories = _table(
        STATES,
        (
            (row.memory_type, row.state, row.memories)
            for row in tx.rows(QUERIES["count_memories"], **of)
        ),
    )
    stale = {
        row.memory_type: row.memories
        for row in tx.rows(QUERIES["count_stale"], stale_before=stale_before, now=now, **of)
    }
    evidence = _table(TIERS, ((row.kind, TIERS[row.is_archived], row.entries) for row in entries))
    waiting = tx.rows(
        QUERIES["count_open"],
        a_week_ago=now - timedelta(days=7),
        a_month_ago=now - timedelta(days=30),
        **of,
    )
    proposals = _table(AGES, ((row.action, row.age, row.proposals) for row in waiting))
    hot, archived = (_sum(evidence, tier) for tier in TIERS)
    return MemoryHealth(
        measured_at=now,
        session_id=session_id,
        stale_threshold_days=days,
        live_memories=_sum(memories, "live"),
        stale_memories=sum(stale.values()),
        archived_memories=_sum(memories, "archived"),
        superseded_memories=_sum(memories, "superseded"),
        hot_evidence=hot,
        idle_evidence=sum(row.idle for row in entries),
        archived_evidence=archived,
        archive_share=archived / (hot + archived) if entries else None,
        oldest_hot_at=_oldest(row.oldest_hot_at for row in entries),
        open_proposals=sum(row.proposals for row in waiting),
        oldest_open_at=_oldest(row.oldest_at for row in waiting),
        unresolved_conflicts=tx.one(QUERIES["count_conflicts"], **of).conflicts,
        regretted=tx.one(QUERIES["count_regrets"], **of).regretted,
        memories=memories,
        stale=stale,
        evidence=evidence,
        proposals=proposals,
    )


def _table(columns: tuple[str, ...], cells: Iterable[tuple[str, str, int]]) -> Counts:
    """Every column of each row that there is, so that a reader need not ask for what is missing."""
    table: Counts = {}
    for row, column, count in cells:
        table.setdefault(row, dict.fromkeys(columns, 0))[column] = count
    return table


def _sum(table: Counts, column: str) -> int:
    return sum(row[column] for row in table.values())


def _oldest(times: Iterable[datetime | None]) -> datetime | None:
    return min((each for each in times if each is not None), default=None)


def _no_session(session_id: str) -> ForgettingError:
    return ForgettingError(f"The tenant has no session {session_id!r}: no evidence is of it.")
