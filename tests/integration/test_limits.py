"""What bounds a judging: calls under way, the token rate, the queue of proposals, the budgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from pydantic import PrivateAttr

from forgetting_assets.judging.batching import Batch
from forgetting_assets.store import tenants
from resources.errors import AnswerRejected, GatewayRefused, GatewayUnavailable
from resources.gateway import Decision, JevGateway, Questions
from tests.fake_jev import MODEL as JEV_MODEL
from tests.fake_jev import FakeJev
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    block_of,
    by_topic,
    make_policy,
    say,
)

SECONDS = 30
"""How long a test waits for what must happen; it fails instead of hanging."""


def topics(store: Store, judged: bool = True) -> list[int]:
    """The numbers of the memories that have a verdict, or have none."""
    rows = store.rows(
        "SELECT m.topic FROM memories AS m WHERE :judged = EXISTS(SELECT 1 FROM "
        "forgetting.judged_verdicts AS v WHERE v.memory_id = m.id)",
        judged=judged,
    )
    return sorted(int(row["topic"]) for row in rows)


def singles(store: Store, number: int, slug: str = "acme") -> None:
    """A tenant with stale memories, each in a scope of its own."""
    acme = store.tenant(slug)
    for n in range(number):
        store.memory(acme, age=90 - n / 10, scope=f"scope-{n}", topic=str(n))


class Together(TestJudge):
    """A judge that answers only once ``number`` calls are under way at the same time."""

    @classmethod
    def of(cls, number: int) -> Together:
        judge = cls()
        meeting = threading.Barrier(number)

        def meet(_call: int) -> None:
            meeting.wait(SECONDS)

        judge._before = meet
        return judge


LOCK = threading.Lock()


class Counting(TestJudge):
    """A judge that remembers how many calls were under way at once."""

    _under_way: int = PrivateAttr(default=0)
    _most: int = PrivateAttr(default=0)

    @property
    def most(self) -> int:
        """The most calls that were ever under way at once."""
        return self._most

    def decide(self, state: str, questions: Questions) -> Decision:
        with LOCK:
            self._under_way += 1
            self._most = max(self._most, self._under_way)
        try:
            return super().decide(state, questions)
        finally:
            with LOCK:
                self._under_way -= 1


# Calls under way


def test_as_many_calls_are_under_way_as_are_allowed(store: Store) -> None:
    singles(store, 12)
    # Each four of the calls wait for each other: with fewer at once this would never end.
    work = Pass(store, Together.of(4), make_policy(batch_items=1, calls_in_flight=4))
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert (done.judged, done.calls, done.left) == (12, 12, 0)
    assert topics(store) == list(range(12))


@pytest.mark.parametrize("allowed", [1, 3])
def test_no_more_calls_are_under_way_than_are_allowed(store: Store, allowed: int) -> None:
    singles(store, 20)
    judge = Counting()
    work = Pass(store, judge, make_policy(batch_items=1, calls_in_flight=allowed))
    work.candidates(store.partition())
    assert work.verdicts(store.partition()).judged == 20
    assert 1 <= judge.most <= allowed


def test_many_calls_at_once_over_http_judge_every_item_once_and_pay_for_each_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    singles(store, 50)
    monkeypatch.setenv("JEV_API_KEY", "key")
    with FakeJev() as server:
        gateway = JevGateway(base_url=server.url, model=JEV_MODEL)
        work = Pass(store, gateway, make_policy(batch_items=3, calls_in_flight=8))
        work.candidates(store.partition())
        done = work.verdicts(store.partition())
        gateway.close()
        assert (done.judged, done.calls) == (50, len(server.calls)) == (50, 17)
    assert topics(store) == list(range(50))
    assert store.rows("SELECT count(*) AS n FROM llm_usage") == [{"n": 17}]
    assert store.rows("SELECT * FROM forgetting.calls_under_way") == []


@contextmanager
def meeting(number: int) -> Iterator[threading.Barrier]:
    barrier = threading.Barrier(number)
    yield barrier
    barrier.abort()


@pytest.mark.parametrize(
    "error",
    [GatewayRefused(), GatewayUnavailable(retry_after=1e6)],
    ids=lambda error: type(error).__name__,
)
def test_what_is_under_way_when_judging_stops_is_still_written_down(
    store: Store, error: Exception
) -> None:
    singles(store, 40)
    answered: list[int] = []

    with meeting(3) as barrier:

        class OneFails(TestJudge):
            def decide(self, state: str, questions: Questions) -> Decision:
                number = int(block_of(state)["items"][0]["memory"]["topic"])
                if number < 3:
                    barrier.wait(SECONDS)  # all three are under way, and then one of them fails
                if number == 0:
                    raise error
                answered.append(number)
                return super().decide(state, questions)

        work = Pass(store, OneFails(), make_policy(batch_items=1, calls_in_flight=3))
        work.candidates(store.partition())
        if isinstance(error, GatewayRefused):
            with pytest.raises(GatewayRefused):
                work.verdicts(store.partition())
        else:
            assert work.verdicts(store.partition()).left == 40 - len(answered)
    # Those that came back before the failure did may have made room for a few more.
    assert {1, 2} <= set(answered) < set(range(40))
    assert topics(store) == sorted(answered), "they are paid for"
    assert store.rows("SELECT count(*) AS n FROM llm_usage") == [{"n": len(answered)}]


def test_an_opt_in_withdrawn_while_calls_are_under_way_stops_before_the_next_send(
    store: Store,
) -> None:
    singles(store, 9)
    with meeting(3) as barrier:

        def withdraw(_call: int) -> None:
            if barrier.wait(SECONDS) == 0:
                tenants.consent(store.database, "acme", judgment=False)
            barrier.wait(SECONDS)

        judge = TestJudge.that(say("keep"), before=withdraw)
        work = Pass(store, judge, make_policy(batch_items=1, calls_in_flight=3))
        work.candidates(store.partition())
        done = work.verdicts(store.partition())
    assert (judge.calls, done.judged, done.left) == (3, 3, 6)
    assert done.stopped is not None
    assert "opted in" in done.stopped


def test_a_broken_judge_is_found_with_many_calls_under_way(store: Store) -> None:
    singles(store, 40)
    judge = TestJudge.that(lambda _item, _keys: {"type": "choice"})
    work = Pass(store, judge, make_policy(batch_items=1, calls_in_flight=4))
    work.candidates(store.partition())
    with pytest.raises(AnswerRejected, match="3 calls in a row"):
        work.verdicts(store.partition())
    assert judge.calls <= 3 + 3, "those that had been sent when the third came back"


# The token rate


def test_all_runs_wait_for_the_rate_that_they_share(store: Store) -> None:
    singles(store, 6)
    work = Pass(store, TestJudge(), make_policy(batch_items=1), tokens_per_minute=1000)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert done.judged == 6
    waited = (work.clock.now() - work.now).total_seconds()
    sent = [batch_tokens(state, questions) for state, questions in asked(work.judge)]
    # All but the last were to be over before the last was sent, less what was saved up before.
    assert waited == pytest.approx(60 * sum(sent[:-1]) / 1000 - 10, abs=1)


def asked(judge: object) -> list[tuple[str, Questions]]:
    assert isinstance(judge, TestJudge)
    return list(zip(judge.states, judge._questions, strict=True))


def batch_tokens(state: str, questions: Questions) -> int:
    return Batch((), state, {key: dict(value) for key, value in questions.items()}).tokens


def test_a_rate_that_is_taken_for_too_long_leaves_the_rest_to_the_next_run(store: Store) -> None:
    singles(store, 6)
    work = Pass(store, TestJudge(), make_policy(batch_items=1), tokens_per_minute=100)
    work.candidates(store.partition())
    done = work.verdicts(store.partition())
    assert 0 < done.judged < 6
    assert done.left == 6 - done.judged
    assert done.stopped is not None
    assert "FORGETTING_TOKENS_PER_MINUTE" in done.stopped
    assert store.rows("SELECT * FROM budget_reservations") == []


# The queue of proposals


def test_br_32_at_the_ceiling_of_open_proposals_nothing_is_judged_and_nothing_is_spent(
    store: Store,
) -> None:
    singles(store, 8)
    ends = TestJudge.that(say("archive"))
    policy = make_policy(single_cap=5, open_proposals=5)
    assert Pass(store, ends, policy).run(store.partition()).open_in_all == 5
    tomorrow = TODAY + timedelta(days=1)
    next_day = store.partition(day=DAY + timedelta(days=1), now=tomorrow)
    work = Pass(store, TestJudge.that(say("archive")), policy, now=tomorrow)
    work.candidates(next_day)
    done = work.verdicts(next_day)
    assert (done.items, done.left, done.calls) == (3, 3, 0)
    assert done.stopped is not None
    assert "forgetting review" in done.stopped
    assert "FORGETTING_OPEN_PROPOSALS" in done.stopped
    assert store.rows("SELECT count(*) AS n FROM llm_usage") == [{"n": 1}]
    assert work.proposals(next_day).written == 0

    wider = Pass(store, TestJudge(), make_policy(single_cap=5, open_proposals=6), now=tomorrow)
    assert wider.verdicts(next_day).judged == 3


def test_br_32_another_tenants_queue_does_not_count(store: Store) -> None:
    singles(store, 3)
    singles(store, 2, slug="other")
    policy = make_policy(open_proposals=3)
    Pass(store, TestJudge.that(say("archive")), policy).run(store.partition())
    done = Pass(store, TestJudge(), policy)
    done.candidates(store.partition("other"))
    assert done.verdicts(store.partition("other")).judged == 2


# The deployment's budget


def test_an_exhausted_deployment_ends_a_tenants_pass_cleanly_with_what_was_judged(
    store: Store,
) -> None:
    singles(store, 4)
    singles(store, 4, slug="other")
    policy = make_policy(batch_items=1)
    first = Pass(store, TestJudge(), policy, deployment_cap_usd=0.0145)
    first.candidates(store.partition())
    assert first.verdicts(store.partition()).judged == 4
    second = Pass(store, TestJudge(), policy, deployment_cap_usd=0.0145)
    second.candidates(store.partition("other"))
    done = second.verdicts(store.partition("other"))
    assert (done.judged, done.left) == (1, 3)
    assert done.stopped is not None
    assert "FORGETTING_DEPLOYMENT_BUDGET_USD" in done.stopped
    assert second.proposals(store.partition("other")).written == 1


# Progress


def test_progress_after_each_call_has_counts_and_spend_and_nothing_else(store: Store) -> None:
    singles(store, 5)
    answers = by_topic({"3": lambda _item, _keys: None})
    work = Pass(store, TestJudge.that(answers), make_policy(batch_items=2))
    work.candidates(store.partition())
    work.verdicts(store.partition())
    assert work.lines == [
        "2 items judged, 3 left, 1 calls, 0.0010 US dollars",
        "3 items judged, 1 left, 2 calls, 0.0020 US dollars",
        "4 items judged, 0 left, 3 calls, 0.0030 US dollars",
    ]
