"""A private set of labelled items: where it may lie, and labels that are frozen before any judging.

The format is that of eval/fixtures/calibration.json, with the split `dev` or `test` for each item.
The set lies outside the repository. Its labels are frozen into `<set>.labels.json` beside it before
the first judged run, and a set whose labels moved since is refused. An error names ids and counts,
never the text of an item.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from eval import fixture
from eval.fixture import Action, Fixture
from resources.errors import EvalRefused, some
from resources.settings import PROJECT


class _Frozen(BaseModel):
    """The labels by id, each with the newer memory it names, and their checksum."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label_checksum: str
    labels: dict[str, tuple[Action, int | None]]


def labels_path(path: Path) -> Path:
    """Where the frozen labels of a set lie."""
    return path.with_name(f"{path.name}.labels.json")


def freeze(path: Path) -> Fixture:
    """Freeze the labels of a set, once. Raises EvalRefused when they are frozen already."""
    items = _read(path)
    frozen = _Frozen(label_checksum=items.label_checksum, labels=_labels(items))
    place = labels_path(path)
    try:
        with place.open("x", encoding="utf-8") as file:
            file.write(frozen.model_dump_json(indent=1) + "\n")
    except FileExistsError:
        raise EvalRefused(
            f"The labels of {path} are frozen already, and labels are frozen once: give the set "
            "another name when it is another set."
        ) from None
    except OSError as error:
        raise EvalRefused(f"The labels cannot be frozen into {place}: {error.strerror}.") from None
    return items


def load(path: Path) -> Fixture:
    """A private set whose labels are as they were frozen. Raises EvalRefused."""
    items = _read(path)
    place = labels_path(path)
    try:
        frozen = _Frozen.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        raise EvalRefused(
            f"The labels of {path} are not frozen: freeze them before any judge sees the set."
        ) from None
    except OSError as error:
        raise EvalRefused(f"The frozen labels in {place} cannot be read: {error.strerror}.") from (
            None
        )
    except ValidationError:
        raise EvalRefused(
            f"{place} has no frozen labels any more: bring back the file as it was frozen."
        ) from None
    if frozen.label_checksum != items.label_checksum:
        now = _labels(items)
        moved = sorted(
            id_
            for id_ in now.keys() | frozen.labels.keys()
            if now.get(id_) != frozen.labels.get(id_)
        )
        which = f"on {some(moved)}" if moved else "or the frozen file was edited"
        raise EvalRefused(
            f"The labels of {path} moved since they were frozen ({len(frozen.labels)} items then, "
            f"{len(now)} now), {which}: bring the frozen ones back, or start a set of another name."
        )
    return items


def summary(items: Fixture) -> str:
    """The set by slice and split, in counts alone."""
    counts = Counter((each.slice, each.split) for each in items.items)
    lines = [f"{len(items.items)} items"]
    lines += [f"  {slice} {split}: {count}" for (slice, split), count in sorted(counts.items())]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> Fixture:
    if path.resolve().is_relative_to(PROJECT.resolve()):
        raise EvalRefused(
            f"{path} lies inside the repository, where a private set could be committed: move it "
            "out."
        )
    return fixture.load(path)


def _labels(items: Fixture) -> dict[str, tuple[Action, int | None]]:
    return {each.id: (each.label, each.label_newer) for each in items.items}
