"""What a night of many tenants costs: `make bench-tenants`.

The whole pass over 1,000 small tenants in runs of 100 each, beside one run a tenant for 30 others,
on one server, with the scripted judge. What counts is CPU time, of the run's process and of the
server together. Writes docs/benchmarks/tenants.md, and exits with 1 when the bar is missed.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from subprocess import Popen
from time import perf_counter

import dagster as dg
import psutil
import sqlalchemy as sa

from eval.bench import common, synthetic
from eval.bench.common import execute, say
from forgetting_assets import partitions, runs, schedules
from forgetting_assets.definitions import build_defs
from forgetting_assets.store import monitoring
from resources import migrations
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database, TenantTransaction, engine

MANY, ALONE = 1000, 30
PER_RUN = 100
MEMORIES, EVIDENCE = 24, 40
DAY = date(2026, 8, 31)
BAR = 8.0
"""How many times less CPU a tenant may cost in a run over many than in one of its own, at least."""


@dataclass(frozen=True)
class Night:
    """The pass over some tenants; ``stored`` bytes and ``events`` are of Dagster's database."""

    tenants: int
    runs: int
    cpu_run: float
    cpu_server: float
    seconds: float
    stored: int
    events: int

    @property
    def cpu(self) -> float:
        """CPU seconds a tenant, in all."""
        return (self.cpu_run + self.cpu_server) / self.tenants


def main() -> None:
    """Measure, print, write the report, and say by the exit code whether the bar holds."""
    many = [f"many-{number:04d}" for number in range(MANY)]
    alone = [f"alone-{number:02d}" for number in range(ALONE)]
    with common.server() as server, tempfile.TemporaryDirectory(prefix="dagster-") as home:
        places = prepare(server, Path(home), many + alone)
        say(f"{ALONE} tenants, a run each")
        one = night(places, alone, 1)
        say(f"{MANY} tenants, {PER_RUN} a run")
        ranged = night(places, many, PER_RUN)
        with engine(server).connect() as connection:
            software = connection.exec_driver_sql("SHOW server_version").scalar_one()
        require_whole(places, many + alone)
        watched = look(places)
    report = render(one, ranged, watched, software)
    say(report)
    common.write("tenants.md", report)
    sys.exit(0 if one.cpu / ranged.cpu >= BAR else 1)


def prepare(server: sa.URL, home: Path, slugs: Sequence[str]) -> Addresses:
    """A store with these tenants, a Dagster instance that knows them, and their environment."""
    admin = common.database(server, "bench_tenants")
    memory = admin.set(username=RUNTIME_ROLE)
    places = Addresses(memory, memory.set(database="bench_dagster"), admin)
    migrations.create_database(server, "bench_dagster", owner=RUNTIME_ROLE)
    say(f"{len(slugs):,} tenants of {MEMORIES} memories and {EVIDENCE} entries: loading")
    make = synthetic.Maker(11)
    with engine(admin).begin() as connection:
        connection.execute(sa.text("UPDATE forgetting.deployment SET demo = TRUE"))
        for slug in slugs:
            user_id = connection.execute(sa.text(TENANT), {"slug": slug}).scalar_one()
            synthetic.insert(connection, user_id, make.rows(MEMORIES))
            parameters = {"user_id": user_id, "entries": EVIDENCE, "at": synthetic.NOW}
            connection.execute(sa.text(ENTRIES), parameters)
    execute(admin, "VACUUM ANALYZE", "CHECKPOINT")
    os.environ |= places.environment() | {
        "DAGSTER_HOME": str(home),
        "FORGETTING_PASS_ENABLED": "true",
        "FORGETTING_ARCHIVE_ENABLED": "true",
        "FORGETTING_GATEWAY": "scripted",
        "FORGETTING_CONFLICT_FLOORS": f'{{"{synthetic.MODEL}": 0.82}}',
    }
    (home / "dagster.yaml").write_text(DAGSTER, encoding="utf-8")
    with dg.DagsterInstance.get() as dagster:
        dagster.add_dynamic_partitions(partitions.tenants.name or "", list(slugs))
    return places


def night(places: Addresses, slugs: Sequence[str], per_run: int) -> Night:
    """The runs that the schedule would ask for, one after the other, each a process of its own."""
    server = psutil.Process(postmaster(places))
    asked = list(schedules.requests(DAY, slugs, per_run))
    stored, events = size(places)
    before, began, run = cpu_of(server), perf_counter(), 0.0
    for request in asked:
        tags = [f"{name}={value}" for name, value in request.tags.items()]
        process = Popen(
            [sys.executable, "-m", "eval.bench.tenants", request.partition_key or "", *tags]
        )
        _pid, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"The run {request.run_key} failed.")
        run += usage.ru_utime + usage.ru_stime
    seconds = perf_counter() - began
    after, (stored_after, events_after) = cpu_of(server), size(places)
    return Night(
        len(slugs),
        len(asked),
        run,
        after - before,
        seconds,
        stored_after - stored,
        events_after - events,
    )


def run(partition_key: str, tags: dict[str, str]) -> None:
    """One run, as a run launcher's process does it: import, load, open the instance, execute."""
    with dg.DagsterInstance.get() as dagster:
        done = (
            build_defs()
            .resolve_job_def("forgetting_pass")
            .execute_in_process(
                partition_key=partition_key or None,
                instance=dagster,
                tags=tags,
                run_config=runs.QUIET,
                raise_on_error=False,
            )
        )
    sys.exit(0 if done.success else 1)


def look(places: Addresses) -> dict[str, float]:
    """Seconds that each question of the alerts takes for all tenants after their night."""
    database = Database(url=places.memory.render_as_string(hide_password=False)).connect()
    budget = Budget(database=database, clock=Clock())
    now = synthetic.NOW
    questions: dict[str, Callable[[TenantTransaction], object]] = {
        "how each stands": monitoring.state,
        "failed checks": lambda tx: monitoring.failures(tx, now),
        "spending": lambda tx: budget.spend(tx, now),
    }
    seconds = {}
    for name, question in questions.items():
        began = perf_counter()
        monitoring.each(database, question)
        seconds[name] = perf_counter() - began
    database.close()
    return seconds


def cpu_of(server: psutil.Process) -> float:
    """CPU seconds of the server so far: its own, of sessions that ended and of those that live."""
    own = server.cpu_times()
    living = [each.cpu_times() for each in server.children()]
    return float(
        own.user
        + own.system
        + own.children_user
        + own.children_system
        + sum(each.user + each.system for each in living)
    )


def postmaster(places: Addresses) -> int:
    """The process id of the server's first process."""
    assert places.admin is not None
    with engine(places.admin).connect() as connection:
        folder = connection.exec_driver_sql("SHOW data_directory").scalar_one()
    return int((Path(folder) / "postmaster.pid").read_text().splitlines()[0])


def size(places: Addresses) -> tuple[int, int]:
    """Bytes of Dagster's database, and its events."""
    with engine(places.dagster).connect() as connection:
        stored, events = connection.execute(
            sa.text(
                "SELECT pg_database_size(current_database()), (SELECT count(*) FROM event_logs)"
            )
        ).one()
    return int(stored), int(events)


def require_whole(places: Addresses, slugs: Sequence[str]) -> None:
    """Every tenant was judged, swept and measured, or the figures are of something else."""
    assert places.admin is not None
    with engine(places.admin).connect() as connection:
        counts = connection.execute(sa.text(WHOLE)).one()
    if (counts.measured, counts.swept, counts.failed) != (len(slugs), len(slugs), 0):
        raise SystemExit(f"The pass did not reach every tenant: {counts._asdict()}.")
    say(f"{counts.judged:,} items judged, {counts.archived:,} entries archived")


TENANT = """
WITH person AS (
    INSERT INTO users (email) VALUES (CAST(:slug AS text) || '@bench.invalid') RETURNING id
)
INSERT INTO tenants (slug, user_id, judgment_enabled, archival_enabled, tracked_since)
SELECT :slug, id, TRUE, TRUE, '2026-01-01' FROM person
RETURNING user_id
"""
ENTRIES = """
INSERT INTO evidence (user_id, session_id, kind, content, occurred_at, recorded_at)
SELECT :user_id, 'session', 'trace', 'entry ' || n, moment, moment
FROM generate_series(1, :entries) AS n,
    LATERAL (SELECT CAST(:at AS timestamptz) - n * interval '12 hours' AS moment) AS m
"""
WHOLE = """
SELECT
    (SELECT count(DISTINCT user_id) FROM forgetting.memory_health) AS measured,
    (SELECT count(DISTINCT user_id) FROM forgetting.archival_sweep) AS swept,
    (SELECT count(*) FROM forgetting.judged_verdicts) AS judged,
    (SELECT count(*) FROM forgetting.archival_sweep) AS archived,
    (SELECT count(*) FROM forgetting.partition_failures)
        + (SELECT count(*) FROM forgetting.invariant_results WHERE NOT passed) AS failed
"""
DAGSTER = """\
storage: {postgres: {postgres_url: {env: DAGSTER_DATABASE_URL}}}
telemetry: {enabled: false}
"""


def render(one: Night, ranged: Night, watched: dict[str, float], software: str) -> str:
    """The page, in Markdown."""
    looks = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in watched.items())
    ratio = one.cpu / ranged.cpu
    rows = "\n".join(
        f"| {name} | {each.tenants:,} | {each.runs} | {each.cpu_run / each.tenants:.3f} | "
        f"{each.cpu_server / each.tenants:.3f} | {each.cpu:.3f} | "
        f"{each.seconds / each.tenants:.3f} | {each.events / each.tenants:.0f} | "
        f"{each.stored / each.tenants / 1000:.0f} |"
        for name, each in (("a run a tenant", one), (f"{PER_RUN} tenants a run", ranged))
    )
    return f"""\
# What a night of many tenants costs

Written by `make bench-tenants`. CPU time differs between machines; read the ratio.

PostgreSQL {software} with 256 MB of shared buffers; {common.machine()}. The whole pass over one
day, for tenants of {MEMORIES} memories and {EVIDENCE} entries of evidence that were never mined
before. The scripted judge answers, which costs no waiting. A run is a process of its own that
imports the code, opens Dagster's storage on the same server and executes the job, as a run
launcher's process does; the daemon and the code server are not in the figures. Runs go one after
the other.

- **CPU of the run**: user and system time of its process, a tenant. **Of the server**: of all
  PostgreSQL processes meanwhile, Dagster's storage included.
- **Seconds**: wall time a tenant. **Events** and **kB**: rows in Dagster's event log and growth of
  its database, a tenant.

| | tenants | runs | CPU s of the run | CPU s of the server | CPU s | seconds | events | kB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

A tenant costs {ratio:.1f} times less CPU in a run over {PER_RUN} than in a run of its own. The bar
is {BAR:.0f} times: {"reached" if ratio >= BAR else "missed"}.

The alerts' questions, each asked of all {one.tenants + ranged.tenants:,} tenants in turn: {looks}.
"""


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        run(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:]))
