"""The token rate: what all runs together send, how long each waits, and whose clock is wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resources.clock import Clock
from resources.errors import RateExceeded, StoreRefused
from resources.rate import BURST, LARGEST_CALL, TokenRate
from tests.support import TODAY, Store

PER_MINUTE = 60_000
"""A thousand tokens a second: every token is a whole millisecond."""

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)
PATIENCE = 120.0
BURST_TOKENS = BURST // MILLISECOND


def rate(store: Store, now: datetime = TODAY, per_minute: int = PER_MINUTE) -> TokenRate:
    """The rate as one run sees it, whose clock stands."""
    return TokenRate(
        database=store.database,
        clock=Clock(fixed=now.isoformat()),
        tokens_per_minute=per_minute,
    )


def taken_until(store: Store) -> object:
    """Until when the rate is taken, as text: PostgreSQL's infinity is no moment in Python."""
    [row] = store.rows("SELECT taken_until::text AS until FROM forgetting.token_rate")
    return row["until"]


def set_taken(store: Store, until: datetime | str) -> None:
    """Take the rate until a moment, past everything."""
    store.execute(
        "UPDATE forgetting.token_rate SET taken_until = CAST(:until AS timestamptz)",
        until=str(until),
    )


def refused(one: TokenRate, tokens: int, patience: float) -> str:
    """The sentence of a refusal."""
    with pytest.raises(RateExceeded) as raised:
        one.take(tokens, patience)
    return str(raised.value)


TAKES = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 200_000)),  # pause, ms
        st.integers(0, 2),  # which run
        st.one_of(st.integers(0, 3_000), st.integers(0, 40_000)),  # tokens
        st.sampled_from([0.0, 1.0, 30.0, PATIENCE, 3_500.0]),  # patience
    ),
    min_size=1,
    max_size=25,
)


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(takes=TAKES)
def test_no_window_of_time_sends_more_than_the_rate_and_no_call_waits_longer_than_it_must(
    store: Store, takes: list[tuple[int, int, int, float]]
) -> None:
    set_taken(store, "-infinity")
    runs = [rate(store) for _ in range(3)]
    now = TODAY
    sent: list[tuple[datetime, int]] = []
    free = TODAY - 2 * BURST  # from when on the rate is free
    for pause, run, tokens, patience in takes:
        for each in runs:
            each.clock.sleep(pause / 1000, threading.Event())
        now += pause * MILLISECOND
        begins = max(free, now - BURST)
        must_wait = max(begins - now, timedelta())
        before = taken_until(store)
        if must_wait.total_seconds() > patience:
            assert "FORGETTING_TOKENS_PER_MINUTE" in refused(runs[run], tokens, patience)
            assert taken_until(store) == before
            continue
        wait = runs[run].take(tokens, patience)
        assert wait >= 0
        assert wait == must_wait.total_seconds()
        free = begins + tokens * MILLISECOND
        sent.append((now + timedelta(seconds=wait), tokens))

    for first, last in combinations(range(len(sent)), 2):
        length = sent[last][0] - sent[first][0]
        tokens = sum(each for _, each in sent[first:last])
        assert tokens * MILLISECOND <= length + BURST


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    per_minute=st.integers(1_000, 10_000_000),
    tokens=st.lists(st.integers(1, 20_000), min_size=2, max_size=20),
)
def test_any_rate_is_kept_to_a_microsecond_a_call(
    store: Store, per_minute: int, tokens: list[int]
) -> None:
    set_taken(store, TODAY)
    run = rate(store, per_minute=per_minute)
    for n, each in enumerate(tokens):
        exact = sum(tokens[:n]) * 60 / per_minute
        assert run.take(each, exact + 1 if exact < 500 else 500) == pytest.approx(
            exact, abs=(n + 1) * 1e-6
        )
        if exact + each * 60 / per_minute > 500:
            break


@pytest.mark.parametrize("idle", [BURST, timedelta(minutes=1), timedelta(days=400)], ids=str)
def test_an_idle_rate_saves_up_no_more_than_the_burst(store: Store, idle: timedelta) -> None:
    set_taken(store, TODAY - idle)
    run = rate(store)
    at_once = [run.take(1000, PATIENCE) for _ in range(13)]
    # Ten seconds of rate are saved, and the call after them begins now.
    assert at_once == [0.0] * 11 + [1.0, 2.0]


def test_a_rate_that_was_never_taken_is_as_one_long_idle(store: Store) -> None:
    assert taken_until(store) == "-infinity"
    run = rate(store)
    assert run.take(BURST_TOKENS, 0) == 0
    assert run.take(5000, 0) == 0
    assert run.take(1, PATIENCE) == 5


def test_a_call_of_more_than_the_burst_is_sent_and_paid_for_by_those_after_it(
    store: Store,
) -> None:
    run = rate(store)
    assert run.take(70_000, 0) == 0
    assert run.take(1, PATIENCE) == 60


def test_unused_rate_of_less_than_the_burst_is_kept_exactly(store: Store) -> None:
    set_taken(store, TODAY - 3 * SECOND)
    run = rate(store)
    assert [run.take(1000, PATIENCE) for _ in range(5)] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("ahead", "allowed"),
    [
        (timedelta(), True),
        (30 * SECOND, True),
        (30 * SECOND + timedelta(microseconds=1), False),
        (229 * SECOND, False),
    ],
    ids=str,
)
def test_a_take_is_refused_exactly_when_it_would_wait_longer_than_its_patience(
    store: Store, ahead: timedelta, allowed: bool
) -> None:
    set_taken(store, TODAY + ahead)
    before = taken_until(store)
    if allowed:
        assert rate(store).take(1000, 30) == ahead.total_seconds()
        assert taken_until(store) != before
    else:
        said = refused(rate(store), 1000, 30)
        assert "FORGETTING_TOKENS_PER_MINUTE" in said
        assert "60000 tokens" in said
        assert "30 seconds" in said
        assert taken_until(store) == before


def test_a_refusal_takes_nothing_from_those_that_have_more_patience(store: Store) -> None:
    set_taken(store, TODAY + 60 * SECOND)
    for _ in range(3):
        refused(rate(store), 10_000, 59)
    assert rate(store).take(1000, 60) == 60


def test_runs_on_one_database_share_one_rate(store: Store) -> None:
    set_taken(store, TODAY)
    waits = [rate(store).take(2000, PATIENCE) for _ in range(5)]
    assert waits == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("tokens", [[1000] * 16, list(range(100, 1700, 100))], ids=["same", "own"])
def test_threads_that_take_at_once_get_disjoint_slots(store: Store, tokens: list[int]) -> None:
    set_taken(store, TODAY)
    start = threading.Barrier(len(tokens))

    def take(each: int) -> tuple[int, int]:
        run = rate(store)
        start.wait(30)
        return round(run.take(each, PATIENCE) * 1000), each

    with ThreadPoolExecutor(len(tokens)) as threads:
        slots = sorted(threads.map(take, tokens))
    free = 0
    for begins, length in slots:
        assert begins == free, "neither a gap nor a moment taken twice"
        free += length
    assert free == sum(tokens)


@pytest.mark.parametrize("patience", [600.0, 1800.0, 7200.0])
def test_no_moment_is_taken_twice_however_patient_the_calls_are(
    store: Store, patience: float
) -> None:
    set_taken(store, TODAY)
    waits: list[float] = []
    for _ in range(14):
        try:
            waits.append(rate(store).take(LARGEST_CALL, patience))
        except RateExceeded:
            break
    assert waits == [200.0 * n for n in range(len(waits))]
    assert len(waits) in (14, patience // 200 + 1)


def test_a_rate_so_low_that_one_call_takes_hours_is_kept(store: Store) -> None:
    run = rate(store, per_minute=100)
    assert run.take(16_000, PATIENCE) == 0
    refused(run, 16_000, PATIENCE)


# Other settings, and no clock of one's own


def test_what_was_taken_under_a_far_lower_rate_blocks_nobody_once_the_rate_is_raised(
    store: Store,
) -> None:
    assert rate(store, per_minute=1).take(16_000, PATIENCE) == 0, "eleven days"
    refused(rate(store, per_minute=1), 1, PATIENCE)
    assert [rate(store).take(1000, PATIENCE) for _ in range(3)] == [0, 1, 2]


def test_what_the_settings_allow_to_be_taken_ahead_counts_to_the_last_moment(store: Store) -> None:
    ahead = timedelta(seconds=PATIENCE) + LARGEST_CALL * MILLISECOND
    set_taken(store, TODAY + ahead)
    refused(rate(store), 1000, PATIENCE)
    set_taken(store, TODAY + ahead + MILLISECOND)
    assert rate(store).take(1000, PATIENCE) == 0, "nothing under these settings took so much"


def test_while_time_goes_on_the_servers_clock_counts_and_no_machines_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def astray(_clock: Clock) -> datetime:
        return TODAY + timedelta(days=365 * 100)

    monkeypatch.setattr(Clock, "now", astray)
    running = TokenRate(database=store.database, clock=Clock(), tokens_per_minute=PER_MINUTE)
    assert running.take(BURST_TOKENS + 60_000, PATIENCE) == 0
    [row] = store.rows("SELECT taken_until - clock_timestamp() AS ahead FROM forgetting.token_rate")
    assert timedelta() < row["ahead"] <= 60 * SECOND
    assert 0 < running.take(1000, PATIENCE) <= 60


# The row


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        (
            "INSERT INTO forgetting.token_rate (singleton, taken_until) VALUES (TRUE, now())",
            "42501",
        ),
        ("DELETE FROM forgetting.token_rate", "42501"),
    ],
)
def test_the_runtime_role_can_neither_add_nor_remove_the_row(
    store: Store, statement: str, state: str
) -> None:
    with pytest.raises(StoreRefused, match=state), store.database.registry() as connection:
        connection.exec_driver_sql(statement)
    assert taken_until(store) == "-infinity"


def test_the_rate_fails_closed_when_the_row_cannot_be_written(store: Store) -> None:
    store.execute("REVOKE UPDATE ON forgetting.token_rate FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        rate(store).take(1, PATIENCE)


def test_the_rate_fails_closed_when_the_row_is_gone(store: Store) -> None:
    store.execute("DELETE FROM forgetting.token_rate")
    refused(rate(store), 1, PATIENCE)
