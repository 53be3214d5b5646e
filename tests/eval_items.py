"""Builders and Hypothesis strategies of labelled items and of what a judge said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from eval.fixture import EvalItem, Fixture, load
from eval.judged import Judged

RECORDED = datetime(2026, 3, 1, 9, tzinfo=UTC)
NOW = datetime(2026, 9, 1, tzinfo=UTC)
SLICES = {"archive": "archive", "supersede": "pair", "conflict": "pair", "keep": "keep"}


def item(
    id: str = "one",
    label: str = "keep",
    *,
    kind: str = "single",
    newer: int = 1,
    named: int | None = None,
    slice: str | None = None,
    split: str = "dev",
    cluster: str | None = None,
    memory_type: str | None = None,
    recorded: datetime = RECORDED,
    similarity: float = 0.9,
    text: str = "text",
) -> EvalItem:
    """A labelled item; a single has ``newer`` neighbours, of which ``named`` is the label's."""
    slice = slice or SLICES[label]
    memory_type = memory_type or ("event" if slice == "recurring" else "fact")
    newer = 1 if kind == "pair" else newer
    if kind == "single" and label in ("supersede", "conflict") and named is None:
        named = 0
    memory = {
        "memory_type": memory_type,
        "topic": f"topic of {id}",
        "content": f"{text} of {id}",
        "created_at": recorded.isoformat(),
    }
    newers = [
        memory
        | {
            "content": f"{text} {n} after {id}",
            "created_at": (recorded + timedelta(days=n + 1)).isoformat(),
        }
        for n in range(newer)
    ]
    return EvalItem.model_validate(
        {
            "id": id,
            "slice": slice,
            "split": split,
            "cluster": cluster or id,
            "kind": kind,
            "label": label,
            "label_newer": named,
            "memory": memory,
            "newer": newers,
            "similarities": [similarity] * newer,
        }
    )


def said(
    of: EvalItem, action: str | None = None, probability: float = 0.9, related: int | None = None
) -> Judged:
    """A verdict on an item: its label unless told otherwise."""
    action = action or of.label
    if related is None and action in ("supersede", "conflict"):
        related = of.label_newer or 0
    return Judged(of, action, related, probability, {action: probability})


def several(
    count: int, action: str, *, right: int, probability: float = 0.9, start: int = 0, **item_: Any
) -> list[Judged]:
    """``count`` verdicts of one action on as many items, of which ``right`` are the label."""
    return [
        said(
            item(f"{action}-{n:03}", action if n - start < right else "keep", **item_),
            action,
            probability,
        )
        for n in range(start, start + count)
    ]


def fixture_file(path: Path, items: Sequence[EvalItem], name: str = "test") -> Path:
    """A file of items."""
    path.write_text(
        json.dumps(
            {
                "name": name,
                "about": "invented",
                "now": NOW.isoformat(),
                "items": [each.model_dump(mode="json") for each in items],
            }
        ),
        encoding="utf-8",
    )
    return path


def fixture(folder: Path, items: Sequence[EvalItem], name: str = "test") -> Fixture:
    """A fixture of these items, read from a file in a folder."""
    return load(fixture_file(folder / f"{name}.json", items, name))


# Thresholds and probabilities on and between the swept ones.
PROBABILITIES = st.one_of(
    st.sampled_from([n / 100 for n in range(0, 101, 5)]), st.floats(0, 1, allow_nan=False)
)


@st.composite
def verdicts(draw: st.DrawFn, most: int = 40, least: int = 0) -> list[Judged]:
    """Verdicts on items of distinct ids: right and wrong, of every action, slice and kind."""
    found = []
    for n in range(draw(st.integers(least, most))):
        label = draw(st.sampled_from(("keep", "archive", "supersede", "conflict")))
        slice = draw(st.sampled_from(("keep", "recurring"))) if label == "keep" else None
        kind = draw(st.sampled_from(("single", "pair")))
        of = item(
            f"item-{n}",
            label,
            kind=kind,
            newer=2,
            slice=slice,
            cluster=f"cluster-{draw(st.integers(0, 5))}",
            split=draw(st.sampled_from(("dev", "test"))),
        )
        action = draw(st.sampled_from((label, "keep", "archive", "supersede", "conflict")))
        related = draw(st.integers(0, 1)) if action in ("supersede", "conflict") else None
        found.append(said(of, action, draw(PROBABILITIES), 0 if kind == "pair" else related))
    return found
