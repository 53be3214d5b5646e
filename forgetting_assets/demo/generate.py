"""The demo's records for a reference day: the written memories and the routine around them.

Belongs here: pure functions from a tenant's slug and a reference day to records. What is random is
seeded by the slug, and the time is an argument. Storing the records does not belong here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from random import Random
from string import Template
from typing import Final
from uuid import NAMESPACE_DNS, UUID, uuid5

from forgetting_assets.demo import written
from forgetting_assets.demo.text_hash import embed

EPISODIC_KINDS: Final = frozenset({"trace", "log", "tool_input", "tool_output", "step_outcome"})
ENTRIES_BY_KIND: Final = {
    "trace": 330,
    "log": 290,
    "tool_input": 195,
    "tool_output": 195,
    "step_outcome": 130,
    "lesson": 14,
    "rule": 8,
    "observation": 18,
    "handoff": 12,
    "archive_block": 8,
}
EPISODE_DAYS: Final = 120
EVIDENCE_DAYS: Final = 90
USE_WINDOW: Final = timedelta(days=7)
CITED_ENTRIES: Final = 3

# Shares of a tenant's evidence.
_CREDITED: Final = 0.10
_RETRIEVED_LATELY: Final = 0.10
_RETRIEVED_ONCE: Final = 0.12
_FAILED_LATELY: Final = 0.02
_WITHOUT_A_TIME: Final = 0.03

_NAMESPACE: Final = uuid5(NAMESPACE_DNS, "demo.forgetting-assets.invalid")


@dataclass(frozen=True, slots=True)
class DemoMemory:
    """An invented memory, ready to be stored."""

    id: UUID
    key: str
    memory_type: str
    scope: str
    project: str | None
    topic: str
    content: str
    tags: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    embedding: tuple[float, ...]
    cites: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class DemoEvidence:
    """An invented entry of a session; without `occurred_at` its age is unknown."""

    id: UUID
    session_id: str
    kind: str
    content: str
    occurred_at: datetime | None
    recorded_at: datetime
    success_count: int
    reinforcement_count: int
    last_retrieved_at: datetime | None
    last_outcome_at: datetime | None


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """An invented tenant and everything it stores."""

    slug: str
    judgment_enabled: bool
    archival_enabled: bool
    memories: tuple[DemoMemory, ...]
    evidence: tuple[DemoEvidence, ...]


def demo_tenants(reference: datetime) -> list[DemoTenant]:
    """All tenants as of a reference day, a datetime in UTC; no time in them is later."""
    return [demo_tenant(tenant["slug"], reference) for tenant in written.tenants()]


def demo_tenant(slug: str, reference: datetime) -> DemoTenant:
    """One tenant as of a reference day."""
    if reference.utcoffset() != timedelta(0):
        raise ValueError("the reference day must be a datetime in UTC")
    [tenant] = [tenant for tenant in written.tenants() if tenant["slug"] == slug]
    evidence = tuple(_evidence(slug, reference))
    return DemoTenant(
        slug=slug,
        judgment_enabled=tenant["judgment_enabled"],
        archival_enabled=tenant["archival_enabled"],
        memories=(
            *_standing_memories(tenant, reference, evidence),
            *_recurring_episodes(slug, reference),
        ),
        evidence=evidence,
    )


def _standing_memories(
    tenant: written.WrittenTenant, reference: datetime, evidence: Sequence[DemoEvidence]
) -> Iterator[DemoMemory]:
    """The memories written by hand, at some minute of the day that their age says."""
    slug = tenant["slug"]
    random = Random(f"{slug}/memories")
    for memory in tenant["memories"]:
        age, touched = memory["age_days"], memory["touched_days"]
        created = _before(reference, timedelta(days=age, minutes=random.randrange(540)))
        updated = _before(reference, timedelta(days=touched, minutes=random.randrange(540)))
        yield DemoMemory(
            id=_id(slug, memory["key"]),
            key=memory["key"],
            memory_type=memory["memory_type"],
            scope=memory["scope"],
            project=memory["project"],
            topic=memory["topic"],
            content=memory["content"],
            tags=tuple(memory["tags"]),
            created_at=created,
            updated_at=created if touched == age else updated,
            embedding=_vector(memory["topic"], memory["content"]),
            cites=_cited(memory.get("cites_session"), evidence),
        )


def _cited(session_id: str | None, evidence: Sequence[DemoEvidence]) -> tuple[UUID, ...]:
    """The first episodic entries of a session."""
    entries = [
        entry.id
        for entry in evidence
        if entry.session_id == session_id and entry.kind in EPISODIC_KINDS
    ]
    return tuple(entries[:CITED_ENTRIES])


def _recurring_episodes(slug: str, reference: datetime) -> Iterator[DemoMemory]:
    """The days and weeks that resemble one another and must stay apart."""
    routine = written.routines()[slug]
    random = Random(f"{slug}/episodes")
    days = [reference.date() - timedelta(days=back) for back in range(EPISODE_DAYS, 0, -1)]
    for series in routine["episodes"]:
        possible = [day for day in days if day.weekday() in series["weekdays"]]
        for day in sorted(random.sample(possible, min(series["count"], len(possible)))):
            at = datetime.combine(day, time.fromisoformat(series["at"]), UTC)
            content = _fill(
                series["content"], routine["episode_slots"], random, date=day.isoformat()
            )
            key = f"{series['key']}-{day.isoformat()}"
            yield DemoMemory(
                id=_id(slug, key),
                key=key,
                memory_type=series["memory_type"],
                scope=series["scope"],
                project=series["project"],
                topic=series["topic"],
                content=content,
                tags=tuple(series["tags"]),
                created_at=at,
                updated_at=at,
                embedding=_vector(series["topic"], content),
                cites=(),
            )


def _evidence(slug: str, reference: datetime) -> Iterator[DemoEvidence]:
    """A tenant's evidence, session by session; most of it was never of use."""
    routine = written.routines()[slug]
    random = Random(slug)
    kinds = [kind for kind, count in ENTRIES_BY_KIND.items() for _ in range(count)]
    random.shuffle(kinds)
    sessions = list(_sessions(routine["sessions"], reference, random))
    places = [
        (session_id, started, position, kind)
        for number, (session_id, started) in enumerate(sessions)
        for position, kind in enumerate(kinds[number :: len(sessions)])
    ]

    credited = _share(_CREDITED, len(places), random)
    retrieved_lately = _share(_RETRIEVED_LATELY, len(places), random)
    retrieved_once = _share(_RETRIEVED_ONCE, len(places), random)
    failed_lately = _share(_FAILED_LATELY, len(places), random)
    without_a_time = _share(_WITHOUT_A_TIME, len(places), random)

    for index, (session_id, started, position, kind) in enumerate(places):
        occurred = started + timedelta(minutes=4 * position, seconds=random.randrange(240))
        recorded = occurred + timedelta(seconds=random.randrange(1, 20))
        age = reference - recorded
        content = _fill(random.choice(routine["templates"][kind]), routine["slots"], random)

        successes = reinforcements = 0
        outcome: datetime | None = None
        if index in credited:
            successes, reinforcements = random.choice([(1, 0), (1, 1), (2, 0), (3, 1), (0, 2)])
            outcome = recorded + _moment(min(age, timedelta(days=2)), random)
        elif index in failed_lately:
            outcome = reference - _moment(min(age, USE_WINDOW), random)

        retrieved: datetime | None = None
        if index in retrieved_lately:
            retrieved = reference - _moment(min(age, USE_WINDOW), random)
        elif index in retrieved_once and age > 2 * USE_WINDOW:
            retrieved = recorded + _moment(USE_WINDOW, random)

        yield DemoEvidence(
            id=_id(slug, f"{session_id}/{position}"),
            session_id=session_id,
            kind=kind,
            content=content,
            occurred_at=None if index in without_a_time else occurred,
            recorded_at=recorded,
            success_count=successes,
            reinforcement_count=reinforcements,
            last_retrieved_at=retrieved,
            last_outcome_at=outcome,
        )


def _sessions(
    series: Sequence[written.SessionSeries], reference: datetime, random: Random
) -> Iterator[tuple[str, datetime]]:
    """Each session's name and start; a theme's sessions are spread over the evidence's days."""
    for theme in series:
        spacing = timedelta(days=EVIDENCE_DAYS) / theme["count"]
        for number in range(theme["count"]):
            ago = spacing * (theme["count"] - number - random.uniform(0.1, 0.9))
            yield f"{theme['theme']}-{theme['first'] + number:04d}", _before(reference, ago)


def _fill(template: str, slots: written.Slots, random: Random, **given: str) -> str:
    """A template with a value for each slot, drawn in the slots' order."""
    values: Mapping[str, str] = {
        name: random.choice(slot)
        if isinstance(slot, list)
        else str(random.randint(slot["from"], slot["to"]))
        for name, slot in slots.items()
    }
    return Template(template).substitute(values, **given)


def _share(share: float, total: int, random: Random) -> frozenset[int]:
    return frozenset(random.sample(range(total), round(share * total)))


def _moment(span: timedelta, random: Random) -> timedelta:
    """Whole seconds, shorter than the span."""
    return timedelta(seconds=random.randrange(int(span.total_seconds())))


def _before(reference: datetime, ago: timedelta) -> datetime:
    return (reference - ago).replace(microsecond=0)


def _id(slug: str, key: str) -> UUID:
    return uuid5(_NAMESPACE, f"{slug}/{key}")


def _vector(topic: str, content: str) -> tuple[float, ...]:
    return tuple(embed(f"{topic}. {content}"))
