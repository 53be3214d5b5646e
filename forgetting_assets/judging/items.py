"""What can be judged: a stale single with its newer neighbours, or a conflict pair."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True)
class Memory:
    """A memory as the judge will see it, with what tells later whether it has changed."""

    id: UUID
    memory_type: str
    scope: str
    project: str | None
    topic: str
    content: str
    content_hash: str
    created_at: datetime
    freshness: datetime


@dataclass(frozen=True)
class Single:
    """A stale memory and up to three newer live memories of its type and scope, nearest first."""

    memory: Memory
    newer: tuple[Memory, ...] = ()

    @property
    def subject(self) -> Memory:
        """The memory that the verdict is recorded on."""
        return self.memory


@dataclass(frozen=True)
class Pair:
    """Two memories of one type, scope and project, with their cosine similarity."""

    older: Memory
    newer: Memory
    similarity: float

    @property
    def subject(self) -> Memory:
        """The memory that the verdict is recorded on: the older one."""
        return self.older


Item = Single | Pair


@dataclass(frozen=True)
class Choice:
    """One answer that an item offers: its key, what it means, and the verdict it stands for.

    ``name`` is the key without the item's place in its batch, so that it can be read later.
    """

    key: str
    meaning: str
    verdict: str
    related: Memory | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.key)
