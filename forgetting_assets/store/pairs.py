"""Conflict pairs: mining them and choosing which ones a partition judges."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from resources.database import Database, TenantTransaction
from resources.policy import Policy

QUERIES = sql.load("pairs")


@dataclass(frozen=True)
class MinedPair:
    """Two memories whose cosine similarity is at or above the floor of their embedding model."""

    older_id: UUID
    newer_id: UUID
    memory_type: str
    similarity: float
    older_is_stale: bool
    embedding_model: str | None
    floor: float


@dataclass(frozen=True)
class SelectedPairs:
    """What a partition takes, and how many pairs there are at or above the floor in all."""

    pairs: list[MinedPair]
    mined: int


def select(database: Database, partition: Partition, policy: Policy) -> SelectedPairs:
    """Write the partition's pairs: best first, each memory in one pair at most, up to the cap."""
    with database.tenant(partition.user_id, exclusive=True) as tx:
        mined = mine(tx, partition, policy)
        pairs = disjoint(mined, policy.pair_cap)
        tx.run(QUERIES["clear_pairs"], run_date=partition.run_date)
        for rank, pair in enumerate(pairs, start=1):
            tx.run(QUERIES["insert_pair"], run_date=partition.run_date, rank=rank, **vars(pair))
    return SelectedPairs(pairs, len(mined))


def mine(tx: TenantTransaction, partition: Partition, policy: Policy) -> list[MinedPair]:
    """Every pair that this partition may judge, best first: stale older side, then similarity."""
    rows = tx.rows(
        QUERIES["mine_pairs"],
        run_date=partition.run_date,
        as_of=partition.as_of,
        stale_before=partition.as_of - policy.stale_window,
        floors=json.dumps(policy.conflict_floors),
        default_floor=policy.default_floor,
    )
    return [MinedPair(**row._mapping) for row in rows]


def disjoint(mined: Iterable[MinedPair], cap: int) -> list[MinedPair]:
    """The first pairs in order that share no memory, at most ``cap`` (ADR, Candidate query)."""
    taken: list[MinedPair] = []
    used: set[UUID] = set()
    for pair in mined:
        if len(taken) == cap:
            break
        if used.isdisjoint((pair.older_id, pair.newer_id)):
            taken.append(pair)
            used.update((pair.older_id, pair.newer_id))
    return taken
