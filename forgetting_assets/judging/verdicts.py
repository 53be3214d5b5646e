"""From the judge's answers to typed verdicts. Whatever breaks the contract rejects its item."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forgetting_assets.judging.items import Item, Memory
from forgetting_assets.judging.rendering import choices
from resources.errors import AnswerRejected


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one item: keep, archive, supersede or conflict.

    ``probability`` is the chosen key's own (0 to 1), never the endpoint's ``confidence``. The keys
    are without the item's place in its batch: ``supersede_by:n1`` names its second newer neighbour.
    """

    item: Item
    action: str
    related: Memory | None
    answer_key: str
    probability: float
    probabilities: dict[str, float]


def verdict_of(item: Item, ref: str, answer: object) -> Verdict:
    """The verdict that ``answer`` gives on ``item``. Raises AnswerRejected (jev-contract, BR-07).

    The answer must be of type choice, give exactly the offered keys finite probabilities in 0..1
    that sum to 1 within rounding, and choose a most probable one. A key of another item, or of a
    neighbour the item does not have, is no offered key.
    """
    offered = {choice.key: choice for choice in choices(item, ref)}
    if not isinstance(answer, dict) or answer.get("type") != "choice":
        raise AnswerRejected(f"{ref}: the answer is not a choice.")
    chosen, given = answer.get("choice"), answer.get("probabilities")
    if not isinstance(chosen, str) or chosen not in offered:
        raise AnswerRejected(f"{ref}: the chosen key was not offered for this item.")
    if not isinstance(given, dict) or set(given) != set(offered):
        raise AnswerRejected(f"{ref}: the probabilities are not those of the offered keys.")
    probabilities = {key: _probability(ref, given[key]) for key in offered}
    total = math.fsum(probabilities.values())
    if abs(total - 1) > max(0.02, 0.005 * len(offered)) + 1e-9:
        raise AnswerRejected(f"{ref}: the probabilities sum to {total:.3f}.")
    if probabilities[chosen] < max(probabilities.values()):
        raise AnswerRejected(f"{ref}: the chosen key is not a most probable one.")
    choice = offered[chosen]
    return Verdict(
        item,
        choice.verdict,
        choice.related,
        choice.name,
        probabilities[chosen],
        {offered[key].name: probability for key, probability in probabilities.items()},
    )


def _probability(ref: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerRejected(f"{ref}: a probability is not a number.")
    if not 0 <= value <= 1:  # NaN is not either
        raise AnswerRejected(f"{ref}: a probability is not between 0 and 1.")
    return float(value)
