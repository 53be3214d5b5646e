"""What mining similar pairs costs: `make bench-mining`, or with `ARGS=--large` up to 300,000.

In one run, on one machine and one store each size: the ADR's query, our first mining, a day's
increment, and as the limit a fetch of every vector with a matrix product a group. Every measure is
a process of its own; CPU is that of the process and of its PostgreSQL backend. Writes
docs/benchmarks/mining.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any
from uuid import UUID

import numpy as np
import psutil
import sqlalchemy as sa

from eval.bench import common, synthetic
from eval.bench.common import execute, say
from forgetting_assets import vectors
from forgetting_assets.store import mining, tenants
from resources import binary
from resources.addresses import RUNTIME_ROLE
from resources.database import TenantTransaction, bind, engine

SIZES = (14_000, 100_000)
LARGE = 300_000
FLOOR = 0.82
FLOORS = {synthetic.MODEL: FLOOR}
CHANGED = {"new": 300, "embedded again": 100, "moved": 50, "touched": 50}
PROBES = 100
"""Probes of the ADR's query; a full run would pass five minutes at every size."""


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds, the process's peak memory in MB, and what the measure found."""

    cpu: float
    wall: float
    peak: float
    found: Any = None


@dataclass
class Result:
    """All measures of one size."""

    memories: int
    comparable: int = 0
    same_group_pairs: int = 0
    largest_group: int = 0
    costs: dict[str, Cost] = field(default_factory=dict)
    index_build: float = 0.0
    equal: dict[str, bool] = field(default_factory=dict)


def main() -> None:
    """Measure, print, write the report."""
    # Before any measure's process loads numpy: threads that wait for each other burn CPU.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--large", action="store_true", help=f"also {LARGE:,} memories")
    sizes = (*SIZES, LARGE) if arguments.parse_args().large else SIZES
    results = []
    with common.server() as server:
        for memories in sizes:
            admin = common.database(server, f"bench_{memories}")
            results.append(measure(admin, memories))
        with engine(admin).connect() as connection:
            software = connection.exec_driver_sql(SOFTWARE).scalar_one()
    report = render(results, software)
    common.write("mining.md", report)
    say("\n" + report)


SOFTWARE = """
SELECT 'PostgreSQL ' || current_setting('server_version') || ', pgvector ' || extversion
FROM pg_extension WHERE extname = 'vector'
"""


def measure(admin: sa.URL, memories: int) -> Result:
    """Every measure at one size, in a database of its own."""
    say(f"{memories:,} memories: loading")
    result = Result(memories)
    maker = synthetic.Maker(seed=memories)
    user_id = load(admin, maker, memories)
    result.comparable, result.same_group_pairs, result.largest_group = shape(admin, user_id)

    def take(name: str, work: Callable[..., Any], *arguments: Any) -> None:
        say(f"{memories:,} memories: {name}")
        result.costs[name] = alone(work, admin, user_id, *arguments)
        say(f"    {result.costs[name].cpu:.2f} CPU s")

    take("first mining", first_mining)
    take("limit", brute_force)
    result.equal["first mining"] = same_pairs(admin, user_id, result.costs["limit"].found)
    # As autovacuum does within a day; else the increment pays for reading fresh rows first.
    execute(admin, "VACUUM ANALYZE")
    change(admin, user_id, maker)
    take("daily increment", first_mining)
    take("limit, after the increment", brute_force)
    result.equal["daily increment"] = same_pairs(
        admin, user_id, result.costs["limit, after the increment"].found
    )
    take("nothing changed", first_mining)
    say(f"{memories:,} memories: building the ADR's HNSW index")
    started = time.perf_counter()
    execute(admin, "SET maintenance_work_mem = '2GB'", HNSW)
    result.index_build = time.perf_counter() - started
    # The ADR's store has no index on type, scope and project.
    execute(admin, "DROP INDEX memories_group_idx")
    take("ADR over HNSW", adr, PROBES, "SET LOCAL enable_sort = off")
    take("ADR, as planned", adr, PROBES)
    return result


HNSW = "CREATE INDEX bench_hnsw ON memories USING hnsw (embedding vector_cosine_ops)"


def load(admin: sa.URL, maker: synthetic.Maker, memories: int) -> UUID:
    """One tenant and its memories."""
    pool = engine(admin)
    with pool.begin() as connection:
        user_id = tenants.add(connection, "bench")
        for rows in maker.chunks(memories):
            synthetic.insert(connection, user_id, rows)
    pool.dispose()
    execute(admin, "VACUUM ANALYZE", "CHECKPOINT")
    return user_id


def shape(admin: sa.URL, user_id: UUID) -> tuple[int, int, int]:
    """Comparable memories, pairs inside their groups, and the largest group."""
    with transaction(admin, user_id) as tx:
        row = tx.one(
            sa.text(
                "SELECT sum(g.n) AS comparable, sum(g.n * (g.n - 1) / 2) AS pairs, "
                "max(g.n) AS largest FROM ("
                "SELECT count(*) AS n FROM forgetting.comparable_memories AS c "
                "WHERE c.user_id = :user_id GROUP BY c.group_key) AS g"
            )
        )
    return int(row.comparable), int(row.pairs), int(row.largest)


@contextmanager
def transaction(admin: sa.URL, user_id: UUID) -> Iterator[TenantTransaction]:
    """A tenant transaction of the runtime role, as the pass has it."""
    pool = engine(admin.set(username=RUNTIME_ROLE))
    with pool.begin() as connection:
        yield bind(connection, user_id, exclusive=True)
    pool.dispose()


def alone(work: Callable[..., Any], *arguments: Any) -> Cost:
    """Run a measure in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, work, *arguments).result()


def measured(work: Callable[..., Any], admin: sa.URL, user_id: UUID, *arguments: Any) -> Cost:
    """What a piece of work costs in this process and in its backend."""
    with transaction(admin, user_id) as tx:
        # A library's and a connection's first call, which every process has once.
        np.ones((64, 64), np.float32) @ np.ones((64, 64), np.float32)
        # What a parallel worker does would escape the count.
        tx.connection.exec_driver_sql("SET LOCAL max_parallel_workers_per_gather = 0")
        pid = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        backend = psutil.Process(pid)
        before, client, wall = backend.cpu_times(), time.process_time(), time.perf_counter()
        found = work(tx, *arguments)
        after = backend.cpu_times()
        server = after.user + after.system - before.user - before.system
        cpu, wall = time.process_time() - client + server, time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(cpu, wall, peak, found)


def first_mining(tx: TenantTransaction) -> int:
    """Mine what changed since the last mining, which is everything where there was none."""
    return mining.update(tx, "bench", FLOORS, synthetic.NOW).pairs


def brute_force(tx: TenantTransaction) -> set[Sides]:
    """The limit: fetch every vector once, in binary and in the order of groups, and multiply.

    Holds a whole group in memory and writes nothing. The pairs are those of single precision.
    """
    found: set[Sides] = set()
    of_group: list[tuple[binary.Records, vectors.Floats]] = []
    group: int | None = None

    def multiply() -> None:
        if not of_group:
            return
        ids = np.concatenate([each for each, _ in of_group])
        unit = np.concatenate([each for _, each in of_group])
        for start in range(0, len(unit), vectors.STRIP):
            cosines = unit[start : start + vectors.STRIP] @ unit[start:].T
            ones, others = np.nonzero(cosines >= FLOOR)
            later = ones < others
            for one, other in zip(ones[later], others[later], strict=True):
                found.add(sides(ids[start + one].tobytes(), ids[start + other].tobytes()))
        of_group.clear()

    def consume(records: binary.Records) -> None:
        nonlocal group
        width = records.dtype["vector"].itemsize // 4 - 1
        kind = np.dtype([("head", ">i4"), ("values", ">f4", (width,))])
        values = records["vector"].view(kind)["values"].astype(np.float32)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        edges = [0, *(np.flatnonzero(np.diff(records["group"])) + 1), len(records)]
        for start, stop in itertools.pairwise(edges):
            if records["group"][start] != group:
                multiply()
                group = records["group"][start]
            of_group.append((records["id"][start:stop], values[start:stop]))

    columns = [("id", binary.UUID), ("group", binary.BIGINT), ("vector", binary.BYTES)]
    tx.copy(FETCH, columns, consume, rows=mining.BLOCK)
    multiply()
    return found


Sides = tuple[bytes, bytes]


def sides(one: bytes, other: bytes) -> Sides:
    """A pair without an order."""
    return min(one, other), max(one, other)


FETCH = sa.text(
    "COPY (SELECT c.id, c.group_key, c.embedding FROM forgetting.comparable_memories AS c "
    "WHERE c.user_id = :user_id ORDER BY c.group_key) TO STDOUT (FORMAT binary)"
)


def same_pairs(admin: sa.URL, user_id: UUID, brute: set[Sides]) -> bool:
    """Whether the index has the pairs of brute force.

    Where they differ the cosine must be at the floor but for what single precision rounds.
    """
    with transaction(admin, user_id) as tx:
        ours = {sides(row.older_id.bytes, row.newer_id.bytes) for row in tx.rows(INDEXED)}
        differing = ours ^ brute
        cosines = tx.rows(
            COSINES,
            ones=[UUID(bytes=one) for one, _ in differing],
            others=[UUID(bytes=other) for _, other in differing],
        )
    near = vectors.rounding(synthetic.DIMENSIONS)
    return bool(ours) and all(abs(row.cosine - FLOOR) <= near for row in cosines)


INDEXED = sa.text(
    "SELECT s.older_id, s.newer_id FROM forgetting.similar_pairs AS s WHERE s.user_id = :user_id"
)
COSINES = sa.text(
    "SELECT 1 - (a.embedding <=> b.embedding) AS cosine "
    "FROM unnest(CAST(:ones AS uuid[]), CAST(:others AS uuid[])) AS p (one, other) "
    "INNER JOIN memories AS a ON a.user_id = :user_id AND a.id = p.one "
    "INNER JOIN memories AS b ON b.user_id = :user_id AND b.id = p.other"
)


def change(admin: sa.URL, user_id: UUID, maker: synthetic.Maker) -> None:
    """A day's 500 changes among what is compared: new, embedded again, moved, only touched."""
    pool = engine(admin)
    with pool.begin() as connection:
        synthetic.insert(connection, user_id, maker.rows_of(COMPARED, CHANGED["new"]))
        for number, (what, statement) in enumerate(CHANGES.items()):
            connection.execute(
                sa.text(f"UPDATE memories SET {statement} WHERE id IN ({SOME})"),
                {"start": 1000 * number, "rows": CHANGED[what]},
            )
    pool.dispose()


SOME = (
    "SELECT c.id FROM forgetting.comparable_memories AS c ORDER BY c.id OFFSET :start LIMIT :rows"
)
COMPARED = ("decision", "preference", "fact", "blocker")
CHANGES = {
    "embedded again": "embedding = l2_normalize(embedding + (SELECT m.embedding FROM memories AS m "
    "WHERE m.id <> memories.id ORDER BY m.id DESC LIMIT 1))",
    "moved": "project = 'project-0'",
    "touched": "topic = topic || ', seen again'",
}


def adr(tx: TenantTransaction, probes: int, *settings: str) -> int:
    """The ADR's lateral kNN for a sample of the memories it probes; how many it would probe."""
    for setting in (
        "SET LOCAL hnsw.ef_search = 200",
        "SET LOCAL hnsw.iterative_scan = relaxed_order",
        *settings,
    ):
        tx.connection.exec_driver_sql(setting)
    tx.rows(sa.text(ADR), probes=probes, floor=FLOOR)
    return int(tx.one(sa.text(f"SELECT count(*) AS rows FROM memories AS a WHERE {PROBED}")).rows)


PROBED = (
    "a.user_id = :user_id AND a.status = 'active' AND a.valid_to IS NULL "
    "AND a.embedding IS NOT NULL AND a.memory_type IN ('decision', 'preference', 'fact')"
)
ADR = f"""
SELECT a.id, b.id, b.similarity
FROM (SELECT a.* FROM memories AS a WHERE {PROBED} ORDER BY md5(a.id::text) LIMIT :probes) AS a
CROSS JOIN LATERAL (
    SELECT b.id, 1 - (a.embedding <=> b.embedding) AS similarity
    FROM memories AS b
    WHERE b.user_id = :user_id AND b.status = 'active' AND b.valid_to IS NULL
        AND b.id <> a.id
        AND b.memory_type = a.memory_type AND b.scope = a.scope
        AND b.project IS NOT DISTINCT FROM a.project
        AND (1 - (a.embedding <=> b.embedding)) >= :floor
    ORDER BY a.embedding <=> b.embedding
    LIMIT 160
) AS b
"""


def render(results: list[Result], software: str) -> str:
    """The report."""
    parts = [
        HEAD.format(
            software=software,
            machine=common.machine(),
            python=platform.python_version(),
            numpy=np.__version__,
            floor=FLOOR,
            changed=", ".join(f"{count} {what}" for what, count in CHANGED.items()),
            probes=PROBES,
        )
    ]
    parts += [section(result) for result in results]
    if len(results) > 1:
        parts.append(growth(results))
    parts.append("## What was to be reached\n\n" + "".join(targets(results)))
    return "\n".join(parts)


def section(result: Result) -> str:
    """The table of one size."""
    equal = ", ".join(f"{name} {'yes' if same else 'NO'}" for name, same in result.equal.items())
    return (
        f"## {result.memories:,} memories\n\n"
        f"{result.comparable:,} comparable, {result.same_group_pairs:,} pairs inside their groups, "
        f"the largest group {result.largest_group:,}.\n"
        f"The HNSW index took {result.index_build:.0f} s to build, which counts for nobody.\n\n"
        "| measure | CPU s | wall s | peak MB | pairs | CPU beside the limit |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        f"{''.join(lines(result))}\n"
        f"Equal to brute force: {equal}.\n"
    )


HEAD = """# What mining costs

Written by `make bench-mining`. Seconds differ between machines and days; read the ratios.

{software} with its default settings, Python {python}, numpy {numpy} on one thread;
{machine}. One tenant, invented memories of 1,536 dimensions in the proportions of a real
store, floor {floor}. CPU is that of the client's process and its PostgreSQL backend together; peak
memory is the client's.

- **First mining**: our index of similar pairs from nothing, written.
- **Daily increment**: the same code after a day of {changed}.
- **Limit**: every vector fetched once and multiplied within its group; nothing written.
- **ADR over HNSW**: its lateral kNN with the conditions inside, k = 160, ef_search = 200, iterative
  scan, sorting disabled so that the index is used; {probes} probes, extrapolated to all.
- **ADR, as planned**: the same statement where the planner may choose. Here it passes HNSW by and
  compares each memory with all of the tenant's.
"""


def lines(result: Result) -> Iterator[str]:
    """The rows of a size's table."""
    limit = result.costs["limit"].cpu
    for name, cost in result.costs.items():
        factor, label, found = 1.0, name, cost.found
        if name.startswith("ADR"):
            factor, label, found = cost.found / PROBES, f"{name}, extrapolated", "-"
        if isinstance(found, set):
            found = len(found)
        yield (
            f"| {label} | {cost.cpu * factor:.2f} | {cost.wall * factor:.2f} | {cost.peak:.0f} "
            f"| {found} | {cost.cpu * factor / limit:.2f} |\n"
        )


def growth(results: list[Result]) -> str:
    """How CPU grows with the number of memories, between one size and the next."""
    named = [name for name in results[0].costs if name != "limit, after the increment"]
    head = "".join(
        f" {one.memories:,} to {other.memories:,} |" for one, other in itertools.pairwise(results)
    )
    rows = ""
    for name in named:
        rows += f"| {name} |"
        for one, other in itertools.pairwise(results):
            low, high = (total(each, name) for each in (one, other))
            exponent = math.log(high / low) / math.log(other.memories / one.memories)
            rows += f" {exponent:.2f} |"
        rows += "\n"
    return (
        "## Growth\n\nExponents of CPU in the number of memories: 1 is linear, 2 quadratic.\n\n"
        f"| measure |{head}\n| --- |{' ---: |' * (len(results) - 1)}\n{rows}"
    )


def total(result: Result, name: str) -> float:
    """CPU seconds of a measure, the ADR's extrapolated; a clock tick at least."""
    cost = result.costs[name]
    return max(0.01, cost.cpu * (cost.found / PROBES if name.startswith("ADR") else 1))


def targets(results: list[Result]) -> Iterator[str]:
    """Each bar and what was measured."""

    def bar(says: str, measured: float, reached: bool) -> str:
        return f"- {says}: {measured:.1f}, {'reached' if reached else 'MISSED'}.\n"

    for result in results:
        size = f"{result.memories:,}"
        first, limit = total(result, "first mining"), total(result, "limit")
        if result.memories == SIZES[0]:
            times = total(result, "ADR over HNSW") / first
            yield bar(f"{size}: the ADR's CPU is at least 200 times ours", times, times >= 200)
        yield bar(
            f"{size}: first mining within 3 times the limit", first / limit, first <= 3 * limit
        )
        if result.memories >= SIZES[1]:
            times = first / total(result, "daily increment")
            yield bar(f"{size}: the first mining is over 20 increments", times, times > 20)
        peak = max(result.costs[name].peak for name in ("first mining", "daily increment"))
        yield bar(f"{size}: the client's peak under 400 MB", peak, peak < 400)


if __name__ == "__main__":
    main()
