"""Query plans: every statement of a night, as the pass runs it, reads in proportion to what is due.

The whole pass runs under the runtime role in databases with one large tenant, one whose memories
are all of one group, and many small ones. Each statement is explained with the parameters it is
given, just before it runs. What is asserted are indexes, rows and pages, never time.

Rows read are what the scans of a table return and what they filter out. Rows handled are those of
every node of a plan, with what joins compare and drop: a loop inside a loop shows there.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pydantic import PrivateAttr

import sql
from forgetting_assets.partition import Partition
from forgetting_assets.store import health, invariant, mining
from resources.addresses import RUNTIME_ROLE
from resources.database import Database, TenantTransaction, engine
from tests.conftest import TEMPLATE
from tests.support import DAY, MODEL, TODAY, Pass, Store, TestJudge, ago, choose, make_policy

# Plans


@dataclass(frozen=True)
class Plan:
    """What EXPLAIN says of a statement that it ran."""

    root: Mapping[str, Any]

    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Every node of the tree."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    def scans(self, relation: str | None = None) -> list[Mapping[str, Any]]:
        """The nodes that read a table; what is written is not read."""
        return [
            node
            for node in self.nodes()
            if "Relation Name" in node
            and node["Node Type"] != "ModifyTable"
            and relation in (None, node["Relation Name"])
        ]

    def rows_read(self) -> Counter[str]:
        """How many rows were read of each table."""
        read: Counter[str] = Counter()
        for scan in self.scans():
            read[scan["Relation Name"]] += _rows(scan)
        return read

    @property
    def rows_handled(self) -> int:
        """How many rows went through all nodes."""
        return sum(_rows(node) for node in self.nodes())

    @property
    def pages(self) -> int:
        """How many pages were read, from memory or from disk."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    def indexes(self, relation: str) -> set[str]:
        """The indexes by which a table is reached."""
        waiting, found = list(self.scans(relation)), set()
        while waiting:
            node = waiting.pop()
            found |= {node["Index Name"]} if "Index Name" in node else set()
            # Bitmaps of indexes stand below the scan, but so do subqueries of its filter.
            waiting += [child for child in node.get("Plans", []) if "Bitmap" in child["Node Type"]]
        return found

    def read_whole(self) -> set[str]:
        """The tables that are read from end to end."""
        return {scan["Relation Name"] for scan in self.scans() if "Seq Scan" in scan["Node Type"]}

    def __str__(self) -> str:
        return "\n".join(["", *_lines(self.root, 0)])


DROPPED = ("Filter", "Join Filter", "Index Recheck")


def _rows(node: Mapping[str, Any]) -> int:
    dropped = sum(node.get(f"Rows Removed by {reason}", 0) for reason in DROPPED)
    return round((node["Actual Rows"] + dropped) * node["Actual Loops"])


def _lines(node: Mapping[str, Any], depth: int) -> Iterator[str]:
    names = ("Subplan Name", "Node Type", "Join Type", "Relation Name", "Index Name", "CTE Name")
    said = " ".join(str(node[name]) for name in names if name in node)
    figures = f"expected {node['Plan Rows']}, got {node['Actual Rows']} x {node['Actual Loops']}"
    dropped = "".join(
        f", {reason} dropped {node[key]}"
        for reason in DROPPED
        if node.get(key := f"Rows Removed by {reason}")
    )
    pages = node["Shared Hit Blocks"] + node["Shared Read Blocks"]
    yield f"{'  ' * depth}{said} ({figures}{dropped}; {pages} pages)"
    for name in ("Index Cond", "Hash Cond", "Join Filter", "Filter"):
        if name in node:
            yield f"{'  ' * depth}    {name}: {node[name][:200]}"
    for child in node.get("Plans", []):
        yield from _lines(child, depth + 1)


NAMES = {
    id(query): f"{path.stem}.{name}"
    for path in sorted((sql.ROOT / "queries").glob("*.sql"))
    for name, query in sql.load(path.stem).items()
}
"""The names of the statements; the loader gives everybody the same ones."""


def explain(tx: TenantTransaction, query: sa.TextClause, parameters: Mapping[str, Any]) -> Plan:
    """The plan by which a statement runs; of a COPY what stands inside. What it wrote is undone."""
    inside = re.search(r"^COPY \((.*)\) TO STDOUT", query.text, re.DOTALL | re.MULTILINE)
    statement = inside[1] if inside else query.text
    asked = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) {statement}"
    with tx.connection.begin_nested() as savepoint:
        bound = {"user_id": tx.user_id, **parameters}
        (found,) = tx.connection.execute(sa.text(asked), bound).scalar_one()
        savepoint.rollback()
    return Plan(found["Plan"])


ENOUGH = 20
"""Of a statement that runs for each item, so many plans are looked at."""

Night = Mapping[str, list[Plan]]
"""The plans of each statement that a pass ran, in their order."""


class ExplainedTransaction(TenantTransaction):
    """A transaction that explains each statement before it runs it."""

    def __init__(self, tx: TenantTransaction, plans: dict[str, list[Plan]]) -> None:
        super().__init__(tx.connection, tx.user_id)
        self._plans = plans

    def stream(self, query: sa.TextClause, **parameters: Any) -> Iterator[sa.Row[Any]]:
        self._note(query, parameters)
        return super().stream(query, **parameters)

    def copy(self, query: sa.TextClause, *arguments: Any, rows: int, **parameters: Any) -> None:
        self._note(query, parameters)
        super().copy(query, *arguments, rows=rows, **parameters)

    def _execute(self, query: sa.TextClause, parameters: dict[str, Any]) -> sa.CursorResult[Any]:
        self._note(query, parameters)
        return super()._execute(query, parameters)

    def _note(self, query: sa.TextClause, parameters: Mapping[str, Any]) -> None:
        seen = self._plans[NAMES[id(query)]]
        if len(seen) < ENOUGH:
            seen.append(explain(self, query, parameters))


class ExplainedDatabase(Database):
    """The store as the runtime role sees it, with the plans of what it is asked."""

    _plans: dict[str, list[Plan]] = PrivateAttr(default_factory=lambda: defaultdict(list))

    @contextmanager
    def tenant(self, user_id: UUID, *, exclusive: bool = False) -> Iterator[TenantTransaction]:
        with super().tenant(user_id, exclusive=exclusive) as tx:
            yield ExplainedTransaction(tx, self._plans)

    def taken(self) -> Night:
        """The plans since the last time."""
        plans, self._plans = dict(self._plans), defaultdict(list)
        return plans


# The rows of a store

LARGE, ONE_GROUP, SMALL = "acme", "casco", "borea"
SMALL_ONES = [SMALL, *(f"small-{number:02}" for number in range(17))]
OTHERS = [f"other-{number:02}" for number in range(18)]

AXES = """
CREATE TABLE axes AS
SELECT axis, CAST(array_agg(CAST(place = axis AS integer) ORDER BY place) AS vector) AS embedding
FROM generate_series(1, 260) AS axis, generate_series(1, 1536) AS place GROUP BY axis
"""

# Spread over so many groups of type, scope and project; in one of them so many follow each other
# with the same vector. One in 27 is stale, a few are superseded or archived.
MEMORIES = """
INSERT INTO memories (user_id, memory_type, topic, content, scope, project, status, embedding,
    content_hash, valid_from, valid_to, recorded_at, created_at, updated_at)
SELECT t.user_id,
    (ARRAY['fact', 'decision', 'preference', 'blocker', 'note', 'event', 'commitment', 'fact'])
    [1 + g % 8],
    'topic ' || n, 'memory ' || n || repeat(' of what was said', 4), 'scope ' || g / 8 % 10,
    CASE WHEN g / 80 > 0 THEN 'project ' || g / 80 END,
    CASE s.state WHEN 'archived' THEN 'archived' ELSE 'active' END,
    a.embedding, md5(t.slug || n), d.created, CASE s.state WHEN 'superseded' THEN d.updated END,
    d.created, d.created, d.updated
FROM tenants AS t
CROSS JOIN generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
CROSS JOIN LATERAL (SELECT n % :groups AS g) AS of_group
CROSS JOIN LATERAL (SELECT CASE
    WHEN CAST(:state AS text) = 'fresh' THEN 'fresh'
    WHEN :state = 'ended' THEN (ARRAY['superseded', 'archived'])[1 + n % 2]
    WHEN n % 27 = 0 THEN 'stale'
    WHEN n / 7 % 10 = 3 THEN 'superseded'
    WHEN n / 11 % 20 = 5 THEN 'archived'
    ELSE 'fresh' END AS state) AS s
CROSS JOIN LATERAL (SELECT
    CAST(:end AS timestamptz) - make_interval(days => 200 + n % 100, secs => n) AS created,
    CAST(:end AS timestamptz) - make_interval(
        days => CASE s.state WHEN 'stale' THEN 40 + n % 150 ELSE 1 + n % 28 END, secs => n
    ) AS updated) AS d
LEFT JOIN axes AS a ON n % 9 < 5 AND a.axis = 1 + n / :groups / :alike
WHERE t.slug = ANY(:slugs)
ORDER BY hashint4(n)
"""

EMBEDDING_MODELS = """
INSERT INTO forgetting.embedding_models (user_id, memory_id, embedding_model)
SELECT user_id, id, 'test-embedding' FROM memories WHERE embedding IS NOT NULL
ON CONFLICT DO NOTHING
"""

# One in 500 is due, or what else :rare says; the rest is credited, used, recent, archived or kept.
EVIDENCE = """
INSERT INTO evidence (user_id, session_id, kind, content, occurred_at, recorded_at, success_count,
    reinforcement_count, last_retrieved_at, archived_at, archived_run_date)
SELECT t.user_id, 'session',
    CASE s.state WHEN 'kept' THEN 'lesson' ELSE
        (ARRAY['trace', 'log', 'tool_input', 'tool_output', 'step_outcome'])[1 + n % 5] END,
    'GET /health 200 in ' || n || ' ms', d.occurred, d.occurred,
    CAST(s.state = 'credited' AS integer), CAST(s.state = 'reinforced' AS integer),
    CASE s.state WHEN 'used' THEN CAST(:end AS timestamptz) - INTERVAL '2 days' END,
    CASE s.state WHEN 'archived' THEN CAST(:end AS timestamptz) - make_interval(days => n % 60) END,
    CASE s.state WHEN 'archived' THEN CAST(:day AS date) - 1 - n % 60 END
FROM tenants AS t
CROSS JOIN generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
CROSS JOIN LATERAL (SELECT CASE WHEN n % 500 = 7 THEN CAST(:rare AS text) ELSE
    (ARRAY['credited', 'reinforced', 'used', 'recent', 'archived', 'kept', 'credited', 'recent'])
    [1 + n % 8] END AS state) AS s
CROSS JOIN LATERAL (SELECT CAST(:end AS timestamptz) - make_interval(
    days => CASE s.state WHEN 'recent' THEN 1 + n % 5 ELSE 70 + n % 300 END) AS occurred) AS d
WHERE t.slug = ANY(:slugs)
ORDER BY hashint4(n)
"""

CITATIONS = """
INSERT INTO memory_evidence (user_id, memory_id, evidence_id)
SELECT m.user_id, m.id, e.id
FROM (SELECT user_id, id, row_number() OVER (PARTITION BY user_id ORDER BY content_hash) AS place
    FROM memories) AS m
INNER JOIN (SELECT user_id, id, row_number() OVER (PARTITION BY user_id ORDER BY id) AS place
    FROM evidence WHERE archived_at IS NULL) AS e USING (user_id, place)
INNER JOIN tenants AS t USING (user_id)
WHERE t.slug = ANY(:slugs) AND m.place % 3 = 0
"""

# Verdicts of earlier days. They settle the stale memories and the pairs, all but one in 20; those
# on fresh memories are older than what they are about.
VERDICTS = """
INSERT INTO forgetting.judged_verdicts (run_date, user_id, kind, memory_id, newer_id, memory_type,
    verdict, related_memory_id, answer_key, probability, probabilities, model, answer_model,
    input_digest, memory_content_hash, memory_freshness, judged_at)
SELECT CAST(:day AS date) - CAST(1 + place % 60 AS integer), user_id,
    CASE WHEN newer_id IS NULL THEN 'single' ELSE 'pair' END, id, newer_id, memory_type,
    CASE WHEN place % 3 = 0 THEN 'keep' WHEN newer_id IS NULL THEN 'archive' ELSE 'supersede' END,
    CASE WHEN place % 3 > 0 THEN newer_id END, 'key', 0.95, '{}', :model, :model,
    encode(sha256(uuid_send(uuidv7())), 'hex'), content_hash, updated_at,
    CAST(:end AS timestamptz) - make_interval(hours => 12, days => CAST(days_ago AS integer))
FROM (
    SELECT m.*, CAST(NULL AS uuid) AS newer_id, 0 AS days_ago, row_number() OVER () AS place
    FROM memories AS m WHERE CAST(:on AS text) = 'stale'
    AND m.updated_at < CAST(:end AS timestamptz) - INTERVAL '30 days'
    UNION ALL
    SELECT m.*, s.newer_id, 0, row_number() OVER ()
    FROM forgetting.similar_pairs AS s
    INNER JOIN memories AS m ON s.user_id = m.user_id AND s.older_id = m.id
    WHERE :on = 'pairs'
    UNION ALL
    SELECT m.*, NULL, 30 + row_number() OVER () % 300,
        dense_rank() OVER (PARTITION BY m.user_id ORDER BY m.content_hash)
    FROM memories AS m CROSS JOIN generate_series(1, :times) WHERE :on = 'fresh'
    AND m.updated_at > CAST(:end AS timestamptz) - INTERVAL '29 days'
) AS judged
INNER JOIN tenants AS t USING (user_id)
WHERE t.slug = ANY(:slugs) AND memory_type IN ('decision', 'preference', 'fact')
AND CASE :on WHEN 'fresh' THEN place <= :count ELSE place % 20 > 0 END
"""

# What a human decided: few wait, some were rejected or applied, most never came up.
PROPOSALS = """
INSERT INTO retention_proposals (id, user_id, memory_id, action, related_memory_id, probability,
    probabilities, model, status, decided_at, created_at)
SELECT id, user_id, memory_id, verdict, related_memory_id, probability, probabilities, model,
    CASE WHEN verdict = 'keep' THEN 'dismissed' WHEN place % 10 = 1 THEN 'rejected'
    WHEN place % 100 = 3 THEN 'applied' WHEN place % 10 = 4 AND place <= :waiting THEN 'proposed'
    ELSE 'dismissed' END, judged_at + INTERVAL '1 hour', judged_at
FROM (SELECT v.*, row_number() OVER (PARTITION BY v.user_id, v.kind ORDER BY v.id) AS place
    FROM forgetting.judged_verdicts AS v) AS v
INNER JOIN tenants AS t USING (user_id)
WHERE t.slug = ANY(:slugs)
ON CONFLICT DO NOTHING
"""

EDGES = """
INSERT INTO memory_edges (user_id, from_id, to_id, edge_type, created_by)
SELECT user_id, id, other_id, 'updates', 'test'
FROM (SELECT user_id, id, lead(id) OVER beside AS other_id, row_number() OVER beside AS place
    FROM memories WINDOW beside AS (PARTITION BY user_id ORDER BY content_hash)) AS m
INNER JOIN tenants AS t USING (user_id)
WHERE t.slug = ANY(:slugs) AND place % 6 = 0 AND other_id IS NOT NULL
"""

CONSOLIDATIONS = """
INSERT INTO consolidation_proposals (user_id, from_id, to_id, edge_type, memory_type, similarity,
    status)
SELECT e.user_id, e.to_id, e.from_id, 'updates', 'fact', 0.9, 'rejected'
FROM memory_edges AS e INNER JOIN tenants AS t USING (user_id) WHERE t.slug = ANY(:slugs)
"""

SWEPT = """
INSERT INTO forgetting.archival_sweep (run_date, user_id, evidence_id, kind, occurred_at,
    success_count, reinforcement_count, content_sha256, due_before, archived_at)
SELECT archived_run_date, user_id, id, kind, occurred_at, 0, 0,
    encode(sha256(convert_to(content, 'UTF8')), 'hex'), archived_at, archived_at
FROM evidence INNER JOIN tenants AS t USING (user_id)
WHERE t.slug = ANY(:slugs) AND archived_at IS NOT NULL
ON CONFLICT DO NOTHING
"""

USAGE = """
INSERT INTO llm_usage (user_id, operation, model, input_tokens, output_tokens, cost_usd, created_at)
SELECT user_id, 'memory.forget.decide', :model, 1000, 10, 0.001,
    CAST(:end AS timestamptz) - make_interval(hours => 3 * n)
FROM tenants, generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
WHERE slug = ANY(:slugs)
"""

PAST_SINGLES = """
INSERT INTO forgetting.stale_candidates (run_date, user_id, rank, memory_id, memory_type, freshness,
    in_pair, newer_ids, newer_similarities)
SELECT CAST(:day AS date) - n, user_id, place, id, memory_type, updated_at, FALSE, '{}', '{}'
FROM (SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY content_hash) AS place
    FROM memories WHERE memory_type IN ('decision', 'fact')) AS m
INNER JOIN tenants AS t USING (user_id)
CROSS JOIN generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
WHERE t.slug = ANY(:slugs) AND place <= :count
"""

PAST_PAIRS = """
INSERT INTO forgetting.conflict_pairs (run_date, user_id, rank, older_id, newer_id, memory_type,
    similarity, older_is_stale, embedding_model, floor)
SELECT CAST(:day AS date) - n, user_id, place, older_id, newer_id, 'fact', similarity, TRUE,
    embedding_model, 0.8
FROM (SELECT *, row_number() OVER (PARTITION BY user_id) AS place FROM (
    SELECT DISTINCT ON (user_id, older_id) * FROM (
        SELECT DISTINCT ON (user_id, newer_id) * FROM forgetting.similar_pairs) AS newer) AS older
) AS s
INNER JOIN tenants AS t USING (user_id)
CROSS JOIN generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
WHERE t.slug = ANY(:slugs) AND place <= :count
"""

PAST_RESULTS = """
INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed, reasons,
    run_id, checked_at)
SELECT CAST(:day AS date) - n, user_id, asset, 'check', TRUE, '[]', 'run ' || n, :end
FROM tenants, unnest(ARRAY['one', 'two', 'three', 'four', 'five']) AS asset,
    generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n
WHERE slug = ANY(:slugs)
"""

# What a day leaves: some memories were reviewed, a few were embedded again.
REVIEWED = """
UPDATE memories SET last_reviewed_at = CAST(:end AS timestamptz) - INTERVAL '2 hours'
WHERE id IN (SELECT m.id FROM memories AS m INNER JOIN tenants AS t USING (user_id)
    WHERE t.slug = :slug AND m.memory_type = 'fact' AND m.embedding IS NOT NULL
    AND m.status = 'active' AND m.valid_to IS NULL ORDER BY m.content_hash LIMIT 20)
"""
EMBEDDED_AGAIN = """
UPDATE memories SET topic = 'embedded again', embedding = a.embedding
FROM axes AS a
WHERE a.axis = 2 AND id IN (SELECT m.id FROM memories AS m INNER JOIN tenants AS t USING (user_id)
    WHERE t.slug = :slug AND m.memory_type = 'fact' AND m.embedding <> a.embedding
    AND m.status = 'active' AND m.valid_to IS NULL ORDER BY m.content_hash DESC LIMIT 5)
"""

DETERMINISTIC = """
DO $$
DECLARE
    each regclass;
BEGIN
    FOR each IN SELECT oid FROM pg_class WHERE relkind = 'r'
        AND relnamespace IN ('public'::regnamespace, 'forgetting'::regnamespace)
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', each);
    END LOOP;
END
$$
"""


def fill(store: Store, statement: str, **parameters: Any) -> None:
    """Run one of the statements above; it takes those of the parameters that it names."""
    known = {"day": DAY, "end": ago(0), "model": MODEL, "first": 1, "count": 0, "times": 1}
    known |= parameters
    named = {name: value for name, value in known.items() if f":{name}" in statement}
    with store.owner.begin() as connection:
        # Without triggers and foreign keys, which would take longer than the rows.
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(sa.text(statement), named)


def maintain(store: Store, statement: str = "VACUUM (ANALYZE)") -> None:
    """What autovacuum, which is off in these databases, would have done."""
    with store.owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)


def import_memories(store: Store) -> None:
    """A store that no pass ever saw."""
    store.execute(DETERMINISTIC)
    store.execute(AXES)
    for slug in (LARGE, ONE_GROUP, *SMALL_ONES):
        store.tenant(slug)
    fill(store, MEMORIES, slugs=[LARGE], last=8000, groups=480, alike=6, state="mixed")
    fill(store, MEMORIES, slugs=[ONE_GROUP], last=1500, groups=1, alike=6, state="mixed")
    fill(store, MEMORIES, slugs=SMALL_ONES, last=640, groups=48, alike=3, state="mixed")
    fill(store, EMBEDDING_MODELS)
    fill(store, EVIDENCE, slugs=[LARGE], last=30_000, rare="due")
    fill(store, EVIDENCE, slugs=[ONE_GROUP, *SMALL_ONES], last=1000, rare="due")
    maintain(store, "VACUUM (ANALYZE) memories, evidence, forgetting.embedding_models")
    fill(store, CITATIONS, slugs=[LARGE, ONE_GROUP, *SMALL_ONES])
    maintain(store, "VACUUM (ANALYZE) memory_evidence")


def live_on(store: Store) -> None:
    """Nights and decisions of the past, for everybody."""
    everybody = [LARGE, ONE_GROUP, *SMALL_ONES]
    mine(store, everybody)
    fill(store, VERDICTS, slugs=everybody, on="stale")
    fill(store, VERDICTS, slugs=everybody, on="pairs")
    fill(store, SWEPT, slugs=everybody)
    fill(store, EDGES, slugs=everybody)
    fill(store, CONSOLIDATIONS, slugs=everybody)
    grow_past(store, [LARGE], 40, waiting=100)
    grow_past(store, [ONE_GROUP, *SMALL_ONES], 5, waiting=5)


def grow_past(
    store: Store, slugs: list[str], size: int, *, first: int = 1, waiting: int = 0
) -> None:
    """What earlier nights leave behind."""
    last = first + size - 1
    fill(store, VERDICTS, slugs=slugs, on="fresh", count=40 * size, times=1 + size // 3)
    fill(store, PROPOSALS, slugs=slugs, waiting=waiting)
    fill(store, USAGE, slugs=slugs, first=100 * first, last=100 * last)
    fill(store, PAST_SINGLES, slugs=slugs, first=first, last=last, count=60)
    fill(store, PAST_PAIRS, slugs=slugs, first=first, last=last, count=40)
    fill(store, PAST_RESULTS, slugs=slugs, first=first, last=last)


def mine(store: Store, slugs: list[str]) -> None:
    """Mine what there is, once no transaction of another test is older than it."""
    newest = "SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint) AS xid"
    oldest = "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS xid"
    (written,) = store.rows(newest)
    for _ in range(3000):
        if store.rows(oldest)[0]["xid"] > written["xid"]:
            break
        time.sleep(0.02)
    else:
        pytest.fail("a transaction of another test does not end")
    for slug in slugs:
        user_id = store.partition(slug).user_id
        with Database.tenant(store.database, user_id, exclusive=True) as tx:
            mining.update(tx, slug, make_policy().conflict_floors, TODAY)


# Worlds: databases in which one night passed


@dataclass(frozen=True)
class Size:
    """How much a tenant has and what of it concerned the night, counted past the statements."""

    counted: Mapping[str, int]

    def __getattr__(self, name: str) -> int:
        return self.counted[name]


COUNTS = {
    "memories": "SELECT count(*) FROM memories WHERE user_id = :user_id",
    "live": """SELECT count(*) FROM memories
        WHERE user_id = :user_id AND status = 'active' AND valid_to IS NULL""",
    "stale": """SELECT count(*) FROM memories
        WHERE user_id = :user_id AND status = 'active' AND valid_to IS NULL
        AND memory_type IN ('decision', 'preference', 'blocker', 'fact')
        AND greatest(updated_at, last_reviewed_at) < CAST(:end AS timestamptz) - INTERVAL '30 days'
        """,
    "models": "SELECT count(*) FROM forgetting.embedding_models WHERE user_id = :user_id",
    "mined": "SELECT count(*) FROM forgetting.mined_memories WHERE user_id = :user_id",
    "similar": "SELECT count(*) FROM forgetting.similar_pairs WHERE user_id = :user_id",
    "edges": "SELECT count(*) FROM memory_edges WHERE user_id = :user_id",
    "consolidations": "SELECT count(*) FROM consolidation_proposals WHERE user_id = :user_id",
    "verdicts": "SELECT count(*) FROM forgetting.judged_verdicts WHERE user_id = :user_id",
    "proposals": "SELECT count(*) FROM retention_proposals WHERE user_id = :user_id",
    "open": """SELECT count(*) FROM retention_proposals
        WHERE user_id = :user_id AND status = 'proposed'""",
    "applied": """SELECT count(*) FROM retention_proposals
        WHERE user_id = :user_id AND status = 'applied'""",
    "pairs": """SELECT count(*) FROM forgetting.conflict_pairs
        WHERE user_id = :user_id AND run_date = :day""",
    "singles": """SELECT count(*) FROM forgetting.stale_candidates
        WHERE user_id = :user_id AND run_date = :day""",
    "judged": """SELECT count(*) FROM forgetting.judged_verdicts
        WHERE user_id = :user_id AND run_date = :day""",
    "swept": """SELECT count(*) FROM forgetting.archival_sweep
        WHERE user_id = :user_id AND run_date = :day""",
    "due": """SELECT count(*) FROM evidence
        WHERE user_id = :user_id AND coalesce(archived_run_date, :day) = :day
        AND success_count = 0 AND reinforcement_count = 0
        AND kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome')
        AND greatest(occurred_at, last_retrieved_at)
        < CAST(:end AS timestamptz) - INTERVAL '7 days'""",
    "evidence": "SELECT count(*) FROM evidence WHERE user_id = :user_id",
    "used_lately": """SELECT count(*) FROM llm_usage
        WHERE user_id = :user_id AND created_at >= CAST(:now AS timestamptz) - INTERVAL '30 days'
        """,
    "written": """SELECT count(*) FROM memories
        WHERE user_id = :user_id AND (last_reviewed_at IS NOT NULL OR topic = 'embedded again')""",
    "in_mined_groups": """SELECT count(*) FROM forgetting.mined_memories
        WHERE user_id = :user_id AND group_key IN (SELECT k.group_key
            FROM forgetting.mined_memories AS k INNER JOIN memories AS m ON k.memory_id = m.id
            WHERE m.user_id = :user_id AND m.topic = 'embedded again')""",
    "newly_similar": """SELECT count(*) FROM forgetting.similar_pairs AS s
        INNER JOIN memories AS m ON s.user_id = m.user_id AND m.id IN (s.older_id, s.newer_id)
        WHERE s.user_id = :user_id AND m.topic = 'embedded again'""",
    "cited_by_waiting": """SELECT count(*) FROM memory_evidence AS e
        INNER JOIN forgetting.waiting_memories AS w USING (user_id, memory_id)
        WHERE e.user_id = :user_id""",
}


@dataclass(frozen=True)
class World:
    """A database after its night: what ran in it, by tenant, and how large the tenants are."""

    nights: Mapping[str, Night]
    sizes: Mapping[str, Size]
    again: Night
    """The sweep of the large tenant once more, when nothing was due."""
    totals: Mapping[str, int]
    """Rows of each table, those of all tenants."""
    pages: Mapping[str, int]
    """Pages of each table, without those of the vectors."""


def spend(store: Store, slugs: list[str]) -> World:
    """Let the partition of DAY run for each tenant, with the looks of all checks."""
    database = store.database
    assert isinstance(database, ExplainedDatabase)
    nights: dict[str, Night] = {}
    for slug in slugs:
        partition = store.partition(slug)
        done = Pass(store, TestJudge.that(answer), make_policy(blast_radius=1.0))
        done.run(partition)
        done.sweep(partition)
        health.record(database, partition, done.policy, TODAY)
        look(database, partition)
        nights[slug] = database.taken()
    sizes = {slug: Size(count(store, slug)) for slug in slugs}
    maintain(store, "VACUUM evidence")
    Pass(store).sweep(store.partition(slugs[0]))
    totals, pages = measure(store)
    return World(nights, sizes, database.taken(), totals, pages)


def look(database: Database, partition: Partition) -> None:
    """Look for violations as the checks do, and keep the result."""
    radius = {"bound": 0.4, "least": 20}
    with database.tenant(partition.user_id) as tx:
        for name in invariant.QUERIES:
            if name.startswith(("collapse_in_", "losses_of_")):
                assert invariant.violations(tx, partition, name) == []
        invariant.violations(tx, partition, "scopes_over_blast_radius", **radius)
    invariant.record(database, partition, "asset", "check", [], run_id="run", checked_at=TODAY)
    invariant.results(database, partition, "run")


def count(store: Store, slug: str) -> dict[str, int]:
    """Every figure of COUNTS."""
    bound = {"user_id": store.partition(slug).user_id, "day": DAY, "end": ago(0), "now": TODAY}
    found = {}
    for name, query in COUNTS.items():
        named = {key: value for key, value in bound.items() if f":{key}" in query}
        (row,) = store.rows(query, **named)
        found[name] = row["count"]
    return found


def measure(store: Store) -> tuple[dict[str, int], dict[str, int]]:
    """Rows and pages of the tables."""
    tables = store.rows(
        "SELECT relname, CAST(CAST(oid AS regclass) AS text) AS name,"
        " pg_relation_size(oid) / 8192 AS pages FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace IN ('public'::regnamespace, 'forgetting'::regnamespace)"
    )
    pages = {table["relname"]: table["pages"] for table in tables}
    totals = {}
    for table in tables:
        (row,) = store.rows(f"SELECT count(*) FROM {table['name']}")
        totals[table["relname"]] = row["count"]
    return totals, pages


def answer(item: dict[str, Any], keys: list[str]) -> object:
    """Archive, supersede, contradict and keep in turns, where it is offered."""
    turn = int(re.sub(r"\D", "", item["ref"]) or 0) % 4
    wanted = ("archive", "supersede", "conflict", "keep")[turn]
    return choose(next((key for key in keys if key.startswith(wanted)), keys[0]), keys)


class Databases:
    """Databases of this module: made from one another, dropped at its end."""

    def __init__(self, admin: sa.URL) -> None:
        self._admin = admin
        self._prefix = f"plans_{uuid.uuid4().hex[:8]}"
        self._pool = engine(admin).execution_options(isolation_level="AUTOCOMMIT")
        self._names: list[str] = []

    def create(self, name: str, template: str | None = None) -> Store:
        """A copy of another database of these, or of the migrated template."""
        made, source = f"{self._prefix}_{name}", f"{self._prefix}_{template}"
        self._names.append(made)
        with self._pool.connect() as connection:
            connection.exec_driver_sql(
                f"CREATE DATABASE {made} TEMPLATE {source if template else TEMPLATE} "
                "STRATEGY file_copy"
            )
        owner = self._admin.set(database=made)
        runtime = owner.set(username=RUNTIME_ROLE).render_as_string(hide_password=False)
        return Store(ExplainedDatabase(url=runtime).connect(), engine(owner))

    def leave(self, store: Store) -> None:
        """Close its connections, so that it can be copied."""
        store.database.close()
        store.owner.dispose()

    def drop(self) -> None:
        """Drop them all."""
        with self._pool.connect() as connection:
            for name in self._names:
                connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._pool.dispose()


@pytest.fixture(scope="module")
def databases(admin_url: sa.URL) -> Iterator[Databases]:
    """An imported store and, made from it, one with a past."""
    databases = Databases(admin_url)
    try:
        store = databases.create("imported")
        import_memories(store)
        databases.leave(store)
        store = databases.create("lived", "imported")
        live_on(store)
        databases.leave(store)
        yield databases
    finally:
        databases.drop()


def night_of(
    databases: Databases, name: str, grow: Callable[[Store], None], slugs: list[str]
) -> World:
    """A world with a past that grew by something, and the night after it."""
    store = databases.create(name, "lived")
    grow(store)
    maintain(store)
    for slug in slugs:
        fill(store, REVIEWED, slug=slug)
        fill(store, EMBEDDED_AGAIN, slug=slug)
    world = spend(store, slugs)
    databases.leave(store)
    return world


def grow_nothing(_store: Store) -> None:
    """As it is."""


def grow_others(store: Store) -> None:
    """As many small tenants again, with a past of their own."""
    for slug in OTHERS:
        store.tenant(slug)
    fill(store, MEMORIES, slugs=OTHERS, last=640, groups=48, alike=3, state="mixed")
    fill(store, EMBEDDING_MODELS)
    fill(store, EVIDENCE, slugs=OTHERS, last=1000, rare="due")
    mine(store, OTHERS)
    fill(store, VERDICTS, slugs=OTHERS, on="stale")
    fill(store, VERDICTS, slugs=OTHERS, on="pairs")
    for statement in (CITATIONS, SWEPT, EDGES, CONSOLIDATIONS):
        fill(store, statement, slugs=OTHERS)
    grow_past(store, OTHERS, 5, waiting=5)


def grow_fresh(store: Store) -> None:
    """As many memories again, all fresh, of which none is similar to another."""
    fill(
        store,
        MEMORIES,
        slugs=[LARGE],
        first=48_001,
        last=56_000,
        groups=480,
        alike=1,
        state="fresh",
    )
    fill(store, EMBEDDING_MODELS)
    mine(store, [LARGE])


def grow_old(store: Store) -> None:
    """As much again of what is over: ended memories, used evidence, earlier nights."""
    fill(
        store,
        MEMORIES,
        slugs=[LARGE],
        first=96_001,
        last=104_000,
        groups=480,
        alike=1,
        state="ended",
    )
    fill(store, EMBEDDING_MODELS)
    fill(store, EVIDENCE, slugs=[LARGE], first=96_001, last=126_000, rare="credited")
    mine(store, [LARGE])
    fill(store, SWEPT, slugs=[LARGE])
    grow_past(store, [LARGE], 40, first=41)


def first_night(databases: Databases) -> World:
    """The first night of a store, before any statistics on the tables of the pass.

    Most of the evidence is due, and what the memories cite that come into the queue is among it.
    """
    store = databases.create("first", "imported")
    store.execute(
        "UPDATE evidence SET success_count = 0, reinforcement_count = 0, last_retrieved_at = NULL,"
        " archived_at = NULL, archived_run_date = NULL WHERE kind <> 'lesson'"
    )
    maintain(store, "VACUUM (ANALYZE) evidence")
    world = spend(store, [LARGE, ONE_GROUP])
    databases.leave(store)
    everything = {"written": "memories", "in_mined_groups": "mined", "newly_similar": "similar"}
    sizes = {
        slug: Size({**size.counted, **{new: size.counted[of] for new, of in everything.items()}})
        for slug, size in world.sizes.items()
    }
    return replace(world, sizes=sizes)


@pytest.fixture(scope="module")
def lived(databases: Databases) -> World:
    """A night like any other."""
    return night_of(databases, "usual", grow_nothing, [LARGE, ONE_GROUP, SMALL])


@pytest.fixture(scope="module")
def first(databases: Databases) -> World:
    """The first night of all."""
    return first_night(databases)


@pytest.fixture(scope="module", params=[grow_others, grow_fresh, grow_old])
def grown(databases: Databases, request: pytest.FixtureRequest) -> World:
    """The same night, had there been twice as much of something that is not due."""
    slugs = [LARGE, SMALL] if request.param is grow_others else [LARGE]
    return night_of(databases, request.param.__name__, request.param, slugs)


# What a statement may read


def once_a_single(size: Size) -> int:
    """The day's pairs once for each of its singles, and twice beside them: both are capped."""
    return size.pairs * size.singles + 2 * size.pairs


Bound = Callable[[Size], int]

READS: Mapping[str, Mapping[str, Bound]] = {
    # The ids of the tenant's memories: what hides some is seen by nothing else.
    "tenants.count_memories": {"memories": lambda s: s.memories},
    # The headers of the tenant's memories: what was written since is known from nothing else.
    "mining.copy_written": {
        "memories": lambda s: s.memories,
        "embedding_models": lambda s: s.models,
    },
    "mining.copy_unmined": {
        "memories": lambda s: s.written,
        "embedding_models": lambda s: s.written,
        "mined_memories": lambda s: 2 * s.written,
    },
    "mining.copy_vectors": {
        "memories": lambda s: s.written,
        "embedding_models": lambda s: s.written,
    },
    # What is mined again is compared with its groups.
    "mining.copy_codes": {"mined_memories": lambda s: s.in_mined_groups},
    "mining.insert_mined": {
        "memories": lambda s: 2 * s.written,
        "embedding_models": lambda s: 2 * s.written,
    },
    "mining.insert_pairs": {
        "memories": lambda s: 2 * s.newly_similar,
        "embedding_models": lambda s: 2 * s.newly_similar,
        "mined_memories": lambda s: s.mined + 2 * s.newly_similar,
    },
    # The tenant's similar pairs, with what is known of their sides.
    "pairs.find_due_pairs": {
        "similar_pairs": lambda s: s.similar,
        "memories": lambda s: s.memories + 2 * s.similar,
        "embedding_models": lambda s: s.models + 2 * s.similar,
        "memory_edges": lambda s: s.edges,
        "consolidation_proposals": lambda s: s.consolidations,
        "judged_verdicts": lambda s: s.verdicts + s.similar + 2 * s.open,
        "retention_proposals": lambda s: s.proposals + s.similar + 2 * s.open,
    },
    "pairs.clear_pairs": {"conflict_pairs": lambda s: s.pairs},
    "pairs.insert_pair": {},
    # The stale memories by their freshness; then, for the neighbours of those taken, the headers of
    # the tenant's live memories; and what was said of the stale ones before.
    "candidates.select_stale_singles": {
        "memories": lambda s: 2 * s.memories + 6 * s.stale + s.similar,
        "embedding_models": lambda s: 3 * s.models + s.stale + s.similar,
        "mined_memories": lambda s: 2 * s.mined,
        "similar_pairs": lambda s: s.similar,
        "judged_verdicts": lambda s: 4 * s.verdicts,
        "retention_proposals": lambda s: s.proposals + 4 * s.open,
        "conflict_pairs": lambda s: once_a_single(s),
    },
    "candidates.clear_candidates": {"stale_candidates": lambda s: s.singles},
    "candidates.insert_candidate": {},
    "verdicts.read_pairs": {"conflict_pairs": lambda s: s.pairs},
    "verdicts.read_singles": {
        "stale_candidates": lambda s: s.singles,
        "conflict_pairs": lambda s: once_a_single(s),
    },
    "verdicts.read_memories": {"memories": lambda s: 2 * s.pairs + 4 * s.singles},
    "verdicts.find_known": {"judged_verdicts": lambda s: s.judged},
    "verdicts.hold_memories": {"memories": lambda s: 2 * s.pairs + 2 * s.singles},
    "verdicts.insert_verdict": {},
    "verdicts.count_verdicts": {
        "judged_verdicts": lambda s: 4 * s.judged,
        "conflict_pairs": lambda s: once_a_single(s),
        "stale_candidates": lambda s: 4 * s.singles,
    },
    "budget.read_spend": {"llm_usage": lambda s: s.used_lately},
    "budget.insert_usage": {},
    "proposals.withdraw_overtaken": {
        "retention_proposals": lambda s: 2 * s.open,
        "judged_verdicts": lambda s: 2 * s.open,
        "memories": lambda s: 4 * s.open,
    },
    "proposals.expire_undecided": {"retention_proposals": lambda s: s.open},
    "proposals.read_unproposed": {
        "judged_verdicts": lambda s: 4 * s.judged,
        "retention_proposals": lambda s: 4 * s.judged,
        "conflict_pairs": lambda s: once_a_single(s),
        "stale_candidates": lambda s: 4 * s.singles,
    },
    "proposals.withdraw_replaced": {
        "retention_proposals": lambda s: s.open,
        "judged_verdicts": lambda s: s.open,
    },
    "proposals.find_obstacle": {
        "judged_verdicts": lambda _: 6,
        "memories": lambda _: 6,
        "retention_proposals": lambda s: 2 * s.open,
    },
    "proposals.insert_proposal": {"judged_verdicts": lambda _: 2},
    "proposals.count_partition": {
        "judged_verdicts": lambda s: s.judged,
        "retention_proposals": lambda s: 2 * s.judged,
    },
    "proposals.count_open": {"retention_proposals": lambda s: s.open},
    "tier.count_taken": {"archival_sweep": lambda s: s.swept},
    # In the order of disuse: what a batch takes, and what an open proposal protects on the way.
    "tier.find_due": {
        "evidence": lambda s: s.swept + s.cited_by_waiting,
        "archival_sweep": lambda s: s.swept,
        "memory_evidence": lambda s: 2 * s.cited_by_waiting + 2 * s.open,
        "retention_proposals": lambda s: 2 * s.open,
        "judged_verdicts": lambda s: 2 * s.open,
    },
    "tier.log_archived": {"evidence": lambda s: s.swept},
    "tier.mark_archived": {"evidence": lambda s: s.swept},
    # How the tenant's memory is doing: all of it is counted, what waits and is stale by its index.
    "health.count_memories": {"memories": lambda s: s.memories},
    "health.count_stale": {"memories": lambda s: s.stale},
    "health.count_evidence": {"evidence": lambda s: s.evidence},
    "health.count_open": {"retention_proposals": lambda s: s.open},
    "health.count_conflicts": {
        "retention_proposals": lambda s: s.open + s.applied,
        "memories": lambda s: 2 * (s.open + s.applied),
    },
    "health.count_regrets": {},
    "health.clear_health": {},
    "health.insert_health": {},
    "invariant.collapse_in_stale_candidates": {
        "stale_candidates": lambda s: s.singles,
        "memories": lambda s: 8 * s.singles,
    },
    "invariant.collapse_in_conflict_pairs": {
        "conflict_pairs": lambda s: s.pairs,
        "memories": lambda s: 4 * s.pairs,
    },
    "invariant.collapse_in_judged_verdicts": {
        "judged_verdicts": lambda s: 4 * s.judged,
        "conflict_pairs": lambda s: once_a_single(s),
        "stale_candidates": lambda s: 4 * s.singles,
        "memories": lambda s: 6 * s.judged,
    },
    # Of any partition: the queue, and what ended a memory.
    "invariant.collapse_in_retention_proposals": {
        "retention_proposals": lambda s: s.open + s.applied,
        "memories": lambda s: 4 * (s.open + s.applied),
    },
    "invariant.collapse_in_archival_sweep": {
        "evidence": lambda s: s.swept,
        "archival_sweep": lambda s: 2 * s.swept,
    },
    "invariant.losses_of_archive": {
        "archival_sweep": lambda s: s.swept,
        "evidence": lambda s: 2 * s.swept,
    },
    # A share of the live memories of a scope, so all of them are counted.
    "invariant.scopes_over_blast_radius": {
        "memories": lambda s: s.memories + 4 * s.judged,
        "judged_verdicts": lambda s: 4 * s.judged,
        "conflict_pairs": lambda s: once_a_single(s),
        "stale_candidates": lambda s: 4 * s.singles,
    },
    "invariant.insert_result": {},
    "invariant.read_results": {"invariant_results": lambda _: 10},
}
"""The most rows that each statement of a night may read of each large table."""

WHOLE = {
    "tenants.count_memories": {"memories"},
    "mining.copy_written": {"memories", "embedding_models"},
    "pairs.find_due_pairs": set(READS["pairs.find_due_pairs"]),
    "candidates.select_stale_singles": {
        "memories",
        "embedding_models",
        "mined_memories",
        "judged_verdicts",
        "retention_proposals",
    },
    "health.count_memories": {"memories"},
    "health.count_evidence": {"evidence"},
    "invariant.scopes_over_blast_radius": {"memories"},
}
"""Of which tables a statement reads all that a tenant has, by its nature or as the planner likes.

Of a tenant that has a third of a table PostgreSQL may read all of the table; of a small one not."""

GROWS = WHOLE | {
    "mining.copy_codes": {"mined_memories"},
    "health.count_conflicts": {"retention_proposals", "memories"},
    "invariant.collapse_in_retention_proposals": {"retention_proposals", "memories"},
}
"""What else grows with the tenant: its groups, and the proposals that ended a memory."""

LARGE_TABLES = {name for bounds in READS.values() for name in bounds}
"""Tables with so many rows that a plan matters."""


# The tests

TENANTS = (LARGE, ONE_GROUP, SMALL)


def plans(night: Night, name: str) -> list[Plan]:
    """The plans of a statement that ran."""
    assert night.get(name), f"{name} did not run in this night"
    return night[name]


def limits_of(world: World, slug: str, name: str, plan: Plan) -> dict[str, int]:
    """The most rows that a plan may read, by table."""
    limits = {table: bound(world.sizes[slug]) for table, bound in READS[name].items()}
    for scan in plan.scans():
        table = scan["Relation Name"]
        if slug == LARGE and "Seq Scan" in scan["Node Type"] and table in WHOLE.get(name, ()):
            limits[table] += world.totals[table]
    return limits


def excesses(world: World, slug: str, name: str) -> list[str]:
    """The plans of a statement that read more than they may, with what they read."""
    found = []
    for plan in plans(world.nights[slug], name):
        limits = limits_of(world, slug, name, plan)
        read = {table: rows for table, rows in plan.rows_read().items() if table in LARGE_TABLES}
        too_much = {
            table: f"{rows} of at most {limits.get(table, 0)}"
            for table, rows in read.items()
            # Rows a loop are rounded.
            if rows > 1.02 * limits.get(table, 0) + 5
        }
        if too_much:
            found.append(f"{slug}: {name} reads {too_much}{plan}")
    return found


def test_the_tables_are_large_enough_for_a_plan_to_matter(lived: World) -> None:
    small = {table: lived.totals[table] for table in LARGE_TABLES if lived.totals[table] < 500}
    assert not small


def test_every_statement_that_reads_a_large_table_has_a_bound(lived: World) -> None:
    unknown = {
        name: sorted(read)
        for night in lived.nights.values()
        for name, ran in night.items()
        for plan in ran
        if name not in READS and (read := LARGE_TABLES & set(plan.rows_read()))
    }
    assert not unknown


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("slug", TENANTS)
def test_a_statement_reads_no_more_than_what_is_due(lived: World, slug: str, name: str) -> None:
    """See READS: most read a few rows an item; four read what the tenant has, once or twice."""
    found = excesses(lived, slug, name)
    assert not found, found[0]


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("slug", TENANTS)
def test_no_large_table_is_read_from_end_to_end(lived: World, slug: str, name: str) -> None:
    """But for the large tenant, where a statement reads all that a tenant has anyway (WHOLE)."""
    allowed = WHOLE.get(name, set()) if slug == LARGE else set()
    for plan in plans(lived.nights[slug], name):
        whole = (plan.read_whole() & LARGE_TABLES) - allowed
        assert not whole, f"{slug}: {name} reads {whole} from end to end{plan}"


BY_ID = {"memories_pkey", "memories_user_id_id_key"}

INDEXES: Mapping[str, Mapping[str, set[str]]] = {
    "mining.copy_unmined": {
        "memories": BY_ID,
        "mined_memories": {"mined_memories_pkey"},
        "embedding_models": {"embedding_models_pkey"},
    },
    "mining.copy_vectors": {"memories": BY_ID},
    "mining.copy_codes": {"mined_memories": {"mined_memories_group_idx"}},
    "mining.insert_pairs": {"memories": BY_ID, "embedding_models": {"embedding_models_pkey"}},
    "budget.read_spend": {"llm_usage": {"llm_usage_window_idx"}},
    "proposals.expire_undecided": {
        "retention_proposals": {
            "retention_proposals_open_idx",
            "retention_proposals_open_related_idx",
            "retention_proposals_review_idx",
        }
    },
    "proposals.withdraw_replaced": {
        "retention_proposals": {
            "retention_proposals_open_idx",
            "retention_proposals_open_related_idx",
            "retention_proposals_review_idx",
        }
    },
    "proposals.count_open": {
        "retention_proposals": {
            "retention_proposals_open_idx",
            "retention_proposals_open_related_idx",
            "retention_proposals_review_idx",
        }
    },
    "tier.count_taken": {"archival_sweep": {"archival_sweep_pkey"}},
    "tier.find_due": {"evidence": {"evidence_due_idx"}},
    "tier.log_archived": {"evidence": {"evidence_pkey", "evidence_user_id_id_key"}},
    "tier.mark_archived": {"evidence": {"evidence_pkey", "evidence_user_id_id_key"}},
    "health.count_stale": {"memories": {"memories_freshness_idx"}},
    "health.count_open": {
        "retention_proposals": {
            "retention_proposals_open_idx",
            "retention_proposals_open_related_idx",
            "retention_proposals_review_idx",
        }
    },
    "invariant.collapse_in_archival_sweep": {
        "evidence": {"evidence_archived_idx"},
        "archival_sweep": {"archival_sweep_pkey"},
    },
    "invariant.losses_of_archive": {
        "archival_sweep": {"archival_sweep_pkey"},
        "evidence": {"evidence_pkey", "evidence_user_id_id_key"},
    },
    "invariant.read_results": {"invariant_results": {"invariant_results_partition_idx"}},
}


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("slug", TENANTS)
def test_a_table_is_reached_by_the_index_made_for_it(lived: World, slug: str, name: str) -> None:
    for plan in plans(lived.nights[slug], name):
        for table, made in INDEXES[name].items():
            used = plan.indexes(table)
            assert used, f"{slug}: {name} reaches {table} by no index{plan}"
            assert used <= made, f"{slug}: {name} reaches {table} by {used - made}{plan}"


@pytest.mark.parametrize("slug", TENANTS)
def test_stale_memories_are_found_by_their_freshness_and_nothing_fresh_is_read_for_it(
    lived: World, slug: str
) -> None:
    (plan,) = plans(lived.nights[slug], "candidates.select_stale_singles")
    scans = [
        scan
        for scan in plan.scans("memories")
        if "memories_freshness_idx" in Plan(scan).indexes("memories")
    ]
    assert len(scans) == 1, f"{slug} is not looked through by freshness once{plan}"
    assert _rows(scans[0]) == lived.sizes[slug].stale, str(plan)


@pytest.mark.parametrize("slug", TENANTS)
def test_what_was_written_is_found_in_headers_of_rows_and_no_vector_is_read(
    lived: World, slug: str
) -> None:
    """A vector is kept beside its row, on pages of its own: two or three for each."""
    size = lived.sizes[slug]
    whole = lived.pages["memories"] + lived.pages["embedding_models"]
    most = min(whole, size.memories + size.models) + 100
    for plan in plans(lived.nights[slug], "mining.copy_written"):
        assert plan.pages <= most, f"{slug}: {plan.pages} of at most {most} pages{plan}"
        assert plan.pages + 2 * size.models > most, "vectors that were read would not be seen"


@pytest.mark.parametrize("slug", TENANTS)
def test_known_verdicts_are_probed_one_by_one(lived: World, slug: str) -> None:
    """Pages, as rows do not show an index that is gone through for want of its leading column."""
    (plan,) = plans(lived.nights[slug], "verdicts.find_known")
    most = 5 * lived.sizes[slug].judged + 10
    assert plan.pages <= most, f"{slug}: {plan.pages} of at most {most} pages{plan}"


def test_a_sweep_with_nothing_due_is_a_probe_of_the_index(lived: World) -> None:
    (plan,) = plans(lived.again, "tier.find_due")
    assert set(+plan.rows_read()) == {"tenants"}, str(plan)
    assert plan.indexes("evidence") == {"evidence_due_idx"}, str(plan)
    assert plan.pages <= 10, f"{plan.pages} pages{plan}"


@pytest.mark.parametrize("slug", TENANTS)
def test_pairs_are_found_by_their_ids_and_no_group_is_joined_with_itself(
    lived: World, slug: str
) -> None:
    """Reads the tenant's similar pairs and what it knows of their sides, each a few times.

    The group of one tenant here has all its memories: joined with itself it would be their square.
    """
    (plan,) = plans(lived.nights[slug], "pairs.find_due_pairs")
    size = lived.sizes[slug]
    known = size.similar + size.memories + size.models + size.edges + size.consolidations
    most = 12 * (known + size.verdicts + size.proposals) + sum(
        lived.totals[table] for table in plan.read_whole() & LARGE_TABLES if slug == LARGE
    )
    assert plan.rows_handled <= most, f"{slug}: {plan.rows_handled} of at most {most} rows{plan}"


# What is not due


@pytest.mark.parametrize("name", READS)
def test_rows_read_do_not_grow_with_what_is_not_due(lived: World, grown: World, name: str) -> None:
    """Neither with other tenants nor with fresh memories, ended ones, used evidence or old nights.

    What a statement reads of the tenant as a whole (GROWS) does, and for that the bounds must hold.
    """
    for slug, night in grown.nights.items():
        if name not in night or name not in lived.nights[slug]:
            continue
        found = excesses(grown, slug, name)
        assert not found, found[0]
        before = max(plans(lived.nights[slug], name), key=lambda plan: plan.rows_read().total())
        after = max(plans(night, name), key=lambda plan: plan.rows_read().total())
        whole = GROWS.get(name, set())
        more = {
            table: f"{before.rows_read()[table]} before, {rows} now"
            for table, rows in after.rows_read().items()
            if table in LARGE_TABLES - whole and rows > before.rows_read()[table] + 30
        }
        assert not more, f"{slug}: {name} reads more: {more}{before}\nand now{after}"
        if not whole:
            # Where rows lie is chance: one may cost a page of its table, and two of an index.
            most = max(1.5 * before.pages, 3 * after.rows_read().total()) + 100
            assert after.pages <= most, f"{slug}: {name} reads more pages{before}\nand now{after}"


# The first night


@pytest.mark.parametrize("name", [name for name, bounds in READS.items() if bounds])
@pytest.mark.parametrize("slug", [LARGE, ONE_GROUP])
def test_a_first_night_has_no_loop_over_all_in_a_loop_over_all(
    first: World, slug: str, name: str
) -> None:
    """The pass selects from what it has just written, of which PostgreSQL knows nothing yet.

    Rows handled are a small multiple of those that may be read. Beside them each single taken is
    compared with the newer memories of its type and scope.
    """
    if name not in first.nights[slug]:
        pytest.skip("a first night has no use for it")
    size = first.sizes[slug]
    compared = size.singles * size.models if name == "candidates.select_stale_singles" else 0
    for plan in plans(first.nights[slug], name):
        most = 12 * sum(limits_of(first, slug, name, plan).values()) + 3 * compared + 100
        assert plan.rows_handled <= most, (
            f"{slug}: {name} handles {plan.rows_handled} of at most {most} rows{plan}"
        )
