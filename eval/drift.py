"""Whether the judge and the sweep still hold in a deployment, from what its people did.

A reviewer's accept says that a proposal was right, a reject that it was wrong; one that was undone
says neither. Reviewers see what was proposed alone, so nothing here tells what was missed. A use of
archived evidence says that the sweep was wrong. Figures alone leave a tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

import sql
from eval.bounds import clopper_pearson
from eval.calibrate import BARS as SELECTION_BARS
from eval.score import ARCHIVE_PRECISION
from forgetting_assets.store import tier
from resources.database import Database

QUERIES = sql.load("drift")

BARS = {
    "archive": ARCHIVE_PRECISION,
    "supersede": ARCHIVE_PRECISION,
    "conflict": SELECTION_BARS["conflict"],
}
"""The precision that each action is held to in a deployment."""


@dataclass(frozen=True)
class DriftRow:
    """The decisions that stand on proposals of an action and a memory type; None: of every type.

    ``precision`` is accepted / (accepted + rejected), and ``lower`` its one-sided 95 % bound; both
    are None before anything was decided.
    """

    action: str
    memory_type: str | None
    accepted: int
    rejected: int
    undone: int
    precision: float | None
    lower: float | None

    @property
    def below(self) -> bool:
        """Whether the bound is below the action's bar.

        So it is for few decisions too, all of them accepted: 0.95 takes 59 of 59.
        """
        return self.lower is not None and self.lower < BARS[self.action]


@dataclass(frozen=True)
class RegretRow:
    """Archived evidence of a kind that was used within 14 days all the same.

    ``rate`` is regretted / archived, as `forgetting evidence regret` has it, with its upper 95 %
    bound; ``recent`` ones may be regretted yet, so that both may grow.
    """

    kind: str
    archived: int
    regretted: int
    recent: int
    rate: float
    upper: float


def measure(database: Database, user_ids: Iterable[UUID], now: datetime) -> list[DriftRow]:
    """The decisions of some tenants by action and memory type, and by action over all types.

    One row for each action at least, also when nothing was ever decided.
    """
    counts: Counter[tuple[str, str | None, str]] = Counter()
    for user_id in user_ids:
        with database.tenant(user_id) as tx:
            for row in tx.rows(QUERIES["count_decisions"], now=now):
                for outcome in ("accepted", "rejected", "undone"):
                    for memory_type in (None, row.memory_type):
                        counts[row.action, memory_type, outcome] += getattr(row, outcome)
    kinds = {(action, memory_type) for action, memory_type, _ in counts}
    kinds |= {(action, None) for action in BARS}
    return [
        _row(action, memory_type, counts)
        for action in BARS
        for memory_type in sorted((t for a, t in kinds if a == action), key=lambda t: t or "")
    ]


def _row(
    action: str, memory_type: str | None, counts: Counter[tuple[str, str | None, str]]
) -> DriftRow:
    accepted, rejected, undone = (
        counts[action, memory_type, outcome] for outcome in ("accepted", "rejected", "undone")
    )
    bounds = clopper_pearson(accepted, accepted + rejected)
    return DriftRow(
        action,
        memory_type,
        accepted,
        rejected,
        undone,
        accepted / (accepted + rejected) if bounds else None,
        bounds.lower if bounds else None,
    )


def regrets(
    database: Database, user_ids: Iterable[UUID], first_day: date, now: datetime
) -> list[RegretRow]:
    """How often the sweeps since ``first_day`` were wrong, by kind, over some tenants."""
    counts: dict[str, Counter[str]] = {}
    for user_id in user_ids:
        for each in tier.regrets(database, user_id, first_day, now):
            counts.setdefault(each.kind, Counter()).update(
                archived=each.archived, regretted=each.regretted, recent=each.recent
            )
    rows = []
    for kind, count in sorted(counts.items()):
        archived, regretted = count["archived"], count["regretted"]
        bounds = clopper_pearson(regretted, archived)
        assert bounds is not None  # a kind is here because some of it was archived
        rows.append(
            RegretRow(
                kind, archived, regretted, count["recent"], regretted / archived, bounds.upper
            )
        )
    return rows


def text(rows: Sequence[DriftRow], regretted: Sequence[RegretRow]) -> str:
    """The report for people, in at most 100 columns."""
    lines = [
        "What reviewers decided (undone counts as neither)",
        "  action     type        accepted  rejected  undone  precision  lower   bar",
    ]
    for row in rows:
        flag = "  below" if row.below else ""
        lines.append(
            f"  {row.action:9}  {row.memory_type or 'all':10}  {row.accepted:8}  {row.rejected:8}"
            f"  {row.undone:6}  {_share(row.precision):>9}  {_share(row.lower):>5}"
            f"  {BARS[row.action]:.2f}{flag}"
        )
    lines += [
        "",
        "Archived evidence that was used within 14 days",
        "  kind             archived  regretted  may be yet   rate  upper",
    ]
    lines += [
        f"  {row.kind:15}  {row.archived:8}  {row.regretted:9}  {row.recent:10}"
        f"  {_share(row.rate):>5}  {_share(row.upper):>5}"
        for row in regretted
    ]
    if not regretted:
        lines.append("  nothing was archived")
    return "\n".join(lines) + "\n"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
