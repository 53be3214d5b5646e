"""Putting items into judge calls that stay within the sizes of the ADR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from forgetting_assets.judging.items import Item
from forgetting_assets.judging.rendering import render

SPLIT_ABOVE = 48_000
"""Characters of rendered state above which a batch is split."""

REFUSE_ABOVE = 64_000
"""Characters of rendered state that are never sent."""

MAX_QUESTIONS = 100
"""Questions of one call that are never passed."""


@dataclass(frozen=True)
class Batch:
    """One judge call: its items in order, the rendered state and the questions by ref."""

    items: tuple[Item, ...]
    state: str
    questions: dict[str, dict[str, object]]


def batches(
    items: Sequence[Item], as_of: datetime, batch_items: int
) -> tuple[list[Batch], list[Item]]:
    """``items`` in order in as few calls as fit, and those that no call can hold.

    A call has at most ``batch_items`` items (1 to 100) and splits above 48,000 characters; an item
    that alone passes 64,000 is refused.
    """
    if not 1 <= batch_items <= MAX_QUESTIONS:
        raise ValueError(f"batch_items must be 1 to {MAX_QUESTIONS}, not {batch_items}")
    done: list[Batch] = []
    refused: list[Item] = []
    current: Batch | None = None
    for item in items:
        alone = _batch((item,), as_of)
        if len(alone.state) > REFUSE_ABOVE:
            refused.append(item)
            continue
        grown = _batch((*current.items, item), as_of) if current else alone
        if current and (len(grown.items) > batch_items or len(grown.state) > SPLIT_ABOVE):
            done.append(current)
            grown = alone
        current = grown
    if current:
        done.append(current)
    return done, refused


def halves(batch: Batch, as_of: datetime) -> tuple[Batch, Batch]:
    """The two halves of a batch that the judge found too large. Needs at least two items."""
    middle = len(batch.items) // 2
    return _batch(batch.items[:middle], as_of), _batch(batch.items[middle:], as_of)


def _batch(items: tuple[Item, ...], as_of: datetime) -> Batch:
    state, questions = render(items, as_of)
    return Batch(items, state, questions)
