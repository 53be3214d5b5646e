"""Evidence: recorded, used, credited, retrieved, regretted, and forgotten only for good."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgetting_assets.records import EvidenceRecord
from forgetting_assets.store import evidence, invariant, tenants, tier
from resources.database import Database, TenantTransaction
from resources.errors import EvidenceRefused, StoreRefused
from tests.support import DAY, TODAY, Pass, Store, ago, degrees, make_policy, vector

ONE_DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
LIMIT = 1_000
CALM = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def entry(**fields: Any) -> EvidenceRecord:
    given = {
        "session_id": "s1",
        "kind": "trace",
        "content": "GET /health 200",
        "occurred_at": TODAY,
    }
    return EvidenceRecord.model_validate(given | fields)


def recorded(store: Store, user_id: UUID, *entries: EvidenceRecord) -> list[UUID]:
    return evidence.record(store.database, user_id, entries, TODAY, limit=LIMIT)


def row(store: Store, id_: UUID) -> dict[str, Any]:
    [found] = store.rows("SELECT * FROM evidence WHERE id = :id", id=id_)
    return found


def swept(store: Store, day: int = 0, slug: str = "acme") -> tier.Sweep:
    """The sweep of the n-th day after DAY."""
    now = TODAY + day * ONE_DAY
    work = Pass(store, policy=make_policy(), now=now)
    return work.sweep(store.partition(slug, DAY + day * ONE_DAY, now))


def archived(store: Store) -> set[UUID]:
    return {
        each["id"] for each in store.rows("SELECT id FROM evidence WHERE archived_at IS NOT NULL")
    }


# Recording


def test_what_is_recorded_is_there_to_the_last_byte_and_counts_as_never_used(store: Store) -> None:
    acme = store.tenant()
    text = "a\r\nb\u2028c ```\ttrailing  \n"
    [id_] = recorded(
        store, acme, entry(content=text, embedding=vector(0), embedding_model="m", kind="log")
    )
    found = row(store, id_)
    assert (found["content"], found["kind"], found["session_id"]) == (text, "log", "s1")
    assert (found["occurred_at"], found["recorded_at"]) == (TODAY, TODAY)
    assert (found["success_count"], found["reinforcement_count"]) == (0, 0)
    assert (found["last_retrieved_at"], found["last_outcome_at"]) == (None, None)
    assert (found["archived_at"], found["embedding_model"]) == (None, "m")
    assert json.loads(found["embedding"]) == vector(0)


def test_recording_again_adds_nothing_whatever_became_of_it(store: Store) -> None:
    acme = store.tenant()
    sent = [entry(id=uuid4(), occurred_at=ago(30)) for _ in range(3)]
    assert recorded(store, acme, *sent) == [each.id for each in sent]
    store.execute("UPDATE evidence SET recorded_at = :at", at=ago(30))
    swept(store)
    assert archived(store) == {each.id for each in sent}
    before = store.dump("evidence")
    assert recorded(store, acme, *sent) == []
    assert store.dump("evidence") == before


def test_a_thousand_entries_are_recorded_at_once(store: Store) -> None:
    acme = store.tenant()
    ids = recorded(store, acme, *(entry(content=f"line {n}") for n in range(1_203)))
    assert len({*ids}) == 1_203
    assert store.rows("SELECT count(*) AS n FROM evidence") == [{"n": 1_203}]


BAD: dict[str, Callable[[UUID], dict[str, Any]]] = {
    "the same id with another text": lambda known: {"id": known, "content": "another"},
    "the same id in another session": lambda known: {"id": known, "session_id": "s2"},
    "the same id as another kind": lambda known: {"id": known, "kind": "log"},
    "a text larger than the limit": lambda _: {"content": "ü" * 501},
    "a time before 1970": lambda _: {"occurred_at": datetime.fromtimestamp(0, TODAY.tzinfo)},
    "a time more than a day ahead": lambda _: {"occurred_at": TODAY + ONE_DAY + HOUR},
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_entry_keeps_all_from_being_recorded(store: Store, name: str) -> None:
    acme = store.tenant()
    [known] = recorded(store, acme, entry())
    before = store.dump("evidence")
    with pytest.raises(EvidenceRefused, match=r"[Nn]othing was recorded"):
        recorded(store, acme, entry(), entry(**BAD[name](known)))
    assert store.dump("evidence") == before
    recorded(store, acme, entry(content="ü" * 500, occurred_at=TODAY + ONE_DAY))


def test_an_entry_that_is_sent_twice_at_once_is_recorded_once(store: Store) -> None:
    acme = store.tenant()
    one = entry(id=uuid4())
    start = threading.Barrier(6)

    def send(_n: int) -> list[UUID]:
        start.wait(10)
        return recorded(store, acme, one)

    with ThreadPoolExecutor(6) as pool:
        new = list(pool.map(send, range(6)))
    assert sorted(map(len, new)) == [0, 0, 0, 0, 0, 1]


def test_large_entries_are_recorded_in_parts_that_the_database_can_hold(store: Store) -> None:
    acme = store.tenant()
    large = [entry(content=f"{n}" * 9_000_000) for n in range(5)]
    parts = [len(part) for part in evidence._chunks([*large, entry()])]
    assert parts == [4, 2]
    assert len(evidence.record(store.database, acme, large, TODAY, limit=9_000_000)) == 5


def test_nothing_to_record_and_one_id_twice_are_refused(store: Store) -> None:
    acme = store.tenant()
    one = entry()
    with pytest.raises(EvidenceRefused, match="at least one"):
        recorded(store, acme)
    with pytest.raises(EvidenceRefused, match="one id"):
        recorded(store, acme, one, one)


def test_another_tenants_id_is_refused_without_a_word_about_what_stands_under_it(
    store: Store,
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    [theirs] = recorded(store, other, entry(content="theirs"))
    before = store.dump("evidence")
    with pytest.raises(EvidenceRefused) as refused:
        recorded(store, acme, entry(), entry(id=theirs))
    assert str(refused.value) == (
        "An id cannot be used: leave ids out, or make random ones. Nothing was recorded."
    )
    assert store.dump("evidence") == before


@pytest.mark.parametrize(
    "field",
    [
        {"content": ""},
        {"content": "a\0b"},
        {"session_id": ""},
        {"session_id": "\ud800"},
        {"kind": "event"},
        {"occurred_at": "yesterday-ish"},
        {"occurred_at": "2026-08-31T12:00:00"},
        {"embedding": [0.0] * 1536, "embedding_model": "m"},
        {"embedding": [1.0] * 3, "embedding_model": "m"},
        {"embedding": [1.0] * 1536},
        {"success_count": 3},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_cannot_be_stored_is_no_record(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        entry(**field)


def test_an_entry_whose_time_is_not_known_is_recorded_and_never_archived(store: Store) -> None:
    acme = store.tenant()
    recorded(store, acme, entry(occurred_at=None))
    for day in (1, 30, 400):
        assert swept(store, day).archived == 0


def test_an_exact_artifact_is_never_swept(store: Store) -> None:
    acme = store.tenant()
    block, trace = recorded(
        store,
        acme,
        entry(kind="archive_block", occurred_at=ago(400)),
        entry(occurred_at=ago(400)),
    )
    store.execute("UPDATE evidence SET recorded_at = :at", at=ago(400))
    swept(store)
    assert archived(store) == {trace}
    assert evidence.dereference(store.database, acme, block, TODAY).archived_at is None


# Warm-up (BR-28)


@pytest.mark.parametrize("tracked", [None, 0, 1, 6.999])
def test_br_28_nothing_is_archived_before_uses_were_recorded_for_a_window(
    store: Store, tracked: float | None
) -> None:
    acme = store.tenant(tracked=tracked)
    store.evidence(acme, age=400)
    done = swept(store)
    assert (done.archived, done.warming_up) == (0, True)
    assert archived(store) == set()


def test_br_28_the_warm_up_ends_exactly_when_the_window_has_passed(store: Store) -> None:
    acme = store.tenant(tracked=7)
    id_ = store.evidence(acme, age=400)
    done = swept(store)
    assert (done.archived, done.warming_up) == (1, False)
    [log] = store.rows("SELECT * FROM forgetting.archival_sweep")
    assert (log["evidence_id"], log["tracked_since"]) == (id_, log["due_before"])


def test_br_28_a_longer_window_takes_a_longer_warm_up(store: Store) -> None:
    acme = store.tenant(tracked=20)
    store.evidence(acme, age=400)
    policy = make_policy(sweep_window_days=30)
    done = tier.sweep(store.database, store.partition(), policy, TODAY)
    assert (done.archived, done.warming_up) == (0, True)


def test_br_28_a_backfilled_day_from_before_uses_were_recorded_archives_nothing(
    store: Store,
) -> None:
    acme = store.tenant(tracked=20)
    store.evidence(acme, age=400)
    assert swept(store, -15).archived == 0
    assert swept(store, -13).archived == 1


def test_br_28_one_tenants_warm_up_is_not_anothers(store: Store) -> None:
    store.evidence(store.tenant("acme", tracked=1), age=400)
    ready = store.evidence(store.tenant("other", tracked=30), age=400)
    swept(store)
    swept(store, slug="other")
    assert archived(store) == {ready}


def test_what_was_archived_while_uses_were_not_recorded_is_a_violation(store: Store) -> None:
    acme = store.tenant()
    id_ = store.evidence(acme)
    swept(store)
    store.execute("UPDATE forgetting.archival_sweep SET tracked_since = due_before + interval '1s'")
    with store.database.tenant(acme) as tx:
        found = invariant.violations(tx, store.partition(), "collapse_in_archival_sweep")
    assert [each.id for each in found] == [id_]


# Uses

USES: dict[str, Callable[[Store, UUID, UUID, datetime], object]] = {
    "touch": lambda s, user, id_, now: evidence.touch(s.database, user, [id_], now),
    "dereference": lambda s, user, id_, now: evidence.dereference(s.database, user, id_, now),
    "credit": lambda s, user, id_, now: evidence.credit(s.database, user, [id_], "success", now),
    "retrieve": lambda s, user, _id, now: evidence.retrieve(s.database, user, vector(0), "m", now),
}


def searchable(store: Store, user_id: UUID, **fields: Any) -> UUID:
    """An entry that retrieval finds."""
    given = {"occurred_at": ago(30), "embedding": vector(0), "embedding_model": "m"} | fields
    [id_] = evidence.record(store.database, user_id, [entry(**given)], ago(30), limit=LIMIT)
    return id_


@pytest.mark.parametrize("use", USES)
def test_every_use_resets_the_clock_and_only_credit_stops_it(store: Store, use: str) -> None:
    acme = store.tenant()
    id_ = searchable(store, acme)
    USES[use](store, acme, id_, ago(7))
    assert swept(store).archived == 0, "used exactly at the start of the window"
    assert swept(store, 1).archived == (use != "credit")
    assert swept(store, 400).archived == 0


@pytest.mark.parametrize("use", USES)
def test_a_use_is_never_dated_back(store: Store, use: str) -> None:
    acme = store.tenant()
    id_ = searchable(store, acme)
    for now in (TODAY, TODAY - HOUR):
        USES[use](store, acme, id_, now)
        found = row(store, id_)
        column = "last_outcome_at" if use == "credit" else "last_retrieved_at"
        assert found[column] == TODAY


def test_credit_counts_what_it_is_for_and_is_written_once_an_entry(store: Store) -> None:
    acme = store.tenant()
    one, two = store.evidence(acme), store.evidence(acme)
    assert evidence.credit(store.database, acme, [one, two, one], "success", TODAY) == 2
    evidence.credit(store.database, acme, [one], "reinforcement", TODAY)
    counts = {
        each["id"]: (each["success_count"], each["reinforcement_count"])
        for each in store.rows("SELECT * FROM evidence")
    }
    assert counts == {one: (1, 1), two: (1, 0)}


def test_a_counter_that_is_full_stays_full(store: Store) -> None:
    acme = store.tenant()
    id_ = store.evidence(acme, success=2_147_483_647)
    evidence.credit(store.database, acme, [id_], "success", TODAY)
    assert row(store, id_)["success_count"] == 2_147_483_647


def test_credit_brings_an_archived_entry_back_and_a_touch_does_not(store: Store) -> None:
    acme = store.tenant()
    one, two = store.evidence(acme), store.evidence(acme)
    swept(store)
    assert archived(store) == {one, two}
    evidence.touch(store.database, acme, [one, two], TODAY + HOUR)
    assert archived(store) == {one, two}
    evidence.credit(store.database, acme, [one], "reinforcement", TODAY + HOUR)
    assert archived(store) == {two}
    revivals = store.rows("SELECT evidence_id, reason FROM forgetting.revivals")
    assert revivals == [{"evidence_id": one, "reason": "credited"}]
    assert swept(store, 400).archived == 0, "credit pins"


BY_ID = ("touch", "dereference", "credit")


@pytest.mark.parametrize("use", BY_ID)
@pytest.mark.parametrize("whose", ["nobody's", "another tenant's"])
def test_an_unknown_id_and_another_tenants_get_the_same_answer_and_nothing_is_used(
    store: Store, use: str, whose: str
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    store.evidence(acme)
    id_ = uuid4() if whose == "nobody's" else store.evidence(other)
    before = store.dump("evidence", "forgetting.regrets", "forgetting.revivals")
    with pytest.raises(EvidenceRefused) as refused:
        USES[use](store, acme, id_, TODAY)
    assert str(refused.value) == f"The tenant has no evidence with the id {id_}."
    assert store.dump("evidence", "forgetting.regrets", "forgetting.revivals") == before


def test_one_unknown_id_keeps_all_from_being_used(store: Store) -> None:
    acme = store.tenant()
    known, unknown = store.evidence(acme), uuid4()
    before = store.dump("evidence")
    for use in (evidence.touch, lambda *a: evidence.credit(*a[:3], "success", a[3])):
        with pytest.raises(EvidenceRefused, match=str(unknown)):
            use(store.database, acme, [known, unknown], TODAY)
        with pytest.raises(EvidenceRefused, match="at least one"):
            use(store.database, acme, [], TODAY)
    assert store.dump("evidence") == before


def test_sweeps_and_uses_at_once_neither_block_each_other_for_ever_nor_lose_a_use(
    store: Store,
) -> None:
    acme = store.tenant()
    ids = [store.evidence(acme, age=30 + n) for n in range(40)]
    start = threading.Barrier(5)

    def use(seed: int) -> None:
        some = Random(seed)
        start.wait(10)
        for _ in range(15):
            chosen = some.sample(ids, 12)
            evidence.touch(store.database, acme, chosen, TODAY)

    def sweep_all() -> None:
        start.wait(10)
        for day in range(8):
            now = TODAY + day * ONE_DAY
            policy = make_policy(sweep_batch=5)
            tier.sweep(
                store.database, store.partition(day=DAY + day * ONE_DAY, now=now), policy, now
            )

    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(use, seed) for seed in range(4)] + [pool.submit(sweep_all)]
        for each in waiting:
            each.result(60)
    for each in store.rows("SELECT * FROM evidence WHERE archived_at IS NULL"):
        assert each["last_retrieved_at"] in (None, TODAY)
    logged = store.rows("SELECT * FROM forgetting.archival_sweep WHERE last_used_at >= due_before")
    assert logged == [], "nothing was archived on a use that had been written"


def test_a_use_locks_entries_in_the_order_of_their_ids(store: Store) -> None:
    acme = store.tenant()
    low, high = sorted(uuid4() for _ in range(2))
    for id_ in (high, low):  # as they lie on the disk
        store.evidence(acme, id=id_)
    lock = sa.text("SELECT 1 FROM evidence WHERE id = :id FOR UPDATE NOWAIT")
    with ThreadPoolExecutor(1) as pool:
        with store.owner.begin() as connection:
            connection.execute(lock, {"id": low})
            touched = pool.submit(evidence.touch, store.database, acme, [high, low], TODAY)
            for _ in range(500):
                if store.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    break
                time.sleep(0.01)
            connection.execute(lock, {"id": high})  # which nobody holds: it waits for the lower one
        assert touched.result(30) == 2


def test_forgetting_locks_entries_in_that_order_too(store: Store) -> None:
    acme = store.tenant()
    low, high = sorted(uuid4() for _ in range(2))
    for id_ in (high, low):
        store.evidence(acme, id=id_)
    lock = sa.text("SELECT 1 FROM evidence WHERE id = :id FOR UPDATE NOWAIT")

    def forget() -> int:
        return evidence.forget(store.database, acme, TODAY, session_id="session").entries

    with ThreadPoolExecutor(1) as pool:
        with store.owner.begin() as connection:
            connection.execute(lock, {"id": low})
            gone = pool.submit(forget)
            for _ in range(500):
                if store.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    break
                time.sleep(0.01)
            connection.execute(lock, {"id": high})
        assert gone.result(30) == 2


@pytest.mark.parametrize("agreed", [True, False])
def test_an_opt_out_after_the_run_was_planned_still_stops_the_sweep(
    store: Store, agreed: bool
) -> None:
    acme = store.tenant()
    store.evidence(acme, age=90)
    planned = store.partition()
    tenants.consent(store.database, "acme", archival=agreed)
    policy = make_policy()
    assert tier.sweep(store.database, planned, policy, TODAY).archived == agreed
    store.evidence(acme, age=90)
    store.retire()
    assert tier.sweep(store.database, planned, policy, TODAY).archived == 0


def test_br_28_who_opts_in_again_warms_up_again(store: Store) -> None:
    store.tenant(tracked=400)
    tenants.consent(store.database, "acme", judgment=False)
    assert tenants.find(store.database, "acme").tracked_since == ago(400)
    tenants.consent(store.database, "acme", archival=False)
    assert tenants.find(store.database, "acme").tracked_since is None


# Retrieval


def test_what_was_forgotten_since_it_was_found_is_not_returned(store: Store) -> None:
    acme = store.tenant()
    here, gone = searchable(store, acme), searchable(store, acme, session_id="scratch")

    class Forgetting(Database):
        """Forgets between the search and what comes after it."""

        @contextlib.contextmanager
        def tenant(self, user_id: UUID, *, exclusive: bool = False) -> Iterator[TenantTransaction]:
            with super().tenant(user_id, exclusive=exclusive) as tx:
                rows = tx.rows

                def slowly(query: Any, **parameters: Any) -> Any:
                    found = rows(query, **parameters)
                    if query is evidence.QUERIES["find_nearest"]:
                        evidence.forget(store.database, acme, TODAY, session_id="scratch")
                    return found

                tx.rows = slowly  # type: ignore[method-assign]
                yield tx

    database = Forgetting(url=store.database.url).connect()
    hits = evidence.retrieve(database, acme, vector(0), "m", TODAY)
    database.close()
    assert [hit.id for hit in hits] == [here] != [gone]


def test_the_nearest_come_first_and_each_counts_as_used(store: Store) -> None:
    acme = store.tenant()
    angles = {angle: searchable(store, acme, embedding=vector(angle)) for angle in (50, 10, 30, 0)}
    hits = evidence.retrieve(store.database, acme, vector(0), "m", TODAY, most=3)
    assert [hit.id for hit in hits] == [angles[0], angles[10], angles[30]]
    assert [degrees(min(1, hit.similarity)) for hit in hits] == pytest.approx([0, 10, 30], abs=0.1)
    used = {
        each["id"]
        for each in store.rows("SELECT id FROM evidence WHERE last_retrieved_at = :t", t=TODAY)
    }
    assert used == {hit.id for hit in hits}


def test_br_40_br_44_neither_archived_entries_nor_another_tenants_take_a_place(
    store: Store,
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    for _ in range(30):
        searchable(store, other)
        searchable(store, acme)
    swept(store)
    [mine] = recorded(store, acme, entry(embedding=vector(60), embedding_model="m"))
    assert len(archived(store)) == 30
    hits = evidence.retrieve(store.database, acme, vector(0), "m", TODAY, most=10)
    assert [hit.id for hit in hits] == [mine]


def test_vectors_of_another_model_or_session_and_zero_vectors_are_not_compared(
    store: Store,
) -> None:
    acme = store.tenant()
    searchable(store, acme, embedding_model="another")
    searchable(store, acme, session_id="s2")
    recorded(store, acme, entry())
    zero = searchable(store, acme)
    store.execute(
        "UPDATE evidence SET embedding = CAST(:zero AS vector) WHERE id = :id",
        zero=json.dumps([0.0] * 1536),
        id=zero,
    )
    mine = searchable(store, acme, embedding=vector(80))
    hits = evidence.retrieve(store.database, acme, vector(0), "m", TODAY, session_id="s1")
    assert [hit.id for hit in hits] == [mine]
    assert len(evidence.retrieve(store.database, acme, vector(0), "m", TODAY)) == 2


def test_equally_near_entries_come_in_the_order_of_their_ids(store: Store) -> None:
    acme = store.tenant()
    ids = sorted(searchable(store, acme) for _ in range(6))
    hits = evidence.retrieve(store.database, acme, vector(0), "m", TODAY, most=4)
    assert [hit.id for hit in hits] == ids[:4]


def test_where_nothing_is_near_nothing_is_retrieved_and_nothing_is_used(store: Store) -> None:
    acme = store.tenant()
    searchable(store, acme, embedding_model="another")
    before = store.dump("evidence")
    assert evidence.retrieve(store.database, acme, vector(0), "m", TODAY) == []
    assert store.dump("evidence") == before


def test_a_session_that_cannot_be_has_nothing_to_retrieve(store: Store) -> None:
    with pytest.raises(EvidenceRefused, match="has no session"):
        evidence.retrieve(
            store.database, store.tenant(), vector(0), "m", TODAY, session_id="\ud800"
        )


@pytest.mark.parametrize("most", [0, -1, 101])
def test_a_retrieval_of_none_or_too_many_is_a_sentence(store: Store, most: int) -> None:
    with pytest.raises(EvidenceRefused, match="1 to 100"):
        evidence.retrieve(store.database, store.tenant(), vector(0), "m", TODAY, most=most)


@pytest.mark.parametrize(
    "values", [[], [0.0] * 1536, [1.0] * 3, [float("nan")] * 1536], ids=["none", "zero", "3", "nan"]
)
def test_a_vector_without_a_direction_is_a_sentence(store: Store, values: list[float]) -> None:
    with pytest.raises(EvidenceRefused, match="Nothing can be retrieved: embedding"):
        evidence.retrieve(store.database, store.tenant(), values, "m", TODAY)


# Monotone (BR-52)


@CALM
@given(seed=st.integers(0, 100_000))
def test_br_52_whatever_is_used_or_credited_more_is_never_archived_before_its_twin(
    store: Store, seed: int
) -> None:
    some = Random(seed)
    slug = f"t{uuid4().hex[:10]}"
    user_id = store.tenant(slug)
    age = some.choice([0.5, 3, 7, 8, 20, 90])
    one, twin = (store.evidence(user_id, age=age, recorded_at=ago(90)) for _ in range(2))
    both = {}
    for day in range(some.randint(1, 12)):
        now = TODAY + day * ONE_DAY
        for id_ in some.sample([one, twin], 2):
            if some.random() < 0.2:
                both[id_] = evidence.touch(store.database, user_id, [one, twin], now)
        if some.random() < 0.4:
            verb = some.choice(BY_ID)
            USES[verb](store, user_id, one, now - some.choice([0, 1, 9]) * ONE_DAY)
        swept(store, day, slug)
        gone = archived(store) & {one, twin}
        assert gone != {one}, f"day {day}: the entry that was of more use went alone"


# Regret


@pytest.mark.parametrize("use", BY_ID)
@pytest.mark.parametrize(
    ("after", "regretted"), [(timedelta(0), 1), (14 * ONE_DAY, 1), (14 * ONE_DAY + HOUR, 0)]
)
def test_a_use_within_14_days_of_archiving_is_a_regret(
    store: Store, use: str, after: timedelta, regretted: int
) -> None:
    acme = store.tenant()
    id_ = store.evidence(acme)
    swept(store)
    USES[use](store, acme, id_, TODAY + after)
    rows = store.rows("SELECT evidence_id, archived_at, used_at, use FROM forgetting.regrets")
    expected = {"evidence_id": id_, "archived_at": TODAY, "used_at": TODAY + after, "use": use}
    assert rows == [expected] * regretted


def test_an_archiving_is_regretted_once_and_a_second_archiving_once_more(store: Store) -> None:
    acme = store.tenant()
    id_ = store.evidence(acme)
    swept(store)
    for hour in range(3):
        evidence.dereference(store.database, acme, id_, TODAY + hour * HOUR)
    tier.unarchive(store.database, acme, [id_], TODAY + ONE_DAY)
    evidence.dereference(store.database, acme, id_, TODAY + ONE_DAY)
    swept(store, 30)
    evidence.dereference(store.database, acme, id_, TODAY + 31 * ONE_DAY)
    used = store.rows("SELECT used_at FROM forgetting.regrets ORDER BY used_at")
    assert [each["used_at"] for each in used] == [TODAY, TODAY + 31 * ONE_DAY]


def test_the_rate_counts_each_archiving_of_the_days_asked_for_by_kind(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    traces = [store.evidence(acme) for _ in range(4)]
    store.evidence(acme, kind="log")
    evidence.dereference(store.database, other, store.evidence(other), TODAY)
    swept(store)
    swept(store, slug="other")
    evidence.dereference(store.database, acme, traces[0], TODAY + ONE_DAY)
    late = store.evidence(acme, age=-10, recorded_at=TODAY)
    swept(store, 30)
    assert late in archived(store)

    def rates(first_day: int, now: int) -> list[tuple[Any, ...]]:
        day = DAY + first_day * ONE_DAY
        found = tier.regrets(store.database, acme, day, TODAY + now * ONE_DAY)
        return [(each.kind, each.archived, each.regretted, each.recent) for each in found]

    assert rates(0, 1) == [("log", 1, 0, 1), ("trace", 5, 1, 4)]
    assert rates(0, 31) == [("log", 1, 0, 0), ("trace", 5, 1, 1)]
    assert rates(1, 31) == [("trace", 1, 0, 1)]
    assert rates(31, 31) == []
    tier.unarchive(store.database, acme, [late], TODAY + 31 * ONE_DAY)
    assert rates(0, 31)[1] == ("trace", 5, 1, 0), "what came back cannot be regretted any more"


# Forgetting for good

MARKER = "Ottoline keeps the violet ledger"


def grep(store: Store, text: str) -> set[str]:
    """The tables of the whole database that hold a text anywhere."""
    tables = store.rows(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    return {
        table["name"]
        for table in tables
        if store.rows(
            f"SELECT 1 FROM {table['name']} AS t WHERE t::text LIKE :text LIMIT 1", text=f"%{text}%"
        )
    }


def test_a_forgotten_session_is_gone_from_every_tier_and_table_and_leaves_a_row_an_entry(
    store: Store,
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    memory = store.memory(acme)
    gone = [
        searchable(store, acme, session_id="scratch", content=f"{MARKER} {n}", kind=kind)
        for n, kind in enumerate(["trace", "log", "lesson", "archive_block", "trace"])
    ]
    kept = [
        searchable(store, acme, session_id="kept"),
        searchable(store, other, session_id="scratch"),
    ]
    store.cite(acme, memory, gone[0])
    swept(store)
    evidence.dereference(store.database, acme, gone[0], TODAY)
    assert archived(store) >= {gone[0], gone[1]}
    assert grep(store, MARKER) == {"public.evidence"}

    assert evidence.forgettable(store.database, acme, session_id="scratch") == 5
    done = evidence.forget(store.database, acme, TODAY, session_id="scratch")
    assert done.entries == 5
    assert grep(store, MARKER) == set()
    assert grep(store, "scratch") == {"public.evidence"}, "the other tenant's"
    assert {each["id"] for each in store.rows("SELECT id FROM evidence")} == set(kept)
    rows = store.rows("SELECT * FROM forgetting.forgotten")
    assert {each["evidence_id"] for each in rows} == set(gone)
    for each in rows:
        assert (each["user_id"], each["what"], each["forgotten_at"]) == (acme, "session", TODAY)
        assert each["batch_id"] == done.batch_id
    digests = store.rows(
        "SELECT content_sha256 = '' AS blank, evidence_id = ANY(:gone) AS was_forgotten "
        "FROM forgetting.archival_sweep WHERE user_id = :acme",
        gone=gone,
        acme=acme,
    )
    assert {(each["blank"], each["was_forgotten"]) for each in digests} == {
        (True, True),
        (False, False),
    }
    assert store.rows("SELECT * FROM memory_evidence") == []


def test_forgetting_what_was_archived_is_no_loss_and_the_next_sweep_goes_on(store: Store) -> None:
    acme = store.tenant()
    one, two = store.evidence(acme), searchable(store, acme, session_id="scratch")
    swept(store)
    assert archived(store) == {one, two}
    evidence.forget(store.database, acme, TODAY, session_id="scratch")
    with store.database.tenant(acme) as tx:
        assert invariant.violations(tx, store.partition(), "losses_of_archive") == []
    store.evidence(acme)
    assert swept(store).archived == 1
    store.execute("DELETE FROM evidence WHERE id = :one", one=one)
    with store.database.tenant(acme) as tx:
        found = invariant.violations(tx, store.partition(), "losses_of_archive")
    assert [each.id for each in found] == [one], "a loss beside it is still seen"


def test_a_forgotten_lesson_goes_alone_and_its_id_is_never_used_again(store: Store) -> None:
    acme = store.tenant()
    lesson = entry(kind="lesson", id=uuid4())
    recorded(store, acme, lesson, entry(kind="lesson"), entry())
    assert evidence.forget(store.database, acme, TODAY, lesson_id=lesson.id).entries == 1
    assert store.rows("SELECT count(*) AS n FROM evidence") == [{"n": 2}]
    [left] = store.rows("SELECT * FROM forgetting.forgotten")
    assert (left["evidence_id"], left["kind"], left["what"]) == (lesson.id, "lesson", "lesson")
    with pytest.raises(EvidenceRefused, match="was forgotten"):
        recorded(store, acme, lesson)


def wrong(store: Store, acme: UUID, other: UUID) -> dict[str, dict[str, Any]]:
    return {
        "neither": {},
        "both": {"lesson_id": store.evidence(acme, kind="lesson"), "session_id": "session"},
        "an unknown lesson": {"lesson_id": uuid4()},
        "another tenant's lesson": {"lesson_id": store.evidence(other, kind="lesson")},
        "an entry that is no lesson": {"lesson_id": store.evidence(acme, kind="rule")},
        "an unknown session": {"session_id": "nowhere"},
        "another tenant's session": {"session_id": "theirs"},
        "an empty session": {"session_id": ""},
        "a session that cannot be": {"session_id": "a\0b"},
    }


@pytest.mark.parametrize(
    "name",
    [
        "neither",
        "both",
        "an unknown lesson",
        "another tenant's lesson",
        "an entry that is no lesson",
        "an unknown session",
        "another tenant's session",
        "an empty session",
        "a session that cannot be",
    ],
)
def test_what_cannot_be_forgotten_is_a_sentence_and_nothing_is_deleted(
    store: Store, name: str
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    recorded(store, other, entry(session_id="theirs"))
    given = wrong(store, acme, other)
    assert name in given
    before = store.dump("evidence", "forgetting.forgotten")
    for ask in (
        lambda: evidence.forgettable(store.database, acme, **given[name]),
        lambda: evidence.forget(store.database, acme, TODAY, **given[name]),
    ):
        with pytest.raises(EvidenceRefused) as refused:
            ask()
        said = str(refused.value)
        assert "exactly one" in said or said.startswith("The tenant has no ")
    assert store.dump("evidence", "forgetting.forgotten") == before


def test_a_forget_that_could_not_delete_all_deletes_nothing(store: Store) -> None:
    acme = store.tenant()
    recorded(store, acme, entry(), entry())
    store.execute(
        "CREATE OR REPLACE FUNCTION forgetting.forget(lesson uuid, session text, batch uuid, "
        "at timestamptz) RETURNS integer LANGUAGE sql AS 'SELECT 1'"
    )
    with pytest.raises(EvidenceRefused, match="Only 1 of 2"):
        evidence.forget(store.database, acme, TODAY, session_id="s1")


def test_the_runtime_role_deletes_only_through_forget_and_only_its_own_tenants(
    store: Store,
) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    theirs = store.evidence(other, kind="lesson")
    mine = store.evidence(acme, kind="lesson")
    forget = sa.text(
        "SELECT forgetting.forget(CAST(:lesson AS uuid), CAST(:session AS text), :batch, now())"
    )
    for lesson, session in ((theirs, None), (None, "nowhere")):
        with store.database.tenant(acme) as tx:
            gone = tx.connection.execute(
                forget, {"lesson": lesson, "session": session, "batch": uuid4()}
            ).scalar_one()
        assert gone == 0
    with store.database.registry() as connection:  # no tenant is set
        assert (
            connection.execute(
                forget, {"lesson": mine, "session": None, "batch": uuid4()}
            ).scalar_one()
            == 0
        )
    for both in ({"lesson": None, "session": None}, {"lesson": mine, "session": "session"}):
        with pytest.raises(StoreRefused, match="22023"), store.database.tenant(acme) as tx:
            tx.connection.execute(forget, {**both, "batch": uuid4()})
    for statement in ("DELETE FROM evidence", "DELETE FROM forgetting.forgotten"):
        with pytest.raises(StoreRefused, match="42501"), store.database.tenant(acme) as tx:
            tx.connection.execute(sa.text(statement))
    assert len(store.rows("SELECT id FROM evidence")) == 2
