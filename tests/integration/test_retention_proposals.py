"""From verdicts to what waits for a human, and what the database itself refuses to hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from forgetting_assets import review
from forgetting_assets.store import tier
from forgetting_assets.store.proposals import WrittenProposals
from resources.budget import FORGET_DECIDE
from resources.errors import InvariantViolated, ReviewRefused, StoreRefused
from resources.policy import Policy
from tests.support import (
    DAY,
    TODAY,
    Answer,
    Pass,
    Store,
    TestJudge,
    ago,
    by_topic,
    choose,
    make_policy,
    record_verdict,
    say,
    vector,
)

HOUR = timedelta(hours=1)


def night(
    store: Store, answer: Answer, n: int = 0, *, slug: str = "acme", policy: Policy | None = None
) -> WrittenProposals:
    """The pass of the n-th day after DAY."""
    now = at(n)
    work = Pass(store, TestJudge.that(answer), policy or make_policy(), now=now)
    done: WrittenProposals = work.run(store.partition(slug, DAY + timedelta(days=n), now))
    return done


def at(n: int) -> datetime:
    """Noon of the n-th day after TODAY, when its pass runs."""
    return TODAY + timedelta(days=n)


def proposals(store: Store, **where: Any) -> list[dict[str, Any]]:
    """The proposals with these column values, oldest first."""
    condition = " AND ".join(f"{column} = :{column}" for column in where) or "TRUE"
    return store.rows(
        f"SELECT * FROM retention_proposals WHERE {condition} ORDER BY created_at, id", **where
    )


def proposal(store: Store, memory_id: UUID) -> dict[str, Any]:
    """The only proposal about a memory."""
    [row] = proposals(store, memory_id=memory_id)
    return row


def edit(store: Store, memory_id: UUID, when: datetime, content: str | None = None) -> None:
    """A user rewrites a memory."""
    content = content or f"edited {uuid4()}"
    changed = store.execute(
        "UPDATE memories SET content = :content, content_hash = :hash, updated_at = :now "
        "WHERE id = :id",
        content=content,
        hash=hashlib.sha256(content.encode()).hexdigest(),
        now=when,
        id=memory_id,
    )
    assert changed == 1


# Thresholds

AT_THRESHOLD = [
    ("archive", 0.85, "proposed"),
    ("archive", 0.8499999, "dismissed"),
    ("archive", 1.0, "proposed"),
    ("supersede", 0.85, "proposed"),
    ("supersede", 0.8499999, "dismissed"),
    ("conflict", 0.6, "proposed"),
    ("conflict", 0.5999999, "dismissed"),
    ("keep", 0.6, "dismissed"),
    ("keep", 1.0, "dismissed"),
]
KEYS = {
    "archive": "archive_older",
    "supersede": "supersede_older",
    "conflict": "conflict",
    "keep": "keep_both",
}


@pytest.mark.parametrize(("action", "probability", "status"), AT_THRESHOLD)
def test_a_verdict_at_its_threshold_is_proposed_and_one_below_it_is_dismissed(
    store: Store, action: str, probability: float, status: str
) -> None:
    older, _ = store.pair(store.tenant())
    done = night(store, say(KEYS[action], probability))
    row = proposal(store, older)
    assert (row["action"], row["probability"], row["status"]) == (action, probability, status)
    assert (done.written, done.proposed.total(), done.dismissed) == (
        1,
        int(status == "proposed"),
        int(status == "dismissed"),
    )


@pytest.mark.parametrize("side", ["single", "blocker"])
def test_singles_have_the_same_thresholds(store: Store, side: str) -> None:
    acme = store.tenant()
    key = "archive" if side == "single" else "conflict_with"
    memory_type = "fact" if side == "single" else "blocker"
    threshold = 0.85 if side == "single" else 0.6
    for topic in ("at", "below"):
        store.memory(acme, topic=topic, memory_type=memory_type, scope=topic)
        store.memory(acme, topic="newer", memory_type=memory_type, scope=topic, age=5)
    night(store, by_topic({"at": say(key, threshold), "below": say(key, threshold - 1e-9)}))
    found = store.rows(
        "SELECT m.topic, p.status FROM retention_proposals AS p "
        "INNER JOIN memories AS m ON m.id = p.memory_id ORDER BY m.topic"
    )
    assert found == [
        {"topic": "at", "status": "proposed"},
        {"topic": "below", "status": "dismissed"},
    ]


# 0.5 is the least that is most probable whatever the rest is.
PROBABILITIES = st.floats(0.5, 1.0) | st.sampled_from([0.5, 0.6, 0.85, 1.0])


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    verdicts=st.lists(st.tuples(st.sampled_from(sorted(KEYS)), PROBABILITIES), max_size=5),
    thresholds=st.tuples(PROBABILITIES, PROBABILITIES, PROBABILITIES),
)
@example(verdicts=[("archive", 0.7)], thresholds=(0.7, 0.7, 0.7))
def test_whatever_the_thresholds_exactly_the_verdicts_at_or_above_their_own_are_proposed(
    store: Store,
    verdicts: list[tuple[str, float]],
    thresholds: tuple[float, float, float],
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    for n in range(len(verdicts)):
        store.pair(acme, topic=str(n))
    policy = make_policy(
        archive_threshold=thresholds[0],
        supersede_threshold=thresholds[1],
        conflict_threshold=thresholds[2],
    )
    answers = {str(n): say(KEYS[action], p) for n, (action, p) in enumerate(verdicts)}
    night(store, by_topic(answers), slug=slug, policy=policy)
    floor = {"archive": thresholds[0], "supersede": thresholds[1], "conflict": thresholds[2]}
    found = Counter(
        (row["action"], row["probability"], row["status"]) for row in proposals(store, user_id=acme)
    )
    assert found == Counter(
        (action, p, "proposed" if p >= floor.get(action, 2) else "dismissed")
        for action, p in verdicts
    )


def test_keeps_and_unsure_verdicts_are_dismissed_with_their_action_and_whole_distribution(
    store: Store,
) -> None:
    acme = store.tenant()
    kept = store.memory(acme, topic="kept", scope="one")
    unsure = store.memory(acme, topic="unsure", scope="two")
    newer = store.memory(acme, topic="newer", scope="two", age=5)
    sure = store.memory(acme, topic="sure", scope="three")
    done = night(
        store,
        by_topic(
            {
                "kept": say("keep", 0.9),
                "unsure": say("supersede_by", 0.7),
                "sure": say("archive", 0.9),
            }
        ),
    )
    rows = {row["memory_id"]: row for row in proposals(store)}
    assert set(rows) == {kept, unsure, sure}
    for memory_id, action, related, probability, status in (
        (kept, "keep", None, 0.9, "dismissed"),
        (unsure, "supersede", newer, 0.7, "dismissed"),
        (sure, "archive", None, 0.9, "proposed"),
    ):
        row = rows[memory_id]
        assert (row["action"], row["related_memory_id"]) == (action, related)
        assert (row["probability"], row["status"]) == (probability, status)
        assert row["model"] == "test-model"
        assert row["decided_at"] is None
        assert row["created_at"] == TODAY
    assert rows[kept]["probabilities"] == pytest.approx({"keep": 0.9, "archive": 0.1})
    offered = rows[unsure]["probabilities"]
    [chosen] = [key for key in offered if key.startswith("supersede_by:")]
    assert offered == pytest.approx({"keep": 0.15, "archive": 0.15, chosen: 0.7})
    assert (done.written, done.dismissed, dict(done.proposed)) == (3, 2, {"archive": 1})


@pytest.mark.parametrize(
    ("key", "action", "names_newer"),
    [
        ("archive_older", "archive", False),
        ("supersede_older", "supersede", True),
        ("conflict", "conflict", True),
    ],
)
def test_a_pairs_verdict_is_on_the_older_and_names_the_newer(
    store: Store, key: str, action: str, names_newer: bool
) -> None:
    older, newer = store.pair(store.tenant())
    night(store, say(key))
    [row] = proposals(store)
    assert (row["memory_id"], row["action"], row["status"]) == (older, action, "proposed")
    assert row["related_memory_id"] == (newer if names_newer else None)


def test_a_proposal_has_the_id_of_its_verdict(store: Store) -> None:
    acme = store.tenant()
    for n in range(3):
        store.memory(acme, topic=str(n), scope=str(n))
    night(store, by_topic({"0": say("archive"), "1": say("archive", 0.6)}))
    ids = store.rows("SELECT id, memory_id FROM forgetting.judged_verdicts ORDER BY id")
    assert len(ids) == 3
    assert store.rows("SELECT id, memory_id FROM retention_proposals ORDER BY id") == ids


def test_a_partition_materialized_again_writes_nothing(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, topic="gone", scope="one")
    store.memory(acme, topic="kept", scope="two")
    store.pair(acme)
    answer = by_topic({"gone": say("archive")}, say("supersede_older"))
    assert night(store, answer).written == 3
    tables = ("retention_proposals", "forgetting.judged_verdicts", "llm_usage", "memories")
    before = store.dump(*tables)
    done = night(store, by_topic({}, say("archive_older", 0.99)))
    assert (done.written, done.withdrawn, done.dismissed) == (0, 0, 1)
    assert dict(done.proposed) == {"archive": 1, "supersede": 1}
    assert store.dump(*tables) == before


def test_br_17_the_pass_changes_no_byte_of_any_memory(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, topic="gone", age=400)
    store.pair(acme, scope="pairs")
    tables = ("memories", "memory_edges", "memory_events", "forgetting.embedding_models")
    before = store.dump(*tables)
    for n in range(3):
        night(store, by_topic({"gone": say("archive")}, say("supersede_older")), n)
    assert len(proposals(store, status="proposed")) == 2
    assert store.dump(*tables) == before


# Contradictions


@pytest.mark.parametrize(("supersede", "archive"), [(0.99, 0.9), (0.9, 0.99)])
def test_of_two_verdicts_that_contradict_each_other_the_surer_one_is_proposed(
    store: Store, supersede: float, archive: float
) -> None:
    acme = store.tenant()
    single = store.memory(acme, topic="single", age=90)
    newer = store.memory(acme, topic="newer", age=60)
    done = night(
        store,
        by_topic({"single": say("supersede_by", supersede), "newer": say("archive", archive)}),
    )
    rows = {row["memory_id"]: row for row in proposals(store)}
    surer, other = (single, newer) if supersede > archive else (newer, single)
    assert {id_: row["status"] for id_, row in rows.items()} == {surer: "proposed"}
    assert dict(done.withheld) == {"open": 1}

    # Nothing was settled: while the surer one is open the other waits, and then it comes up.
    waiting = night(store, say("keep"), 1)
    assert (waiting.written, dict(waiting.withheld)) == (0, {})
    review.reject(store.database, acme, rows[surer]["id"], at(1))
    again = night(store, say("keep"), 2)
    assert again.written == 1
    assert proposal(store, other)["status"] == "proposed", "the verdict it had, at no cost"


def test_verdicts_that_do_not_contradict_are_proposed_together(store: Store) -> None:
    acme = store.tenant()
    for scope in ("one", "two"):
        store.memory(acme, topic="single", age=90, scope=scope)
        store.memory(acme, topic="newer", age=5, scope=scope)
    done = night(store, by_topic({"single": say("supersede_by")}))
    assert dict(done.proposed) == {"supersede": 2}
    assert not done.withheld


def test_br_37_five_stale_singles_and_one_correction_make_five_supersede_proposals(
    store: Store,
) -> None:
    acme = store.tenant()
    # Each is near the correction, below the pairs' floor, and unlike the other four.
    stale = [
        store.memory(
            acme,
            f"The VPN needs no MFA ({n})",
            age=60 + n,
            embedding=[0.75, *(0.66 if n == axis else 0.0 for axis in range(5)), *([0.0] * 1530)],
        )
        for n in range(5)
    ]
    correction = store.memory(acme, "The VPN needs MFA", age=5, embedding=vector(0))

    def superseded(item: dict[str, Any], keys: list[str]) -> object:
        ref = next(n["ref"] for n in item["newer"] if n["content"] == "The VPN needs MFA")
        return choose(f"supersede_by:{ref}", keys)

    done = night(store, superseded)
    rows = proposals(store, status="proposed")
    assert {row["memory_id"] for row in rows} == set(stale)
    assert {(row["action"], row["related_memory_id"]) for row in rows} == {
        ("supersede", correction)
    }
    assert dict(done.proposed) == {"supersede": 5}
    for row in rows:
        assert review.accept(store.database, acme, row["id"], at(1)) == 1


# Withdrawing


def superseded_by_another(store: Store, memory_id: UUID) -> None:
    store.execute("UPDATE memories SET valid_to = :now WHERE id = :id", now=TODAY, id=memory_id)


def archived(store: Store, memory_id: UUID) -> None:
    store.execute("UPDATE memories SET status = 'archived' WHERE id = :id", id=memory_id)


def edited(store: Store, memory_id: UUID) -> None:
    edit(store, memory_id, TODAY + HOUR)


def edited_without_a_new_time(store: Store, memory_id: UUID) -> None:
    store.execute("UPDATE memories SET content_hash = 'other' || id WHERE id = :id", id=memory_id)


def touched(store: Store, memory_id: UUID) -> None:
    store.execute("UPDATE memories SET updated_at = :now WHERE id = :id", now=TODAY, id=memory_id)


def reaffirmed(store: Store, memory_id: UUID) -> None:
    store.execute(
        "UPDATE memories SET last_reviewed_at = :now WHERE id = :id", now=TODAY + HOUR, id=memory_id
    )


def retyped(memory_type: str) -> Callable[[Store, UUID], None]:
    def retype(store: Store, memory_id: UUID) -> None:
        store.execute(
            "UPDATE memories SET memory_type = :type WHERE id = :id", type=memory_type, id=memory_id
        )

    return retype


CHANGES: dict[str, Callable[[Store, UUID], None]] = {
    "edited": edited,
    "edited without a new time": edited_without_a_new_time,
    "touched": touched,
    "reaffirmed": reaffirmed,
    "archived": archived,
    "superseded": superseded_by_another,
    "an event now": retyped("event"),
    "a note now": retyped("note"),
    "a commitment now": retyped("commitment"),
    "a blocker now": retyped("blocker"),
}


@pytest.mark.parametrize("side", ["the older", "the newer"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_open_proposal_is_withdrawn_when_a_side_changed(
    store: Store, side: str, change: Callable[[Store, UUID], None]
) -> None:
    acme = store.tenant()
    overtaken = [store.pair(acme, topic=key) for key in ("supersede_older", "conflict")]
    untouched, _ = store.pair(acme, topic="conflict")
    night(store, by_topic({key: say(key) for key in ("supersede_older", "conflict")}))
    assert len(proposals(store, status="proposed")) == 3
    for older, newer in overtaken:
        change(store, older if side == "the older" else newer)
    done = Pass(store, now=at(1)).proposals(store.partition(day=DAY + timedelta(days=1), now=at(1)))
    assert (done.withdrawn, done.written) == (2, 0)
    for older, _ in overtaken:
        row = proposal(store, older)
        assert (row["status"], row["decided_at"]) == ("dismissed", None)
    assert [row["memory_id"] for row in proposals(store, status="proposed")] == [untouched]


def test_an_archive_proposal_is_not_withdrawn_because_another_memory_changed(store: Store) -> None:
    older, newer = store.pair(store.tenant())
    night(store, say("archive_older"))
    edit(store, newer, TODAY + HOUR)
    assert night(store, say("keep"), 1).withdrawn == 0
    assert proposal(store, older)["status"] == "proposed"


def test_a_verdict_on_a_memory_that_changed_since_is_withheld(store: Store) -> None:
    acme = store.tenant()
    changed = store.memory(acme, topic="gone", scope="one")
    same = store.memory(acme, topic="gone", scope="two")
    work = Pass(store, TestJudge.that(say("archive")))
    work.candidates(store.partition())
    work.verdicts(store.partition())
    edit(store, changed, TODAY)
    done = work.proposals(store.partition())
    assert proposals(store, memory_id=changed) == [], "nothing is settled by what is out of date"
    assert proposal(store, same)["status"] == "proposed"
    assert dict(done.withheld) == {"changed": 1}


def test_br_31_five_edits_of_a_memory_never_leave_two_open_proposals(store: Store) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme)
    night(store, say("supersede_older"))
    for n in range(1, 6):
        edit(store, older, at(2 * n - 2) + HOUR, f"version {n}")
        assert night(store, say("supersede_older"), 2 * n - 1).withdrawn == 1
        assert proposals(store, status="proposed") == []
        assert night(store, say("supersede_older"), 2 * n).written == 1
        [row] = proposals(store, status="proposed")
        assert (row["memory_id"], row["related_memory_id"]) == (older, newer)
    assert Counter(row["status"] for row in proposals(store)) == {"dismissed": 5, "proposed": 1}
    [row] = proposals(store, status="proposed")
    assert review.accept(store.database, acme, row["id"], at(11)) == 1


def test_a_partition_judged_anew_after_an_edit_replaces_its_own_proposal(store: Store) -> None:
    older, _ = store.pair(store.tenant())
    night(store, say("supersede_older"))
    edit(store, older, TODAY)
    done = night(store, say("conflict"))
    assert (done.withdrawn, done.written) == (1, 1)
    assert [(row["action"], row["status"]) for row in proposals(store, memory_id=older)] in (
        [("supersede", "dismissed"), ("conflict", "proposed")],
        [("conflict", "proposed"), ("supersede", "dismissed")],
    )


# Rejections


def judged_by_another_model(store: Store, answer: Answer, n: int = 0) -> WrittenProposals:
    """The same partition again with a model that has judged nothing yet."""
    judge = TestJudge.that(answer)
    judge._model = "another-model"
    now = at(n) + HOUR
    work = Pass(store, judge, now=now)
    done: WrittenProposals = work.run(store.partition(day=DAY + timedelta(days=n), now=now))
    return done


def test_a_rejection_is_final_for_that_memory_and_action(store: Store) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    night(store, say("archive"))
    review.reject(store.database, acme, proposal(store, memory)["id"], TODAY + HOUR / 2)
    assert night(store, say("archive"), 1).written == 0, "it is settled"
    done = judged_by_another_model(store, say("archive"))
    assert (done.written, dict(done.withheld)) == (1, {"rejected": 1})
    assert Counter(row["status"] for row in proposals(store)) == {"rejected": 1, "dismissed": 1}


@pytest.mark.parametrize(("no", "next_"), [("archive", "conflict"), ("supersede", "conflict")])
def test_a_rejected_action_does_not_stand_against_another_action(
    store: Store, no: str, next_: str
) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme)
    night(store, say(KEYS[no]))
    review.reject(store.database, acme, proposal(store, older)["id"], TODAY + HOUR / 2)
    done = judged_by_another_model(store, say(KEYS[next_]))
    assert dict(done.withheld) == {}
    [row] = proposals(store, status="proposed")
    assert (row["action"], row["related_memory_id"]) == (next_, newer)


@pytest.mark.parametrize("change", [edited, reaffirmed], ids=["edited", "reaffirmed"])
def test_a_rejected_memory_is_judged_and_proposed_again_after_its_freshness_moved(
    store: Store, change: Callable[[Store, UUID], None]
) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    night(store, say("archive"))
    review.reject(store.database, acme, proposal(store, memory)["id"], TODAY + HOUR / 2)
    for n in (1, 30, 60):
        assert night(store, say("archive"), n).written == 0
    change(store, memory)
    assert night(store, say("archive"), 30).written == 0, "it is fresh for 30 days"
    done = night(store, say("archive"), 31)
    assert (done.written, dict(done.withheld)) == (1, {})
    assert [row["status"] for row in proposals(store)] == ["rejected", "proposed"]


# Whatever happens between the nights

EVENTS = st.sampled_from(
    ["edit older", "edit newer", "edit single", "reaffirm", "reject", "accept", "night", "again"]
)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=st.lists(EVENTS, max_size=7), seed=st.integers(0, 2**16))
@example(events=["night", "edit older", "night", "night", "accept", "night"], seed=1)
def test_whatever_happens_between_nights_open_proposals_never_contradict_and_can_be_accepted(
    store: Store, events: list[str], seed: int
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    older, newer = store.pair(acme)
    single = store.memory(acme, age=80)
    luck = random.Random(seed)
    n = 0

    def answer(_item: dict[str, Any], keys: list[str]) -> object:
        return choose(luck.choice(keys), keys, luck.choice([0.7, 0.9, 0.99]))

    applied = 0
    for event in ["night", *events, "night"]:
        now = at(n) + HOUR
        waiting = proposals(store, user_id=acme, status="proposed")
        if event == "night":
            n += 31
            night(store, answer, n, slug=slug)
        elif event == "again":
            night(store, answer, n, slug=slug)
        elif event.startswith("edit"):
            edit(store, {"older": older, "newer": newer, "single": single}[event[5:]], now)
        elif event == "reaffirm":
            reaffirmed(store, older)
        elif waiting and event == "reject":
            review.reject(store.database, acme, luck.choice(waiting)["id"], now)
        elif waiting:
            chosen = luck.choice(waiting)
            with contextlib.suppress(ReviewRefused):  # changed since, and not yet withdrawn
                applied += review.accept(store.database, acme, chosen["id"], now)
        waiting = proposals(store, user_id=acme, status="proposed")
        subjects = [row["memory_id"] for row in waiting]
        assert len(set(subjects)) == len(subjects)
        assert not set(subjects) & {row["related_memory_id"] for row in waiting}
    for row in waiting:  # the last night withdrew what could not be accepted any more
        applied += review.accept(store.database, acme, row["id"], at(n) + HOUR)
    audit = store.rows("SELECT memory_id FROM memory_events WHERE user_id = :id", id=acme)
    assert len(audit) == applied, "BR-15: every applied change has an audit row"


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(decisions=st.lists(st.tuples(st.sampled_from(sorted(KEYS)), st.booleans()), max_size=6))
def test_br_15_exactly_the_memories_that_changed_have_an_audit_row(
    store: Store, decisions: list[tuple[str, bool]]
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    pairs = [store.pair(acme, topic=str(n)) for n in range(len(decisions))]
    before = {row["id"]: row for row in store.rows("SELECT * FROM memories")}
    answers = {str(n): say(KEYS[action]) for n, (action, _) in enumerate(decisions)}
    night(store, by_topic(answers), slug=slug)
    for (older, _), (action, accepted) in zip(pairs, decisions, strict=True):
        if action != "keep":
            decide = review.accept if accepted else review.reject
            decide(store.database, acme, proposal(store, older)["id"], at(1))
    after = {row["id"]: row for row in store.rows("SELECT * FROM memories")}
    events = store.rows(
        "SELECT memory_id, event_kind FROM memory_events WHERE user_id = :id", id=acme
    )
    changed = {id_ for id_, row in after.items() if before[id_] != row}
    assert changed == {event["memory_id"] for event in events}
    assert Counter((event["memory_id"], event["event_kind"]) for event in events) == Counter(
        (older, action)
        for (older, _), (action, accepted) in zip(pairs, decisions, strict=True)
        if accepted and action in ("archive", "supersede")
    )


# What the database refuses, whoever asks


@pytest.fixture(params=["runtime", "superuser"])
def attempt(request: pytest.FixtureRequest, store: Store) -> Callable[..., str | int]:
    """Run a statement as one of the two roles: the SQLSTATE it is refused with, or its rows."""

    def run(user_id: UUID, statement: str, **parameters: Any) -> str | int:
        if request.param == "runtime":
            return as_runtime(store, user_id, statement, **parameters)
        try:
            return store.execute(statement, user_id=user_id, **parameters)
        except DBAPIError as error:
            return str(getattr(error.orig, "pgcode", None))

    return run


def as_runtime(store: Store, user_id: UUID, statement: str, **parameters: Any) -> str | int:
    """The SQLSTATE that the runtime role is refused with, or the number of rows it changed."""
    try:
        with store.database.tenant(user_id) as tx:
            return tx.run(sa.text(statement), **parameters)
    except StoreRefused as error:
        return str(error).split("(")[1][:5]


INSERT = """
INSERT INTO retention_proposals (user_id, memory_id, action, related_memory_id, probability,
    probabilities, model, status)
VALUES (:user_id, :memory_id, :action, :related, 0.9, '{}', 'test-model', :status)
"""


def propose(
    memory_id: UUID, action: str, related: UUID | None = None, status: str = "proposed"
) -> dict[str, Any]:
    return {"memory_id": memory_id, "action": action, "related": related, "status": status}


Attempt = Callable[..., str | int]


@pytest.mark.parametrize("episodic", ["event", "note"])
def test_the_database_refuses_a_proposal_on_an_episodic_memory(
    store: Store, attempt: Attempt, episodic: str
) -> None:
    acme = store.tenant()
    diary = store.memory(acme, memory_type=episodic)
    for status in ("proposed", "applied", "rejected", "dismissed"):
        fact, newer = store.memory(acme), store.memory(acme)
        assert attempt(acme, INSERT, **propose(diary, "archive", status=status)) == "23514"
        for action in ("supersede", "conflict"):
            assert attempt(acme, INSERT, **propose(fact, action, diary, status)) == "23514"
            assert attempt(acme, INSERT, **propose(diary, action, fact, status)) == "23514"
        assert attempt(acme, INSERT, **propose(fact, "archive", status=status)) == 1
        assert attempt(acme, INSERT, **propose(newer, "supersede", fact, status)) == 1


@pytest.mark.parametrize("episodic", ["event", "note"])
def test_the_database_refuses_to_turn_a_proposal_to_an_episodic_memory(
    store: Store, attempt: Attempt, episodic: str
) -> None:
    acme = store.tenant()
    diary = store.memory(acme, memory_type=episodic)
    fact, newer = store.memory(acme), store.memory(acme)
    assert attempt(acme, INSERT, **propose(fact, "supersede", newer)) == 1
    for column in ("memory_id", "related_memory_id"):
        change = f"UPDATE retention_proposals SET {column} = :other"
        assert attempt(acme, change, other=diary) == "23514"
        assert attempt(acme, change, other=store.memory(acme)) == 1


@pytest.mark.parametrize("episodic", ["event", "note"])
@pytest.mark.parametrize("side", ["memory", "related"])
def test_the_database_lets_a_proposal_on_a_memory_that_became_episodic_only_be_closed(
    store: Store, attempt: Attempt, episodic: str, side: str
) -> None:
    acme = store.tenant()
    fact, newer = store.memory(acme), store.memory(acme)
    assert attempt(acme, INSERT, **propose(fact, "supersede", newer)) == 1
    retyped(episodic)(store, fact if side == "memory" else newer)
    change = "UPDATE retention_proposals SET status = :status WHERE user_id = :user_id"
    assert attempt(acme, change, status="applied") == "23514"
    assert attempt(acme, change, status="dismissed") == 1
    assert attempt(acme, change, status="proposed") == "23514"
    assert attempt(acme, change, status="rejected") == 1


def test_the_database_refuses_a_memory_related_to_itself(store: Store, attempt: Attempt) -> None:
    acme = store.tenant()
    fact, newer = store.memory(acme), store.memory(acme)
    for action in ("supersede", "conflict"):
        assert attempt(acme, INSERT, **propose(fact, action, fact, "dismissed")) == "23514"
        assert attempt(acme, INSERT, **propose(fact, action, newer, "dismissed")) == 1


def test_the_database_refuses_a_second_open_proposal_even_of_another_action(
    store: Store, attempt: Attempt
) -> None:
    acme = store.tenant()
    fact, newer = store.memory(acme), store.memory(acme)
    assert attempt(acme, INSERT, **propose(fact, "archive")) == 1
    assert attempt(acme, INSERT, **propose(fact, "archive")) == "23505"
    assert attempt(acme, INSERT, **propose(fact, "supersede", newer)) == "23505"
    assert attempt(acme, INSERT, **propose(fact, "conflict", newer)) == "23505"
    assert attempt(acme, INSERT, **propose(fact, "conflict", newer, "dismissed")) == 1
    reopen = "UPDATE retention_proposals SET status = 'proposed' WHERE status = 'dismissed'"
    assert attempt(acme, reopen) == "23505"
    assert attempt(acme, INSERT, **propose(newer, "archive")) == 1


def test_the_database_refuses_to_archive_or_supersede_a_blocker(
    store: Store, attempt: Attempt
) -> None:
    acme = store.tenant()
    blocker = store.memory(acme, memory_type="blocker")
    newer = store.memory(acme, memory_type="blocker")
    for status in ("proposed", "applied", "rejected", "dismissed"):
        assert attempt(acme, INSERT, **propose(blocker, "archive", status=status)) == "23514"
        assert attempt(acme, INSERT, **propose(blocker, "supersede", newer, status)) == "23514"
        assert attempt(acme, INSERT, **propose(blocker, "conflict", newer, status)) == 1


def test_the_database_refuses_to_turn_a_blockers_conflict_into_an_archive_or_a_supersede(
    store: Store, attempt: Attempt
) -> None:
    acme = store.tenant()
    blocker = store.memory(acme, memory_type="blocker")
    newer = store.memory(acme, memory_type="blocker")
    assert attempt(acme, INSERT, **propose(blocker, "conflict", newer)) == 1
    turn = "UPDATE retention_proposals SET action = :action, related_memory_id = :related"
    assert attempt(acme, turn, action="archive", related=None) == "23514"
    assert attempt(acme, turn, action="supersede", related=newer) == "23514"
    assert attempt(acme, turn, action="conflict", related=store.memory(acme)) == 1


@pytest.mark.parametrize("memory_type", ["commitment", "pattern"])
def test_the_database_refuses_a_proposal_on_what_is_never_judged(
    store: Store, attempt: Attempt, memory_type: str
) -> None:
    acme = store.tenant()
    never = store.memory(acme, memory_type=memory_type)
    fact, newer = store.memory(acme), store.memory(acme)
    for action in ("keep", "archive", "supersede", "conflict"):
        related = newer if action in ("supersede", "conflict") else None
        assert attempt(acme, INSERT, **propose(never, action, related, "dismissed")) == "23514"
        assert attempt(acme, INSERT, **propose(fact, action, related, "dismissed")) == 1


def test_the_database_refuses_to_propose_or_apply_a_keep(store: Store, attempt: Attempt) -> None:
    acme = store.tenant()
    fact = store.memory(acme)
    for status in ("proposed", "applied"):
        assert attempt(acme, INSERT, **propose(fact, "keep", status=status)) == "23514"
    assert attempt(acme, INSERT, **propose(fact, "keep", status="dismissed")) == 1
    reopen = "UPDATE retention_proposals SET status = 'proposed'"
    assert attempt(acme, reopen) == "23514"


def test_the_database_refuses_a_related_memory_that_does_not_fit_the_action(
    store: Store, attempt: Attempt
) -> None:
    acme = store.tenant()
    fact, newer = store.memory(acme), store.memory(acme)
    for action in ("keep", "archive", "supersede", "conflict"):
        takes_one = action in ("supersede", "conflict")
        wrong, right = (None, newer) if takes_one else (newer, None)
        assert attempt(acme, INSERT, **propose(fact, action, wrong, "dismissed")) == "23514"
        assert attempt(acme, INSERT, **propose(fact, action, right, "dismissed")) == 1


def test_the_database_refuses_a_proposal_across_tenants(store: Store, attempt: Attempt) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    mine, theirs = store.memory(acme), store.memory(other)
    assert attempt(acme, INSERT, **propose(theirs, "archive")) == "23503"
    assert attempt(acme, INSERT, **propose(mine, "supersede", theirs)) == "23503"
    assert attempt(acme, INSERT, **propose(mine, "archive")) == 1


# What the runtime role may not


@pytest.fixture
def full(store: Store) -> tuple[UUID, UUID]:
    """Two tenants with a row of everything: (acme, other)."""
    for slug in ("acme", "other"):
        user_id = store.tenant(slug)
        older, newer = store.pair(user_id)
        store.cite(user_id, older, store.evidence(user_id))
        store.evidence(user_id)
        store.pair(user_id, scope="accepted", topic="accepted")
        partition = store.partition(slug)
        answer = by_topic({"accepted": say("supersede_older")}, say("conflict"))
        work = Pass(store, TestJudge.that(answer), make_policy(shadow=True))
        work.run(partition)
        work.sweep(partition)
        revived = store.evidence(user_id, age=400)
        work.sweep(partition)
        tier.unarchive(store.database, user_id, [revived], at(1))
        work.budget.reserve(user_id, FORGET_DECIDE, "a call that never comes back")
        store.execute(
            "INSERT INTO forgetting.unjudged_items (run_date, user_id, memory_id, input_digest, "
            "model, reason, detail, recorded_at) "
            "VALUES (:day, :id, :older, 'digest', 'model', 'too_large', 'detail', :now)",
            day=DAY,
            id=user_id,
            older=older,
            now=TODAY,
        )
        [row] = proposals(store, user_id=user_id, action="supersede")
        review.accept(store.database, user_id, row["id"], at(1))
        store.execute(
            """
            INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
            VALUES (:id, :proposal, 'expired', :now);
            INSERT INTO forgetting.regrets (user_id, evidence_id, archived_at, used_at, use)
            VALUES (:id, :revived, :now, :now, 'dereference');
            INSERT INTO forgetting.forgotten (user_id, evidence_id, batch_id, what, kind,
                forgotten_at)
            VALUES (:id, uuidv7(), uuidv7(), 'session', 'trace', :now);
            INSERT INTO forgetting.memory_health (run_date, user_id, measured_at, live_memories,
                stale_memories, archived_memories, superseded_memories, hot_evidence,
                idle_evidence, archived_evidence, open_proposals, unresolved_conflicts, regretted,
                counts)
            VALUES (:day, :id, :now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{}');
            INSERT INTO forgetting.partition_failures (run_date, user_id, step, asset, reason,
                run_id, failed_at)
            VALUES (:day, :id, 'step', 'asset', 'reason', 'run', :now)
            """,
            id=user_id,
            proposal=row["id"],
            revived=revived,
            day=DAY,
            now=TODAY,
        )
        store.execute("INSERT INTO user_budgets (user_id) VALUES (:id)", id=user_id)
        store.execute(
            "INSERT INTO consolidation_proposals (user_id, from_id, to_id, edge_type, memory_type, "
            "similarity) VALUES (:id, :newer, :older, 'extends', 'fact', 0.9)",
            id=user_id,
            newer=newer,
            older=older,
        )
        store.execute(
            "INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, "
            "passed, reasons, run_id, checked_at) "
            "VALUES (:day, :id, 'asset', 'check', TRUE, '[]', 'run', :now)",
            day=DAY,
            id=user_id,
            now=TODAY,
        )
    return (
        store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")[0]["user_id"],
        store.rows("SELECT user_id FROM tenants WHERE slug = 'other'")[0]["user_id"],
    )


KEPT = [
    "memories",
    "memory_edges",
    "memory_events",
    "consolidation_proposals",
    "retention_proposals",
    "evidence",
    "memory_evidence",
    "llm_usage",
    "user_budgets",
    "forgetting.embedding_models",
    "forgetting.judged_verdicts",
    "forgetting.archival_sweep",
    "forgetting.invariant_results",
    "forgetting.minings",
    "forgetting.similar_pairs",
    "forgetting.unjudged_items",
    "forgetting.revivals",
    "forgetting.decisions",
    "forgetting.closures",
    "forgetting.regrets",
    "forgetting.forgotten",
    "forgetting.shadow_answers",
]
REPLACED = [
    "budget_reservations",
    "forgetting.calls_under_way",
    "forgetting.conflict_pairs",
    "forgetting.stale_candidates",
    "forgetting.mined_memories",
    "forgetting.memory_health",
    "forgetting.partition_failures",
]
APPEND_ONLY = [
    "memory_events",
    "llm_usage",
    "forgetting.judged_verdicts",
    "forgetting.archival_sweep",
    "forgetting.invariant_results",
    "forgetting.similar_pairs",
    "forgetting.unjudged_items",
    "forgetting.revivals",
    "forgetting.decisions",
    "forgetting.closures",
    "forgetting.regrets",
    "forgetting.forgotten",
    "forgetting.shadow_answers",
]


def test_every_tenant_table_is_in_these_tests(store: Store) -> None:
    found = store.rows(
        "SELECT c.oid::regclass::text AS name FROM pg_class AS c "
        "INNER JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'user_id' "
        "INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relkind = 'r' AND n.nspname IN ('public', 'forgetting') AND c.relname <> 'tenants'"
    )
    assert sorted(row["name"] for row in found) == sorted(KEPT + REPLACED)


def test_the_runtime_role_deletes_nothing_that_must_be_kept(
    store: Store, full: tuple[UUID, UUID]
) -> None:
    acme, _ = full
    before = store.dump(*KEPT)
    assert all(before.values()), "each table has rows to lose"
    for table in KEPT:
        assert as_runtime(store, acme, f"DELETE FROM {table}") == "42501", table
        assert as_runtime(store, acme, f"TRUNCATE {table} CASCADE") == "42501", table
    assert store.dump(*KEPT) == before
    for table in REPLACED:
        changed = as_runtime(store, acme, f"DELETE FROM {table}")
        assert isinstance(changed, int)
        assert changed >= 1, table


def test_the_runtime_role_changes_nothing_that_is_only_ever_added(
    store: Store, full: tuple[UUID, UUID]
) -> None:
    acme, _ = full
    before = store.dump(*APPEND_ONLY)
    for table in APPEND_ONLY:
        assert as_runtime(store, acme, f"UPDATE {table} SET user_id = user_id") == "42501", table
    assert store.dump(*APPEND_ONLY) == before
    assert as_runtime(store, acme, "UPDATE memories SET topic = topic") != 0


def test_the_runtime_role_sees_no_row_without_a_tenant_and_its_own_with_one(
    store: Store, full: tuple[UUID, UUID]
) -> None:
    acme, other = full
    for table in KEPT + REPLACED:
        query = sa.text(f"SELECT count(*) FROM {table}")
        everyone = store.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"]
        with store.database.tenant(acme) as tx:
            mine = tx.connection.execute(query).scalar_one()
            foreign = sa.text(f"SELECT count(*) FROM {table} WHERE user_id = :other")
            assert tx.connection.execute(foreign, {"other": other}).scalar_one() == 0, table
        with store.database.registry() as connection:  # the connection that had a tenant before
            assert connection.execute(query).scalar_one() == 0, table
        assert 0 < mine < everyone, table
    with store.owner.begin() as connection:
        connection.execute(sa.text("SET LOCAL ROLE forgetting_runtime"))  # one that never had
        count = connection.execute(sa.text("SELECT count(*) FROM memories")).scalar_one()
    assert count == 0


@pytest.mark.parametrize("table", ["closures", "decisions"])
def test_no_row_about_a_proposal_can_be_another_tenants(
    store: Store, full: tuple[UUID, UUID], table: str
) -> None:
    acme, other = full
    theirs = store.rows("SELECT id FROM retention_proposals WHERE user_id = :id", id=other)[0]["id"]
    columns = {
        "closures": "reason, closed_at) VALUES (:acme, :theirs, 'expired', now())",
        "decisions": "batch_id, decision, memories_changed, decided_at) "
        "VALUES (:acme, :theirs, uuidv7(), 'reject', 0, now())",
    }
    with pytest.raises(StoreRefused, match="23503"), store.database.tenant(acme) as tx:
        tx.connection.execute(
            sa.text(f"INSERT INTO forgetting.{table} (user_id, proposal_id, {columns[table]}"),
            {"acme": acme, "theirs": theirs},
        )


def test_the_runtime_role_changes_no_row_of_another_tenant(
    store: Store, full: tuple[UUID, UUID]
) -> None:
    acme, other = full
    before = store.dump("memories", "retention_proposals", "evidence")
    for statement in (
        "UPDATE memories SET status = 'archived' WHERE user_id = :other",
        "UPDATE retention_proposals SET status = 'dismissed' WHERE user_id = :other",
        "UPDATE evidence SET content = '' WHERE user_id = :other",
    ):
        assert as_runtime(store, acme, statement, other=other) == 0
    assert store.dump("memories", "retention_proposals", "evidence") == before
    mine = "UPDATE retention_proposals SET status = 'dismissed' WHERE status = 'proposed'"
    assert as_runtime(store, acme, mine) == 1


def test_the_runtime_role_writes_no_row_for_another_tenant(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    mine, theirs = store.memory(acme), store.memory(other)
    foreign = INSERT.replace(":user_id", ":other")
    assert as_runtime(store, acme, foreign, other=other, **propose(theirs, "archive")) == "42501"
    give_away = "UPDATE retention_proposals SET user_id = :other, memory_id = :theirs"
    assert as_runtime(store, acme, INSERT, **propose(mine, "archive")) == 1
    assert as_runtime(store, acme, give_away, other=other, theirs=theirs) == "42501"
    assert [row["user_id"] for row in proposals(store)] == [acme]


# The invariant inside the transaction


def test_writing_proposals_rolls_back_when_the_invariant_does_not_hold(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    diary = store.memory(acme, memory_type="event")
    work = Pass(store, TestJudge.that(say("archive")))
    work.candidates(store.partition())
    work.verdicts(store.partition())
    with store.owner.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        connection.execute(sa.text(INSERT), {"user_id": acme, **propose(diary, "archive")})
    with pytest.raises(InvariantViolated, match=str(diary)):
        work.proposals(store.partition())
    assert [row["memory_id"] for row in proposals(store)] == [diary]

    store.execute("DELETE FROM retention_proposals")
    assert work.proposals(store.partition()).written == 1


def test_a_proposal_whose_verdict_is_old_is_written_once_in_its_own_partition(
    store: Store,
) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    record_verdict(
        store, acme, memory, verdict="archive", judged_at=ago(80), day=DAY, proposal=None
    )
    assert Pass(store).proposals(store.partition()).written == 0, "it is no item of the partition"
    assert json.dumps(proposals(store)) == "[]"
