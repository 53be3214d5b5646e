"""Money: the metered call, its rows, the cap, and what happens when the budget cannot be read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resources.budget import CEILINGS, FORGET_DECIDE, Budget
from resources.clock import Clock
from resources.errors import (
    AnswerRejected,
    BudgetExceeded,
    ConfigurationError,
    GatewayRefused,
    GatewayUnavailable,
    RequestTooLarge,
    StoreRefused,
)
from resources.gateway import Decision
from tests.support import MODEL, TODAY, Pass, Store, TestJudge, say

CEILING = CEILINGS[FORGET_DECIDE]
SECOND = timedelta(seconds=1)
DAYS_30 = timedelta(days=30)


def budget(
    store: Store,
    *,
    cap: float = 10.0,
    now: datetime = TODAY,
    prices: dict[str, list[float]] | None = None,
) -> Budget:
    return Budget(
        database=store.database,
        clock=Clock(fixed=now.isoformat()),
        cap_usd=cap,
        prices={MODEL: [1.0, 1.0]} if prices is None else prices,
    )


def decision(
    model: str = MODEL, input_tokens: int | None = 1000, output_tokens: int | None = 10
) -> Decision:
    return Decision(model, {}, input_tokens, output_tokens, None)


def call(purse: Budget, user_id: UUID, answer: Decision | None = None) -> Decision:
    """One metered call that is answered."""
    return purse.metered(user_id, FORGET_DECIDE, MODEL, lambda: answer or decision())


def fits(purse: Budget, user_id: UUID) -> bool:
    """Whether one more call may be reserved."""
    try:
        with purse.reserved(user_id, FORGET_DECIDE):
            return True
    except BudgetExceeded:
        return False


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
    """What a call that never came back left behind."""
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
        assert row["cost_usd"] == Decimal("0.00101")
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
    call(budget(store, cap=1e9, prices=prices), acme, decision(MODEL, tokens_in, tokens_out))
    [row] = [row for row in usage(store) if row["user_id"] == acme]
    # Prices in micro-dollars a million tokens make costs in whole 10^-12 dollars.
    assert row["cost_usd"] * 10**12 == tokens_in * per_input + tokens_out * per_output


def test_a_model_without_a_price_is_recorded_as_unpriced_however_near_its_name(
    store: Store,
) -> None:
    acme = store.tenant()
    purse = budget(store)
    for model in (MODEL, f"{MODEL}-2", MODEL.upper(), ""):
        call(purse, acme, decision(model))
    assert [row["cost_usd"] for row in usage(store)] == [Decimal("0.00101"), None, None, None]


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
    (RuntimeError(), 0),
]


@pytest.mark.parametrize(("error", "rows"), ERRORS, ids=lambda each: repr(each)[:18])
def test_a_billed_error_has_one_usage_row_of_unknown_cost_and_an_unbilled_one_has_none(
    store: Store, error: Exception, rows: int
) -> None:
    acme = store.tenant()

    def send() -> Decision:
        raise error

    with pytest.raises(type(error)):
        budget(store).metered(acme, FORGET_DECIDE, MODEL, send)
    assert [(row["model"], row["cost_usd"]) for row in usage(store)] == [(MODEL, None)] * rows
    assert held(store) == []


def test_the_usage_is_recorded_before_the_answer_is_read(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    work = Pass(store, TestJudge.that(lambda _item, _keys: "not an answer"))
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (done.rejected, done.judged) == (1, 0)
    assert len(usage(store)) == 1


# Reservations


def test_a_reservation_of_the_ceiling_is_held_while_a_call_is_under_way(store: Store) -> None:
    acme = store.tenant()
    seen: list[list[Decimal]] = []

    def send() -> Decision:
        seen.append(held(store))
        return decision()

    budget(store).metered(acme, FORGET_DECIDE, MODEL, send)
    assert seen == [[CEILING]]
    assert held(store) == []


@pytest.mark.parametrize(
    "error",
    [GatewayRefused(), AnswerRejected(billed=True), RuntimeError(), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_a_reservation_is_released_whatever_is_raised(store: Store, error: BaseException) -> None:
    acme = store.tenant()
    seen: list[list[Decimal]] = []

    def send() -> Decision:
        seen.append(held(store))
        raise error

    with pytest.raises(type(error)):
        budget(store).metered(acme, FORGET_DECIDE, MODEL, send)
    assert seen == [[CEILING]]
    assert held(store) == []


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
def test_a_reservation_counts_until_it_is_older_than_120_seconds(
    store: Store, age: timedelta, counts: bool
) -> None:
    acme = store.tenant()
    reservation(store, acme, TODAY - age)
    assert fits(budget(store, cap=0.01), acme) is not counts
    assert fits(budget(store, cap=0.02), acme)


def test_a_reservation_counts_at_what_it_holds(store: Store) -> None:
    acme = store.tenant()
    reservation(store, acme, TODAY, Decimal("0.5"))
    assert not fits(budget(store, cap=0.509), acme)
    assert fits(budget(store, cap=0.51), acme)


def test_releasing_lets_go_of_its_own_reservation_alone(store: Store) -> None:
    acme = store.tenant()
    reservation(store, acme, TODAY)
    call(budget(store), acme)
    assert held(store) == [CEILING]


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

    def send() -> Decision:
        raise AnswerRejected(billed=True)

    purse = budget(store, cap=0.015)
    with pytest.raises(AnswerRejected):
        purse.metered(acme, FORGET_DECIDE, MODEL, send)
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
    assert (sent, usage(store), held(store)) == ([], [], [])
    purse.metered(acme, FORGET_DECIDE, MODEL, send)
    assert sent == [1]


# Failing closed


@pytest.mark.parametrize(
    "lost",
    ["SELECT ON llm_usage", "SELECT ON budget_reservations", "SELECT ON user_budgets"],
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
    assert (judge.calls, usage(store), held(store)) == (0, [], [])

    store.execute(f"GRANT {lost} TO forgetting_runtime")
    assert work.verdicts(store.partition()).judged == 1


def test_nothing_is_sent_when_the_reservation_cannot_be_written(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge)
    work.candidates(store.partition())
    store.execute("REVOKE INSERT ON budget_reservations FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert judge.calls == 0


def test_a_call_whose_usage_cannot_be_recorded_is_the_last_one(store: Store) -> None:
    acme = store.tenant()
    for _ in range(25):
        store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge)
    work.candidates(store.partition())
    store.execute("REVOKE INSERT ON llm_usage FROM forgetting_runtime")
    with pytest.raises(StoreRefused, match="42501"):
        work.verdicts(store.partition())
    assert judge.calls == 1
    assert held(store) == []


def test_the_runtime_role_can_neither_change_nor_delete_usage(store: Store) -> None:
    acme = store.tenant()
    call(budget(store), acme)
    for statement in ("UPDATE llm_usage SET cost_usd = 0", "DELETE FROM llm_usage"):
        with pytest.raises(StoreRefused, match="42501"), store.database.tenant(acme) as tx:
            tx.connection.exec_driver_sql(statement)
    assert [row["cost_usd"] for row in usage(store)] == [Decimal("0.00101")]


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
    all_tried = threading.Barrier(16)

    def reserve(_n: int) -> bool:
        try:
            with purse.reserved(acme, FORGET_DECIDE):
                all_tried.wait(20)
                return True
        except BudgetExceeded:
            all_tried.wait(20)
            return False

    assert sum(together(16, reserve)) == 5
    assert held(store) == []


def test_sixteen_threads_that_call_at_once_never_spend_past_the_cap(store: Store) -> None:
    acme = store.tenant()
    purse = budget(store, cap=0.05)

    def metered(_n: int) -> bool:
        try:
            call(purse, acme, decision("unpriced"))
        except BudgetExceeded:
            return False
        return True

    sent = together(16, metered)
    # Between recording and releasing a call counts twice, so fewer than five may have fitted.
    assert 1 <= sum(sent) == len(usage(store)) <= 5
    assert held(store) == []


class Spending(RuleBasedStateMachine):
    """Calls that begin, end, crash and expire, beside a ledger kept in Python."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.user_id = self.store.tenant(f"t{uuid4().hex[:10]}")
        self.now = TODAY
        self.cap = Decimal(0)
        self.spent: list[tuple[datetime, Decimal]] = []
        self.open: list[tuple[datetime, AbstractContextManager[None]]] = []
        self.crashed: list[tuple[datetime, AbstractContextManager[None]]] = []

    @initialize(cents=st.integers(0, 6), more=st.integers(0, 9))
    def set_cap(self, cents: int, more: int) -> None:
        self.cap = Decimal(cents) / 100 + Decimal(more) / 1000

    def purse(self) -> Budget:
        return budget(self.store, cap=float(self.cap), now=self.now)

    def counted(self) -> Decimal:
        """Spent and reserved, as the ledger has it."""
        since, alive = self.now - DAYS_30, self.now - 120 * SECOND
        spent = sum((usd for at, usd in self.spent if at >= since), Decimal(0))
        return spent + CEILING * sum(at >= alive for at, _ in self.open + self.crashed)

    @rule()
    def reserve(self) -> None:
        before = self.counted()
        reserved = self.purse().reserved(self.user_id, FORGET_DECIDE)
        try:
            reserved.__enter__()
        except BudgetExceeded:
            assert before + CEILING > self.cap
        else:
            self.open.append((self.now, reserved))
            assert self.counted() == before + CEILING <= self.cap

    @rule(cost=st.sampled_from([None, 0, 1, 10, 25]))
    def send(self, cost: int | None) -> None:
        """A whole metered call, of a cost in thousandths of a dollar, or of an unknown one."""
        before = self.counted()
        answer = decision("unpriced" if cost is None else MODEL, 1000 * (cost or 0), 0)
        try:
            call(self.purse(), self.user_id, answer)
        except BudgetExceeded:
            assert before + CEILING > self.cap
        else:
            assert before + CEILING <= self.cap
            usd = CEILING if cost is None else Decimal(cost) / 1000
            self.spent.append((self.now, usd))

    @rule(billed=st.booleans())
    def fail(self, billed: bool) -> None:
        def send() -> Decision:
            raise GatewayUnavailable(billed=billed)

        before = self.counted()
        try:
            self.purse().metered(self.user_id, FORGET_DECIDE, MODEL, send)
        except BudgetExceeded:
            assert before + CEILING > self.cap
        except GatewayUnavailable:
            assert before + CEILING <= self.cap
            if billed:
                self.spent.append((self.now, CEILING))

    @precondition(lambda self: self.open)
    @rule()
    def release(self) -> None:
        _, reserved = self.open.pop(0)
        reserved.__exit__(None, None, None)

    @precondition(lambda self: self.open)
    @rule()
    def crash(self) -> None:
        """The process of a call dies: nobody releases what it reserved."""
        self.crashed.append(self.open.pop())

    @rule(
        pause=st.sampled_from(
            [SECOND, 60 * SECOND, 120 * SECOND, 121 * SECOND, timedelta(days=10), DAYS_30]
        )
    )
    def wait(self, pause: timedelta) -> None:
        self.now += pause

    def teardown(self) -> None:
        for _, reserved in self.open + self.crashed:
            reserved.__exit__(None, None, None)


def test_however_calls_begin_end_crash_and_expire_spent_and_reserved_never_pass_the_cap(
    store: Store,
) -> None:
    class Here(Spending):
        pass

    Here.store = store
    run_state_machine_as_test(
        Here,
        settings=settings(
            deadline=None,
            max_examples=30,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
