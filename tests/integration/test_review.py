"""A person decides: what accepting and rejecting change, and when accepting is refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forgetting_assets import review
from resources.database import Database
from resources.errors import ReviewRefused
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    by_topic,
    record_edge,
    record_verdict,
    say,
    waiting_of,
)

NOW = TODAY + timedelta(hours=1)
MARK = "ZX81-MARKER"
KEYS = {"archive": "archive_older", "supersede": "supersede_older", "conflict": "conflict"}


@dataclass
class Case:
    """An open proposal on the older of two memories, and a decoy of the same tenant."""

    store: Store
    user_id: UUID
    older: UUID
    newer: UUID
    decoy: UUID
    proposal: UUID

    def accept(self) -> int:
        return review.accept(self.store.database, self.user_id, self.proposal, NOW)

    def reject(self) -> None:
        review.reject(self.store.database, self.user_id, self.proposal, NOW)

    def refused(self) -> str:
        """Why accepting is refused; the proposal as a whole is what it says."""
        with pytest.raises(ReviewRefused, match=str(self.proposal)) as refused:
            self.accept()
        assert MARK not in str(refused.value)
        return refused.value.reason

    @property
    def closures(self) -> list[str]:
        return [
            row["reason"]
            for row in self.store.rows(
                "SELECT reason FROM forgetting.closures WHERE proposal_id = :id", id=self.proposal
            )
        ]

    @property
    def row(self) -> dict[str, Any]:
        [row] = self.store.rows(
            "SELECT * FROM retention_proposals WHERE id = :id", id=self.proposal
        )
        return row

    def memory(self, memory_id: UUID) -> dict[str, Any]:
        [row] = self.store.rows("SELECT * FROM memories WHERE id = :id", id=memory_id)
        return row


def case(store: Store, action: str, slug: str = "acme", *, content: str = "content") -> Case:
    """What a pass left behind whose judge said ``action``."""
    user_id = store.tenant(slug)
    older, newer = store.pair(user_id, topic="judged")
    decoy = store.memory(user_id, topic="decoy", scope="elsewhere", age=5)
    for memory_id, text in ((older, f"{content} \u2028 old\n"), (newer, f"{content} new")):
        store.execute(
            """
            UPDATE memories SET content = :content, content_hash = :hash, tags = '["a", "b"]'
            WHERE id = :id
            """,
            id=memory_id,
            content=text,
            hash=hashlib.sha256(text.encode()).hexdigest(),
        )
    Pass(store, TestJudge.that(say(KEYS[action]))).run(store.partition(slug))
    [row] = store.rows(
        "SELECT id FROM retention_proposals WHERE user_id = :user_id AND status = 'proposed'",
        user_id=user_id,
    )
    return Case(store, user_id, older, newer, decoy, row["id"])


def changed(store: Store, before: list[dict[str, Any]]) -> dict[UUID, set[str]]:
    """Which columns of which memories differ from before."""
    was = {row["id"]: row for row in before}
    return {
        row["id"]: columns
        for row in store.rows("SELECT * FROM memories")
        if (columns := {name for name in row if row[name] != was[row["id"]][name]})
    }


def everything(store: Store) -> dict[str, list[str]]:
    return store.dump(
        "memories", "memory_edges", "memory_events", "retention_proposals", "evidence"
    )


# Accepting


def test_accepting_an_archive_archives_the_memory_and_touches_nothing_else(store: Store) -> None:
    one = case(store, "archive")
    before = store.rows("SELECT * FROM memories")
    assert one.accept() == 1
    assert changed(store, before) == {one.older: {"status", "updated_at"}}
    memory = one.memory(one.older)
    assert (memory["status"], memory["updated_at"], memory["valid_to"]) == ("archived", NOW, None)
    assert (one.row["status"], one.row["decided_at"]) == ("applied", NOW)
    assert store.rows("SELECT * FROM memory_edges") == []


def test_accepting_a_supersede_ends_the_older_memory_and_links_it_from_the_newer(
    store: Store,
) -> None:
    one = case(store, "supersede")
    before = store.rows("SELECT * FROM memories")
    assert one.accept() == 1
    assert changed(store, before) == {one.older: {"valid_to", "updated_at"}}
    memory = one.memory(one.older)
    assert (memory["status"], memory["updated_at"], memory["valid_to"]) == ("active", NOW, NOW)
    assert (one.row["status"], one.row["decided_at"]) == ("applied", NOW)
    [edge] = store.rows("SELECT * FROM memory_edges")
    assert (edge["from_id"], edge["to_id"]) == (one.newer, one.older)
    assert (edge["edge_type"], edge["user_id"]) == ("supersedes", one.user_id)
    assert (edge["created_by"], edge["created_at"]) == ("forgetting_review", NOW)


def test_accepting_a_conflict_records_the_review_and_changes_no_memory(store: Store) -> None:
    one = case(store, "conflict")
    before = store.dump("memories", "memory_edges", "memory_events")
    assert one.accept() == 0
    assert store.dump("memories", "memory_edges", "memory_events") == before
    assert (one.row["status"], one.row["decided_at"]) == ("applied", NOW)


@pytest.mark.parametrize("action", ["archive", "supersede"])
def test_br_15_an_applied_change_has_one_audit_row_with_ids_and_no_text(
    store: Store, action: str
) -> None:
    one = case(store, action, content=MARK)
    one.accept()
    [event] = store.rows("SELECT * FROM memory_events")
    assert (event["user_id"], event["memory_id"]) == (one.user_id, one.older)
    assert (event["event_kind"], event["actor_kind"]) == (action, "forgetting_review")
    assert event["created_at"] == NOW
    related = str(one.newer) if action == "supersede" else None
    assert event["payload"] == {"proposal_id": str(one.proposal), "related_memory_id": related}
    text = str(store.dump("memory_events", "memory_edges", "retention_proposals"))
    assert MARK not in text
    assert MARK in str(store.dump("memories"))


@pytest.mark.parametrize("action", ["archive", "supersede", "conflict"])
def test_an_accepted_proposal_cannot_be_decided_again(store: Store, action: str) -> None:
    one = case(store, action)
    one.accept()
    before = everything(store)
    assert one.refused() == "decided"
    with pytest.raises(ReviewRefused, match="applied on 2026-09-01 at 13:00 UTC"):
        one.reject()
    assert everything(store) == before


def test_br_39_two_accepts_within_a_second_are_both_applied(store: Store) -> None:
    acme = store.tenant()
    first, second = (
        store.memory(acme, topic=topic, scope=topic, age=90) for topic in ("first", "second")
    )
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    moment = NOW
    for memory_id in (first, second):
        [row] = store.rows("SELECT id FROM retention_proposals WHERE memory_id = :id", id=memory_id)
        assert review.accept(store.database, acme, row["id"], moment) == 1
        moment += timedelta(milliseconds=10)
    found = store.rows("SELECT id, status, updated_at FROM memories ORDER BY updated_at")
    assert [(row["id"], row["status"]) for row in found] == [
        (first, "archived"),
        (second, "archived"),
    ]
    assert len(store.rows("SELECT 1 FROM memory_events WHERE event_kind = 'archive'")) == 2


def test_several_memories_can_be_superseded_by_one(store: Store) -> None:
    acme = store.tenant()
    for n in range(3):
        store.memory(acme, topic="old", age=60 + n)
    newer = store.memory(acme, topic="new", age=5)

    def by_the_new(item: dict[str, Any], keys: list[str]) -> object:
        ref = next(n["ref"] for n in item["newer"] if n["topic"] == "new")
        return say(f"supersede_by:{ref}")(item, keys)

    Pass(store, TestJudge.that(by_topic({"old": by_the_new}))).run(store.partition())
    waiting = waiting_of(store, acme)
    assert len(waiting) == 3
    assert sum(review.accept(store.database, acme, row.id, NOW) for row in waiting) == 3
    edges = store.rows("SELECT from_id FROM memory_edges")
    assert [edge["from_id"] for edge in edges] == [newer] * 3
    ended = store.rows("SELECT 1 FROM memories WHERE valid_to = :now", now=NOW)
    assert len(ended) == 3


def test_a_supersede_whose_edge_exists_already_is_applied_without_a_change(store: Store) -> None:
    one = case(store, "supersede")
    record_edge(store, one.user_id, one.newer, one.older)
    before = store.dump("memories", "memory_edges", "memory_events")
    assert one.accept() == 0
    assert store.dump("memories", "memory_edges", "memory_events") == before
    assert (one.row["status"], one.row["decided_at"]) == ("applied", NOW)


@pytest.mark.parametrize("edge_type", ["updates", "extends", "derives"])
def test_an_edge_of_another_kind_does_not_stand_for_the_supersede(
    store: Store, edge_type: str
) -> None:
    one = case(store, "supersede")
    record_edge(store, one.user_id, one.newer, one.older, edge_type)
    assert one.accept() == 1
    kinds = store.rows("SELECT edge_type FROM memory_edges ORDER BY edge_type")
    assert [row["edge_type"] for row in kinds] == sorted(["supersedes", edge_type])


def test_an_edge_the_other_way_round_does_not_stand_for_the_supersede(store: Store) -> None:
    one = case(store, "supersede")
    record_edge(store, one.user_id, one.older, one.newer)
    assert one.accept() == 1


# Refusing


def set_column(assignment: str) -> Callable[[Store, UUID], None]:
    def change(store: Store, memory_id: UUID) -> None:
        statement = f"UPDATE memories SET {assignment} WHERE id = :id"
        assert store.execute(statement, id=memory_id, now=TODAY) == 1

    return change


CHANGES: dict[str, Callable[[Store, UUID], None]] = {
    "edited": set_column("content_hash = 'other', updated_at = :now"),
    "edited without a new time": set_column("content_hash = 'other'"),
    "touched": set_column("updated_at = :now"),
    "reviewed": set_column("last_reviewed_at = :now"),
    "archived": set_column("status = 'archived'"),
    "superseded": set_column("valid_to = :now"),
    "archived and superseded": set_column("status = 'archived', valid_to = :now"),
    "an event": set_column("memory_type = 'event'"),
    "a note": set_column("memory_type = 'note'"),
    "a commitment": set_column("memory_type = 'commitment'"),
    "a blocker": set_column("memory_type = 'blocker'"),
}


REASONS = {
    "archived": "gone",
    "superseded": "gone",
    "archived and superseded": "gone",
    "an event": "episodic",
    "a note": "episodic",
}


def require_closed(one: Case, changed: UUID, reason: str) -> None:
    """Accepting is refused for that reason, closes the proposal and changes nothing else."""
    kept = ("memories", "memory_edges", "memory_events", "evidence", "forgetting.decisions")
    before = one.store.dump(*kept)
    with pytest.raises(ReviewRefused, match=str(changed)) as refused:
        one.accept()
    assert refused.value.reason == reason
    assert "It is closed, which is not a rejection" in str(refused.value)
    assert MARK not in str(refused.value)
    assert one.store.dump(*kept) == before
    assert (one.row["status"], one.row["decided_at"]) == ("dismissed", None)
    assert one.closures == ["overtaken"]
    assert waiting_of(one.store, one.user_id) == []
    assert one.refused() == "decided"


@pytest.mark.parametrize("change", CHANGES)
def test_accepting_is_refused_and_the_proposal_closed_when_the_older_side_changed(
    store: Store, change: str
) -> None:
    for action in KEYS:
        one = case(store, action, action, content=MARK)
        CHANGES[change](store, one.older)
        require_closed(one, one.older, REASONS.get(change, "changed"))


@pytest.mark.parametrize("change", CHANGES)
def test_br_05_accepting_is_refused_and_the_proposal_closed_when_the_newer_side_changed(
    store: Store, change: str
) -> None:
    for action in ("supersede", "conflict"):
        one = case(store, action, action)
        CHANGES[change](store, one.newer)
        require_closed(one, one.newer, REASONS.get(change, "changed"))


def test_a_side_that_accepting_another_proposal_changed_names_that_proposal(store: Store) -> None:
    one = case(store, "supersede")
    other = record_verdict(store, one.user_id, one.newer, verdict="archive", proposal="proposed")
    assert review.accept(store.database, one.user_id, other, NOW) == 1
    with pytest.raises(ReviewRefused, match=f"by accepting proposal {other}") as refused:
        one.accept()
    assert refused.value.reason == "touched"
    assert one.closures == ["overtaken"]


@pytest.mark.parametrize("undone", [True, False])
def test_what_was_accepted_before_the_proposal_or_undone_did_not_touch_it(
    store: Store, undone: bool
) -> None:
    one = case(store, "supersede")
    other = record_verdict(store, one.user_id, one.newer, verdict="archive", proposal="proposed")
    review.accept(store.database, one.user_id, other, NOW)
    if undone:
        store.execute(
            "UPDATE retention_proposals SET status = 'dismissed' WHERE action = 'supersede'"
        )
        review.undo(store.database, one.user_id, other, NOW)
        store.execute(
            "UPDATE retention_proposals SET status = 'proposed' WHERE action = 'supersede'"
        )
        assert one.accept() == 1
    else:
        later = NOW + timedelta(hours=1)
        store.execute(
            "UPDATE retention_proposals SET created_at = :later WHERE id = :id",
            later=later,
            id=one.proposal,
        )
        assert one.refused() == "gone"


def test_a_supersede_by_a_memory_without_a_vector_is_refused_and_stays_open(store: Store) -> None:
    one = case(store, "supersede")
    [vector] = store.rows("SELECT embedding FROM memories WHERE id = :id", id=one.newer)
    store.execute("UPDATE memories SET embedding = NULL WHERE id = :id", id=one.newer)
    before = store.dump("memories", "retention_proposals", "forgetting.closures")
    assert one.refused() == "no_embedding"
    assert store.dump(*before) == before
    store.execute(
        "UPDATE memories SET embedding = CAST(:vector AS vector) WHERE id = :id",
        vector=vector["embedding"],
        id=one.newer,
    )
    assert one.accept() == 1


def test_a_supersede_of_a_memory_that_is_not_valid_yet_is_refused_and_stays_open(
    store: Store,
) -> None:
    one = case(store, "supersede")
    for valid_from, refused in ((NOW + timedelta(microseconds=1), True), (NOW, False)):
        store.execute(
            "UPDATE memories SET valid_from = :at WHERE id = :id", at=valid_from, id=one.older
        )
        if refused:
            before = everything(store)
            assert one.refused() == "not_yet"
            assert everything(store) == before
    assert one.accept() == 1


def test_an_archive_ends_no_time_so_it_may_be_of_a_memory_that_is_not_valid_yet(
    store: Store,
) -> None:
    one = case(store, "archive")
    store.execute("UPDATE memories SET valid_from = :at", at=NOW + timedelta(days=9))
    assert one.accept() == 1


def of_another_program(store: Store, user_id: UUID, memory_id: UUID) -> UUID:
    """An open proposal that no verdict of this pass stands behind."""
    id_ = record_verdict(store, user_id, memory_id, verdict="archive", proposal="proposed")
    assert store.execute("DELETE FROM forgetting.judged_verdicts WHERE id = :id", id=id_) == 1
    return id_


def test_a_proposal_of_another_program_is_listed_shown_and_rejected_but_not_accepted(
    store: Store,
) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    earlier = record_verdict(store, acme, memory, judged_at=TODAY - timedelta(days=3))
    id_ = of_another_program(store, acme, memory)
    before = everything(store)
    assert [row.id for row in waiting_of(store, acme)] == [id_]
    shown = review.show(store.database, acme, id_)
    assert [row.verdict for row in shown["earlier"]] == ["keep"], earlier
    review.require_open(store.database, acme, [id_])
    with pytest.raises(ReviewRefused, match="It stays open: reject it") as refused:
        review.accept(store.database, acme, id_, NOW)
    assert refused.value.reason == "no_verdict"
    assert everything(store) == before
    review.reject(store.database, acme, id_, NOW)
    assert waiting_of(store, acme) == []
    review.require_decided(store.database, acme, [id_])
    assert review.undo(store.database, acme, id_, NOW) == 0
    assert everything(store) == before, "it waits again"


@pytest.mark.parametrize("action", ["archive", "conflict"])
def test_what_is_no_supersede_needs_no_vector(store: Store, action: str) -> None:
    one = case(store, action)
    store.execute("UPDATE memories SET embedding = NULL")
    assert one.accept() == (action == "archive")


def test_an_archive_is_accepted_though_another_memory_or_the_newer_one_changed(
    store: Store,
) -> None:
    one = case(store, "archive")
    for memory_id in (one.newer, one.decoy):
        CHANGES["touched"](store, memory_id)
    assert one.accept() == 1


def test_br_05_a_supersede_is_gone_with_the_newer_memory_when_a_user_deletes_it(
    store: Store,
) -> None:
    one = case(store, "supersede")
    store.execute("DELETE FROM memories WHERE id = :id", id=one.newer)
    before = one.memory(one.older)
    with pytest.raises(ReviewRefused, match=str(one.proposal)):
        one.accept()
    assert one.memory(one.older) == before


def test_a_supersede_with_its_edge_is_not_applied_to_what_became_episodic(store: Store) -> None:
    one = case(store, "supersede")
    record_edge(store, one.user_id, one.newer, one.older)
    CHANGES["an event"](store, one.newer)
    require_closed(one, one.newer, "episodic")


@pytest.mark.parametrize("decide", [Case.accept, Case.reject], ids=["accept", "reject"])
def test_another_tenants_proposal_is_not_found(
    store: Store, decide: Callable[[Case], object]
) -> None:
    theirs = case(store, "archive", "other")
    mine = case(store, "archive")
    before = everything(store)
    foreign = Case(store, mine.user_id, mine.older, mine.newer, mine.decoy, theirs.proposal)
    unknown = Case(store, mine.user_id, mine.older, mine.newer, mine.decoy, uuid4())
    said = []
    for wrong in (foreign, unknown):
        with pytest.raises(ReviewRefused) as refused:
            decide(wrong)
        assert refused.value.reason == "unknown"
        said.append(str(refused.value).replace(str(wrong.proposal), "id"))
    assert said[0] == said[1], "a foreign id looks like one that does not exist"
    assert everything(store) == before
    decide(theirs)
    assert everything(store) != before


# Rejecting


@pytest.mark.parametrize("action", ["archive", "supersede", "conflict"])
def test_rejecting_records_the_no_and_changes_no_memory(store: Store, action: str) -> None:
    one = case(store, action)
    before = store.dump("memories", "memory_edges", "memory_events")
    one.reject()
    assert store.dump("memories", "memory_edges", "memory_events") == before
    assert (one.row["status"], one.row["decided_at"]) == ("rejected", NOW)
    for decide in (one.accept, one.reject):
        with pytest.raises(ReviewRefused, match="was rejected on 2026-09-01 at 13:00 UTC"):
            decide()
    assert (one.row["status"], one.row["decided_at"]) == ("rejected", NOW)


@pytest.mark.parametrize("change", ["edited", "archived", "an event", "a commitment"])
def test_a_proposal_that_cannot_be_accepted_can_be_rejected(store: Store, change: str) -> None:
    one = case(store, "supersede")
    CHANGES[change](store, one.older)
    one.reject()
    assert one.row["status"] == "rejected"


def test_what_is_dismissed_without_a_record_can_be_neither_accepted_nor_rejected(
    store: Store,
) -> None:
    one = case(store, "archive")
    store.execute("UPDATE retention_proposals SET status = 'dismissed'")
    for decide in (one.accept, one.reject):
        with pytest.raises(ReviewRefused, match="dismissed; when and why is not recorded") as said:
            decide()
        assert said.value.reason == "decided"
    assert (one.row["status"], one.row["decided_at"]) == ("dismissed", None)


# Listing and showing


def test_the_list_has_the_open_proposals_of_the_tenant_alone_with_both_topics(
    store: Store,
) -> None:
    other = case(store, "archive", "other")
    one = case(store, "supersede")
    [row] = waiting_of(store, one.user_id)
    assert (row.id, row.action, row.topic) == (one.proposal, "supersede", "judged")
    assert (row.memory_id, row.related_memory_id) == (one.older, one.newer)
    assert (row.related_topic, row.model, row.memory_type) == ("judged", "test-model", "fact")
    assert row.freshness == one.memory(one.older)["updated_at"], "BR-48: its age is shown"
    one.reject()
    assert waiting_of(store, one.user_id) == []
    assert [each.id for each in waiting_of(store, other.user_id)] == [other.proposal]


def queue(store: Store, user_id: UUID) -> dict[str, UUID]:
    """Open proposals of every kind, age and probability, by the topic of their memory."""
    made = {}
    for topic, action, type_, days, probability in (
        ("old", "archive", "fact", 80, 0.9),
        ("sure", "archive", "decision", 10, 0.99),
        ("sure too", "supersede", "fact", 20, 0.99),
        ("new", "conflict", "preference", 1, 0.61),
    ):
        memory = store.memory(user_id, topic=topic, memory_type=type_, age=100)
        related = None
        if action != "archive":
            related = store.memory(user_id, topic=f"{topic} related", memory_type=type_, age=90)
        made[topic] = record_verdict(
            store,
            user_id,
            memory,
            verdict=action,
            related=related,
            judged_at=TODAY - timedelta(days=days),
            proposal="proposed",
            probability=probability,
        )
    return made


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "none": ({}, ["sure too", "sure", "old", "new"]),
    "newest": ({"sort": "newest"}, ["new", "sure", "sure too", "old"]),
    "action": ({"action": "archive"}, ["sure", "old"]),
    "type": ({"memory_type": "fact"}, ["sure too", "old"]),
    "older": ({"older_than_days": 10}, ["sure too", "old"]),
    "younger": ({"younger_than_days": 10}, ["new"]),
    "older than ever": ({"older_than_days": 10**9}, []),
    "least": ({"min_probability": 0.9}, ["sure too", "sure", "old"]),
    "most": ({"max_probability": 0.9}, ["old", "new"]),
    "limit": ({"limit": 1}, ["sure too"]),
    "newest alone": ({"limit": 1, "sort": "newest"}, ["new"]),
    "no limit": ({"limit": None}, ["sure too", "sure", "old", "new"]),
    "all at once": (
        {"action": "archive", "memory_type": "fact", "older_than_days": 1, "min_probability": 0.9},
        ["old"],
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_the_list_has_what_passes_the_filters_and_counts_all_that_wait(
    store: Store, name: str
) -> None:
    """The surest first, of those the oldest; or the newest first."""
    acme, other = store.tenant(), store.tenant("other")
    queue(store, acme)
    queue(store, other)
    filters, expected = FILTERS[name]
    listing = review.list_open(store.database, acme, review.Filters(**filters), TODAY)
    assert [row.topic for row in listing.rows] == expected
    assert listing.counts == {"archive": 2, "conflict": 1, "supersede": 1}


def test_a_proposal_is_shown_in_any_status_with_the_text_of_both_sides(store: Store) -> None:
    one = case(store, "supersede")
    shown = review.show(store.database, one.user_id, one.proposal)
    assert shown["status"] == "proposed"
    assert shown["content"] == one.memory(one.older)["content"]
    assert shown["related_content"] == one.memory(one.newer)["content"]
    assert set(shown["probabilities"]) == {"keep_both", *KEYS.values()}
    one.reject()
    assert review.show(store.database, one.user_id, one.proposal)["status"] == "rejected"
    stranger = store.tenant("other")
    with pytest.raises(ReviewRefused) as refused:
        review.show(store.database, stranger, one.proposal)
    assert refused.value.reason == "unknown"


def test_the_similarity_shown_is_that_of_the_vectors_as_they_are_now(store: Store) -> None:
    one = case(store, "conflict")

    def similarity() -> object:
        return review.show(store.database, one.user_id, one.proposal)["similarity"]

    assert similarity() == pytest.approx(0.9)
    store.execute(
        "UPDATE memories SET embedding = (SELECT embedding FROM memories WHERE id = :older) "
        "WHERE id = :newer",
        older=one.older,
        newer=one.newer,
    )
    assert similarity() == pytest.approx(1.0)
    store.execute(
        "UPDATE forgetting.embedding_models SET embedding_model = 'another' WHERE memory_id = :id",
        id=one.newer,
    )
    assert similarity() is None, "vectors of two models have no cosine"
    store.execute("UPDATE forgetting.embedding_models SET embedding_model = 'another'")
    assert similarity() == pytest.approx(1.0)
    store.execute(
        "UPDATE memories SET embedding = array_fill(0, ARRAY[1536])::vector WHERE id = :id",
        id=one.newer,
    )
    assert similarity() is None, "a zero vector is like no other"
    store.execute("UPDATE memories SET embedding = NULL WHERE id = :id", id=one.newer)
    assert similarity() is None
    alone = case(store, "archive", "other")
    assert review.show(store.database, alone.user_id, alone.proposal)["similarity"] is None


def test_earlier_verdicts_on_the_memory_are_shown_with_what_became_of_them(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("other")
    older, newer = store.pair(acme)

    def judged(days: float, **given: Any) -> UUID:
        return record_verdict(store, acme, older, judged_at=TODAY - timedelta(days=days), **given)

    for n in range(9):
        judged(100 + n)
    judged(20, verdict="archive", proposal=None)
    judged(15, verdict="archive", proposal="rejected")
    expired = judged(10, verdict="archive", proposal="dismissed")
    store.execute(
        "INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at) "
        "VALUES (:user_id, :id, 'expired', now())",
        user_id=acme,
        id=expired,
    )
    one = judged(5, newer=newer, verdict="supersede", related=newer, proposal="proposed")
    judged(1, verdict="keep")
    record_verdict(store, acme, newer, judged_at=TODAY - timedelta(days=9))
    record_verdict(store, other, store.memory(other), judged_at=TODAY - timedelta(days=9))
    found = review.show(store.database, acme, one)["earlier"]
    assert len(found) == 10
    assert [(row.kind, row.verdict, row.status, row.closed) for row in found[:4]] == [
        ("single", "archive", "dismissed", "expired"),
        ("single", "archive", "rejected", None),
        ("single", "archive", None, None),
        ("single", "keep", "dismissed", None),
    ]
    assert [row.judged_at for row in found] == sorted((r.judged_at for r in found), reverse=True)


def test_what_was_decided_and_why_it_was_closed_is_shown_in_order(store: Store) -> None:
    one = case(store, "archive")

    def history() -> list[str]:
        return [
            row.what for row in review.show(store.database, one.user_id, one.proposal)["history"]
        ]

    assert history() == []
    one.accept()
    review.undo(store.database, one.user_id, one.proposal, NOW + timedelta(hours=1))
    CHANGES["reviewed"](store, one.older)
    with pytest.raises(ReviewRefused):
        review.accept(store.database, one.user_id, one.proposal, NOW + timedelta(hours=2))
    assert history() == ["accept", "undo", "overtaken"]


# Two at once


def outcome(decide: Callable[[], object]) -> str:
    try:
        decide()
    except ReviewRefused as refused:
        return refused.reason
    return "done"


@pytest.mark.parametrize("action", ["archive", "supersede", "conflict"])
def test_of_eight_reviewers_who_decide_at_once_exactly_one_does(store: Store, action: str) -> None:
    one = case(store, action)
    start = threading.Barrier(8)

    def decide(n: int) -> str:
        start.wait(10)
        return outcome(one.accept if n % 2 else one.reject)

    with ThreadPoolExecutor(8) as pool:
        found = sorted(pool.map(decide, range(8)))
    assert found == ["decided"] * 7 + ["done"]
    events = len(store.rows("SELECT 1 FROM memory_events"))
    accepted = one.row["status"] == "applied"
    assert events == int(accepted and action != "conflict")


@pytest.mark.parametrize("require", [review.require_open, review.require_decided])
def test_a_list_is_looked_at_in_any_order_beside_whoever_decides(
    store: Store, require: Callable[[Database, UUID, list[UUID]], None]
) -> None:
    """The rows of a list are locked one by one, so two would wait for each other without end."""
    acme = store.tenant()
    decided = require is review.require_decided
    ids = [
        record_verdict(store, acme, store.memory(acme), verdict="archive", proposal="proposed")
        for _ in range(2)
    ]
    if decided:
        for id_ in ids:
            review.reject(store.database, acme, id_, NOW)
    lock = review.QUERIES["lock_decided" if decided else "lock_proposal"]
    waits = """
        SELECT 1 FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND usename = :role
    """
    with ThreadPoolExecutor(1) as pool:
        with store.database.tenant(acme, exclusive=True) as tx:
            # As a pass does: under the tenant's lock, in an order of its own.
            tx.one(lock, id=ids[0])
            looking = pool.submit(require, store.database, acme, list(reversed(ids)))
            for _ in range(500):
                if store.rows(waits, role="forgetting_runtime") or looking.done():
                    break
                threading.Event().wait(0.01)
            tx.one(lock, id=ids[1])
        looking.result(10)


@pytest.mark.parametrize("keeps", [True, False], ids=["committed", "rolled back"])
def test_an_accept_waits_for_an_edit_that_is_under_way_and_reads_what_came_of_it(
    store: Store, keeps: bool
) -> None:
    one = case(store, "supersede")
    edit = store.owner.connect()
    with ThreadPoolExecutor(1) as pool:
        change = edit.begin()
        edit.execute(
            sa.text("UPDATE memories SET last_reviewed_at = now() WHERE id = :id"),
            {"id": one.newer},
        )
        accepting = pool.submit(outcome, one.accept)
        waits = """
            SELECT 1 FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND usename = :role
        """
        for _ in range(500):
            if store.rows(waits, role="forgetting_runtime") or accepting.done():
                break
            threading.Event().wait(0.01)
        assert not accepting.done(), "it waits for the row"
        change.commit() if keeps else change.rollback()
        assert accepting.result(10) == ("changed" if keeps else "done")
    edit.close()
    assert one.row["status"] == ("dismissed" if keeps else "applied")


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    action=st.sampled_from(sorted(KEYS)),
    decisions=st.lists(
        st.sampled_from(["accept", "reject", "edit older", "edit newer"]), min_size=2, max_size=6
    ),
)
@example(action="supersede", decisions=["edit newer", "accept", "reject"])
def test_whatever_is_tried_in_whatever_order_a_proposal_is_decided_once_and_as_it_was_seen(
    store: Store, action: str, decisions: list[str]
) -> None:
    one = case(store, action, f"t{uuid4().hex[:10]}", content=uuid4().hex)
    sides = {"edit older": one.older, "edit newer": one.newer}
    expected, moved = "proposed", set[str]()
    for decision in decisions:
        if decision in sides:
            store.execute(
                "UPDATE memories SET last_reviewed_at = now() WHERE id = :id", id=sides[decision]
            )
            moved.add(decision)
            continue
        matters = {"edit older"} if action == "archive" else set(sides)
        found = outcome(one.accept if decision == "accept" else one.reject)
        if expected != "proposed":
            assert found == "decided"
        elif decision == "accept" and moved & matters:
            assert found == "changed"
            expected = "dismissed"
        else:
            assert found == "done"
            expected = "applied" if decision == "accept" else "rejected"
        assert one.row["status"] == expected
    older = one.memory(one.older)
    assert (older["status"] == "archived") == (expected == "applied" and action == "archive")
    assert (older["valid_to"] is not None) == (expected == "applied" and action == "supersede")


def test_a_conflict_that_was_seen_and_resolved_by_retyping_stops_no_later_night(
    store: Store,
) -> None:
    acme = store.tenant()
    older, _ = store.pair(acme)
    work = Pass(store, TestJudge.that(say("conflict")))
    work.run(store.partition())
    (row,) = store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")
    assert review.accept(store.database, acme, row["id"], TODAY) == 0
    store.execute("UPDATE memories SET memory_type = 'note' WHERE id = :id", id=older)
    store.evidence(acme, age=90)
    later = Pass(store, now=TODAY + timedelta(days=1))
    tomorrow = store.partition(day=DAY + timedelta(days=1), now=later.now)
    later.run(tomorrow)
    assert later.sweep(tomorrow).archived == 1
