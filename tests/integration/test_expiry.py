"""A proposal that nobody decides expires, which is no rejection."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgetting_assets import review
from resources.errors import ReviewRefused
from tests.support import DAY, TODAY, Pass, Store, TestJudge, make_policy, record_verdict, say

MICROSECOND = timedelta(microseconds=1)


def proposed(store: Store, user_id: UUID, age: timedelta, status: str = "proposed") -> UUID:
    """A proposal of its own memory, created that long before TODAY."""
    made = record_verdict(
        store,
        user_id,
        store.memory(user_id, age=400),
        verdict="archive",
        judged_at=TODAY - age,
        proposal=status,
    )
    if status in ("applied", "rejected"):
        store.execute(
            "UPDATE retention_proposals SET decided_at = created_at WHERE id = :id", id=made
        )
    return made


def closures(store: Store, user_id: UUID) -> dict[UUID, dict[str, Any]]:
    return {
        row["proposal_id"]: row
        for row in store.rows(
            "SELECT * FROM forgetting.closures WHERE user_id = :user_id", user_id=user_id
        )
    }


def test_an_undecided_proposal_expires_after_its_days_and_not_at_them(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("other")
    days = timedelta(days=90)
    late = proposed(store, acme, days + MICROSECOND)
    in_time = proposed(store, acme, days)
    theirs = proposed(store, other, 2 * days)
    done = Pass(store).proposals(store.partition())
    assert (done.expired, done.withdrawn, done.written) == (1, 0, 0)
    assert done.open_in_all == 1
    [closed] = closures(store, acme).values()
    assert (closed["proposal_id"], closed["reason"]) == (late, "expired")
    assert closed["closed_at"] == TODAY
    status = {
        row["id"]: (row["status"], row["decided_at"])
        for row in store.rows("SELECT * FROM retention_proposals")
    }
    assert status[late] == ("dismissed", None), "a rejection has a time"
    assert status[in_time] == status[theirs] == ("proposed", None)
    assert store.rows("SELECT * FROM forgetting.decisions") == []


def test_the_days_are_a_setting_of_the_policy(store: Store) -> None:
    acme = store.tenant()
    late = proposed(store, acme, timedelta(days=3))
    work = Pass(store, policy=make_policy(proposal_days=2))
    assert work.proposals(store.partition()).expired == 1
    assert list(closures(store, acme)) == [late]
    assert work.proposals(store.partition()).expired == 0, "once"


def test_what_changed_meanwhile_is_overtaken_and_not_expired(store: Store) -> None:
    acme = store.tenant()
    late = proposed(store, acme, timedelta(days=100))
    store.execute("UPDATE memories SET content_hash = 'other'")
    done = Pass(store).proposals(store.partition())
    assert (done.expired, done.withdrawn) == (0, 1)
    assert closures(store, acme)[late]["reason"] == "overtaken"


def test_what_is_judged_anew_in_its_partition_is_closed_as_replaced(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    [first] = store.rows("SELECT id FROM retention_proposals")
    again = Pass(store, TestJudge.that(say("archive")))
    again.candidates(store.partition())
    again.verdicts(store.partition(), rejudge=True)
    done = again.proposals(store.partition())
    assert (done.withdrawn, done.written) == (1, 1)
    found = closures(store, acme)
    assert {id_: row["reason"] for id_, row in found.items()} == {first["id"]: "replaced"}


def test_an_expired_proposal_leaves_its_memory_settled_until_it_is_touched(store: Store) -> None:
    acme = store.tenant()
    memory = store.memory(acme, age=400)
    judge = TestJudge.that(say("archive"))
    Pass(store, judge).run(store.partition())
    assert judge.calls == 1
    later = TODAY + timedelta(days=91)
    partition = store.partition(day=DAY + timedelta(days=91), now=later)
    work = Pass(store, judge, now=later)
    assert work.run(partition).expired == 1
    assert judge.calls == 1, "it waited, and is settled as every dismissed one"
    later += timedelta(days=40)
    store.execute(
        "UPDATE memories SET updated_at = :at WHERE id = :id",
        at=later - timedelta(days=35),
        id=memory,
    )
    work = Pass(store, judge, now=later)
    done = work.run(store.partition(day=DAY + timedelta(days=131), now=later))
    assert judge.calls == 2
    assert done.proposed == {"archive": 1}, "an expiry is no rejection"


def test_an_expired_proposal_can_be_neither_decided_nor_undone(store: Store) -> None:
    acme = store.tenant()
    late = proposed(store, acme, timedelta(days=100))
    Pass(store).proposals(store.partition())
    for decide in (review.accept, review.reject):
        with pytest.raises(ReviewRefused, match="dismissed as expired on 2026-09-01") as refused:
            decide(store.database, acme, late, TODAY)
        assert refused.value.reason == "decided"
    with pytest.raises(ReviewRefused, match="no decided proposal"):
        review.undo(store.database, acme, late, TODAY)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    limit=st.integers(1, 120),
    made=st.lists(
        st.tuples(
            st.integers(0, 121),
            st.sampled_from([-MICROSECOND, timedelta(), MICROSECOND]),
            st.sampled_from(["proposed", "proposed", "applied", "rejected", "dismissed"]),
        ),
        min_size=1,
        max_size=8,
    ),
    on_the_edge=st.sampled_from([-MICROSECOND, timedelta(), MICROSECOND]),
)
def test_whatever_the_ages_exactly_the_undecided_ones_beyond_the_limit_expire(
    store: Store,
    limit: int,
    made: list[tuple[int, timedelta, str]],
    on_the_edge: timedelta,
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    user_id = store.tenant(slug)
    expected, status = set(), {}
    for days, nudge, before in [*made, (limit, on_the_edge, "proposed")]:
        age = max(timedelta(), timedelta(days=days) + nudge)
        id_ = proposed(store, user_id, age, before)
        status[id_] = before
        if before == "proposed" and age > timedelta(days=limit):
            expected.add(id_)
            status[id_] = "dismissed"
    work = Pass(store, policy=make_policy(proposal_days=limit))
    assert work.proposals(store.partition(slug)).expired == len(expected)
    found = closures(store, user_id)
    assert set(found) == expected
    assert {row["reason"] for row in found.values()} <= {"expired"}
    rows = store.rows(
        "SELECT id, status FROM retention_proposals WHERE user_id = :user_id", user_id=user_id
    )
    assert {row["id"]: row["status"] for row in rows} == status
