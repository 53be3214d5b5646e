"""Labelled items for the eval: the format, reading it, and what binds a result to one exact file.

An item is what the pass would put to the judge, with the label that it was given beforehand.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import NAMESPACE_URL, uuid5

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from forgetting_assets.judging.items import Item, Memory, Pair, Single
from forgetting_assets.records import Name, NonEmpty, reasons
from resources.errors import EvalRefused
from resources.settings import PROJECT

CALIBRATION = PROJECT / "eval" / "fixtures" / "calibration.json"

Action = Literal["keep", "archive", "supersede", "conflict"]
Slice = Literal["archive", "pair", "keep", "recurring"]


class EvalMemory(BaseModel):
    """A memory as an item shows it. Times carry an offset."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_type: Literal["decision", "preference", "blocker", "fact", "event", "note"]
    scope: Name = "work"
    project: Name | None = None
    topic: NonEmpty
    content: NonEmpty
    created_at: AwareDatetime
    updated_at: AwareDatetime | None = None


class EvalItem(BaseModel):
    """A single with up to three newer neighbours, nearest first, or a pair with exactly one.

    ``label`` is what the judge should say. ``label_newer`` is the place in ``newer`` that a
    single's supersede or conflict names. ``cluster`` groups items of one subject, which are not
    independent. ``hard`` names what makes the item hard, or is null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Name
    slice: Slice
    split: Literal["dev", "test"]
    cluster: Name
    kind: Literal["single", "pair"]
    label: Action
    label_newer: int | None = None
    hard: Name | None = None
    memory: EvalMemory
    newer: tuple[EvalMemory, ...] = Field(default=(), max_length=3)
    similarities: tuple[float, ...] = ()

    @model_validator(mode="after")
    def consistent(self) -> EvalItem:
        """What an item must be so that the pass could have made it."""
        if self.kind == "pair" and len(self.newer) != 1:
            raise ValueError("a pair has exactly one newer memory")
        if len(self.similarities) != len(self.newer):
            raise ValueError("each newer memory has one similarity")
        if any(not -1 <= each <= 1 for each in self.similarities):
            raise ValueError("a similarity is between -1 and 1")
        if any(each.created_at <= self.memory.created_at for each in self.newer):
            raise ValueError("a newer memory is created later")
        if any(
            (each.memory_type, each.scope) != (self.memory.memory_type, self.memory.scope)
            for each in self.newer
        ):
            raise ValueError("all memories of an item have one type and scope")
        named = self.kind == "single" and self.label in ("supersede", "conflict")
        if named != (self.label_newer is not None) or (
            self.label_newer is not None and self.label_newer not in range(len(self.newer))
        ):
            raise ValueError(
                "label_newer names the newer memory of a single's supersede or conflict"
            )
        episodic = self.memory.memory_type in ("event", "note")
        if episodic != (self.slice == "recurring") or (episodic and self.label != "keep"):
            raise ValueError("events and notes are of the slice recurring, and are kept")
        return self

    def to_item(self) -> Item:
        """The item as the pass renders it; ids follow from the item's own."""
        memory = _memory(self.id, "memory", self.memory)
        newer = tuple(
            _memory(self.id, f"newer{place}", each) for place, each in enumerate(self.newer)
        )
        if self.kind == "pair":
            return Pair(memory, newer[0], self.similarities[0])
        return Single(memory, newer)


def _memory(item_id: str, role: str, each: EvalMemory) -> Memory:
    return Memory(
        id=uuid5(NAMESPACE_URL, f"forgetting-eval:{item_id}:{role}"),
        memory_type=each.memory_type,
        scope=each.scope,
        project=each.project,
        topic=each.topic,
        content=each.content,
        content_hash=hashlib.sha256(each.content.encode()).hexdigest(),
        created_at=each.created_at,
        freshness=each.updated_at or each.created_at,
    )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    about: NonEmpty
    now: AwareDatetime
    items: tuple[EvalItem, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Fixture:
    """A file of items. ``sha256`` is of its bytes, ``label_checksum`` of ids and labels alone."""

    name: str
    now: AwareDatetime
    items: tuple[EvalItem, ...]
    sha256: str
    label_checksum: str


def load(path: Path = CALIBRATION) -> Fixture:
    """Read and check a file of items. Raises EvalRefused, which quotes no text of an item."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise EvalRefused(f"The items in {path} cannot be read: {error.strerror}.") from None
    try:
        file = _File.model_validate_json(raw)
    except ValidationError as error:
        where = {each["loc"][1] for each in error.errors() if len(each["loc"]) > 1}
        raise EvalRefused(
            f"{path} is no file of items: {reasons(error)} (items {sorted(map(str, where))[:5]})."
        ) from None
    ids = [each.id for each in file.items]
    if len(set(ids)) < len(ids):
        raise EvalRefused(f"{path} has two items with one id.")
    latest = max(m.created_at for i in file.items for m in (i.memory, *i.newer))
    if latest > file.now + timedelta(days=1):
        raise EvalRefused(f"{path} has a memory from after its own `now`.")
    return Fixture(
        file.name,
        file.now,
        file.items,
        hashlib.sha256(raw).hexdigest(),
        label_checksum(file.items),
    )


def label_checksum(items: tuple[EvalItem, ...]) -> str:
    """SHA-256 over ids, labels and what they name, in the order of the ids."""
    labels = sorted((each.id, each.label, each.label_newer) for each in items)
    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()
