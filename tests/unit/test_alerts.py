"""Alerts: what holds, what is news about it, and what a message says."""

from __future__ import annotations

import json
from datetime import date, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgetting_assets import alerts
from forgetting_assets.alerts import Condition, News, news, read_cursor, write_cursor
from forgetting_assets.definitions import build_defs
from forgetting_assets.partition import SLUG, Tenant
from forgetting_assets.store.monitoring import Failures, State
from resources.budget import Spend
from resources.policy import Policy
from tests.support import DAY, TODAY

DAYS = timedelta(days=1)

KEYS = [f"{slug}/queue" for slug in "abcde"]
LEVELS = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 3))
TICKS = st.lists(st.tuples(LEVELS, st.booleans()), max_size=25)
"""What holds at each tick, and whether the webhook takes a message then."""


def tenant(slug: str = "acme", *, judgment: bool = True, archival: bool = False) -> Tenant:
    return Tenant(slug, uuid4(), judgment, archival, None, None)


def state(
    *, opened: int = 0, oldest: float | None = None, day: date | None = DAY, added: float = 400
) -> State:
    """A tenant's state at TODAY; ages are in days before it."""
    return State(
        added_at=TODAY - added * DAYS,
        open_proposals=opened,
        oldest_open_at=None if oldest is None else TODAY - oldest * DAYS,
        health_day=day,
        health=None,
        verdict_day=None,
    )


def conditions(levels: dict[str, int]) -> alerts.Conditions:
    return {
        key: Condition(level, f"{key.split('/')[0]}: a sentence.", {"n": level})
        for key, level in levels.items()
    }


# --- what is news ---------------------------------------------------------------------------------


def deliver(ticks: list[tuple[dict[str, int], bool]], followed: int) -> list[News]:
    """What each tick says, when a cursor moves only after its message was taken."""
    said: dict[str, int] = {}
    told = []
    for holding, taken in ticks:
        now = news(said, holding, followed)
        silent = not (now.begun or now.ended)
        if taken or silent:
            said = now.said
            told.append(now)
    return told


@given(ticks=TICKS, followed=st.integers(1, 6))
@settings(deadline=None)
def test_every_beginning_is_followed_by_its_end_before_it_begins_again(
    ticks: list[tuple[dict[str, int], bool]], followed: int
) -> None:
    open_levels: dict[str, int] = {}
    for told in deliver(ticks, followed):
        for key in told.begun:
            assert told.said[key] > open_levels.get(key, 0), "only a rise is said again"
        for key in told.ended:
            assert key in open_levels, "nothing ends that did not begin"
            assert key not in told.begun
            del open_levels[key]
        open_levels |= {key: told.said[key] for key in told.begun}
        assert set(open_levels) == set(told.said)
        open_levels = dict(told.said)  # a level that fell may rise again
        assert len(told.said) <= followed


@given(holding=LEVELS, followed=st.integers(1, 6))
def test_what_goes_on_is_said_once(holding: dict[str, int], followed: int) -> None:
    first = news({}, holding, followed)
    again = news(first.said, holding, followed)
    assert (again.begun, again.ended, again.said) == ([], [], first.said)


@given(ticks=TICKS, last=LEVELS)
@settings(deadline=None)
def test_what_holds_when_the_webhook_answers_again_has_been_said_at_its_level(
    ticks: list[tuple[dict[str, int], bool]], last: dict[str, int]
) -> None:
    # The last tick's message is taken, whatever was lost before it.
    told = deliver([*ticks, (last, True)], followed=len(KEYS))
    assert told[-1].said == last


def test_with_too_many_the_worst_are_followed_and_the_rest_take_the_places_that_fall_free() -> None:
    holding = {"a/x": 1, "b/x": 3, "c/x": 2}
    first = news({}, holding, followed=2)
    assert first.begun == ["b/x", "c/x"]
    later = news(first.said, {"a/x": 1, "c/x": 2}, followed=2)
    assert (later.begun, later.ended) == (["a/x"], ["b/x"])


def test_a_cursor_of_all_that_is_followed_stays_small() -> None:
    longest = {f"{n:063d}/zero_episodic_collapse": 10**6 for n in range(5000)}
    cursor = write_cursor("webhook", news({}, longest).said)
    assert len(cursor) < 120_000


@given(said=LEVELS)
def test_a_cursor_is_read_as_it_was_written_and_on_its_channel_alone(said: dict[str, int]) -> None:
    cursor = write_cursor("log", said)
    assert read_cursor(cursor, "log") == said
    # Who sets a webhook later is told all that holds.
    assert read_cursor(cursor, "webhook") == {}


@pytest.mark.parametrize(
    "broken", [None, "", "{", "[]", "1", "{}", '{"channel": "log"}', '{"channel":"log","said":[1]}']
)
def test_a_cursor_that_cannot_be_read_says_everything_once_more(broken: str | None) -> None:
    assert read_cursor(broken, "log") == {}


# --- what holds -----------------------------------------------------------------------------------


def test_only_a_failure_that_nothing_replaced_is_a_condition() -> None:
    found = [(tenant(), {"blast_radius": Failures(3, 0), "zero_episodic_collapse": Failures(0, 2)})]
    (key,) = held = alerts.failed_checks(found)
    assert (key, held[key].level) == ("acme/zero_episodic_collapse", 2)


def spent(spent: str, cap: str, *, judgment: bool = True) -> int | None:
    spend = Spend(Decimal(cap), Decimal(spent), Decimal(0))
    found = alerts.spent_budgets([(tenant(judgment=judgment), spend)], Decimal(0), Decimal(100))
    return found["acme/budget"].level if found else None


def test_a_budget_is_nearly_spent_from_90_percent_and_spent_when_no_call_is_covered() -> None:
    assert [spent(each, "10") for each in ("8.99", "9", "9.99", "9.991", "12")] == [
        None,
        90,
        90,
        100,
        100,
    ]


def test_a_cap_of_zero_and_a_tenant_without_judgment_are_no_alert() -> None:
    assert spent("0", "0") is None
    assert spent("10", "10", judgment=False) is None


def test_the_budget_of_all_tenants_together_has_a_name_that_no_tenant_can_have() -> None:
    (key,) = held = alerts.spent_budgets([], Decimal(100), Decimal(100))
    assert held[key].level == 100
    assert not SLUG.fullmatch(key.split("/")[0])
    assert "FORGETTING_DEPLOYMENT_BUDGET_USD" in held[key].sentence


def queue(**of: float | int | None) -> dict[str, int]:
    found = alerts.long_queues([(tenant(), state(**of))], Policy(open_proposals=100), TODAY)  # type: ignore[arg-type]
    return {key: each.level for key, each in found.items()}


def test_a_queue_is_long_from_80_percent_and_full_at_the_cap() -> None:
    assert [queue(opened=each, oldest=1.0) for each in (79, 80, 99, 100, 101)] == [
        {},
        {"acme/queue": 80},
        {"acme/queue": 80},
        {"acme/queue": 100},
        {"acme/queue": 100},
    ]


def test_the_oldest_proposal_is_told_of_in_its_last_week() -> None:
    assert [queue(opened=1, oldest=age) for age in (82.9, 83.0, 91.0)] == [
        {},
        {"acme/expiry": 1},
        {"acme/expiry": 1},
    ]
    # Where proposals live for a few days only, it is their second half.
    brief = Policy(proposal_days=2)
    assert not alerts.long_queues([(tenant(), state(opened=1, oldest=0.9))], brief, TODAY)
    assert alerts.long_queues([(tenant(), state(opened=1, oldest=1.0))], brief, TODAY)


def overdue(of: Tenant, **found: object) -> bool:
    return bool(alerts.overdue_passes([(of, state(**found))], Policy(overdue_days=2), TODAY))  # type: ignore[arg-type]


def test_a_pass_is_overdue_when_its_newest_day_ended_too_long_ago() -> None:
    # It is noon: yesterday ended 0.5 days ago, the day before 1.5 days ago.
    assert [overdue(tenant(), day=DAY - n * DAYS) for n in range(4)] == [False, False, True, True]
    assert overdue(tenant(judgment=False, archival=True), day=DAY - 9 * DAYS)
    assert not overdue(tenant(judgment=False), day=DAY - 9 * DAYS)


def test_a_tenant_without_any_pass_is_overdue_from_when_it_was_added() -> None:
    assert [overdue(tenant(), day=None, added=age) for age in (1.9, 2.1)] == [False, True]


# --- what a message says --------------------------------------------------------------------------


def test_a_message_is_a_text_for_people_and_fields_for_programs() -> None:
    held = conditions({"acme/queue": 80, "*/budget": 100})
    told = News(["*/budget", "acme/queue"], ["globex/queue"], {})
    body = alerts.message("alert_long_queue", told, held, TODAY)
    assert body["text"].splitlines() == [
        "alert_long_queue:",
        "*: a sentence.",
        "acme: a sentence.",
        "Over: globex/queue.",
    ]
    assert body["begun"][0]["tenant"] is None
    assert body["begun"][1] == {
        "tenant": "acme",
        "what": "queue",
        "sentence": "acme: a sentence.",
        "figures": {"n": 80},
    }
    assert body["ended"] == [{"tenant": "globex", "what": "queue"}]
    assert json.loads(json.dumps(body)) == body


def test_a_message_of_very_many_stays_small_and_counts_them_all() -> None:
    held = conditions({f"t{n:04}/queue": 1 for n in range(1000)})
    told = News(sorted(held), [f"o{n:04}/queue" for n in range(500)], {})
    body = alerts.message("alert_long_queue", told, held, TODAY)
    assert (body["begun_in_all"], body["ended_in_all"], body["holding_in_all"]) == (1000, 500, 1000)
    assert "And 980 more began." in body["text"]
    assert "and 480 more." in body["text"]
    assert len(json.dumps(body)) < 10_000


def test_each_alert_runs_by_itself_and_says_what_it_is_for() -> None:
    repository = build_defs().get_repository_def()
    for made in alerts.SENSORS:
        sensor = repository.get_sensor_def(made.name)
        assert sensor.default_status.value == "RUNNING"
        assert sensor.minimum_interval_seconds == alerts.INTERVAL_SECONDS
        assert (sensor.description or "").endswith(".")
