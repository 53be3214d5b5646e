"""Shadow questions: what a pair is asked beside its verdict, for the eval and for nothing else.

They name neither side first, so that they show whether a verdict depends on the order of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAME_MATTER = "same_matter"
ONE_OUTDATED = "one_outdated"

ASKED = {
    SAME_MATTER: (
        "Are its two memories about the same matter?",
        "Both are about one thing: one decision, one habit or one fact, of one subject or person.",
        "They are about different things, however alike their words.",
    ),
    ONE_OUTDATED: (
        "Is one of its two memories out of date, given the other?",
        "Both cannot hold now, and one of them was overtaken.",
        "Both may hold now.",
    ),
}


@dataclass(frozen=True)
class Shadow:
    """The probability of yes to each shadow question (0 to 1), or None without a usable answer."""

    same_matter: float | None
    one_outdated: float | None


def questions(ref: str, index: int) -> dict[str, dict[str, object]]:
    """The two yes/no questions of the pair ``ref``, the item at ``index``, by question id."""
    return {
        f"{ref}_{name}": {
            "type": "noul",
            "instructions": f"This question is about items[{index}], ref {ref}, alone. {ask}",
            "criteria": {"true": yes, "false": no},
        }
        for name, (ask, yes, no) in ASKED.items()
    }


def shadow_of(ref: str, answers: Mapping[str, object]) -> Shadow | None:
    """What was answered about the pair ``ref``; None where nothing usable was.

    A bad answer here is no answer: the verdict beside it stands.
    """
    same, outdated = (_yes(answers.get(f"{ref}_{name}")) for name in (SAME_MATTER, ONE_OUTDATED))
    return None if same is None and outdated is None else Shadow(same, outdated)


def _yes(answer: object) -> float | None:
    if not isinstance(answer, dict) or answer.get("type") != "noul":
        return None
    value = answer.get("noul")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)
