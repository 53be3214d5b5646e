"""JSON logs: what a run, a command and an agent's server write, and what they never do."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import anyio
import dagster as dg
import pytest
import typer
from mcp import Client

from forgetting_assets import partitions
from forgetting_assets.commands.console import run_app
from forgetting_assets.definitions import build_defs
from forgetting_assets.runs import QUIET
from forgetting_assets.server import build
from forgetting_assets.store import candidates
from resources import logs
from resources.clock import Clock
from resources.errors import BudgetExceeded
from resources.flag import Flag
from resources.settings import PROJECT
from tests.graph import ASSETS
from tests.support import DAY, TODAY, Store, TestJudge, make_policy, say

pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

MARKER = "Zebulon7Quill keeps the violet ledger"
WORD = "Zebulon7Quill"
HANDLER: Any = {"dagster_handler_config": {"handlers": {"it": {"class": "resources.logs.RunLog"}}}}


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGETTING_LOG_FORMAT", "json")


@pytest.fixture
def instance(tmp_path: Any) -> Iterator[dg.DagsterInstance]:
    """Dagster with the handler that dagster.yaml names."""
    overrides: Any = {"python_logs": HANDLER, "telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        instance.add_dynamic_partitions("tenants", ["acme"])
        yield instance


def lines(printed: str) -> list[dict[str, Any]]:
    """Every line of what was printed: an object with a time, a level and a name."""
    found = [json.loads(line) for line in printed.splitlines()]
    for line in found:
        assert list(line)[:3] == ["time", "level", "event"]
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta()
        assert line["level"] in ("info", "warning", "error", "critical")
    return found


def run_pass(
    store: Store,
    instance: dg.DagsterInstance,
    *assets: str,
    config: dict[str, Any] | None = None,
) -> dg.ExecuteInProcessResult:
    defs = build_defs(
        database=store.database,
        clock=Clock(fixed=TODAY.isoformat()),
        gateway=TestJudge.that(say("archive")),
        flag=Flag(pass_enabled=True, archive_enabled=True),
        policy=make_policy(),
    )
    return defs.resolve_job_def("forgetting_pass").execute_in_process(
        partition_key=partitions.key(DAY, "acme"),
        instance=instance,
        raise_on_error=False,
        asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
        run_config=config,
    )


def furnish(store: Store) -> None:
    acme = store.tenant()
    for number in range(3):
        store.memory(acme, f"{MARKER} {number}", topic=MARKER, age=60 + number)


def test_a_run_says_what_it_did_for_its_partition_one_object_a_line(
    store: Store, instance: dg.DagsterInstance, as_json: None, capfd: pytest.CaptureFixture[str]
) -> None:
    furnish(store)
    # Without a config, as the daemon starts it: Dagster's console would be on.
    result = run_pass(store, instance)
    assert result.success
    out, err = capfd.readouterr()
    assert out == ""
    assert WORD not in err
    found = lines(err)
    assert (found[0]["event"], found[-1]["event"]) == ("run_started", "run_succeeded")
    for line in found:
        assert (line["run_id"], line["tenant"], line["run_date"]) == (
            result.run_id,
            "acme",
            DAY.isoformat(),
        )
    made = {line["asset"]: line for line in found if line["event"] == "asset_materialized"}
    assert set(made) == set(ASSETS)
    assert made["stale_candidates"]["stale_candidates"] == 3
    assert made["judged_verdicts"]["calls"] == 1
    assert isinstance(made["judged_verdicts"]["spend_usd"], float)
    checks = [line for line in found if line["event"] == "check_evaluated"]
    assert {line["check"] for line in checks} >= {"zero_episodic_collapse", "blast_radius"}
    assert all(line["passed"] is True for line in checks)
    assert all(line["seconds"] >= 0 for line in found if line["event"] == "step_finished")
    # The console alone is silent: Dagster's own record has everything.
    kept = {event.event_type_value for event in result.all_events}
    assert {"STEP_START", "ASSET_MATERIALIZATION"} <= kept
    assert any(
        "The thresholds are from" in entry.user_message
        for entry in instance.all_logs(result.run_id)
    )


def test_as_text_a_run_has_no_json_line_and_dagsters_console_is_as_ever(
    store: Store, instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str]
) -> None:
    store.tenant(judgment=False, archival=False)
    assert run_pass(store, instance, "memory_health").success
    said = "".join(capfd.readouterr())
    assert "RUN_SUCCESS" in said
    assert not any(line.startswith("{") for line in said.splitlines())
    assert run_pass(store, instance, "memory_health", config=QUIET).success
    assert "".join(capfd.readouterr()) == ""


def test_a_run_that_breaks_in_the_middle_says_the_class_of_a_foreign_error_and_no_text(
    store: Store,
    instance: dg.DagsterInstance,
    as_json: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    furnish(store)

    def break_down(*_args: object, **_more: object) -> object:
        held_here = MARKER
        raise KeyError(held_here)

    monkeypatch.setattr(candidates, "select", break_down)
    result = run_pass(store, instance, "stale_candidates")
    assert not result.success
    err = capfd.readouterr().err
    assert WORD not in err
    found = {line["event"]: line for line in lines(err)}
    assert found["step_failed"]["error"] == "StepBroken"
    assert found["step_failed"]["level"] == "error"
    # Its class and its place, by which it is found, and not its words.
    assert "KeyError at test_logs.py:" in found["step_failed"]["message"]
    assert found["run_failed"]["level"] == "error"
    # Nor does Dagster keep them.
    kept = [
        event.step_failure_data.error.to_string()
        for event in result.all_events
        if event.event_type_value == "STEP_FAILURE" and event.step_failure_data.error
    ]
    assert kept
    assert not any(WORD in each for each in kept)


def test_an_error_of_ours_is_a_sentence(
    store: Store,
    instance: dg.DagsterInstance,
    as_json: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    furnish(store)

    def refuse(*_args: object, **_more: object) -> object:
        raise BudgetExceeded("Too much: it is spent.")

    monkeypatch.setattr(candidates, "select", refuse)
    assert not run_pass(store, instance, "stale_candidates").success
    (line,) = [each for each in lines(capfd.readouterr().err) if each["event"] == "step_failed"]
    assert (line["error"], line["message"]) == ("BudgetExceeded", "Too much: it is spent.")


def test_what_a_library_logs_has_the_class_of_its_error_alone(
    as_json: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    logs.speak_json()
    try:
        raise KeyError(MARKER)
    except KeyError:
        logging.getLogger("a.library").exception("It broke")
    logging.getLogger("a.library").info("not said")
    (line,) = lines(capfd.readouterr().err)
    assert (line["event"], line["error"], line["logger"]) == ("It broke", "KeyError", "a.library")
    assert WORD not in json.dumps(line)


def test_an_agents_call_is_a_line_with_its_tool_and_seconds(
    store: Store, as_json: None, capfd: pytest.CaptureFixture[str]
) -> None:
    furnish(store)
    acme = store.partition().user_id

    async def main() -> None:
        async with Client(build(store.database, acme, Clock(), write=False)) as client:
            assert not (await client.call_tool("memory_health", {})).is_error
            assert (await client.call_tool("dereference", {"id": str(uuid4())})).is_error

    anyio.run(main)
    out, err = capfd.readouterr()
    assert out == ""
    called, failed = lines(err)
    assert (called["event"], called["tool"]) == ("tool_called", "memory_health")
    assert (failed["event"], failed["tool"]) == ("tool_failed", "dereference")
    assert called["seconds"] >= 0
    assert WORD not in err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError(MARKER), {"error": "KeyError"}),
        (BudgetExceeded("It is spent."), {"error": "BudgetExceeded", "message": "It is spent."}),
    ],
    ids=["foreign", "ours"],
)
def test_a_command_that_fails_is_a_line_without_its_arguments(
    error: Exception,
    said: dict[str, str],
    as_json: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = typer.Typer()

    @app.command()
    def recall(words: str) -> None:
        raise error

    @app.command()
    def good() -> None:
        typer.echo("what it prints")

    monkeypatch.setattr(sys, "argv", ["forgetting", "recall", MARKER])
    with pytest.raises(SystemExit) as end:
        run_app(app)
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (1, "")
    (line,) = lines(err)
    assert line.pop("seconds") >= 0
    assert line.items() >= {"event": "command_failed", "command": "recall", **said}.items()
    assert WORD not in err
    monkeypatch.setattr(sys, "argv", ["forgetting", "good"])
    with pytest.raises(SystemExit) as end:
        run_app(app)
    out, err = capfd.readouterr()
    assert (end.value.code or 0, out) == (0, "what it prints\n")
    assert [line["event"] for line in lines(err)] == ["command_finished"]


def test_dagsters_configuration_names_the_handler() -> None:
    text = (PROJECT / "dagster.yaml").read_text(encoding="utf-8")
    assert "class: resources.logs.RunLog" in text
