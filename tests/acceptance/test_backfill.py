"""`forgetting backfill` with the real daemon: killed half-way, resumed, failing for one tenant."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
import sqlalchemy as sa
import yaml
from dagster._daemon.types import DaemonHeartbeat

from resources.addresses import Addresses
from resources.database import Database, engine
from resources.settings import PROJECT
from tests.acceptance.test_cli import Cli, Inside, cli, inside  # noqa: F401 - fixtures
from tests.graph import ASSETS
from tests.support import DAY, Store

HANG = 600
"""Seconds after which a wait is given up."""
TENANTS = ("acme", "globex", "initech")
DAYS = [DAY - timedelta(days=n) for n in reversed(range(10))]
ALL = ("--from", DAYS[0].isoformat(), "--to", DAYS[-1].isoformat())
FAILING = (DAYS[2], DAYS[7])
ON = {
    "FORGETTING_PASS_ENABLED": "true",
    "FORGETTING_ARCHIVE_ENABLED": "true",
    "FORGETTING_GATEWAY": "scripted",
    "FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}',
}


@dataclass
class Dagster:
    """What Dagster's own database says."""

    engine: sa.Engine

    def rows(self, query: str, **parameters: Any) -> list[Any]:
        with self.engine.begin() as connection:
            return list(connection.execute(sa.text(query), parameters))

    def runs(self, *statuses: str) -> list[str]:
        """The partitions of the runs in some statuses; none before the first run."""
        with contextlib.suppress(sa.exc.ProgrammingError):
            query = "SELECT partition FROM runs WHERE status = ANY(:statuses) ORDER BY id"
            return [row.partition for row in self.rows(query, statuses=[*statuses])]
        return []

    def materialized(self) -> Counter[tuple[str, str]]:
        """How often each asset was materialized for each partition."""
        return Counter(
            (row.asset_key.strip('[]"'), row.partition)
            for row in self.rows(
                "SELECT asset_key, partition FROM event_logs "
                "WHERE dagster_event_type = 'ASSET_MATERIALIZATION'"
            )
        )

    def backfills(self) -> list[str]:
        """The statuses of all backfills, oldest first."""
        return [row.status for row in self.rows("SELECT status FROM bulk_actions ORDER BY id")]

    def forget_heartbeats(self) -> None:
        """Let a minute go by since the daemon's last sign of life."""
        with self.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM daemon_heartbeats"))


@pytest.fixture
def dagster(places: Addresses) -> Iterator[Dagster]:
    pool = engine(places.dagster)
    yield Dagster(pool)
    pool.dispose()


@pytest.fixture
def home(tmp_path: Path, places: Addresses, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DAGSTER_HOME with the project's dagster.yaml, whose queue is looked at every second.

    This process's own as well, until the test ends.
    """
    config = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    config["run_coordinator"] = {
        "module": "dagster._core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    }
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    for name, value in {**places.environment(), "DAGSTER_HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    return home


@dataclass
class Started:
    """A command in a process of its own, whose output goes to a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG
        while not true():
            assert self.process.poll() is None, f"it ended before {what}: {self.said}"
            assert time.monotonic() < deadline, f"waited for {what}: {self.said}"
            time.sleep(0.1)

    def end(self) -> int:
        return self.process.wait(timeout=HANG)

    def family(self) -> list[psutil.Process]:
        """The process and everything that it started."""
        itself = psutil.Process(self.process.pid)
        return [itself, *itself.children(recursive=True)]

    def kill(self) -> None:
        """SIGKILL for all of them, the starters first."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@dataclass
class Backfill:
    """Starts `forgetting backfill`, and kills what a failed test left."""

    cli: Cli
    started: list[Started]
    environment: dict[str, str]

    def __call__(self, *arguments: str) -> Started:
        log = self.cli.home / f"backfill-{len(self.started)}.log"
        with log.open("wb") as output:
            process = self.cli.start("backfill", *arguments, output=output, **self.environment)
        self.started.append(Started(process, log))
        return self.started[-1]


@pytest.fixture
def backfill(cli: Cli, home: Path) -> Iterator[Backfill]:  # noqa: F811
    each = Backfill(cli, [], {**ON, "DAGSTER_HOME": str(home)})
    yield each
    for started in each.started:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.kill()


def gone(family: list[psutil.Process]) -> bool:
    """Whether no process of a family is left, within some seconds."""
    _, alive = psutil.wait_procs(family, timeout=60)
    return not alive


def populate(store: Store) -> None:
    """Three tenants: a memory of each becomes stale on each day, and a trace is due."""
    store.mark_demo()
    for slug in TENANTS:
        user_id = store.tenant(slug)
        for n in range(len(DAYS)):
            store.memory(user_id, age=30.5 + n)
        store.evidence(user_id, age=90)


def test_a_backfill_that_is_killed_half_way_is_resumed_and_every_partition_is_done_once(
    backfill: Backfill,
    inside: Inside,  # noqa: F811
    store: Store,
    dagster: Dagster,
) -> None:
    populate(store)
    days = ", ".join(f"'{day}'" for day in FAILING)
    store.execute(
        "ALTER TABLE forgetting.memory_health ADD CONSTRAINT refuses_two_days CHECK (NOT ("
        f"user_id = (CAST('{store.partition('globex').user_id}' AS uuid))"
        f" AND run_date IN ({days})))"
    )

    first = backfill(*ALL)
    first.until("a third of it", lambda: len(dagster.runs("SUCCESS")) >= 10)
    first.until("a run under way", lambda: bool(dagster.runs("STARTED")))
    first.kill()
    finished = set(dagster.runs("SUCCESS", "FAILURE"))
    killed = set(dagster.runs("STARTING", "STARTED"))
    assert killed
    assert len(finished) < 25
    dagster.forget_heartbeats()

    second = backfill(*ALL)
    second.until("its daemon", lambda: "this command runs one" in second.said)
    family = second.family()
    assert second.end() == 1
    assert gone(family)
    failed = {f"{day}|globex" for day in FAILING}
    assert "Runs that were killed before: " in second.said
    for key in failed:
        assert f"{key}: The database refused a statement" in second.said
        assert "refuses_two_days" in second.said
    assert "2 of 30 partitions are not done." in second.said
    assert "\x1b" not in first.said + second.said, "no control characters in a pipe"

    times = dagster.materialized()
    keys = {f"{day}|{slug}" for day in DAYS for slug in TENANTS}
    for key in keys:
        for asset in ASSETS:
            most = 2 if key in killed | failed else 1
            least = 0 if key in failed and asset == "memory_health" else 1
            assert least <= times[asset, key] <= most, (asset, key)
    judged = store.rows("SELECT memory_id FROM forgetting.judged_verdicts")
    assert len({row["memory_id"] for row in judged}) == len(judged) == 30
    calls = len(store.rows("SELECT 1 FROM llm_usage"))
    # Fewer where a later day took the item of a killed one into its own call.
    assert calls <= 30 + len(killed), "at most the call in flight is paid for twice"
    assert not dagster.runs("QUEUED", "STARTING", "STARTED", "NOT_STARTED")

    store.execute("ALTER TABLE forgetting.memory_health DROP CONSTRAINT refuses_two_days")
    for day in FAILING:
        mended = backfill.cli(
            "run", "--tenant", "globex", "--date", day.isoformat(), **backfill.environment
        )
        assert mended.code == 0, mended
    third = inside.good("backfill", *ALL, **ON)
    assert third.out.startswith("Nothing to do: all 30 partitions are materialized.")
    assert len(dagster.backfills()) == 2


def test_a_stopped_command_leaves_no_process_and_a_backfill_that_the_same_command_goes_on_with(
    backfill: Backfill,
    store: Store,
    dagster: Dagster,
    home: Path,
) -> None:
    populate(store)
    # No run begins: what is asked for here is what becomes of the backfill.
    config = yaml.safe_load((home / "dagster.yaml").read_text())
    config["concurrency"]["runs"]["max_concurrent_runs"] = 0
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    day = ("--tenants", "acme,globex", "--from", DAYS[-1].isoformat(), "--to", DAYS[-1].isoformat())
    again = f"`forgetting backfill {' '.join(day)}`"

    alone = backfill(*day)
    alone.until("its daemon", lambda: "this command runs one" in alone.said)
    family = alone.family()
    assert len(family) > 1
    alone.process.send_signal(signal.SIGTERM)
    assert alone.end() == 1
    assert "Stopped with 2 of 2 partitions to go." in alone.said
    assert f"{again} goes on with it." in alone.said
    assert gone(family)
    assert dagster.backfills() == ["REQUESTED"]
    assert dagster.rows("SELECT 1 FROM daemon_heartbeats") == []

    with dg.DagsterInstance.get() as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SENSOR", "another", []))
    beside = backfill(*day)
    beside.until("the daemon", lambda: "A Dagster daemon runs already" in beside.said)
    assert "is under way: 2 partitions are left of it." in beside.said
    assert [each for each in beside.family() if each.pid != beside.process.pid] == []
    beside.process.send_signal(signal.SIGINT)
    assert beside.end() == 1
    assert "No longer followed, with 2 of 2 partitions to go." in beside.said
    assert f"{again} follows it again." in beside.said
    assert dagster.backfills() == ["REQUESTED"], "nothing was requested twice"
    assert dagster.rows("SELECT daemon_id FROM daemon_heartbeats") == [("another",)]


def test_what_cannot_be_backfilled_is_refused_before_anything_is_requested(
    inside: Inside,  # noqa: F811
    home: Path,
    store: Store,
    dagster: Dagster,
) -> None:
    store.mark_demo()
    for slug in ("acme", "retired"):
        store.tenant(slug)
    store.retire("retired")
    today = datetime.now(UTC).date().isoformat()
    day = DAY.isoformat()

    def refused(first: str, last: str, *arguments: str) -> str:
        return inside.sentence("backfill", *arguments, "--from", first, "--to", last, **ON)

    assert "no tenant nobody" in refused(day, day, "--tenants", "acme,nobody")
    assert "tenant retired was retired" in refused(day, day, "--tenants", "acme,retired")
    assert "1 to 63 of a-z" in refused(day, day, "--tenants", "acme,,")
    assert "has not ended in UTC" in refused(day, today)
    assert "first day is FORGETTING_START_DATE, 2026-01-01" in refused("2025-12-31", day)
    assert refused("2026-08-31", "2026-08-30") == (
        "--from 2026-08-31 is later than --to 2026-08-30: swap them."
    )
    assert "is not a date" in refused("yesterday", day)
    store.retire("acme")
    assert "no active tenant" in refused(day, day)
    off = inside.good("backfill", "--from", day, "--to", day)
    assert off.out == "FORGETTING_PASS_ENABLED is off: nothing was read.\n"
    with contextlib.suppress(sa.exc.ProgrammingError):  # no table: Dagster was never asked
        assert dagster.backfills() == []


def test_two_commands_never_run_a_daemon_each_on_one_database(
    inside: Inside,  # noqa: F811
    home: Path,
    database: Database,
    store: Store,
) -> None:
    store.mark_demo()
    with database.daemon_of_ours() as ours:
        assert ours
        assert "Another forgetting command runs a Dagster daemon" in inside.sentence(
            "dev", "--port", "61999"
        )
    with database.daemon_of_ours() as ours:
        assert ours, "the claim ends with the command"
