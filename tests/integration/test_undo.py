"""Undo: a decision is taken back exactly, or refused where something later stands on it."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgetting_assets import review
from resources.errors import InvariantViolated, ReviewRefused
from tests.support import DAY, TODAY, Pass, Store, TestJudge, by_topic, record_verdict, say

HOUR = timedelta(hours=1)
STORE = ("memories", "memory_edges", "retention_proposals")
"""What a decision changes, but for the audit trail and the decisions themselves."""


ACTIONS = ("archive", "supersede", "conflict")
ANSWERS = {
    "archive": say("archive"),
    "supersede": say("supersede_older"),
    "conflict": say("conflict"),
}


def proposed(store: Store, user_id: UUID, action: str, slug: str = "acme") -> dict[str, Any]:
    """The open proposal of an action, on a memory of its own."""
    scope = f"scope-{action}"
    if action == "archive":
        store.memory(user_id, topic=action, scope=scope)
    else:
        store.pair(user_id, topic=action, scope=scope)
    answers = by_topic(
        {
            "archive": say("archive"),
            "supersede": say("supersede_older"),
            "conflict": say("conflict"),
        }
    )
    Pass(store, TestJudge.that(answers)).run(store.partition(slug))
    [row] = store.rows(
        "SELECT * FROM retention_proposals WHERE status = 'proposed' AND action = :action "
        "AND user_id = :user_id",
        action=action,
        user_id=user_id,
    )
    return row


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("decide", [review.accept, review.reject], ids=["accept", "reject"])
def test_a_decision_that_is_undone_leaves_every_row_as_it_was(
    store: Store, action: str, decide: Any
) -> None:
    acme = store.tenant()
    row = proposed(store, acme, action)
    before = store.dump(*STORE)
    decide(store.database, acme, row["id"], TODAY + HOUR)
    assert store.dump(*STORE) != before
    changed = review.undo(store.database, acme, row["id"], TODAY + 2 * HOUR)
    assert changed == (decide is review.accept and action != "conflict")
    assert store.dump(*STORE) == before
    kinds = [e["event_kind"] for e in store.rows("SELECT event_kind FROM memory_events")]
    assert kinds == ([action, "revise"] if changed else [])
    rows = store.rows("SELECT decision FROM forgetting.decisions ORDER BY id")
    assert [each["decision"] for each in rows][-1] == "undo"


def test_what_was_undone_can_be_decided_and_undone_again(store: Store) -> None:
    acme = store.tenant()
    row = proposed(store, acme, "supersede")
    before = store.dump(*STORE)
    for n in range(3):
        assert review.accept(store.database, acme, row["id"], TODAY + (2 * n + 1) * HOUR) == 1
        assert review.undo(store.database, acme, row["id"], TODAY + (2 * n + 2) * HOUR) == 1
    assert store.dump(*STORE) == before
    review.reject(store.database, acme, row["id"], TODAY + 9 * HOUR)
    assert review.undo(store.database, acme, row["id"], TODAY + 10 * HOUR) == 0
    assert store.dump(*STORE) == before


def edited(store: Store, row: dict[str, Any]) -> None:
    store.execute(
        "UPDATE memories SET content_hash = 'x', updated_at = :at WHERE id = :id",
        at=TODAY + 2 * HOUR,
        id=row["memory_id"],
    )


def reviewed(store: Store, row: dict[str, Any]) -> None:
    store.execute(
        "UPDATE memories SET last_reviewed_at = :at WHERE id = :id",
        at=TODAY + 2 * HOUR,
        id=row["memory_id"],
    )


def replacement_gone(store: Store, row: dict[str, Any]) -> None:
    store.execute(
        "UPDATE memories SET status = 'archived' WHERE id = :id", id=row["related_memory_id"]
    )


def same_again(store: Store, row: dict[str, Any]) -> None:
    [memory] = store.rows("SELECT * FROM memories WHERE id = :id", id=row["memory_id"])
    store.memory(row["user_id"], memory["content"], age=0)


def edge_gone(store: Store, row: dict[str, Any]) -> None:
    store.execute("DELETE FROM memory_edges")


def another_is_open(store: Store, row: dict[str, Any]) -> None:
    record_verdict(
        store,
        row["user_id"],
        row["related_memory_id"],
        verdict="archive",
        proposal="proposed",
    )


LATER = {
    edited: "changed or reviewed",
    reviewed: "changed or reviewed",
    replacement_gone: "undo that first",
    same_again: "exactly the same",
    edge_gone: "edge",
    another_is_open: "is open",
}


@pytest.mark.parametrize("later", LATER, ids=lambda later: later.__name__)
def test_undo_is_refused_when_something_later_stands_on_the_decision(
    store: Store, later: Any
) -> None:
    acme = store.tenant()
    row = proposed(store, acme, "supersede")
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    later(store, row)
    before = store.dump(*STORE, "memory_events", "forgetting.decisions")
    with pytest.raises(ReviewRefused, match=LATER[later]) as refused:
        review.undo(store.database, acme, row["id"], TODAY + 3 * HOUR)
    assert refused.value.reason == "depends"
    assert store.dump(*STORE, "memory_events", "forgetting.decisions") == before


def test_only_a_decided_proposal_of_the_tenants_own_can_be_undone(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("other")
    row = proposed(store, acme, "archive")
    for user_id, id_ in ((acme, row["id"]), (other, row["id"]), (acme, uuid4())):
        with pytest.raises(ReviewRefused, match="no decided proposal") as refused:
            review.undo(store.database, user_id, id_, TODAY)
        assert refused.value.reason == "unknown"
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    with pytest.raises(ReviewRefused, match="no decided proposal"):
        review.undo(store.database, other, row["id"], TODAY + HOUR)
    review.undo(store.database, acme, row["id"], TODAY + HOUR)
    with pytest.raises(ReviewRefused, match="no decided proposal"):
        review.undo(store.database, acme, row["id"], TODAY + HOUR)


def test_what_an_older_release_decided_is_left_as_it_is(store: Store) -> None:
    acme = store.tenant()
    row = proposed(store, acme, "archive")
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    store.execute("DELETE FROM forgetting.decisions")
    with pytest.raises(ReviewRefused, match="older release"):
        review.undo(store.database, acme, row["id"], TODAY + HOUR)


@pytest.mark.parametrize("action", ["archive", "supersede"])
@pytest.mark.parametrize("memory_type", ["event", "commitment", "blocker"])
def test_a_memory_of_another_type_now_is_restored_and_proposed_for_nothing(
    store: Store, memory_type: str, action: str
) -> None:
    """What else would stop the tenant for good: an episodic memory that a judge ended."""
    acme = store.tenant()
    row = proposed(store, acme, action)
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    store.execute(
        "UPDATE memories SET memory_type = :type WHERE id = :id",
        type=memory_type,
        id=row["memory_id"],
    )
    assert review.undo(store.database, acme, row["id"], TODAY + 2 * HOUR) == 1
    [memory] = store.rows(
        "SELECT status, valid_to FROM memories WHERE id = :id", id=row["memory_id"]
    )
    [after] = store.rows("SELECT status, decided_at FROM retention_proposals")
    assert (memory, after) == (
        {"status": "active", "valid_to": None},
        {"status": "dismissed", "decided_at": None},
    )
    assert store.rows("SELECT reason FROM forgetting.closures") == [{"reason": "overtaken"}]
    Pass(store).run(store.partition())


@pytest.mark.parametrize("action", ["archive", "supersede"])
@pytest.mark.parametrize("memory_type", ["event", "note"])
def test_what_was_filed_as_episodic_stops_the_pass_until_the_named_proposal_is_undone(
    store: Store, memory_type: str, action: str
) -> None:
    """Also where nothing else could be undone: what took its place ended, its edge went."""
    acme = store.tenant()
    row = proposed(store, acme, action)
    [before] = store.rows("SELECT * FROM memories WHERE id = :id", id=row["memory_id"])
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    filed = {"memory_type": memory_type, "topic": "filed", "updated_at": TODAY + 2 * HOUR}
    store.execute(
        "UPDATE memories SET memory_type = :memory_type, topic = :topic, updated_at = :updated_at, "
        "last_reviewed_at = :updated_at WHERE id = :id",
        **filed,
        id=row["memory_id"],
    )
    tomorrow = TODAY + 24 * HOUR
    later = store.partition(day=DAY + 24 * HOUR, now=tomorrow)
    with pytest.raises(InvariantViolated, match=f"applied: undo proposal {row['id']}"):
        Pass(store, now=tomorrow).run(later)
    if action == "supersede":
        replacement_gone(store, row)
        if memory_type == "note":
            edge_gone(store, row)
    assert review.undo(store.database, acme, row["id"], TODAY + 3 * HOUR) == 1
    [memory] = store.rows("SELECT * FROM memories WHERE id = :id", id=row["memory_id"])
    changed = {name for name in memory if memory[name] != before[name]}
    assert changed == {*filed, "last_reviewed_at", "search_tsv"}
    assert {name: memory[name] for name in filed} == filed
    assert store.rows("SELECT 1 FROM memory_edges") == []
    [after] = store.rows("SELECT status, decided_at FROM retention_proposals")
    assert after == {"status": "dismissed", "decided_at": None}
    assert store.rows("SELECT reason FROM forgetting.closures") == [{"reason": "overtaken"}]
    Pass(store, now=tomorrow).run(later)


@pytest.mark.parametrize("later", [edited, same_again], ids=lambda later: later.__name__)
def test_what_was_filed_as_episodic_with_another_text_or_a_twin_is_not_restored(
    store: Store, later: Any
) -> None:
    acme = store.tenant()
    row = proposed(store, acme, "supersede")
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    later(store, row)
    store.execute("UPDATE memories SET memory_type = 'note' WHERE id = :id", id=row["memory_id"])
    before = store.dump(*STORE)
    with pytest.raises(ReviewRefused, match=LATER[later]):
        review.undo(store.database, acme, row["id"], TODAY + 3 * HOUR)
    assert store.dump(*STORE) == before


def test_undoing_what_was_filed_as_episodic_takes_back_only_what_accepting_did(
    store: Store,
) -> None:
    acme = store.tenant()
    row = proposed(store, acme, "archive")
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    ended = TODAY + 2 * HOUR
    store.execute(
        "UPDATE memories SET memory_type = 'note', valid_to = :ended WHERE id = :id",
        ended=ended,
        id=row["memory_id"],
    )
    review.undo(store.database, acme, row["id"], TODAY + 3 * HOUR)
    [memory] = store.rows(
        "SELECT status, valid_to FROM memories WHERE id = :id", id=row["memory_id"]
    )
    assert memory == {"status": "active", "valid_to": ended}


def test_of_a_batch_only_its_own_decision_is_undone(store: Store) -> None:
    acme = store.tenant()
    mine, others = uuid4(), uuid4()
    id_ = proposed(store, acme, "archive")["id"]
    review.accept(store.database, acme, id_, TODAY + HOUR, mine)
    review.undo(store.database, acme, id_, TODAY + 2 * HOUR, mine)
    review.reject(store.database, acme, id_, TODAY + 3 * HOUR, others)
    before = store.dump(*STORE, "forgetting.decisions")
    with pytest.raises(ReviewRefused, match="decided elsewhere") as refused:
        review.undo(store.database, acme, id_, TODAY + 4 * HOUR, mine)
    assert refused.value.reason == "decided"
    assert store.dump(*before) == before


def test_one_of_several_that_the_same_memory_supersedes_is_undone_while_the_others_wait(
    store: Store,
) -> None:
    acme = store.tenant()
    newer = store.memory(acme, age=5)
    first, second = (
        record_verdict(
            store,
            acme,
            store.memory(acme),
            verdict="supersede",
            related=newer,
            proposal="proposed",
        )
        for _ in range(2)
    )
    # The judge saw the newer one too, which record_verdict does not write down.
    store.execute(
        "UPDATE forgetting.judged_verdicts AS v SET related_content_hash = m.content_hash, "
        "related_freshness = m.updated_at FROM memories AS m WHERE m.id = v.related_memory_id"
    )
    before = store.dump(*STORE)
    assert review.accept(store.database, acme, first, TODAY + HOUR) == 1
    assert review.undo(store.database, acme, first, TODAY + 2 * HOUR) == 1
    assert store.dump(*STORE) == before
    assert review.accept(store.database, acme, second, TODAY + 3 * HOUR) == 1


def test_the_runtime_role_can_remove_no_other_edge(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("other")
    row = proposed(store, acme, "supersede")
    review.accept(store.database, acme, row["id"], TODAY + HOUR)
    store.execute("UPDATE memory_edges SET created_by = 'somebody'")
    with store.database.tenant(acme) as tx:
        assert tx.one(review.QUERIES["remove_edge"], id=row["id"]).removed == 0
    store.execute("UPDATE memory_edges SET created_by = 'forgetting_review'")
    with store.database.tenant(other) as tx:
        assert tx.first(review.QUERIES["remove_edge"], id=row["id"]) is None
    assert len(store.rows("SELECT 1 FROM memory_edges")) == 1


def test_decisions_of_one_batch_are_found_last_first(store: Store) -> None:
    acme = store.tenant()
    batch = uuid4()
    rows = [proposed(store, acme, action) for action in ("archive", "supersede")]
    for n, row in enumerate(rows):
        review.accept(store.database, acme, row["id"], TODAY + n * HOUR, batch)
    assert review.of_batch(store.database, acme, batch) == [row["id"] for row in reversed(rows)]
    with pytest.raises(ReviewRefused, match="no decisions"):
        review.of_batch(store.database, acme, uuid4())


def test_what_was_undone_or_decided_again_is_no_longer_of_its_batch(store: Store) -> None:
    acme = store.tenant()
    first, again = uuid4(), uuid4()
    ids = [proposed(store, acme, action)["id"] for action in ("archive", "supersede")]
    for n, id_ in enumerate(ids):
        review.accept(store.database, acme, id_, TODAY + n * HOUR, first)
    review.undo(store.database, acme, ids[0], TODAY + 3 * HOUR)
    assert review.of_batch(store.database, acme, first) == [ids[1]]
    review.reject(store.database, acme, ids[0], TODAY + 4 * HOUR, again)
    assert review.of_batch(store.database, acme, first) == [ids[1]]
    assert review.of_batch(store.database, acme, again) == [ids[0]]


@settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_whatever_is_decided_and_undone_the_store_is_that_of_the_decisions_that_stand(
    store: Store, seed: int
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    user_id = store.tenant(slug)
    random = Random(seed)
    rows = [
        proposed(store, user_id, action, slug) for action in ("archive", "supersede", "conflict")
    ]
    first = {table: sorted(lines) for table, lines in store.dump(*STORE).items()}
    standing: dict[UUID, str] = {}
    for n in range(10):
        row, now = random.choice(rows), TODAY + (n + 1) * HOUR
        if row["id"] in standing:
            review.undo(store.database, user_id, row["id"], now)
            del standing[row["id"]]
        else:
            decide = random.choice([review.accept, review.reject])
            decide(store.database, user_id, row["id"], now)
            standing[row["id"]] = decide.__name__
    for id_ in list(standing):
        review.undo(store.database, user_id, id_, TODAY + 20 * HOUR)
    assert {table: sorted(lines) for table, lines in store.dump(*STORE).items()} == first
