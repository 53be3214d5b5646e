"""How right and how honest a judge is: one small function a metric, over what it said of items.

A proposal here is what the pass would propose: a verdict other than keep whose probability reaches
its action's threshold. It is right when it is the item's label and names the right newer memory.
What too little data cannot say is None, never a number. No result depends on the order of the
items, and none carries their text.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from eval.judged import Judged
from forgetting_assets.judging.thresholds import status_of

ACTIONS = ("archive", "supersede", "conflict")
"""What can be proposed."""
HEADLINE = ("archive", "supersede")
"""The actions that end a memory: the ADR's headline is their precision, each and combined."""

Thresholds = Mapping[str, float | None]


class Bin(NamedTuple):
    """Verdicts of similar probability: their mean probability beside the share that was right."""

    lower: float
    upper: float
    size: int
    confidence: float
    accuracy: float


class Miss(NamedTuple):
    """An item whose outcome is not its label, by ids and labels alone.

    ``supersede:n1`` names the second newer memory of a single.
    """

    id: str
    label: str
    said: str
    probability: float


def proposals(judged: Sequence[Judged], thresholds: Thresholds) -> list[Judged]:
    """The verdicts that become proposals; an action without a threshold has none."""
    return [
        each
        for each in judged
        if status_of(each.action, each.probability, thresholds) == "proposed"
    ]


def precision(judged: Sequence[Judged], action: str, threshold: float | None) -> float | None:
    """Right proposals / proposals of an action, 0 to 1; None without a proposal."""
    return combined_precision(judged, {action: threshold})


def combined_precision(judged: Sequence[Judged], thresholds: Thresholds) -> float | None:
    """Right proposals / proposals of all actions in ``thresholds``, 0 to 1; None without one."""
    return accuracy(proposals(judged, thresholds))


def accuracy(judged: Sequence[Judged]) -> float | None:
    """Right verdicts / verdicts, 0 to 1; None without a verdict."""
    if not judged:
        return None
    return sum(each.correct for each in judged) / len(judged)


def recall(judged: Sequence[Judged], action: str, threshold: float | None) -> float | None:
    """Right proposals / items labelled with an action, 0 to 1; None without such an item.

    An action without a threshold finds none: 0.
    """
    labelled = [each for each in judged if each.item.label == action]
    if not labelled:
        return None
    found = proposals(labelled, {action: threshold})
    return sum(each.correct for each in found) / len(labelled)


def still_valid(judged: Sequence[Judged]) -> list[Judged]:
    """Verdicts on items that are labelled keep and are no recurring episodes."""
    return [e for e in judged if e.item.label == "keep" and e.item.slice != "recurring"]


def keep_rate(judged: Sequence[Judged]) -> float | None:
    """Keeps / verdicts on still-valid items, 0 to 1, whatever the probability; None without one."""
    return accuracy(still_valid(judged))


def collapses(judged: Sequence[Judged], thresholds: Thresholds) -> list[str]:
    """The ids of recurring episodes that any proposal is about, in order. Each is one too many."""
    recurring = [each for each in judged if each.item.slice == "recurring"]
    return sorted(each.item.id for each in proposals(recurring, thresholds))


def brier(judged: Sequence[Judged]) -> float | None:
    """Mean of (probability - 1 if right, else probability) squared, 0 (best) to 1; None of nothing.

    It is of the chosen answer alone, as the thresholds are.
    """
    if not judged:
        return None
    return math.fsum((each.probability - each.correct) ** 2 for each in judged) / len(judged)


def reliability(judged: Sequence[Judged], bins: int = 10, adaptive: bool = False) -> list[Bin]:
    """The bins that have a verdict, lowest probability first; none for nothing.

    Of equal width, or adaptive: as many verdicts in each as in any other, up to one. Then there are
    at most as many bins as verdicts, and ``lower`` and ``upper`` are the probabilities found.
    """
    if bins < 1:
        raise ValueError("a reliability diagram has at least one bin")
    # The id breaks ties, so that no bin depends on the order in which items were judged.
    ordered = sorted(judged, key=lambda each: (each.probability, each.item.id))
    if adaptive:
        bins = min(bins, len(ordered))
        parts = [
            ordered[n * len(ordered) // bins : (n + 1) * len(ordered) // bins] for n in range(bins)
        ]
        return [_bin(part, part[0].probability, part[-1].probability) for part in parts]
    filled: dict[int, list[Judged]] = defaultdict(list)
    for each in ordered:
        filled[min(int(each.probability * bins), bins - 1)].append(each)
    return [_bin(part, n / bins, (n + 1) / bins) for n, part in sorted(filled.items())]


def _bin(part: Sequence[Judged], lower: float, upper: float) -> Bin:
    confidence = math.fsum(each.probability for each in part) / len(part)
    return Bin(lower, upper, len(part), confidence, sum(e.correct for e in part) / len(part))


def calibration_error(rows: Sequence[Bin]) -> float | None:
    """Mean of abs(accuracy - confidence) over bins by their size, 0 (best) to 1; None of none."""
    if not rows:
        return None
    total = sum(row.size for row in rows)
    return math.fsum(row.size * abs(row.accuracy - row.confidence) for row in rows) / total


def expected_calibration_error(
    judged: Sequence[Judged], bins: int = 10, adaptive: bool = False
) -> float | None:
    """The calibration error of the judge's probabilities, 0 (best) to 1; None without a verdict.

    With few verdicts a bin, it is above 0 for an honest judge as well.
    """
    return calibration_error(reliability(judged, bins, adaptive))


def misses(judged: Sequence[Judged], thresholds: Thresholds) -> list[Miss]:
    """Wrong proposals, and items that should have had one and got none; the surest first."""
    found = []
    for each in judged:
        proposed = bool(proposals([each], thresholds))
        if (proposed or each.item.label != "keep") and not (proposed and each.correct):
            label = _named(each, each.item.label, each.item.label_newer)
            said = _named(each, each.action, each.related)
            found.append(Miss(each.item.id, label, said, each.probability))
    return sorted(found, key=lambda miss: (-miss.probability, miss.id))


def _named(each: Judged, action: str, newer: int | None) -> str:
    return action if each.item.kind == "pair" or newer is None else f"{action}:n{newer}"


def by_memory_type(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The verdicts by the type of their memory, in the order of the types' names."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for each in judged:
        found[each.item.memory.memory_type].append(each)
    return dict(sorted(found.items()))
