"""Stale singles: which memories a partition asks about on their own, and with which neighbours."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from forgetting_assets.judging.items import Pair
from forgetting_assets.store import candidates, mining, pairs, verdicts
from forgetting_assets.store.candidates import SelectedSingles, StaleSingle
from resources.database import TenantTransaction
from resources.policy import Policy
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    ago,
    block_of,
    make_policy,
    record_verdict,
    say,
    vector,
)

AS_OF = datetime(2026, 9, 1, tzinfo=UTC)
BOUNDARY = AS_OF - timedelta(days=30)
MOMENT = timedelta(microseconds=1)
YESTERDAY = DAY - timedelta(days=1)
STALE_TYPES = ("decision", "preference", "blocker", "fact")
ZERO = [0.0] * 1536


def selected(store: Store, slug: str = "acme", policy: Policy | None = None) -> SelectedSingles:
    """What the partition takes, after its pairs, as the graph runs them."""
    partition, policy = store.partition(slug), policy or make_policy()
    pairs.select(store.database, partition, policy, TODAY)
    return candidates.select(store.database, partition, policy, TODAY)


def taken(store: Store, slug: str = "acme", policy: Policy | None = None) -> list[UUID]:
    """The memories taken, in rank order."""
    return [single.memory_id for single in selected(store, slug, policy).singles]


def one(store: Store, memory_id: UUID) -> StaleSingle:
    """The single of one memory."""
    (found,) = [each for each in selected(store).singles if each.memory_id == memory_id]
    return found


def recorded(store: Store) -> list[dict[str, Any]]:
    """The rows of the asset's table."""
    return store.rows("SELECT * FROM forgetting.stale_candidates ORDER BY user_id, run_date, rank")


# What is stale


def test_only_decisions_preferences_facts_and_contradicted_blockers_come_up(store: Store) -> None:
    acme = store.tenant()
    all_types = (*STALE_TYPES, "commitment", "pattern", "note", "event")
    old = {}
    for axis, memory_type in enumerate(all_types, start=701):
        common: dict[str, Any] = {"memory_type": memory_type, "embedding": vector(0, axis)}
        old[memory_type] = store.memory(acme, age=400, **common)
        # A newer neighbour of its own type, so that nothing but the type keeps a memory away.
        store.memory(acme, age=3, **common)
    assert set(taken(store)) == {old[memory_type] for memory_type in STALE_TYPES}
    assert {row["memory_type"] for row in recorded(store)} == set(STALE_TYPES)


def test_the_window_is_30_days_before_the_end_of_the_day_and_strict(store: Store) -> None:
    acme = store.tenant()
    stale = store.memory(acme, age=90, updated_at=BOUNDARY - MOMENT)
    store.memory(acme, age=90, updated_at=BOUNDARY)
    store.memory(acme, age=90, updated_at=BOUNDARY + MOMENT)
    assert taken(store) == [stale]
    assert len(taken(store, policy=make_policy(stale_window_days=29))) == 3


def test_staleness_is_as_of_the_day_and_not_of_the_hour_the_run_starts(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, age=90, updated_at=BOUNDARY + MOMENT)
    late = TODAY + timedelta(days=300)
    partition = store.partition(now=late)
    assert candidates.select(store.database, partition, make_policy(), TODAY).singles == []
    next_day = store.partition(day=DAY + timedelta(days=1), now=late)
    assert len(candidates.select(store.database, next_day, make_policy(), TODAY).singles) == 1


def test_freshness_is_the_later_of_the_last_change_and_the_last_review(store: Store) -> None:
    acme = store.tenant()
    cases: list[tuple[datetime, datetime | None, datetime | None]] = [
        # last change, last review, freshness of the candidate; None: it is not stale
        (ago(60), None, ago(60)),
        (ago(60), ago(50), ago(50)),
        (ago(50), ago(60), ago(50)),
        (ago(60), ago(10), None),
        (ago(10), ago(60), None),
        (ago(10), None, None),
        (ago(60), BOUNDARY, None),
        (ago(60), BOUNDARY - MOMENT, BOUNDARY - MOMENT),
    ]
    expected = {}
    for updated_at, reviewed_at, freshness in cases:
        id_ = store.memory(acme, age=90, updated_at=updated_at, reviewed_at=reviewed_at)
        if freshness:
            expected[id_] = freshness
    found = selected(store).singles
    assert {single.memory_id: single.freshness for single in found} == expected
    assert {row["memory_id"]: row["freshness"] for row in recorded(store)} == expected


def test_br_29_an_old_fact_that_nobody_contradicted_comes_up(store: Store) -> None:
    acme = store.tenant()
    rota = store.memory(acme, "Oncall rota lives in sheet X", age=548, scope="ops")
    store.memory(acme, "Lunch is at noon", age=3)
    assert taken(store) == [rota]
    assert one(store, rota).newer_ids == []
    judge = TestJudge.that(say("archive"))
    done = Pass(store, judge).run(store.partition())
    (item,) = block_of(judge.states[0])["items"]
    assert item["memory"]["content"] == "Oncall rota lives in sheet X"
    assert dict(done.proposed) == {"archive": 1}


def test_br_48_the_age_of_a_stale_description_reaches_the_judge_and_the_table(
    store: Store,
) -> None:
    acme = store.tenant()
    description = store.memory(acme, "Atlas is a mobile app", age=150)
    judge = TestJudge()
    Pass(store, judge).run(store.partition())
    (item,) = block_of(judge.states[0])["items"]
    assert item["memory"]["lastTouchedAt"] == ago(150).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert [(row["memory_id"], row["freshness"]) for row in recorded(store)] == [
        (description, ago(150))
    ]


def test_br_20_no_use_of_a_memory_keeps_it_from_coming_up(store: Store) -> None:
    acme = store.tenant()
    path = store.memory(acme, "The build script is in ./scripts/old", age=60)
    reaffirmed = store.memory(acme, age=60, reviewed_at=ago(1))
    # Everything the store can tell about use: cited evidence that was retrieved and credited today.
    for number in range(5):
        entry = store.evidence(
            acme, content=f"read {number}", age=1, retrieved=0.1, outcome=0.1, success=9
        )
        store.cite(acme, path, entry)
    for kind in ("create", "import"):
        store.execute(
            "INSERT INTO memory_events (user_id, memory_id, event_kind, actor_kind, created_at)"
            " VALUES (:user_id, :memory_id, :kind, 'agent', :now)",
            user_id=acme,
            memory_id=path,
            kind=kind,
            now=TODAY,
        )
    assert taken(store) == [path]
    columns = store.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'memories'"
    )
    used = [row["column_name"] for row in columns if "retriev" in row["column_name"]]
    assert used == [], "a column about use appeared: show here that it changes no freshness"
    store.execute("UPDATE memories SET updated_at = :now WHERE id = :id", now=ago(1), id=path)
    assert taken(store) == [], "a change does keep it away"
    assert reaffirmed not in taken(store)


# Order and cap


def test_the_stalest_come_first_and_ids_break_ties(store: Store) -> None:
    acme = store.tenant()
    ages = [(5, 40), (3, 400), (9, 40), (1, 40), (7, 60), (2, 60), (8, 35)]
    for number, age in ages:
        store.memory(acme, id=UUID(int=number), age=500, touched=age)
    ranked = [UUID(int=number) for number in (3, 2, 7, 1, 5, 9, 8)]
    assert taken(store) == ranked
    assert [row["memory_id"] for row in recorded(store)] == ranked
    assert [row["rank"] for row in recorded(store)] == [1, 2, 3, 4, 5, 6, 7]
    assert taken(store, policy=make_policy(single_cap=4)) == ranked[:4]


def test_creation_does_not_rank_a_memory_only_freshness_does(store: Store) -> None:
    acme = store.tenant()
    edited = store.memory(acme, age=900, touched=40)
    younger = store.memory(acme, age=60)
    assert taken(store) == [younger, edited]


def test_the_cap_is_60_and_the_total_beyond_it_is_exact(store: Store) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    ids = [store.memory(acme, age=100 + place, embedding=None) for place in range(63)]
    store.memory(acme, age=3, embedding=None)
    store.memory(acme, age=99, status="archived")
    store.memory(borea, age=99)
    settled = store.memory(acme, age=900, embedding=None)
    record_verdict(store, acme, settled)
    found = selected(store)
    assert [single.memory_id for single in found.singles] == ids[:2:-1]
    assert found.total == 63
    assert len(recorded(store)) == 60


def test_nothing_stale_is_an_empty_partition_with_total_0(store: Store) -> None:
    acme = store.tenant()
    old = store.memory(acme, age=60)
    assert selected(store).total == 1
    store.execute("UPDATE memories SET updated_at = :now WHERE id = :id", now=ago(2), id=old)
    assert selected(store) == SelectedSingles([], 0)
    assert recorded(store) == [], "a partition that is materialized again replaces its rows"


def test_br_23_memories_that_may_not_be_judged_do_not_use_up_the_cap(store: Store) -> None:
    acme = store.tenant()
    for place in range(4):
        store.memory(acme, memory_type="event", age=900 + place)
        store.memory(acme, memory_type="note", age=900 + place)
        store.memory(acme, memory_type="blocker", scope=f"alone-{place}", age=900 + place)
        store.memory(acme, age=900 + place, status="archived")
        record_verdict(store, acme, store.memory(acme, age=900 + place))
        open_one = store.memory(acme, age=900 + place)
        record_verdict(store, acme, open_one, verdict="archive", proposal="proposed")
    wanted = store.memory(acme, age=31)
    found = selected(store, policy=make_policy(single_cap=1))
    assert [single.memory_id for single in found.singles] == [wanted]
    assert found.total == 1


# Blockers


def test_a_stale_blocker_without_a_newer_neighbour_is_no_candidate_and_with_one_it_is(
    store: Store,
) -> None:
    acme = store.tenant()
    common: dict[str, Any] = {"memory_type": "blocker", "embedding": vector(0)}
    blocker = store.memory(acme, age=90, **common)
    store.memory(acme, age=120, touched=5, **common)  # older, though changed since
    store.memory(acme, age=5, memory_type="fact", embedding=vector(0))
    store.memory(acme, age=5, scope="home", **common)
    store.memory(acme, age=5, status="archived", **common)
    store.memory(acme, age=5, valid_to=ago(1), **common)
    store.memory(acme, created_at=AS_OF + MOMENT, **common)
    store.memory(acme, age=5, **common | {"embedding": None})
    store.memory(acme, age=5, **common | {"embedding": ZERO})
    store.memory(acme, age=5, embedding_model="another", **common)
    assert taken(store) == []
    assert selected(store).total == 0
    newer = store.memory(acme, age=4, memory_type="blocker", embedding=vector(80))
    assert taken(store) == [blocker]
    assert one(store, blocker).newer_ids == [newer]


def test_a_blocker_is_only_ever_kept_or_contradicted(store: Store) -> None:
    acme = store.tenant()
    for age in (90, 5):
        store.memory(acme, age=age, memory_type="blocker", embedding=vector(0))
    offered: list[list[str]] = []

    def archive(item: dict[str, Any], keys: list[str]) -> object:
        offered.append(keys)
        return say("archive")(item, keys)

    done = Pass(store, TestJudge.that(archive)).run(store.partition())
    assert offered == [["keep", "conflict_with:s0n0"]]
    assert (done.proposed.total(), done.dismissed) == (0, 1)
    done = Pass(store, TestJudge.that(say("conflict_with"))).run(store.partition(day=YESTERDAY))
    assert done.proposed.total() == 0, "the other day's verdict settles it"
    for table in ("retention_proposals", "forgetting.judged_verdicts"):
        store.execute(f"DELETE FROM {table}")
    done = Pass(store, TestJudge.that(say("conflict_with"))).run(store.partition())
    assert dict(done.proposed) == {"conflict": 1}


def test_a_blocker_whose_newer_neighbour_is_gone_before_judging_is_not_asked_about(
    store: Store,
) -> None:
    acme = store.tenant()
    common: dict[str, Any] = {"memory_type": "blocker", "embedding": vector(0)}
    store.memory(acme, age=90, **common)
    newer = store.memory(acme, age=5, **common)
    the_pass, partition = Pass(store, TestJudge()), store.partition()
    the_pass.candidates(partition)
    assert len(verdicts.read_items(store.database, partition)) == 1
    store.execute("UPDATE memories SET status = 'archived' WHERE id = :id", id=newer)
    assert verdicts.read_items(store.database, partition) == []


# Neighbours


def test_up_to_three_newer_neighbours_stand_nearest_first(store: Store) -> None:
    acme = store.tenant()
    old = store.memory(acme, age=90, embedding=vector(0))
    ids = {
        angle: store.memory(acme, age=5 + angle / 10, project=f"p{angle}", embedding=vector(angle))
        for angle in (50, 10, 70, 30, 20)
    }
    found = one(store, old)
    assert found.newer_ids == [ids[10], ids[20], ids[30]]
    assert found.newer_similarities == pytest.approx(
        [math.cos(math.radians(angle)) for angle in (10, 20, 30)], abs=1e-6
    )
    (row,) = recorded(store)
    assert (row["newer_ids"], row["newer_similarities"]) == (
        found.newer_ids,
        found.newer_similarities,
    )


def test_a_neighbour_may_be_of_another_project_and_below_every_floor(store: Store) -> None:
    acme = store.tenant()
    old = store.memory(acme, age=90, project="atlas", embedding=vector(0))
    far = store.memory(acme, age=5, project="borea", embedding=vector(85))
    opposite = store.memory(acme, age=5, project=None, embedding=vector(180))
    assert one(store, old).newer_ids == [far, opposite]
    assert not one(store, old).in_pair


def test_equally_near_neighbours_are_ordered_by_id(store: Store) -> None:
    acme = store.tenant()
    old = store.memory(acme, id=UUID(int=99), age=90, embedding=vector(0))
    for number in (7, 3, 9, 5):
        store.memory(acme, id=UUID(int=number), age=5, project=f"p{number}", embedding=vector(0))
    assert one(store, old).newer_ids == [UUID(int=number) for number in (3, 5, 7)]


def test_a_neighbour_is_newer_by_creation_and_then_by_id(store: Store) -> None:
    acme = store.tenant()
    # Of one moment: the id decides. The last change does not.
    low, middle, high = (UUID(int=number) for number in (1, 2, 3))
    for id_, touched in ((middle, 90), (low, 40), (high, 60)):
        store.memory(acme, id=id_, age=90, touched=touched, project=str(id_), embedding=vector(0))
    store.memory(acme, id=UUID(int=4), age=91, touched=1, project="x", embedding=vector(0))
    neighbours = {single.memory_id: single.newer_ids for single in selected(store).singles}
    assert neighbours == {low: [middle, high], middle: [high], high: []}


def test_only_live_memories_of_the_same_type_scope_and_model_are_neighbours(
    store: Store,
) -> None:
    acme = store.tenant()
    old = store.memory(acme, age=90, embedding=vector(0))
    common: dict[str, Any] = {"age": 5, "embedding": vector(0)}
    unlike: list[dict[str, Any]] = [
        {"memory_type": "decision"},
        {"memory_type": "note"},
        {"memory_type": "event"},
        {"scope": "home"},
        {"embedding_model": "another"},
        {"embedding_model": None},
        {"embedding": None},
        {"embedding": ZERO},
        {"created_at": AS_OF + MOMENT},
        *DEAD,
    ]
    for odd in unlike:
        store.memory(acme, **common | odd)
    assert one(store, old).newer_ids == []
    at_the_last_moment = store.memory(acme, **common | {"created_at": AS_OF})
    assert one(store, old).newer_ids == [at_the_last_moment]


def test_a_memory_without_a_usable_vector_is_a_candidate_without_neighbours(
    store: Store,
) -> None:
    acme = store.tenant()
    none = store.memory(acme, age=92, embedding=None)
    zero = store.memory(acme, age=91, embedding=ZERO)
    some = store.memory(acme, age=90, embedding=vector(0))
    newer = store.memory(acme, age=5, embedding=vector(1))
    neighbours = {single.memory_id: single.newer_ids for single in selected(store).singles}
    assert neighbours == {none: [], zero: [], some: [newer]}


def test_memories_without_a_known_model_are_each_other_s_neighbours(store: Store) -> None:
    acme = store.tenant()
    old = store.memory(acme, age=90, embedding=vector(0), embedding_model=None)
    newer = store.memory(acme, age=5, embedding=vector(60), embedding_model=None)
    assert one(store, old).newer_ids == [newer]


# Judged once


def test_a_single_that_a_pair_covers_is_marked_on_either_side_and_judged_once(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, "older side", age=95, embedding=vector(0))
    newer = store.memory(acme, "newer side", age=90, embedding=vector(5))
    beside = store.memory(acme, "no side", age=85, embedding=vector(40))
    judge = TestJudge()
    the_pass, partition = Pass(store, judge), store.partition()
    the_pass.run(partition)
    marks = {row["memory_id"]: row["in_pair"] for row in recorded(store)}
    assert marks == {older: True, newer: True, beside: False}
    kinds = [(item["kind"], asked(item)) for item in block_of(judge.states[0])["items"]]
    assert kinds == [("pair", ["older side", "newer side"]), ("single", ["no side"])]
    judged = store.rows("SELECT kind, memory_id, newer_id FROM forgetting.judged_verdicts")
    assert {(row["kind"], row["memory_id"], row["newer_id"]) for row in judged} == {
        ("pair", older, newer),
        ("single", beside, None),
    }


def test_in_a_crowded_store_each_memory_is_judged_at_most_once_in_a_run(store: Store) -> None:
    acme = store.tenant()
    for place in range(30):
        store.memory(
            acme,
            f"memory {place}",
            age=100 - place * 3,
            memory_type=("fact", "decision")[place % 2],
            project=f"alone-{place}" if place % 3 == 0 else None,
            embedding=vector(place * 2),
        )
    judge = TestJudge.that(say("archive"))
    Pass(store, judge).run(store.partition())
    items = [item for state in judge.states for item in block_of(state)["items"]]
    counts = Counter(content for item in items for content in asked(item))
    assert {item["kind"] for item in items} == {"single", "pair"}
    assert set(counts.values()) == {1}
    stale = store.rows("SELECT content FROM memories WHERE updated_at < :b", b=BOUNDARY)
    assert {row["content"] for row in stale} <= set(counts)


def asked(item: dict[str, Any]) -> list[str]:
    """The texts that an item is about; the neighbours of a single are only shown."""
    sides = ["memory"] if item["kind"] == "single" else ["older", "newer"]
    return [item[side]["content"] for side in sides]


# What a partition does not see

DEAD: list[dict[str, Any]] = [
    {"status": "archived"},
    {"valid_to": ago(2)},
    {"status": "archived", "valid_to": TODAY},
    {"valid_to": TODAY + timedelta(days=365)},
]


def test_br_34_a_row_that_is_not_live_is_no_candidate_no_neighbour_and_reopens_nothing(
    store: Store,
) -> None:
    acme = store.tenant()
    live = store.memory(acme, age=60, embedding=vector(0, 750))
    settled = store.memory(acme, age=61, scope="settled", embedding=vector(0, 751))
    record_verdict(store, acme, settled, judged_at=ago(10))
    rows = []
    for dead in DEAD:
        rows.append(store.memory(acme, age=90, **dead))
        rows.append(store.memory(acme, age=5, embedding=vector(1, 750), **dead))
        rows.append(store.memory(acme, age=5, scope="settled", embedding=vector(1, 751), **dead))
    assert taken(store) == [live]
    assert one(store, live).newer_ids == []
    store.execute("UPDATE memories SET status = 'active', valid_to = NULL")
    assert set(taken(store)) == {live, settled, *rows[::3]}
    assert set(one(store, live).newer_ids) < set(rows)


def test_a_memory_created_after_the_day_ended_is_not_seen(store: Store) -> None:
    acme = store.tenant()
    # Imported with an old last change, so that only its creation keeps it away.
    store.memory(acme, created_at=AS_OF + MOMENT, updated_at=ago(60))
    in_time = store.memory(acme, created_at=AS_OF, updated_at=ago(60))
    assert taken(store) == [in_time]


def test_br_42_another_tenant_is_neither_candidate_nor_neighbour_with_rls_and_without(
    store: Store,
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    text = "The vault code rotates on Mondays"
    mine = store.memory(acme, text, age=60, embedding=vector(0))
    blocker = store.memory(acme, age=60, memory_type="blocker", embedding=vector(0))
    theirs = store.memory(borea, text, age=5, embedding=vector(0))
    store.memory(borea, age=5, memory_type="blocker", embedding=vector(0))
    settled = store.memory(acme, age=70, scope="settled", embedding=vector(0))
    record_verdict(store, acme, settled, judged_at=ago(10))
    store.memory(borea, age=5, scope="settled", embedding=vector(0))
    assert without_rls(store, "acme") == {mine: []}
    assert {single.memory_id: single.newer_ids for single in selected(store).singles} == {mine: []}
    ours = store.memory(acme, age=4, embedding=vector(1))
    answer = store.memory(acme, age=4, memory_type="blocker", embedding=vector(1))
    assert without_rls(store, "acme") == {mine: [ours], blocker: [answer]}
    assert without_rls(store, "borea") == {}
    assert theirs not in taken(store)


def without_rls(store: Store, slug: str) -> dict[UUID, list[UUID]]:
    """What is mined and found for a tenant when no row-level security stands behind it."""
    partition, policy = store.partition(slug), make_policy()
    with store.owner.begin() as connection:
        seen = connection.exec_driver_sql("SELECT count(DISTINCT user_id) FROM memories")
        assert seen.scalar_one() > 1, "row-level security is on, so this shows nothing"
        tx = TenantTransaction(connection, partition.user_id)
        mining.update(tx, slug, policy.conflict_floors, TODAY)
        rows = tx.rows(
            candidates.QUERIES["select_stale_singles"],
            run_date=partition.run_date,
            as_of=partition.as_of,
            stale_before=partition.as_of - policy.stale_window,
            rejections=policy.rejections,
            models=list(policy.conflict_floors),
            floors=list(policy.conflict_floors.values()),
            cap=policy.single_cap,
        )
    return {row.memory_id: list(row.newer_ids) for row in rows}


def test_a_partition_replaces_its_own_rows_and_no_others(store: Store) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    gone = store.memory(acme, age=60)
    theirs = store.memory(borea, age=60)
    taken(store, "borea")
    candidates.select(store.database, store.partition(day=YESTERDAY), make_policy(), TODAY)
    assert taken(store) == [gone]
    store.execute("UPDATE memories SET status = 'archived' WHERE id = :id", id=gone)
    mine = store.memory(acme, age=70)
    assert taken(store) == taken(store) == [mine]
    assert {(row["user_id"], row["run_date"], row["memory_id"]) for row in recorded(store)} == {
        (acme, DAY, mine),
        (acme, YESTERDAY, gone),
        (borea, DAY, theirs),
    }


# All rules at once, against an oracle


@dataclass(frozen=True)
class Row:
    """A memory as both the store and the oracle read it."""

    id: UUID
    memory_type: str
    scope: str
    project: str | None
    at: tuple[int, int] | None
    model: str | None
    created: datetime
    updated: datetime
    reviewed: datetime | None
    dead: dict[str, Any]

    @property
    def freshness(self) -> datetime:
        return max(self.updated, self.reviewed or self.updated)

    @property
    def is_seen(self) -> bool:
        return not self.dead and self.created <= AS_OF


@dataclass(frozen=True)
class Said:
    """A verdict, and the status of the proposal made from it."""

    memory: Row
    newer: Row | None
    related: Row | None
    judged_at: datetime
    day: date
    proposal: str | None


def end_of(day: date) -> datetime:
    """What the judge of that day's partition saw nothing after."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)


# Norm 5 and 25: every product and every norm is a whole number, and many cosines are equal.
PLACES = [(3, 4), (4, 3), (15, 20), (20, 15), (7, 24), (24, 7), (5, 0), (0, 5)]
ODD: list[dict[str, Any]] = [
    {"memory_type": "preference"},
    {"memory_type": "note"},
    {"memory_type": "event"},
    {"memory_type": "commitment"},
    {"scope": "home"},
    {"at": (0, 0)},
    {"at": None},
    {"model": "strict"},
    {"model": None},
    {"created": ago(-0.1)},
    *({"dead": dead} for dead in DEAD),
]
FLOORS = {"strict": 24 / 25}
DEFAULT_FLOOR = 20 / 25


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Row], list[Said], int]:
    moments = st.sampled_from(
        [ago(age) for age in (90, 60, 45, 10, 1)] + [BOUNDARY, BOUNDARY - MOMENT]
    )
    memory_type = draw(st.sampled_from(["fact", "blocker"]))
    shuffled = draw(st.permutations([UUID(int=n) for n in range(1, 10)]))
    rows = []
    for id_ in shuffled[draw(st.integers(0, 5)) :]:
        plain: dict[str, Any] = {
            "memory_type": memory_type,
            "scope": "work",
            "project": draw(st.sampled_from([None, "atlas"])),
            "at": draw(st.sampled_from(PLACES)),
            "model": "plain",
            "created": draw(st.sampled_from([ago(age) for age in (90, 60, 60, 20, 5)])),
            "dead": {},
        }
        odd: dict[str, Any] = draw(st.sampled_from([{}] * 2 * len(ODD) + ODD))
        updated = draw(st.sampled_from([ago(90), ago(60), ago(60)]) | moments)
        rows.append(Row(id=id_, updated=updated, reviewed=draw(st.none() | moments), **plain | odd))
    judgeable = [row for row in rows if row.memory_type in STALE_TYPES]
    said: list[Said] = []
    for _ in range(draw(st.integers(0, 4))):
        if len(judgeable) < 2:
            break
        memory, other = draw(
            st.lists(
                st.sampled_from(judgeable), min_size=2, max_size=2, unique_by=lambda row: row.id
            )
        )
        is_pair, names_other = draw(st.booleans()), draw(st.booleans())
        proposal = draw(st.sampled_from([None, "dismissed", "rejected", "proposed"]))
        if proposal == "proposed" and (
            not names_other
            or any(each.proposal == "proposed" and each.memory == memory for each in said)
        ):
            proposal = None
        said.append(
            Said(
                memory,
                other if is_pair else None,
                other if names_other else None,
                draw(moments),
                draw(st.sampled_from([DAY, YESTERDAY, YESTERDAY])),
                proposal,
            )
        )
    return rows, said, draw(st.sampled_from([1, 3, 60]))


def cosine(one: Row, other: Row) -> float | None:
    """The exact cosine, or None where two vectors cannot be compared."""
    if one.at in (None, (0, 0)) or other.at in (None, (0, 0)) or one.model != other.model:
        return None
    assert one.at is not None
    assert other.at is not None
    product = sum(a * b for a, b in zip(one.at, other.at, strict=True))
    return product / (math.hypot(*one.at) * math.hypot(*other.at))


def oracle(
    rows: list[Row], said: list[Said], cap: int
) -> tuple[list[tuple[UUID, list[UUID], list[float]]], int]:
    """What the partition must take, and the total: every rule, one by one."""
    due = []
    for row in rows:
        if not row.is_seen or row.memory_type not in STALE_TYPES or row.freshness >= BOUNDARY:
            continue
        newer = [
            (-similarity, other.id, other.created, other.project)
            for other in rows
            if other.is_seen
            and (other.memory_type, other.scope) == (row.memory_type, row.scope)
            and (other.created, other.id) > (row.created, row.id)
            and (similarity := cosine(row, other)) is not None
        ]
        if row.memory_type == "blocker" and not newer:
            continue
        others = [each for each in said if each.day != DAY]
        if any(
            each.proposal == "proposed" and row in (each.memory, each.related) for each in others
        ):
            continue
        named = [
            each.related
            for each in others
            if each.memory == row and each.related and each.judged_at > row.freshness
        ]
        if any(each.proposal == "proposed" and each.memory in named for each in others):
            continue
        floor = FLOORS.get(row.model or "", DEFAULT_FLOOR)
        if any(
            each.memory == row
            and each.proposal is not None
            and each.judged_at > row.freshness
            and not (each.related and each.related.freshness >= each.judged_at)
            and not any(
                project == row.project and created > end_of(each.day) and -away >= floor
                for away, _, created, project in newer
            )
            for each in others
        ):
            continue
        nearest = sorted(newer, key=lambda other: other[:2])[:3]
        due.append((row, [id_ for _, id_, *_ in nearest], [-away for away, *_ in nearest]))
    due.sort(key=lambda single: (single[0].freshness, single[0].id))
    return [(row.id, ids, cosines) for row, ids, cosines in due[:cap]], len(due)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds())
def test_the_selection_is_that_of_a_brute_force_oracle(
    store: Store, world: tuple[list[Row], list[Said], int]
) -> None:
    rows, said, cap = world
    acme = one_tenant(store)
    store.execute("DELETE FROM memories")
    for row in rows:
        store.memory(
            acme,
            id=row.id,
            memory_type=row.memory_type,
            scope=row.scope,
            project=row.project,
            created_at=row.created,
            updated_at=row.updated,
            reviewed_at=row.reviewed,
            embedding=None if row.at is None else [*row.at, *ZERO[2:]],
            embedding_model=row.model,
            **row.dead,
        )
    for each in said:
        record_verdict(
            store,
            acme,
            each.memory.id,
            newer=each.newer.id if each.newer else None,
            verdict="conflict" if each.related else "keep",
            related=each.related.id if each.related else None,
            judged_at=each.judged_at,
            day=each.day,
            proposal=each.proposal,
        )
    policy = make_policy(single_cap=cap, conflict_floors=FLOORS, floor=DEFAULT_FLOOR)
    found = selected(store, policy=policy)
    expected, total = oracle(rows, said, cap)
    event(f"{total} due, {len(expected)} taken, {sum(bool(ids) for _, ids, _ in expected)} with")
    assert [(single.memory_id, single.newer_ids) for single in found.singles] == [
        (id_, ids) for id_, ids, _ in expected
    ]
    for single, (_, _, cosines) in zip(found.singles, expected, strict=True):
        assert single.newer_similarities == pytest.approx(cosines, abs=1e-12)
    assert found.total == total
    paired = {
        id_
        for row in store.rows("SELECT older_id, newer_id FROM forgetting.conflict_pairs")
        for id_ in row.values()
    }
    assert {(single.memory_id, single.in_pair) for single in found.singles} == {
        (id_, id_ in paired) for id_, _, _ in expected
    }
    items = verdicts.read_items(store.database, store.partition())
    looked_at = Counter(
        side.id
        for item in items
        for side in ((item.older, item.newer) if isinstance(item, Pair) else (item.memory,))
    )
    assert set(looked_at.values()) <= {1}


def one_tenant(store: Store) -> UUID:
    """The tenant of a property test, the same for every example."""
    found = store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")
    user_id: UUID = found[0]["user_id"] if found else store.tenant()
    return user_id
