"""Ways of asking one judge, side by side: items in a call, shadow questions or none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.answers import Answers
from eval.metrics import accuracy, brier, combined_precision, expected_calibration_error, proposals
from resources.errors import EvalRefused

WHOLE = {"archive": 0.5, "supersede": 0.5, "conflict": 0.5}
"""The lowest thresholds that are ever selected, so that no arm's own selection shows."""


@dataclass(frozen=True)
class Arm:
    """How the judge answered when it was asked this way.

    ``agreement`` is the share of the first arm's items with the same verdict here, and ``moved`` is
    how far an item's probability is from the first arm's, in the mean.
    """

    batch_items: int
    with_shadow: bool
    calls: int
    input_tokens: int
    judged: int
    rejected: int
    right: float | None
    proposals: int
    precision: float | None
    calibration_error: float | None
    brier: float | None
    agreement: float | None
    moved: float | None


def compare(arms: Sequence[Answers]) -> list[Arm]:
    """Each arm's figures, and how far it is from the first. Raises EvalRefused.

    All arms are of one fixture and one model, or their difference would be another one.
    """
    first = arms[0]
    for each in arms[1:]:
        if (each.fixture_sha256, each.model, each.source) != (
            first.fixture_sha256,
            first.model,
            first.source,
        ):
            raise EvalRefused(
                "Arms are compared on one fixture and one model: record the other arm again."
            )
    return [_arm(each, first) for each in arms]


def _arm(answers: Answers, first: Answers) -> Arm:
    said = {each.item.id: each for each in answers.judged}
    both = [(each, said[each.item.id]) for each in first.judged if each.item.id in said]
    same = [(a.action, a.related) == (b.action, b.related) for a, b in both]
    moved = [abs(a.probability - b.probability) for a, b in both]
    return Arm(
        batch_items=answers.batch_items,
        with_shadow=answers.with_shadow,
        calls=len(answers.calls),
        input_tokens=answers.input_tokens,
        judged=len(answers.judged),
        rejected=len(answers.rejected),
        right=accuracy(answers.judged),
        proposals=len(proposals(answers.judged, WHOLE)),
        precision=combined_precision(answers.judged, WHOLE),
        calibration_error=expected_calibration_error(answers.judged),
        brier=brier(answers.judged),
        agreement=sum(same) / len(same) if same else None,
        moved=math.fsum(moved) / len(moved) if moved else None,
    )


@dataclass(frozen=True)
class ShadowLine:
    """What was said to one shadow question, by the label of the pair: the mean of yes, 0 to 1."""

    question: str
    label: str
    pairs: int
    yes: float


def shadow_lines(answers: Answers) -> list[ShadowLine]:
    """The shadow questions of an arm that asked them, by label; none for another arm."""
    labels: Mapping[str, str] = {each.item.id: each.item.label for each in answers.judged}
    lines = []
    for question in ("same_matter", "one_outdated"):
        for label in sorted(set(labels.values())):
            said = [
                yes
                for id_, shadow in answers.shadows.items()
                if labels.get(id_) == label and (yes := getattr(shadow, question)) is not None
            ]
            if said:
                lines.append(ShadowLine(question, label, len(said), math.fsum(said) / len(said)))
    return lines
