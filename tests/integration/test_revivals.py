"""The way back from the archive tier: one entry by its id, or the whole tier night by night."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgetting_assets.store import evidence, tier
from resources.errors import ForgettingError
from tests.support import DAY, TODAY, Pass, Store, make_policy

ONE_DAY = timedelta(days=1)


def archived(store: Store) -> set[UUID]:
    rows = store.rows("SELECT id FROM evidence WHERE archived_at IS NOT NULL")
    return {row["id"] for row in rows}


def hot(store: Store, user_id: UUID) -> set[UUID]:
    rows = store.rows("SELECT id FROM hot_evidence WHERE user_id = :id", id=user_id)
    return {row["id"] for row in rows}


def swept(store: Store, day: int = 0, batch: int = 500) -> None:
    """The sweep of a day after DAY."""
    now = TODAY + day * ONE_DAY
    work = Pass(store, policy=make_policy(sweep_batch=batch), now=now)
    work.sweep(store.partition(day=DAY + day * ONE_DAY, now=now))


def test_br_02_br_18_what_comes_back_is_byte_for_byte_what_was_archived(store: Store) -> None:
    acme = store.tenant()
    for n in range(5):
        store.evidence(acme, age=20 + n, content=f"{n} \u2028 ```")
    before = store.dump("evidence")
    swept(store)
    ids = archived(store)
    assert len(ids) == 5
    assert tier.unarchive(store.database, acme, list(ids), TODAY) == 5
    assert store.dump("evidence") == before
    assert hot(store, acme) == ids
    rows = store.rows("SELECT reason, archived_run_date FROM forgetting.revivals")
    assert rows == [{"reason": "asked", "archived_run_date": DAY}] * 5


def test_what_was_brought_back_stays_for_a_window_and_may_be_archived_again_after_it(
    store: Store,
) -> None:
    acme = store.tenant()
    entry = store.evidence(acme)
    swept(store)
    tier.unarchive(store.database, acme, [entry], TODAY)
    for day in range(8):
        swept(store, day)
        assert archived(store) == set(), day
    swept(store, 9)
    assert archived(store) == {entry}


def test_what_came_back_exactly_a_window_ago_still_stays(store: Store) -> None:
    acme = store.tenant()
    entry = store.evidence(acme)
    swept(store)
    tier.unarchive(store.database, acme, [entry], store.partition().as_of)
    swept(store, 7)
    assert archived(store) == set()
    swept(store, 8)
    assert archived(store) == {entry}


@pytest.mark.parametrize("other", ["hot", "unknown", "another tenant's"])
def test_one_id_that_is_not_archived_keeps_all_from_coming_back(store: Store, other: str) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    entry = store.evidence(acme)
    foreign = store.evidence(borea)
    swept(store)
    Pass(store).sweep(store.partition("borea"))
    ids = {
        "hot": store.evidence(acme, age=1),
        "unknown": uuid4(),
        "another tenant's": foreign,
    }
    before = store.dump("evidence", "forgetting.revivals")
    with pytest.raises(ForgettingError, match=str(ids[other])):
        tier.unarchive(store.database, acme, [entry, ids[other]], TODAY)
    assert store.dump("evidence", "forgetting.revivals") == before


def test_an_empty_selection_is_a_sentence(store: Store) -> None:
    with pytest.raises(ForgettingError, match="at least one"):
        tier.unarchive(store.database, store.tenant(), [], TODAY)


def test_under_unforget_the_tier_drains_batch_by_batch_what_was_archived_last_first(
    store: Store,
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    old = [store.evidence(acme, age=50 - n) for n in range(3)]
    late = [store.evidence(acme, age=6.5) for _ in range(2)]
    theirs = store.evidence(borea)
    before = store.dump("evidence")
    swept(store)
    Pass(store).sweep(store.partition("borea"))
    assert archived(store) == {*old, theirs}
    swept(store, 1)
    assert archived(store) == {*old, *late, theirs}

    policy = make_policy(sweep_batch=2)
    seen = []
    for day in range(2, 6):
        now = TODAY + day * ONE_DAY
        partition = store.partition(day=DAY + day * ONE_DAY, now=now)
        done = tier.revive(store.database, partition, policy, now)
        seen.append((done.revived, done.remaining))
    assert seen == [(2, 3), (2, 1), (1, 0), (0, 0)]
    assert archived(store) == {theirs}, "another tenant's tier is left alone"
    first = store.rows("SELECT evidence_id FROM forgetting.revivals ORDER BY revived_at LIMIT 2")
    assert {row["evidence_id"] for row in first} == set(late)
    tier.unarchive(store.database, borea, [theirs], TODAY)
    assert store.dump("evidence") == before


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_in_any_order_of_sweeps_and_revivals_no_entry_is_lost_or_changed(
    store: Store, seed: int
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    user_id = store.tenant(slug)
    random = Random(seed)
    for n in range(random.randint(1, 8)):
        store.evidence(user_id, age=random.choice([1, 5, 9, 30, 90]), content=f"entry {n}")
    query = (
        "SELECT id, session_id, kind, content, occurred_at, recorded_at, success_count, "
        "reinforcement_count, last_retrieved_at, last_outcome_at FROM evidence "
        "WHERE user_id = :id ORDER BY id"
    )
    before = store.rows(query, id=user_id)
    policy = make_policy(sweep_batch=random.choice([1, 3, 500]))
    for day in range(12):
        now = TODAY + day * ONE_DAY
        partition = store.partition(slug, DAY + day * ONE_DAY, now)
        there = [
            row["id"]
            for row in store.rows(
                "SELECT id FROM evidence WHERE user_id = :id AND archived_at IS NOT NULL",
                id=user_id,
            )
        ]
        match random.choice(["sweep", "sweep", "revive", "unarchive"]):
            case "sweep":
                tier.sweep(store.database, partition, policy, now)
            case "revive":
                tier.revive(store.database, partition, policy, now)
            case _ if there:
                tier.unarchive(store.database, user_id, random.sample(there, 1), now)
    assert store.rows(query, id=user_id) == before
    for row in before:
        assert (
            evidence.dereference(store.database, user_id, row["id"], TODAY).content
            == row["content"]
        )
