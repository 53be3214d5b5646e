"""Putting items into judge calls that stay within the sizes of the ADR."""

from __future__ import annotations

import json
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

    @property
    def tokens(self) -> int:
        """About as many input tokens as the call has, rather more than fewer: 3 bytes a token."""
        asked = json.dumps(self.questions, ensure_ascii=False)
        return -(-len((self.state + asked).encode()) // 3)


def batches(
    items: Sequence[Item], as_of: datetime, batch_items: int, *, with_shadow: bool = False
) -> tuple[list[Batch], list[Item]]:
    """``items`` in order in as few calls as fit, and those that no call can hold.

    A call has at most ``batch_items`` items (1 to 100) and 100 questions, and splits above 48,000
    characters; an item that alone passes 64,000 is refused.
    """
    if not 1 <= batch_items <= MAX_QUESTIONS:
        raise ValueError(f"batch_items must be 1 to {MAX_QUESTIONS}, not {batch_items}")
    done: list[Batch] = []
    refused: list[Item] = []
    current: Batch | None = None
    for item in items:
        alone = _batch((item,), as_of, with_shadow)
        if len(alone.state) > REFUSE_ABOVE:
            refused.append(item)
            continue
        grown = _batch((*current.items, item), as_of, with_shadow) if current else alone
        if current and (
            len(grown.items) > batch_items
            or len(grown.questions) > MAX_QUESTIONS
            or len(grown.state) > SPLIT_ABOVE
        ):
            done.append(current)
            grown = alone
        current = grown
    if current:
        done.append(current)
    return done, refused


def halves(batch: Batch, as_of: datetime, *, with_shadow: bool = False) -> tuple[Batch, Batch]:
    """The two halves of a batch that the judge found too large. Needs at least two items."""
    middle = len(batch.items) // 2
    first, second = batch.items[:middle], batch.items[middle:]
    return _batch(first, as_of, with_shadow), _batch(second, as_of, with_shadow)


def _batch(items: tuple[Item, ...], as_of: datetime, with_shadow: bool) -> Batch:
    state, questions = render(items, as_of, with_shadow=with_shadow)
    return Batch(items, state, questions)
