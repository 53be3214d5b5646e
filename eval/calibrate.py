"""Which thresholds a model gets: the rule that was fixed before any judge was asked.

For each action, the lowest swept threshold whose precision on the dev split reaches the action's
bar over enough proposals. None qualifies: the action proposes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eval.fixture import Fixture
from eval.judged import Judged
from eval.metrics import ACTIONS, accuracy, proposals
from resources.errors import EvalRefused
from resources.thresholds import SWEEP, Thresholds

BARS = {"archive": 0.97, "supersede": 0.97, "conflict": 0.80}
"""The least precision of a selected threshold (ADR, Protocol)."""
LEAST_PROPOSALS = 10
"""Proposals that a threshold needs before its precision counts."""


@dataclass(frozen=True)
class Swept:
    """What one threshold would propose on the dev split, and whether it meets the rule."""

    action: str
    threshold: float
    proposed: int
    correct: int
    precision: float | None
    qualifies: bool


@dataclass(frozen=True)
class Selection:
    """The thresholds by the rule, and the whole sweep. ``items``: verdicts it was made on."""

    thresholds: dict[str, float | None]
    table: tuple[Swept, ...]
    items: int

    def text(self) -> str:
        """The choice and, for an action without one, why it has none."""
        return "\n".join(self._sentence(action) for action in self.thresholds)

    def _sentence(self, action: str) -> str:
        rows = [row for row in self.table if row.action == action]
        chosen = next((row for row in rows if row.qualifies), None)
        if chosen:
            return (
                f"{action}: {chosen.threshold:.2f} "
                f"({chosen.correct} of {chosen.proposed} proposals right)."
            )
        most = max(row.proposed for row in rows)
        if most < LEAST_PROPOSALS:
            return (
                f"{action}: no threshold, so it proposes nothing: the judge makes {most} proposals "
                f"at most where {LEAST_PROPOSALS} are needed."
            )
        return (
            f"{action}: no threshold, so it proposes nothing: none has a precision of "
            f"{BARS[action]:.2f} over {LEAST_PROPOSALS} proposals."
        )


def sweep(
    judged: Sequence[Judged], action: str, bar: float, least: int = LEAST_PROPOSALS
) -> list[Swept]:
    """Each swept threshold of an action, lowest first, with its proposals and their precision."""
    rows = []
    for threshold in SWEEP:
        made = proposals(judged, {action: threshold})
        share = accuracy(made)
        qualifies = share is not None and share >= bar and len(made) >= least
        correct = sum(each.correct for each in made)
        rows.append(Swept(action, threshold, len(made), correct, share, qualifies))
    return rows


def lowest(rows: Sequence[Swept]) -> float | None:
    """The lowest threshold that qualifies; None when none does."""
    return min((row.threshold for row in rows if row.qualifies), default=None)


def select(judged: Sequence[Judged]) -> Selection:
    """Apply the rule to the verdicts on items of the dev split; the others are not looked at.

    A proposal on a recurring episode is a wrong proposal like any other. Raises EvalRefused without
    a verdict on the dev split, or with two on one item.
    """
    dev = [each for each in judged if each.item.split == "dev"]
    if not dev:
        raise EvalRefused(
            "There is no verdict on an item of the dev split, and thresholds are selected on no "
            "other: judge eval/fixtures/calibration.json."
        )
    if len({each.item.id for each in dev}) < len(dev):
        raise EvalRefused("An item has two verdicts: select from the answers of one run.")
    tables = {action: sweep(dev, action, BARS[action]) for action in ACTIONS}
    return Selection(
        thresholds={action: lowest(rows) for action, rows in tables.items()},
        table=tuple(row for rows in tables.values() for row in rows),
        items=len(dev),
    )


def write(
    path: Path,
    selection: Selection,
    *,
    model: str,
    fixture: Fixture,
    source: Literal["scripted", "endpoint"],
) -> None:
    """Write a selection as the pass reads it, bound to the model and the fixture's bytes.

    The same selection gives the same bytes. A file that is there is replaced as a whole.
    """
    text = Thresholds(
        model=model,
        fixture_sha256=fixture.sha256,
        label_checksum=fixture.label_checksum,
        source=source,
        thresholds=selection.thresholds,
    ).to_json()
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise EvalRefused(
            f"The thresholds cannot be written to {path}: {error.strerror}."
        ) from None
