"""What the archival sweep costs: `make bench-sweep`.

Tenants with 1,000 to 1,000,000 hot entries: a sweep that finds nothing due, a sweep of 500 when
almost all is due, and two bad cases. What counts are rows and pages, which no machine changes.
Writes docs/benchmarks/sweep.md, and exits with 1 when a bar is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from eval.bench import common
from eval.bench.common import execute, say
from forgetting_assets.partition import Partition, of_day
from forgetting_assets.store import tenants, tier
from resources.addresses import RUNTIME_ROLE
from resources.database import Database, engine
from resources.policy import Policy

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BAD = 100_000
CITED = 20
DAY = date(2026, 8, 31)
END = datetime(2026, 9, 1, tzinfo=UTC)
NOW = END + timedelta(hours=12)
POLICY = Policy()

ROWS_BAR = 4
"""Rows read an archived entry at the largest size, beside what protection makes it pass over."""
EMPTY_BAR = 20
"""Pages of a sweep that finds nothing due, at any size."""

IDLE, BACKLOG, IMPORTED, REVIVED, SMALL = "idle", "backlog", "imported", "revived", "small"


@dataclass(frozen=True)
class Scan:
    """A node of find_due's plan that reads a table."""

    node: str
    rows: int
    dropped: int
    pages: int


@dataclass(frozen=True)
class Measure:
    """One sweep: ``entries`` are hot, ``passed`` of them stand before the last archived and stay.

    ``pages`` are those of find_due, ``all_pages`` those of the sweep, its commit included.
    """

    entries: int
    archived: int
    passed: int
    scans: list[Scan]
    pages: int
    all_pages: int
    seconds: float

    @property
    def rows(self) -> int:
        """Rows that find_due read, of all tables."""
        return sum(scan.rows + scan.dropped for scan in self.scans)

    @property
    def pages_an_entry(self) -> float:
        """Pages of the sweep for each entry that it archived, or for none at all."""
        return self.all_pages / max(1, self.archived)


@dataclass(frozen=True)
class Size:
    """The measures of one size: nothing due, 500 of a backlog, and the next 500 a night later."""

    empty: Measure
    batch: Measure
    next_batch: Measure


def main() -> None:
    """Measure, print, write the report, and say by the exit code whether each bar holds."""
    with common.server() as server:
        # Nobody else may read pages of a database while a sweep's are counted.
        execute(server, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        sizes = [size(common.database(server, f"bench_{n}"), n) for n in SIZES]
        bad = bad_cases(common.database(server, "bench_bad"))
        with engine(server).connect() as connection:
            software = connection.exec_driver_sql("SHOW server_version").scalar_one()
    Console(width=120).print(table(sizes, bad))
    bars = list(targets(sizes))
    say("\n" + "\n".join(says for says, _ in bars))
    common.write("sweep.md", render(sizes, bad, software, bars))
    sys.exit(0 if all(reached for _, reached in bars) else 1)


def size(admin: sa.URL, entries: int) -> Size:
    """Every measure of one size, on two tenants that stand in one table."""
    say(f"{entries:,} hot entries: loading")
    with engine(admin).begin() as connection:
        fill(connection, (IDLE, BACKLOG), entries)
        connection.execute(sa.text(CITE), {"cited": CITED, "slug": BACKLOG, "at": END})
    tidy(admin)
    with store(admin) as measured:
        return Size(
            empty=measured.sweep(IDLE),
            batch=measured.sweep(BACKLOG),
            next_batch=measured.sweep(BACKLOG, nights=1),
        )


def bad_cases(admin: sa.URL) -> dict[str, Measure]:
    """Tenants of which everything is old and unused, and nothing may be archived yet."""
    say(f"{BAD:,} hot entries, bad cases: loading")
    with engine(admin).begin() as connection:
        fill(connection, (IMPORTED, REVIVED), BAD)
    tidy(admin)
    with store(admin) as measured:
        return {slug: measured.sweep(slug) for slug in (IMPORTED, REVIVED)}


# Rows

# Two tenants entry by entry, in no order of time: what is due is spread over the whole table.
EVIDENCE = f"""
INSERT INTO evidence (user_id, session_id, kind, content, occurred_at, recorded_at, success_count,
    last_retrieved_at)
SELECT
    t.user_id,
    'session-' || n / 50,
    CASE WHEN h % 20 = 0 THEN 'lesson' ELSE
        (ARRAY['trace', 'log', 'tool_input', 'tool_output', 'step_outcome'])[1 + h % 5] END,
    format('{{"level": "info", "step": %s, "span": "%s", "message": "%s", "millis": %s}}', n,
        md5(CAST(n AS text)), repeat('GET /v1/items/' || h % 977 || ' 200 ', 4), h % 4000),
    d.occurred,
    CASE WHEN t.slug = '{IMPORTED}' THEN CAST(:end AS timestamptz) + INTERVAL '6 hours'
        ELSE d.occurred END,
    CAST(h / 20 % 10 = 0 AND t.slug <> '{REVIVED}' AS integer),
    CASE WHEN t.slug = '{IDLE}' OR (h / 200 % 10 = 0 AND t.slug = '{BACKLOG}')
        THEN CAST(:end AS timestamptz) - make_interval(secs => h % 500000) END
FROM generate_series(1, :entries) AS n
CROSS JOIN tenants AS t
CROSS JOIN LATERAL (SELECT abs(CAST(hashint4(n) AS bigint)) AS h) AS hashed
CROSS JOIN LATERAL (SELECT
    CAST(:end AS timestamptz) - INTERVAL '10 days' - make_interval(secs => h % 30000000) AS occurred
) AS d
WHERE t.slug = ANY(:slugs)
"""
REVIVALS = f"""
INSERT INTO forgetting.revivals (user_id, evidence_id, revived_at, archived_run_date, reason)
SELECT e.user_id, e.id, CAST(:end AS timestamptz) - INTERVAL '2 days', CAST(:day AS date) - 30,
    CASE t.slug WHEN '{REVIVED}' THEN 'unforget' ELSE 'asked' END
FROM evidence AS e INNER JOIN tenants AS t ON e.user_id = t.user_id
WHERE t.slug = '{REVIVED}' OR (t.slug <> '{IMPORTED}' AND hashtext(e.content) % 50 = 0)
"""
# A memory that waits for a human, and cites what a sweep would archive first.
CITE = """
WITH m AS (
    INSERT INTO memories (user_id, memory_type, topic, content, content_hash, valid_from,
        recorded_at, created_at, updated_at)
    SELECT t.user_id, 'fact', 'topic', 'what was said', 'hash', :at, :at, :at, :at
    FROM tenants AS t WHERE t.slug = :slug
    RETURNING user_id, id
), p AS (
    INSERT INTO retention_proposals (user_id, memory_id, action, probability, probabilities, model)
    SELECT user_id, id, 'archive', 0.95, '{}', 'bench' FROM m
)
INSERT INTO memory_evidence (user_id, memory_id, evidence_id)
SELECT m.user_id, m.id, e.id
FROM m CROSS JOIN LATERAL (
    SELECT e.id FROM evidence AS e WHERE e.user_id = m.user_id AND e.success_count = 0
    AND e.kind <> 'lesson' AND e.last_retrieved_at IS NULL
    ORDER BY e.occurred_at LIMIT :cited
) AS e
"""


def fill(connection: sa.Connection, slugs: tuple[str, ...], entries: int) -> None:
    """Tenants whose uses are recorded since long ago, with so many hot entries each.

    And a small one, of which a session archives something before anything is measured.
    """
    for slug in (*slugs, SMALL):
        tenants.add(connection, slug)
        since = END - timedelta(days=1000)
        tenants.set_consent(connection, slug, judgment=True, archival=True, tracked_since=since)
    for some, count in ((list(slugs), entries), ([SMALL], 20)):
        connection.execute(sa.text(EVIDENCE), {"end": END, "slugs": some, "entries": count})
    connection.execute(sa.text(REVIVALS), {"end": END, "day": DAY})


def tidy(admin: sa.URL) -> None:
    """What autovacuum and the checkpointer do within a day."""
    execute(admin, "VACUUM ANALYZE", "CHECKPOINT")


# Measuring


class Measured:
    """Sweeps as the runtime role, one session for all, and what each of them reads."""

    def __init__(self, admin: sa.URL, database: Database) -> None:
        self._database = database
        self._outside = engine(admin.set(database="postgres"))
        self._name = admin.database

    def close(self) -> None:
        """Leave the server."""
        self._outside.dispose()
        self._database.close()

    def sweep(self, slug: str, nights: int = 0) -> Measure:
        """One sweep, ``nights`` after DAY: explained first, then done."""
        now = NOW + timedelta(days=nights)
        tenant = tenants.find(self._database, slug)
        partition = of_day(DAY + timedelta(days=nights), tenant, now)
        say(f"    {slug}, {partition.run_date}")
        plan = self.explain(partition)
        [hot] = self._ask(partition, HOT)
        overhead = self._pages() - self._pages()
        before, started = self._pages(), time.perf_counter()
        done = tier.sweep(self._database, partition, POLICY, now)
        seconds = time.perf_counter() - started
        pages = self._pages() - before
        [passed] = self._ask(partition, PASSED)
        return Measure(
            entries=hot.entries,
            archived=done.archived,
            passed=passed.entries,
            scans=list(scans(plan)),
            pages=pages_of(plan),
            all_pages=pages + overhead,
            seconds=seconds,
        )

    def explain(self, partition: Partition) -> Mapping[str, Any]:
        """The plan of find_due as it ran; it only locks, and the locks are gone afterwards."""
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {tier.QUERIES['find_due'].text}"
        with self._database.tenant(partition.user_id) as tx:
            (found,) = tx.one(
                sa.text(statement),
                run_date=partition.run_date,
                as_of=partition.as_of,
                due_before=partition.as_of - POLICY.sweep_window,
                room=POLICY.sweep_batch,
            )[0]
        plan: Mapping[str, Any] = found["Plan"]
        return plan

    def _ask(self, partition: Partition, query: str) -> list[sa.Row[Any]]:
        asked = sa.text(query)
        day = {"run_date": partition.run_date} if ":run_date" in query else {}
        with self._database.tenant(partition.user_id) as tx:
            return list(tx.rows(asked, **day))

    def _pages(self) -> int:
        """How many pages of the database were read so far, found in memory or not."""
        with self._database.registry() as connection:
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        with self._outside.connect() as connection:
            return int(connection.execute(sa.text(PAGES), {"name": self._name}).scalar_one())


@contextmanager
def store(admin: sa.URL) -> Iterator[Measured]:
    """The store of a database, measured."""
    address = admin.set(username=RUNTIME_ROLE).render_as_string(hide_password=False)
    measured = Measured(admin, Database(url=address).connect())
    try:
        measured.sweep(SMALL)
        yield measured
    finally:
        measured.close()


PAGES = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = :name"
HOT = (
    "SELECT count(*) AS entries FROM evidence AS e "
    "WHERE e.user_id = :user_id AND e.archived_at IS NULL"
)
# Counted without the plan: what is of the sweep's kinds, unused for longer than the last that it
# archived, and hot all the same.
UNUSED = "greatest(e.occurred_at, e.last_retrieved_at, e.last_outcome_at)"
PASSED = f"""
SELECT count(*) AS entries
FROM evidence AS e
WHERE e.user_id = :user_id AND e.archived_at IS NULL AND e.success_count = 0
    AND e.reinforcement_count = 0 AND e.kind <> 'lesson'
    AND {UNUSED} < coalesce((
        SELECT max({UNUSED}) FROM evidence AS e
        WHERE e.user_id = :user_id AND e.archived_run_date = :run_date
    ), CAST(:run_date AS date) - 6)
"""


def scans(node: Mapping[str, Any]) -> Iterator[Scan]:
    """The nodes of a plan that read a table, from the top."""
    if "Relation Name" in node and "Scan" in node["Node Type"]:
        loops = node["Actual Loops"]
        below = sum(pages_of(child) for child in node.get("Plans", []))
        yield Scan(
            node=f"{node['Node Type']} of {node['Relation Name']}"
            + (f" by {node['Index Name']}" if "Index Name" in node else ""),
            rows=round(node["Actual Rows"] * loops),
            dropped=round(node.get("Rows Removed by Filter", 0) * loops),
            pages=pages_of(node) - below,
        )
    for child in node.get("Plans", []):
        yield from scans(child)


def pages_of(node: Mapping[str, Any]) -> int:
    """Pages that a node and those below it read, found in memory or not."""
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


# The report


def targets(sizes: list[Size]) -> Iterator[tuple[str, bool]]:
    """Each bar with what was measured, and whether it is reached."""

    def bar(says: str, measured: int, most: int) -> tuple[str, bool]:
        reached = measured <= most
        verdict = "reached" if reached else "MISSED"
        return f"- {says}: {measured:,} of at most {most:,}, {verdict}.", reached

    for each in sizes:
        hot = f"{each.empty.entries:,} hot entries"
        yield bar(f"{hot}, nothing due: pages of the sweep", each.empty.all_pages, EMPTY_BAR)
    batch = sizes[-1].batch
    yield bar(
        f"{batch.archived} of {batch.entries:,}: rows of find_due, {ROWS_BAR} times the batch "
        "and what is passed over",
        batch.rows,
        ROWS_BAR * batch.archived + batch.passed,
    )


def lines(sizes: list[Size], bad: Mapping[str, Measure]) -> Iterator[list[str]]:
    """The cells of every measure."""
    cases = {
        "nothing due": [each.empty for each in sizes],
        "backlog": [each.batch for each in sizes],
        "backlog, next night": [each.next_batch for each in sizes],
        **{BAD_CASES[slug]: [measure] for slug, measure in bad.items()},
    }
    for name, measures in cases.items():
        base = measures[0]
        for each in measures:
            ratio = each.pages_an_entry / base.pages_an_entry
            yield [
                name,
                f"{each.entries:,}",
                f"{each.archived:,}",
                f"{each.passed:,}",
                f"{each.rows:,}",
                f"{each.pages:,}",
                f"{each.all_pages:,}",
                f"{each.seconds * 1000:,.0f}",
                f"{ratio:.2f}" if len(measures) > 1 else "-",
            ]


BAD_CASES = {
    IMPORTED: "all imported today",
    REVIVED: "all revived lately",
}
HEADINGS = (
    "case",
    "hot",
    "archived",
    "passed over",
    "rows of find_due",
    "its pages",
    "pages of the sweep",
    "ms",
    "ratio",
)


def table(sizes: list[Size], bad: Mapping[str, Measure]) -> Table:
    """The measures, for a terminal."""
    shown = Table(title="What a sweep costs")
    for place, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="right" if place else "left")
    for cells in lines(sizes, bad):
        shown.add_row(*cells)
    return shown


def render(
    sizes: list[Size], bad: Mapping[str, Measure], software: str, bars: list[tuple[str, bool]]
) -> str:
    """The report."""
    largest = sizes[-1].batch
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in lines(sizes, bad))
    nodes = "".join(
        f"| {scan.node} | {scan.rows:,} | {scan.dropped:,} | {scan.pages:,} |\n"
        for scan in largest.scans
    )
    return TEXT.format(
        software=software,
        machine=common.machine(),
        cited=CITED,
        headings=" | ".join(HEADINGS),
        aligned=" | ".join(["---", *["---:"] * (len(HEADINGS) - 1)]),
        rows=rows,
        archived=largest.archived,
        entries=f"{largest.entries:,}",
        nodes=nodes,
        bars="\n".join(says for says, _ in bars),
        bad=f"{BAD:,}",
    )


TEXT = """\
# What the sweep costs

Written by `make bench-sweep`. Milliseconds differ between machines and days; read rows and pages.

PostgreSQL {software} with its default settings and 256 MB of shared buffers; {machine}. One sweep
archives at most 500 entries that were of no use for 7 days. The entries are invented, about 200
bytes each, in no order of time on the disk. Two tenants of the same size share each table. Of the
one nothing is due: all is old, and in use or credited. Of the other a twentieth is of a kind that
is never archived, a tenth is credited, a tenth was used lately, a fiftieth was revived lately, an
open proposal cites the {cited} oldest, and all the rest is due.

- **Passed over**: entries that were unused for longer than the last one archived and stay hot,
  since they are cited, were revived lately or were recorded after the partition's end. Counted
  without the plan.
- **Rows of find_due**: what the scans of the statement that selects the batch return and filter
  out, of all tables, by EXPLAIN (ANALYZE, BUFFERS).
- **Its pages**: shared buffers of that statement, hit or read, by the same EXPLAIN.
- **Pages of the sweep**: all that `tier.sweep` touches, as `pg_stat_database` counts it: the lock,
  the selection, the log, the marker, every index, the foreign keys, the invariants and the commit.
  The session has swept before; its first statements read the catalog too. Nothing else ran on the
  database and autovacuum was off.
- **Ms**: `tier.sweep` once, with warm buffers.
- **Ratio**: pages of the sweep for each entry archived, beside those at the smallest size of the
  same case and run.

| {headings} |
| {aligned} |
{rows}
What find_due reads follows the batch and not the hot tier. Most pages of a sweep that archives are
those of writing: a marked entry stands anew in the indexes of `evidence`, the log gets a row with
its foreign keys, and all of it is verified. They grow only with the depth of the indexes.

The next night follows at once, before any vacuum, so that its scan of the index also meets what
the first night archived. Where `forgetting.revivals` fits one page it is read through for every
entry looked at, which is more rows and fewer pages than its index.

## What find_due reads for {archived} of {entries}

| node | rows | filtered out | pages |
| --- | ---: | ---: | ---: |
{nodes}
`evidence_due_idx` has the entries in the order of their disuse, so the scan stops with the batch.
A page of `evidence` is read again for the lock, which stands above the scan.

## The bad cases

Both have {bad} entries that are old and unused, and nothing that may be archived. They have no
bar.

- **All imported today**: recorded after the end of yesterday's partition, which is swept. Every
  entry stands at the head of the index and is passed over; the partition of the day of the import
  archives them.
- **All revived lately**: the tier was emptied under `FORGETTING_UNFORGET`, and the sweep is on
  again. Until the window has passed, each night passes over all of it, at one probe of
  `revivals_evidence_idx` an entry.

The first reads the index alone, which has when an entry was recorded. The cost of the second is
that of the hot tier, and not that of the batch.

## What was to be reached

{bars}
"""


if __name__ == "__main__":
    main()
