"""The archive tier follows from the store and the partitions, and not from when they were run.

Uses of the evidence lie before the period that is swept: a use between a partition and its late run
would protect, and is meant to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID, uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resources.policy import Policy
from tests.support import DAY, TODAY, Pass, Store, ago, record_verdict

DAYS = 5
"""The period: DAY and the days after it. Ages are in days before the end of DAY."""

Run = tuple[int, bool]
"""The sweep of the n-th day of the period; late is after the whole period."""


@dataclass(frozen=True)
class Made:
    """An entry that was recorded ``recorded`` days before the end of DAY, or after that."""

    kind: str
    age: float | None
    retrieved: float | None
    outcome: float | None
    success: int
    recorded: float
    cited: bool


BEFORE = st.sampled_from([1, 2.5, 3, 3.5, 4, 5, 6, 6.5, 7, 8, 30, 400])
"""With a window of 7 days: due before the period, on one of its days, or only after it."""
DUE = st.builds(
    Made,
    kind=st.sampled_from(["trace", "log", "tool_input", "tool_output", "step_outcome"]),
    age=BEFORE,
    retrieved=st.none() | BEFORE,
    outcome=st.none(),
    success=st.just(0),
    recorded=st.sampled_from([10, 0, -0.6, -2.6, -DAYS, -DAYS]),
    cited=st.just(False),
)
ANY = st.builds(
    Made,
    kind=st.sampled_from(["trace", "log", "lesson", "rule", "fact", "handoff"]),
    age=st.none() | BEFORE | st.sampled_from([0, -1, -3]),
    retrieved=st.none() | BEFORE,
    outcome=st.none() | BEFORE,
    success=st.sampled_from([0, 0, 0, 1]),
    recorded=st.sampled_from([10, 0, -1.6]),
    cited=st.booleans(),
)
ENTRIES = st.lists(DUE | DUE | ANY, min_size=3, max_size=12)
DAILY: list[Run] = [(n, False) for n in range(DAYS)]
CALM = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def archived_by(
    store: Store, entries: Sequence[Made], runs: Iterable[Run], batch: int
) -> dict[int, date]:
    """The place of each entry that a schedule archives, and the partition that does.

    A tenant of its own lives through the schedule: an entry is there once it has been recorded.
    """
    slug = f"t{uuid4().hex[:10]}"
    user_id = store.tenant(slug)
    waiting = store.memory(user_id)
    record_verdict(store, user_id, waiting, verdict="archive", proposal="proposed")
    # Of entries that were unused for equally long, the order of ids decides.
    ids = sorted(uuid4() for _ in entries)
    there: set[UUID] = set()
    for day, late in runs:
        now = TODAY + timedelta(days=DAYS if late else day)
        for id_, entry in zip(ids, entries, strict=True):
            if id_ not in there and ago(entry.recorded) <= now:
                write(store, user_id, id_, entry)
                there.add(id_)
                if entry.cited:
                    store.cite(user_id, waiting, id_)
        partition = store.partition(slug, DAY + timedelta(days=day), now)
        Pass(store, policy=Policy(sweep_batch=batch), now=now).sweep(partition)
    rows = store.rows(
        "SELECT id, archived_run_date AS day FROM evidence "
        "WHERE user_id = :user_id AND archived_at IS NOT NULL",
        user_id=user_id,
    )
    return {ids.index(row["id"]): row["day"] for row in rows}


def write(store: Store, user_id: UUID, id_: UUID, entry: Made) -> None:
    store.evidence(
        user_id,
        id=id_,
        kind=entry.kind,
        age=entry.age,
        retrieved=entry.retrieved,
        outcome=entry.outcome,
        success=entry.success,
        recorded_at=ago(entry.recorded),
    )


@st.composite
def any_order(draw: st.DrawFn) -> list[Run]:
    """Some partitions in any order, repeated or not, early or late; the last day is among them."""
    runs = draw(st.lists(st.tuples(st.integers(0, DAYS - 1), st.booleans()), max_size=7))
    last = DAYS - 1, draw(st.booleans())
    return draw(st.permutations([*runs, last]))


@st.composite
def late_and_repeated(draw: st.DrawFn) -> list[Run]:
    """Each partition, first in the order of days, some early and then all late, with repeats."""
    early = draw(st.integers(0, DAYS))
    runs: list[Run] = []
    for day in range(DAYS):
        late = day >= early
        runs.append((day, late))
        again = draw(st.lists(st.integers(0, day), max_size=2))
        runs += [(earlier, late) for earlier in again]
    return runs


@CALM
@given(entries=ENTRIES, runs=any_order())
def test_with_an_ample_batch_any_schedule_that_has_the_last_day_leaves_the_same_tier(
    store: Store, entries: list[Made], runs: list[Run]
) -> None:
    daily = archived_by(store, entries, DAILY, batch=500)
    other = archived_by(store, entries, runs, batch=500)
    assert set(other) == set(daily)


@CALM
@given(entries=ENTRIES, runs=late_and_repeated(), batch=st.integers(1, 3))
def test_with_a_bounded_batch_late_and_repeated_runs_in_order_archive_the_same_by_the_same_day(
    store: Store, entries: list[Made], runs: list[Run], batch: int
) -> None:
    daily = archived_by(store, entries, DAILY, batch)
    assert archived_by(store, entries, runs, batch) == daily


def test_these_schedules_have_entries_for_each_day_and_some_for_none(store: Store) -> None:
    ages = (30, 6.5, 5.5, 4.5, 3.5, 2.5)
    entries = [Made("trace", age, None, None, 0, 10, False) for age in ages]
    # Each falls due on the day after the one before it, and the last one after the period.
    days = archived_by(store, entries, DAILY, batch=500)
    assert days == {place: DAY + timedelta(days=place) for place in range(DAYS)}
