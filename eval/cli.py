"""The command line of the eval: `forgetting-eval …`. Errors are as those of `forgetting`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from eval import answers, arms, calibrate, drift, golden, real, score
from eval.answers import SCRIPTED, Answers
from eval.bench.common import database as create
from eval.bench.common import server
from eval.fixture import CALIBRATION, Fixture, load
from eval.scripted import ScriptedJudge
from forgetting_assets.commands.console import (
    confirm,
    console,
    harmless,
    locate,
    open_database,
    run_app,
    say,
)
from forgetting_assets.store import tenants
from resources import settings, thresholds
from resources.addresses import RUNTIME_ROLE
from resources.clock import Clock
from resources.database import Database
from resources.errors import EvalRefused
from resources.gateway import Gateway, JevGateway, require_pinned
from resources.settings import PROJECT

app = typer.Typer(
    help="Whether the judge may be believed: labelled items, what it said of them, and the bars.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
golden_app = typer.Typer(help="A private golden set, outside the repository.", no_args_is_help=True)
app.add_typer(golden_app, name="golden")

GoldenOption = Annotated[
    Path | None,
    typer.Option("--golden", help="A private golden set instead of the calibration fixture."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before it costs money.")]
ScriptedOption = Annotated[
    bool, typer.Option("--scripted", help="Let a script answer. No model judges anything.")
]
BatchOption = Annotated[int, typer.Option("--batch-items", help="Items in one call, 1 to 100.")]
ShadowOption = Annotated[
    bool, typer.Option("--shadow", help="Ask the shadow questions beside each pair.")
]
CallsOption = Annotated[
    int, typer.Option("--max-calls", min=1, help="Calls that are sent at most, retries included.")
]
RecordingArgument = Annotated[
    Path, typer.Argument(metavar="RECORDING", help="A file that `record` wrote.")
]


def main() -> None:
    """Run the command line."""
    run_app(app)


@app.command()
def run(
    golden_set: GoldenOption = None,
    scripted: ScriptedOption = False,
    batch_items: BatchOption = 12,
    shadow: ShadowOption = False,
    max_calls: CallsOption = 400,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Ask the judge in JEV_MODEL about every item, and print how it did. Keeps nothing.

    `record` does the same and keeps the answers, so it is what you want before `calibrate`.
    """
    fixture = _items(golden_set)
    _show(_ask(fixture, scripted, batch_items, shadow, max_calls, yes, as_json), fixture, as_json)


@app.command()
def record(
    golden_set: GoldenOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The file; without it <model>….jsonl in eval/recorded, or in `recorded` beside a "
            "golden set.",
        ),
    ] = None,
    scripted: ScriptedOption = False,
    batch_items: BatchOption = 12,
    shadow: ShadowOption = False,
    max_calls: CallsOption = 400,
    yes: YesOption = False,
    note: Annotated[str, typer.Option("--note", help="A sentence for the file's header.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Ask the judge about every item, and keep its answers in a file that `replay` reads.

    The file has digests, keys and probabilities, and no text of an item.
    """
    fixture = _items(golden_set)
    beside = answers.RECORDED if golden_set is None else answers.beside(golden_set)
    if golden_set is not None and (out or beside).resolve().is_relative_to(PROJECT):
        raise EvalRefused(
            f"{out or beside} is inside the project, where nothing of a golden set belongs: name a "
            "file outside of it with --out."
        )
    said = _ask(fixture, scripted, batch_items, shadow, max_calls, yes, as_json)
    path = out or answers.path_of(
        said.model, batch_items=batch_items, with_shadow=shadow, folder=beside
    )
    answers.record(path, said, recorded_at=Clock().now(), note=note)
    _show(said, fixture, as_json)
    if not as_json:
        say(f"Recorded in {path}.")


@app.command()
def replay(
    recording: RecordingArgument, golden_set: GoldenOption = None, as_json: JsonOption = False
) -> None:
    """Print what a recording says of the items. Needs no network and no key."""
    fixture = _items(golden_set)
    _show(answers.replay(fixture, recording), fixture, as_json)


@app.command("calibrate")
def calibrate_(
    recording: RecordingArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the thresholds; without it eval/thresholds."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Select each action's threshold on the calibration fixture by the rule, and write them down.

    For each action the lowest of 0.50 to 0.95 in steps of 0.05 whose precision on the dev split is
    at least 0.97 (archive, supersede) or 0.80 (conflict) over at least 10 proposals. With none the
    action proposes nothing. There is no --golden: personal items never select a threshold.
    """
    fixture = load()
    said = answers.replay(fixture, recording)
    if said.synthetic and out is None:
        raise EvalRefused(
            "Scripted answers select no threshold that a pass may use: name another folder with "
            "--out to try it."
        )
    selection = calibrate.select(said.judged)
    path = (out or thresholds.FOLDER) / thresholds.path_of(said.model).name
    calibrate.write(path, selection, model=said.model, fixture=fixture, source=said.source)
    if as_json:
        _print_json(
            _about(said)
            | {
                "thresholds": selection.thresholds,
                "table": [asdict(row) for row in selection.table],
                "written": str(path),
            }
        )
        return
    _say_who(said)
    for action in selection.thresholds:
        console.print(_rows([asdict(row) for row in selection.table if row.action == action]))
    say(selection.text())
    say(f"Written to {path}.")


@app.command("score")
def score_(
    recording: RecordingArgument,
    golden_set: GoldenOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--thresholds", help="A file of thresholds; without it the model's own."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a recording with frozen thresholds: each bar's inputs, and whether it is met.

    Only a judge's answers on a golden set count toward a bar. Scripted answers never do, nor does
    the calibration fixture, which thresholds were selected on.
    """
    fixture = _items(golden_set)
    said = answers.replay(fixture, recording)
    report = score.report(
        fixture,
        said.judged,
        _frozen(said, file),
        synthetic=said.synthetic or golden_set is None,
    )
    if as_json:
        _print_json(
            _about(said)
            | {"figures": report.figures, "bars": [_plain(each) for each in report.bars]}
        )
        return
    _say_who(said)
    if golden_set is None and not said.synthetic:
        say("The calibration fixture is invented, so nothing here counts toward a bar.")
    say(report.text())


@app.command("arms")
def arms_(
    recordings: Annotated[list[Path], typer.Argument(metavar="RECORDING...")],
    golden_set: GoldenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare ways of asking: 1 item a call against 12, shadow questions against none."""
    fixture = _items(golden_set)
    said = [answers.replay(fixture, each) for each in recordings]
    rows = [asdict(each) for each in arms.compare(said)]
    shadows = [asdict(line) for each in said for line in arms.shadow_lines(each)]
    if as_json:
        _print_json(_about(said[0]) | {"arms": rows, "shadow": shadows})
        return
    _say_who(said[0])
    names = [f"{each.batch_items} a call{' + shadow' * each.with_shadow}" for each in said]
    for row in rows:
        del row["batch_items"], row["with_shadow"]  # they are in the names
    console.print(_turned(rows, names))
    if shadows:
        say("Shadow questions, mean probability of yes by label:")
        console.print(_rows(shadows))


@app.command("drift")
def drift_(
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant's slug; without it all tenants.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What reviewers made of this deployment's own proposals, and what sweeps archived wrongly.

    By action and memory type: accepted, rejected, undone, and the precision that follows with its
    lower 95 % bound. It is marked where the bound is below the action's bar.
    """
    first_day, now = settings.read().forgetting_start_date, Clock().now()
    with open_database(locate()) as database:
        found = (
            tenants.all_tenants(database) if tenant is None else [tenants.find(database, tenant)]
        )
        users = [each.user_id for each in found]
        rows = drift.measure(database, users, now)
        regrets = drift.regrets(database, users, first_day, now)
    if as_json:
        _print_json(
            {"decisions": [asdict(e) for e in rows], "regrets": [asdict(e) for e in regrets]}
        )
    else:
        typer.echo(drift.text(rows, regrets).rstrip())


FolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="golden_memories.jsonl, golden_replaces.json and golden_queries.jsonl.",
    ),
]


@app.command()
def recall(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """How many labelled replacements the candidate queries offer to a judge, by floor and by rank.

    Needs no judge. The memories are imported into a server that lives as long as the command.
    """
    with _own_database() as database:
        found = real.recall(database, folder)
    if as_json:
        _print_json(found.figures)
    else:
        typer.echo(found.text().rstrip())


@app.command("no-harm")
def no_harm(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """What a pass whose every proposal is accepted does to retrieval: recall@5 and MRR.

    Once by the labels, once by a script that ends whatever it may. No model judges anything. The
    memories are imported into a server that lives as long as the command.
    """
    with _own_database() as database:
        found = real.no_harm(database, folder)
    if as_json:
        _print_json(found.figures)
    else:
        typer.echo(found.text().rstrip())


@contextmanager
def _own_database() -> Iterator[Database]:
    """An empty, migrated database on a server of its own: proposals are accepted in it."""
    with server() as superuser:
        place = create(superuser, "eval").set(username=RUNTIME_ROLE)
        database = Database(url=place.render_as_string(hide_password=False)).connect()
        try:
            yield database
        finally:
            database.close()


GoldenArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The golden set, outside the repository.")
]


@golden_app.command("freeze")
def freeze(file: GoldenArgument) -> None:
    """Check a golden set and freeze its labels beside it, before any judge has seen it.

    Labels are frozen once. Other labels are another set, under another name.
    """
    say(golden.summary(golden.freeze(file)).rstrip())
    say(f"Frozen in {golden.labels_path(file)}.")


@golden_app.command("check")
def check(file: GoldenArgument) -> None:
    """Check a golden set: its format, and that its labels are those that were frozen."""
    say(golden.summary(golden.load(file)).rstrip())


def _items(golden_set: Path | None) -> Fixture:
    return load(CALIBRATION) if golden_set is None else golden.load(golden_set)


def _ask(
    fixture: Fixture,
    scripted: bool,
    batch_items: int,
    shadow: bool,
    max_calls: int,
    yes: bool,
    as_json: bool,
) -> Answers:
    """The answers of the judge in the settings, or of the script, after saying what it costs."""
    read = settings.read()
    if not scripted:
        require_pinned(read.jev_model)
        planned = answers.plan(fixture, batch_items=batch_items, with_shadow=shadow)
        if len(planned.batches) <= max_calls:  # else it is refused, and nobody need be asked
            estimate = _estimate(planned, read)
            if not as_json:
                say(estimate)
            confirm(f"{estimate} Send them?" if as_json else "Send them?", yes)
    gateway: Gateway = ScriptedJudge.of(fixture) if scripted else JevGateway.configured(read)
    try:
        return answers.run(
            fixture,
            gateway,
            batch_items=batch_items,
            with_shadow=shadow,
            say=(lambda _line: None) if as_json or scripted else say,
            max_calls=max_calls,
            retry_seconds=read.forgetting_retry_seconds,
        )
    finally:
        if isinstance(gateway, JevGateway):
            gateway.close()


def _estimate(planned: answers.Plan, read: settings.Settings) -> str:
    """What judging would send and cost, as far as it is known."""
    price = read.forgetting_prices.get(read.jev_answer_model or read.jev_model)
    cost = (
        f"about {planned.tokens * price[0] / 1e6:.2f} US dollars for input"
        if price
        else "a price that FORGETTING_PRICES does not name"
    )
    return (
        f"{len(planned.batches)} calls to {read.jev_model} with about {planned.tokens} input "
        f"tokens, at {cost}."
    )


def _frozen(said: Answers, file: Path | None) -> thresholds.Thresholds:
    """The thresholds to score with. Raises where they are of another model or fixture.

    Where the model's answers on the calibration fixture are recorded, they must be what selection
    gives now: a guard against the wrong file, and no proof of where it came from.
    """
    found = thresholds.of_model(said.model) if file is None else thresholds.read(file)
    if found is None:
        raise EvalRefused(
            f"{said.model} has no thresholds: run `forgetting-eval calibrate` on its recording of "
            "the calibration fixture, or name a file with --thresholds."
        )
    calibration = load()
    if found.model != said.model or (found.source == "scripted") != said.synthetic:
        raise EvalRefused(
            f"The thresholds are of {found.model} ({found.source} answers) and the recording of "
            f"{said.model} ({said.source} answers): thresholds belong to the model that selected "
            "them. Calibrate this model, or name its own file with --thresholds."
        )
    if found.fixture_sha256 != calibration.sha256:
        raise EvalRefused(
            "The thresholds were selected on another calibration fixture than "
            f"{CALIBRATION} is now: restore that file, or calibrate again."
        )
    own = answers.path_of(said.model)
    if own.exists():
        selected = calibrate.select(answers.replay(calibration, own).judged).thresholds
        if selected != found.thresholds:
            raise EvalRefused(
                f"The thresholds are not those that {own} selects: run `forgetting-eval calibrate` "
                "on it again, or take out the file that is wrong."
            )
    return found


def _about(said: Answers) -> dict[str, Any]:
    return {
        "model": said.model,
        "judged_by": said.judged_by,
        "source": said.source,
        "fixture": said.fixture,
        "fixture_sha256": said.fixture_sha256,
        "batch_items": said.batch_items,
        "with_shadow": said.with_shadow,
        "calls": len(said.calls),
        "input_tokens": said.input_tokens,
        "output_tokens": said.output_tokens,
        "judged": len(said.judged),
        "rejected": len(said.rejected),
    }


def _say_who(said: Answers) -> None:
    say(f"Judged by: {said.judged_by}.")
    if said.synthetic:
        say(SCRIPTED)


def _show(said: Answers, fixture: Fixture, as_json: bool) -> None:
    """How a judge did, in counts."""
    right = {
        name: [each.correct for each in said.judged if each.item.slice == name]
        for name in sorted({each.slice for each in fixture.items})
    }
    rows = [
        {
            "slice": name,
            "items": sum(each.slice == name for each in fixture.items),
            "judged": len(judged),
            "right": sum(judged),
        }
        for name, judged in right.items()
    ]
    if as_json:
        _print_json(_about(said) | {"slices": rows})
        return
    _say_who(said)
    console.print(_rows(rows))
    say(
        f"{len(said.judged)} of {len(fixture.items)} items judged, {len(said.rejected)} without a "
        f"usable answer, {len(said.calls)} calls, {said.input_tokens} input tokens."
    )
    for id_, reason in sorted(said.rejected.items()):
        say(f"  {id_}: {reason}")


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(harmless(_cell(value)) for value in row.values()))
    return table


def _turned(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """A column a row, for rows of many figures."""
    table = Table("", *names, box=None)
    for figure in rows[0]:
        table.add_row(harmless(figure), *(harmless(_cell(row[figure])) for row in rows))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _print_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    return asdict(value)
