"""The real thing once: `forgetting dev`, its web server, its daemon, a backfill, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from forgetting_assets.cli import DEMO_ENVIRONMENT
from resources import migrations
from resources.addresses import Addresses
from tests.graph import ASSETS, MARKER
from tests.support import DAY, Store

FORGETTING = Path(sys.executable).with_name("forgetting")
HANG = 300
"""Seconds after which a wait is given up; on a quiet machine the whole test takes about 60."""
OF_THE_EVAL = ("calibration_fixture", "judge_evaluation", "judge_thresholds", "judge_drift")
TENANTS = ("acme", "globex")
KEYS = [f"{DAY}|{slug}" for slug in TENANTS]

T = TypeVar("T")


class Dev:
    """`forgetting dev --demo` in a process of its own, asked over HTTP."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = environment
        self.log = home / "dev.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [FORGETTING, "dev", "--demo", "--port", str(self.port)],
                env=environment,
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def until(self, what: str, ask: Callable[[], T | None]) -> T:
        """Ask until there is an answer, as long as the process lives."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"it ended: {self.said()}"
            with contextlib.suppress(httpx.TransportError):
                answer = ask()
                if answer is not None:
                    return answer
            time.sleep(0.5)
        raise AssertionError(f"waited {HANG} s for {what}: {self.said()}")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=60)

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer."""
        response = httpx.post(
            f"http://127.0.0.1:{self.port}/graphql",
            json={"query": query, "variables": variables},
            timeout=60,
        )
        answer = response.json()
        assert "errors" not in answer, answer
        return answer["data"]

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def family(self) -> list[psutil.Process]:
        """The process and everything that it started."""
        itself = psutil.Process(self.process.pid)
        return [itself, *itself.children(recursive=True)]


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def dev(places: Addresses, store: Store, tmp_path: Path) -> Iterator[Dev]:
    """The UI on the test's own databases, where two tenants have something to forget."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    store.mark_demo()
    for slug in TENANTS:
        user_id = store.tenant(slug)
        store.memory(user_id, f"{MARKER} for {slug}", topic=MARKER)
        store.pair(user_id, topic=MARKER)
        store.evidence(user_id, content=f"{MARKER} of {slug}", age=90)
    started = Dev(
        tmp_path,
        {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "FORGETTING_HOME": str(tmp_path / "forgetting"),
            "FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}',
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
        },
    )
    yield started
    # Only what a failed test left: the test itself asks that nothing is.
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in reversed(started.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    started.process.wait()


LAUNCH = """
mutation Launch($of: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $of) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
KNOWN = """
query { assetNodeOrError(assetKey: {path: ["stale_candidates"]}) {
  ... on AssetNode { partitionKeysByDimension { name partitionKeys } }
} }
"""
LOCATIONS = """
query { workspaceOrError { ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename }
} } } }
"""
BACKFILLS = """
query { partitionBackfillsOrError {
  ... on PartitionBackfills { results { id status error { message } } }
} }
"""
RUNS = """
query Runs($id: String!) {
  runsOrError(filter: {tags: [{key: "dagster/backfill", value: $id}]}) {
    ... on Runs { results { runId status tags { key value } } }
  }
}
"""
CHECKS = """
query { assetNodes {
  assetKey { path }
  assetMaterializations(partitions: %s) { partition metadataEntries { label } }
  assetChecksOrError { ... on AssetChecks { checks {
    name blocking executionForLatestMaterialization { status evaluation { partition } }
  } } }
} }
"""


def test_a_backfill_through_the_ui_runs_in_the_daemon_and_an_interrupt_leaves_no_process(
    dev: Dev, store: Store
) -> None:
    info = dev.until(
        "the web server",
        lambda: (response := dev.get("/server_info")).status_code == 200 and response.json(),
    )
    assert set(info) >= {"dagster_version", "dagster_webserver_version"}
    assert dev.get("/").status_code == 200

    def located() -> dict[str, str] | None:
        """Both code locations, and what loading them came to."""
        entries = dev.ask(LOCATIONS)["workspaceOrError"].get("locationEntries", [])
        if any(each["loadStatus"] == "LOADING" for each in entries) or not entries:
            return None
        return {each["name"]: each["locationOrLoadError"]["__typename"] for each in entries}

    assert dev.until("the code locations", located) == {
        "forgetting_assets.definitions": "RepositoryLocation",
        "eval.definitions": "RepositoryLocation",
    }

    def known() -> list[str] | None:
        found = dev.ask(KNOWN)["assetNodeOrError"].get("partitionKeysByDimension", [])
        keys = {each["name"]: each["partitionKeys"] for each in found}
        return keys["date"] if sorted(keys.get("tenant", ())) == sorted(TENANTS) else None

    known_days = dev.until("the sensor to add both tenants", known)
    assert DAY.isoformat() in known_days

    before = store.dump("memories")
    launched = dev.ask(
        LAUNCH,
        of={"assetSelection": [{"path": [asset]} for asset in ASSETS], "partitionNames": KEYS[:1]},
    )["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    # Meanwhile the other partition from the command line, by the same daemon.
    days = ["--from", DAY.isoformat(), "--to", DAY.isoformat()]
    command = subprocess.run(
        [FORGETTING, "backfill", "--tenants", TENANTS[1], *days],
        env={**dev.environment, **DEMO_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert command.returncode == 0, command.stdout + command.stderr
    assert "Another command's Dagster daemon executes it." in command.stdout
    assert "1 done, 0 failed, 0 running of 1" in command.stdout

    def ended() -> list[dict[str, Any]] | None:
        states: list[dict[str, Any]] = dev.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]
        unfinished = any(each["status"] in ("REQUESTED", "CANCELING") for each in states)
        return None if unfinished else states

    backfills = dev.until("both backfills", ended)
    assert launched["backfillId"] in [each["id"] for each in backfills]
    assert [(each["status"], each["error"]) for each in backfills] == [
        ("COMPLETED_SUCCESS", None)
    ] * 2
    runs = [
        run for each in backfills for run in dev.ask(RUNS, id=each["id"])["runsOrError"]["results"]
    ]
    assert [run["status"] for run in runs] == ["SUCCESS", "SUCCESS"]
    partitions = [
        tag["value"] for run in runs for tag in run["tags"] if tag["key"] == "dagster/partition"
    ]
    assert sorted(partitions) == KEYS, "one run a partition"

    shown = {node["assetKey"]["path"][0]: node for node in dev.ask(CHECKS % quoted())["assetNodes"]}
    assert set(shown) >= {*ASSETS, *OF_THE_EVAL}
    for asset in ASSETS:
        materialized = shown[asset]["assetMaterializations"]
        assert sorted(each["partition"] for each in materialized) == KEYS
        labels = {entry["label"] for each in materialized for entry in each["metadataEntries"]}
        assert labels >= {"dagster/partition_row_count", "dagster/column_schema"}
        if asset == "memory_health":
            continue  # it names no memory, so there is nothing to check
        checks = shown[asset]["assetChecksOrError"]["checks"]
        assert "zero_episodic_collapse" in [check["name"] for check in checks if check["blocking"]]
        for check in checks:
            latest = check["executionForLatestMaterialization"]
            assert latest["status"] == "SUCCEEDED"
            assert latest["evaluation"]["partition"] in KEYS

    results = store.rows("SELECT user_id, run_id, passed FROM forgetting.invariant_results")
    assert {row["run_id"] for row in results} == {run["runId"] for run in runs}
    assert all(row["passed"] for row in results)
    assert len({row["user_id"] for row in results}) == 2
    verdicts = store.rows("SELECT user_id, answer_model FROM forgetting.judged_verdicts")
    assert len(verdicts) == 4
    assert {row["answer_model"] for row in verdicts} == {"scripted"}
    archived = store.rows("SELECT user_id FROM evidence WHERE archived_at IS NOT NULL")
    assert len(archived) == 2
    assert store.dump("memories") == before

    family = dev.family()
    assert len(family) >= 4, "the command, dagster dev, its web server, its daemon"
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(timeout=HANG) == 0
    deadline = time.monotonic() + HANG
    while any(alive(process) for process in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [process for process in family if alive(process)] == []
    with pytest.raises(httpx.TransportError):
        dev.get("/server_info")
    said = dev.log.read_text(errors="replace")
    assert f"The Dagster UI opens at http://127.0.0.1:{dev.port}" in said
    assert MARKER not in said


def quoted() -> str:
    return "[" + ", ".join(f'"{key}"' for key in KEYS) + "]"
