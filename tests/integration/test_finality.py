"""Finality: what is settled stays so until there is a reason, and nothing starves meanwhile."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr

from forgetting_assets import judge as judging
from forgetting_assets import review
from forgetting_assets.judging.items import Pair
from forgetting_assets.partition import Partition
from forgetting_assets.store import candidates, verdicts
from resources.clock import Clock
from resources.policy import Policy
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    ago,
    block_of,
    choose,
    degrees,
    make_policy,
    record_edge,
    record_verdict,
    say,
    vector,
)

AS_OF = datetime(2026, 9, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
ONE_DAY = timedelta(days=1)
PIPELINE = ("forgetting.conflict_pairs", "forgetting.stale_candidates")
WRITTEN = (*PIPELINE, "forgetting.judged_verdicts", "retention_proposals")

Sides = tuple[UUID, ...]


@dataclass
class Days:
    """One day after another: each runs the pass once, with one judge that remembers it all."""

    store: Store
    judge: TestJudge = field(default_factory=TestJudge)
    # Judges here end most of what they see, which is of no interest.
    policy: Policy = field(default_factory=lambda: make_policy(blast_radius=1.0))
    number: int = 0

    @property
    def now(self) -> datetime:
        return TODAY + self.number * ONE_DAY

    @property
    def the_pass(self) -> Pass:
        # The cap on spending is of no interest here, and 730 days must not run into it.
        return Pass(self.store, self.judge, self.policy, now=self.now, cap_usd=1e6)

    @property
    def partition(self) -> Partition:
        return self.store.partition(day=DAY + self.number * ONE_DAY, now=self.now)

    def later(self, days: int = 1) -> Days:
        """Go on to a later day."""
        self.number += days
        return self

    def items(self) -> list[Sides]:
        """What today's partition would ask about: (memory,) of a single, (older, newer) of a pair.

        Nothing is judged.
        """
        self.the_pass.candidates(self.partition)
        return [
            (item.older.id, item.newer.id) if isinstance(item, Pair) else (item.memory.id,)
            for item in verdicts.read_items(self.store.database, self.partition)
        ]

    def run(self) -> int:
        """Today's whole pass; how many calls it made."""
        before = self.judge.calls
        self.the_pass.run(self.partition)
        return self.judge.calls - before


def asked(judge: TestJudge) -> Iterator[dict[str, Any]]:
    """Every item that the judge was ever asked about, in order."""
    for state in judge.states:
        yield from block_of(state)["items"]


def texts(item: dict[str, Any]) -> list[str]:
    """The texts that an item is about; the neighbours of a single are only shown."""
    sides = ["memory"] if item["kind"] == "single" else ["older", "newer"]
    return [item[side]["content"] for side in sides]


def link(store: Store, user_id: UUID, *ids: UUID) -> None:
    """Link memories with each other, so that no two of them are a pair."""
    for one, other in itertools.combinations(ids, 2):
        record_edge(store, user_id, one, other, "extends")


def touch(store: Store, memory_id: UUID, column: str, moment: datetime) -> None:
    """Change when a memory was last changed or reviewed."""
    store.execute(
        f"UPDATE memories SET {column} = :moment WHERE id = :id", moment=moment, id=memory_id
    )


def fill(
    store: Store, user_id: UUID, count: int, *, oldest: datetime, vectors: bool = True
) -> list[UUID]:
    """Unique old facts without a pair among them, an hour of freshness apart; stalest first."""
    ids = [UUID(int=count - place) for place in range(count)]
    store.execute(
        """
        WITH made AS (
            INSERT INTO memories (id, user_id, memory_type, topic, content, scope, embedding,
                content_hash, valid_from, recorded_at, created_at, updated_at)
            SELECT r.id, :user_id, 'fact', 'topic', 'unique fact ' || r.place,
                'scope ' || r.place % 30, CASE WHEN :vectors THEN (
                    array_fill(0.0::real, ARRAY[r.place::integer]) || ARRAY[1.0::real]
                    || array_fill(0.0::real, ARRAY[1535 - r.place::integer])
                )::vector END, encode(sha256(convert_to('unique fact ' || r.place, 'UTF8')), 'hex'),
                :oldest, :oldest, :oldest,
                CAST(:oldest AS timestamptz) + r.place * interval '1 hour'
            FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS r (id, place)
            RETURNING user_id, id
        )
        INSERT INTO forgetting.embedding_models SELECT user_id, id, 'test-embedding' FROM made
        """,
        user_id=user_id,
        oldest=oldest,
        ids=ids,
        vectors=vectors,
    )
    store.execute("ANALYZE")  # as autovacuum does in a store that lives longer than a test
    return ids


# A settled single


def test_a_single_is_settled_by_a_verdict_on_it_whatever_the_verdict(store: Store) -> None:
    acme = store.tenant()
    other = store.memory(acme, age=3)
    for verdict, proposal in itertools.product(
        ("keep", "archive", "supersede", "conflict"), ("dismissed", "rejected")
    ):
        related = other if verdict in ("supersede", "conflict") else None
        judged = store.memory(acme, age=60)
        assert Days(store).items() == [(judged,)]
        record_verdict(store, acme, judged, verdict=verdict, related=related, proposal=proposal)
        assert Days(store).items() == []


def test_a_single_judged_yesterday_is_not_asked_about_today(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, "old news", age=60)
    days = Days(store)
    assert days.run() == 1
    assert [days.later().run() for _ in range(3)] == [0, 0, 0]
    store.memory(acme, "more old news", age=60)
    assert days.later().run() == 1
    assert [texts(item) for item in asked(days.judge)] == [["old news"], ["more old news"]]


def test_a_verdict_as_old_as_the_freshness_or_older_settles_nothing(store: Store) -> None:
    acme = store.tenant()
    due = [store.memory(acme, age=90, touched=age) for age in (62, 61)]
    settled = store.memory(acme, age=90, touched=60)
    for memory_id, after in ((due[0], -MOMENT), (due[1], timedelta()), (settled, MOMENT)):
        (row,) = store.rows("SELECT updated_at FROM memories WHERE id = :id", id=memory_id)
        record_verdict(store, acme, memory_id, judged_at=row["updated_at"] + after)
    assert Days(store).items() == [(id_,) for id_ in due]


@pytest.mark.parametrize("column", ["updated_at", "last_reviewed_at"])
def test_a_single_reopens_when_an_edit_or_a_review_moves_past_its_verdict_and_is_stale_again(
    store: Store, column: str
) -> None:
    acme = store.tenant()
    memory = store.memory(acme, age=60)
    days = Days(store)
    assert days.run() == 1
    assert days.later().items() == []
    touch(store, memory, column, days.now)
    assert days.later(30).items() == [], "it is fresh for 30 days"
    assert days.later(1).items() == [(memory,)]
    assert days.run() == 1
    assert days.later().items() == [], "and settled once more"


def test_a_pair_s_verdict_settles_its_older_side_as_a_single_and_not_its_newer_side(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, age=90, embedding=vector(0))
    newer = store.memory(acme, age=60, embedding=vector(5))
    days = Days(store)
    assert days.items() == [(older, newer)]
    days.run()
    assert days.later().items() == [(newer,)]


def test_a_neighbour_created_after_the_verdict_reopens_a_single_at_the_floor_and_not_below(
    store: Store,
) -> None:
    acme = store.tenant()
    # 3-4-5 vectors: the cosine is exactly 24/25.
    memory = store.memory(acme, age=60, embedding=[3.0, 4.0] + [0.0] * 1534)
    days = Days(store, policy=make_policy(floor=24 / 25))
    days.run()
    assert days.later().items() == []
    after = -0.9  # of the first day's verdict, and seen by the second day
    store.memory(acme, age=after, embedding=vector(0))
    assert days.items() == [], "3/5 is below the floor"
    newer = store.memory(acme, age=after, embedding=[4.0, 3.0] + [0.0] * 1534)
    link(store, acme, memory, newer)
    assert days.items() == [(memory,)]
    assert days.run() == 1
    (*_, item) = asked(days.judge)
    assert item["newer"][0]["content"] == f"memory {newer}"
    assert days.later().items() == [], "the new verdict knows of the neighbour"


def test_the_floor_of_the_embedding_model_decides_what_reopens_a_single(store: Store) -> None:
    acme = store.tenant()
    policy = make_policy(conflict_floors={"strict": 0.95, "loose": 0.5}, floor=0.82)
    judged = {}
    for axis, model in enumerate(("strict", "loose", "another", None), start=701):
        common: dict[str, Any] = {"embedding_model": model, "scope": f"scope {axis}"}
        memory = store.memory(acme, age=60, embedding=vector(0, axis), **common)
        record_verdict(store, acme, memory, judged_at=ago(10))
        judged[model] = ([memory], axis, common)
    assert Days(store, policy=policy).items() == []
    for cosine, models in (
        (0.6, {"loose"}),
        (0.9, {"loose", "another", None}),
        (0.96, set(judged)),
    ):
        for together, axis, common in judged.values():
            near = store.memory(acme, age=2, embedding=vector(degrees(cosine), axis), **common)
            for each in together:
                link(store, acme, each, near)
            together.append(near)
        reopened = {(judged[model][0][0],) for model in models}
        assert set(Days(store, policy=policy).items()) == reopened, f"at {cosine}"


def test_a_neighbour_that_stood_there_before_the_verdict_reopens_nothing(store: Store) -> None:
    acme = store.tenant()
    judged_at = ago(10)
    together = [store.memory(acme, age=60, embedding=vector(0))]
    record_verdict(store, acme, together[0], judged_at=judged_at)

    def neighbour(created_at: datetime) -> UUID:
        near = store.memory(acme, created_at=created_at, touched=5, embedding=vector(1))
        for each in together:
            link(store, acme, each, near)
        together.append(near)
        return near

    neighbour(judged_at)
    neighbour(ago(70))
    assert Days(store).items() == []
    later = neighbour(judged_at + MOMENT)
    assert Days(store).items() == [(together[0],)]
    touch(store, later, "created_at", AS_OF + MOMENT)
    assert Days(store).items() == [], "the day does not see what was created after it"


def test_only_a_neighbour_of_its_type_scope_project_model_and_tenant_reopens_a_single(
    store: Store,
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    common: dict[str, Any] = {"age": 2, "project": "atlas", "embedding": vector(0)}
    memory = store.memory(acme, **common | {"age": 60})
    record_verdict(store, acme, memory, judged_at=ago(10))
    unlike: list[dict[str, Any]] = [
        {"memory_type": "decision"},
        {"memory_type": "event"},
        {"scope": "home"},
        {"project": "borea"},
        {"project": None},
        {"embedding_model": "another"},
        {"embedding": None},
        {"embedding": [0.0] * 1536},
        {"status": "archived"},
        {"valid_to": ago(1)},
    ]
    for odd in unlike:
        store.memory(acme, **common | odd)
    store.memory(borea, **common)
    assert Days(store).items() == []
    link(store, acme, memory, store.memory(acme, **common))
    assert Days(store).items() == [(memory,)]


def test_a_single_reopens_when_the_memory_that_its_verdict_names_changes(store: Store) -> None:
    acme = store.tenant()
    for column, verdict in itertools.product(
        ("updated_at", "last_reviewed_at"), ("supersede", "conflict")
    ):
        memory = store.memory(acme, age=90)
        named, other = (store.memory(acme, age=20) for _ in range(2))
        judged_at = ago(10)
        record_verdict(store, acme, memory, verdict=verdict, related=named, judged_at=judged_at)
        touch(store, other, column, ago(1))
        touch(store, named, column, judged_at - MOMENT)
        assert Days(store).items() == []
        touch(store, named, column, judged_at)
        assert Days(store).items() == [(memory,)]
        record_verdict(store, acme, memory)
        assert Days(store).items() == []


def test_a_blocker_reopens_with_a_new_contradiction(store: Store) -> None:
    acme = store.tenant()
    common: dict[str, Any] = {"memory_type": "blocker", "embedding": vector(0)}
    blocker = store.memory(acme, age=60, **common)
    store.memory(acme, age=5, **common)
    days = Days(store)
    assert days.run() == 1
    assert days.later().items() == []
    store.memory(acme, age=-0.9, **common)
    assert days.items() == [(blocker,)]


def test_a_contradiction_made_between_the_end_of_the_day_and_its_run_is_not_lost(
    store: Store,
) -> None:
    acme = store.tenant()
    common: dict[str, Any] = {"memory_type": "blocker", "embedding": vector(0)}
    blocker = store.memory(acme, age=60, **common)
    store.memory(acme, age=5, **common)
    days = Days(store)
    # Noon is when the run judges the day that ended at midnight; this one was made at 6 o'clock.
    store.memory(acme, age=-0.25, **common)
    assert days.run() == 1
    assert len(next(asked(days.judge))["newer"]) == 1
    assert days.later().items() == [(blocker,)], "no verdict has seen the second contradiction"


# A settled pair


@pytest.mark.parametrize("answer", ["keep_both", "supersede_older", "conflict", "archive_older"])
def test_a_judged_pair_is_not_asked_about_again(store: Store, answer: str) -> None:
    acme = store.tenant()
    store.pair(acme)
    # Below each threshold, so that nothing but the verdict settles it.
    days = Days(store, TestJudge.that(say(answer, 0.55)))
    assert days.run() == 1
    assert store.rows("SELECT status FROM retention_proposals") == [{"status": "dismissed"}]
    assert [days.later().run() for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("column", ["updated_at", "last_reviewed_at"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_of_which_a_side_was_edited_or_reviewed_is_asked_about_once_more(
    store: Store, column: str, side: int
) -> None:
    acme = store.tenant()
    pair = store.pair(acme)
    days = Days(store)
    assert days.run() == 1
    touch(store, pair[side], column, days.later().now - ONE_DAY / 4)
    assert days.later().items() == [pair]
    assert days.run() == 1, "the earlier verdict is of before, so it does not serve again"
    assert [days.later().run() for _ in range(2)] == [0, 0], "and then it is settled"


def test_a_confident_verdict_on_a_reviewed_pair_is_proposed(store: Store) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme)
    days = Days(store)
    days.run()
    touch(store, older, "last_reviewed_at", days.later().now)
    days.judge._answer = say("supersede_older")
    days.later().run()
    (row,) = store.rows("SELECT * FROM retention_proposals WHERE status = 'proposed'")
    assert (row["memory_id"], row["related_memory_id"]) == (older, newer)


def test_every_pair_of_a_cluster_is_judged_once_and_the_cluster_drains(store: Store) -> None:
    acme = store.tenant()
    names = [f"member {place}" for place in range(5)]
    for place, name in enumerate(names):
        store.memory(acme, name, age=60 - place, embedding=vector(place))
    days = Days(store)
    for _ in range(20):
        days.run()
        days.later()
    judged = Counter(tuple(texts(item)) for item in asked(days.judge))
    every = dict.fromkeys(itertools.combinations(names, 2), 1)
    assert {key: n for key, n in judged.items() if len(key) == 2} == every
    assert max(judged.values()) == 1
    assert days.items() == []
    a_day = [Counter(itertools.chain(*map(texts, block_of(s)["items"]))) for s in days.judge.states]
    assert all(max(counts.values()) == 1 for counts in a_day)


# Open proposals


@pytest.mark.parametrize("action", ["archive", "supersede", "conflict"])
def test_neither_side_of_an_open_proposal_is_in_an_item_of_another_partition(
    store: Store, action: str
) -> None:
    acme = store.tenant()
    subject = store.memory(acme, age=90, embedding=vector(0))
    related = store.memory(acme, age=80, project="borea", embedding=vector(1))
    beside = store.memory(acme, age=70, embedding=vector(60))
    # One that would pair with the subject, one with the related side; both are younger than them.
    near = [
        store.memory(acme, age=5, project=project, embedding=vector(2))
        for project in (None, "borea")
    ]
    assert Days(store).items() == [(related, near[1]), (subject, near[0]), (beside,)]
    named = related if action != "archive" else None
    proposal = record_verdict(
        store,
        acme,
        subject,
        verdict=action,
        related=named,
        judged_at=ago(100),  # settles nothing by itself
        proposal="proposed",
    )
    expected = [(related, near[1])] if named is None else []
    assert Days(store).items() == [*expected, (beside,)]
    review.reject(store.database, acme, proposal, TODAY)
    assert Days(store).items() == [(related, near[1]), (subject, near[0]), (beside,)]


def test_a_newer_side_waits_while_its_proposal_is_open_and_comes_up_after_it(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, age=90, embedding=vector(0))
    newer = store.memory(acme, age=60, embedding=vector(5))
    days = Days(store, TestJudge.that(say("supersede_older")))
    days.run()
    assert days.later().items() == []
    assert days.later(60).items() == []
    (proposal,) = store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")
    review.accept(store.database, acme, proposal["id"], days.now)
    assert days.later().items() == [(newer,)]
    assert older not in days.items()[0]


def test_a_withheld_verdict_waits_while_the_memory_it_names_is_proposed_and_then_is_proposed(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, "old", age=90, project="atlas", embedding=vector(0))
    newer = store.memory(acme, "new", age=60, project="borea", embedding=vector(1))
    judge = TestJudge.that(replace_the_old_archive_the_new)
    days = Days(store, judge)
    assert days.run() == 1
    (proposal,) = store.rows("SELECT id, memory_id FROM retention_proposals")
    assert proposal["memory_id"] == newer, "the surer one; the other would contradict it"
    assert days.later().items() == [], "the old one waits for what becomes of the new one"
    review.reject(store.database, acme, proposal["id"], days.now)
    assert days.later().items() == [(older,)]
    assert days.run() == 0, "its verdict is there already"
    open_ = store.rows("SELECT memory_id FROM retention_proposals WHERE status = 'proposed'")
    assert [row["memory_id"] for row in open_] == [older]


def replace_the_old_archive_the_new(item: dict[str, Any], keys: list[str]) -> object:
    return say("supersede_by", 0.9)(item, keys) if item["newer"] else say("archive")(item, keys)


def test_a_partition_s_own_proposal_on_a_memory_that_an_earlier_verdict_names_changes_nothing_in_it(
    store: Store,
) -> None:
    acme = store.tenant()
    older = store.memory(acme, "old", age=90, project="atlas", embedding=vector(0))
    newer = store.memory(acme, "new", age=60, project="borea", embedding=vector(1))
    record_verdict(
        store, acme, older, verdict="supersede", related=newer, judged_at=ago(80), day=DAY - ONE_DAY
    )
    days = Days(store, TestJudge.that(replace_the_old_archive_the_new))
    assert set(days.items()) == {(older,), (newer,)}, "the named one was changed since"
    days.run()
    assert store.rows("SELECT memory_id FROM retention_proposals WHERE status = 'proposed'") == [
        {"memory_id": newer}
    ]
    before = store.dump(*WRITTEN)
    assert days.run() == 0
    assert store.dump(*WRITTEN) == before
    assert days.later().items() == [], "in another partition it waits"


def test_a_rejected_proposal_is_final_until_the_freshness_of_its_memory_moves(
    store: Store,
) -> None:
    acme = store.tenant()
    memory = store.memory(acme, age=60)
    days = Days(store, TestJudge.that(say("archive")))
    days.run()
    (proposal,) = store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")
    review.reject(store.database, acme, proposal["id"], days.later().now)
    assert [days.later(40).run() for _ in range(3)] == [0, 0, 0]
    touch(store, memory, "updated_at", days.now)
    assert days.later(32).run() == 1
    assert len(store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")) == 1


# The same partition again


def test_a_partition_materialized_again_gives_the_same_rows_and_asks_nothing(
    store: Store,
) -> None:
    acme = store.tenant()
    for place in range(8):
        store.memory(acme, age=90 + place)
        store.pair(acme, 0.9 + place / 100, older_age=20 + 5 * place)
    store.memory(acme, age=90, memory_type="blocker", embedding=vector(0, 750))
    store.memory(acme, age=5, memory_type="blocker", embedding=vector(1, 750))
    for place in range(6):
        store.memory(acme, age=80 - place, embedding=vector(place, 751))
    days = Days(store, TestJudge.that(any_answer))
    calls = days.run()
    before = store.dump(*WRITTEN)
    states = {row["status"] for row in store.rows("SELECT status FROM retention_proposals")}
    actions = {row["action"] for row in store.rows("SELECT action FROM retention_proposals")}
    assert states == {"proposed", "dismissed"}, "or the test would show little"
    assert len(actions) >= 3, "which of the four it is depends on the texts, which are random"
    assert calls > 1
    assert all(before.values())
    for _ in range(2):
        assert days.run() == 0
        assert store.dump(*WRITTEN) == before
    # Hours later and on other days too: the day has ended, so it is judged as of its end.
    for hours in (5, 24 * 3):
        partition = days.partition
        again = Pass(store, days.judge, days.policy, now=TODAY + timedelta(hours=hours))
        again.run(partition)
        assert days.judge.calls == calls
        assert store.dump(*WRITTEN) == before


def any_answer(item: dict[str, Any], keys: list[str]) -> object:
    """Another answer for each item, sure of itself more often than not."""
    random = Random(str(texts(item)))
    return choose(random.choice(keys), keys, random.choice([0.95, 0.9, 0.55]))


def test_a_partition_materialized_again_finishes_what_a_killed_run_left(store: Store) -> None:
    acme = store.tenant()
    for place in range(30):
        store.memory(acme, f"fact {place}", age=90 + place)

    class Killed(BaseException):
        pass

    def kill(call: int) -> None:
        if call == 3:
            raise Killed

    killed = TestJudge.that(any_answer, before=kill)
    with pytest.raises(Killed):
        Days(store, killed).run()
    days = Days(store, TestJudge.that(any_answer))
    assert days.run() == 1
    judged = [
        text for judge in (killed, days.judge) for item in asked(judge) for text in texts(item)
    ]
    assert sorted(judged) == sorted(f"fact {place}" for place in range(30))
    whole = Days(store, TestJudge.that(any_answer))
    assert whole.run() == 0


@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 14))
def test_any_partition_materialized_again_gives_the_same_rows(
    store: Store, seed: int, size: int
) -> None:
    found = store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")
    acme: UUID = found[0]["user_id"] if found else store.tenant()
    store.execute("DELETE FROM memories")
    store.free_rate()
    random = Random(seed)
    for place in range(size):
        store.memory(
            acme,
            f"memory {seed} {place}",
            id=UUID(int=random.getrandbits(128)),
            memory_type=random.choice(["fact", "fact", "decision", "blocker", "note"]),
            project=random.choice([None, None, "atlas"]),
            age=random.choice([90, 60, 60, 5]),
            touched=random.choice([90, 40, 2]),
            embedding=random.choice([vector(random.choice([0, 10, 20, 50])), None]),
        )
    policy = make_policy(single_cap=random.choice([2, 60]), pair_cap=random.choice([1, 40]))
    days = Days(store, TestJudge.that(any_answer), policy)
    calls = days.run()
    event(f"{calls} calls")
    before = store.dump(*WRITTEN)
    assert days.run() == 0
    assert store.dump(*WRITTEN) == before


# Any history


@settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 10_000))
def test_in_any_history_a_second_look_has_a_reason_and_in_the_end_nothing_is_left(
    store: Store, seed: int
) -> None:
    found = store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")
    acme: UUID = found[0]["user_id"] if found else store.tenant()
    store.execute("DELETE FROM memories")
    store.free_rate()
    random = Random(seed)
    changes: dict[UUID, list[datetime]] = {}
    places: dict[UUID, tuple[str, int]] = {}

    def create(age: float, touched: float) -> None:
        memory_type = random.choice(["fact", "fact", "decision", "blocker", "event"])
        angle = random.choice([0, 10, 20, 60])
        id_ = store.memory(
            acme,
            id=UUID(int=random.getrandbits(128)),
            memory_type=memory_type,
            project=random.choice([None, None, "atlas"]),
            age=age,
            touched=touched,
            embedding=vector(angle),
        )
        changes[id_], places[id_] = [ago(age)], (memory_type, angle)

    def act(now: datetime) -> None:
        moment = now - timedelta(hours=random.choice([1, 13, 20]))
        for _ in range(random.randint(0, 2)):
            if random.random() < 0.4:
                age = (AS_OF - moment) / ONE_DAY
                create(age, age)
                continue
            id_ = random.choice(list(changes))
            touch(store, id_, random.choice(["updated_at", "last_reviewed_at"]), moment)
            changes[id_].append(moment)
        for row in store.rows(
            "SELECT id, memory_id FROM retention_proposals WHERE status = 'proposed' ORDER BY id"
        ):
            # Some that were made worthless meanwhile cannot be accepted; those stay.
            if random.random() < 0.3:
                review.reject(store.database, acme, row["id"], now)

    for _ in range(random.randint(1, 9)):
        create(random.choice([90, 60, 5]), random.choice([4, 40, 50]))
    days = Days(store, TestJudge.that(any_answer))
    for _ in range(5):
        days.run()
        act(days.later(random.choice([1, 1, 2, 33])).now)
    days.later(33)
    for _ in range(2 + len(changes)):
        days.run()
        for row in store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'"):
            review.reject(store.database, acme, row["id"], days.now)
        days.later()
    assert days.items() == []

    looks: dict[Sides, list[tuple[datetime, UUID | None, datetime, bool]]] = {}
    for row in store.rows(
        """
        SELECT v.*, EXISTS(
            SELECT 1
            FROM forgetting.judged_verdicts AS w INNER JOIN retention_proposals AS p ON p.id = w.id
            WHERE v.id IN (w.id, w.reused_from)
        ) AS was_written_down
        FROM forgetting.judged_verdicts AS v WHERE v.reused_from IS NULL ORDER BY v.judged_at
        """
    ):
        item = (row["memory_id"], row["newer_id"]) if row["newer_id"] else (row["memory_id"],)
        seen_until = datetime.combine(row["run_date"] + ONE_DAY, time(), UTC)
        looks.setdefault(item, []).append(
            (row["judged_at"], row["related_memory_id"], seen_until, row["was_written_down"])
        )
    again = 0
    for sides, told in looks.items():
        for (before, named, seen_until, final), (after, *_) in itertools.pairwise(told):
            again += 1
            if not final:
                continue  # it was withheld, so it settled nothing
            changed = any(
                before <= moment <= after
                for id_ in (*sides, *([named] if named else []))
                for moment in changes[id_]
            )
            new_neighbour = len(sides) == 1 and any(
                seen_until < changes[id_][0] <= after
                and memory_type == places[sides[0]][0]
                and abs(angle - places[sides[0]][1]) < degrees(0.82)
                for id_, (memory_type, angle) in places.items()
            )
            assert changed or new_neighbour, f"no reason to look at {sides} again"
    event(f"{again} second looks at {len(looks)} items")
    judged = {sides[0] for sides in looks}
    unjudged = {
        id_
        for id_, (memory_type, _) in places.items()
        if memory_type in ("fact", "decision") and id_ not in judged
    }
    assert unjudged == set(), "everything is stale by now, so everything was looked at"


# A run that ends too early


def test_what_a_run_judged_and_did_not_propose_is_proposed_by_the_next_night_without_a_call(
    store: Store,
) -> None:
    acme = store.tenant()
    singles = [store.memory(acme, age=60 + n) for n in range(3)]
    older, newer = store.pair(acme)
    judge = TestJudge.that(by_kind)
    first = Days(store, judge)
    first.the_pass.candidates(first.partition)
    assert first.the_pass.verdicts(first.partition).judged == 4
    # The run is killed here. Nobody runs its partition again.
    second = Days(store, judge).later()
    calls = judge.calls
    second.run()
    assert judge.calls == calls, "nothing is paid for twice"
    open_ = store.rows("SELECT memory_id FROM retention_proposals WHERE status = 'proposed'")
    assert {row["memory_id"] for row in open_} == {*singles, older}
    assert newer not in singles


class Ticking(Clock):
    """A clock that goes on by a second each time it is read."""

    _seconds: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    def now(self) -> datetime:
        return TODAY + timedelta(seconds=next(self._seconds))


def by_kind(item: dict[str, Any], keys: list[str]) -> object:
    return choose("supersede_older" if item["kind"] == "pair" else "archive", keys)


def test_what_was_edited_while_the_judge_was_asked_is_newer_than_its_verdict(store: Store) -> None:
    acme = store.tenant()
    memory = store.memory(acme, age=60)
    untouched = store.memory(acme, age=50)
    days = Days(store, TestJudge.that(say("archive")))
    ticking = Ticking()

    def edit(_call: int) -> None:
        touch(store, memory, "updated_at", ticking.now())

    judge = TestJudge.that(say("archive"), before=edit)
    days.the_pass.candidates(days.partition)
    means = replace(days.the_pass.means, gateway=judge, clock=ticking)
    judging.judge(means, days.partition, lambda _line: None)
    days.the_pass.proposals(days.partition)
    rows = store.rows("SELECT memory_id, status FROM retention_proposals")
    assert [(row["memory_id"], row["status"]) for row in rows] == [(untouched, "proposed")]
    future = store.partition(day=DAY + 40 * ONE_DAY, now=TODAY + 40 * ONE_DAY)
    chosen = candidates.select(store.database, future, make_policy(), TODAY)
    assert [single.memory_id for single in chosen.singles] == [memory], "the new text comes up"


# Reuse


def test_another_partition_s_verdict_on_the_same_input_is_taken_over_without_a_call(
    store: Store,
) -> None:
    acme = store.tenant()
    pair = store.pair(acme)
    single = store.memory(acme, age=60)
    judge = TestJudge.that(say("keep", 0.97))
    first, second = Days(store, judge), Days(store, judge).later()
    for days in (first, second):
        days.the_pass.candidates(days.partition)
    done = first.the_pass.verdicts(first.partition)
    assert (done.judged, done.reused, judge.calls) == (2, 0, 1)
    done = second.the_pass.verdicts(second.partition)
    assert (done.items, done.judged, done.reused, judge.calls) == (2, 0, 2, 1)
    rows = store.rows("SELECT * FROM forgetting.judged_verdicts ORDER BY run_date, kind")
    originals, copies = rows[:2], rows[2:]
    own = ("id", "run_date", "reused_from")
    for original, copy in zip(originals, copies, strict=True):
        assert copy["reused_from"] == original["id"]
        assert original["reused_from"] is None
        assert all(copy[name] == original[name] for name in copy if name not in own)
    assert {row["memory_id"] for row in copies} == {pair[0], single}
    done = second.the_pass.verdicts(second.partition)
    assert (done.reused, judge.calls) == (0, 1), "it is taken over once"


def test_one_verdict_that_two_partitions_hold_is_one_proposal(store: Store) -> None:
    acme = store.tenant()
    store.pair(acme)
    judge = TestJudge.that(say("supersede_older"))
    first, second = Days(store, judge), Days(store, judge).later()
    for days in (first, second):
        days.the_pass.candidates(days.partition)
    for days in (first, second):
        days.the_pass.verdicts(days.partition)
        days.the_pass.proposals(days.partition)
    statuses = Counter(
        row["status"] for row in store.rows("SELECT status FROM retention_proposals")
    )
    assert statuses == {"proposed": 1}


def test_a_changed_text_on_any_side_is_asked_about_again(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, "untouched", age=99, scope="alone")
    edited = store.memory(acme, "single", age=98, scope="own text")
    store.memory(acme, "with neighbour", age=97, scope="neighbour", embedding=vector(0))
    neighbour = store.memory(acme, age=5, scope="neighbour", embedding=vector(60))
    older, _ = store.pair(acme, scope="older side")
    _, newer = store.pair(acme, scope="newer side")
    judge = TestJudge()
    first, second = Days(store, judge), Days(store, judge).later()
    for days in (first, second):
        days.the_pass.candidates(days.partition)
    first.the_pass.verdicts(first.partition)
    assert judge.calls == 1
    for memory_id in (edited, neighbour, older, newer):
        store.execute(
            "UPDATE memories SET content = content || ', changed' WHERE id = :id", id=memory_id
        )
    done = second.the_pass.verdicts(second.partition)
    assert (done.items, done.reused, done.judged) == (5, 1, 4)
    again = block_of(judge.states[1])["items"]
    assert len(again) == 4
    assert sum("changed" in str(item) for item in again) == 4
    (beside,) = [item for item in again if texts(item) == ["with neighbour"]]
    assert beside["newer"][0]["content"].endswith(", changed")


def test_another_model_s_verdict_is_not_taken_over(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, age=60)
    other = TestJudge()
    other._model = "another-model"
    first, second = Days(store, TestJudge()), Days(store, other).later()
    for days in (first, second):
        days.the_pass.candidates(days.partition)
        assert days.the_pass.verdicts(days.partition).items == 1
        store.execute("UPDATE forgetting.judged_verdicts SET judged_at = :old", old=ago(100))
    assert (first.judge.calls, other.calls) == (1, 1)


# No writes, and no attrition over many looks


def test_br_17_br_18_two_passes_leave_every_byte_of_the_memories_as_it_was(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, "a 400-day-old fact", age=400)
    store.memory(acme, age=400, memory_type="preference", reviewed_at=ago(350), embedding=None)
    store.pair(acme, 0.99)
    store.pair(acme, 0.99, memory_type="event")
    before = store.dump("memories", "forgetting.embedding_models", "memory_edges", "memory_events")
    days = Days(store, TestJudge.that(archive_all))
    days.run()
    days.later().run()
    proposed = store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")
    assert len(proposed) == 3
    assert (
        store.dump("memories", "forgetting.embedding_models", "memory_edges", "memory_events")
        == before
    )
    review.accept(store.database, acme, proposed[0]["id"], days.now)
    assert store.dump("memories")["memories"] != before["memories"], "the dump sees a change"


def archive_all(item: dict[str, Any], keys: list[str]) -> object:
    """The judge that would archive everything."""
    return say("archive" if "archive" in keys else "archive_older")(item, keys)


def test_br_02_of_900_old_unique_facts_one_run_takes_60_and_writes_no_memory(
    store: Store,
) -> None:
    acme = store.tenant()
    ids = fill(store, acme, 900, oldest=ago(800))
    before = store.dump("memories")
    days = Days(store, TestJudge.that(archive_all))
    assert days.run() == 5
    assert [item["memory"]["content"] for item in asked(days.judge)] == [
        f"unique fact {place}" for place in range(1, 61)
    ]
    proposed = store.rows(
        "SELECT memory_id, action FROM retention_proposals WHERE status = 'proposed'"
    )
    assert {row["memory_id"] for row in proposed} == set(ids[:60])
    assert store.dump("memories") == before


def test_br_22_repeated_runs_walk_the_whole_stale_tail_stalest_first(store: Store) -> None:
    acme = store.tenant()
    ids = fill(store, acme, 400, oldest=ago(1000))
    days = Days(store, TestJudge())
    walked: list[UUID] = []
    totals = []
    for _ in range(7):
        singles = days.the_pass.candidates(days.partition)[1]
        totals.append(singles.total)
        batch = [single.memory_id for single in singles.singles]
        assert set(batch).isdisjoint(walked), "each run goes on where the last one stopped"
        walked += batch
        days.run()
        days.later()
    assert walked == ids
    assert totals == [400, 340, 280, 220, 160, 100, 40]
    assert days.items() == []
    assert Counter(text for item in asked(days.judge) for text in texts(item)) == Counter(
        f"unique fact {place}" for place in range(1, 401)
    )


def test_br_01_a_judge_that_errs_once_in_a_thousand_looks_gets_one_look_a_memory_in_730_days(
    store: Store,
) -> None:
    looks, memories, rate = 730, 150, 0.001
    seed = 7
    acme = store.tenant()
    fill(store, acme, memories, oldest=ago(200), vectors=False)
    before = store.dump("memories")
    would_have = Random(seed)
    if_asked_daily = sum(would_have.random() < rate for _ in range(memories * looks))
    assert if_asked_daily > 70, "what a judge asked every day would have archived"

    random = Random(seed)
    said: list[str] = []

    def errs(item: dict[str, Any], keys: list[str]) -> object:
        key = "archive" if random.random() < rate else "keep"
        said.append(key)
        return say(key, 0.9)(item, keys)

    days = Days(store, TestJudge.that(errs))
    for _ in range(looks):
        days.run()
        days.later()
    assert Counter(text for item in asked(days.judge) for text in texts(item)) == Counter(
        f"unique fact {place}" for place in range(1, memories + 1)
    )
    proposed = store.rows("SELECT status FROM retention_proposals WHERE action = 'archive'")
    assert len(proposed) == said.count("archive") == 1, "one look's worth, and the seed has one"
    assert store.dump("memories") == before
