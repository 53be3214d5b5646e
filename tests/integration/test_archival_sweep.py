"""Evidence that was of no use leaves the hot tier: which, when, how much, and nothing is lost."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forgetting_assets import review
from forgetting_assets.store import evidence, tier
from forgetting_assets.store.tier import Sweep
from resources.errors import ForgettingError, InvariantViolated, StoreRefused
from resources.policy import Policy
from tests.support import DAY, TODAY, Pass, Store, TestJudge, ago, by_topic, record_verdict, say

EPISODIC = ("trace", "log", "tool_input", "tool_output", "step_outcome")
KEPT = ("lesson", "rule", "mental_model", "fact", "observation", "handoff", "archive_block")
MICROSECOND = 1 / 86_400_000_000
"""In days."""


def sweep(store: Store, n: int = 0, *, slug: str = "acme", **policy: Any) -> Sweep:
    """The sweep of the n-th day after DAY."""
    now = TODAY + timedelta(days=n)
    partition = store.partition(slug, DAY + timedelta(days=n), now)
    return Pass(store, policy=Policy(**policy), now=now).sweep(partition)


def archived(store: Store) -> set[UUID]:
    rows = store.rows("SELECT id FROM evidence WHERE archived_at IS NOT NULL")
    return {row["id"] for row in rows}


def hot(store: Store, user_id: UUID) -> set[UUID]:
    """What retrieval sees as the runtime role."""
    with store.database.tenant(user_id) as tx:
        rows = tx.connection.execute(sa.text("SELECT id FROM hot_evidence"))
        return {row.id for row in rows}


# The rule, condition by condition

NEVER: dict[str, dict[str, Any]] = {
    **{f"a {kind}": {"kind": kind, "age": 400} for kind in KEPT},
    "an entry of exactly the window's age": {"age": 7},
    "an entry of one minute's age (BR-23)": {"age": 1 / 1440},
    "an entry from after the partition": {"age": -0.1},
    "an entry of unknown time": {"age": None},
    "an entry of unknown time that was used long ago": {"age": None, "retrieved": 300},
    "a credited entry": {"success": 1},
    "a much credited entry": {"success": 2_000_000_000},
    "a reinforced entry": {"reinforcement": 1},
    "a credited and reinforced entry": {"success": 1, "reinforcement": 1},
    "an entry retrieved within the window": {"age": 400, "retrieved": 1},
    "an entry retrieved exactly at its start": {"age": 400, "retrieved": 7},
    "an entry with an outcome within the window": {"age": 400, "outcome": 1},
    "an entry with an outcome exactly at its start": {"age": 400, "outcome": 7},
    "an entry retrieved long ago and with a late outcome": {"retrieved": 20, "outcome": 2},
    "an entry with an outcome long ago and retrieved late": {"retrieved": 2, "outcome": 20},
    "an entry retrieved after the partition's end": {"age": 400, "retrieved": -0.25},
    "an entry with an outcome after the partition's end": {"age": 400, "outcome": -0.25},
    "an entry recorded after the partition's end": {"age": 400, "recorded_at": ago(-0.1)},
}
ALWAYS: dict[str, dict[str, Any]] = {
    **{f"a {kind}": {"kind": kind} for kind in EPISODIC},
    "an entry just older than the window": {"age": 7 + MICROSECOND},
    "an entry retrieved just before the window": {"age": 400, "retrieved": 7 + MICROSECOND},
    "an entry with an outcome just before it": {"age": 400, "outcome": 7 + MICROSECOND},
    "an entry used long ago in both ways": {"age": 400, "retrieved": 100, "outcome": 200},
    "an entry recorded at the partition's very end": {"age": 400, "recorded_at": ago(0)},
    "an entry recorded long after it happened": {"age": 400, "recorded_at": ago(1)},
}


@pytest.mark.parametrize("entry", NEVER.values(), ids=NEVER)
def test_evidence_that_fails_one_condition_is_never_archived(
    store: Store, entry: dict[str, Any]
) -> None:
    acme = store.tenant()
    kept = store.evidence(acme, **{"age": 30, **entry})
    due = store.evidence(acme, age=30)
    assert sweep(store).archived == 1
    assert archived(store) == {due}
    assert hot(store, acme) == {kept}


def test_evidence_that_meets_every_condition_is_archived(store: Store) -> None:
    acme = store.tenant()
    due = {name: store.evidence(acme, **{"age": 30, **entry}) for name, entry in ALWAYS.items()}
    kept = store.evidence(acme, success=1)
    assert sweep(store).archived == len(ALWAYS)
    left = {name for name, id_ in due.items() if id_ not in archived(store)}
    assert left == set()
    assert hot(store, acme) == {kept}


def test_every_kind_of_evidence_is_in_these_tests(store: Store) -> None:
    [check] = store.rows(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint "
        "WHERE conrelid = 'evidence'::regclass AND conname = 'evidence_kind_check'"
    )
    assert sorted(EPISODIC + KEPT) == sorted(check["text"].split("'")[1::2])


def test_the_window_is_configurable(store: Store) -> None:
    acme = store.tenant()
    younger, older = store.evidence(acme, age=25), store.evidence(acme, age=35)
    sweep(store, sweep_window_days=30)
    assert archived(store) == {older}
    sweep(store, 1, sweep_window_days=7)
    assert archived(store) == {younger, older}


def test_an_entry_recorded_after_the_partition_is_left_to_the_partition_that_sees_it(
    store: Store,
) -> None:
    acme = store.tenant()
    late = store.evidence(acme, age=30, recorded_at=ago(-0.5))
    assert sweep(store).archived == 0
    assert sweep(store, 1).archived == 1
    assert archived(store) == {late}


def test_an_old_partition_is_swept_as_of_its_own_end(store: Store) -> None:
    acme = store.tenant()
    then_due, then_young = store.evidence(acme, age=60), store.evidence(acme, age=33)
    assert sweep(store, -30).archived == 1
    assert archived(store) == {then_due}
    assert hot(store, acme) == {then_young}


def test_a_tenants_sweep_leaves_every_other_tenant_alone(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    mine, theirs = store.evidence(acme), store.evidence(other)
    sweep(store)
    assert archived(store) == {mine}
    sweep(store, slug="other")
    assert archived(store) == {mine, theirs}


def test_br_49_a_due_entry_is_retrieved_until_a_sweep_archives_it(store: Store) -> None:
    acme = store.tenant()
    due = store.evidence(acme, age=400)
    assert hot(store, acme) == {due}
    assert evidence.dereference(store.database, acme, due, ago(10)).archived_at is None
    sweep(store)
    assert hot(store, acme) == set()
    assert evidence.dereference(store.database, acme, due, TODAY).archived_at == TODAY


# The batch


def test_what_nobody_used_goes_by_its_age_the_oldest_first(store: Store) -> None:
    acme = store.tenant()
    ages = [10, 50, 30, 20, 40]
    ids = {age: store.evidence(acme, age=age) for age in ages}
    sweep(store, sweep_batch=2)
    assert archived(store) == {ids[50], ids[40]}
    sweep(store, 1, sweep_batch=2)
    assert archived(store) == {ids[50], ids[40], ids[30], ids[20]}


@pytest.mark.parametrize("use", ["retrieved", "outcome"])
def test_what_was_of_no_use_for_longest_goes_first_whatever_its_age(store: Store, use: str) -> None:
    acme = store.tenant()
    store.evidence(acme, age=90, recorded_at=ago(90), **{use: 8})
    unused = store.evidence(acme, age=80, recorded_at=ago(1))
    store.evidence(acme, age=70, recorded_at=ago(70))
    sweep(store, sweep_batch=1)
    assert archived(store) == {unused}


def test_entries_of_one_moment_go_in_the_order_of_their_ids(store: Store) -> None:
    acme = store.tenant()
    ids = [store.evidence(acme, age=30) for _ in range(6)]
    sweep(store, sweep_batch=3)
    assert archived(store) == set(sorted(ids)[:3])


def many(store: Store, user_id: UUID, count: int, columns: str = "", values: str = "") -> None:
    """Entries made in the database: due ones, unless the further columns say otherwise."""
    store.execute(
        f"""
        INSERT INTO evidence (user_id, session_id, kind, content, occurred_at, recorded_at
            {columns})
        SELECT :user_id, 'session', 'trace', 'GET /health 200 #' || n || repeat('.', 180),
            :at - n * interval '1 min', :at {values}
        FROM generate_series(1, :count) AS n
        """,
        user_id=user_id,
        at=ago(30),
        count=count,
    )


def test_a_partition_archives_500_at_most_and_the_next_ones_the_rest(store: Store) -> None:
    acme = store.tenant()
    many(store, acme, 1_100)
    found = [sweep(store, n) for n in range(4)]
    assert [each.archived for each in found] == [500, 500, 100, 0]
    assert [each.archived_by_partition for each in found] == [500, 500, 100, 0]
    assert len(archived(store)) == 1_100


def test_br_23_five_hundred_protected_entries_do_not_hide_the_one_that_is_due(store: Store) -> None:
    acme = store.tenant()
    many(store, acme, 250, ", success_count", ", 1")
    many(store, acme, 250, ", last_retrieved_at", ", :at + interval '29 days'")
    one = store.evidence(acme, age=8)
    store.evidence(acme, age=1 / 1440)
    assert sweep(store, sweep_batch=1).archived == 1
    assert archived(store) == {one}


def test_decision_17_a_partition_swept_again_archives_only_what_is_left_of_its_batch(
    store: Store,
) -> None:
    acme = store.tenant()
    for n in range(10):
        store.evidence(acme, age=30 + n)
    assert sweep(store, sweep_batch=3).archived == 3
    again = sweep(store, sweep_batch=3)
    assert (again.archived, again.archived_by_partition) == (0, 3)
    assert sweep(store, sweep_batch=5).archived == 2, "a larger batch has room left"
    assert sweep(store, sweep_batch=2).archived == 0, "a smaller one takes nothing back"
    assert sweep(store, 1, sweep_batch=3).archived == 3, "a new day has a batch of its own"
    assert sweep(store, sweep_batch=5).archived == 0
    days = store.rows(
        "SELECT archived_run_date AS day, count(*) AS n FROM evidence "
        "WHERE archived_at IS NOT NULL GROUP BY day ORDER BY day"
    )
    assert days == [{"day": DAY, "n": 5}, {"day": DAY + timedelta(days=1), "n": 3}]


def test_a_batch_of_nothing_archives_nothing(store: Store) -> None:
    acme = store.tenant()
    store.evidence(acme)
    assert sweep(store, sweep_batch=0).archived == 0
    assert sweep(store, sweep_batch=1).archived == 1


def test_an_archived_entry_is_not_archived_again(store: Store) -> None:
    acme = store.tenant()
    store.evidence(acme)
    sweep(store)
    before = store.dump("evidence", "forgetting.archival_sweep")
    for n in (0, 1, 30):
        assert sweep(store, n).archived == 0
    assert store.dump("evidence", "forgetting.archival_sweep") == before


def test_sweeps_of_a_partition_at_once_share_its_batch(store: Store) -> None:
    acme = store.tenant()
    for n in range(10):
        store.evidence(acme, age=30 + n)
    start = threading.Barrier(4)

    def run(_n: int) -> int:
        start.wait(10)
        return sweep(store, sweep_batch=3).archived

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(run, range(4))) == [0, 0, 0, 3]
    assert len(archived(store)) == 3


# Evidence that a proposal needs


@pytest.mark.parametrize("side", ["the memory", "the related memory"])
def test_evidence_cited_by_an_open_proposal_stays_hot_until_it_is_decided(
    store: Store, side: str
) -> None:
    acme = store.tenant()
    older, newer = store.pair(acme)
    cited, uncited, elsewhere = (store.evidence(acme) for _ in range(3))
    store.cite(acme, older if side == "the memory" else newer, cited)
    store.cite(acme, store.memory(acme, scope="elsewhere"), elsewhere)
    answers = by_topic({}, say("supersede_older"))
    Pass(store, TestJudge.that(answers)).run(store.partition())
    [proposal] = store.rows("SELECT id FROM retention_proposals WHERE status = 'proposed'")
    sweep(store)
    assert archived(store) == {uncited, elsewhere}
    review.reject(store.database, acme, proposal["id"], TODAY)
    assert sweep(store).archived == 1
    assert archived(store) == {cited, uncited, elsewhere}


@pytest.mark.parametrize("status", ["applied", "rejected", "dismissed"])
def test_evidence_cited_by_a_decided_proposal_is_archived(store: Store, status: str) -> None:
    acme = store.tenant()
    memory = store.memory(acme)
    cited = store.evidence(acme)
    store.cite(acme, memory, cited)
    record_verdict(store, acme, memory, verdict="archive", proposal=status)
    sweep(store)
    assert archived(store) == {cited}


# Nothing is lost

TEXTS = [
    "plain",
    "",
    " leading and trailing \t ",
    "trailing newlines\n\n\n",
    "\r\nwindows\r\n",
    "na\u00efve caf\u00e9 / nai\u0308ve cafe\u0301",
    "\U0001f600\u200d\U0001f469\u2028\u2029\ufeff",
    "\x01\x1b[31m\x7f",
    "{'quotes': \"'\"} \\ \\n %s %(x)s :user_id $1 --",
    "x" * 100_000,
]


def test_br_40_an_archived_entry_is_reachable_by_id_with_its_exact_bytes_after_two_sweeps(
    store: Store,
) -> None:
    acme = store.tenant()
    texts = {store.evidence(acme, content=text): text for text in TEXTS}
    before = {row["id"]: row for row in store.rows("SELECT * FROM evidence")}
    assert hot(store, acme) == set(texts)
    for n in range(2):
        sweep(store, n, sweep_batch=5)
    assert archived(store) == set(texts)
    assert hot(store, acme) == set()
    for row in store.rows("SELECT * FROM evidence"):
        markers = {"archived_at", "archived_run_date"}
        differs = {name for name in row if row[name] != before[row["id"]][name]}
        assert differs == markers
    for id_, text in texts.items():
        entry = evidence.dereference(store.database, acme, id_, TODAY)
        assert entry.content.encode() == text.encode()
        assert (entry.id, entry.session_id, entry.kind) == (id_, "session", "trace")
        assert (entry.occurred_at, entry.archived_at is None) == (ago(30), False)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00")))
def test_br_40_whatever_the_text_is_the_archive_keeps_its_bytes(store: Store, text: str) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    id_ = store.evidence(acme, content=text)
    assert sweep(store, slug=slug).archived == 1
    assert evidence.dereference(store.database, acme, id_, TODAY).content.encode() == text.encode()
    [log] = store.rows("SELECT * FROM forgetting.archival_sweep WHERE evidence_id = :id", id=id_)
    assert log["content_sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_an_entry_of_another_tenant_or_of_no_one_cannot_be_dereferenced(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    id_ = store.evidence(acme)
    for user_id, wanted in ((other, id_), (acme, uuid4())):
        with pytest.raises(ForgettingError, match=str(wanted)):
            evidence.dereference(store.database, user_id, wanted, TODAY)
    assert evidence.dereference(store.database, acme, id_, TODAY).id == id_


def test_the_runtime_role_deletes_no_evidence_and_archives_no_guidance(store: Store) -> None:
    acme = store.tenant()
    rule, trace = store.evidence(acme, kind="rule"), store.evidence(acme)
    archive = sa.text(
        "UPDATE evidence SET archived_at = now(), archived_run_date = now() WHERE id = :id"
    )
    with pytest.raises(StoreRefused, match="42501"), store.database.tenant(acme) as tx:
        tx.connection.exec_driver_sql("DELETE FROM evidence")
    with (
        pytest.raises(StoreRefused, match="evidence_only_episodic_is_archived"),
        store.database.tenant(acme) as tx,
    ):
        tx.run(archive, id=rule)
    undated = store.evidence(acme, age=None)
    with (
        pytest.raises(StoreRefused, match="evidence_without_a_time_is_never_archived"),
        store.database.tenant(acme) as tx,
    ):
        tx.run(archive, id=undated)
    with store.database.tenant(acme) as tx:
        assert tx.run(archive, id=trace) == 1


def test_br_26_the_log_has_the_figures_that_each_entry_was_archived_on(store: Store) -> None:
    acme = store.tenant()
    for entry in ALWAYS.values():
        store.evidence(acme, **{"age": 30, **entry})
    sweep(store)
    logged = store.rows(
        """
        SELECT s.*, e.kind AS kind_now, e.occurred_at AS occurred_now, e.content,
            e.archived_at AS archived_now,
            greatest(e.last_retrieved_at, e.last_outcome_at) AS used_now
        FROM forgetting.archival_sweep AS s INNER JOIN evidence AS e ON e.id = s.evidence_id
        """
    )
    assert len(logged) == len(ALWAYS)
    for row in logged:
        assert (row["run_date"], row["user_id"], row["due_before"]) == (DAY, acme, ago(7))
        assert row["kind"] == row["kind_now"]
        assert row["occurred_at"] == row["occurred_now"] < row["due_before"]
        assert row["last_used_at"] == row["used_now"]
        assert row["last_used_at"] is None or row["last_used_at"] < row["due_before"]
        assert (row["success_count"], row["reinforcement_count"]) == (0, 0)
        assert row["archived_at"] == row["archived_now"] == TODAY
        assert row["content_sha256"] == hashlib.sha256(row["content"].encode()).hexdigest()


# Cost


class RolledBack(Exception):
    """What a test ends a transaction with that must leave nothing behind."""


def plan_of_find_due(store: Store, user_id: UUID, room: int = 500) -> dict[str, Any]:
    """How the database ran the statement, as the runtime role, rolled back afterwards."""
    explain = sa.text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {tier.QUERIES['find_due'].text}")
    figures = {"run_date": DAY, "as_of": ago(0), "due_before": ago(7), "room": room}
    plans: list[Any] = []
    with contextlib.suppress(RolledBack), store.database.tenant(user_id) as tx:
        plans += tx.one(explain, **figures)[0]
        raise RolledBack
    top: dict[str, Any] = plans[0]["Plan"]
    return top


def scans(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Every node of a plan that reads evidence."""
    below = [scan for child in node.get("Plans", []) for scan in scans(child)]
    reads = node.get("Relation Name") == "evidence" and "Scan" in node["Node Type"]
    bitmap = node["Node Type"] == "Bitmap Index Scan"
    return ([node] if reads or bitmap else []) + below


def maintain(store: Store, statement: str) -> None:
    """What autovacuum does now and then; it never ran over the table of a test before that."""
    with store.owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)


def test_br_25_an_empty_sweep_is_one_probe_of_the_index_however_much_is_hot(store: Store) -> None:
    # Old, never credited, and in use: only the time of the last use keeps them hot. The other
    # tenant's rows stand first on the disk, in the way of anything that scans the table.
    for slug in ("other", "acme"):
        in_use = ", :at + interval '29 days'"
        many(store, store.tenant(slug), 5_000, ", last_retrieved_at", in_use)
    acme = store.partition("acme").user_id
    maintain(store, "VACUUM ANALYZE evidence")
    plan = plan_of_find_due(store, acme)
    reads = scans(plan)
    assert "evidence_due_idx" in {scan.get("Index Name") for scan in reads}
    assert "Seq Scan" not in {scan["Node Type"] for scan in reads}
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in reads) == 0
    assert sum(scan.get("Rows Removed by Filter", 0) for scan in reads) == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 20
    assert archived(store) == set()

    store.execute("UPDATE evidence SET last_retrieved_at = NULL WHERE user_id = :id", id=acme)
    full = plan_of_find_due(store, acme)
    assert full["Shared Hit Blocks"] + full["Shared Read Blocks"] > 100, "it does count pages"
    assert archived(store) == set(), "the plan was rolled back"


@pytest.mark.parametrize("room", [100, 500])
@pytest.mark.parametrize("statistics", ["none", "stale, of an idle tenant", "stale", "fresh"])
def test_br_25_a_sweep_reads_as_much_as_its_batch_whatever_the_planner_knows_of_the_backlog(
    store: Store, statistics: str, room: int
) -> None:
    acme, other = store.tenant(), store.tenant("other")
    # It might run over the table by itself, and the planner know more than the test says.
    store.execute("ALTER TABLE evidence SET (autovacuum_enabled = FALSE)")
    if statistics == "stale":
        many(store, acme, 200)
    if statistics.startswith("stale"):
        many(store, acme, 200, ", last_retrieved_at", ", :at + interval '29 days'")
        many(store, other, 200)
        maintain(store, "ANALYZE evidence, forgetting.revivals")
    many(store, other, 20_000)
    many(store, acme, 20_000)
    if statistics == "fresh":
        maintain(store, "VACUUM ANALYZE evidence, forgetting.revivals")

    plan = plan_of_find_due(store, acme, room)
    assert "Sort" not in str(plan), "the backlog was sorted"
    [scan] = scans(plan)
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "evidence_due_idx")
    assert scan["Actual Rows"] == room
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert plan["Actual Rows"] == room
    # An entry costs a page of the table, one of each protection's index and its lock.
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 5 * room


# The rule as a whole


@dataclass(frozen=True)
class Made:
    """An entry of a property test; times are days before the partition's end."""

    kind: str = "trace"
    age: float | None = 30
    success: int = 0
    reinforcement: int = 0
    retrieved: float | None = None
    outcome: float | None = None
    recorded: float = 5

    def write(self, store: Store, user_id: UUID) -> UUID:
        return store.evidence(
            user_id,
            kind=self.kind,
            age=self.age,
            success=self.success,
            reinforcement=self.reinforcement,
            retrieved=self.retrieved,
            outcome=self.outcome,
            recorded_at=ago(self.recorded),
        )

    def is_due(self, window: int) -> bool:
        """The utility rule, written down a second time."""
        if self.kind not in EPISODIC or self.age is None:
            return False
        if self.success or self.reinforcement or self.recorded < 0:
            return False
        times = [each for each in (self.age, self.retrieved, self.outcome) if each is not None]
        return all(ago(each) < ago(window) for each in times)


TIMES = st.sampled_from([-0.3, 0, 3, 6.999, 7, 7 + MICROSECOND, 8, 30, 400])
COUNTS = st.sampled_from([0, 0, 0, 1, 5])
MADE = st.builds(
    Made,
    kind=st.sampled_from(EPISODIC * 2 + KEPT),
    age=st.none() | TIMES,
    success=COUNTS,
    reinforcement=COUNTS,
    retrieved=st.none() | TIMES,
    outcome=st.none() | TIMES,
    recorded=st.sampled_from([-0.1, 0, 5, 60]),
)
DUE = st.builds(Made, kind=st.sampled_from(EPISODIC), age=st.sampled_from([7.5, 8, 30, 400]))
CALM = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@CALM
@given(
    entries=st.lists(MADE | DUE, max_size=12),
    batch=st.integers(0, 8),
    window=st.sampled_from([1, 7, 30]),
)
def test_a_sweep_archives_exactly_the_longest_unused_that_the_rule_names(
    store: Store, entries: list[Made], batch: int, window: int
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    ids = {entry.write(store, acme): entry for entry in entries}

    def order(id_: UUID) -> tuple[datetime, UUID]:
        entry = ids[id_]
        uses = (entry.age, entry.retrieved, entry.outcome)
        return max(ago(each) for each in uses if each is not None), id_

    due = sorted((id_ for id_, entry in ids.items() if entry.is_due(window)), key=order)
    done = sweep(store, slug=slug, sweep_batch=batch, sweep_window_days=window)
    assert archived(store) & set(ids) == set(due[:batch])
    assert done.archived == len(due[:batch])
    there = store.rows("SELECT id FROM evidence WHERE user_id = :acme", acme=acme)
    assert {row["id"] for row in there} == set(ids), "nothing is deleted"
    assert hot(store, acme) == set(ids) - set(due[:batch])
    again = sweep(store, slug=slug, sweep_batch=batch, sweep_window_days=window)
    assert again.archived == 0


@CALM
@given(
    entry=MADE | DUE,
    success=st.integers(0, 3),
    reinforcement=st.integers(0, 3),
    retrieved=st.none() | st.floats(0, 400),
    outcome=st.none() | st.floats(0, 400),
    later=st.floats(0, 50),
)
def test_br_52_more_credit_or_later_use_never_makes_an_entry_more_archivable(
    store: Store,
    entry: Made,
    success: int,
    reinforcement: int,
    retrieved: float | None,
    outcome: float | None,
    later: float,
) -> None:
    def latest(*days_ago: float | None) -> float | None:
        return min((each for each in days_ago if each is not None), default=None)

    better = replace(
        entry,
        age=None if entry.age is None else entry.age - later,
        success=entry.success + success,
        reinforcement=entry.reinforcement + reinforcement,
        retrieved=latest(entry.retrieved, retrieved),
        outcome=latest(entry.outcome, outcome),
    )
    assume(better != entry)
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    one, other = entry.write(store, acme), better.write(store, acme)
    sweep(store, slug=slug)
    assert not (other in archived(store) and one not in archived(store))


@CALM
@given(entries=st.lists(MADE | DUE, max_size=6))
def test_br_52_the_same_input_gives_the_same_decision(store: Store, entries: list[Made]) -> None:
    decisions = []
    for _ in range(2):
        slug = f"t{uuid4().hex[:10]}"
        acme = store.tenant(slug)
        ids = [entry.write(store, acme) for entry in entries]
        sweep(store, slug=slug)
        decisions.append([id_ in archived(store) for id_ in ids])
    assert decisions[0] == decisions[1]


@CALM
@given(
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8),
    count=st.integers(0, 10),
)
def test_decision_17_however_often_its_partitions_are_swept_no_day_passes_its_batch(
    store: Store, batches: list[tuple[int, int]], count: int
) -> None:
    slug = f"t{uuid4().hex[:10]}"
    acme = store.tenant(slug)
    ids = {store.evidence(acme, age=30 + n) for n in range(count)}
    taken: dict[int, int] = {}
    for day, batch in batches:
        left = count - sum(taken.values())
        expected = min(left, max(0, batch - taken.get(day, 0)))
        done = sweep(store, day, slug=slug, sweep_batch=batch)
        taken[day] = taken.get(day, 0) + expected
        assert (done.archived, done.archived_by_partition) == (expected, taken[day])
        assert len(archived(store) & ids) == sum(taken.values())


# The invariant inside the transaction


def plant(store: Store, statement: str, **parameters: Any) -> None:
    """Write a row past every trigger, as only a superuser can."""
    with store.owner.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        connection.execute(sa.text(statement), parameters)


@pytest.mark.parametrize("status", ["proposed", "applied"])
@pytest.mark.parametrize("episodic", ["event", "note"])
def test_nothing_is_archived_beside_a_proposal_that_names_an_episodic_memory(
    store: Store, episodic: str, status: str
) -> None:
    acme = store.tenant()
    diary = store.memory(acme, memory_type=episodic)
    due = store.evidence(acme)
    plant(
        store,
        "INSERT INTO retention_proposals (user_id, memory_id, action, probability, probabilities, "
        "model, status) VALUES (:user_id, :id, 'archive', 0.9, '{}', 'test-model', :status)",
        user_id=acme,
        id=diary,
        status=status,
    )
    before = store.dump("evidence", "forgetting.archival_sweep")
    with pytest.raises(InvariantViolated, match=str(diary)):
        sweep(store)
    assert store.dump("evidence", "forgetting.archival_sweep") == before
    store.execute("DELETE FROM retention_proposals")
    assert sweep(store).archived == 1
    assert archived(store) == {due}


def test_another_tenants_violation_stops_no_sweep_of_this_one(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    diary = store.memory(other, memory_type="event")
    store.evidence(acme)
    store.evidence(other)
    plant(
        store,
        "INSERT INTO retention_proposals (user_id, memory_id, action, probability, probabilities, "
        "model) VALUES (:user_id, :id, 'archive', 0.9, '{}', 'test-model')",
        user_id=other,
        id=diary,
    )
    with pytest.raises(InvariantViolated):
        sweep(store, slug="other")
    assert sweep(store).archived == 1


TAMPERED = {
    "an archived entry was rewritten": "UPDATE evidence SET content = 'other' WHERE id = :id",
    "an archived entry is gone": "DELETE FROM evidence WHERE id = :id",
    "an entry was archived by hand": (
        "UPDATE evidence SET archived_at = now(), archived_run_date = :day WHERE id = :spare"
    ),
    "the log says that it was credited": (
        "UPDATE forgetting.archival_sweep SET success_count = 1 WHERE evidence_id = :id"
    ),
}


@pytest.mark.parametrize("statement", TAMPERED.values(), ids=TAMPERED)
def test_a_partition_whose_archive_was_tampered_with_archives_nothing_more(
    store: Store, statement: str
) -> None:
    acme = store.tenant()
    first = store.evidence(acme, age=90)
    spare, due = store.evidence(acme, age=1), store.evidence(acme, age=30)
    sweep(store, sweep_batch=1)
    assert archived(store) == {first}
    plant(
        store,
        statement,
        **{
            name: value
            for name, value in {"id": first, "spare": spare, "day": DAY}.items()
            if f":{name}" in statement
        },
    )
    before = store.dump("evidence", "forgetting.archival_sweep")
    with pytest.raises(InvariantViolated):
        sweep(store, sweep_batch=5)
    assert store.dump("evidence", "forgetting.archival_sweep") == before
    assert due not in archived(store)
    assert sweep(store, 1).archived == 1, "another partition is judged by its own archive"


def test_the_dates_of_these_tests_are_what_they_seem() -> None:
    assert date(2026, 8, 31) == DAY
    assert ago(0) == datetime(2026, 9, 1, tzinfo=UTC)
