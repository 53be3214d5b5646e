"""Conflict pairs: which similar pairs a partition judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import mining, tenants
from forgetting_assets.store.mining import Mined
from resources.database import Database, TenantTransaction
from resources.policy import Policy

QUERIES = sql.load("pairs")


@dataclass(frozen=True)
class DuePair:
    """Two memories whose cosine similarity is at or above the floor of their embedding model.

    ``total`` is how many of them the partition may judge in all.
    """

    older_id: UUID
    newer_id: UUID
    memory_type: str
    similarity: float
    older_is_stale: bool
    embedding_model: str
    floor: float
    total: int


@dataclass(frozen=True)
class SelectedPairs:
    """What a partition takes, how many pairs it could, and what was mined for it.

    ``memories`` is how many the tenant has, each of which was seen.
    """

    pairs: list[DuePair] = field(default_factory=list)
    total: int = 0
    mined: Mined = field(default_factory=Mined)
    memories: int = 0


def select(
    database: Database, partition: Partition, policy: Policy, now: datetime
) -> SelectedPairs:
    """Write the partition's pairs: best first, each memory in one pair at most, up to the cap.

    Mines what changed first. Raises RowsHidden, FloorMissing and UnusableVectors, and then nothing
    is written.
    """
    with database.tenant(partition.user_id, exclusive=True) as tx:
        memories = tenants.require_every_row(tx, partition.tenant.slug)
        mined = mining.update(tx, partition.tenant.slug, policy.conflict_floors, now)
        pairs = disjoint(due(tx, partition, policy), policy.pair_cap)
        tx.run(QUERIES["clear_pairs"], run_date=partition.run_date)
        for rank, pair in enumerate(pairs, start=1):
            tx.run(QUERIES["insert_pair"], run_date=partition.run_date, rank=rank, **vars(pair))
    return SelectedPairs(pairs, pairs[0].total if pairs else 0, mined, memories)


def due(tx: TenantTransaction, partition: Partition, policy: Policy) -> Iterator[DuePair]:
    """Every mined pair that this partition may judge, best first: stale older side, then cosine."""
    rows = tx.stream(
        QUERIES["find_due_pairs"],
        run_date=partition.run_date,
        as_of=partition.as_of,
        stale_before=partition.as_of - policy.stale_window,
        rejections=policy.rejections,
        models=list(policy.conflict_floors),
        floors=list(policy.conflict_floors.values()),
    )
    return (DuePair(**row._mapping) for row in rows)


def disjoint(due: Iterable[DuePair], cap: int) -> list[DuePair]:
    """The first pairs in order that share no memory, at most ``cap`` (ADR, Candidate query)."""
    taken: list[DuePair] = []
    used: set[UUID] = set()
    for pair in due:
        if len(taken) == cap:
            break
        if used.isdisjoint((pair.older_id, pair.newer_id)):
            taken.append(pair)
            used.update((pair.older_id, pair.newer_id))
    return taken
