"""Trimming Dagster's event log: what Dagster says of partitions, checks and runs stays the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.event_api import EventLogCursor
from dagster._core.events import ASSET_EVENTS
from dagster._core.events import DagsterEventType as Type

from forgetting_assets.definitions import build_defs
from forgetting_assets.store import events
from resources.database import engine
from tests.acceptance.test_cli import ON, Inside, cli, inside  # noqa: F401 - fixtures
from tests.support import Store

DAYS = ("2026-08-29", "2026-08-30", "2026-08-31")
SETTINGS = {
    **ON,
    "FORGETTING_GATEWAY": "scripted",
    "FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}',
}


# What a process of its own shows on standard error fails a test inside this one.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def dagster(inside: Inside) -> Iterator[sa.Engine]:  # noqa: F811
    """Dagster's own database."""
    memory = sa.make_url(inside.environment["DATABASE_URL"])
    pool = engine(memory.set(database=f"{memory.database}_dagster"))
    yield pool
    pool.dispose()


@pytest.fixture
def home(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """The folder of Dagster's instance, as a command makes it."""
    folder = inside.home / "forgetting" / "dagster"
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    inside.environment["FORGETTING_HOME"] = str(folder.parent)
    memory = sa.make_url(inside.environment["DATABASE_URL"])
    monkeypatch.setenv(
        "DAGSTER_DATABASE_URL",
        memory.set(database=f"{memory.database}_dagster").render_as_string(hide_password=False),
    )
    return folder


def run(inside: Inside, day: str, *, fails: bool = False) -> None:  # noqa: F811
    floors = {"FORGETTING_CONFLICT_FLOORS": "{}"} if fails else {}
    said = inside("run", "--tenant", "acme", "--date", day, **SETTINGS | floors)
    assert said.code == fails, said


def age(dagster: sa.Engine, day: str, **values: Any) -> None:
    """Change the run of a day, such as its end."""
    sets = ", ".join(f"{name} = :{name}" for name in values)
    with dagster.begin() as connection:
        changed = connection.execute(
            sa.text(
                f"UPDATE runs SET {sets} WHERE run_id IN (SELECT run_id FROM run_tags "
                "WHERE key = 'dagster/partition/date' AND value = :day)"
            ),
            {**values, "day": day},
        )
    assert changed.rowcount == 1


def stored(dagster: sa.Engine) -> dict[str, list[str | None]]:
    """The types of the events of each run, by its day, in order."""
    with dagster.connect() as connection:
        rows = connection.execute(
            sa.text(
                "SELECT t.value, l.dagster_event_type FROM event_logs AS l "
                "JOIN run_tags AS t ON t.run_id = l.run_id AND t.key = 'dagster/partition/date' "
                "ORDER BY l.id"
            )
        ).all()
    return {day: [kind for of, kind in rows if of == day] for day in DAYS}


def says(dagster: sa.Engine, home: Path) -> dict[str, Any]:
    """What Dagster itself says, asked of a new instance without what it remembers of partitions."""
    graph = build_defs().resolve_asset_graph()
    with dagster.begin() as connection:
        connection.execute(sa.text("UPDATE asset_keys SET cached_status_data = NULL"))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        log = instance.event_log_storage
        said: dict[str, Any] = {
            "runs": [
                (each.dagster_run.run_id, each.dagster_run.status, each.start_time, each.end_time)
                for each in instance.get_run_records()
            ]
        }
        for key in graph.materializable_asset_keys:
            name = key.to_user_string()
            last = instance.get_latest_materialization_event(key)
            said[f"{name}: last"] = last and (last.run_id, last.asset_materialization)
            said[f"{name}: materialized"] = instance.get_materialized_partitions(key)
            partitions = graph.get(key).partitions_def
            said[f"{name}: status"] = instance.get_status_by_partition(
                key, [f"{day}|acme" for day in DAYS], partitions
            )
        for check in graph.asset_check_keys:
            said[str(check)] = [
                (each.run_id, each.status, each.partition)
                for each in log.get_asset_check_execution_history(check, limit=20)
            ]
        for record in instance.get_run_records():
            failures = instance.all_logs(
                record.dagster_run.run_id, of_type={Type.STEP_FAILURE, Type.RUN_FAILURE}
            )
            said[record.dagster_run.run_id] = [each.message for each in failures]
            # A page of the run still opens.
            instance.get_run_stats(record.dagster_run.run_id)
            instance.get_run_step_stats(record.dagster_run.run_id)
            log.get_records_for_run(
                record.dagster_run.run_id, EventLogCursor.from_offset(0).to_string()
            )
        return said


def test_trimming_leaves_partitions_checks_failures_and_the_list_of_runs_as_they_are(
    inside: Inside,  # noqa: F811
    store: Store,
    dagster: sa.Engine,
    home: Path,
) -> None:
    store.mark_demo()
    user_id = store.tenant()
    store.memory(user_id)
    store.pair(user_id)
    store.evidence(user_id, age=90)
    nothing = inside.good("trim-events", "--yes")
    assert "has events to trim" in nothing.out  # Dagster has no table yet

    old_and_good, old_and_failed, recent = DAYS
    run(inside, old_and_good)
    run(inside, old_and_failed, fails=True)
    run(inside, recent)
    long_ago = (datetime.now(UTC) - timedelta(days=91)).timestamp()
    for day in (old_and_good, old_and_failed):
        age(dagster, day, end_time=long_ago)
    before, had = says(dagster, home), stored(dagster)
    statuses = [value for name, value in before.items() if name.endswith(": status")]
    assert {f"{recent}|acme", f"{old_and_good}|acme"} <= before["archival_sweep: materialized"]
    assert any("FAILED" in str(each) for each in statuses)
    assert any(before[run_id] for run_id, *_ in before["runs"])

    # Nobody is there to be asked, so it says how much it is and takes nothing.
    asked = inside.sentence("trim-events")
    assert re.match(r"Delete \d+ events, \d+\.\d MB, of 2 runs that ended before ", asked)
    assert asked.endswith("add --yes.")
    assert stored(dagster) == had

    done = inside.good("trim-events", "--yes").out
    (deleted,) = re.findall(r"^Deleted (\d+) events", done)
    assert re.findall(r"Delete (\d+) events", asked) == [deleted]
    now = stored(dagster)
    assert now[recent] == had[recent]
    for day in (old_and_good, old_and_failed):
        assert now[day] == [
            kind for kind in had[day] if kind is not None and kind not in events.TRIMMED
        ]
        assert 0 < len(now[day]) < len(had[day]) / 1.5
    assert says(dagster, home) == before
    assert "has events to trim" in inside.good("trim-events", "--yes").out

    # A day whose events were trimmed is run again like any other.
    run(inside, old_and_failed)
    after = says(dagster, home)
    assert f"{old_and_failed}|acme" in after["archival_sweep: materialized"]


def test_only_runs_that_ended_are_trimmed_and_a_stopped_trimming_goes_on(
    inside: Inside,  # noqa: F811
    store: Store,
    dagster: sa.Engine,
    home: Path,
) -> None:
    store.mark_demo()
    store.memory(store.tenant())
    for day in DAYS[:2]:
        run(inside, day)
        age(dagster, day, end_time=1.0)
    age(dagster, DAYS[0], status="STARTED")
    age(dagster, DAYS[1], end_time=1000.0)
    had = stored(dagster)
    ended = datetime.fromtimestamp(1000, UTC)
    assert events.count(dagster, ended) == events.Trimmable(0, 0, 0)
    found = events.count(dagster, ended + timedelta(seconds=1))
    assert found.runs == 1
    assert found.bytes > found.events

    batches = events.trim(dagster, ended + timedelta(seconds=1), batch=7)
    assert next(batches) == 7
    batches.close()
    rest = list(events.trim(dagster, ended + timedelta(seconds=1), batch=7))
    assert 7 + sum(rest) == found.events
    assert set(rest[:-1]) == {7}
    now = stored(dagster)
    assert now[DAYS[0]] == had[DAYS[0]]
    assert len(had[DAYS[1]]) - len(now[DAYS[1]]) == found.events


def test_what_is_trimmed_is_of_no_asset_no_check_no_run_and_no_failure() -> None:
    known = {each.value for each in Type}
    assert set(events.TRIMMED) <= known
    kept = known - set(events.TRIMMED)
    assert {name for name in known if name.startswith(("ASSET_CHECK", "PIPELINE_", "RUN_"))} <= kept
    assert {each.value for each in ASSET_EVENTS} <= kept
    assert {name for name in known if name.endswith(("_FAILURE", "_ERRORED"))} <= kept
