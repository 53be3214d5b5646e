"""Money: the metered call, its rows, both caps, lost calls, and a budget that cannot be read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resources.addresses import Addresses
from resources.budget import CEILINGS, FORGET_DECIDE, Budget, Reservation
from resources.clock import Clock
from resources.database import engine
from resources.errors import (
    AnswerRejected,
    BudgetExceeded,
    ConfigurationError,
    ForgettingError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    JudgmentNotEnabled,
    RequestTooLarge,
    StoreRefused,
)
from resources.gateway import Decision
from tests.support import MODEL, TODAY, Pass, Store, TestJudge, say

CEILING = CEILINGS[FORGET_DECIDE]
COST = Decimal("0.00101")
"""What one answered call of the tests costs."""

SECOND = timedelta(seconds=1)
DAY_1 = timedelta(days=1)
DAYS_30 = timedelta(days=30)
ROOT = Path(__file__).parents[2]


def budget(
    store: Store,
    *,
    cap: float = 10.0,
    deployment: float = 100.0,
    now: datetime = TODAY,
    prices: dict[str, list[float]] | None = None,
) -> Budget:
    return Budget(
        database=store.database,
        clock=Clock(fixed=now.isoformat()),
        cap_usd=cap,
        deployment_cap_usd=deployment,
        prices={MODEL: [1.0, 1.0]} if prices is None else prices,
    )


def decision(
    model: str = MODEL, input_tokens: int | None = 1000, output_tokens: int | None = 10
) -> Decision:
    return Decision(model, {}, input_tokens, output_tokens, None)


def call(purse: Budget, user_id: UUID, answer: Decision | None = None) -> Decision:
    """One metered call that is answered."""
    return purse.metered(user_id, FORGET_DECIDE, MODEL, lambda: answer or decision())


def failing(purse: Budget, user_id: UUID, error: BaseException) -> None:
    """One metered call that raises."""

    def send() -> Decision:
        raise error

    with pytest.raises(type(error)) as raised:
        purse.metered(user_id, FORGET_DECIDE, MODEL, send)
    assert raised.value is error


def reserve(purse: Budget, user_id: UUID, model: str = MODEL) -> Reservation:
    """A call that is announced and does not come back."""
    return purse.reserve(user_id, FORGET_DECIDE, model)


def fits(purse: Budget, user_id: UUID) -> bool:
    """Whether one more call may be reserved."""
    try:
        one = reserve(purse, user_id)
    except BudgetExceeded:
        return False
    purse.release(one)
    return True


def use(store: Store, user_id: UUID, cost: Decimal | None, at: datetime = TODAY) -> None:
    """A row of usage from before."""
    store.execute(
        """
        INSERT INTO llm_usage (user_id, operation, model, cost_usd, created_at)
        VALUES (:user_id, :operation, 'before', :cost, :at)
        """,
        user_id=user_id,
        operation=FORGET_DECIDE,
        cost=cost,
        at=at,
    )


def reservation(store: Store, user_id: UUID, at: datetime, usd: Decimal = CEILING) -> None:
    """What another operation of the store reserved; it announces no call."""
    store.execute(
        """
        INSERT INTO budget_reservations (user_id, estimated_cost_usd, created_at)
        VALUES (:user_id, :usd, :at)
        """,
        user_id=user_id,
        usd=usd,
        at=at,
    )


def override(store: Store, user_id: UUID, **columns: Any) -> None:
    """A tenant's own budget."""
    store.execute(
        """
        INSERT INTO user_budgets (user_id, cap_usd_override, period_start, period_end)
        VALUES (:user_id, :cap, :start, :end)
        """,
        user_id=user_id,
        **{"cap": None, "start": None, "end": None, **columns},
    )


def usage(store: Store) -> list[dict[str, Any]]:
    return store.rows("SELECT * FROM llm_usage ORDER BY created_at, id")


def held(store: Store) -> list[Decimal]:
    rows = store.rows("SELECT estimated_cost_usd AS usd FROM budget_reservations")
    return [row["usd"] for row in rows]


def announced(store: Store) -> list[tuple[UUID, str, str, datetime]]:
    """The calls that are written down and have not come back."""
    rows = store.rows("SELECT * FROM forgetting.calls_under_way ORDER BY announced_at, id")
    return [(row["user_id"], row["operation"], row["model"], row["announced_at"]) for row in rows]


def ledger(store: Store) -> dict[date, Decimal]:
    """What the deployment committed, by day; days of nothing are left out."""
    rows = store.rows("SELECT day, committed_usd AS usd FROM forgetting.deployment_spend")
    return {row["day"]: row["usd"] for row in rows if row["usd"]}


MONEY = (
    "llm_usage",
    "budget_reservations",
    "forgetting.calls_under_way",
    "forgetting.deployment_spend",
)


# Usage


def test_every_call_has_one_usage_row_priced_by_the_exact_model(store: Store) -> None:
    acme = store.tenant()
    for _ in range(25):
        store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    rows = usage(store)
    assert judge.calls == len(rows) == 3
    for row in rows:
        assert row["operation"] == "memory.forget.decide"
        assert (row["user_id"], row["model"], row["created_at"]) == (acme, MODEL, TODAY)
        assert (row["input_tokens"], row["output_tokens"]) == (1000, 10)
        assert row["cost_usd"] == COST
    assert done.spend_usd == sum(row["cost_usd"] for row in rows)
    assert done.unpriced_calls == 0


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    per_input=st.integers(0, 100_000_000),
    per_output=st.integers(0, 100_000_000),
    tokens_in=st.integers(0, 200_000),
    tokens_out=st.integers(0, 200_000),
)
def test_a_cost_is_exact_to_the_last_digit(
    store: Store, per_input: int, per_output: int, tokens_in: int, tokens_out: int
) -> None:
    acme = store.tenant(f"t{uuid4().hex[:10]}")
    prices = {MODEL: [per_input / 10**6, per_output / 10**6]}
    purse = budget(store, cap=1e9, deployment=1e9, prices=prices)
    before = sum(ledger(store).values())
    call(purse, acme, decision(MODEL, tokens_in, tokens_out))
    [row] = [row for row in usage(store) if row["user_id"] == acme]
    # Prices in micro-dollars a million tokens make costs in whole 10^-12 dollars.
    assert row["cost_usd"] * 10**12 == tokens_in * per_input + tokens_out * per_output
    assert sum(ledger(store).values()) - before == row["cost_usd"]


def test_a_model_without_a_price_is_recorded_as_unpriced_however_near_its_name(
    store: Store,
) -> None:
    acme = store.tenant()
    purse = budget(store)
    for model in (MODEL, f"{MODEL}-2", MODEL.upper(), ""):
        call(purse, acme, decision(model))
    assert [row["cost_usd"] for row in usage(store)] == [COST, None, None, None]


@pytest.mark.parametrize(("tokens_in", "tokens_out"), [(None, 10), (1000, None), (None, None)])
def test_unknown_usage_of_a_priced_model_is_unpriced(
    store: Store, tokens_in: int | None, tokens_out: int | None
) -> None:
    acme = store.tenant()
    call(budget(store), acme, decision(MODEL, tokens_in, tokens_out))
    [row] = usage(store)
    assert (row["input_tokens"], row["output_tokens"]) == (tokens_in, tokens_out)
    assert row["cost_usd"] is None


def test_a_free_model_costs_nothing_and_is_not_unpriced(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store, cap=0.01, prices={MODEL: [0.0, 0.0]})
    for _ in range(3):
        call(purse, acme)
    assert [row["cost_usd"] for row in usage(store)] == [0, 0, 0]


def test_an_unpriced_call_counts_at_the_ceiling(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store, cap=0.02)
    call(purse, acme, decision("unknown"))
    call(purse, acme, decision("unknown"))
    with pytest.raises(BudgetExceeded):
        call(purse, acme, decision("unknown"))
    assert [row["cost_usd"] for row in usage(store)] == [None, None]

    priced = store.tenant("priced")
    for _ in range(3):
        call(purse, priced)  # the same three calls fit when their real cost is known
    assert len(usage(store)) == 5


ERRORS = [
    (GatewayUnavailable(billed=True), 1),
    (AnswerRejected(billed=True), 1),
    (GatewayUnavailable(), 0),
    (GatewayRefused(), 0),
    (RequestTooLarge(), 0),
]


@pytest.mark.parametrize(("error", "rows"), ERRORS, ids=lambda each: repr(each)[:18])
def test_a_billed_error_has_one_usage_row_of_unknown_cost_and_an_unbilled_one_has_none(
    store: Store, error: GatewayError, rows: int
) -> None:
    acme = store.tenant()
    failing(budget(store), acme, error)
    assert [(row["model"], row["cost_usd"]) for row in usage(store)] == [(MODEL, None)] * rows
    assert (held(store), announced(store)) == ([], [])


def test_the_usage_is_recorded_before_the_answer_is_read(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    work = Pass(store, TestJudge.that(lambda _item, _keys: "not an answer"))
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (done.rejected, done.judged) == (1, 0)
    assert len(usage(store)) == 1


# Reservations


def test_a_call_is_announced_and_its_ceiling_held_while_it_is_under_way(store: Store) -> None:
    acme = store.tenant()
    seen: list[Any] = []

    def send() -> Decision:
        seen.append((held(store), announced(store), ledger(store), usage(store)))
        ids = "SELECT user_id, id FROM {} ORDER BY id"
        calls = store.rows(ids.format("forgetting.calls_under_way"))
        assert calls == store.rows(ids.format("budget_reservations"))
        return decision()

    budget(store).metered(acme, FORGET_DECIDE, "asked-model", send)
    one = (acme, FORGET_DECIDE, "asked-model", TODAY)
    assert seen == [([CEILING], [one], {TODAY.date(): CEILING}, [])]
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == {TODAY.date(): COST}


UNSENT = [
    GatewayUnavailable(),
    GatewayRefused(),
    RequestTooLarge(),
    AnswerRejected(),
    JudgmentNotEnabled(),
    StoreRefused(),
    BudgetExceeded(),
    ConfigurationError(),
]


@pytest.mark.parametrize("error", UNSENT, ids=lambda error: type(error).__name__)
def test_an_error_of_ours_that_cannot_have_cost_anything_leaves_no_trace(
    store: Store, error: ForgettingError
) -> None:
    acme = store.tenant()
    call(budget(store), acme)
    before = store.dump(*MONEY)
    failing(budget(store), acme, error)
    assert store.dump(*MONEY) == before


@pytest.mark.parametrize(
    "error",
    [GatewayUnavailable(billed=True), AnswerRejected(billed=True)],
    ids=lambda error: type(error).__name__,
)
def test_a_billed_error_lets_go_of_its_call_and_stays_in_the_deployments_spend(
    store: Store, error: GatewayError
) -> None:
    acme = store.tenant()
    failing(budget(store), acme, error)
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == {TODAY.date(): CEILING}


@pytest.mark.parametrize(
    "error",
    [RuntimeError(), KeyboardInterrupt(), SystemExit(), MemoryError(), OSError()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_not_ours_leaves_its_call_announced_until_it_is_booked(
    store: Store, error: BaseException
) -> None:
    acme = store.tenant()
    failing(budget(store), acme, error)
    assert (usage(store), held(store)) == ([], [CEILING])
    assert announced(store) == [(acme, FORGET_DECIDE, MODEL, TODAY)]
    assert ledger(store) == {TODAY.date(): CEILING}
    later = budget(store, cap=0.019, now=TODAY + DAY_1)
    assert not fits(later, acme)

    assert later.book_lost(acme, FORGET_DECIDE) == 1
    [row] = usage(store)
    assert (row["cost_usd"], row["created_at"]) == (None, TODAY)
    assert (held(store), announced(store)) == ([], [])
    assert not fits(later, acme)


@pytest.mark.parametrize(
    ("age", "counts"),
    [
        (timedelta(), True),
        (119 * SECOND, True),
        (120 * SECOND, True),
        (120 * SECOND + timedelta(microseconds=1), False),
        (timedelta(days=1), False),
    ],
)
def test_a_reservation_that_announces_no_call_counts_until_it_is_older_than_120_seconds(
    store: Store, age: timedelta, counts: bool
) -> None:
    acme = store.tenant()
    reservation(store, acme, TODAY - age)
    assert fits(budget(store, cap=0.01), acme) is not counts
    assert fits(budget(store, cap=0.02), acme)


def test_a_reservation_that_announces_no_call_expires_beside_one_that_does(store: Store) -> None:
    acme = store.tenant()
    long_ago = TODAY - 121 * SECOND
    reservation(store, acme, long_ago)
    reserve(budget(store, now=long_ago), acme)
    assert fits(budget(store, cap=0.02), acme)
    assert not fits(budget(store, cap=0.0199), acme)


def test_a_reservation_counts_at_what_it_holds(store: Store) -> None:
    acme = store.tenant()
    reservation(store, acme, TODAY, Decimal("0.5"))
    assert not fits(budget(store, cap=0.509), acme)
    assert fits(budget(store, cap=0.51), acme)


def test_releasing_lets_go_of_its_own_reservation_alone(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store)
    reservation(store, acme, TODAY, Decimal("0.5"))
    first, second = reserve(purse, acme, "first"), reserve(purse, acme, "second")
    call(purse, acme)
    purse.release(first)
    assert sorted(held(store)) == [CEILING, Decimal("0.5")]
    assert [model for _, _, model, _ in announced(store)] == ["second"]
    assert ledger(store) == {TODAY.date(): COST + CEILING}
    purse.release(first)  # a second time it changes nothing
    assert ledger(store) == {TODAY.date(): COST + CEILING}
    purse.release(second)
    assert (held(store), announced(store)) == ([Decimal("0.5")], [])
    assert ledger(store) == {TODAY.date(): COST}


# Calls that never came back


@pytest.mark.parametrize(
    "age",
    [timedelta(), 121 * SECOND, DAY_1, DAYS_30, 31 * DAY_1, 1000 * DAY_1],
    ids=str,
)
def test_a_call_that_is_under_way_or_lost_counts_at_its_ceiling_however_old_it_is(
    store: Store, age: timedelta
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    reserve(budget(store, now=TODAY - age), acme)
    assert not fits(budget(store, cap=0.0199), acme)
    assert fits(budget(store, cap=0.02), acme)
    assert fits(budget(store, cap=0.01), other)


def test_a_lost_call_is_booked_once_when_it_was_announced_at_an_unknown_cost(store: Store) -> None:
    acme = store.tenant()
    moments = [TODAY - 3 * DAY_1, TODAY - 121 * SECOND, TODAY]
    for n, moment in enumerate(moments):
        reserve(budget(store, now=moment), acme, f"model-{n}")
    before = ledger(store)
    assert budget(store).book_lost(acme, FORGET_DECIDE) == 3
    for n, (row, moment) in enumerate(zip(usage(store), moments, strict=True)):
        assert (row["user_id"], row["operation"]) == (acme, "memory.forget.decide")
        assert (row["model"], row["created_at"]) == (f"model-{n}", moment)
        assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (None, None, None)
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == before

    assert budget(store).book_lost(acme, FORGET_DECIDE) == 0
    assert len(usage(store)) == 3


def test_booking_lost_calls_touches_no_other_operation_and_no_other_tenant(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    purse = budget(store)
    reserve(purse, other)
    reservation(store, acme, TODAY, Decimal("0.5"))
    store.execute(
        """
        WITH made AS (
            INSERT INTO budget_reservations (user_id, estimated_cost_usd)
            VALUES (:user_id, 0.7) RETURNING user_id, id
        )
        INSERT INTO forgetting.calls_under_way
        SELECT user_id, id, 'memory.other', 'another', :now FROM made
        """,
        user_id=acme,
        now=TODAY,
    )
    before = store.dump(*MONEY)
    assert purse.book_lost(acme, FORGET_DECIDE) == 0
    assert store.dump(*MONEY) == before

    reserve(purse, acme)
    assert purse.book_lost(acme, FORGET_DECIDE) == 1
    assert [row["user_id"] for row in usage(store)] == [acme]
    after = store.dump("budget_reservations", "forgetting.calls_under_way")
    assert after == {table: before[table] for table in after}


@pytest.mark.parametrize("cap", ["0.0299", "0.03"])
def test_booking_a_lost_call_changes_nothing_of_what_counts(store: Store, cap: str) -> None:
    acme = store.tenant()
    for age in (29 * DAY_1, DAY_1):
        reserve(budget(store, now=TODAY - age), acme)
    purse = budget(store, cap=float(cap))
    before = fits(purse, acme)
    purse.book_lost(acme, FORGET_DECIDE)
    assert fits(purse, acme) is before is (cap == "0.03")
    # Once it is booked it ages as any usage does.
    assert fits(budget(store, cap=0.02, now=TODAY + 2 * DAY_1), acme)


LATE = [
    decision(),
    decision("unknown"),
    GatewayRefused(),
    AnswerRejected(billed=True),
    JudgmentNotEnabled(),
]


@pytest.mark.parametrize(
    "ending",
    LATE,
    ids=["priced", "unpriced", "unbilled", "billed", "not sent"],
)
def test_a_call_that_comes_back_after_it_was_booked_as_lost_writes_no_second_row(
    store: Store, ending: Decision | ForgettingError
) -> None:
    acme = store.tenant()
    purse = budget(store)
    booked: list[Any] = []

    def send() -> Decision:
        assert budget(store, now=TODAY + DAY_1).book_lost(acme, FORGET_DECIDE) == 1
        booked.append(store.dump(*MONEY))
        if isinstance(ending, ForgettingError):
            raise ending
        return ending

    if isinstance(ending, ForgettingError):
        with pytest.raises(type(ending)):
            purse.metered(acme, FORGET_DECIDE, MODEL, send)
    else:
        assert purse.metered(acme, FORGET_DECIDE, MODEL, send) == ending
    assert [row["cost_usd"] for row in usage(store)] == [None]
    assert ledger(store) == {TODAY.date(): CEILING}
    assert booked == [store.dump(*MONEY)]


def test_a_call_that_comes_back_while_it_is_booked_has_one_row(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store)
    calls = [reserve(purse, acme) for _ in range(12)]

    def end(n: int) -> bool:
        if n < 12:
            purse._charge(calls[n], MODEL, 1000, 10)
        else:
            purse.book_lost(acme, FORGET_DECIDE)
        return True

    together(16, end)
    costs = Counter(row["cost_usd"] for row in usage(store))
    assert costs[None] + costs[COST] == costs.total() == 12
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == {TODAY.date(): costs[None] * CEILING + costs[COST] * COST}


def test_a_killed_process_leaves_its_call_announced_and_the_next_run_books_it(
    store: Store, places: Addresses
) -> None:
    acme = store.tenant()
    store.memory(acme)
    assert workers(places, 1, budget(store), [acme], mode="kill") == [-signal.SIGKILL]
    assert (usage(store), held(store)) == ([], [CEILING])
    assert announced(store) == [(acme, FORGET_DECIDE, MODEL, TODAY)]

    work = Pass(store, now=TODAY + SECOND)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (done.lost_calls, done.calls, done.judged) == (1, 1, 1)
    assert [(row["cost_usd"], row["created_at"]) for row in usage(store)] == [
        (None, TODAY),
        (COST, TODAY + SECOND),
    ]
    assert (held(store), announced(store)) == ([], [])
    assert work.verdicts(store.partition()).lost_calls == 0


# One transaction


BROKEN = [
    "INSERT ON llm_usage",
    "DELETE ON budget_reservations",
    "DELETE ON forgetting.calls_under_way",
    "UPDATE ON forgetting.deployment_spend",
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_call_is_settled_as_a_whole_or_not_at_all(store: Store, broken: str) -> None:
    acme = store.tenant()
    announced_: list[Any] = []

    def send() -> Decision:
        announced_.append(store.dump(*MONEY))
        store.execute(f"REVOKE {broken} FROM forgetting_runtime")
        return decision()

    with pytest.raises(StoreRefused, match="42501"):
        budget(store).metered(acme, FORGET_DECIDE, MODEL, send)
    assert announced_ == [store.dump(*MONEY)]
    assert (usage(store), held(store), len(announced(store))) == ([], [CEILING], 1)

    store.execute(f"GRANT {broken} TO forgetting_runtime")
    assert budget(store).book_lost(acme, FORGET_DECIDE) == 1


@pytest.mark.parametrize("broken", BROKEN[1:])
def test_a_call_is_released_as_a_whole_or_not_at_all(store: Store, broken: str) -> None:
    acme = store.tenant()
    purse = budget(store)
    one = reserve(purse, acme)
    before = store.dump(*MONEY)
    store.execute(f"REVOKE {broken} FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        purse.release(one)
    assert store.dump(*MONEY) == before


@pytest.mark.parametrize("broken", BROKEN[:3])
def test_lost_calls_are_booked_as_a_whole_or_not_at_all(store: Store, broken: str) -> None:
    acme = store.tenant()
    purse = budget(store)
    for _ in range(3):
        reserve(purse, acme)
    before = store.dump(*MONEY)
    store.execute(f"REVOKE {broken} FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        purse.book_lost(acme, FORGET_DECIDE)
    assert store.dump(*MONEY) == before


def test_one_usage_row_that_is_refused_keeps_all_lost_calls(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store)
    for model in ("good", "bad", "good"):
        reserve(purse, acme, model)
    before = store.dump(*MONEY)
    store.execute("ALTER TABLE llm_usage ADD CHECK (model <> 'bad')")
    with pytest.raises(StoreRefused, match="23514"):
        purse.book_lost(acme, FORGET_DECIDE)
    assert store.dump(*MONEY) == before


# The window and a tenant's own budget


@pytest.mark.parametrize(
    ("age", "counts"),
    [
        (timedelta(), True),
        (DAYS_30 - SECOND, True),
        (DAYS_30, True),
        (DAYS_30 + SECOND, False),
    ],
)
def test_usage_counts_for_a_rolling_30_days(store: Store, age: timedelta, counts: bool) -> None:
    acme = store.tenant()
    use(store, acme, Decimal("9.995"), TODAY - age)
    assert fits(budget(store), acme) is not counts


def test_the_window_rolls_with_the_clock(store: Store) -> None:
    acme = store.tenant()
    use(store, acme, Decimal("9.995"), TODAY - timedelta(days=20))
    assert not fits(budget(store), acme)
    assert not fits(budget(store, now=TODAY + timedelta(days=10)), acme)
    assert fits(budget(store, now=TODAY + timedelta(days=10) + SECOND), acme)


def test_a_call_fits_when_it_fills_the_cap_to_the_last_digit(store: Store) -> None:
    acme = store.tenant()
    use(store, acme, Decimal("0.99"))
    assert fits(budget(store, cap=1.0), acme)
    use(store, acme, Decimal("0.000000000001"))
    assert not fits(budget(store, cap=1.0), acme)


def test_another_tenants_usage_and_reservations_do_not_count(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    use(store, other, Decimal(9))
    reservation(store, other, TODAY, Decimal(1))
    assert not fits(budget(store), other)
    assert fits(budget(store, cap=0.01), acme)


@pytest.mark.parametrize(
    ("cap", "spent", "allowed"),
    [("0", "0", False), ("0.01", "0", True), ("0.01", "0.001", False), ("100", "99.99", True)],
)
def test_a_tenants_own_cap_takes_the_place_of_the_default(
    store: Store, cap: str, spent: str, allowed: bool
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    for tenant in (acme, other):
        use(store, tenant, Decimal(spent))
    override(store, acme, cap=Decimal(cap))
    assert fits(budget(store), acme) is allowed
    assert fits(budget(store, cap=200), other), "another tenant keeps the default"


@pytest.mark.parametrize(
    ("start", "end", "used", "counts"),
    [
        (-1, 1, -0.5, True),  # within the running period
        (-1, 1, -2, False),  # before it, though within 30 days
        (-40, 1, -35, True),  # a period longer than the window
        (-10, -5, -2, True),  # a period that is over: the rolling window holds
        (5, 10, -2, True),  # a period to come: the rolling window holds
        (-10, 0, -15, True),  # a period ends before its end
        (0, 1, -0.001, False),  # a period begins at its start
    ],
)
def test_a_running_period_takes_the_place_of_the_window(
    store: Store, start: float, end: float, used: float, counts: bool
) -> None:
    acme = store.tenant()
    moment = [TODAY + timedelta(days=days) for days in (start, end, used)]
    override(store, acme, start=moment[0], end=moment[1])
    use(store, acme, Decimal("9.995"), moment[2])
    assert fits(budget(store), acme) is not counts


# The cap in the pass


def test_the_pass_ends_cleanly_at_the_cap_and_keeps_what_was_judged(store: Store) -> None:
    acme = store.tenant()
    for n in range(30):
        store.memory(acme, age=90 - n, scope=str(n))
    judge = TestJudge.that(say("archive"))
    # Two calls fit: 2 x 0.00101 are spent, and a third would need 0.01 more.
    work = Pass(store, judge, cap_usd=0.0112)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (judge.calls, done.calls, done.judged) == (2, 2, 24)
    assert done.stopped is not None
    assert "0.0020 of 0.0112" in done.stopped
    assert work.proposals(store.partition()).proposed["archive"] == 24
    assert len(usage(store)) == 2
    assert held(store) == []

    more = TestJudge.that(say("archive"))
    done = Pass(store, more, cap_usd=10.0).verdicts(store.partition())
    assert (more.calls, done.judged, done.stopped) == (1, 6, None)


def test_nothing_is_sent_above_the_cap(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge, cap_usd=0.009)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (judge.calls, done.judged, len(usage(store)), held(store)) == (0, 0, 0, [])
    assert done.stopped is not None

    work.cap_usd = 0.01
    assert work.verdicts(store.partition()).judged == 1


def test_a_billed_error_counts_against_the_cap(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store, cap=0.015)
    failing(purse, acme, AnswerRejected(billed=True))
    assert not fits(purse, acme)


def test_an_unregistered_operation_is_refused_before_anything_is_sent(store: Store) -> None:
    acme = store.tenant()
    sent: list[int] = []

    def send() -> Decision:
        sent.append(1)
        return decision()

    purse = budget(store)
    with pytest.raises(ConfigurationError, match=r"memory\.forget\.everything"):
        purse.metered(acme, "memory.forget.everything", MODEL, send)
    assert (sent, usage(store), held(store), announced(store)) == ([], [], [], [])
    assert ledger(store) == {}
    purse.metered(acme, FORGET_DECIDE, MODEL, send)
    assert sent == [1]


# The deployment's cap


def test_all_tenants_together_stay_within_the_deployments_cap(store: Store) -> None:
    tenants = [store.tenant(f"tenant-{n}") for n in range(4)]
    purse = budget(store, deployment=0.03)
    for tenant in tenants[:3]:
        call(purse, tenant, decision("unpriced"))
    for tenant in tenants:
        with pytest.raises(BudgetExceeded, match="FORGETTING_DEPLOYMENT_BUDGET_USD"):
            call(purse, tenant)
    assert len(usage(store)) == 3
    assert ledger(store) == {TODAY.date(): Decimal("0.03")}


@pytest.mark.parametrize(
    ("cap", "deployment", "named", "other"),
    [
        (1.0, 0.0199, "FORGETTING_DEPLOYMENT_BUDGET_USD", "FORGETTING_BUDGET_USD"),
        (0.0199, 1.0, "FORGETTING_BUDGET_USD", "FORGETTING_DEPLOYMENT_BUDGET_USD"),
    ],
)
def test_a_refusal_names_its_own_setting_and_reserves_nothing(
    store: Store, cap: float, deployment: float, named: str, other: str
) -> None:
    acme = store.tenant()
    purse = budget(store, cap=cap, deployment=deployment)
    call(purse, acme, decision("unpriced"))
    before = store.dump(*MONEY)
    sent: list[int] = []

    def send() -> Decision:
        sent.append(1)
        return decision()

    with pytest.raises(BudgetExceeded) as refused:
        purse.metered(acme, FORGET_DECIDE, MODEL, send)
    assert named in str(refused.value)
    assert other not in str(refused.value)
    assert "0.0100 of " in str(refused.value)
    assert sent == []
    assert store.dump(*MONEY) == before


def test_known_costs_count_exactly_in_the_deployments_cap(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    call(budget(store), acme)
    call(budget(store), other, decision(MODEL, 25_000, 0))  # dearer than the ceiling
    assert ledger(store) == {TODAY.date(): Decimal("0.02601")}
    assert fits(budget(store, deployment=0.03601), acme)
    assert not fits(budget(store, deployment=0.036009), acme)


WAYS: dict[str, Callable[[Budget, UUID], object]] = {
    "unpriced": lambda purse, tenant: call(purse, tenant, decision("unpriced")),
    "unknown usage": lambda purse, tenant: call(purse, tenant, decision(MODEL, None, None)),
    "billed error": lambda purse, tenant: failing(purse, tenant, AnswerRejected(billed=True)),
    "under way": reserve,
    "crashed": lambda purse, tenant: failing(purse, tenant, RuntimeError()),
    "lost": lambda purse, tenant: (reserve(purse, tenant), purse.book_lost(tenant, FORGET_DECIDE)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_is_not_known_counts_at_the_ceiling_in_the_deployments_cap(
    store: Store, way: Callable[[Budget, UUID], object]
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    way(budget(store, now=TODAY - DAY_1), acme)
    assert ledger(store) == {(TODAY - DAY_1).date(): CEILING}
    assert not fits(budget(store, deployment=0.0199), other)
    assert fits(budget(store, deployment=0.02), other)


@pytest.mark.parametrize(
    ("moment", "counts"),
    [
        (TODAY, True),
        (datetime(2026, 8, 2, tzinfo=UTC), True),
        (datetime(2026, 8, 1, 23, 59, 59, 999_999, tzinfo=UTC), False),
        (datetime(2026, 8, 2, 1, tzinfo=timezone(timedelta(hours=2))), False),
        (datetime(2026, 8, 1, 23, tzinfo=timezone(timedelta(hours=-2))), True),
    ],
    ids=str,
)
def test_the_deployments_spend_counts_for_30_days_by_utc_day(
    store: Store, moment: datetime, counts: bool
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    call(budget(store, now=moment), acme, decision("unpriced"))
    assert list(ledger(store)) == [moment.astimezone(UTC).date()]
    assert fits(budget(store, deployment=0.0199), other) is not counts


def test_the_deployments_window_rolls_with_the_clock(store: Store) -> None:
    acme = store.tenant()
    call(budget(store), acme, decision("unpriced"))
    last = datetime(2026, 10, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    assert not fits(budget(store, deployment=0.0199, now=last), acme)
    assert fits(budget(store, deployment=0.0199, now=last + SECOND), acme)


def test_a_call_that_ends_on_another_day_counts_on_the_day_it_was_announced(store: Store) -> None:
    acme = store.tenant()
    evening = datetime(2026, 8, 31, 23, 59, 59, tzinfo=UTC)
    purse = budget(store, now=evening)

    def send() -> Decision:
        purse.clock.sleep(2, threading.Event())
        return decision()

    purse.metered(acme, FORGET_DECIDE, MODEL, send)
    assert ledger(store) == {evening.date(): COST}
    assert [row["created_at"] for row in usage(store)] == [evening + 2 * SECOND]


def test_a_tenant_that_retired_or_spends_elsewhere_does_not_change_the_deployments_spend(
    store: Store,
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    call(budget(store), acme, decision("unpriced"))
    use(store, other, Decimal(50))  # another operation's usage is not judging's
    reservation(store, other, TODAY, Decimal(50))
    store.retire("acme")
    assert ledger(store) == {TODAY.date(): CEILING}
    assert fits(budget(store, deployment=0.02), store.tenant("new"))


def test_a_deployments_cap_of_zero_sends_nothing(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge, deployment_cap_usd=0.0)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (judge.calls, done.judged) == (0, 0)
    assert done.stopped is not None
    assert "FORGETTING_DEPLOYMENT_BUDGET_USD" in done.stopped


OUTCOMES = st.one_of(
    st.integers(0, 30).map(lambda thousandths: decision(MODEL, 1000 * thousandths, 0)),
    st.sampled_from(
        [
            decision("unpriced"),
            AnswerRejected(billed=True),
            GatewayUnavailable(billed=True),
            GatewayRefused(),
            JudgmentNotEnabled(),
            RuntimeError(),
        ]
    ),
)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), OUTCOMES), max_size=12),
)
def test_the_ledger_is_the_sum_of_all_tenants_and_never_negative(
    store: Store, calls: list[tuple[int, int, Decision | Exception]]
) -> None:
    store.execute("TRUNCATE forgetting.deployment_spend, llm_usage")
    tenants = [store.tenant(f"t{uuid4().hex[:10]}") for _ in range(3)]
    for n, days, outcome in calls:
        purse = budget(store, now=TODAY + days * DAY_1)
        if isinstance(outcome, Decision):
            call(purse, tenants[n], outcome)
        else:
            failing(purse, tenants[n], outcome)
        assert all(usd >= 0 for usd in ledger(store).values())
    for tenant in tenants:
        budget(store).book_lost(tenant, FORGET_DECIDE)
    summed: defaultdict[date, Decimal] = defaultdict(Decimal)
    for row in usage(store):
        cost = CEILING if row["cost_usd"] is None else row["cost_usd"]
        summed[row["created_at"].astimezone(UTC).date()] += cost
    assert ledger(store) == {day: usd for day, usd in summed.items() if usd}


def test_a_ledger_that_lost_a_day_does_not_go_negative(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store)
    for usd in (None, Decimal(0), Decimal("0.001")):
        one = reserve(purse, acme)
        store.execute("DELETE FROM forgetting.deployment_spend")
        if usd is not None:
            store.execute(
                "INSERT INTO forgetting.deployment_spend VALUES (:day, :usd)",
                day=TODAY.date(),
                usd=usd,
            )
        purse.release(one)
        assert ledger(store) == {}


def test_the_ledger_names_no_tenant(store: Store) -> None:
    columns = store.rows(
        """
        SELECT column_name AS name, data_type AS type FROM information_schema.columns
        WHERE table_schema = 'forgetting' AND table_name = 'deployment_spend'
        """
    )
    assert {row["name"]: row["type"] for row in columns} == {
        "day": "date",
        "committed_usd": "numeric",
    }
    for name in ("acme", "other"):
        call(budget(store), store.tenant(name))
    assert len(store.rows("SELECT * FROM forgetting.deployment_spend")) == 1


def test_the_runtime_role_cannot_take_a_day_out_of_the_ledger_or_below_zero(store: Store) -> None:
    acme = store.tenant()
    call(budget(store), acme)
    for statement, state in (
        ("DELETE FROM forgetting.deployment_spend", "42501"),
        ("UPDATE forgetting.deployment_spend SET committed_usd = -1", "23514"),
    ):
        with pytest.raises(StoreRefused, match=state), store.database.registry() as connection:
            connection.exec_driver_sql(statement)
    assert ledger(store) == {TODAY.date(): COST}


# Failing closed


@pytest.mark.parametrize(
    "lost",
    [
        "SELECT ON llm_usage",
        "SELECT ON budget_reservations",
        "SELECT ON user_budgets",
        "SELECT ON forgetting.calls_under_way",
        "SELECT ON forgetting.deployment_spend",
    ],
)
def test_nothing_is_sent_when_the_budget_cannot_be_read(store: Store, lost: str) -> None:
    acme = store.tenant()
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge)
    work.candidates(store.partition())
    store.execute(f"REVOKE {lost} FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert (judge.calls, usage(store), held(store), announced(store)) == (0, [], [], [])
    assert ledger(store) == {}

    store.execute(f"GRANT {lost} TO forgetting_runtime")
    assert work.verdicts(store.partition()).judged == 1


@pytest.mark.parametrize(
    "lost",
    [
        "INSERT ON budget_reservations",
        "INSERT ON forgetting.calls_under_way",
        "INSERT ON forgetting.deployment_spend",
    ],
)
def test_nothing_is_sent_or_held_when_the_call_cannot_be_written_down(
    store: Store, lost: str
) -> None:
    acme = store.tenant()
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge)
    work.candidates(store.partition())
    store.execute(f"REVOKE {lost} FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert (judge.calls, usage(store), held(store), announced(store)) == (0, [], [], [])
    assert ledger(store) == {}


def test_a_call_whose_usage_cannot_be_recorded_is_the_last_one(store: Store) -> None:
    acme = store.tenant()
    for _ in range(25):
        store.memory(acme)

    def revoke(_call: int) -> None:
        store.execute("REVOKE INSERT ON llm_usage FROM forgetting_runtime")

    judge = TestJudge.that(say("keep"), before=revoke)
    work = Pass(store, judge)
    work.candidates(store.partition())
    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert judge.calls == 1
    assert (held(store), len(announced(store))) == ([CEILING], 1)
    assert not fits(budget(store, cap=0.0199, now=TODAY + DAY_1), acme)

    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert judge.calls == 1, "what cannot be booked stops the next run before it sends"

    store.execute("GRANT INSERT ON llm_usage TO forgetting_runtime")
    assert budget(store).book_lost(acme, FORGET_DECIDE) == 1
    assert [row["cost_usd"] for row in usage(store)] == [None]


def test_the_runtime_role_can_neither_change_nor_delete_usage(store: Store) -> None:
    acme = store.tenant()
    call(budget(store), acme)
    for statement in ("UPDATE llm_usage SET cost_usd = 0", "DELETE FROM llm_usage"):
        with pytest.raises(StoreRefused, match="42501"), store.database.tenant(acme) as tx:
            tx.connection.exec_driver_sql(statement)
    assert [row["cost_usd"] for row in usage(store)] == [COST]


# Many at once


def together(threads: int, work: Callable[[int], bool]) -> list[bool]:
    """Run ``work`` in threads that start at the same moment."""
    start = threading.Barrier(threads)

    def run(n: int) -> bool:
        start.wait(20)
        return work(n)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def test_sixteen_threads_that_reserve_at_once_never_pass_the_cap(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store, cap=0.05)
    made: list[Reservation] = []

    def hold(_n: int) -> bool:
        try:
            made.append(reserve(purse, acme))
        except BudgetExceeded:
            return False
        return True

    assert sum(together(16, hold)) == len(held(store)) == len(announced(store)) == 5
    for one in made:
        purse.release(one)
    assert (held(store), announced(store), ledger(store)) == ([], [], {})


@pytest.mark.parametrize(("cap", "deployment"), [(0.05, 1.0), (1.0, 0.05)])
def test_sixteen_threads_that_call_at_once_never_spend_past_a_cap(
    store: Store, cap: float, deployment: float
) -> None:
    tenants = [store.tenant(f"tenant-{n}") for n in range(1 if cap < deployment else 4)]
    purse = budget(store, cap=cap, deployment=deployment)

    def metered(n: int) -> bool:
        try:
            call(purse, tenants[n % len(tenants)], decision("unpriced"))
        except BudgetExceeded:
            return False
        return True

    # A call counts once at every moment, so exactly five fit.
    assert sum(together(16, metered)) == len(usage(store)) == 5
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == {TODAY.date(): Decimal("0.05")}


WORKER = """
import json, os, signal, sys, threading, traceback
from uuid import UUID
import sqlalchemy as sa
from resources.budget import FORGET_DECIDE, Budget
from resources.clock import Clock
from resources.database import Database
from resources.errors import BudgetExceeded
from resources.gateway import Decision

told = json.loads(sys.argv[1])
SPENT = sa.text('''
    SELECT
        (SELECT coalesce(sum(coalesce(cost_usd, 0.01)), 0) FROM llm_usage)
        + (SELECT coalesce(sum(estimated_cost_usd), 0) FROM budget_reservations) AS tenant,
        (SELECT sum(committed_usd) FROM forgetting.deployment_spend) AS deployment
''')

def work(n):
    database = Database(url=told["url"]).connect()
    purse = Budget(database=database, clock=Clock(fixed=told["now"]), cap_usd=told["cap"],
                   deployment_cap_usd=told["deployment"])
    tenant = UUID(told["tenants"][n % len(told["tenants"])])
    seen = []

    def send():
        if told["mode"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        with database.tenant(tenant) as tx:
            seen.append([str(each) for each in tx.one(SPENT)])
        return Decision("unpriced", {}, 1, 1, None)

    with database.registry() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock_shared(4711)")
    refused = 0
    for _ in range(told["calls"]):
        try:
            purse.metered(tenant, FORGET_DECIDE, told["model"], send)
        except BudgetExceeded:
            refused += 1
    os.write(1, (json.dumps({"seen": seen, "refused": refused}) + "\\n").encode())

assert threading.active_count() == 1
for n in range(told["processes"]):
    if os.fork() == 0:
        try:
            work(n)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
for _ in range(told["processes"]):
    ended = os.waitstatus_to_exitcode(os.wait()[1])
    if ended:
        os.write(1, (json.dumps(ended) + "\\n").encode())
"""
"""Imports once, then forks: each child is a process with a connection of its own."""


def workers(
    places: Addresses, processes: int, purse: Budget, tenants: list[UUID], mode: str = "answer"
) -> list[Any]:
    """What processes that all start to call at the same moment say when they have ended."""
    assert places.admin is not None
    told = {
        "url": places.memory.render_as_string(hide_password=False),
        "mode": mode,
        "now": purse.clock.fixed,
        "cap": purse.cap_usd,
        "deployment": purse.deployment_cap_usd,
        "model": MODEL,
        "calls": 2,
        "processes": processes,
        "tenants": [str(each) for each in tenants],
    }
    gate = engine(places.admin).execution_options(isolation_level="AUTOCOMMIT")
    command = [sys.executable, "-c", WORKER, json.dumps(told)]
    with gate.connect() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_lock(4711)")
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        waiting = sa.text(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND NOT granted"
        )
        give_up = time.monotonic() + 120
        try:
            while connection.execute(waiting).scalar_one() < processes:
                assert child.poll() is None, "the processes ended before they could start"
                assert time.monotonic() < give_up, "a process died before it could start"
                time.sleep(0.02)
            connection.exec_driver_sql("SELECT pg_advisory_unlock(4711)")
            said, _ = child.communicate(timeout=120)
        finally:
            child.kill()
            child.wait()
    gate.dispose()
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.parametrize(
    ("cap", "deployment", "tenants"),
    [(0.07, 1.0, 1), (1.0, 0.07, 4)],
    ids=["a tenant's cap", "the deployment's cap"],
)
def test_32_processes_that_call_at_once_never_spend_past_a_cap(
    store: Store, places: Addresses, cap: float, deployment: float, tenants: int
) -> None:
    users = [store.tenant(f"tenant-{n}") for n in range(tenants)]
    said = workers(places, 32, budget(store, cap=cap, deployment=deployment), users)
    assert len(said) == 32
    seen = [spent for each in said for spent in each["seen"]]
    assert len(seen) == len(usage(store)) == 7
    assert sum(each["refused"] for each in said) == 64 - 7
    for of_tenant, of_deployment in seen:
        assert CEILING <= Decimal(of_tenant) <= Decimal(of_deployment) <= Decimal("0.07")
    assert (held(store), announced(store)) == ([], [])
    assert ledger(store) == {TODAY.date(): Decimal("0.07")}


# Everything in any order

COSTS = st.sampled_from([None, 0, 1, 10, 25])
"""Thousandths of a dollar that a call costs; None is not known."""


def answer_of(cost: int | None) -> Decision:
    """An answer of that cost."""
    return decision("unpriced" if cost is None else MODEL, 1000 * (cost or 0), 0)


class Spending(RuleBasedStateMachine):
    """Calls of two tenants that begin, end, crash, get lost and come back late, beside a ledger."""

    store: Store
    tenants: tuple[UUID, UUID]

    def __init__(self) -> None:
        super().__init__()
        self.store.execute(f"TRUNCATE {', '.join(MONEY)}")
        self.now = TODAY
        self.cap = self.deployment_cap = Decimal(0)
        self.usage: list[tuple[UUID, datetime, Decimal | None]] = []
        self.under_way: list[Reservation] = []
        self.crashed: list[Reservation] = []
        self.booked: list[Reservation] = []
        self.foreign: list[tuple[UUID, datetime, Decimal]] = []
        self.days: defaultdict[date, Decimal] = defaultdict(Decimal)
        self.over: defaultdict[UUID, Decimal] = defaultdict(Decimal)
        """What settled above the ceiling, by tenant."""

    @initialize(cap=st.integers(0, 69), deployment_cap=st.integers(0, 99))
    def set_caps(self, cap: int, deployment_cap: int) -> None:
        self.cap, self.deployment_cap = Decimal(cap) / 1000, Decimal(deployment_cap) / 1000

    def purse(self) -> Budget:
        return budget(
            self.store,
            cap=float(self.cap),
            deployment=float(self.deployment_cap),
            now=self.now,
        )

    def announced(self) -> list[Reservation]:
        return self.under_way + self.crashed

    def foreign_held(self, tenant: UUID) -> Decimal:
        alive = self.now - 120 * SECOND
        return sum(
            (usd for user, at, usd in self.foreign if user == tenant and at >= alive), Decimal(0)
        )

    def counted(self, tenant: UUID) -> Decimal:
        """What a tenant spent and holds, as the ledger has it."""
        since = self.now - DAYS_30
        spent = [
            CEILING if usd is None else usd
            for user, at, usd in self.usage
            if user == tenant and at >= since
        ]
        calls = sum(each.user_id == tenant for each in self.announced())
        return sum(spent, Decimal(0)) + CEILING * calls + self.foreign_held(tenant)

    def committed(self) -> Decimal:
        """What the deployment spent and holds, as the ledger has it."""
        first = (self.now - DAYS_30).date()
        return sum((usd for day, usd in self.days.items() if day >= first), Decimal(0))

    def refusal(self, tenant: UUID) -> str | None:
        """The setting that a refusal must name, or None where a call fits."""
        if self.counted(tenant) + CEILING > self.cap:
            return "FORGETTING_BUDGET_USD"
        if self.committed() + CEILING > self.deployment_cap:
            return "FORGETTING_DEPLOYMENT_BUDGET_USD"
        return None

    def attempt(self, tenant: UUID, work: Callable[[], object]) -> bool:
        """Do what needs money; whether it was allowed, which is what the ledger says."""
        expected = self.refusal(tenant)
        said = ""
        try:
            work()
        except BudgetExceeded as refused:
            said = str(refused)
        assert bool(said) is (expected is not None)
        if expected is not None:
            assert expected in said
            return False
        self.days[self.now.date()] += CEILING
        return True

    def probe(self) -> None:
        """A call fits to the last thousandth of what the ledger leaves, under either cap."""
        for tenant in self.tenants:
            least = float(self.counted(tenant) + CEILING)
            assert fits(budget(self.store, cap=least, now=self.now), tenant)
            assert not fits(budget(self.store, cap=least - 0.001, now=self.now), tenant)
        least = float(self.committed() + CEILING)
        roomy = partial(budget, self.store, cap=100.0, now=self.now)
        assert fits(roomy(deployment=least), self.tenants[0])
        assert not fits(roomy(deployment=least - 0.001), self.tenants[0])

    def settle(self, one: Reservation, thousandths: int | None) -> None:
        """Write a call's cost into the ledger, which has its ceiling."""
        usd = None if thousandths is None else Decimal(thousandths) / 1000
        self.usage.append((one.user_id, self.now, usd))
        if usd is not None:
            self.days[one.made_at.date()] += usd - CEILING
            self.over[one.user_id] += max(usd - CEILING, Decimal(0))

    def made(self, tenant: UUID) -> Reservation:
        return Reservation(uuid4(), tenant, FORGET_DECIDE, MODEL, CEILING, self.now)

    @rule(n=st.integers(0, 1))
    def reserve(self, n: int) -> None:
        tenant = self.tenants[n]
        self.attempt(tenant, lambda: self.under_way.append(reserve(self.purse(), tenant)))

    @rule(n=st.integers(0, 1), cost=COSTS)
    def send(self, n: int, cost: int | None) -> None:
        """A whole metered call."""
        tenant = self.tenants[n]
        if self.attempt(tenant, lambda: call(self.purse(), tenant, answer_of(cost))):
            self.settle(self.made(tenant), cost)

    @rule(n=st.integers(0, 1), billed=st.booleans())
    def fail(self, n: int, billed: bool) -> None:
        tenant = self.tenants[n]

        def work() -> None:
            try:
                self.purse().metered(tenant, FORGET_DECIDE, MODEL, raises)
            except GatewayUnavailable:
                return

        def raises() -> Decision:
            raise GatewayUnavailable(billed=billed)

        if self.attempt(tenant, work):
            self.settle(self.made(tenant), None if billed else 0)
            if not billed:
                self.usage.pop()

    @precondition(lambda self: self.under_way)
    @rule(cost=COSTS)
    def record(self, cost: int | None) -> None:
        """A call that was under way for a while comes back."""
        one = self.under_way.pop(0)
        answer = answer_of(cost)
        self.purse()._charge(one, answer.model, answer.input_tokens, answer.output_tokens)
        self.settle(one, cost)

    @precondition(lambda self: self.under_way)
    @rule()
    def release(self) -> None:
        one = self.under_way.pop(0)
        self.purse().release(one)
        self.days[one.made_at.date()] -= CEILING

    @precondition(lambda self: self.under_way)
    @rule()
    def crash(self) -> None:
        """The process of a call dies: nobody releases what it reserved."""
        self.crashed.append(self.under_way.pop())

    @rule(n=st.integers(0, 1))
    def book_lost(self, n: int) -> None:
        """The tenant's next run takes whatever is announced for lost."""
        tenant = self.tenants[n]
        lost = [each for each in self.announced() if each.user_id == tenant]
        assert self.purse().book_lost(tenant, FORGET_DECIDE) == len(lost)
        self.under_way = [each for each in self.under_way if each.user_id != tenant]
        self.crashed = [each for each in self.crashed if each.user_id != tenant]
        self.booked += lost
        self.usage += [(tenant, each.made_at, None) for each in lost]

    @precondition(lambda self: self.booked)
    @rule(cost=COSTS, billed=st.booleans())
    def come_back_late(self, cost: int | None, billed: bool) -> None:
        """A call that was taken for lost comes back after all: it changes nothing."""
        one = self.booked.pop()
        answer = answer_of(cost)
        if billed:
            self.purse()._charge(one, answer.model, answer.input_tokens, answer.output_tokens)
        else:
            self.purse().release(one)

    @rule(n=st.integers(0, 1), thousandths=st.sampled_from([1, 10, 30]))
    def reserve_elsewhere(self, n: int, thousandths: int) -> None:
        """Another operation of the store reserves, and asks no cap of ours."""
        usd = Decimal(thousandths) / 1000
        reservation(self.store, self.tenants[n], self.now, usd)
        self.foreign.append((self.tenants[n], self.now, usd))

    @rule(
        pause=st.sampled_from(
            [SECOND, 60 * SECOND, 120 * SECOND, 121 * SECOND, 10 * DAY_1, DAYS_30, 31 * DAY_1]
        )
    )
    def wait(self, pause: timedelta) -> None:
        self.now += pause
        self.probe()

    @invariant()
    def no_cap_is_passed_but_by_what_settled_above_the_ceiling(self) -> None:
        for tenant in self.tenants:
            elsewhere = self.foreign_held(tenant)
            assert self.counted(tenant) <= self.cap + self.over[tenant] + elsewhere
        assert self.committed() <= self.deployment_cap + sum(self.over.values())

    @invariant()
    def the_rows_are_what_the_ledger_says(self) -> None:
        calls = Counter((each.user_id, each.made_at) for each in self.announced())
        reserved = Counter((user, at, CEILING) for user, at in calls.elements())
        with self.store.owner.begin() as connection:

            def found(columns: str) -> Counter[Any]:
                rows = connection.exec_driver_sql(f"SELECT {columns}")
                return Counter(tuple(row) for row in rows)

            used = found("user_id, created_at, cost_usd FROM llm_usage")
            assert used == Counter(self.usage)
            assert found("user_id, announced_at FROM forgetting.calls_under_way") == calls
            assert found(
                "user_id, created_at, estimated_cost_usd FROM budget_reservations"
            ) == reserved + Counter(self.foreign)
            days = dict(found("day, committed_usd FROM forgetting.deployment_spend"))
        assert {day: usd for day, usd in days if usd} == {
            day: usd for day, usd in self.days.items() if usd
        }
        settled = sum(
            (CEILING if usd is None else usd for _, _, usd in used.elements()), Decimal(0)
        )
        assert sum(usd for _, usd in days) == settled + CEILING * calls.total()


def test_in_any_order_of_calls_crashes_and_bookings_no_cap_is_passed_and_no_call_refused_early(
    store: Store,
) -> None:
    class Here(Spending):
        pass

    Here.store = store
    Here.tenants = (store.tenant("acme"), store.tenant("other"))
    run_state_machine_as_test(
        Here,
        settings=settings(
            deadline=None,
            max_examples=30,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
