"""The private set: outside the repository, frozen once, and never quoted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval import golden
from eval.fixture import EvalItem
from resources.errors import EvalRefused
from resources.settings import PROJECT
from tests.eval_items import fixture_file, item

MARKER = "Ottoline keeps the violet ledger"


@pytest.fixture
def items() -> list[EvalItem]:
    return [
        item("archived", "archive", text=MARKER),
        item("replaced", "supersede", newer=2, named=1, split="test", text=MARKER),
        item("standup", slice="recurring", text=MARKER),
    ]


@pytest.fixture
def path(tmp_path: Path, items: list[EvalItem]) -> Path:
    return fixture_file(tmp_path / "private.json", items)


def refused(verb: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(EvalRefused) as refusal:
        verb(path)
    assert MARKER not in str(refusal.value)
    return str(refusal.value)


def edit(path: Path, place: int, **changed: Any) -> None:
    file = json.loads(path.read_text())
    file["items"][place] |= changed
    path.write_text(json.dumps(file))


def test_a_set_is_loaded_as_it_was_frozen(path: Path, items: list[EvalItem]) -> None:
    frozen = golden.freeze(path)
    assert golden.load(path) == frozen
    assert list(frozen.items) == items
    assert golden.labels_path(path).name == "private.json.labels.json"
    assert MARKER not in golden.labels_path(path).read_text()
    assert golden.summary(frozen) == (
        "3 items\n  archive dev: 1\n  pair test: 1\n  recurring dev: 1\n"
    )


def test_a_set_that_was_never_frozen_is_refused(path: Path) -> None:
    assert "are not frozen: freeze them before any judge" in refused(golden.load, path)


def test_labels_are_frozen_once(path: Path) -> None:
    golden.freeze(path)
    before = golden.labels_path(path).read_bytes()
    edit(path, 0, label="keep", slice="keep")
    assert "frozen already" in refused(golden.freeze, path)
    assert golden.labels_path(path).read_bytes() == before


@pytest.mark.parametrize(
    ("place", "changed", "named"),
    [
        (0, {"label": "keep", "slice": "keep"}, "on archived"),
        (1, {"label_newer": 0}, "on replaced"),
        (0, {"id": "renamed"}, "on archived, renamed"),
    ],
    ids=["label", "named-newer", "id"],
)
def test_a_set_whose_labels_moved_is_refused_by_id(
    path: Path, place: int, changed: dict[str, Any], named: str
) -> None:
    golden.freeze(path)
    edit(path, place, **changed)
    assert f"(3 items then, 3 now), {named}:" in refused(golden.load, path)


def test_an_item_that_went_or_came_is_a_moved_label(path: Path, items: list[EvalItem]) -> None:
    golden.freeze(path)
    fixture_file(path, items[:2])
    assert "(3 items then, 2 now), on standup:" in refused(golden.load, path)
    fixture_file(path, [*items, item("another")])
    assert "(3 items then, 4 now), on another:" in refused(golden.load, path)


def test_the_order_and_the_text_of_items_may_change(path: Path, items: list[EvalItem]) -> None:
    golden.freeze(path)
    fixture_file(path, items[::-1])
    edit(path, 0, cluster="standups")
    assert [each.id for each in golden.load(path).items] == ["standup", "replaced", "archived"]


def test_an_edited_or_broken_freeze_is_refused(path: Path) -> None:
    golden.freeze(path)
    place = golden.labels_path(path)
    frozen = json.loads(place.read_text())
    place.write_text(json.dumps(frozen | {"label_checksum": "0" * 64}))
    assert "or the frozen file was edited" in refused(golden.load, path)
    place.write_text(MARKER)
    assert "has no frozen labels any more" in refused(golden.load, path)
    place.unlink()
    place.mkdir()
    assert "cannot be read" in refused(golden.load, path)


@pytest.mark.parametrize("verb", [golden.freeze, golden.load])
def test_a_set_inside_the_repository_is_refused_also_through_a_link(
    verb: Callable[[Path], object], tmp_path: Path, items: list[EvalItem]
) -> None:
    inside = PROJECT / ".forgetting" / f"golden-{tmp_path.name}"
    inside.mkdir(parents=True)
    try:
        place = fixture_file(inside / "private.json", items)
        link = tmp_path / "link"
        link.symlink_to(inside)
        for path in (place, link / "private.json"):
            assert "lies inside the repository" in refused(verb, path)
        assert sorted(each.name for each in inside.iterdir()) == ["private.json"]
    finally:
        shutil.rmtree(inside)


@pytest.mark.parametrize(
    "changed",
    [
        {"split": MARKER},
        {"label": MARKER},
        {MARKER: 1},
        {"memory": {"content": MARKER}},
        {"slice": "recurring"},
    ],
    ids=["split", "label", "field", "memory", "slice"],
)
def test_a_set_that_is_not_of_the_format_is_refused_without_its_text(
    path: Path, changed: dict[str, Any]
) -> None:
    edit(path, 0, **changed)
    assert "is no file of items" in refused(golden.freeze, path)
    assert not golden.labels_path(path).exists()
