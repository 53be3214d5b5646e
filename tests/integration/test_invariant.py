"""Zero episodic collapse and conservation: every look finds what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from forgetting_assets import review
from forgetting_assets.store import invariant
from forgetting_assets.store.invariant import QUERIES, Violation
from resources.errors import (
    BlastRadiusExceeded,
    InvariantViolated,
    ReviewRefused,
    StoreRefused,
)
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    ago,
    by_topic,
    make_policy,
    record_verdict,
    say,
    waiting_of,
)

STALE = "collapse_in_stale_candidates"
PAIRS = "collapse_in_conflict_pairs"
VERDICTS = "collapse_in_judged_verdicts"
PROPOSALS = "collapse_in_retention_proposals"
SWEEP = "collapse_in_archival_sweep"
LOSSES = "losses_of_archive"
RADIUS = "scopes_over_blast_radius"
INCOMPLETE = "items_without_verdict"
LOOKS = (STALE, PAIRS, VERDICTS, PROPOSALS, SWEEP, LOSSES)
MARK = "ZX81-MARKER"


def look(
    store: Store, name: str, slug: str = "acme", day: date = DAY, **parameters: float
) -> list[Violation]:
    """What a look finds in a partition, as the runtime role."""
    partition = store.partition(slug, day, TODAY + timedelta(days=3))
    with store.database.tenant(partition.user_id) as tx:
        return invariant.violations(tx, partition, name, **parameters)


def plant(store: Store, statement: str, **parameters: Any) -> None:
    """Write past every trigger, as only a superuser can."""
    with store.owner.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        assert connection.execute(sa.text(statement), parameters).rowcount >= 1


class Full:
    """A tenant with rows of every table of the pass, all as they should be."""

    def __init__(self, store: Store, slug: str = "acme") -> None:
        self.store = store
        self.user_id = acme = store.tenant(slug)
        self.single = store.memory(acme, f"{MARK} 1", topic="single", age=90, scope="single")
        self.neighbour = store.memory(acme, f"{MARK} 2", topic="new", age=5, scope="single")
        self.older, self.newer = store.pair(acme, topic="older", scope="pairs")
        self.event = store.memory(acme, f"{MARK} 3", memory_type="event", age=60)
        self.note = store.memory(acme, f"{MARK} 4", memory_type="note", age=60)
        self.due = store.evidence(acme, content=f"{MARK} 5", age=40)
        self.used = store.evidence(acme, content=f"{MARK} 6", age=40, retrieved=1)
        answers = by_topic({"single": say("supersede_by"), "older": say("conflict")})
        work = Pass(store, TestJudge.that(answers))
        partition = store.partition(slug)
        work.run(partition)
        work.sweep(partition)

    def retype(self, memory_id: UUID, memory_type: str) -> None:
        plant(
            self.store,
            "UPDATE memories SET memory_type = :type WHERE id = :id",
            type=memory_type,
            id=memory_id,
        )


@pytest.fixture
def full(store: Store) -> Full:
    return Full(store)


def test_every_look_of_the_sql_file_is_in_these_tests() -> None:
    assert set(QUERIES) == {*LOOKS, RADIUS, INCOMPLETE, "insert_result", "read_results"}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_silent_on_a_store_where_the_pass_did_its_work(full: Full, name: str) -> None:
    tables = (
        "forgetting.stale_candidates",
        "forgetting.conflict_pairs",
        "forgetting.judged_verdicts",
        "retention_proposals",
        "forgetting.archival_sweep",
    )
    assert all(full.store.dump(*tables).values()), "there is something to look at"
    assert look(full.store, name) == []


# Looks at what was selected and judged


SIDES = {
    STALE: ["single", "neighbour"],
    PAIRS: ["older", "newer"],
    VERDICTS: ["single", "neighbour", "older", "newer"],
    PROPOSALS: ["single", "neighbour", "older", "newer"],
}


@pytest.mark.parametrize("memory_type", ["event", "note"])
@pytest.mark.parametrize("name", SIDES)
def test_a_look_finds_each_side_that_is_episodic(full: Full, name: str, memory_type: str) -> None:
    for side in SIDES[name]:
        bad = getattr(full, side)
        full.retype(bad, memory_type)
        found = look(full.store, name)
        assert [violation.id for violation in found] == [bad], side
        assert memory_type in found[0].reason
        full.retype(bad, "fact")
        assert look(full.store, name) == []


def test_no_look_takes_a_memory_of_another_type_for_an_episodic_one(full: Full) -> None:
    for memory_type in ("commitment", "pattern", "blocker", "decision", "preference"):
        for side in (full.single, full.older, full.newer):
            full.retype(side, memory_type)
        assert [look(full.store, name) for name in LOOKS] == [[]] * len(LOOKS)


def test_an_episodic_memory_that_nothing_names_is_no_violation(full: Full) -> None:
    kept = full.store.rows("SELECT count(*) AS n FROM memories WHERE memory_type = 'event'")
    assert kept[0]["n"] == 1
    assert [look(full.store, name) for name in LOOKS] == [[]] * len(LOOKS)


@pytest.mark.parametrize("status", ["proposed", "applied"])
@pytest.mark.parametrize("action", ["archive", "supersede"])
def test_a_planted_proposal_on_an_event_is_found_in_every_partition(
    full: Full, status: str, action: str
) -> None:
    plant(
        full.store,
        "INSERT INTO retention_proposals (user_id, memory_id, related_memory_id, action, "
        "probability, probabilities, model, status) "
        "VALUES (:user_id, :event, :related, :action, 0.9, '{}', 'test-model', :status)",
        user_id=full.user_id,
        event=full.event,
        related=None if action == "archive" else full.note,
        action=action,
        status=status,
    )
    [planted] = full.store.rows(
        "SELECT id FROM retention_proposals WHERE memory_id = :event", event=full.event
    )
    way_out = f"{'reject' if status == 'proposed' else 'undo'} proposal {planted['id']}"
    named = f"and named by a proposal that is {status}: {way_out}"
    expected = {(full.event, f"of type event, {named}")}
    if action != "archive" and status == "proposed":
        # An applied one ended its subject alone; what the newer side becomes later is no collapse.
        expected.add((full.note, f"of type note, {named}"))
    for day in (DAY, DAY + timedelta(days=1), DAY - timedelta(days=60)):
        found = look(full.store, PROPOSALS, day=day)
        assert {(violation.id, violation.reason) for violation in found} == expected


@pytest.mark.parametrize("status", ["rejected", "dismissed"])
def test_a_closed_proposal_whose_memory_became_episodic_is_no_violation(
    full: Full, status: str
) -> None:
    full.store.execute("UPDATE retention_proposals SET status = :status", status=status)
    full.retype(full.single, "event")
    assert look(full.store, PROPOSALS) == []


PLANTED_VERDICTS = {
    "the older side": (
        "UPDATE forgetting.conflict_pairs SET older_id = :event",
        "UPDATE forgetting.judged_verdicts SET memory_id = :event WHERE kind = 'pair'",
    ),
    "the newer side": (
        "UPDATE forgetting.conflict_pairs SET newer_id = :event",
        """
        UPDATE forgetting.judged_verdicts
        SET newer_id = :event, verdict = 'archive', related_memory_id = NULL WHERE kind = 'pair'
        """,
    ),
    "a single": (
        "UPDATE forgetting.stale_candidates SET memory_id = :event WHERE NOT in_pair",
        "UPDATE forgetting.judged_verdicts SET memory_id = :event WHERE kind = 'single'",
    ),
    "the neighbour that it names": (
        "UPDATE forgetting.judged_verdicts SET related_memory_id = :event WHERE kind = 'single'",
    ),
}


@pytest.mark.parametrize("statements", PLANTED_VERDICTS.values(), ids=PLANTED_VERDICTS)
def test_a_planted_verdict_is_found_on_whichever_side_it_names_an_event(
    full: Full, statements: tuple[str, ...]
) -> None:
    for statement in statements:
        plant(full.store, statement, event=full.event)
    assert look(full.store, VERDICTS) == [
        Violation(full.event, "of type event, and named by a verdict")
    ]


def test_a_verdict_that_no_longer_stands_for_an_item_is_no_violation(full: Full) -> None:
    store = full.store
    gone = store.memory(full.user_id)
    record_verdict(store, full.user_id, gone, verdict="archive", judged_at=ago(1), day=DAY)
    full.retype(gone, "event")
    assert look(store, VERDICTS) == []


# Looks at the archive


SPOILED = {
    "success_count": "1",
    "reinforcement_count": "1",
    "occurred_at": "NULL",
    "occurred_at ": "due_before",
    "last_used_at": "due_before",
    "kind": "'lesson'",
    "kind ": "'fact'",
    "kind  ": "'archive_block'",
}


def test_a_look_finds_evidence_that_was_archived_though_it_was_of_use(full: Full) -> None:
    [as_it_was] = full.store.rows("SELECT * FROM forgetting.archival_sweep")
    for column, value in SPOILED.items():
        plant(full.store, f"UPDATE forgetting.archival_sweep SET {column} = {value}")
        assert look(full.store, SWEEP) == [
            Violation(full.due, "a sweep archived evidence that was still of use")
        ], column
        name = column.strip()
        plant(
            full.store,
            f"UPDATE forgetting.archival_sweep SET {name} = :value",
            value=as_it_was[name],
        )
        assert look(full.store, SWEEP) == []


def test_a_look_is_silent_on_what_just_met_the_conditions(full: Full) -> None:
    for change in (
        "last_used_at = due_before - interval '1 microsecond'",
        "occurred_at = due_before - interval '1 microsecond'",
        "kind = 'log'",
    ):
        plant(full.store, f"UPDATE forgetting.archival_sweep SET {change}")
        assert look(full.store, SWEEP) == []


def test_a_look_finds_evidence_that_was_archived_by_no_sweep(full: Full) -> None:
    plant(
        full.store,
        "UPDATE evidence SET archived_at = :now, archived_run_date = :day WHERE id = :id",
        now=TODAY,
        day=DAY,
        id=full.used,
    )
    assert look(full.store, SWEEP) == [
        Violation(full.used, "evidence is archived, but no sweep archived it")
    ]
    assert look(full.store, LOSSES) == []


def test_evidence_used_after_it_was_archived_is_no_violation(full: Full) -> None:
    plant(
        full.store,
        "UPDATE evidence SET success_count = 3, last_retrieved_at = :now WHERE id = :id",
        now=TODAY,
        id=full.due,
    )
    assert look(full.store, SWEEP) == []


@pytest.mark.parametrize("content", ["", f"{MARK} 5 ", f"{MARK}\u00a05", f"{MARK} 5\n"])
def test_a_look_finds_an_archived_entry_whose_bytes_changed(full: Full, content: str) -> None:
    change = "UPDATE evidence SET content = :content WHERE id = :id"
    plant(full.store, change, content=content, id=full.due)
    assert look(full.store, LOSSES) == [
        Violation(full.due, "an archived entry does not have the bytes it was archived with")
    ]
    plant(full.store, change, content=f"{MARK} 5", id=full.due)
    assert look(full.store, LOSSES) == []


def test_a_look_finds_an_archived_entry_that_is_gone(full: Full) -> None:
    plant(full.store, "DELETE FROM evidence WHERE id = :id", id=full.due)
    assert look(full.store, LOSSES) == [
        Violation(full.due, "an archived entry is not there any more")
    ]


def test_a_hot_entry_that_changed_is_no_loss(full: Full) -> None:
    plant(full.store, "UPDATE evidence SET content = 'other' WHERE id = :id", id=full.used)
    assert look(full.store, LOSSES) == []


# The blast radius


@pytest.mark.parametrize(("ended", "over"), [(0, False), (3, False), (4, True), (10, True)])
def test_br_06_a_scope_of_which_one_run_would_end_too_much_is_named(
    store: Store, ended: int, over: bool
) -> None:
    acme, other = store.tenant(), store.tenant("other")
    ends = {str(n): say("archive") for n in range(ended)}
    for n in range(10):
        store.memory(acme, topic=str(n), scope="large", age=60 + n)
        store.memory(acme, topic="fresh", scope="large", age=2)
        store.memory(other, topic="kept", scope="large", age=60)
        store.memory(acme, topic="kept", scope="calm", age=60)
    for _ in range(9):
        store.memory(acme, topic="0", scope="small")
        store.memory(acme, memory_type="event", scope="large")
    for slug in ("acme", "other"):
        Pass(store, TestJudge.that(by_topic(ends))).run(store.partition(slug))
    expected = [Violation("large", f"{ended} of 10 verdicts are other than keep")]
    assert look(store, RADIUS, bound=0.3, least=10) == (expected if over else [])
    assert look(store, RADIUS, slug="other", bound=0.3, least=10) == []
    assert look(store, RADIUS, day=DAY - timedelta(days=1), bound=0.0, least=1) == []
    if ended:
        named = {violation.id for violation in look(store, RADIUS, bound=0.0, least=1)}
        assert named == {"large", "small"}


def test_br_06_beyond_the_blast_radius_nothing_is_proposed_until_somebody_widens_it(
    store: Store,
) -> None:
    acme = store.tenant()
    for n in range(20):
        store.memory(acme, topic=str(n), age=60 + n)
    ends = by_topic({str(n): say("archive") for n in range(11)})
    judge = TestJudge.that(ends)
    work = Pass(store, judge)
    with pytest.raises(BlastRadiusExceeded, match=r"work: 11 of 20 verdicts"):
        work.run(store.partition())
    assert store.rows("SELECT * FROM retention_proposals") == []
    paid = judge.calls

    tomorrow = TODAY + timedelta(days=1)
    later = Pass(store, judge, now=tomorrow)
    with pytest.raises(BlastRadiusExceeded):
        later.run(store.partition(day=DAY + timedelta(days=1), now=tomorrow))
    assert judge.calls == paid, "it stays stopped, and costs nothing"

    widened = Pass(store, judge, make_policy(blast_radius=0.55))
    assert widened.run(store.partition()).proposed["archive"] == 11
    assert judge.calls == paid


@pytest.mark.parametrize(("ended", "judged"), [(19, 19), (10, 20), (0, 20)])
def test_br_06_within_the_blast_radius_proposals_are_written(
    store: Store, ended: int, judged: int
) -> None:
    acme = store.tenant()
    for n in range(judged):
        store.memory(acme, topic=str(n), age=60 + n)
    ends = by_topic({str(n): say("archive") for n in range(ended)})
    assert Pass(store, TestJudge.that(ends)).run(store.partition()).written == judged


# Whether every item has a verdict


def test_items_without_a_verdict_are_named_until_they_have_one(store: Store) -> None:
    acme = store.tenant()
    older, _ = store.pair(acme, topic="pair", scope="pairs")
    ids = [store.memory(acme, topic=str(n), age=90 - n) for n in range(3)]
    work = Pass(store, TestJudge(), make_policy(batch_items=2), cap_usd=0.0105)
    work.candidates(store.partition())
    assert {each.id for each in look(store, INCOMPLETE)} == {older, *ids}
    assert work.verdicts(store.partition()).left == 2
    assert {each.id for each in look(store, INCOMPLETE)} == set(ids[1:])
    assert look(store, INCOMPLETE, day=DAY - timedelta(days=1)) == []
    Pass(store).verdicts(store.partition())
    assert look(store, INCOMPLETE) == []


# Whose partition it is

Spoil = Callable[[Full], None]


def spoil_candidates(full: Full) -> None:
    full.retype(full.single, "event")


def spoil_pairs(full: Full) -> None:
    full.retype(full.older, "note")


def spoil_log(full: Full) -> None:
    plant(
        full.store,
        "UPDATE forgetting.archival_sweep SET success_count = 1 WHERE evidence_id = :id",
        id=full.due,
    )


def spoil_bytes(full: Full) -> None:
    plant(full.store, "UPDATE evidence SET content = 'other' WHERE id = :id", id=full.due)


SPOILS: dict[str, Spoil] = {
    STALE: spoil_candidates,
    PAIRS: spoil_pairs,
    VERDICTS: spoil_candidates,
    PROPOSALS: spoil_candidates,
    SWEEP: spoil_log,
    LOSSES: spoil_bytes,
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_sees_its_own_tenant_and_partition_alone(full: Full, name: str) -> None:
    other = Full(full.store, "other")
    SPOILS[name](full)
    assert len(look(full.store, name)) == 1
    assert look(full.store, name, slug="other") == []
    if name != PROPOSALS:  # its queue is the tenant's, whatever the partition
        assert look(full.store, name, day=DAY - timedelta(days=1)) == []
    SPOILS[name](other)
    assert len(look(full.store, name)) == 1
    assert len(look(full.store, name, slug="other")) == 1


# Requiring and recording


@pytest.mark.parametrize("name", LOOKS)
def test_requiring_a_look_rolls_the_transaction_back_with_ids_and_reasons_and_no_text(
    full: Full, name: str
) -> None:
    partition = full.store.partition()
    touch = sa.text("UPDATE memories SET topic = 'touched' WHERE user_id = :user_id")
    with full.store.database.tenant(full.user_id) as tx:
        invariant.require(tx, partition, *LOOKS)
    SPOILS[name](full)
    [violation] = look(full.store, name)
    before = full.store.dump("memories")

    def act() -> None:
        with full.store.database.tenant(full.user_id) as tx:
            assert tx.run(touch) > 0
            invariant.require(tx, partition, name)

    with pytest.raises(InvariantViolated) as violated:
        act()
    said = str(violated.value)
    assert str(violation.id) in said
    assert violation.reason in said
    assert "acme on 2026-08-31" in said
    assert MARK not in said
    assert full.store.dump("memories") == before
    assert MARK in str(before)


def record(
    store: Store,
    found: list[Violation],
    *,
    minutes: int = 0,
    check: str = "zero",
    slug: str = "acme",
) -> None:
    invariant.record(
        store.database,
        store.partition(slug),
        "asset",
        check,
        found,
        run_id="run-0",
        checked_at=TODAY + timedelta(minutes=minutes),
    )


@pytest.mark.parametrize("name", LOOKS)
def test_a_result_is_kept_with_ids_and_reasons_and_never_with_text(full: Full, name: str) -> None:
    SPOILS[name](full)
    found = look(full.store, name)
    record(full.store, found)
    [row] = full.store.rows("SELECT * FROM forgetting.invariant_results")
    assert (row["user_id"], row["run_date"], row["asset"]) == (full.user_id, DAY, "asset")
    assert (row["check_name"], row["passed"], row["run_id"]) == ("zero", False, "run-0")
    assert row["checked_at"] == TODAY
    assert row["reasons"] == [{"id": str(each.id), "reason": each.reason} for each in found]
    assert MARK not in str(row)
    assert MARK in str(full.store.dump("memories", "evidence"))


def test_a_look_that_finds_nothing_is_kept_as_passed(full: Full) -> None:
    record(full.store, look(full.store, STALE))
    [row] = full.store.rows("SELECT passed, reasons FROM forgetting.invariant_results")
    assert row == {"passed": True, "reasons": []}


def test_the_newest_result_of_each_check_stands(full: Full) -> None:
    store, bad = full.store, [Violation(full.event, "planted")]
    Full(store, "other")
    partition = store.partition()
    assert invariant.results(store.database, partition, "run-0") == {}
    record(store, [], minutes=1)
    record(store, bad, minutes=2)
    record(store, bad, minutes=1, check="second")
    record(store, [], minutes=3, slug="other")
    key, second = ("asset", "zero"), ("asset", "second")
    assert invariant.results(store.database, partition, "run-0") == {key: False, second: False}
    record(store, [], minutes=3)
    record(store, bad, minutes=0)  # written later, looked earlier
    assert invariant.results(store.database, partition, "run-0") == {key: True, second: False}
    other = store.partition("other")
    assert invariant.results(store.database, other, "run-0") == {key: True}
    assert invariant.results(store.database, other, "run-1") == {}, "another run looked at nothing"


def test_a_result_of_thousands_of_violations_keeps_the_first_hundred(full: Full) -> None:
    found = [Violation(uuid4(), "planted") for _ in range(5_000)]
    record(full.store, found)
    [row] = full.store.rows("SELECT passed, reasons FROM forgetting.invariant_results")
    assert row["passed"] is False
    assert [reason["id"] for reason in row["reasons"]] == [str(each.id) for each in found[:100]]


def test_results_are_never_changed_or_deleted_by_the_runtime_role(full: Full) -> None:
    record(full.store, [Violation(full.event, "planted")])
    before = full.store.dump("forgetting.invariant_results")
    for statement in (
        "UPDATE forgetting.invariant_results SET passed = TRUE",
        "DELETE FROM forgetting.invariant_results",
    ):
        with (
            pytest.raises(StoreRefused, match="42501"),
            full.store.database.tenant(full.user_id) as tx,
        ):
            tx.connection.exec_driver_sql(statement)
    assert full.store.dump("forgetting.invariant_results") == before


# The verbs that act look for themselves


def test_proposals_are_written_only_where_every_look_is_silent(full: Full) -> None:
    store = full.store
    waiting = store.memory(full.user_id, topic="waiting", scope="waiting")
    work = Pass(store, TestJudge.that(by_topic({"waiting": say("archive")})))
    partition = store.partition()
    work.candidates(partition)
    work.verdicts(partition)
    full.retype(full.newer, "event")  # a side of a pair of this partition
    before = store.dump("retention_proposals")
    with pytest.raises(InvariantViolated, match=str(full.newer)):
        work.proposals(partition)
    assert store.dump("retention_proposals") == before
    full.retype(full.newer, "fact")
    assert work.proposals(partition).written == 1
    [row] = store.rows("SELECT status FROM retention_proposals WHERE memory_id = :id", id=waiting)
    assert row["status"] == "proposed"


def test_a_memory_that_became_episodic_leaves_the_pass_with_the_next_selection(full: Full) -> None:
    store = full.store
    full.retype(full.newer, "event")
    assert look(store, PROPOSALS) != []
    done = Pass(store, TestJudge.that(say("keep"))).run(store.partition())
    assert done.withdrawn == 1
    assert [look(store, name) for name in LOOKS] == [[]] * len(LOOKS)
    named = store.rows(
        "SELECT status FROM retention_proposals WHERE :id IN (memory_id, related_memory_id)",
        id=full.newer,
    )
    assert named == [{"status": "dismissed"}]


def test_no_look_ever_finds_what_a_reviewer_accepted(full: Full) -> None:
    full.retype(full.newer, "event")
    waiting = {row.id: row.action for row in waiting_of(full.store, full.user_id)}
    assert sorted(waiting.values()) == ["conflict", "supersede"]
    for id_, action in waiting.items():
        if action == "supersede":
            assert review.accept(full.store.database, full.user_id, id_, TODAY) == 1
        else:
            with pytest.raises(ReviewRefused, match=str(full.newer)):
                review.accept(full.store.database, full.user_id, id_, TODAY)
    assert waiting_of(full.store, full.user_id) == []
    assert look(full.store, PROPOSALS) == []
