"""Judges that do not judge: what a rule without any reading would say. A judge must beat them.

Each is as sure as can be (probability 1) of what it says, and keeps where the pass would not offer
its answer: a blocker, say, is never archived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from eval.fixture import EvalItem, Fixture
from eval.judged import Judged
from forgetting_assets.judging.rendering import choices

FLOOR = 0.82
"""The ADR's first floor of a pair."""
AGE_DAYS = 90

Rule = Callable[[EvalItem], tuple[str, int | None]]
"""From an item to an action and the place in ``newer`` that it names."""


def keep_all(fixture: Fixture) -> list[Judged]:
    """Nothing is ever forgotten."""
    return _apply(fixture, lambda item: ("keep", None))


def newest_wins(fixture: Fixture) -> list[Judged]:
    """What has a newer neighbour is superseded by the nearest one."""
    return _apply(fixture, lambda item: ("supersede", 0) if item.newer else ("keep", None))


def archive_by_age(fixture: Fixture, days: int = AGE_DAYS) -> list[Judged]:
    """What was recorded more than ``days`` days before the fixture's present is archived."""
    limit = fixture.now - timedelta(days=days)
    return _apply(
        fixture,
        lambda item: ("archive" if item.memory.created_at < limit else "keep", None),
    )


def similarity_above(fixture: Fixture, floor: float = FLOOR) -> list[Judged]:
    """What has a newer neighbour at or above ``floor`` is superseded by the most similar one."""

    def rule(item: EvalItem) -> tuple[str, int | None]:
        best = max(item.similarities, default=-1.0)
        if best < floor:
            return "keep", None
        return "supersede", item.similarities.index(best)

    return _apply(fixture, rule)


def every(fixture: Fixture) -> Mapping[str, list[Judged]]:
    """All baselines by the names that a report gives them."""
    return {
        "keep all": keep_all(fixture),
        "newest wins": newest_wins(fixture),
        f"older than {AGE_DAYS} days": archive_by_age(fixture),
        f"similarity from {FLOOR}": similarity_above(fixture),
    }


def _apply(fixture: Fixture, rule: Rule) -> list[Judged]:
    return [_say(item, *rule(item)) for item in fixture.items]


def _say(item: EvalItem, action: str, newer: int | None) -> Judged:
    """The answer as a judge would have given it, or a keep where it is not on offer."""
    asked = item.to_item()
    neighbours = asked.newer if isinstance(asked.newer, tuple) else (asked.newer,)
    named = None if newer is None else neighbours[newer]
    offered = choices(asked, "s0")
    chosen = next(
        (each for each in offered if (each.verdict, each.related) == (action, named)), offered[0]
    )
    return Judged(
        item,
        chosen.verdict,
        None if chosen.related is None else newer,
        1.0,
        {each.name: float(each is chosen) for each in offered},
    )
