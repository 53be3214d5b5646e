"""Stale singles: which memories a partition asks about on their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import mining, tenants
from resources.database import Database
from resources.policy import Policy

QUERIES = sql.load("candidates")


@dataclass(frozen=True)
class StaleSingle:
    """A stale memory with its nearest newer neighbours. ``in_pair``: a pair judges it instead."""

    memory_id: UUID
    memory_type: str
    freshness: datetime
    in_pair: bool
    newer_ids: list[UUID]
    newer_similarities: list[float]


@dataclass(frozen=True)
class SelectedSingles:
    """What a partition takes, and how many there are beyond its cap."""

    singles: list[StaleSingle] = field(default_factory=list)
    total: int = 0


def select(
    database: Database, partition: Partition, policy: Policy, now: datetime
) -> SelectedSingles:
    """Write the partition's stale singles, stalest first, up to the cap.

    Reads the partition's pairs to mark the singles they cover, so pairs come first. What changed
    since is mined, as a similar newer memory opens a settled one again. Raises RowsHidden,
    FloorMissing and UnusableVectors, and then nothing is written.
    """
    with database.tenant(partition.user_id, exclusive=True) as tx:
        tenants.require_every_row(tx, partition.tenant.slug)
        mining.update(tx, partition.tenant.slug, policy.conflict_floors, now)
        rows = tx.rows(
            QUERIES["select_stale_singles"],
            run_date=partition.run_date,
            as_of=partition.as_of,
            stale_before=partition.as_of - policy.stale_window,
            rejections=policy.rejections,
            models=list(policy.conflict_floors),
            floors=list(policy.conflict_floors.values()),
            cap=policy.single_cap,
        )
        singles = [
            StaleSingle(
                row.memory_id,
                row.memory_type,
                row.freshness,
                row.in_pair,
                list(row.newer_ids),
                list(row.newer_similarities),
            )
            for row in rows
        ]
        tx.run(QUERIES["clear_candidates"], run_date=partition.run_date)
        for rank, single in enumerate(singles, start=1):
            tx.run(
                QUERIES["insert_candidate"], run_date=partition.run_date, rank=rank, **vars(single)
            )
    return SelectedSingles(singles, rows[0].total if rows else 0)
