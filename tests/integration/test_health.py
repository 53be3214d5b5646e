"""memory_health: every figure is what a reader of all rows would count, of this tenant alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgetting_assets.store import candidates, health
from forgetting_assets.store.health import MemoryHealth, memory_health
from resources.errors import ForgettingError
from tests.support import DAY, MODEL, TODAY, Store, ago, make_policy, record_verdict

LIVED = ("decision", "preference", "blocker", "fact")
TYPES = (*LIVED, "commitment", "pattern", "note", "event")
EPISODIC = ("trace", "log", "tool_input", "tool_output", "step_outcome")
KINDS = (*EPISODIC, "lesson", "fact", "archive_block")
SECOND = timedelta(seconds=1)


def evidence(store: Store, user_id: UUID, session: str = "session", **columns: Any) -> UUID:
    """An entry of a session, with the columns given as they are."""
    entry = store.evidence(user_id, kind=columns.pop("kind", "trace"))
    changes = {"session_id": session, **columns}
    sets = ", ".join(f"{name} = :{name}" for name in changes)
    store.execute(f"UPDATE evidence SET {sets} WHERE id = :id", id=entry, **changes)
    return entry


def archived(at: datetime = TODAY) -> dict[str, Any]:
    return {"archived_at": at, "archived_run_date": DAY}


def propose(
    store: Store,
    user_id: UUID,
    memory: UUID,
    action: str = "archive",
    *,
    related: UUID | None = None,
    status: str = "proposed",
    created_at: datetime = TODAY,
) -> UUID:
    return record_verdict(
        store,
        user_id,
        memory,
        verdict=action,
        related=related,
        judged_at=created_at,
        proposal=status,
    )


def regret(store: Store, user_id: UUID, entry: UUID, at: datetime = TODAY) -> None:
    store.execute(
        "INSERT INTO forgetting.regrets VALUES (:user_id, :entry, :at, :at, 'touch')",
        user_id=user_id,
        entry=entry,
        at=at,
    )


def expected(
    store: Store, user_id: UUID, now: datetime, session: str | None, days: int
) -> dict[str, Any]:
    """Every figure, counted in Python from all rows."""
    mine = {
        table: [row for row in store.rows(f"SELECT * FROM {table}") if row["user_id"] == user_id]
        for table in (
            *("memories", "evidence", "memory_evidence", "retention_proposals"),
            "forgetting.regrets",
        )
    }
    entries = [e for e in mine["evidence"] if session in (None, e["session_id"])]
    ids = {e["id"] for e in entries}
    citing = {c["memory_id"] for c in mine["memory_evidence"] if c["evidence_id"] in ids}
    memories = [m for m in mine["memories"] if session is None or m["id"] in citing]
    live = {m["id"] for m in mine["memories"] if m["status"] == "active" and not m["valid_to"]}
    proposals = [
        p
        for p in mine["retention_proposals"]
        if session is None or {p["memory_id"], p["related_memory_id"]} & citing
    ]
    opened = [p for p in proposals if p["status"] == "proposed"]
    limit = now - timedelta(days=days)

    def state(memory: dict[str, Any]) -> str:
        if memory["valid_to"]:
            return "superseded"
        return "live" if memory["id"] in live else "archived"

    def last(*times: datetime | None) -> datetime:
        return max((each for each in times if each), default=datetime.max.replace(tzinfo=UTC))

    def age(proposal: dict[str, Any]) -> str:
        waits = now - proposal["created_at"]
        if waits < timedelta(days=7):
            return "under_7_days"
        return "7_to_30_days" if waits <= timedelta(days=30) else "over_30_days"

    def table(pairs: list[tuple[str, str]], columns: tuple[str, ...]) -> dict[str, dict[str, int]]:
        counted = Counter(pairs)
        return {name: {column: counted[name, column] for column in columns} for name, _ in counted}

    stale = Counter(
        m["memory_type"]
        for m in memories
        if m["id"] in live
        and m["memory_type"] in LIVED
        and last(m["updated_at"], m["last_reviewed_at"]) < limit
    )
    states = Counter(state(m) for m in memories)
    tiers = Counter("archived" if e["archived_at"] else "hot" for e in entries)
    hot = [e for e in entries if not e["archived_at"]]
    idle = [
        e
        for e in hot
        if e["kind"] in EPISODIC
        and not e["success_count"] + e["reinforcement_count"]
        and last(e["occurred_at"], e["last_retrieved_at"], e["last_outcome_at"]) < limit
    ]
    conflicts = {
        (p["memory_id"], p["related_memory_id"])
        for p in proposals
        if p["action"] == "conflict" and p["status"] in ("proposed", "applied")
    }
    return {
        "measured_at": now,
        "session_id": session,
        "stale_threshold_days": days,
        "live_memories": states["live"],
        "stale_memories": stale.total(),
        "archived_memories": states["archived"],
        "superseded_memories": states["superseded"],
        "hot_evidence": tiers["hot"],
        "idle_evidence": len(idle),
        "archived_evidence": tiers["archived"],
        "archive_share": tiers["archived"] / len(entries) if entries else None,
        "oldest_hot_at": min((e["occurred_at"] for e in hot if e["occurred_at"]), default=None),
        "open_proposals": len(opened),
        "oldest_open_at": min((p["created_at"] for p in opened), default=None),
        "unresolved_conflicts": sum(set(pair) <= live for pair in conflicts),
        "regretted": sum(r["evidence_id"] in ids for r in mine["forgetting.regrets"]),
        "memories": table([(m["memory_type"], state(m)) for m in memories], health.STATES),
        "stale": dict(stale),
        "evidence": table(
            [(e["kind"], "archived" if e["archived_at"] else "hot") for e in entries], health.TIERS
        ),
        "proposals": table([(p["action"], age(p)) for p in opened], health.AGES),
    }


moments = st.sampled_from(
    [
        TODAY - timedelta(days=days) + shift
        for days in (0, 1, 7, 30, 60)
        for shift in (-SECOND, timedelta(), SECOND)
        if days or shift <= timedelta()
    ]
)
maybe = st.none() | moments
counters = st.sampled_from([0, 0, 0, 1])
memory_rows = st.tuples(
    st.sampled_from(TYPES), st.sampled_from(["live", "archived", "superseded"]), moments, maybe
)
evidence_rows = st.tuples(
    st.sampled_from(KINDS), st.sampled_from(["s1", "s2"]), maybe, maybe, maybe, counters, counters,
    st.booleans(), st.booleans(),
)  # fmt: skip
proposal_rows = st.tuples(
    st.sampled_from(["archive", "supersede", "conflict"]),
    st.sampled_from(["proposed", "applied", "rejected", "dismissed"]),
    moments,
)
stores = st.tuples(
    st.lists(memory_rows, max_size=8),
    st.lists(evidence_rows, max_size=8),
    st.lists(proposal_rows, max_size=6),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=6),
)


def build(store: Store, slug: str, rows: Any) -> UUID:
    """A tenant with the rows that hypothesis drew."""
    user_id = store.tenant(slug)
    memory_drawn, evidence_drawn, proposals_drawn, citations = rows
    memories = []
    for memory_type, state, updated_at, reviewed_at in memory_drawn:
        memories.append(
            store.memory(
                user_id,
                memory_type=memory_type,
                created_at=ago(100),
                updated_at=updated_at,
                reviewed_at=reviewed_at,
                status="archived" if state == "archived" else "active",
                valid_to=updated_at if state == "superseded" else None,
                embedding=None,
            )
        )
    entries = []
    for (
        kind,
        session,
        occurred,
        retrieved,
        outcome,
        success,
        reinforced,
        away,
        regretted,
    ) in evidence_drawn:
        archivable = away and kind in EPISODIC and occurred is not None
        entry = evidence(
            store,
            user_id,
            session,
            kind=kind,
            occurred_at=occurred,
            last_retrieved_at=retrieved,
            last_outcome_at=outcome,
            success_count=success,
            reinforcement_count=reinforced,
            **(archived() if archivable else {}),
        )
        if regretted:
            regret(store, user_id, entry)
        entries.append(entry)
    free = list(memories)
    for action, status, created_at in proposals_drawn:
        if len(memories) < 2 or (status == "proposed" and not free):
            continue
        memory = free.pop() if status == "proposed" else memories[0]
        other = next(each for each in memories if each != memory)
        insert_proposal(
            store, user_id, memory, action, None if action == "archive" else other, status,
            created_at,
        )  # fmt: skip
    for memory_at, entry_at in set(citations):
        if memory_at < len(memories) and entry_at < len(entries):
            store.cite(user_id, memories[memory_at], entries[entry_at])
    return user_id


def insert_proposal(
    store: Store, user_id: UUID, memory: UUID, action: str, related: UUID | None, status: str,
    created_at: datetime,
) -> None:  # fmt: skip
    """A proposal past the triggers: a store may hold any that an earlier release wrote."""
    with store.owner.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(
            sa.text(
                "INSERT INTO retention_proposals (user_id, memory_id, action, related_memory_id, "
                "probability, probabilities, model, status, created_at) VALUES (:user_id, :memory, "
                ":action, :related, 0.9, '{}', :model, :status, :created_at)"
            ),
            {
                "user_id": user_id,
                "memory": memory,
                "action": action,
                "related": related,
                "model": MODEL,
                "status": status,
                "created_at": created_at,
            },
        )


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(mine=stores, theirs=stores, days=st.sampled_from([1, 7, 30, 60]))
def test_every_figure_is_what_a_reader_of_all_rows_counts_and_another_tenants_never_count(
    store: Store, mine: Any, theirs: Any, days: int
) -> None:
    acme = build(store, f"acme-{uuid4().hex[:8]}", mine)
    build(store, f"globex-{uuid4().hex[:8]}", theirs)
    sessions = {row[1] for row in mine[1]}
    for session in (None, *sorted(sessions)):
        found = memory_health(store.database, acme, TODAY, session, days)
        assert asdict(found) == expected(store, acme, TODAY, session, days)
        assert found.entry_counts == found.evidence


def test_a_tenant_without_anything_has_zeros_and_no_share(store: Store) -> None:
    acme = store.tenant()
    other = store.tenant("globex")
    store.evidence(other)
    store.memory(other)
    found = memory_health(store.database, acme, TODAY)
    assert found == MemoryHealth(
        measured_at=TODAY,
        session_id=None,
        archive_share=None,
        oldest_hot_at=None,
        oldest_open_at=None,
        memories={},
        stale={},
        evidence={},
        proposals={},
        **{each.name: 0 for each in fields(MemoryHealth) if each.type == "int"}
        | {"stale_threshold_days": 30},  # which is no count
    )
    assert found.oldest_open_days == 0


def test_the_figures_of_a_store_that_has_one_of_everything(store: Store) -> None:
    acme = store.tenant()
    live = store.memory(acme, touched=1)
    newer = store.memory(acme, touched=1)
    store.memory(acme, memory_type="blocker", touched=40)
    store.memory(acme, status="archived")
    store.memory(acme, memory_type="note", touched=400)
    store.memory(acme, valid_to=ago(1))
    evidence(store, acme, occurred_at=ago(50), last_retrieved_at=ago(2))
    gone = evidence(store, acme, occurred_at=ago(300), **archived())
    evidence(store, acme, kind="lesson", occurred_at=ago(200))
    evidence(store, acme, kind="log", occurred_at=ago(31))
    evidence(store, acme, kind="log", occurred_at=ago(31), success_count=1)
    evidence(store, acme, kind="log", occurred_at=ago(31), reinforcement_count=1)
    regret(store, acme, gone)
    propose(store, acme, live, "conflict", related=newer, created_at=TODAY - timedelta(days=8))
    found = memory_health(store.database, acme, TODAY)
    assert (found.live_memories, found.stale_memories) == (4, 1)
    assert (found.archived_memories, found.superseded_memories) == (1, 1)
    assert found.stale == {"blocker": 1}
    assert found.memories["note"] == {"live": 1, "archived": 0, "superseded": 0}
    assert (found.hot_evidence, found.archived_evidence, found.idle_evidence) == (5, 1, 1)
    assert found.archive_share == 1 / 6
    assert found.oldest_hot_at == ago(200), "archived evidence is not hot"
    assert found.entry_counts == {
        "lesson": {"hot": 1, "archived": 0},
        "log": {"hot": 3, "archived": 0},
        "trace": {"hot": 1, "archived": 1},
    }
    assert found.proposals == {
        "conflict": {"under_7_days": 0, "7_to_30_days": 1, "over_30_days": 0}
    }
    assert (found.unresolved_conflicts, found.regretted) == (1, 1)
    assert found.oldest_open_days == 8


@pytest.mark.parametrize(("touched", "count"), [(-SECOND, 1), (timedelta(), 0), (SECOND, 0)])
def test_the_threshold_is_strict_as_the_pass_has_it(
    store: Store, touched: timedelta, count: int
) -> None:
    acme = store.tenant()
    at = TODAY - timedelta(days=7) + touched
    store.memory(acme, created_at=ago(90), updated_at=at)
    store.memory(acme, created_at=ago(90), updated_at=ago(80), reviewed_at=at)
    evidence(store, acme, occurred_at=at)
    evidence(store, acme, occurred_at=ago(90), last_outcome_at=at)
    found = memory_health(store.database, acme, TODAY, stale_threshold_days=7)
    assert (found.stale_memories, found.idle_evidence) == (2 * count, 2 * count)


def test_stale_is_what_the_pass_would_take_without_its_cap(store: Store) -> None:
    acme = store.tenant()
    for number in range(5):
        store.memory(acme, memory_type="decision", age=40 + number)
    store.memory(acme, memory_type="decision", age=20)
    partition = store.partition()
    taken = candidates.select(store.database, partition, make_policy(single_cap=2), TODAY)
    assert len(taken.singles) == 2
    found = memory_health(store.database, acme, partition.as_of)
    assert found.stale_memories == taken.total == 5


@pytest.mark.parametrize(
    ("waits", "band"),
    [
        (timedelta(days=7) - SECOND, "under_7_days"),
        (timedelta(days=7), "7_to_30_days"),
        (timedelta(days=30), "7_to_30_days"),
        (timedelta(days=30) + SECOND, "over_30_days"),
    ],
)
def test_the_ages_of_open_proposals_meet_without_a_gap(
    store: Store, waits: timedelta, band: str
) -> None:
    acme = store.tenant()
    propose(store, acme, store.memory(acme), created_at=TODAY - waits)
    found = memory_health(store.database, acme, TODAY)
    assert found.proposals["archive"][band] == 1
    assert found.oldest_open_at == TODAY - waits


def test_a_conflict_is_unresolved_until_a_side_is_live_no_more_and_a_pair_counts_once(
    store: Store,
) -> None:
    acme = store.tenant()
    older, newer = store.memory(acme), store.memory(acme)
    propose(store, acme, older, "conflict", related=newer, status="applied")
    assert memory_health(store.database, acme, TODAY).unresolved_conflicts == 1
    propose(store, acme, older, "conflict", related=newer)
    for status in ("rejected", "dismissed"):
        one, other = store.memory(acme), store.memory(acme)
        propose(store, acme, one, "conflict", related=other, status=status)
    assert memory_health(store.database, acme, TODAY).unresolved_conflicts == 1
    store.execute("UPDATE memories SET valid_to = now() WHERE id = :id", id=newer)
    assert memory_health(store.database, acme, TODAY).unresolved_conflicts == 0
    store.execute("UPDATE memories SET valid_to = NULL WHERE id = :id", id=newer)
    store.execute("UPDATE memories SET status = 'archived' WHERE id = :id", id=older)
    assert memory_health(store.database, acme, TODAY).unresolved_conflicts == 0


def test_a_session_has_its_own_evidence_and_the_memories_that_cite_it(store: Store) -> None:
    acme = store.tenant()
    cited, related, apart = (store.memory(acme) for _ in range(3))
    mine = evidence(store, acme, "support:ari", occurred_at=ago(60))
    other = evidence(store, acme, "elsewhere", occurred_at=ago(90))
    store.cite(acme, cited, mine)
    store.cite(acme, apart, other)
    regret(store, acme, other)
    propose(store, acme, related, "conflict", related=cited)
    propose(store, acme, apart)
    found = memory_health(store.database, acme, TODAY, "support:ari")
    assert (found.live_memories, found.hot_evidence, found.oldest_hot_at) == (1, 1, ago(60))
    assert (found.open_proposals, found.unresolved_conflicts, found.regretted) == (1, 1, 0)
    assert found.session_id == "support:ari"
    assert memory_health(store.database, acme, TODAY).regretted == 1


@pytest.mark.parametrize("session", ["elsewhere", "", "a\0b", "\ud800", "theirs"])
def test_a_session_without_evidence_is_an_error(store: Store, session: str) -> None:
    acme, globex = store.tenant(), store.tenant("globex")
    store.evidence(acme)
    evidence(store, globex, "theirs")
    with pytest.raises(ForgettingError, match=r"^The tenant has no session '.*': no evidence"):
        memory_health(store.database, acme, TODAY, session)


@pytest.mark.parametrize("days", [0, -1, 36_501, 10**12])
def test_a_threshold_out_of_range_is_an_error(store: Store, days: int) -> None:
    acme = store.tenant()
    with pytest.raises(ForgettingError, match="a number of days from 1 to 36500"):
        memory_health(store.database, acme, TODAY, stale_threshold_days=days)
    assert memory_health(store.database, acme, TODAY, stale_threshold_days=36_500)


def test_a_partitions_row_has_the_figures_and_is_replaced(store: Store) -> None:
    acme = store.tenant()
    globex = store.tenant("globex")
    store.memory(acme)
    store.memory(globex)
    evidence(store, acme, occurred_at=ago(60))
    theirs = health.record(store.database, store.partition("globex"), make_policy(), TODAY)
    health.record(store.database, store.partition(), make_policy(), TODAY)
    store.memory(acme, touched=1)
    later = TODAY + timedelta(hours=1)
    measured = health.record(
        store.database, store.partition(), make_policy(stale_window_days=45), later
    )
    assert measured == memory_health(store.database, acme, later, stale_threshold_days=45)
    rows = store.rows("SELECT * FROM forgetting.memory_health ORDER BY measured_at")
    assert [(row["user_id"], row["measured_at"]) for row in rows] == [
        (globex, TODAY),
        (acme, later),
    ]
    assert rows[0]["live_memories"] == theirs.live_memories == 1
    row = rows[1]
    assert row.pop("run_date") == DAY
    assert row.pop("user_id") == acme
    counts = row.pop("counts")
    figures = json.loads(json.dumps(asdict(measured), default=str))
    assert counts == {name: figures[name] for name in ("memories", "evidence", "proposals")}
    assert row == {name: asdict(measured)[name] for name in row}
    assert row["live_memories"] == 2


def test_counting_changes_nothing(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    evidence(store, acme, occurred_at=ago(60))
    before = store.dump("memories", "evidence", "retention_proposals", "forgetting.memory_health")
    memory_health(store.database, acme, TODAY)
    assert store.dump(*before) == before
