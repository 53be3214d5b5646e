"""What Dagster shows of the eval: the labelled items, how a model judged them, its thresholds.

Ids, labels and figures only: no text of an item is in any metadata, log line or event.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from eval import answers, calibrate, drift, plots, score
from eval.answers import SCRIPTED, Answers
from eval.fixture import CALIBRATION, Fixture, load
from eval.metrics import misses
from forgetting_assets import catalog, metadata
from forgetting_assets.store import tenants
from resources import settings, thresholds
from resources.clock import Clock
from resources.database import Database
from resources.errors import EvalRefused, MissingApiKey
from resources.gateway import Gateway
from resources.thresholds import Thresholds

MODELS = "judge_models"
models = dg.DynamicPartitionsDefinition(name=MODELS)

GROUP = "eval"


class Files(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The folders of recorded answers and of selected thresholds."""

    recorded: str = str(answers.RECORDED)
    thresholds: str = str(thresholds.FOLDER)

    def recording(self, model: str) -> Path:
        """Where the answers of a model are."""
        return answers.path_of(model, folder=Path(self.recorded))

    def replay(self, model: str) -> tuple[Fixture, Answers]:
        """The fixture and what a model's recording says of it. Raises EvalRefused."""
        fixture = load()
        said = answers.replay(fixture, self.recording(model))
        if said.model != model:
            raise EvalRefused(
                f"{self.recording(model)} has answers of {said.model}, not of {model}: record "
                "again."
            )
        return fixture, said


@dataclass(frozen=True)
class Evaluation:
    """A model's answers with the thresholds that follow from them or were frozen before."""

    said: Answers
    selection: calibrate.Selection
    thresholds: Thresholds
    thresholds_from: str
    report: score.Report


def evaluate(fixture: Fixture, said: Answers) -> Evaluation:
    """Score answers with the model's frozen thresholds, or with those that they would select."""
    selection = calibrate.select(said.judged)
    frozen = thresholds.of_model(said.model)
    used = frozen or Thresholds(
        model=said.model,
        fixture_sha256=fixture.sha256,
        label_checksum=fixture.label_checksum,
        source=said.source,
        thresholds=selection.thresholds,
    )
    # The fixture is invented and selected the thresholds, so nothing here counts toward a bar.
    report = score.report(fixture, said.judged, used, synthetic=True)
    return Evaluation(
        said,
        selection,
        used,
        f"eval/thresholds/{thresholds.path_of(said.model).name}" if frozen else "these answers",
        report,
    )


@dg.asset(
    group_name=GROUP,
    owners=catalog.OWNERS,
    kinds={"json"},
    tags={"layer": "labels"},
    code_version="1",
)
def calibration_fixture() -> dg.MaterializeResult[None]:
    """The invented, labelled items that every judge is measured on, in eval/fixtures.

    Labels are frozen: a changed byte makes another fixture, and answers and thresholds that were
    made on the old one are refused. The checksums here are what recordings are bound to.
    """
    fixture = load()
    counts = Counter((each.slice, each.label, each.split) for each in fixture.items)
    hard = Counter((each.slice, each.label, each.split) for each in fixture.items if each.hard)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(fixture.items),
            "path": dg.MetadataValue.path(str(CALIBRATION)),
            "sha256": fixture.sha256,
            "label_checksum": fixture.label_checksum,
            "judged_as_of": fixture.now.isoformat(),
            "clusters": len({each.cluster for each in fixture.items}),
            "slices": _table(
                [
                    {
                        "slice": name,
                        "label": label,
                        "split": split,
                        "items": n,
                        "hard": hard[name, label, split],
                    }
                    for (name, label, split), n in sorted(counts.items())
                ]
            ),
        }
    )


class Asking(dg.Config):
    """Whether a run asks the judge, which costs money; set it in the launchpad."""

    ask: bool = Field(
        False,
        description="Ask the endpoint in JEV_BASE_URL about every item, and record its answers in "
        "place of those that are there. Without it the recorded answers are read again.",
    )
    max_calls: int = Field(400, description="Calls that are sent at most, retries included.")


@dg.asset(
    group_name=GROUP,
    owners=catalog.OWNERS,
    deps=[calibration_fixture],
    partitions_def=models,
    kinds={"python", "llm"},
    tags={"layer": "evaluation"},
    code_version="1",
    pool="judge_gateway",
)
def judge_evaluation(
    context: dg.AssetExecutionContext,
    config: Asking,
    files: Files,
    gateway: dg.ResourceParam[Gateway],
    clock: Clock,
) -> dg.MaterializeResult[None]:
    """How one model judged the calibration fixture: its precision, its honesty, its misses.

    It reads the model's recorded answers, which needs no network; the run's config can ask the
    judge instead. The diagram shows whether the judge is right as often as it says: an honest one
    lies on the dashed line. Misses are named by id and label. The model `scripted` is no model: its
    answers only show that the eval works. Nothing here counts toward a bar, since the fixture is
    invented.
    """
    model = context.partition_key
    if config.ask:
        fixture = load()
        said = _asked(fixture, model, gateway, config.max_calls, clock, context)
        answers.record(files.recording(model), said, recorded_at=clock.now())
    fixture, said = files.replay(model)
    done = evaluate(fixture, said)
    if said.synthetic:
        context.log.warning(SCRIPTED)
    figures = {f"figure/{name}": value for name, value in done.report.figures.items()}
    missed = misses(said.judged, done.thresholds.thresholds)
    return dg.MaterializeResult(
        metadata={
            "judged_by": said.judged_by,
            "source": said.source,
            "counts_toward_a_bar": False,
            "fixture_sha256": said.fixture_sha256,
            "items": len(fixture.items),
            "judged": len(said.judged),
            "answers_rejected": len(said.rejected),
            "calls": len(said.calls),
            "input_tokens": said.input_tokens,
            "thresholds_from": done.thresholds_from,
            "thresholds": _shown(done.thresholds.thresholds),
            "plots": dg.MetadataValue.md(
                plots.markdown(
                    {
                        "Reliability": plots.reliability_png(said.judged, said.judged_by),
                        "Precision by threshold": plots.precision_png(
                            done.selection, said.judged_by
                        ),
                    }
                )
            ),
            "misses": _table([each._asdict() for each in missed]),
            **{name: _cell(value) for name, value in figures.items()},
        }
    )


def _asked(
    fixture: Fixture,
    model: str,
    gateway: Gateway,
    max_calls: int,
    clock: Clock,
    context: dg.AssetExecutionContext,
) -> Answers:
    if settings.read().jev_api_key is None and not gateway.demo_only:
        raise MissingApiKey()
    if gateway.pinned_model != model:
        raise EvalRefused(
            f"This partition is {model} and JEV_MODEL is {gateway.pinned_model}: materialize the "
            "partition of the model that is pinned."
        )
    return answers.run(fixture, gateway, say=context.log.info, max_calls=max_calls, clock=clock)


class Writing(dg.Config):
    """Whether a run changes what the pass proposes; set it in the launchpad."""

    write: bool = Field(
        False,
        description="Write the selected thresholds to eval/thresholds, from where the pass loads "
        "them. Without it they are only shown.",
    )


@dg.asset(
    group_name=GROUP,
    owners=catalog.OWNERS,
    deps=[judge_evaluation],
    partitions_def=models,
    kinds={"json"},
    tags={"layer": "thresholds"},
    code_version="1",
)
def judge_thresholds(
    context: dg.AssetExecutionContext, config: Writing, files: Files
) -> dg.MaterializeResult[None]:
    """How sure this model must be before a verdict becomes a proposal, by the rule fixed before.

    For each action the lowest of 0.50 to 0.95 whose precision on the dev split reaches 0.97
    (archive, supersede) or 0.80 (conflict) over at least 10 proposals. An action for which none
    qualifies proposes nothing. The pass only ever uses what was written, and scripted answers are
    never written.
    """
    fixture, said = files.replay(context.partition_key)
    selection = calibrate.select(said.judged)
    path = Path(files.thresholds) / thresholds.path_of(said.model).name
    write = config.write and not said.synthetic
    if write:
        calibrate.write(path, selection, model=said.model, fixture=fixture, source=said.source)
    elif config.write:
        context.log.warning(f"Nothing was written: {SCRIPTED}")
    return dg.MaterializeResult(
        metadata={
            "judged_by": said.judged_by,
            "source": said.source,
            "written": write,
            "thresholds": _shown(selection.thresholds),
            "why": selection.text(),
            "sweep": _table([asdict(row) for row in selection.table]),
        }
    )


@dg.asset(
    group_name=GROUP,
    owners=catalog.OWNERS,
    kinds={"postgres"},
    tags={"layer": "reviews"},
    code_version="1",
)
def judge_drift(database: Database, clock: Clock) -> dg.MaterializeResult[None]:
    """What reviewers made of this deployment's own proposals: accepted, rejected, taken back.

    It is the pass's precision where it counts, by action and memory type over all tenants, with its
    lower 95 % bound. What was undone counts as neither. Beside it, how much of the archived
    evidence was used all the same. Counts alone.
    """
    rows = decisions(database, clock)
    users = [each.user_id for each in tenants.all_tenants(database)]
    regrets = drift.regrets(database, users, settings.read().forgetting_start_date, clock.now())
    return dg.MaterializeResult(
        metadata={
            "decided": sum(e.accepted + e.rejected for e in rows if e.memory_type is None),
            "undone": sum(e.undone for e in rows if e.memory_type is None),
            "decisions": _table(
                [{**asdict(each), "memory_type": each.memory_type or "all"} for each in rows]
            ),
            "regrets": _table([asdict(each) for each in regrets]),
        }
    )


def decisions(database: Database, clock: Clock) -> list[drift.DriftRow]:
    """What was decided in every tenant."""
    users = [each.user_id for each in tenants.all_tenants(database)]
    return drift.measure(database, users, clock.now())


def _shown(selected: Any) -> dict[str, str | float]:
    return {action: "none" if value is None else value for action, value in selected.items()}


def _cell(value: Any) -> metadata.Cell:
    if value is None:
        return "-"
    return value if isinstance(value, int | float | str) else str(value)


def _table(rows: list[dict[str, Any]]) -> dg.TableMetadataValue:
    return metadata.table([{name: _cell(value) for name, value in row.items()} for row in rows])
