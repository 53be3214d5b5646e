"""What was written by hand: the shapes of memories.json and routine.json, and their readers.

Belongs here: types that mirror the two files, and nothing that computes.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict

Slots = dict[str, list[str] | dict[str, int]]
"""What a template's slots may hold: one of some words, or a whole number `from` .. `to`."""


class WrittenAnswer(TypedDict):
    """What the script says about a memory; `by` is the key of the newer one."""

    verdict: str
    by: str | None
    probability: float


class WrittenMemory(TypedDict):
    """A memory, with its ages in days before the reference day."""

    key: str
    memory_type: str
    scope: str
    project: str | None
    topic: str
    content: str
    age_days: int
    touched_days: int
    tags: list[str]
    answer: NotRequired[WrittenAnswer]
    cites_session: NotRequired[str]


class WrittenTenant(TypedDict):
    """A tenant, its switches and its memories."""

    slug: str
    judgment_enabled: bool
    archival_enabled: bool
    memories: list[WrittenMemory]


class SessionSeries(TypedDict):
    """Sessions of one theme, numbered from the oldest: deploy-0410, deploy-0411 and so on."""

    theme: str
    first: int
    count: int


class EpisodeSeries(TypedDict):
    """A recurring episode: one text for many days, told apart by its date and a few words."""

    key: str
    memory_type: str
    scope: str
    project: str | None
    topic: str
    content: str
    count: int
    weekdays: list[int]
    at: str
    tags: list[str]


class Routine(TypedDict):
    """What a tenant's agent does every day: its sessions, what they leave, its episodes."""

    slug: str
    sessions: list[SessionSeries]
    slots: Slots
    templates: dict[str, list[str]]
    episodes: list[EpisodeSeries]
    episode_slots: Slots


@cache
def tenants() -> tuple[WrittenTenant, ...]:
    """The tenants of memories.json."""
    found: list[WrittenTenant] = _read("memories.json")["tenants"]
    return tuple(found)


@cache
def routines() -> dict[str, Routine]:
    """The routines of routine.json by the tenant's slug."""
    found: list[Routine] = _read("routine.json")["tenants"]
    return {routine["slug"]: routine for routine in found}


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
