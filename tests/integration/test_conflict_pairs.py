"""Conflict pairs: which two memories a partition asks about, and in which order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from forgetting_assets.store import mining, pairs
from forgetting_assets.store.pairs import DuePair
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
    degrees,
    make_policy,
    record_consolidation,
    record_edge,
    record_verdict,
    say,
    vector,
)

AS_OF = datetime(2026, 9, 1, tzinfo=UTC)
YESTERDAY = DAY - timedelta(days=1)
EDGE_TYPES = ("supersedes", "updates", "extends", "derives")
ZERO = [0.0] * 1536

Sides = tuple[UUID, UUID]


def taken(store: Store, slug: str = "acme", policy: Policy | None = None) -> list[DuePair]:
    """The pairs that the partition takes, in rank order."""
    return pairs.select(store.database, store.partition(slug), policy or make_policy(), TODAY).pairs


def sides(chosen: list[DuePair]) -> list[Sides]:
    """(older, newer) of each pair."""
    return [(pair.older_id, pair.newer_id) for pair in chosen]


def recorded(store: Store) -> list[dict[str, Any]]:
    """The rows of the asset's table."""
    return store.rows("SELECT * FROM forgetting.conflict_pairs ORDER BY user_id, run_date, rank")


def mined_without_rls(store: Store, slug: str, policy: Policy | None = None) -> list[Sides]:
    """What is mined and found for a tenant when no row-level security stands behind it."""
    partition, policy = store.partition(slug), policy or make_policy()
    with store.owner.begin() as connection:
        tx = TenantTransaction(connection, partition.user_id)
        tx.connection.exec_driver_sql("DELETE FROM forgetting.mined_memories")
        tx.connection.exec_driver_sql("DELETE FROM forgetting.minings")
        seen = tx.connection.exec_driver_sql("SELECT count(DISTINCT user_id) FROM memories")
        assert seen.scalar_one() > 1, "row-level security is on, so this shows nothing"
        mining.update(tx, slug, policy.conflict_floors, TODAY)
        return sides(list(pairs.due(tx, partition, policy)))


def two(
    store: Store, user_id: UUID, axis: int, one: dict[str, Any], other: dict[str, Any]
) -> Sides:
    """Two memories of one vector, near no other axis; the first is older unless told otherwise."""
    common: dict[str, Any] = {"embedding": vector(0, axis)}
    first = store.memory(user_id, **common | {"age": 60} | one)
    return first, store.memory(user_id, **common | {"age": 50} | other)


def grid(x: float, y: float, axis: int = 0) -> list[float]:
    """A vector with whole coordinates, so that its cosines are exact on both sides."""
    values = [0.0] * 1536
    values[2 * axis], values[2 * axis + 1] = x, y
    return values


# Which memories can be a pair


def test_close_decisions_preferences_and_facts_are_pairs(store: Store) -> None:
    acme = store.tenant()
    expected = {
        store.pair(acme, 0.9, memory_type=memory_type): memory_type
        for memory_type in ("decision", "preference", "fact")
    }
    chosen = taken(store)
    assert {(pair.older_id, pair.newer_id): pair.memory_type for pair in chosen} == expected
    assert [pair.similarity for pair in chosen] == pytest.approx([0.9] * 3, abs=1e-6)


def test_no_other_type_is_ever_a_side_of_a_pair(store: Store) -> None:
    acme = store.tenant()
    for memory_type in ("event", "note", "blocker", "commitment", "pattern"):
        store.pair(acme, 0.99, memory_type=memory_type)
    control = store.pair(acme, 0.99, memory_type="decision")
    assert sides(taken(store)) == [control]


def test_types_are_not_mixed_in_a_pair(store: Store) -> None:
    acme = store.tenant()
    types = ("decision", "preference", "fact", "event", "note")
    for place, memory_type in enumerate(types):
        store.memory(acme, memory_type=memory_type, age=60 - place, embedding=vector(0))
    control = store.memory(acme, memory_type="fact", age=5, embedding=vector(0))
    (found,) = sides(taken(store))
    assert found[1] == control


def test_br_13_recurring_stand_ups_and_dated_notes_are_never_paired(store: Store) -> None:
    acme = store.tenant()
    step = degrees(0.99)
    for place, day in enumerate(("Mon", "Tue", "Wed", "Thu")):
        for axis, memory_type in ((701, "event"), (702, "note")):
            store.memory(
                acme,
                f"Standup {day}: auth done, search next ({memory_type})",
                memory_type=memory_type,
                age=40 - place,
                embedding=vector(place * step / 3, axis),
            )
    store.memory(acme, "Use the latest Postgres in prod", memory_type="decision", age=90)
    older = store.memory(
        acme,
        "Standups are at nine",
        memory_type="decision",
        age=40,
        embedding=vector(0, 703),
    )
    newer = store.memory(
        acme,
        "Standups are at ten",
        memory_type="decision",
        age=39,
        embedding=vector(step, 703),
    )
    assert sides(taken(store)) == [(older, newer)]


def test_br_14_each_of_72_dated_entries_stays_an_entry_of_its_own(store: Store) -> None:
    acme = store.tenant()
    for memory_type in ("event", "note"):
        for session, entry in itertools.product(range(6), range(12)):
            store.memory(
                acme,
                f"Session {session}, {memory_type} {entry}: reviewed the queue",
                memory_type=memory_type,
                age=100 - session * 12 - entry,
                embedding=vector(0, 701),
            )
    control = store.pair(acme, 0.99)
    before = store.dump("memories")
    judge = TestJudge.that(say("archive_older"))
    done = Pass(store, judge).run(store.partition())
    assert sides(taken(store)) == [control]
    assert dict(done.proposed) == {"archive": 1}
    assert "reviewed the queue" not in "".join(judge.states)
    assert store.dump("memories") == before
    live = store.rows(
        "SELECT content FROM memories WHERE memory_type IN ('event', 'note')"
        " AND status = 'active' AND valid_to IS NULL"
    )
    assert len({row["content"] for row in live}) == 144


def test_br_47_a_pair_is_of_one_type_scope_and_project_and_no_project_equals_no_project(
    store: Store,
) -> None:
    acme = store.tenant()
    cases: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({}, {}, True),
        ({"project": "atlas"}, {"project": "atlas"}, True),
        ({"project": "atlas"}, {}, False),
        ({}, {"project": "atlas"}, False),
        ({"project": "atlas"}, {"project": "borea"}, False),
        ({"project": ""}, {}, False),
        ({"scope": "home"}, {"scope": "work"}, False),
        ({"scope": "home"}, {"scope": "home"}, True),
        ({"memory_type": "decision"}, {"memory_type": "preference"}, False),
    ]
    expected = set()
    for axis, (one, other, paired) in enumerate(cases, start=701):
        found = two(store, acme, axis, one, other)
        expected |= {found} if paired else set()
    assert set(sides(taken(store))) == expected


# The floor


def test_the_floor_is_kept_exactly(store: Store) -> None:
    acme = store.tenant()
    # 3-4-5 vectors: their cosines are exact, 24/25 and 20/25.
    older = store.memory(acme, age=60, embedding=grid(3, 4, 701))
    newer = store.memory(acme, age=50, embedding=grid(4, 3, 701))
    store.memory(acme, age=60, scope="far", embedding=grid(3, 4, 701))
    store.memory(acme, age=50, scope="far", embedding=grid(0, 5, 701))
    at = taken(store, policy=make_policy(floor=24 / 25))
    assert sides(at) == [(older, newer)]
    assert at[0].similarity == 24 / 25
    just_above = math.nextafter(24 / 25, 1)
    assert taken(store, policy=make_policy(floor=just_above)) == []


def test_br_12_the_floor_belongs_to_the_embedding_model_and_is_recorded(store: Store) -> None:
    acme = store.tenant()
    # Two aspects of one upload protocol, related but distinct.
    strict = store.pair(acme, 0.888, embedding_model="nomic-embed-text-v1.5")
    other = store.pair(acme, 0.888, embedding_model="another-model")
    unknown = store.pair(acme, 0.889, embedding_model=None)
    loose = store.pair(acme, 0.55, embedding_model="minilm")
    floors = {"nomic-embed-text-v1.5": 0.92, "minilm": 0.5}
    assert sides(taken(store, policy=make_policy(conflict_floors=floors))) == [
        unknown,
        other,
        loose,
    ]
    assert [(row["embedding_model"], row["floor"]) for row in recorded(store)] == [
        ("unknown", 0.82),
        ("another-model", 0.82),
        ("minilm", 0.5),
    ]
    assert strict in sides(taken(store)), "at the floor of the others it is a pair"
    assert {row["floor"] for row in recorded(store)} == {0.82}


def test_a_floor_that_is_raised_applies_to_the_next_materialization(store: Store) -> None:
    acme = store.tenant()
    high, low = store.pair(acme, 0.95), store.pair(acme, 0.85)
    assert sides(taken(store)) == [high, low]
    assert sides(taken(store, policy=make_policy(floor=0.9))) == [high]
    assert [(row["older_id"], row["floor"]) for row in recorded(store)] == [(high[0], 0.9)]


def test_vectors_of_two_embedding_models_are_never_compared(store: Store) -> None:
    acme = store.tenant()
    models = ("minilm", "nomic", None)
    expected = set()
    for axis, (one, other) in enumerate(itertools.product(models, models), start=701):
        found = two(store, acme, axis, {"embedding_model": one}, {"embedding_model": other})
        expected |= {found} if one == other else set()
    assert len(expected) == 3
    assert set(sides(taken(store))) == expected


def test_a_memory_without_a_vector_or_with_a_zero_vector_is_in_no_pair(store: Store) -> None:
    acme = store.tenant()
    for age in (60, 50):
        store.memory(acme, age=age, embedding=None)
        store.memory(acme, age=age, embedding=ZERO)
    store.memory(acme, age=40, embedding=vector(0))
    control = store.pair(acme, 0.9)
    # Cosine with a zero vector is NaN, which PostgreSQL sorts above every number.
    assert sides(taken(store)) == [control]
    assert sides(taken(store, policy=make_policy(floor=0.82, pair_cap=1))) == [control]


def test_an_opposite_or_orthogonal_vector_is_no_pair(store: Store) -> None:
    acme = store.tenant()
    for age, angle in ((60, 0), (55, 90), (50, 180), (45, 270)):
        store.memory(acme, age=age, embedding=vector(angle))
    control = store.pair(acme, 0.9)
    assert sides(taken(store)) == [control]


# Orientation and order


def test_the_newer_side_is_the_one_created_later(store: Store) -> None:
    acme = store.tenant()
    expected = set()
    # Neither the id, nor the last change, nor the order of insertion decides.
    for axis, (older_first, older_id, newer_id) in enumerate(
        [(True, 11, 12), (False, 14, 13), (True, 16, 15), (False, 17, 18)], start=701
    ):
        older = {"id": UUID(int=older_id), "age": 60, "touched": 1}
        newer = {"id": UUID(int=newer_id), "age": 50, "touched": 40}
        two(store, acme, axis, *((older, newer) if older_first else (newer, older)))
        expected.add((older["id"], newer["id"]))
    assert set(sides(taken(store))) == expected


def test_of_two_created_at_one_moment_the_newer_side_has_the_greater_id(store: Store) -> None:
    acme = store.tenant()
    low = {"id": UUID(int=11), "age": 60, "touched": 40}
    high = {"id": UUID(int=12), "age": 60, "touched": 1}
    two(store, acme, 701, low, high)
    two(store, acme, 702, high | {"id": UUID(int=14)}, low | {"id": UUID(int=13)})
    expected = [(UUID(int=11), UUID(int=12)), (UUID(int=13), UUID(int=14))]
    assert sides(taken(store)) == expected


def test_pairs_with_a_stale_older_side_come_first_then_the_more_similar(store: Store) -> None:
    acme = store.tenant()
    fresh_far = store.pair(acme, 0.9, older_age=20)
    stale_far = store.pair(acme, 0.84)
    fresh_near = store.pair(acme, 0.999, older_age=20)
    stale_near = store.pair(acme, 0.86)
    assert sides(taken(store)) == [stale_near, stale_far, fresh_near, fresh_far]
    rows = recorded(store)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert [row["older_is_stale"] for row in rows] == [True, True, False, False]


def test_only_a_stale_older_side_ranks_first_and_exactly_30_days_is_not_stale(
    store: Store,
) -> None:
    acme = store.tenant()
    boundary = AS_OF - timedelta(days=30)
    moment = timedelta(microseconds=1)

    def pair(axis: int, cosine: float, older: datetime, newer: datetime) -> Sides:
        first = store.memory(acme, age=90, updated_at=older, embedding=vector(0, axis))
        angle = degrees(cosine)
        second = store.memory(acme, age=80, updated_at=newer, embedding=vector(angle, axis))
        return first, second

    at = pair(701, 0.99, boundary, boundary - moment)
    newer_stale = pair(702, 0.98, AS_OF - timedelta(days=1), AS_OF - timedelta(days=70))
    stale = pair(703, 0.85, boundary - moment, AS_OF - timedelta(days=1))
    chosen = taken(store)
    assert sides(chosen) == [stale, at, newer_stale]
    assert [pair.older_is_stale for pair in chosen] == [True, False, False]


def test_a_review_makes_the_older_side_fresh(store: Store) -> None:
    acme = store.tenant()
    reviewed = store.memory(acme, age=90, reviewed_at=ago(3), embedding=vector(0, 701))
    newer = store.memory(acme, age=80, embedding=vector(0, 701))
    stale = store.pair(acme, 0.83)
    assert sides(taken(store)) == [stale, (reviewed, newer)]


def test_ties_are_broken_by_ids_so_a_run_is_deterministic(store: Store) -> None:
    acme = store.tenant()
    ids = [UUID(int=n) for n in (5, 3, 9, 1, 7, 2, 8, 4)]
    for place in range(4):
        for age, angle in ((60, 0), (50, 10)):
            store.memory(
                acme,
                id=ids[2 * place + (age == 50)],
                age=age,
                embedding=vector(angle, 701 + place),
            )
    older_first = sorted((ids[2 * place], ids[2 * place + 1]) for place in range(4))
    assert sides(taken(store)) == older_first
    assert sides(taken(store, policy=make_policy(pair_cap=2))) == older_first[:2]


# One pair a memory, and the cap


def test_br_03_two_near_identical_facts_are_one_pair_and_never_both_proposed(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, "The office is in Lyon", age=60, embedding=vector(0))
    newer = store.memory(acme, "The office is in Lyon.", age=50, embedding=vector(0))
    judge = TestJudge.that(say("archive_older"))
    the_pass = Pass(store, judge)
    done = the_pass.run(store.partition())
    assert sides(taken(store)) == [(older, newer)]
    (item,) = block_of(judge.states[0])["items"]
    assert (item["kind"], item["older"]["content"]) == ("pair", "The office is in Lyon")
    assert dict(done.proposed) == {"archive": 1}
    proposed = store.rows("SELECT memory_id FROM retention_proposals WHERE status = 'proposed'")
    assert [row["memory_id"] for row in proposed] == [older]


def test_br_03_each_memory_is_in_one_pair_and_the_better_pair_has_it(store: Store) -> None:
    acme = store.tenant()
    first = store.memory(acme, age=63, embedding=vector(0))
    second = store.memory(acme, age=62, embedding=vector(20))
    third = store.memory(acme, age=61, embedding=vector(25))
    fourth = store.memory(acme, age=60, embedding=vector(42))
    # first-second 20, second-third 5, third-fourth 17: the middle pair takes both of its sides.
    chosen = sides(taken(store))
    assert chosen == [(second, third)]
    store.execute("DELETE FROM memories WHERE id = :id", id=third)
    assert sides(taken(store)) == [(first, second)]
    assert fourth not in sides(taken(store))[0]


def test_the_cap_is_40_pairs_and_the_best_40_fill_it(store: Store) -> None:
    acme = store.tenant()
    made = [store.pair(acme, 0.83 + place / 300) for place in range(43)]
    found = pairs.select(store.database, store.partition(), make_policy(), TODAY)
    assert found.total == 43
    assert sides(found.pairs) == made[:2:-1]
    assert len(recorded(store)) == 40


def test_br_23_settled_pairs_above_do_not_use_up_the_cap(store: Store) -> None:
    acme = store.tenant()
    barriers: list[Callable[[UUID, UUID], object]] = [
        lambda older, newer: record_verdict(store, acme, older, newer=newer),
        lambda older, newer: record_edge(store, acme, newer, older),
        lambda older, newer: record_consolidation(store, acme, older, newer, "rejected"),
        lambda older, newer: record_verdict(
            store, acme, older, newer=newer, verdict="archive", proposal="proposed"
        ),
    ]
    settled = [store.pair(acme, 0.99) for _ in range(44)]
    assert len(set(sides(taken(store))) & set(settled)) == 40
    starved = store.pair(acme, 0.83)
    assert starved not in sides(taken(store)), "the better pairs fill the cap while they are open"
    for place, (older, newer) in enumerate(settled):
        barriers[place % len(barriers)](older, newer)
    assert sides(taken(store)) == [starved]


def test_pairs_that_may_not_be_judged_do_not_use_up_the_cap(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("borea")
    for _ in range(21):
        store.pair(acme, 0.99, memory_type="event")
        store.pair(acme, 0.99, status="archived")
        store.pair(other, 0.99)
    wanted = store.pair(acme, 0.83)
    assert sides(taken(store)) == [wanted]
    assert mined_without_rls(store, "acme") == [wanted]


# What settles a pair


def test_an_edge_of_any_type_and_direction_settles_its_pair(store: Store) -> None:
    acme = store.tenant()
    kinds = list(itertools.product(EDGE_TYPES, (1, -1)))
    linked = [store.pair(acme, 0.95) for _ in kinds]
    assert set(sides(taken(store))) == set(linked)
    for (edge_type, way), pair in zip(kinds, linked, strict=True):
        record_edge(store, acme, pair[::way][0], pair[::way][1], edge_type)
    control = store.pair(acme, 0.9)
    record_edge(store, acme, control[0], store.memory(acme))
    assert sides(taken(store)) == [control]


def test_a_consolidation_proposal_in_any_status_and_direction_settles_its_pair(
    store: Store,
) -> None:
    acme = store.tenant()
    kinds = list(itertools.product(("proposed", "applied", "rejected"), (1, -1)))
    staged = [store.pair(acme, 0.95) for _ in kinds]
    assert set(sides(taken(store))) == set(staged)
    for (status, way), pair in zip(kinds, staged, strict=True):
        record_consolidation(store, acme, pair[::way][0], pair[::way][1], status)
    control = store.pair(acme, 0.9)
    record_consolidation(store, acme, control[0], store.memory(acme))
    assert sides(taken(store)) == [control]


def test_any_verdict_on_the_very_pair_settles_it(store: Store) -> None:
    acme = store.tenant()
    kinds = [
        ("keep", "dismissed"),
        ("archive", "dismissed"),
        ("archive", "rejected"),
        ("supersede", "dismissed"),
        ("supersede", "rejected"),
        ("conflict", "rejected"),
        ("conflict", "applied"),
    ]
    judged = [store.pair(acme, 0.95) for _ in kinds]
    control = store.pair(acme, 0.9)
    assert set(sides(taken(store))) == {*judged, control}
    for (verdict, status), (older, newer) in zip(kinds, judged, strict=True):
        related = newer if verdict in ("supersede", "conflict") else None
        record_verdict(
            store, acme, older, newer=newer, verdict=verdict, related=related, proposal=status
        )
    assert sides(taken(store)) == [control]


def test_a_verdict_that_no_run_wrote_down_as_a_proposal_settles_no_pair(store: Store) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme, 0.95)
    record_verdict(store, acme, older, newer=newer, proposal=None)
    assert sides(taken(store)) == [(older, newer)]


def test_another_pair_of_the_same_memory_settles_nothing(store: Store) -> None:
    acme = store.tenant()
    first = store.memory(acme, age=60, embedding=vector(0))
    second = store.memory(acme, age=50, embedding=vector(1))
    third = store.memory(acme, age=40, embedding=vector(3))
    assert sides(taken(store)) == [(first, second)]
    record_verdict(store, acme, first, newer=second)
    assert sides(taken(store)) == [(second, third)]
    record_verdict(store, acme, second, newer=third)
    assert sides(taken(store)) == [(first, third)]
    record_verdict(store, acme, first, newer=third)
    assert taken(store) == []


def test_a_single_s_verdict_settles_a_pair_only_when_it_names_the_newer_one(
    store: Store,
) -> None:
    acme = store.tenant()
    superseded = store.pair(acme, 0.95)
    kept = store.pair(acme, 0.94)
    elsewhere = store.pair(acme, 0.93)
    assert sides(taken(store)) == [superseded, kept, elsewhere]
    record_verdict(store, acme, superseded[0], verdict="supersede", related=superseded[1])
    record_verdict(store, acme, kept[0])
    record_verdict(store, acme, elsewhere[0], verdict="supersede", related=store.memory(acme))
    assert sides(taken(store)) == [kept, elsewhere]


def test_a_pair_reopens_when_the_freshness_of_either_side_moves_past_its_verdict(
    store: Store,
) -> None:
    acme = store.tenant()
    judged_at = ago(3)
    moves = list(itertools.product((0, 1), ("updated_at", "last_reviewed_at")))
    judged = [store.pair(acme, 0.95) for _ in moves]
    for older, newer in judged:
        record_verdict(store, acme, older, newer=newer, judged_at=judged_at)
    assert taken(store) == []
    for moment, expected in ((judged_at - timedelta(microseconds=1), []), (judged_at, judged)):
        for (side, column), pair in zip(moves, judged, strict=True):
            move = f"UPDATE memories SET {column} = :moment WHERE id = :id"
            store.execute(move, moment=moment, id=pair[side])
        assert set(sides(taken(store))) == set(expected)


def test_a_verdict_of_this_very_partition_does_not_settle_it(store: Store) -> None:
    acme = store.tenant()
    mine, other = store.pair(acme, 0.95), store.pair(acme, 0.94)
    record_verdict(
        store,
        acme,
        mine[0],
        newer=mine[1],
        verdict="conflict",
        related=mine[1],
        day=DAY,
        proposal="proposed",
    )
    record_verdict(
        store,
        acme,
        other[0],
        newer=other[1],
        verdict="conflict",
        related=other[1],
        day=YESTERDAY,
        proposal="proposed",
    )
    assert sides(taken(store)) == [mine]


@pytest.mark.parametrize("status", ["proposed", "rejected", "dismissed"])
def test_a_memory_of_an_open_proposal_is_in_no_pair(store: Store, status: str) -> None:
    acme = store.tenant()
    subject, newer = store.pair(acme, 0.95)
    related = store.memory(acme, age=70)
    store.execute(
        "UPDATE memories SET embedding = CAST(:v AS vector) WHERE id = :id",
        v=str(vector(0, 701)),
        id=related,
    )
    neighbour = store.memory(acme, age=4, embedding=vector(10, 701))
    record_verdict(store, acme, subject, verdict="supersede", related=related, proposal=status)
    expected = [] if status == "proposed" else [(related, neighbour), (subject, newer)]
    assert sorted(sides(taken(store))) == sorted(expected)


# What a partition does not see


def test_a_memory_created_after_the_day_ended_is_not_seen(store: Store) -> None:
    acme = store.tenant()
    older = store.memory(acme, age=60, embedding=vector(0))
    late = store.memory(acme, created_at=AS_OF + timedelta(microseconds=1), embedding=vector(1))
    assert taken(store) == []
    in_time = store.memory(acme, created_at=AS_OF, embedding=vector(20))
    assert sides(taken(store)) == [(older, in_time)]
    next_day = store.partition(day=DAY + timedelta(days=1), now=TODAY + timedelta(days=1))
    chosen = pairs.select(store.database, next_day, make_policy(), TODAY).pairs
    assert sides(chosen) == [(older, late)]


DEAD: list[dict[str, Any]] = [
    {"status": "archived"},
    {"valid_to": ago(2)},
    {"status": "archived", "valid_to": TODAY},
    {"valid_to": TODAY + timedelta(days=365)},
]


def test_br_34_a_row_that_is_not_live_is_on_no_side_of_a_pair(store: Store) -> None:
    acme = store.tenant()
    cases = itertools.product(DEAD, [(True, False), (False, True), (True, True)])
    ids = {
        two(store, acme, axis, dead if on_older else {}, dead if on_newer else {})
        for axis, (dead, (on_older, on_newer)) in enumerate(cases, start=701)
    }
    control = store.pair(acme, 0.9)
    assert sides(taken(store)) == [control]
    store.execute("UPDATE memories SET status = 'active', valid_to = NULL")
    assert set(sides(taken(store))) == {*ids, control}


# Tenants


def test_br_42_identical_texts_of_two_tenants_are_no_pair_with_rls_and_without(
    store: Store,
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    for age, tenant in ((60, acme), (50, borea)):
        store.memory(tenant, "The vault code rotates on Mondays", age=age, embedding=vector(0))
    mine, theirs = store.pair(acme, 0.9), store.pair(borea, 0.9)
    assert sides(taken(store)) == mined_without_rls(store, "acme") == [mine]
    assert sides(taken(store, "borea")) == mined_without_rls(store, "borea") == [theirs]
    assert {(row["user_id"], row["older_id"]) for row in recorded(store)} == {
        (acme, mine[0]),
        (borea, theirs[0]),
    }


def test_br_44_another_tenant_s_nearer_memories_suppress_none_of_mine(store: Store) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    older = store.memory(acme, "I live in Porto", age=60, embedding=vector(0))
    newer = store.memory(acme, "I moved to Porto", age=5, embedding=vector(degrees(0.83)))
    for place in range(45):
        store.memory(borea, f"My home is Porto {place}", age=50, embedding=vector(place / 100))
    assert sides(taken(store)) == mined_without_rls(store, "acme") == [(older, newer)]
    assert len(mined_without_rls(store, "borea")) == 45 * 44 // 2


def test_a_partition_replaces_its_own_rows_and_no_others(store: Store) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    gone = store.pair(acme, 0.9)
    theirs = store.pair(borea, 0.9)
    taken(store, "borea")
    pairs.select(store.database, store.partition(day=YESTERDAY), make_policy(), TODAY)
    assert sides(taken(store)) == [gone]
    store.execute("UPDATE memories SET status = 'archived' WHERE id = :id", id=gone[0])
    mine = store.pair(acme, 0.95)
    assert sides(taken(store)) == sides(taken(store)) == [mine]
    assert {(row["user_id"], row["run_date"], row["older_id"]) for row in recorded(store)} == {
        (acme, DAY, mine[0]),
        (acme, YESTERDAY, gone[0]),
        (borea, DAY, theirs[0]),
    }


# Similarity selects, never decides


@pytest.mark.parametrize(
    ("older", "newer", "cosine"),
    [
        pytest.param("Freeze is on the 15th", "Freeze is on the 16th", 0.991, id="br_09"),
        pytest.param(
            "We picked SQLite over Postgres for simplicity",
            "We picked fastembed over OpenAI for locality",
            0.92,
            id="br_10",
        ),
    ],
)
def test_br_09_br_10_near_identical_texts_go_to_the_judge_and_nothing_is_decided_without_it(
    store: Store, older: str, newer: str, cosine: float
) -> None:
    acme = store.tenant()
    first = store.memory(acme, older, memory_type="decision", age=60, embedding=vector(0))
    second = store.memory(
        acme, newer, memory_type="decision", age=5, embedding=vector(degrees(cosine))
    )
    before = store.dump("memories")
    keeps = TestJudge.that(say("keep_both", 0.99))
    done = Pass(store, keeps).run(store.partition())
    (item,) = block_of(keeps.states[0])["items"]
    assert (item["older"]["content"], item["newer"]["content"]) == (older, newer)
    assert not done.proposed
    assert done.dismissed == 1
    assert store.dump("memories") == before

    # The same two texts, other answers: what becomes of them is the judge's word alone.
    for key, action in (("supersede_older", "supersede"), ("conflict", "conflict")):
        for table in ("retention_proposals", "forgetting.judged_verdicts"):
            store.execute(f"DELETE FROM {table}")
        done = Pass(store, TestJudge.that(say(key))).run(store.partition())
        assert dict(done.proposed) == {action: 1}
        (row,) = store.rows("SELECT memory_id, related_memory_id FROM retention_proposals")
        assert (row["memory_id"], row["related_memory_id"]) == (first, second)
    assert store.dump("memories") == before


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


@dataclass(frozen=True)
class Said:
    """A verdict, on a single or a pair, and the status of the proposal made from it."""

    memory: Row
    newer: Row | None
    verdict: str
    related: Row | None
    judged_at: datetime
    day: date
    proposal: str | None


@dataclass(frozen=True)
class World:
    """A small store."""

    rows: list[Row]
    links: list[tuple[str, list[Row]]]
    said: list[Said]
    cap: int


# Norm 5 and 25: every product and every norm is a whole number, and many cosines are equal.
PLACES = [(3, 4), (4, 3), (15, 20), (20, 15), (7, 24), (24, 7), (5, 0)]
ODD: list[dict[str, Any]] = [
    {"memory_type": "decision"},
    {"memory_type": "note"},
    {"memory_type": "event"},
    {"scope": "home"},
    {"project": "atlas"},
    {"project": "borea"},
    {"at": (0, 0)},
    {"at": None},
    {"model": "strict"},
    {"model": None},
    {"created": ago(-0.1)},
    *({"dead": dead} for dead in DEAD),
]
AGES = [90.0, 60.0, 45.0, 30.0, 10.0, 1.0]
FLOORS = {"strict": 24 / 25}
DEFAULT_FLOOR = 20 / 25


@st.composite
def worlds(draw: st.DrawFn) -> World:
    moments = st.sampled_from([ago(age) for age in AGES])
    group: dict[str, Any] = draw(
        st.sampled_from([{}, {"project": "atlas"}, {"model": "strict"}, {"model": None}])
    )
    rows = []
    for id_ in draw(st.permutations([UUID(int=n) for n in range(1, 10)]))[
        draw(st.integers(0, 5)) :
    ]:
        plain: dict[str, Any] = {
            "memory_type": "fact",
            "scope": "work",
            "project": None,
            "at": draw(st.sampled_from(PLACES)),
            "model": "plain",
            "created": draw(st.sampled_from([ago(age) for age in (90, 60, 60, 5)])),
            "dead": {},
        }
        odd: dict[str, Any] = draw(st.sampled_from([{}] * 3 * len(ODD) + ODD))
        reviewed = draw(st.none() | moments)
        rows.append(Row(id=id_, updated=draw(moments), reviewed=reviewed, **plain | group | odd))
    two = st.lists(st.sampled_from(rows), min_size=2, max_size=2, unique_by=lambda row: row.id)
    links = draw(
        st.lists(
            st.tuples(st.sampled_from([*EDGE_TYPES, "proposed", "rejected"]), two),
            max_size=3,
            unique_by=lambda link: (link[0], link[1][0].id, link[1][1].id),
        )
    )
    said: list[Said] = []
    for _ in range(draw(st.integers(0, 4))):
        memory, other = draw(two)
        if {memory.memory_type, other.memory_type} & {"note", "event"}:
            continue
        kind = draw(st.sampled_from(["single", "pair"]))
        verdict = draw(st.sampled_from(["keep", "archive", "supersede", "conflict"]))
        proposal = draw(st.sampled_from([None, "dismissed", "rejected", "proposed"]))
        if verdict == "keep" and proposal == "proposed":
            proposal = "dismissed"
        if proposal == "proposed" and any(
            each.proposal == "proposed" and each.memory == memory for each in said
        ):
            continue
        said.append(
            Said(
                memory,
                other if kind == "pair" else None,
                verdict,
                other if verdict in ("supersede", "conflict") else None,
                draw(moments),
                draw(st.sampled_from([DAY, YESTERDAY, YESTERDAY])),
                proposal,
            )
        )
    return World(rows, links, said, draw(st.sampled_from([1, 2, 40])))


def lay_out(store: Store, user_id: UUID, world: World) -> None:
    """Make the store this very world."""
    store.execute("DELETE FROM memories")
    for row in world.rows:
        store.memory(
            user_id,
            id=row.id,
            memory_type=row.memory_type,
            scope=row.scope,
            project=row.project,
            created_at=row.created,
            updated_at=row.updated,
            reviewed_at=row.reviewed,
            embedding=None if row.at is None else grid(*row.at),
            embedding_model=row.model,
            **row.dead,
        )
    for kind, (one, other) in world.links:
        if kind in EDGE_TYPES:
            record_edge(store, user_id, one.id, other.id, kind)
        else:
            record_consolidation(store, user_id, one.id, other.id, kind)
    for said in world.said:
        record_verdict(
            store,
            user_id,
            said.memory.id,
            newer=said.newer.id if said.newer else None,
            verdict=said.verdict,
            related=said.related.id if said.related else None,
            judged_at=said.judged_at,
            day=said.day,
            proposal=said.proposal,
        )


def oracle(world: World) -> list[tuple[UUID, UUID, float, bool]]:
    """What the partition must take: every rule of the ADR and of decision 16, one by one."""
    waiting = {
        side.id
        for said in world.said
        if said.proposal == "proposed" and said.day != DAY
        for side in (said.memory, said.related)
        if side
    }
    eligible = [
        row
        for row in world.rows
        if not row.dead
        and row.memory_type in ("decision", "preference", "fact")
        and row.created <= AS_OF
        and row.at not in (None, (0, 0))
        and row.id not in waiting
    ]
    linked = {frozenset((one.id, other.id)) for _, (one, other) in world.links}
    found: list[tuple[UUID, UUID, float, bool]] = []
    for one, other in itertools.combinations(eligible, 2):
        older, newer = sorted((one, other), key=lambda row: (row.created, row.id))
        if any(
            getattr(older, same) != getattr(newer, same)
            for same in ("memory_type", "scope", "project", "model")
        ):
            continue
        assert older.at is not None
        assert newer.at is not None
        product = sum(a * b for a, b in zip(older.at, newer.at, strict=True))
        cosine = product / (math.hypot(*older.at) * math.hypot(*newer.at))
        if cosine < FLOORS.get(older.model or "", DEFAULT_FLOOR):
            continue
        settled = any(
            said.day != DAY
            and said.memory == older
            and newer in (said.newer, said.related)
            and said.judged_at > max(older.freshness, newer.freshness)
            for said in world.said
        )
        if settled or frozenset((older.id, newer.id)) in linked:
            continue
        stale = older.freshness < AS_OF - timedelta(days=30)
        found.append((older.id, newer.id, cosine, stale))
    found.sort(key=lambda pair: (not pair[3], -pair[2], pair[0], pair[1]))
    chosen: list[tuple[UUID, UUID, float, bool]] = []
    for pair in found:
        busy = {id_ for each in chosen for id_ in each[:2]}
        if len(chosen) < world.cap and busy.isdisjoint(pair[:2]):
            chosen.append(pair)
    event(f"{len(found)} pairs, {len(chosen)} taken")
    return chosen


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds())
def test_the_selection_is_the_greedy_one_of_a_brute_force_oracle(
    store: Store, world: World
) -> None:
    acme = one_tenant(store)
    lay_out(store, acme, world)
    policy = make_policy(pair_cap=world.cap, conflict_floors=FLOORS, floor=DEFAULT_FLOOR)
    chosen = taken(store, policy=policy)
    expected = oracle(world)
    assert [
        (pair.older_id, pair.newer_id, pair.similarity, pair.older_is_stale) for pair in chosen
    ] == expected
    assert [
        (row["older_id"], row["newer_id"], row["similarity"], row["older_is_stale"])
        for row in recorded(store)
    ] == expected
    assert [row["rank"] for row in recorded(store)] == list(range(1, len(expected) + 1))


def one_tenant(store: Store) -> UUID:
    """The tenant of a property test, the same for every example."""
    found = store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")
    user_id: UUID = found[0]["user_id"] if found else store.tenant()
    return user_id
