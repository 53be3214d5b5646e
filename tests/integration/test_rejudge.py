"""Asking again on purpose: --rejudge, and that nothing else asks again."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from forgetting_assets import review
from resources.errors import GatewayRefused
from tests.support import DAY, TODAY, Pass, Store, TestJudge, make_policy, say

LATER = TODAY + timedelta(hours=3)


def statuses(store: Store, memory_id: UUID) -> list[tuple[str, str]]:
    """The action and status of each proposal on a memory, oldest first."""
    rows = store.rows(
        "SELECT action, status FROM retention_proposals WHERE memory_id = :id "
        "ORDER BY created_at, id",
        id=memory_id,
    )
    return [(row["action"], row["status"]) for row in rows]


def test_a_rejudged_partition_has_both_verdicts_and_the_newer_one_stands(store: Store) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    assert statuses(store, memory) == [("archive", "proposed")]

    judge = TestJudge.that(say("keep"))
    again = Pass(store, judge, now=LATER)
    again.candidates(store.partition())
    done = again.verdicts(store.partition(), rejudge=True)
    assert (done.judged, done.outcomes, judge.calls) == (1, {"keep": 1}, 1)
    again.proposals(store.partition())
    rows = store.rows("SELECT verdict, asking FROM forgetting.judged_verdicts ORDER BY asking")
    assert rows == [{"verdict": "archive", "asking": 1}, {"verdict": "keep", "asking": 2}]
    assert statuses(store, memory) == [("archive", "dismissed"), ("keep", "dismissed")]


def test_after_a_rejudging_the_partition_is_free_again(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    work = Pass(store)
    work.run(store.partition())
    work.verdicts(store.partition(), rejudge=True)
    assert isinstance(work.judge, TestJudge)
    paid = work.judge.calls
    before = store.dump("forgetting.judged_verdicts")
    work.run(store.partition())
    assert work.judge.calls == paid == 2
    assert store.dump("forgetting.judged_verdicts") == before


def test_a_rejudging_that_breaks_off_keeps_what_it_has_and_can_be_done_again(store: Store) -> None:
    acme = store.tenant()
    for n in range(4):
        store.memory(acme, age=60 + n, scope=str(n))
    policy = make_policy(batch_items=1)
    Pass(store, TestJudge(), policy).run(store.partition())

    def fail(call: int) -> None:
        if call == 3:
            raise GatewayRefused()

    broken = Pass(store, TestJudge.that(say("archive"), before=fail), policy, now=LATER)
    try:
        broken.verdicts(store.partition(), rejudge=True)
    except GatewayRefused:
        rows = store.rows("SELECT count(*) AS n FROM forgetting.judged_verdicts WHERE asking = 2")
        assert rows == [{"n": 2}]
    whole = Pass(store, TestJudge.that(say("archive")), policy, now=LATER + timedelta(hours=1))
    assert whole.verdicts(store.partition(), rejudge=True).judged == 4
    rows = store.rows(
        "SELECT asking, count(*) AS n FROM forgetting.judged_verdicts GROUP BY 1 ORDER BY 1"
    )
    assert [(row["asking"], row["n"]) for row in rows] == [(1, 4), (2, 2), (3, 4)]


def test_a_rejudging_does_not_open_again_what_a_human_rejected(store: Store) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    work = Pass(store, TestJudge.that(say("archive")))
    work.run(store.partition())
    [row] = store.rows("SELECT id FROM retention_proposals")
    review.reject(store.database, acme, row["id"], LATER)
    again = Pass(store, TestJudge.that(say("archive")), now=LATER + timedelta(hours=1))
    again.candidates(store.partition())
    again.verdicts(store.partition(), rejudge=True)
    written = again.proposals(store.partition())
    assert written.withheld == {"rejected": 1}
    assert statuses(store, memory) == [("archive", "rejected"), ("archive", "dismissed")]


def test_a_backfill_of_an_overlapping_partition_reuses_the_verdicts(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    store.pair(acme, scope="pairs")
    judge = TestJudge()
    tonight = Pass(store, judge)
    tonight.candidates(store.partition())
    tonight.verdicts(store.partition())
    paid = judge.calls
    earlier = store.partition(day=DAY - timedelta(days=3))
    tonight.candidates(earlier)
    done = tonight.verdicts(earlier)
    assert (done.items, done.reused, judge.calls) == (2, 2, paid)


def test_another_model_is_asked_anew(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    Pass(store).run(store.partition())
    other = TestJudge()
    other._model = "test-model-2"
    assert Pass(store, other).verdicts(store.partition()).judged == 1
