"""What a judge said of labelled items: the one input of every metric."""

from __future__ import annotations

from dataclasses import dataclass

from eval.fixture import EvalItem
from forgetting_assets.judging.verdicts import Verdict


@dataclass(frozen=True)
class Judged:
    """A verdict on a labelled item.

    ``related`` is the place in ``item.newer`` that a supersede or conflict names, else None.
    ``probability`` is that of ``action``'s key, 0 to 1; ``probabilities`` has every key offered.
    """

    item: EvalItem
    action: str
    related: int | None
    probability: float
    probabilities: dict[str, float]

    @property
    def correct(self) -> bool:
        """Whether the verdict is the label, the named newer memory included."""
        if self.action != self.item.label:
            return False
        return self.item.kind == "pair" or self.related == self.item.label_newer


def judged(item: EvalItem, verdict: Verdict) -> Judged:
    """The verdict that the pass read from an answer, beside the item's label."""
    newer = verdict.item.newer if isinstance(verdict.item.newer, tuple) else (verdict.item.newer,)
    related = None
    if verdict.related is not None:
        related = [each.id for each in newer].index(verdict.related.id)
    return Judged(item, verdict.action, related, verdict.probability, dict(verdict.probabilities))
