"""Retention proposals: from the partition's verdicts to what waits for a human."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import sql
from forgetting_assets.judging.thresholds import status_of
from forgetting_assets.partition import Partition
from forgetting_assets.store import invariant
from resources.database import Database
from resources.policy import Policy

QUERIES = sql.load("proposals")


@dataclass
class WrittenProposals:
    """What one materialization wrote, and the partition's and the tenant's state after it.

    ``withheld`` counts confident verdicts that could not become proposals, by obstacle.
    """

    written: int = 0
    withdrawn: int = 0
    expired: int = 0
    withheld: Counter[str] = field(default_factory=Counter)
    proposed: Counter[str] = field(default_factory=Counter)
    dismissed: int = 0
    open_in_all: int = 0


def write(
    database: Database, partition: Partition, policy: Policy, now: datetime
) -> WrittenProposals:
    """Write a proposal for each verdict of the partition that has none yet, and verify.

    Open proposals that can no longer be accepted, or that waited too long, are closed first.
    Surest first, so that of two verdicts that contradict each other the surer one is proposed.
    Raises InvariantViolated, BlastRadiusExceeded among them, and then nothing is written.
    """
    done = WrittenProposals()
    thresholds = policy.thresholds
    with database.tenant(partition.user_id, exclusive=True) as tx:
        done.withdrawn = tx.run(QUERIES["withdraw_overtaken"], now=now)
        done.expired = tx.run(
            QUERIES["expire_undecided"], expired_before=now - policy.proposal_window, now=now
        )
        for row in tx.rows(QUERIES["read_unproposed"], run_date=partition.run_date):
            done.withdrawn += tx.run(
                QUERIES["withdraw_replaced"],
                run_date=partition.run_date,
                memory_id=row.memory_id,
                now=now,
            )
            status = status_of(row.verdict, row.probability, thresholds)
            if status == "proposed":
                obstacle = tx.first(QUERIES["find_obstacle"], id=row.id)
                if obstacle:
                    done.withheld[obstacle.obstacle] += 1
                    if obstacle.obstacle != "rejected":
                        # Nothing is written, so nothing is settled: the memory comes up again.
                        continue
                    status = "dismissed"
            done.written += tx.run(QUERIES["insert_proposal"], id=row.id, status=status, now=now)
        invariant.require_radius(tx, partition, policy)
        invariant.require(
            tx,
            partition,
            "collapse_in_stale_candidates",
            "collapse_in_conflict_pairs",
            "collapse_in_judged_verdicts",
            "collapse_in_retention_proposals",
        )
        for row in tx.rows(QUERIES["count_partition"], run_date=partition.run_date):
            if row.status == "dismissed":
                done.dismissed += row.proposals
            else:
                done.proposed[row.action] += row.proposals
        done.open_in_all = tx.one(QUERIES["count_open"]).proposals
    return done


def count_open(database: Database, partition: Partition) -> int:
    """How many proposals of the tenant wait for a human."""
    with database.tenant(partition.user_id) as tx:
        return int(tx.one(QUERIES["count_open"]).proposals)


def preview(database: Database, partition: Partition) -> list[dict[str, str | float]]:
    """A few of the partition's proposals, open ones first: ids, actions and figures."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["preview_proposals"], run_date=partition.run_date)
    return [
        {
            "id": str(row.id),
            "memory_id": str(row.memory_id),
            "action": row.action,
            "status": row.status,
            "probability": row.probability,
        }
        for row in rows
    ]
