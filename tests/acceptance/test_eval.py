"""The eval as a user meets it: the command `forgetting-eval`, and its code location in Dagster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_shared.serdes import serialize_value
from rich.console import Console

from eval import answers, assets, calibrate, definitions
from eval import cli as command_line
from eval.answers import SCRIPTED
from eval.fixture import CALIBRATION, Fixture, load
from eval.sensors import new_judge_model
from forgetting_assets.commands import console
from forgetting_assets.runs import QUIET
from resources import thresholds
from resources.clock import Clock
from resources.database import Database
from resources.gateway import JevGateway
from resources.settings import PROJECT
from tests.acceptance.test_cli import BIN, HANG, Said
from tests.eval_items import fixture_file, item
from tests.fake_jev import MODEL, FakeJev, by_content
from tests.http_server import Reply
from tests.support import TODAY, choose

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run")

MARKER = "Ottoline keeps the violet ledger"
RECORDED = PROJECT / "eval" / "recorded"
SCRIPT = RECORDED / "scripted.jsonl"
BARS = ("archive_precision", "zero_collapses")


@dataclass
class Eval:
    """`forgetting-eval …` in this process: a process of its own costs seconds."""

    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str | Path, **environment: str) -> Said:
        with self.patch.context() as patch:
            for name, value in {**self.environment, **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["forgetting-eval", *map(str, arguments)])
            self.capture.readouterr()
            with pytest.raises(SystemExit) as ended:
                command_line.main()
        read = self.capture.readouterr()
        return Said(int(ended.value.code or 0), read.out, read.err)

    def good(self, *arguments: str | Path, **environment: str) -> str:
        said = self(*arguments, **environment)
        assert (said.code, said.err) == (0, ""), said
        return said.out

    def object(self, *arguments: str | Path, **environment: str) -> dict[str, Any]:
        """The one JSON object that a command prints."""
        found: dict[str, Any] = json.loads(self.good(*arguments, "--json", **environment))
        return found

    def sentence(self, *arguments: str | Path, **environment: str) -> str:
        said = self(*arguments, **environment)
        assert said.code == 1, said
        assert len(said.err.splitlines()) == 1, said
        assert MARKER not in said.out + said.err
        return said.err.strip()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Eval:
    wide = Console(highlight=False, width=160)
    monkeypatch.setattr(console, "console", wide)
    monkeypatch.setattr(command_line, "console", wide)
    return Eval(monkeypatch, capsys)


@pytest.fixture
def jev(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJev]:
    """A judge that answers by content, which the settings name."""
    with FakeJev(answer=by_content) as jev:
        monkeypatch.setenv("JEV_BASE_URL", jev.url)
        monkeypatch.setenv("JEV_MODEL", MODEL)
        monkeypatch.setenv("JEV_API_KEY", "key-of-a-test")
        yield jev


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A private set of its own, whose every text has the marker."""
    folder = tmp_path / "private"
    folder.mkdir()
    items = [
        item(f"g{n}", label, kind=kind, slice=slice, text=MARKER, split=("dev", "test")[n % 2])
        for n, (label, kind, slice) in enumerate(
            [("archive", "single", None)] * 45
            + [("keep", "single", None)] * 10
            + [("keep", "single", "recurring")] * 10
            + [("supersede", "pair", None)] * 5
        )
    ]
    return fixture_file(folder / "golden.json", items)


# The command line


def test_the_recordings_in_the_repository_replay_and_say_that_no_model_judged(run: Eval) -> None:
    assert {path.name for path in RECORDED.glob("*.jsonl")} == {
        "scripted.jsonl",
        "scripted-batch-1.jsonl",
        "scripted-shadow.jsonl",
    }
    for path in sorted(RECORDED.glob("*.jsonl")):
        said = run.good("replay", path)
        assert SCRIPTED in said
        assert "Judged by: scripted (no model)." in said
        assert said == run.good("replay", path), "deterministic"
        told = run.object("replay", path)
        assert (told["source"], told["judged_by"]) == ("scripted", "scripted (no model)")
        assert told["judged"] == len(load().items)
        header, _ = answers.read_recording(path)
        assert SCRIPTED in header.note


def test_the_recordings_in_the_repository_are_what_the_command_writes(
    run: Eval, tmp_path: Path
) -> None:
    for path, how in (
        (SCRIPT, []),
        (RECORDED / "scripted-batch-1.jsonl", ["--batch-items", "1"]),
        (RECORDED / "scripted-shadow.jsonl", ["--shadow"]),
    ):
        again = tmp_path / path.name
        run.good("record", "--scripted", "--out", again, *how)
        assert again.read_text().splitlines()[1:] == path.read_text().splitlines()[1:]


def test_the_real_command_replays_in_a_process_of_its_own(tmp_path: Path) -> None:
    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "forgetting-eval", *arguments],
            capture_output=True,
            text=True,
            timeout=HANG,
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "COLUMNS": "160"},
            check=False,
        )

    good = process("replay", str(SCRIPT))
    assert (good.returncode, good.stderr) == (0, "")
    assert SCRIPTED in good.stdout
    bad = process("replay", "absent.jsonl")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("The recording absent.jsonl cannot be read")
    usage = process("replay")
    assert usage.returncode == 1
    assert "See `forgetting-eval replay --help`." in usage.stderr


def test_calibrate_writes_what_the_rule_selects_and_score_takes_it_frozen(
    run: Eval, tmp_path: Path
) -> None:
    folder = tmp_path / "thresholds"
    said = run.good("calibrate", SCRIPT, "--out", folder)
    assert SCRIPTED in said
    written = thresholds.read(folder / "scripted.json")
    selected = calibrate.select(answers.replay(load(), SCRIPT).judged)
    assert written.thresholds == selected.thresholds
    assert (written.model, written.source) == ("scripted", "scripted")
    assert written.fixture_sha256 == load().sha256
    again = run.object("calibrate", SCRIPT, "--out", folder)
    assert again["thresholds"] == selected.thresholds
    assert len(again["table"]) == 30

    scored = run.good("score", SCRIPT, "--thresholds", folder / "scripted.json")
    assert SCRIPTED in scored
    assert scored.count("cannot be said:") == len(BARS)
    assert "synthetic results never count toward a bar" in " ".join(scored.split())
    assert "qualifies" not in scored, "a frozen run prints no sweep"
    told = run.object("score", SCRIPT, "--thresholds", folder / "scripted.json")
    assert [bar["met"] for bar in told["bars"]] == [None, None]
    assert told["judged_by"] == "scripted (no model)"


def test_the_arms_are_compared_from_recordings(run: Eval) -> None:
    names = [SCRIPT, RECORDED / "scripted-batch-1.jsonl", RECORDED / "scripted-shadow.jsonl"]
    said = run.good("arms", *names)
    assert SCRIPTED in said
    assert all(name in said for name in ("12 a call", "1 a call", "12 a call + shadow"))
    told = run.object("arms", *names)
    assert [each["batch_items"] for each in told["arms"]] == [12, 1, 12]
    assert told["arms"][0]["agreement"] == 1
    assert {each["question"] for each in told["shadow"]} == {"same_matter", "one_outdated"}


def test_a_judge_over_http_is_asked_recorded_replayed_and_calibrated(
    run: Eval, jev: FakeJev, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    said = run.good("record", "--yes", "--out", out)
    first, *_ = said.splitlines()
    assert first.startswith(f"{len(jev.calls)} calls to {MODEL} with about ")
    assert "US dollars for input" in first
    assert f"Judged by: {MODEL}." in said
    assert SCRIPTED not in said
    told = run.object("replay", out)
    assert (told["source"], told["judged"]) == ("endpoint", len(load().items))
    calls = len(jev.calls)
    assert run.object("run", "--yes")["judged"] == told["judged"]
    assert len(jev.calls) == 2 * calls
    run.good("calibrate", out, "--out", tmp_path)
    scored = run.good("score", out, "--thresholds", tmp_path / f"{MODEL}.json")
    assert "The calibration fixture is invented, so nothing here counts toward a bar." in scored
    assert scored.count("cannot be said:") == len(BARS)


def test_nothing_is_sent_before_somebody_agreed_to_pay(run: Eval, jev: FakeJev) -> None:
    assert run.sentence("run").endswith("Nobody is there to ask: add --yes.")
    assert "--max-calls allows 3" in run.sentence("run", "--max-calls", "3", "--yes")
    assert "must name one version" in run.sentence("run", "--yes", JEV_MODEL="jev-latest")
    assert "1 to 100 items" in run.sentence("run", "--yes", "--batch-items", "0")
    assert "cannot be read" in run.sentence("run", "--yes", "--golden", "/absent/items.json")
    assert jev.calls == []
    assert "set JEV_API_KEY" in run.sentence("run", "--yes", JEV_API_KEY="")


def test_a_judge_that_fails_leaves_no_file(run: Eval, jev: FakeJev, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    jev.before = lambda _number: setattr(jev, "faults", [Reply(503)])
    said = run.sentence("record", "--yes", "--out", out, FORGETTING_RETRY_SECONDS="0")
    assert "nothing was recorded" in said
    assert list(tmp_path.glob("*answers*")) == []


# Bad input


def test_changed_items_are_refused(
    run: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.good("calibrate", SCRIPT, "--out", tmp_path)
    changed = tmp_path / "calibration.json"
    changed.write_bytes(CALIBRATION.read_bytes() + b" ")
    monkeypatch.setattr(load, "__defaults__", (changed,))
    monkeypatch.setattr(command_line, "CALIBRATION", changed)
    for command in (
        ["replay"],
        ["calibrate"],
        ["score", "--thresholds", tmp_path / "scripted.json"],
    ):
        said = run.sentence(*command, SCRIPT)
        assert "was recorded on other bytes" in said
        assert "record again" in said


def test_thresholds_of_another_model_fixture_or_choice_are_refused(
    run: Eval, tmp_path: Path
) -> None:
    run.good("calibrate", SCRIPT, "--out", tmp_path)
    path = tmp_path / "scripted.json"
    good = json.loads(path.read_text())

    def refusal(**change: object) -> str:
        path.write_text(json.dumps(good | change))
        return run.sentence("score", SCRIPT, "--thresholds", path)

    other = refusal(model="jev-1.14.0", source="endpoint")
    assert "thresholds belong to the model that selected them" in other
    assert "another calibration fixture" in refusal(fixture_sha256="0" * 64)
    chosen = {
        **good["thresholds"],
        "archive": 0.95 if good["thresholds"]["archive"] != 0.95 else 0.5,
    }
    assert "are not those that" in refusal(thresholds=chosen)
    assert "is no file of thresholds" in refusal(thresholds={"archive": 0.123})
    assert "scripted has no thresholds: run `forgetting-eval calibrate`" in run.sentence(
        "score", SCRIPT
    )


def test_scripted_answers_select_no_thresholds_for_the_pass(run: Eval) -> None:
    assert "select no threshold that a pass may use" in run.sentence("calibrate", SCRIPT)
    assert not (thresholds.FOLDER / "scripted.json").exists()


def test_answers_that_belong_to_other_requests_are_refused(run: Eval, tmp_path: Path) -> None:
    head, *lines = SCRIPT.read_text().splitlines()
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join([json.dumps(json.loads(head) | {"batch_items": 7}), *lines]))
    assert "have no recorded answer" in run.sentence("replay", path)


def test_unknown_labels_are_refused_by_item_and_not_by_text(run: Eval, golden: Path) -> None:
    golden.write_text(golden.read_text().replace('"label": "archive"', '"label": "forget"', 1))
    said = run.sentence("replay", SCRIPT, "--golden", golden)
    assert "label" in said


# A private golden set


def test_the_text_of_a_golden_set_reaches_no_output_and_no_file(
    run: Eval, jev: FakeJev, golden: Path, tmp_path: Path
) -> None:
    def answer(of: dict[str, Any], keys: list[str]) -> object:
        return {**choose(keys[0], keys), "confidence": MARKER}

    jev.answer = answer
    jev.faults = [Reply(200, MARKER.encode())]
    freeze(run, golden)
    run.good("calibrate", *recorded_here(run, tmp_path), "--out", tmp_path)
    file = tmp_path / f"{MODEL}.json"
    recording = answers.path_of(MODEL, folder=answers.beside(golden))
    outputs = [
        run.good("run", "--yes", "--golden", golden),
        run.good("record", "--yes", "--golden", golden),
        run.good("replay", recording, "--golden", golden),
        run.good("replay", recording, "--golden", golden, "--json"),
        run.good("score", recording, "--golden", golden, "--thresholds", file),
        run.good("score", recording, "--golden", golden, "--thresholds", file, "--json"),
        run.good("arms", recording, recording, "--golden", golden),
        recording.read_text(),
    ]
    assert MARKER not in "".join(outputs)
    assert "never counts" not in outputs[4]
    assert "not met: archive precision" in outputs[4]


def test_scripted_answers_on_a_golden_set_count_toward_no_bar(
    run: Eval, golden: Path, tmp_path: Path, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(run, golden)
    assert SCRIPTED in run.good("record", "--scripted", "--golden", golden)
    recording = answers.path_of("scripted", folder=answers.beside(golden))
    run.good("calibrate", SCRIPT, "--out", tmp_path)
    file = tmp_path / "scripted.json"
    told = run.object("score", recording, "--golden", golden, "--thresholds", file)
    assert [bar["met"] for bar in told["bars"]] == [None, None]
    monkeypatch.setenv("FORGETTING_GOLDEN", str(golden))
    monkeypatch.setattr(thresholds, "FOLDER", tmp_path)
    for each in checked(location.run("evaluate_judge", "scripted")).values():
        assert "its recorded answers are scripted" in str(each.metadata["why"].value)


def recorded_here(run: Eval, folder: Path) -> Sequence[Path]:
    """The pinned judge's answers on the calibration fixture, in a folder of the test's."""
    out = folder / "on-calibration.jsonl"
    run.good("record", "--yes", "--out", out)
    return [out]


def freeze(run: Eval, golden: Path) -> None:
    """Freeze a golden set's labels, which comes before its first judged run."""
    run.good("golden", "freeze", golden)


@pytest.mark.usefixtures("jev")
def test_nothing_of_a_golden_set_is_recorded_inside_the_project(run: Eval, golden: Path) -> None:
    freeze(run, golden)
    inside = PROJECT / "eval" / "recorded" / "golden.jsonl"
    said = run.sentence("record", "--yes", "--golden", golden, "--out", inside)
    assert "is inside the project" in said
    assert not inside.exists()


# The code location


@dataclass
class Location:
    """The eval's definitions around an instance and folders of the test's own."""

    instance: dg.DagsterInstance
    folder: Path
    gateway: Any = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> assets.Files:
        return assets.Files(
            recorded=str(self.folder / "recorded"), thresholds=str(self.folder / "thresholds")
        )

    @property
    def defs(self) -> dg.Definitions:
        given = {"files": self.files, "clock": Clock(fixed=TODAY.isoformat()), **self.overrides}
        if self.gateway is not None:
            given["gateway"] = self.gateway
        return definitions.build_defs(**given)

    def run(
        self, job: str, model: str | None = None, **config: dict[str, Any]
    ) -> dg.ExecuteInProcessResult:
        """Run a job; ``config`` is that of its assets."""
        if model:
            self.instance.add_dynamic_partitions(assets.MODELS, [model])
        return self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=model,
            raise_on_error=False,
            run_config=QUIET | {"ops": {name: {"config": each} for name, each in config.items()}},
        )


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    shutil.copy(SCRIPT, recorded)
    with dg.DagsterInstance.local_temp(
        str(tmp_path), overrides={"telemetry": {"enabled": False}}
    ) as instance:
        yield Location(instance, tmp_path)


def shown(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """What an asset's materialization says."""
    (event,) = [
        each
        for each in result.get_asset_materialization_events()
        if each.asset_key == dg.AssetKey(asset)
    ]
    metadata = event.step_materialization_data.materialization.metadata
    return {name: value.value for name, value in metadata.items()}


def checked(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def events_of(location: Location, result: dg.ExecuteInProcessResult) -> str:
    """Every event of a run as it is stored, logs and metadata included."""
    entries = location.instance.all_logs(result.run_id)
    assert entries
    return "\n".join(serialize_value(entry) for entry in entries)


def texts(fixture: Fixture) -> set[str]:
    """Every content, and every topic that is no word of its own."""
    memories = [each for item in fixture.items for each in (item.memory, *item.newer)]
    topics = {each.topic for each in memories if len(each.topic) > 12}
    return topics | {each.content for each in memories}


def test_the_labelled_items_are_shown_by_counts_and_checksums(location: Location) -> None:
    result = dg.materialize([assets.calibration_fixture], instance=location.instance)
    said = shown(result, "calibration_fixture")
    fixture = load()
    assert (said["sha256"], said["label_checksum"]) == (fixture.sha256, fixture.label_checksum)
    rows = [record.data for record in said["slices"].records]
    assert sum(row["items"] for row in rows) == said["dagster/row_count"] == len(fixture.items)


def test_a_models_evaluation_shows_figures_plots_and_misses_and_writes_nothing(
    location: Location,
) -> None:
    result = location.run("evaluate_judge", "scripted")
    assert result.success
    said = shown(result, "judge_evaluation")
    assert (said["judged_by"], said["source"]) == ("scripted (no model)", "scripted")
    assert said["counts_toward_a_bar"] is False
    assert said["plots"].count("data:image/png;base64,") == 2
    assert len(said["plots"]) < 120_000
    assert said["figure/judged"] == len(load().items)
    misses = [record.data for record in said["misses"].records]
    assert misses
    assert set(misses[0]) == {"id", "label", "said", "probability"}
    chosen = shown(result, "judge_thresholds")
    selected = calibrate.select(answers.replay(load(), SCRIPT).judged)
    assert chosen["thresholds"] == {
        action: "none" if value is None else value for action, value in selected.thresholds.items()
    }
    assert len(chosen["sweep"].records) == 30
    assert chosen["written"] is False
    assert not (location.folder / "thresholds").exists()


def test_the_bars_of_scripted_answers_cannot_be_said_and_warn(location: Location) -> None:
    found = checked(location.run("evaluate_judge", "scripted"))
    assert set(found) == set(BARS)
    for each in found.values():
        assert (each.passed, each.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert str(each.metadata["why"].value).startswith("It cannot be said")
        assert each.partition == "scripted"


def test_scripted_answers_never_become_thresholds_of_the_pass(location: Location) -> None:
    result = location.run("evaluate_judge", "scripted", judge_thresholds={"write": True})
    assert result.success
    assert shown(result, "judge_thresholds")["written"] is False
    assert not (location.folder / "thresholds").exists()


@pytest.mark.usefixtures("jev")
def test_a_judge_is_asked_only_when_the_run_says_so(location: Location, jev: FakeJev) -> None:
    location.gateway = JevGateway(base_url=jev.url, model=MODEL)
    refused = location.run("evaluate_judge", MODEL)
    assert not refused.success
    assert jev.calls == []
    asked = location.run(
        "evaluate_judge", MODEL, judge_evaluation={"ask": True}, judge_thresholds={"write": True}
    )
    assert asked.success
    assert shown(asked, "judge_evaluation")["judged_by"] == MODEL
    assert shown(asked, "judge_thresholds")["written"] is True
    assert thresholds.read(location.folder / "thresholds" / f"{MODEL}.json").model == MODEL
    calls = len(jev.calls)
    again = location.run("evaluate_judge", MODEL)
    assert again.success
    assert len(jev.calls) == calls, "what was recorded is read again"
    other = location.run("evaluate_judge", "jev-9.9.9", judge_evaluation={"ask": True})
    assert not other.success
    assert len(jev.calls) == calls


def test_a_recording_under_another_models_name_is_refused(location: Location) -> None:
    shutil.copy(SCRIPT, location.folder / "recorded" / "jev-1.14.0.jsonl")
    result = location.run("evaluate_judge", "jev-1.14.0")
    assert not result.success
    assert "has answers of scripted, not of jev-1.14.0" in events_of(location, result)


@pytest.mark.parametrize("right", [True, False])
def test_a_bar_is_met_or_not_met_by_a_judge_on_the_private_set_alone(
    location: Location,
    jev: FakeJev,
    golden: Path,
    run: Eval,
    monkeypatch: pytest.MonkeyPatch,
    right: bool,
) -> None:
    items = load(golden)
    labels = {each.memory.topic: each.label for each in items.items}
    labels |= {each.memory.topic: each.label for each in load().items}
    kept = {each.memory.topic for each in items.items if each.slice == "recurring"}

    def answer(of: dict[str, Any], keys: list[str]) -> object:
        judged = of["older"] if of["kind"] == "pair" else of["memory"]
        label = labels[judged["topic"]]
        if judged["topic"] in kept and not right:
            label = "archive"
        return choose(next((k for k in keys if k.startswith(label)), keys[0]), keys, 0.99)

    jev.answer = answer
    freeze(run, golden)
    monkeypatch.setenv("FORGETTING_GOLDEN", str(golden))
    monkeypatch.setattr(thresholds, "FOLDER", location.folder / "thresholds")
    location.gateway = JevGateway(base_url=jev.url, model=MODEL)

    unrecorded = location.run("evaluate_judge", MODEL, judge_evaluation={"ask": True})
    why = checked(unrecorded)["archive_precision"].metadata["why"].value
    assert f"no answers of {MODEL} on it are recorded" in str(why)
    run.good("record", "--yes", "--golden", golden)
    uncalibrated = location.run("evaluate_judge", MODEL, judge_thresholds={"write": True})
    assert "has no thresholds" in str(checked(uncalibrated)["zero_collapses"].metadata["why"].value)

    result = location.run("evaluate_judge", MODEL)
    found = checked(result)
    assert {name: each.passed for name, each in found.items()} == dict.fromkeys(BARS, right)
    assert found["zero_collapses"].metadata["collapses"].value == (0 if right else 10)
    assert found["archive_precision"].metadata["verdict"].value == ("met" if right else "not met")
    assert MARKER not in events_of(location, result)


def test_no_text_of_an_item_reaches_an_event_a_log_or_metadata(
    location: Location, capfd: pytest.CaptureFixture[str]
) -> None:
    fixture = load()
    first = dg.materialize([assets.calibration_fixture], instance=location.instance)
    second = location.run("evaluate_judge", "scripted")
    stored = events_of(location, first) + events_of(location, second)
    read = capfd.readouterr()
    assert SCRIPTED.split(".")[0] in stored, "the log says that nobody judged"
    for text in texts(fixture):
        assert text not in stored
        assert json.dumps(text)[1:-1] not in stored
        assert text not in read.out + read.err


def test_an_evaluation_is_requested_for_a_judge_without_one(
    location: Location, jev: FakeJev, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(model: str) -> dg.SensorResult | dg.SkipReason:
        gateway = JevGateway(base_url=jev.url, model=model)
        with dg.build_sensor_context(
            instance=location.instance,
            resources={"files": location.files, "gateway": gateway},
        ) as context:
            answered = new_judge_model(context)
        assert isinstance(answered, dg.SensorResult | dg.SkipReason)
        return answered

    found = tick("jev-1.14.0")
    assert isinstance(found, dg.SensorResult)
    (request,) = found.run_requests or ()
    assert (request.partition_key, request.run_key) == ("jev-1.14.0", "judge-jev-1.14.0")
    assert request.run_config["ops"]["judge_evaluation"]["config"] == {"ask": True}
    assert found.dynamic_partitions_requests

    monkeypatch.delenv("JEV_API_KEY")
    assert "JEV_API_KEY is not set" in str(tick("jev-1.14.0"))
    shutil.copy(SCRIPT, location.folder / "recorded" / "jev-1.14.0.jsonl")
    found = tick("jev-1.14.0")
    assert isinstance(found, dg.SensorResult)
    (request,) = found.run_requests or ()
    assert request.run_config["ops"]["judge_evaluation"]["config"] == {"ask": False}

    assert location.run("evaluate_judge", "scripted").success
    assert "has an evaluation" in str(tick("scripted"))
    assert new_judge_model.default_status is dg.DefaultSensorStatus.STOPPED


def test_drift_is_measured_from_decisions_and_warns_while_too_little_was_decided(
    location: Location, database: Database
) -> None:
    location.overrides["database"] = database
    result = location.run("watch_drift")
    assert result.success
    assert shown(result, "judge_drift")["decided"] == 0
    (check,) = checked(result).values()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_everything_in_the_location_is_described_owned_and_grouped() -> None:
    graph = definitions.build_defs().resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    assert {key.to_user_string() for key in keys} == {
        "calibration_fixture",
        "judge_evaluation",
        "judge_thresholds",
        "judge_drift",
    }
    for key in keys:
        node = graph.get(key)
        assert len(node.description or "") > 100
        assert (node.group_name, node.owners) == ("eval", ["team:memory-platform"])
        assert node.kinds
        assert node.tags
