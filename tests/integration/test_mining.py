"""Mining: the index of similar pairs equals brute force, whatever happened before and meanwhile.

The oracle compares all pairs. Which of them count is decided here in Python, by the rules of
docs/pass.md; what their cosine is, to the last bit, is what the database says of the two vectors.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import sql
from forgetting_assets import vectors
from forgetting_assets.store import mining, pairs
from forgetting_assets.store.mining import Mined
from resources import migrations
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.binary import Records
from resources.database import Database, TenantTransaction, engine, newest_migration
from resources.errors import FloorMissing, NotMigrated, StoreRefused, UnusableVectors
from tests.support import MODELS, TODAY, Store, ago, make_policy, vector

FLOORS: Mapping[str, float] = dict.fromkeys(MODELS, 0.82)
LATER = TODAY + timedelta(days=1)
LATER_STILL = TODAY + timedelta(days=2)
ROOT = Path(__file__).parent.parent.parent

INDEX = ("forgetting.minings", "forgetting.mined_memories", "forgetting.similar_pairs")
STORE = ("memories", "forgetting.embedding_models", "memory_edges", "memory_events")
COMPARED = ("decision", "preference", "fact", "blocker")

Sides = tuple[UUID, UUID]
Matrix = NDArray[np.float32]


def mine(
    store: Store, user_id: UUID, floors: Mapping[str, float] = FLOORS, now: datetime = TODAY
) -> Mined:
    """Mine a tenant as the pass does."""
    with store.database.tenant(user_id, exclusive=True) as tx:
        return mining.update(tx, "acme", floors, now)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for what others do, and fail if it never comes."""
    for _ in range(12_000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail(f"never came to be: {what}")


def mine_past(store: Store, user_id: UUID, floors: Mapping[str, float] = FLOORS) -> None:
    """Mine until all that was written lies before the horizon, and would not be looked at again.

    Transactions of other tests on this server hold the horizon back.
    """

    def is_past() -> bool:
        mine(store, user_id, floors)
        rows = store.rows(
            """
            SELECT 1 FROM forgetting.minings AS n
            CROSS JOIN (
                SELECT m.xmin FROM memories AS m
                UNION ALL SELECT e.xmin FROM forgetting.embedding_models AS e
            ) AS w
            WHERE n.user_id = :user_id AND age(w.xmin) <= age(CAST(n.written_before AS xid))
            """,
            user_id=user_id,
        )
        return not rows

    wait_until(is_past, "the end of every transaction that began before the memories were written")


def index(store: Store, user_id: UUID) -> dict[Sides, tuple[float, str]]:
    """The mined pairs of a tenant: the cosine and the embedding model of each."""
    rows = store.rows(
        "SELECT * FROM forgetting.similar_pairs WHERE user_id = :user_id", user_id=user_id
    )
    return {
        (row["older_id"], row["newer_id"]): (row["similarity"], row["embedding_model"])
        for row in rows
    }


def brute_force(
    store: Store, user_id: UUID, floors: Mapping[str, float] | None = FLOORS
) -> dict[Sides, tuple[float, str]]:
    """What the index must have: all pairs of comparable memories; without floors, at any cosine."""
    rows = store.rows(
        """
        SELECT m.id, m.memory_type, m.scope, m.project, m.created_at, e.embedding_model
        FROM memories AS m
        LEFT JOIN forgetting.embedding_models AS e ON m.id = e.memory_id AND m.user_id = e.user_id
        WHERE m.user_id = :user_id AND m.valid_to IS NULL AND m.embedding IS NOT NULL
        """,
        user_id=user_id,
    )
    groups: dict[tuple[str, str, str | None, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["memory_type"] in COMPARED:
            model = row["embedding_model"] or "unknown"
            key = (row["memory_type"], row["scope"], row["project"], model)
            groups.setdefault(key, []).append(row)
    found: dict[Sides, tuple[float, str]] = {}
    for (*_, model), members in groups.items():
        floor = -math.inf if floors is None else floors[model]
        ordered = sorted(members, key=lambda row: (row["created_at"], row["id"]))
        cosines = cosines_in_sql(store, [row["id"] for row in ordered])
        for older, newer in itertools.combinations([row["id"] for row in ordered], 2):
            # The cosine of a zero vector is NaN, which is at or above nothing.
            if (cosine := cosines[frozenset((older, newer))]) >= floor:
                found[older, newer] = (cosine, model)
    return found


def cosines_in_sql(store: Store, ids: Sequence[UUID]) -> dict[frozenset[UUID], float]:
    """What the database says of every two of these memories' vectors."""
    rows = store.rows(
        """
        WITH chosen AS MATERIALIZED (
            SELECT m.id, m.embedding FROM memories AS m WHERE m.id = ANY(CAST(:ids AS uuid[]))
        )
        SELECT a.id AS one, b.id AS other, 1 - (a.embedding <=> b.embedding) AS cosine
        FROM chosen AS a INNER JOIN chosen AS b ON a.id < b.id
        """,
        ids=list(ids),
    )
    return {frozenset((row["one"], row["other"])): row["cosine"] for row in rows}


def as_if_mined_at_once(
    store: Store, user_id: UUID, floors: Mapping[str, float] = FLOORS
) -> dict[str, list[str]]:
    """The index after all of it is thrown away and mined in one go."""
    wipe(store)
    mine(store, user_id, floors)
    return mined_rows(store)


def wipe(store: Store) -> None:
    """Throw the index away."""
    store.execute("DELETE FROM forgetting.minings")
    store.execute("DELETE FROM forgetting.mined_memories")


def empty(store: Store) -> None:
    """Throw the memories and the index away: a case of its own, without a database of its own."""
    store.execute("DELETE FROM memories")
    wipe(store)


def mined_rows(store: Store) -> dict[str, list[str]]:
    """Every byte of the index but for when it was mined."""
    timeless = (
        "SELECT older_id, newer_id, similarity, embedding_model FROM forgetting.similar_pairs"
    )
    return {
        **store.dump("forgetting.mined_memories"),
        "pairs": sorted(str(row) for row in store.rows(timeless)),
    }


def mined_at(store: Store) -> dict[Sides, datetime]:
    """When each pair was mined."""
    rows = store.rows("SELECT older_id, newer_id, mined_at FROM forgetting.similar_pairs")
    return {(row["older_id"], row["newer_id"]): row["mined_at"] for row in rows}


def grid(x: float, y: float, axis: int = 0) -> list[float]:
    """A vector with whole coordinates, so that its cosines are exact on both sides."""
    values = [0.0] * 1536
    values[2 * axis], values[2 * axis + 1] = x, y
    return values


def embed(store: Store, id_: UUID, values: Sequence[float] | None) -> None:
    """Give a memory another vector."""
    store.execute(
        "UPDATE memories SET embedding = CAST(:v AS vector) WHERE id = :id",
        v=None if values is None else json.dumps(list(values)),
        id=id_,
    )


def load(
    store: Store,
    user_id: UUID,
    matrix: Matrix,
    *,
    scope: str = "work",
    first: int = 0,
) -> list[UUID]:
    """A memory for each row of a matrix, fast: their ids are their numbers from ``first`` on."""
    ids = [UUID(int=first + place + 1) for place in range(len(matrix))]
    raw = store.owner.raw_connection()
    with closing(raw.cursor()) as cursor:
        for start in range(0, len(ids), 1000):
            data = io.BytesIO(
                b"PGCOPY\n\xff\r\n\x00"
                + bytes(8)
                + b"".join(
                    _row(user_id, id_, scope, row)
                    for id_, row in zip(
                        ids[start : start + 1000],
                        matrix[start : start + 1000].astype(">f4"),
                        strict=True,
                    )
                )
                + b"\xff\xff"
            )
            cursor.copy_expert(
                "COPY memories (id, user_id, memory_type, topic, content, scope, content_hash, "
                'created_at, embedding) FROM STDIN (FORMAT "binary")',
                data,
            )
    raw.commit()
    raw.close()
    return ids


def _row(user_id: UUID, id_: UUID, scope: str, values: NDArray[Any]) -> bytes:
    text = str(id_).encode()
    created = ago(60) + timedelta(seconds=id_.int % 7) - datetime(2000, 1, 1, tzinfo=UTC)
    fields = [
        id_.bytes,
        user_id.bytes,
        b"fact",
        b"topic",
        text,
        scope.encode(),
        text,
        struct.pack(">q", created // timedelta(microseconds=1)),
        struct.pack(">hh", len(values), 0) + values.tobytes(),
    ]
    return struct.pack(">h", len(fields)) + b"".join(
        struct.pack(">i", len(each)) + each for each in fields
    )


# Any history


PLACES: list[tuple[float, float] | None] = [
    *((3, 4), (4, 3), (15, 20), (20, 15), (7, 24), (24, 7), (5, 0), (3, 4), (4, 3)),
    *((-3, -4), (-4, 3), (0, 0), None),
]
"""Norms 5 and 25: every product and norm is a whole number, and many cosines are equal."""

FLOOR_CHOICES = [20 / 25, -1.0, 0.0, 0.6, 20 / 25, 24 / 25, math.nextafter(24 / 25, 1), 1.0]
SIZES = {
    "BLOCK": [4096, 4096, 1, 2, 3],
    "CODES": [4096, 1, 3],
    "REMEMBERED": [1024, 1, 3],
    "WRITTEN": [2**17, 1, 3],
    "PROPOSED": [2**20, 0, 1, 4],
    "DECIDED": [2**15, 1, 2],
    "STRIP": [512, 1, 2],
}


@dataclass(frozen=True)
class Step:
    """One thing that happens to a store: what, to which memory, and how."""

    verb: str
    which: int = 0
    value: Any = None


COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "retype": ("memory_type", [*COMPARED, "fact", "fact", "event", "note", "pattern"]),
    "rescope": ("scope", ["work", "home"]),
    "move": ("project", [None, "", "atlas"]),
    "end": ("valid_to", [TODAY, datetime(2099, 1, 1, tzinfo=UTC), None, None]),
    "archive": ("status", ["archived", "active"]),
    "touch": ("updated_at", [ago(3), ago(2)]),
    "review": ("last_reviewed_at", [ago(3), None]),
    "rename": ("topic", ["other", "topic"]),
    "recreate": ("created_at", [ago(90), ago(60), ago(5)]),
}
"""Steps that set one column of a memory."""

STEP_MODELS = ["plain", "strict", "unknown"]
WHICH = st.integers(0, 11)


def inserts() -> st.SearchStrategy[Step]:
    """A new memory, most often of one group."""
    often: dict[str, Any] = {"memory_type": "fact", "scope": "work", "project": None}
    fields: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {
            "at": st.sampled_from(PLACES),
            "created_at": st.sampled_from([ago(90), ago(60), ago(60), ago(5)]),
            "embedding_model": st.sampled_from(["plain"] * 5 + ["strict", None]),
            "odd": st.sampled_from(
                [{}] * 20
                + [{"memory_type": "event"}, {"memory_type": "note"}, {"memory_type": "blocker"}]
                + [{"scope": "home"}, {"project": "atlas"}, {"valid_to": TODAY}]
                + [{"status": "archived"}]
            ),
        }
    )
    return fields.map(lambda found: Step("insert", value=often | found | found["odd"]))


def steps(*, of_floors: bool) -> st.SearchStrategy[Step]:
    """Anything that may happen between two minings, and a mining."""
    choices = [
        inserts(),
        st.builds(Step, st.just("embed"), WHICH, st.sampled_from(PLACES)),
        st.builds(Step, st.just("embed alike"), WHICH, WHICH),
        st.builds(Step, st.just("embed again"), WHICH),
        st.builds(Step, st.just("rewrite"), WHICH, st.uuids()),
        st.builds(Step, st.just("model"), WHICH, st.sampled_from(STEP_MODELS)),
        st.builds(Step, st.just("delete"), WHICH),
        *(
            st.builds(Step, st.just(verb), WHICH, st.sampled_from(values))
            for verb, (_, values) in COLUMNS.items()
        ),
    ]
    floors = st.builds(
        Step,
        st.just("floor"),
        value=st.tuples(st.sampled_from(STEP_MODELS), st.sampled_from(FLOOR_CHOICES)),
    )
    return st.one_of(*choices, *([floors] * 3 if of_floors else []))


@st.composite
def histories(draw: st.DrawFn, *, of_floors: bool) -> list[Step]:
    """Some memories, and rounds of a few steps with a mining at the end of each."""
    some = st.lists(steps(of_floors=of_floors), min_size=1, max_size=6)
    rounds = draw(st.lists(some, min_size=1, max_size=4))
    mined = [step for each in rounds for step in (*each, Step("mine"))]
    first = [Step("mine")] if draw(st.booleans()) else []
    return [*draw(st.lists(inserts(), min_size=4, max_size=10)), *first, *mined]


@dataclass
class History:
    """A store that steps are taken in."""

    store: Store
    user_id: UUID
    floors: dict[str, float]
    ids: list[UUID]
    live: list[UUID] = field(default_factory=list)
    minings: int = 0

    def take(self, step: Step) -> None:
        if step.verb == "mine":
            self.mine()
            return
        if step.verb == "floor":
            model, floor = step.value
            self.floors[model] = floor
            return
        if step.verb == "insert":
            self._insert(step.value)
            return
        if not self.live:
            return
        id_ = self.live[step.which % len(self.live)]
        if step.verb in COLUMNS:
            column, _ = COLUMNS[step.verb]
            self.store.execute(
                f"UPDATE memories SET {column} = :value WHERE id = :id", value=step.value, id=id_
            )
        elif step.verb == "embed":
            embed(self.store, id_, None if step.value is None else grid(*step.value))
        elif step.verb == "embed again":
            self.store.execute("UPDATE memories SET embedding = embedding WHERE id = :id", id=id_)
        elif step.verb == "embed alike":
            self.store.execute(
                "UPDATE memories AS m SET embedding = o.embedding FROM memories AS o"
                " WHERE m.id = :id AND o.id = :other",
                id=id_,
                other=self.live[step.value % len(self.live)],
            )
        elif step.verb == "rewrite":
            self.store.execute(
                "UPDATE memories SET content = :text, content_hash = :text WHERE id = :id",
                text=f"{id_} {step.value}",
                id=id_,
            )
        elif step.verb == "model":
            set_model(self.store, self.user_id, id_, step.value)
        elif step.verb == "delete":
            self.store.execute("DELETE FROM memories WHERE id = :id", id=id_)
            self.live.remove(id_)
            self.ids.append(id_)

    def _insert(self, fields: dict[str, Any]) -> None:
        if not self.ids:
            return
        id_ = self.ids.pop(0)
        at = fields["at"]
        self.store.memory(
            self.user_id,
            f"{id_} as new",
            id=id_,
            embedding=None if at is None else grid(*at),
            **{name: each for name, each in fields.items() if name not in ("at", "odd")},
        )
        self.live.append(id_)

    def mine(self) -> Mined:
        self.minings += 1
        return mine(self.store, self.user_id, self.floors, TODAY + timedelta(hours=self.minings))


def set_model(store: Store, user_id: UUID, id_: UUID, model: str) -> None:
    """Record which model embedded a memory, or that it was another."""
    store.execute(
        """
        INSERT INTO forgetting.embedding_models VALUES (:user_id, :id, :model)
        ON CONFLICT (user_id, memory_id) DO UPDATE SET embedding_model = excluded.embedding_model
        """,
        user_id=user_id,
        id=id_,
        model=model,
    )


@contextmanager
def sizes(**chosen: int) -> Iterator[None]:
    """Other sizes of blocks, pages and strips."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in chosen.items():
            having = [module for module in (mining, vectors) if hasattr(module, name)]
            assert having, name
            for module in having:
                patch.setattr(module, name, size)
        yield


SOME_SIZES = st.fixed_dictionaries({name: st.sampled_from(each) for name, each in SIZES.items()})
SOME_IDS = st.permutations([UUID(int=number) for number in range(1, 13)])
PROPERTY = settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def anew(store: Store, floors: dict[str, float], ids: Sequence[UUID]) -> History:
    """An empty store of one tenant, the same for every example of a property test."""
    found = store.rows("SELECT user_id FROM tenants WHERE slug = 'acme'")
    user_id = found[0]["user_id"] if found else store.tenant()
    empty(store)
    return History(store, user_id, dict(FLOORS) | floors, list(ids))


SOME_FLOORS = st.fixed_dictionaries({m: st.sampled_from(FLOOR_CHOICES) for m in STEP_MODELS})


@PROPERTY
@given(histories(of_floors=True), SOME_FLOORS, SOME_IDS, SOME_SIZES)
def test_after_any_history_the_pairs_at_or_above_today_s_floors_are_those_of_brute_force(
    store: Store,
    history: list[Step],
    floors: dict[str, float],
    ids: list[UUID],
    chosen: dict[str, int],
) -> None:
    past = anew(store, floors, ids)
    with sizes(**chosen):
        for step in history:
            past.take(step)
            if step.verb == "mine":
                found = index(store, past.user_id)
                at_any = brute_force(store, past.user_id, None)
                assert {
                    both: (cosine, model)
                    for both, (cosine, model) in found.items()
                    if cosine >= past.floors[model]
                } == brute_force(store, past.user_id, past.floors)
                # Below a floor that was raised a pair may be there or not, but never a wrong one.
                assert found.items() <= at_any.items()
    event(f"{past.minings} minings")
    event(f"{min(len(found), 5)} or more pairs")


@PROPERTY
@given(histories(of_floors=False), SOME_FLOORS, SOME_IDS, SOME_SIZES)
def test_after_any_history_the_index_is_that_of_a_first_mining_and_mining_again_changes_nothing(
    store: Store,
    history: list[Step],
    floors: dict[str, float],
    ids: list[UUID],
    chosen: dict[str, int],
) -> None:
    past = anew(store, floors, ids)
    with sizes(**chosen):
        for step in history:
            past.take(step)
        assert index(store, past.user_id) == brute_force(store, past.user_id, past.floors)
        before, rows = store.dump(*INDEX[1:]), mined_rows(store)
        again = past.mine()
    assert (again.memories, again.pairs, again.directionless) == (0, 0, [])
    assert store.dump(*INDEX[1:]) == before
    assert as_if_mined_at_once(store, past.user_id, past.floors) == rows
    event(f"{past.minings} minings")
    event(f"{min(len(rows['pairs']), 5)} or more pairs")


# A pair is mined once


UNTOUCHED = {
    "nothing": "SELECT 1",
    "touched": "UPDATE memories SET updated_at = now() WHERE id = :id",
    "reviewed": "UPDATE memories SET last_reviewed_at = now() WHERE id = :id",
    "archived": "UPDATE memories SET status = 'archived' WHERE id = :id",
    "renamed": "UPDATE memories SET topic = 'another' WHERE id = :id",
    "rewritten": "UPDATE memories SET content = 'x', content_hash = 'x' WHERE id = :id",
    "tagged": "UPDATE memories SET tags = '[1]' WHERE id = :id",
    "embedded to the same": "UPDATE memories SET embedding = embedding WHERE id = :id",
    "all touched": "UPDATE memories SET updated_at = now()",
    "model recorded again": (
        "UPDATE forgetting.embedding_models SET embedding_model = 'minilm' WHERE memory_id = :id"
    ),
    "written and taken back": (
        "UPDATE memories SET scope = 'home' WHERE id = :id;"
        "UPDATE memories SET scope = 'work' WHERE id = :id"
    ),
}


def test_what_says_nothing_of_a_vector_leaves_a_pair_as_it_was_mined(store: Store) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme, 0.9, embedding_model="minilm")
    other = store.pair(acme, 0.95)
    assert mine(store, acme).memories == 4
    before = store.dump(*INDEX[1:])
    for name, change in UNTOUCHED.items():
        store.execute(change, id=newer)
        again = mine(store, acme, now=LATER)
        assert (name, again.memories, again.pairs) == (name, 0, 0)
        assert store.dump(*INDEX[1:]) == before, name
    assert mined_at(store) == {(older, newer): TODAY, other: TODAY}


def test_a_pair_whose_side_is_archived_and_revived_was_mined_once(store: Store) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme, 0.9)
    archived = store.pair(acme, 0.9, status="archived")
    mine(store, acme)
    before = store.dump(*INDEX[1:])
    for status, now in (("archived", LATER), ("active", LATER_STILL)):
        store.execute(
            "UPDATE memories SET status = :status WHERE id IN (:older, :newer)",
            status=status,
            older=older,
            newer=newer,
        )
        assert mine(store, acme, now=now).memories == 0
        assert store.dump(*INDEX[1:]) == before
    # One that was archived before it was mined is ready as well, for when it is revived.
    assert mined_at(store) == {(older, newer): TODAY, archived: TODAY}


MOVES: dict[str, tuple[str, dict[str, Any]]] = {
    "type": ("UPDATE memories SET memory_type = 'preference'", {"memory_type": "preference"}),
    "scope": ("UPDATE memories SET scope = 'home'", {"scope": "home"}),
    "project": ("UPDATE memories SET project = 'atlas'", {"project": "atlas"}),
    "no project": ("UPDATE memories SET project = NULL", {"project": None}),
    "model": (
        "UPDATE forgetting.embedding_models SET embedding_model = 'nomic'",
        {"embedding_model": "nomic"},
    ),
}


def test_a_memory_that_moves_to_another_group_is_mined_again_and_no_other(store: Store) -> None:
    acme = store.tenant()
    here: dict[str, Any] = {"project": "borea", "embedding_model": "minilm"}
    for name, (change, group) in MOVES.items():
        empty(store)
        one, two, moving = (
            store.memory(acme, age=age, embedding=vector(0), **here) for age in (60, 50, 40)
        )
        there, there_too = (
            store.memory(acme, age=age, embedding=vector(0), **here | group) for age in (55, 30)
        )
        mine(store, acme)
        stay = {(one, two): TODAY, (there, there_too): TODAY}
        assert mined_at(store) == stay | {(one, moving): TODAY, (two, moving): TODAY}, name
        column = "memory_id" if "embedding_models" in change else "id"
        store.execute(f"{change} WHERE {column} = :id", id=moving)
        again = mine(store, acme, now=LATER)
        assert (name, again.memories, again.pairs) == (name, 1, 2)
        assert mined_at(store) == stay | {(there, moving): LATER, (moving, there_too): LATER}, name
        assert index(store, acme) == brute_force(store, acme)


def test_a_memory_that_is_embedded_again_is_mined_again_and_no_other(store: Store) -> None:
    acme = store.tenant()
    one, two, three = (
        store.memory(acme, age=age, embedding=vector(angle))
        for age, angle in ((60, 0), (50, 1), (40, 2))
    )
    mine(store, acme)
    embed(store, three, vector(3))
    again = mine(store, acme, now=LATER)
    assert (again.memories, again.pairs) == (1, 2)
    assert mined_at(store) == {(one, two): TODAY, (one, three): LATER, (two, three): LATER}
    assert index(store, acme) == brute_force(store, acme)


def test_a_memory_whose_time_of_creation_is_corrected_changes_sides(store: Store) -> None:
    acme = store.tenant()
    one, two = store.pair(acme, 0.9)
    mine(store, acme)
    store.execute("UPDATE memories SET created_at = :at WHERE id = :id", at=ago(90), id=two)
    assert mine(store, acme, now=LATER).memories == 1
    assert mined_at(store) == {(two, one): LATER}


GONE = {
    "superseded": ("valid_to = now()", "valid_to = NULL"),
    "superseded from 2099 on": ("valid_to = '2099-01-01'", "valid_to = NULL"),
    "an event": ("memory_type = 'event'", "memory_type = 'fact'"),
    "a note": ("memory_type = 'note'", "memory_type = 'fact'"),
    "without a vector": (
        "embedding = NULL",
        "embedding = (SELECT o.embedding FROM memories AS o WHERE o.topic = 'first')",
    ),
}


def test_a_memory_that_is_not_compared_any_more_leaves_the_index_and_may_come_back(
    store: Store,
) -> None:
    acme = store.tenant()
    for name, (change, undo) in GONE.items():
        empty(store)
        first, second, third = (
            store.memory(acme, topic=topic, age=age, embedding=vector(0))
            for topic, age in (("first", 60), ("second", 50), ("third", 40))
        )
        mine(store, acme)
        store.execute(f"UPDATE memories SET {change} WHERE id = :id", id=second)
        assert mine(store, acme, now=LATER).memories == 0, name
        assert mined_at(store) == {(first, third): TODAY}, name
        kept = store.rows("SELECT memory_id FROM forgetting.mined_memories")
        assert {row["memory_id"] for row in kept} == {first, third}, name
        store.execute(f"UPDATE memories SET {undo} WHERE id = :id", id=second)
        assert mine(store, acme, now=LATER_STILL).memories == 1, name
        assert mined_at(store) == {
            (first, third): TODAY,
            (first, second): LATER_STILL,
            (second, third): LATER_STILL,
        }, name


def test_floors_that_go_up_and_down_mine_again_only_the_models_whose_floor_is_lowered(
    store: Store,
) -> None:
    acme = store.tenant()
    near, far = (store.pair(acme, cosine, embedding_model="minilm") for cosine in (0.95, 0.85))
    other = store.pair(acme, 0.9, embedding_model="nomic")
    at = dict(FLOORS)
    mine_past(store, acme, at)
    raised = at | {"minilm": 0.9}
    assert mine(store, acme, raised, LATER).memories == 0
    late_near = store.pair(acme, 0.95, embedding_model="minilm")
    late_far = store.pair(acme, 0.85, embedding_model="minilm")
    assert mine(store, acme, raised, LATER).memories == 4
    assert mined_at(store) == {near: TODAY, far: TODAY, other: TODAY, late_near: LATER}
    mine_past(store, acme, raised)
    # The floor is back where the first pairs were mined, yet the index is not whole there.
    assert mine(store, acme, at, LATER_STILL).memories == 8
    assert mined_at(store) == {
        **dict.fromkeys((near, far, late_near, late_far), LATER_STILL),
        other: TODAY,
    }
    (recorded,) = store.rows("SELECT floors, mined_at FROM forgetting.minings")
    assert recorded == {"floors": at, "mined_at": LATER_STILL}


@contextmanager
def looked_at(name: str) -> Iterator[list[UUID]]:
    """The ids that minings give to one of their statements."""
    ids: list[UUID] = []
    copy = TenantTransaction.copy

    def watched(self: TenantTransaction, query: sa.TextClause, *rest: Any, **named: Any) -> None:
        if query is mining.QUERIES[name]:
            ids.extend(UUID(each) for each in named["ids"][1:-1].split(",") if each)
        copy(self, query, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TenantTransaction, "copy", watched)
        yield ids


def test_only_what_was_written_since_the_last_mining_is_looked_at_again(store: Store) -> None:
    acme = store.tenant()
    for _ in range(5):
        store.memory(acme)
    touched, renamed, new = (
        store.memory(acme),
        store.memory(acme, embedding_model=None),
        UUID(int=1),
    )
    mine_past(store, acme)
    store.execute("UPDATE memories SET updated_at = :now WHERE id = :id", now=TODAY, id=touched)
    set_model(store, acme, renamed, "nomic")
    store.memory(acme, id=new)
    with looked_at("copy_unmined") as compared, looked_at("copy_vectors") as read:
        mine(store, acme)
    assert sorted(compared) == sorted([touched, renamed, new])
    # And of the one that was only touched no more than its fingerprint.
    assert sorted(read) == sorted([renamed, new])


def test_a_fingerprint_and_a_code_are_of_the_vector_that_the_database_has(store: Store) -> None:
    acme = store.tenant()
    generator = np.random.default_rng(11)
    ids = load(store, acme, generator.standard_normal((6, 1536)).astype(np.float32))
    store.memory(acme, embedding=grid(0, 0), embedding_model=None)
    mine(store, acme)
    rows = store.rows(
        """
        SELECT s.memory_id, s.fingerprint, s.code, s.code_step, s.code_error, s.group_key,
            sha256(vector_send(m.embedding) || timestamptz_send(m.created_at)) AS expected,
            forgetting.group_key(m.memory_type, m.scope, m.project, 'unknown') AS expected_key,
            CAST(m.embedding AS real[]) AS embedding
        FROM forgetting.mined_memories AS s INNER JOIN memories AS m ON s.memory_id = m.id
        """
    )
    assert len(rows) == len(ids) + 1
    for row in rows:
        assert bytes(row["fingerprint"]) == bytes(row["expected"])
        assert row["group_key"] == row["expected_key"]
        exact = np.array(row["embedding"], np.float64)
        unit = exact / (np.linalg.norm(exact) or 1)
        code = np.frombuffer(bytes(row["code"]), np.int8) * row["code_step"]
        assert np.linalg.norm(code - unit) <= row["code_error"] + 1e-6
        assert (row["code_step"] == 0) == (not exact.any())


# Blocks, halves and pages


NAMES = ("BLOCK", "CODES", "REMEMBERED", "WRITTEN", "PROPOSED", "DECIDED", "STRIP")
CUTS = [
    dict(zip(NAMES, chosen, strict=True))
    for chosen in (
        (3, 4, 2, 5, 2, 2, 2),
        (1, 1, 1, 1, 0, 1, 1),
        (16, 5, 7, 7, 5, 3, 4),
        (5, 100, 1024, 64, 1000, 1000, 3),
    )
]


@pytest.mark.parametrize("seed", range(3))
def test_the_index_is_the_same_however_the_work_is_cut(store: Store, seed: int) -> None:
    acme = store.tenant()
    generator = np.random.default_rng(seed)

    def add(count: int) -> None:
        for _ in range(count):
            group = int(generator.integers(4))
            store.memory(
                acme,
                id=UUID(bytes=generator.bytes(16)),
                scope=("work", "home")[group % 2],
                embedding_model=("minilm", None)[group // 2],
                age=float(generator.integers(1, 90)),
                embedding=grid(*PLACES[int(generator.integers(7))] or (0, 0)),
            )

    add(25)
    mine(store, acme)
    add(15)
    mine(store, acme)
    expected, found = mined_rows(store), index(store, acme)
    assert found == brute_force(store, acme)
    assert len(found) > 50
    for chosen in CUTS:
        with sizes(**chosen):
            assert as_if_mined_at_once(store, acme) == expected, chosen
            # And one memory after another, against what is mined.
            wipe(store)
            for scope in ("home", "work"):
                store.execute(
                    "UPDATE memories SET valid_to = :now WHERE scope = :scope",
                    now=TODAY,
                    scope=scope,
                )
                mine(store, acme)
                store.execute("UPDATE memories SET valid_to = NULL")
            mine(store, acme)
            assert mined_rows(store) == expected, chosen


def test_groups_whose_keys_collide_make_no_pair_across_them(store: Store) -> None:
    acme = store.tenant()
    groups: list[dict[str, Any]] = [
        {},
        {"scope": "home"},
        {"project": "atlas"},
        {"memory_type": "blocker"},
    ]
    for group in groups:
        for model in ("minilm", None):
            for age in (60, 50):
                store.memory(acme, age=age, embedding=vector(0), embedding_model=model, **group)
    store.execute(
        "CREATE OR REPLACE FUNCTION forgetting.group_key("
        "memory_type text, scope text, project text, embedding_model text) RETURNS bigint"
        " LANGUAGE sql IMMUTABLE AS 'SELECT CAST(1 AS bigint)'"
    )
    with sizes(BLOCK=3):
        mine(store, acme)
    assert len(index(store, acme)) == 8
    assert index(store, acme) == brute_force(store, acme)


# Vectors as they are


def cloud(generator: np.random.Generator, count: int, cosine: float, *, spike: bool) -> Matrix:
    """Vectors of 1,536 values that are about this close to each other, two of them alike.

    With a spike all they share is one coordinate, far above the others, which a code of one byte a
    value then hardly tells from 0.
    """
    share = max(cosine, 0.05)
    noise = generator.standard_normal((count, 1536))
    centre = np.zeros(1536)
    if spike:
        centre[int(generator.integers(1536))] = math.sqrt(1536)
    else:
        centre = generator.standard_normal(1536)
    rows = math.sqrt(share) * centre + math.sqrt(1 - share) * noise
    rows[1] = rows[0]
    rows *= generator.uniform(0.01, 100, (count, 1))
    return rows.astype(np.float32)


@pytest.mark.parametrize("floor", [0.5, 0.82, 0.99, -1.0])
def test_of_real_looking_vectors_just_those_at_or_above_the_floor_are_pairs(
    store: Store, floor: float
) -> None:
    acme = store.tenant()
    generator = np.random.default_rng(7)
    floors = {"unknown": floor}
    # Smaller blocks than groups, so that most pairs are found by the codes.
    with sizes(BLOCK=24, CODES=30, STRIP=10):
        for turn in range(2):
            for place, spike in enumerate((False, True)):
                clouds = [cloud(generator, 20, each, spike=spike) for each in (floor, floor, 0.9)]
                first = 1000 * (2 * turn + place)
                load(store, acme, np.vstack(clouds), scope=f"spike {spike}", first=first)
            assert mine(store, acme, floors).memories == 120
    found = index(store, acme)
    assert found == brute_force(store, acme, floors)
    at_any = brute_force(store, acme, None)
    if floor == -1:
        assert len(found) == len(at_any) == 2 * 120 * 119 // 2
    else:
        close = [cosine for cosine, _ in at_any.values() if abs(cosine - floor) < 0.01]
        assert len(close) > 400
        assert 100 < sum(cosine >= floor for cosine in close) < len(close) - 100


# Far from 1 the squares leave single precision: the database's cosine is NaN, and there is no pair.
@pytest.mark.parametrize(
    "scales",
    [{1e-30: 0, 1e-15: 3, 1e15: 3, 1e30: 0}, {1e-40: 0}],
    ids=["any length", "too short for single precision"],
)
def test_vectors_of_any_length_are_mined_as_the_database_compares_them(
    store: Store, scales: dict[float, int]
) -> None:
    acme = store.tenant()
    for scale, expected in scales.items():
        empty(store)
        for x, y in ((3, 4), (4, 3), (3, 4), (-5, 0)):
            store.memory(acme, embedding=grid(x * scale, y * scale))
        with sizes(BLOCK=2):
            mine(store, acme)
        found = index(store, acme)
        assert found == brute_force(store, acme), scale
        assert len(found) == expected, scale


# What happens meanwhile


def test_a_change_that_was_under_way_during_a_mining_is_mined_when_it_is_there(
    store: Store,
) -> None:
    acme = store.tenant()
    one = store.memory(acme, age=60, embedding=vector(0))
    two = store.memory(acme, age=50, embedding=vector(90))
    three, new = store.memory(acme, age=40, embedding=vector(90)), uuid.uuid4()
    with store.owner.connect() as late:
        late.execute(
            sa.text("UPDATE memories SET embedding = CAST(:v AS vector) WHERE id = :id"),
            {"v": json.dumps(vector(1)), "id": two},
        )
        late.execute(
            sa.text(
                "INSERT INTO memories (id, user_id, memory_type, topic, content, scope,"
                " content_hash, embedding, created_at) VALUES (:id, :user_id, 'fact', 't', 'c',"
                " 'work', 'h', CAST(:v AS vector), :at)"
            ),
            {"id": new, "user_id": acme, "v": json.dumps(vector(2)), "at": ago(1)},
        )
        late.execute(
            sa.text("INSERT INTO forgetting.embedding_models VALUES (:u, :id, 'test-embedding')"),
            {"u": acme, "id": new},
        )
        for now in (TODAY, LATER):
            mine(store, acme, now=now)
            assert set(index(store, acme)) == {(two, three)}
            # Others come and go meanwhile, with later transaction ids.
            store.memory(acme)
        late.commit()
    again = mine(store, acme, now=LATER_STILL)
    assert again.memories == 3
    assert set(index(store, acme)) == {(one, two), (one, new), (two, new)}
    assert index(store, acme) == brute_force(store, acme)


def test_a_transaction_that_began_before_several_minings_and_wrote_after_them_is_not_missed(
    store: Store,
) -> None:
    acme = store.tenant()
    one, two = (store.memory(acme, age=age, embedding=vector(age)) for age in (90, 10))
    renamed = store.memory(acme, age=5, embedding_model=None, embedding=vector(90))
    with store.owner.connect() as late:
        late.execute(sa.text("SELECT pg_current_xact_id()"))
        for now in (TODAY, LATER):
            mine(store, acme, now=now)
            store.memory(acme)
        # Once under the id of the transaction itself, which may be the very horizon, and once in a
        # savepoint, under a later one.
        late.execute(
            sa.text("INSERT INTO forgetting.embedding_models VALUES (:u, :id, 'test-embedding')"),
            {"u": acme, "id": renamed},
        )
        with late.begin_nested():
            late.execute(
                sa.text("UPDATE memories SET embedding = CAST(:v AS vector) WHERE id = :id"),
                {"v": json.dumps(vector(90)), "id": two},
            )
        mine(store, acme, now=LATER)
        assert index(store, acme) == {}
        late.commit()
    store.memory(acme)
    mine(store, acme, now=LATER_STILL)
    assert set(index(store, acme)) == {(one, two), (one, renamed), (two, renamed)}
    assert index(store, acme) == brute_force(store, acme)


def once(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    act: Callable[..., object],
    *arguments: object,
    call: int = 1,
) -> None:
    """Let something happen before a mining's given call of one of the functions of vectors."""
    real: Callable[..., Any] = getattr(vectors, name)
    calls = itertools.count(1)

    def acting(*given: Any) -> Any:
        if next(calls) == call:
            act(*arguments)
        return real(*given)

    monkeypatch.setattr(vectors, name, acting)


MEANWHILE = {
    "embedded again": "UPDATE memories SET embedding = (SELECT o.embedding FROM memories AS o"
    " WHERE o.topic = 'far') WHERE topic = 'one'",
    "embedded to the same": "UPDATE memories SET embedding = (SELECT o.embedding FROM memories AS o"
    " WHERE o.topic = 'two') WHERE topic = 'far'",
    "no vector": "UPDATE memories SET embedding = NULL WHERE topic = 'one'",
    "retyped": "UPDATE memories SET memory_type = 'blocker' WHERE topic = 'one'",
    "moved to where it has likes": "UPDATE memories SET scope = 'work' WHERE topic = 'elsewhere'",
    "ended": "UPDATE memories SET valid_to = now() WHERE topic = 'one'",
    "created earlier": "UPDATE memories SET created_at = '2020-01-01Z' WHERE topic = 'two'",
    "another model": "UPDATE forgetting.embedding_models SET embedding_model = 'nomic'"
    " WHERE memory_id = (SELECT id FROM memories WHERE topic = 'one')",
    "archived": "UPDATE memories SET status = 'archived' WHERE topic = 'one'",
    "inserted": "INSERT INTO memories (user_id, memory_type, topic, content, scope, content_hash,"
    " embedding) SELECT user_id, memory_type, 'new', 'c', scope, 'h', embedding FROM memories"
    " WHERE topic = 'unknown'",
}

LEAVING = {
    "made an event": "UPDATE memories SET memory_type = 'event' WHERE topic = 'one'",
    "made a note": "UPDATE memories SET memory_type = 'note' WHERE topic = 'one'",
    "deleted": "DELETE FROM memories WHERE topic = 'one'",
    "all deleted": "DELETE FROM memories",
}


@pytest.mark.parametrize("moment", ["read_block", "close_within", "encode"])
def test_a_change_that_commits_while_a_mining_runs_is_in_the_index_after_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    acme = store.tenant()
    for name, change in MEANWHILE.items():
        empty(store)
        several(store, acme)
        with monkeypatch.context() as patch:
            once(patch, moment, store.execute, change)
            mine(store, acme)
        mine(store, acme, now=LATER)
        assert index(store, acme) == brute_force(store, acme), name
        assert mine(store, acme, now=LATER_STILL).memories == 0, name


def several(store: Store, user_id: UUID) -> None:
    """A few memories, close and far, by their topics."""
    for topic, degree in (("one", 0), ("two", 1), ("far", 80)):
        id_ = UUID(int=degree + 1)  # so that their order is the same every time
        store.memory(user_id, id=id_, topic=topic, embedding=vector(degree))
    store.memory(user_id, topic="elsewhere", scope="home", embedding=vector(2))
    store.memory(user_id, topic="unknown", embedding=vector(2), embedding_model=None)


@pytest.mark.parametrize("change", LEAVING.values(), ids=LEAVING)
def test_a_memory_that_leaves_while_a_mining_runs_does_not_make_it_fail(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    acme = store.tenant()
    for moment in ("read_block", "close_within", "encode"):
        empty(store)
        several(store, acme)
        with monkeypatch.context() as patch:
            once(patch, moment, store.execute, change)
            mine(store, acme)
        mine(store, acme, now=LATER)
        assert index(store, acme) == brute_force(store, acme)


def test_a_memory_that_leaves_while_a_mining_runs_leaves_the_next_one_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()
    for moment, (name, change) in itertools.product(("close_within", "encode"), LEAVING.items()):
        empty(store)
        several(store, acme)
        with monkeypatch.context() as patch:
            once(patch, moment, store.execute, change)
            try:
                mine(store, acme)
            except StoreRefused:
                assert store.dump(*INDEX) == {table: [] for table in INDEX}, name
        mine(store, acme, now=LATER)
        assert index(store, acme) == brute_force(store, acme), name
        assert mine(store, acme, now=LATER_STILL).memories == 0, name


def test_a_memory_that_leaves_and_comes_back_while_a_mining_runs_is_mined_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()
    run = TenantTransaction.run

    def watched(self: TenantTransaction, query: sa.TextClause, **named: Any) -> int:
        # When it was not mined for what it was, and before the pairs are written.
        if query is mining.QUERIES["insert_pairs"]:
            store.execute("UPDATE memories SET memory_type = 'fact'")
        return run(self, query, **named)

    # Either side of the pair.
    for topic in ("one", "two"):
        empty(store)
        several(store, acme)
        leave = f"UPDATE memories SET memory_type = 'note' WHERE topic = '{topic}'"
        with monkeypatch.context() as patch:
            once(patch, "encode", store.execute, leave)
            patch.setattr(TenantTransaction, "run", watched)
            mine(store, acme)
        mine(store, acme, now=LATER)
        assert index(store, acme) == brute_force(store, acme)
        assert len(index(store, acme)) == 1


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def waiting(store: Store) -> int:
    """How many minings wait for a tenant's lock."""
    (row,) = store.rows(
        """
        SELECT count(*) AS n FROM pg_stat_activity AS a
        INNER JOIN pg_locks AS l ON a.pid = l.pid AND l.locktype = 'advisory' AND NOT l.granted
        WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
            AND a.wait_event = 'advisory'
        """
    )
    return int(row["n"])


def test_two_minings_of_a_tenant_wait_for_each_other_and_those_of_two_tenants_do_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    ours, theirs = store.pair(acme, 0.9), store.pair(borea, 0.9)
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(60)

    once(monkeypatch, "encode", hold)
    with threads() as pool:
        try:
            first: Future[Mined] = pool.submit(mine, store, acme)
            assert inside.wait(60)
            second: Future[Mined] = pool.submit(mine, store, acme, FLOORS, LATER)
            wait_until(lambda: waiting(store) == 1, "the second mining waits for the first")
            # While the first is held and the second waits, the other tenant's comes to its end.
            assert pool.submit(mine, store, borea).result(60).memories == 2
            assert not first.done()
            assert not second.done()
            assert waiting(store) == 1
        finally:
            go_on.set()
        assert (first.result(60).memories, second.result(60).memories) == (2, 0)
    assert mined_at(store) == {ours: TODAY, theirs: TODAY}
    assert index(store, acme) == brute_force(store, acme)
    assert index(store, borea) == brute_force(store, borea)


# All of it or nothing


def half_mined(store: Store, acme: UUID) -> dict[str, list[str]]:
    """A store that was mined, and then changed so that much must be mined again; its index."""
    for age in range(1, 9):
        store.memory(acme, topic=str(age), age=age, embedding=vector(age))
    mine(store, acme)
    store.execute("UPDATE memories SET embedding = NULL WHERE topic = '1'")
    store.execute("UPDATE memories SET created_at = :at WHERE topic > '3'", at=ago(90))
    for age in range(11, 16):
        store.memory(acme, age=age, embedding=vector(age))
    return store.dump(*INDEX)


def test_a_mining_that_fails_midway_leaves_everything_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()

    def fail() -> None:
        raise ZeroDivisionError("midway")

    for moment in ("read_block", "close_within", "close_to_codes", "encode"):
        empty(store)
        before = half_mined(store, acme)
        with sizes(BLOCK=3), monkeypatch.context() as patch:
            once(patch, moment, fail, call=2)
            with pytest.raises(ZeroDivisionError, match="midway"):
                mine(store, acme, now=LATER)
        assert store.dump(*INDEX) == before, moment
        assert mine(store, acme, now=LATER).memories == 10
        assert index(store, acme) == brute_force(store, acme)


def test_a_mining_whose_connection_is_ended_midway_leaves_everything_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()

    def end() -> None:
        ended = store.rows(
            """
            SELECT pg_terminate_backend(a.pid, 60000) AS ended FROM pg_stat_activity AS a
            WHERE a.datname = current_database() AND a.usename = :role
                AND a.xact_start IS NOT NULL
            """,
            role=RUNTIME_ROLE,
        )
        assert ended == [{"ended": True}]

    # The next statement is a COPY, on the driver's cursor, or one that is not.
    for moment in ("close_within", "encode"):
        empty(store)
        before = half_mined(store, acme)
        with sizes(BLOCK=3), monkeypatch.context() as patch:
            once(patch, moment, end, call=2)
            with pytest.raises(StoreRefused, match="refused a statement and rolled back"):
                mine(store, acme, now=LATER)
        assert store.dump(*INDEX) == before, moment
        assert mine(store, acme, now=LATER).memories == 10
        assert index(store, acme) == brute_force(store, acme)


# What cannot be mined


NO_FLOOR = (
    "acme has vectors of the embedding model {0}, which has no floor: add {1} with the least cosine"
    " of a pair to FORGETTING_CONFLICT_FLOORS. `forgetting floor --tenant acme` shows what each"
    " floor would find."
)


def refused(
    store: Store, acme: UUID, error: type[Exception], floors: Mapping[str, float] = FLOORS
) -> str:
    """What a mining is refused with. The partition that asks for it is refused too, and no row of
    either is written."""
    tables = (*INDEX, *STORE, "forgetting.conflict_pairs")
    before = store.dump(*tables)
    with pytest.raises(error) as raised:
        mine(store, acme, floors, LATER)
    policy = make_policy().model_copy(update={"conflict_floors": dict(floors)})
    with pytest.raises(error) as as_asset:
        pairs.select(store.database, store.partition(), policy, LATER)
    assert store.dump(*tables) == before
    assert str(as_asset.value) == str(raised.value)
    return str(raised.value)


def test_a_model_without_a_floor_is_named_and_nothing_is_mined(store: Store) -> None:
    acme = store.tenant()
    for model in ("mystery", 'a "quoted" model', "modèle-é", "100%"):
        empty(store)
        store.pair(acme, 0.9)
        odd, _ = store.pair(acme, 0.9, embedding_model=model)
        said = refused(store, acme, FloorMissing)
        assert said == NO_FLOOR.format(model, json.dumps(model))
        set_model(store, acme, odd, "minilm")
        assert refused(store, acme, FloorMissing) == said
        mine(store, acme, {**FLOORS, model: 0.5})
        assert index(store, acme) == brute_force(store, acme, {**FLOORS, model: 0.5})


def test_a_memory_of_no_recorded_model_needs_the_floor_of_the_unknown_one(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, embedding_model=None)
    floors = {"minilm": 0.5}
    assert refused(store, acme, FloorMissing, floors) == NO_FLOOR.format("unknown", '"unknown"')
    assert refused(store, acme, FloorMissing, {}) == NO_FLOOR.format("unknown", '"unknown"')


def test_memories_that_are_not_compared_need_no_floor(store: Store) -> None:
    acme = store.tenant()
    for odd in (
        {"memory_type": "event"},
        {"memory_type": "note"},
        {"memory_type": "commitment"},
        {"valid_to": TODAY},
    ):
        store.memory(acme, embedding_model="mystery", **odd)
    store.memory(acme, embedding=None)
    assert mine(store, acme, {}).memories == 0
    store.execute("UPDATE memories SET valid_to = NULL")
    assert refused(store, acme, FloorMissing, {}) == NO_FLOOR.format("mystery", '"mystery"')


def test_a_memory_whose_model_is_renamed_is_mined_in_its_new_group_if_that_has_a_floor(
    store: Store,
) -> None:
    acme = store.tenant()
    one, two = store.pair(acme, 0.9, embedding_model="minilm")
    third = store.memory(acme, age=1, embedding=vector(0, 1), embedding_model="nomic")
    mine(store, acme)
    assert set(index(store, acme)) == {(one, two)}
    rename = "UPDATE forgetting.embedding_models SET embedding_model = :new WHERE memory_id = :id"
    store.execute(rename, new="mystery", id=one)
    assert refused(store, acme, FloorMissing) == NO_FLOOR.format("mystery", '"mystery"')
    store.execute(rename, new="nomic", id=one)
    assert mine(store, acme, now=LATER).memories == 1
    assert index(store, acme) == brute_force(store, acme)
    assert mined_at(store) == {(one, third): LATER}


def test_a_model_whose_floor_is_taken_out_of_the_settings_is_missed_as_long_as_it_is_used(
    store: Store,
) -> None:
    acme = store.tenant()
    used, other = (store.pair(acme, 0.9, embedding_model=model) for model in ("minilm", "nomic"))
    mine_past(store, acme)
    without = {model: floor for model, floor in FLOORS.items() if model != "minilm"}
    assert refused(store, acme, FloorMissing, without) == NO_FLOOR.format("minilm", '"minilm"')
    assert set(index(store, acme)) == {used, other}
    store.execute(
        "UPDATE memories SET valid_to = :now WHERE id IN (:one, :two)",
        now=TODAY,
        one=used[0],
        two=used[1],
    )
    assert mine(store, acme, without, LATER).memories == 0
    assert mined_at(store) == {other: TODAY}
    # When it is used again, at a lower floor, nothing of what was mined of it stands in the way.
    store.execute("UPDATE memories SET valid_to = NULL")
    assert mine(store, acme, {**FLOORS, "minilm": 0.5}, LATER).memories == 2
    assert mined_at(store) == {other: TODAY, used: LATER}


def let_lengths_differ(store: Store) -> None:
    """A store whose column has no fixed length, as one of several embedding models needs it."""
    with store.owner.begin() as connection:
        connection.exec_driver_sql(
            "DROP VIEW forgetting.comparable_memories, forgetting.live_memories CASCADE"
        )
        connection.exec_driver_sql("ALTER TABLE memories ALTER COLUMN embedding TYPE vector")
        for view in sorted((sql.ROOT / "views").glob("*.sql")):
            sql.run_file(connection, view)


UNEQUAL = (
    "acme has vectors of the embedding model {model} that differ in length, so nothing was mined:"
    " {lengths}. Embed them again, or record in forgetting.embedding_models which model made each."
)


# In one group or two: they are of one model all the same.
@pytest.mark.parametrize("scope", ["work", "home"])
def test_vectors_of_one_model_that_differ_in_length_are_named_and_nothing_is_mined(
    store: Store, scope: str
) -> None:
    acme = store.tenant()
    let_lengths_differ(store)
    three = [store.memory(acme, embedding=[1, 2, 3]) for _ in range(3)]
    two = [store.memory(acme, embedding=[1, 2], scope=scope) for _ in range(2)]
    store.pair(acme, 0.9, embedding_model="minilm")
    for block in (4096, 2, 1):
        with sizes(BLOCK=block):
            said = refused(store, acme, UnusableVectors)
        assert said == UNEQUAL.format(
            model="test-embedding",
            lengths=f"3 of 3 values ({min(three)}), 2 of 2 values ({min(two)})",
        )
    # Two models of two lengths, side by side in one group.
    for id_ in two:
        set_model(store, acme, id_, "another-model")
    for block in (4096, 2):
        wipe(store)
        with sizes(BLOCK=block):
            assert mine(store, acme).memories == 7
        assert index(store, acme) == brute_force(store, acme)
        assert len(index(store, acme)) == 3 + 1 + 1


@pytest.mark.parametrize("scope", ["work", "home"])
def test_a_new_vector_of_another_length_than_the_mined_ones_is_named_and_nothing_is_mined(
    store: Store, scope: str
) -> None:
    acme = store.tenant()
    let_lengths_differ(store)
    three = [store.memory(acme, embedding=[1, 2, 3]) for _ in range(3)]
    mine(store, acme)
    odd = store.memory(acme, embedding=[1, 2, 3, 4], scope=scope)
    said = refused(store, acme, UnusableVectors)
    assert said == UNEQUAL.format(
        model="test-embedding", lengths=f"3 of 3 values ({min(three)}), 1 of 4 values ({odd})"
    )
    store.execute("UPDATE memories SET valid_to = :now WHERE id = :id", now=TODAY, id=odd)
    assert mine(store, acme).memories == 0


def test_a_model_that_is_embedded_anew_at_another_length_is_mined_at_that(store: Store) -> None:
    acme = store.tenant()
    let_lengths_differ(store)
    ids = [store.memory(acme, embedding=[3, 4]) for _ in range(3)]
    mine(store, acme)
    for id_ in ids:
        embed(store, id_, [3, 4, 0, 0, 12])
    assert mine(store, acme, now=LATER).memories == 3
    assert index(store, acme) == brute_force(store, acme)
    assert set(mined_at(store).values()) == {LATER}
    # The length that it had is another one now, in whichever group.
    odd = store.memory(acme, embedding=[3, 4], scope="home")
    assert refused(store, acme, UnusableVectors) == UNEQUAL.format(
        model="test-embedding", lengths=f"3 of 5 values ({min(ids)}), 1 of 2 values ({odd})"
    )


def test_a_model_that_is_embedded_anew_at_another_length_meanwhile_leaves_the_next_mining_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()
    let_lengths_differ(store)
    ids = [store.memory(acme, embedding=[3, 4]) for _ in range(3)]
    mine(store, acme)
    embed(store, ids[0], [3, 4, 0])
    with monkeypatch.context() as patch:
        # After it was decided what is mined again, which the rest is not as it was then.
        once(patch, "read_block", embed_all, store, ids[1:], [3, 4, 0])
        mine(store, acme, now=LATER)
    mine(store, acme, now=LATER)
    assert index(store, acme) == brute_force(store, acme)
    assert len(index(store, acme)) == 3
    assert mine(store, acme, now=LATER_STILL).memories == 0


def embed_all(store: Store, ids: Sequence[UUID], values: Sequence[float]) -> None:
    """Give some memories one vector."""
    for id_ in ids:
        embed(store, id_, values)


def test_vectors_of_one_value_are_mined_too(store: Store) -> None:
    acme = store.tenant()
    let_lengths_differ(store)
    for value in (2, 5, -3, 0):
        store.memory(acme, embedding=[value])
    with sizes(BLOCK=2):
        assert mine(store, acme).memories == 4
    assert index(store, acme) == brute_force(store, acme)
    assert [cosine for cosine, _ in index(store, acme).values()] == [1.0]


def test_vectors_with_values_that_are_no_numbers_are_named_and_nothing_is_mined(
    store: Store,
) -> None:
    acme = store.tenant()
    store.pair(acme, 0.9)
    mine(store, acme)
    # pgvector refuses such values wherever they come in, and only wherever they come in.
    store.execute("CREATE CAST (bytea AS vector) WITHOUT FUNCTION")
    ids = sorted(store.memory(acme, embedding=vector(0)) for _ in range(7))
    start = (
        "Vectors of acme hold values that are no numbers, so nothing was mined: embed these"
        " memories again: "
    )
    for odd in (math.nan, math.inf, -math.inf):
        values = np.zeros(1536, np.float32)
        values[[3, 5]] = odd, 1
        for id_ in ids[:6]:
            store.execute(
                "UPDATE memories SET embedding = CAST(CAST(:v AS bytea) AS vector) WHERE id = :id",
                v=struct.pack("=hh", 1536, 0) + values.tobytes(),
                id=id_,
            )
        said = refused(store, acme, UnusableVectors)
        assert said.startswith(start)
        assert said.endswith(" and 1 more.")
        named = {UUID(each) for each in said.removeprefix(start).split(" and ")[0].split(", ")}
        assert len(named) == 5
        assert named < set(ids[:6])
    for id_ in ids[:6]:
        embed(store, id_, vector(1))
    assert mine(store, acme, now=LATER).memories == 7
    assert index(store, acme) == brute_force(store, acme)


def test_zero_vectors_are_in_no_pair_and_are_named(store: Store) -> None:
    acme = store.tenant()
    pair = store.pair(acme, 0.9)
    zero = [store.memory(acme, embedding=grid(0, 0)) for _ in range(3)]
    # Every cosine is at or above this floor. That of a zero vector is none.
    floors = dict.fromkeys(MODELS, -1.0)
    with sizes(BLOCK=2):
        first = mine(store, acme, floors)
    assert (first.memories, first.pairs) == (5, 1)
    assert set(first.directionless) == set(zero)
    assert len(first.directionless) == 3
    assert set(index(store, acme)) == {pair}
    assert mine(store, acme, floors, LATER).directionless == []
    late = store.memory(acme, embedding=grid(0, 0))
    embed(store, zero[0], grid(3, 4))
    later = mine(store, acme, floors, LATER)
    assert (later.memories, later.pairs, later.directionless) == (2, 2, [late])
    assert index(store, acme) == brute_force(store, acme, floors)


# Another server, another schema


BEHIND = {
    # Which had come further: every row here seems to be written long before.
    "another server": (
        "UPDATE forgetting.minings SET server_id = 1, written_before = pg_current_xact_id()"
    ),
    "a horizon in the future": (
        "UPDATE forgetting.minings SET written_before ="
        " CAST(CAST(CAST(CAST(pg_current_xact_id() AS text) AS bigint) + 1000 AS text) AS xid8)"
    ),
}


def test_when_transaction_ids_say_nothing_all_is_looked_at_and_what_holds_is_not_mined_again(
    store: Store,
) -> None:
    acme = store.tenant()
    for name, change in BEHIND.items():
        empty(store)
        kept, changed = store.pair(acme, 0.9), store.pair(acme, 0.9)
        mine_past(store, acme)
        embed(store, changed[1], vector(3, 710))
        near = store.memory(acme, age=3, embedding=vector(3, 710))
        store.execute(change)
        assert mine(store, acme, now=LATER).memories == 2, name
        assert mined_at(store) == {kept: TODAY, (changed[1], near): LATER}, name
        assert index(store, acme) == brute_force(store, acme)
        assert mine(store, acme, now=LATER_STILL).memories == 0, name


def test_without_a_record_of_the_floors_everything_is_mined_again(store: Store) -> None:
    acme = store.tenant()
    close, far = store.pair(acme, 0.9), store.pair(acme, 0.6)
    high, low = (dict.fromkeys(FLOORS, floor) for floor in (0.8, 0.5))
    mine(store, acme, high)
    assert set(index(store, acme)) == {close}
    store.execute("DELETE FROM forgetting.minings")
    assert mine(store, acme, low, LATER).memories == 4
    assert mined_at(store) == {close: LATER, far: LATER}
    assert mine(store, acme, low, LATER_STILL).memories == 0


@pytest.fixture
def aged(store: Store) -> Store:
    """A store on a server that has gone once around the circle of transaction ids, or says so."""
    name = store.owner.url.database
    for statement in (
        """
        CREATE FUNCTION public.pg_snapshot_xmin(pg_snapshot) RETURNS xid8 LANGUAGE sql STABLE AS
        $$ SELECT CAST(CAST(CAST(CAST(pg_catalog.pg_snapshot_xmin($1) AS text) AS bigint)
            + 4294967296 AS text) AS xid8) $$
        """,
        f"ALTER DATABASE {name} SET search_path = public, pg_catalog",
    ):
        store.execute(statement)
    store.database.close()  # so that it connects anew, with the setting
    return store


def test_a_horizon_too_far_back_to_be_compared_is_not_compared(aged: Store) -> None:
    acme = aged.tenant()
    for back in (0, 2_000_000_000, 2_000_000_001, 3_000_000_000, 4_294_967_295):
        empty(aged)
        kept, changed = aged.pair(acme, 0.9), aged.pair(acme, 0.9)
        mine_past(aged, acme)
        (row,) = aged.rows("SELECT CAST(written_before AS text) AS xid FROM forgetting.minings")
        assert int(row["xid"]) > 2**32, "the server says that it is past the first circle"
        aged.execute(
            "UPDATE forgetting.minings SET written_before = CAST(:xid AS xid8)",
            xid=str(int(row["xid"]) - back),
        )
        embed(aged, changed[1], vector(3, 710))
        assert mine(aged, acme, now=LATER).memories == 1, back
        assert mined_at(aged) == {kept: TODAY}, back
        assert index(aged, acme) == brute_force(aged, acme)


# The invariant


def test_an_episodic_memory_never_enters_the_index_not_even_by_the_owner(store: Store) -> None:
    acme = store.tenant()
    fact, other = store.memory(acme, embedding=vector(0)), store.memory(acme, scope="home")
    episodic = [
        store.memory(acme, memory_type=memory_type, embedding=vector(0), embedding_model=model)
        for memory_type in ("event", "note")
        for model in ("test-embedding", None, "mystery")
    ]
    assert mine(store, acme).memories == 2
    mined = store.rows("SELECT memory_id FROM forgetting.mined_memories")
    assert {row["memory_id"] for row in mined} == {fact, other}
    # One that may enter, beside which one that may not.
    allowed = store.memory(acme)
    before = store.dump(*INDEX)
    values = """
        SELECT user_id, {0}, group_key, fingerprint, code, code_step, code_error
        FROM forgetting.mined_memories WHERE memory_id = :other
    """
    insert = f"INSERT INTO forgetting.mined_memories {values.format(':id')}"
    for statement in (
        insert,
        f"{insert} UNION ALL {values.format('CAST(:allowed AS uuid)')}",
        "UPDATE forgetting.mined_memories SET memory_id = :id WHERE memory_id = :other",
    ):
        named = {"allowed": allowed} if ":allowed" in statement else {}
        for id_ in episodic:
            with pytest.raises(sa.exc.IntegrityError, match="zero episodic collapse") as raised:
                store.execute(statement, id=id_, other=other, **named)
            assert getattr(raised.value.orig, "pgcode", None) == "23514"
    with pytest.raises(sa.exc.IntegrityError, match="similar_pairs"):
        store.execute(
            "INSERT INTO forgetting.similar_pairs"
            " VALUES (:user_id, :one, :two, 1, 'unknown', now())",
            user_id=acme,
            one=episodic[0],
            two=fact,
        )
    assert store.dump(*INDEX) == before
    # The statements are refused for what they name and not for how they are written.
    store.execute(insert, id=allowed, other=other)


def test_the_runtime_role_cannot_mine_an_episodic_memory_either(store: Store) -> None:
    acme = store.tenant()
    event_ = store.memory(acme, memory_type="event", embedding=vector(0))
    with (
        pytest.raises(StoreRefused, match="zero episodic collapse"),
        store.database.tenant(acme) as tx,
    ):
        tx.run(
            sa.text(
                "INSERT INTO forgetting.mined_memories"
                " VALUES (:user_id, :id, 0, sha256(''), '', 0, 0)"
            ),
            id=event_,
        )
    assert store.dump(*INDEX) == {table: [] for table in INDEX}


def test_mining_writes_to_no_memory(store: Store) -> None:
    acme = store.tenant()
    for place, memory_type in enumerate((*COMPARED, "event", "note", "pattern", "commitment")):
        for age in (60, 50):
            store.memory(acme, memory_type=memory_type, age=age, embedding=vector(0, place))
    store.memory(acme, embedding=None)
    versions = "SELECT id, xmin, ctid FROM memories ORDER BY id"
    before, rows = store.dump(*STORE), store.rows(versions)
    for floor, now in ((0.82, TODAY), (0.5, LATER), (0.9, LATER_STILL)):
        mine(store, acme, dict.fromkeys(MODELS, floor), now)
    assert len(index(store, acme)) == 4
    assert store.dump(*STORE) == before
    assert store.rows(versions) == rows, "no row was written, not even to the same"


def mine_without_rls(store: Store, user_id: UUID) -> Mined:
    """Mine with no row-level security behind the statements."""
    with store.owner.begin() as connection:
        seen = connection.exec_driver_sql("SELECT count(DISTINCT user_id) FROM memories")
        assert seen.scalar_one() > 1, "row-level security is on, so this shows nothing"
        return mining.update(TenantTransaction(connection, user_id), "acme", FLOORS, TODAY)


def rows_of(store: Store, user_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """One tenant's rows of the index."""
    query = "SELECT t::text FROM {0} AS t WHERE t.user_id = :user_id ORDER BY 1"
    return {table: store.rows(query.format(table), user_id=user_id) for table in INDEX}


def test_tenants_share_no_pair_and_no_mining_even_without_row_level_security(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    ids = {
        user_id: {
            store.memory(user_id, age=age, embedding=vector(0), embedding_model=None)
            for age in (60, 50, 40)
        }
        for user_id in (acme, borea)
    }
    with looked_at("copy_unmined") as compared, looked_at("copy_vectors") as read:
        assert mine_without_rls(store, acme).memories == 3
    assert set(compared) == set(read) == ids[acme]
    assert rows_of(store, borea) == {table: [] for table in INDEX}
    ours = rows_of(store, acme)
    seen: set[UUID] = set()
    close_to_codes = vectors.close_to_codes

    def watched(block: vectors.Block, coded: Records, floor: float) -> Iterator[vectors.Proposed]:
        seen.update(UUID(bytes=each.tobytes()) for each in coded["id"])
        return close_to_codes(block, coded, floor)

    with sizes(BLOCK=2), monkeypatch.context() as patch:
        patch.setattr(vectors, "close_to_codes", watched)
        assert mine_without_rls(store, borea).memories == 3
    assert seen
    assert seen < ids[borea], "no code of another tenant is read"
    assert rows_of(store, acme) == ours
    # One tenant's changes say nothing of the other's.
    theirs = rows_of(store, borea)
    store.execute("UPDATE memories SET scope = 'home' WHERE user_id = :acme", acme=acme)
    store.execute("UPDATE memories SET topic = 'x' WHERE user_id = :borea", borea=borea)
    assert mine_without_rls(store, acme).memories == 3
    assert rows_of(store, borea) == theirs
    assert mine_without_rls(store, borea).memories == 0
    for user_id in (acme, borea):
        assert index(store, user_id) == brute_force(store, user_id)
        assert len(index(store, user_id)) == 3
    mixed = """
        SELECT 1 FROM forgetting.similar_pairs AS s
        INNER JOIN memories AS m ON m.id IN (s.older_id, s.newer_id) AND m.user_id <> s.user_id
    """
    assert store.rows(mixed) == []


# A store that is not ours


MEMORIES = {
    "columns": """
        SELECT a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            a.attgenerated, a.attacl::text, pg_get_expr(d.adbin, d.adrelid),
            col_description(a.attrelid, a.attnum)
        FROM pg_attribute AS a
        LEFT JOIN pg_attrdef AS d ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE a.attrelid = 'public.memories'::regclass ORDER BY 1""",
    "constraints": """
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid = 'public.memories'::regclass ORDER BY 1""",
    "triggers": """
        SELECT tgname, pg_get_triggerdef(oid), tgenabled FROM pg_trigger
        WHERE tgrelid = 'public.memories'::regclass AND NOT tgisinternal ORDER BY 1""",
    "indexes": """
        SELECT indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public' AND tablename = 'memories' ORDER BY 1""",
    "rules and policies": """
        SELECT policyname, cmd, qual, with_check FROM pg_policies WHERE tablename = 'memories'
        UNION ALL SELECT rulename, definition, '', '' FROM pg_rules WHERE tablename = 'memories'
        ORDER BY 1""",
    "the table": """
        SELECT relkind, relacl::text, reloptions, relrowsecurity, relforcerowsecurity, relfilenode
        FROM pg_class WHERE oid = 'public.memories'::regclass""",
}


LIVE_MEMORIES_OF_0004 = """
    CREATE VIEW forgetting.live_memories WITH (security_invoker = TRUE) AS
    SELECT
        m.id,
        m.user_id,
        m.memory_type,
        m.scope,
        m.project,
        m.content_hash,
        m.created_at,
        greatest(m.updated_at, m.last_reviewed_at) AS freshness,
        CASE WHEN vector_norm(m.embedding) > 0 THEN m.embedding END AS embedding,
        em.embedding_model
    FROM memories AS m
    LEFT JOIN forgetting.embedding_models AS em ON m.user_id = em.user_id AND m.id = em.memory_id
    WHERE m.status = 'active' AND m.valid_to IS NULL
"""
"""The view as the release before the index laid it. PostgreSQL replaces no view by one whose
columns have other types."""


@pytest.fixture
def before_the_index(places: Addresses, admin_url: sa.URL) -> Addresses:
    """The test's database at the migration before the index of similar pairs."""
    server = engine(admin_url).execution_options(isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {places.memory.database} WITH (FORCE)")
        connection.exec_driver_sql(f"CREATE DATABASE {places.memory.database}")
    server.dispose()
    migrate_to(places, "0004")
    return places


def migrate_to(places: Addresses, revision: str) -> None:
    """Run the migrations up to one of them, and lay no views."""
    assert places.admin is not None
    config = Config()
    config.set_main_option("script_location", str(sql.ROOT / "migrations"))
    config.set_main_option("path_separator", "os")
    pool = engine(places.admin)
    with pool.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    pool.dispose()


def test_the_index_changes_nothing_of_the_table_memories(before_the_index: Addresses) -> None:
    assert before_the_index.admin is not None
    pool = engine(before_the_index.admin)

    def of_memories() -> dict[str, list[Any]]:
        with pool.connect() as connection:
            return {
                part: list(connection.execute(sa.text(query)).all())
                for part, query in MEMORIES.items()
            }

    before = of_memories()
    assert all(before[part] for part in ("columns", "constraints", "indexes", "the table"))
    migrate_to(before_the_index, "0005")
    after = of_memories()
    pool.dispose()
    assert after == before


def test_a_database_of_an_older_schema_is_refused_with_a_sentence_and_migrating_repairs_it(
    before_the_index: Addresses,
) -> None:
    assert before_the_index.admin is not None
    owner = engine(before_the_index.admin)
    database = Database(url=before_the_index.memory.render_as_string(hide_password=False))
    with pytest.raises(NotMigrated) as raised:
        database.connect()
    assert str(raised.value) == (
        f"The database's schema is at 0004, this code needs {newest_migration()}: "
        "run `forgetting migrate` as the owner."
    )
    acme = uuid.uuid4()
    with owner.begin() as connection:
        connection.exec_driver_sql(LIVE_MEMORIES_OF_0004)
        connection.execute(sa.text("INSERT INTO users (id, email) VALUES (:id, 'a')"), {"id": acme})
    store = Store(database, owner)
    pair = store.pair(acme, 0.9)

    migrations.upgrade(before_the_index.admin)
    database.connect()
    assert mine(store, acme).memories == 2
    assert set(index(store, acme)) == {pair}
    database.close()
    owner.dispose()


# A large group


LARGE = 20_000

CHILD = """
import resource, sys
from datetime import datetime
from pathlib import Path
from uuid import UUID

from forgetting_assets.store import mining
from resources.database import Database


def peak():
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    # Not ru_maxrss: on Linux it counts what the parent had when it started this process.
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


url, user_id, now = sys.argv[1:]
database = Database(url=url).connect()
before = peak()
with database.tenant(UUID(user_id), exclusive=True) as tx:
    mined = mining.update(tx, "acme", {"unknown": 0.82}, datetime.fromisoformat(now))
database.close()
print(mined.memories, mined.pairs, before, peak())
"""


def test_a_group_of_20_000_is_mined_in_bounded_memory(store: Store, places: Addresses) -> None:
    acme = store.tenant()
    generator = np.random.default_rng(3)
    planted: dict[frozenset[int], Matrix] = {}
    numbers = (0, 1, 511, 512, 4095, 4096, 9999, LARGE // 2, LARGE - 2, LARGE - 1)
    twins = {numbers[-1 - place]: number for place, number in enumerate(numbers[:5])}
    kept: dict[int, Matrix] = {}
    for start in range(0, LARGE, 1000):
        rows = generator.standard_normal((1000, 1536), np.float32)
        for place in range(1000):
            if start + place in numbers[:5]:
                kept[start + place] = rows[place].copy()
            if (twin := twins.get(start + place)) is not None:
                # About 0.9 from its twin, or its very double.
                rows[place] = kept[twin] + (0.45 * rows[place] if twin % 2 else 0)
                planted[frozenset((twin, start + place))] = rows[place]
        load(store, acme, rows, first=start)
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            places.memory.render_as_string(hide_password=False),
            str(acme),
            TODAY.isoformat(),
        ],
        cwd=ROOT,
        # Each thread of the matrix product has a buffer of its own, on as many cores as there are.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    memories, found, before, peak = map(int, child.stdout.split())
    assert (memories, found) == (LARGE, len(planted))
    assert {frozenset(side.int - 1 for side in both) for both in index(store, acme)} == set(planted)
    assert peak < 400 * 1024, f"{peak // 1024} MB"
    # The vectors alone have 117 MB: some of them are in memory at once, and never all.
    assert peak - before < 200 * 1024, f"{(peak - before) // 1024} MB"
