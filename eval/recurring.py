"""Recurring episodes by the hundred: stand-ups, digests and debriefs, alike by construction.

They are what a similarity search is most tempted to collapse: the same sentence week after week,
and later entries that read like corrections of earlier ones. Each is dated and none replaces
another, so none may ever become a candidate.

No episode among 300 bounds the rate of episodes that enter at 1 % with 95 % confidence (exact
Clopper-Pearson, one-sided: 1 - 0.05 ** (1 / 300) = 0.00994). It bounds no other kind of entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Literal

FIRST = datetime(2026, 1, 5, 9, tzinfo=UTC)
"""The Monday of the first episodes."""

_PEOPLE = ("Aune", "Bastien", "Cleo", "Dagny", "Emre", "Fenna")
_WORK = ("the label printer", "customs forms", "the search page", "the nightly export")
_PLACES = ("the chapel", "the town hall", "hall B", "the canteen")


@dataclass(frozen=True)
class Episode:
    """One dated entry of a series. ``reads_as_correction``: its words seem to replace another."""

    series: str
    memory_type: Literal["event", "note"]
    topic: str
    content: str
    created_at: datetime
    reads_as_correction: bool


@dataclass(frozen=True)
class _Series:
    name: str
    memory_type: Literal["event", "note"]
    every: timedelta
    plain: str
    correction: str


_SERIES: Sequence[_Series] = (
    _Series(
        "stand-up of the shipping team",
        "event",
        timedelta(days=1),
        "Stand-up of the shipping team, {day}: {who} on {work}, {other} on call. Nothing blocked.",
        "Stand-up of the shipping team, {day}. Correction: {who} is on {work} as of today, not"
        " {other}; what was said yesterday no longer holds.",
    ),
    _Series(
        "stand-up notes of the web team",
        "note",
        timedelta(days=1),
        "{day}, stand-up notes of the web team: {who} on {work}, build {number}. {other} away.",
        "{day}, stand-up notes of the web team: as of today {who} is on {work} instead of {other};"
        " build {number} replaces the one before.",
    ),
    _Series(
        "weekly digest",
        "note",
        timedelta(days=7),
        "Weekly digest to {day}: {number} orders, 2.1 % returned. Written by {who}.",
        "Weekly digest to {day}. Correction: {number} orders, not the figure of the last digest,"
        " which is updated by this one. Written by {who}.",
    ),
    _Series(
        "debrief of the tours",
        "event",
        timedelta(days=7),
        "Debrief of the tour on {day}: {number} guests, met in {place}, led by {who}.",
        "Debrief of the tour on {day}: {number} guests. Correction: tours now meet in {place} and"
        " no longer where the last debrief said. Led by {who}.",
    ),
)


def episodes(seed: int, count: int) -> list[Episode]:
    """The first ``count`` episodes of all series, by time. One in four reads like a correction.

    The same seed gives the same episodes. No two have the same text, as each bears its day.
    """
    random = Random(seed)
    found: list[Episode] = []
    day = 0
    while len(found) < count:
        at = FIRST + timedelta(days=day)
        for place, series in enumerate(_SERIES):
            if day % series.every.days or at.weekday() > 4:
                continue
            who, other = random.sample(_PEOPLE, 2)
            corrects = day > 0 and random.random() < 0.25
            content = (series.correction if corrects else series.plain).format(
                day=f"{at.day} {at:%B %Y}",
                who=who,
                other=other,
                work=random.choice(_WORK),
                place=random.choice(_PLACES),
                number=random.randint(12, 40),
            )
            found.append(
                Episode(
                    series.name,
                    series.memory_type,
                    series.name,
                    content,
                    at + timedelta(minutes=10 * place),
                    corrects,
                )
            )
        day += 1
    return found[:count]
