"""Zero episodic collapse: looking for violations, and the durable record of every look.

A collapse is an episodic entry that becomes archived, superseded, merged or unreachable because it
resembles another or because a judge said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

import sql
from forgetting_assets.partition import Partition
from resources.database import Database, TenantTransaction
from resources.errors import BlastRadiusExceeded, InvariantViolated
from resources.policy import Policy

QUERIES = sql.load("invariant")

ZERO_EPISODIC_COLLAPSE = "zero_episodic_collapse"
CONSERVATION = "archive_is_conserved"
BLAST_RADIUS = "blast_radius"
COMPLETE = "every_item_is_judged"

RADIUS_LOOK = "scopes_over_blast_radius"


@dataclass(frozen=True)
class Violation:
    """What a look found: an entry or a scope, and the reason; never a memory's text."""

    id: UUID | str
    reason: str


def violations(
    tx: TenantTransaction, partition: Partition, look: str, **parameters: float
) -> list[Violation]:
    """What the named statement of sql/queries/invariant.sql finds in a partition."""
    return look_at(tx, look, partition.run_date, **parameters)


def look_at(
    tx: TenantTransaction, look: str, run_date: date | None, **parameters: float
) -> list[Violation]:
    """The same for a day of the transaction's tenant; None for a look at every day at once."""
    query = QUERIES[look]
    dated = {"run_date": run_date} if ":run_date" in query.text else {}
    return [Violation(row.id, row.reason) for row in tx.rows(query, **dated, **parameters)]


def require(tx: TenantTransaction, partition: Partition, *looks: str) -> None:
    """Raise InvariantViolated, and so roll the transaction back, when a look finds anything.

    A blocking check gates only inside one run, so the assets that act verify for themselves.
    """
    for look in looks:
        if found := violations(tx, partition, look):
            ids = ", ".join(str(violation.id) for violation in found[:5])
            broken = "Conservation" if look == "losses_of_archive" else "Zero episodic collapse"
            raise InvariantViolated(
                f"{broken} does not hold for {partition.tenant.slug} on {partition.run_date}: "
                f"{len(found)} violations, the first are {ids} ({found[0].reason}). Nothing was "
                "written; forgetting.invariant_results has all.",
                [(str(violation.id), violation.reason) for violation in found],
            )


def require_radius(tx: TenantTransaction, partition: Partition, policy: Policy) -> None:
    """Raise BlastRadiusExceeded when the partition's verdicts would end too much of a scope."""
    if found := violations(tx, partition, RADIUS_LOOK, **radius(policy)):
        scopes = "; ".join(f"{each.id}: {each.reason}" for each in found[:5])
        raise BlastRadiusExceeded(
            f"Nothing is proposed for {partition.tenant.slug} on {partition.run_date}: {scopes}. "
            "Look at forgetting.verdicts of that day. If they are right, run the day again with a "
            "larger FORGETTING_BLAST_RADIUS, which costs nothing; if the judge was wrong, mend it "
            "and run the day again with --rejudge.",
            [(str(each.id), each.reason) for each in found],
        )


def radius(policy: Policy) -> dict[str, float]:
    """What the look for the blast radius is asked with."""
    return {"bound": policy.blast_radius, "least": policy.blast_radius_least}


@contextmanager
def kept(
    database: Database, partition: Partition, asset: str, *, run_id: str, now: datetime
) -> Iterator[None]:
    """Keep the record of a violation that is raised within, which its own rollback would take."""
    try:
        yield
    except InvariantViolated as violated:
        found = [Violation(id_, reason) for id_, reason in violated.found]
        of_radius = isinstance(violated, BlastRadiusExceeded)
        record(
            database,
            partition,
            # Beside the check of the same name, whose next pass replaces it.
            "judged_verdicts" if of_radius else asset,
            BLAST_RADIUS if of_radius else ZERO_EPISODIC_COLLAPSE,
            found or [Violation(asset, str(violated))],
            run_id=run_id,
            checked_at=now,
        )
        raise


def record(
    database: Database,
    partition: Partition,
    asset: str,
    check_name: str,
    found: Sequence[Violation],
    *,
    run_id: str,
    checked_at: datetime,
) -> bool:
    """Keep one check's result, whatever becomes of the run; whether the one before had failed."""
    reasons = [{"id": str(violation.id), "reason": violation.reason} for violation in found]
    with database.tenant(partition.user_id) as tx:
        kept = tx.one(
            QUERIES["insert_result"],
            run_date=partition.run_date,
            asset=asset,
            check_name=check_name,
            passed=not found,
            reasons=json.dumps(reasons[:100]),
            run_id=run_id,
            checked_at=checked_at,
        )
    return bool(kept.had_failed)


def results(database: Database, partition: Partition, run_id: str) -> dict[tuple[str, str], bool]:
    """Whether each (asset, check) that a run looked at passed."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["read_results"], run_date=partition.run_date, run_id=run_id)
        return {(row.asset, row.check_name): row.passed for row in rows}
