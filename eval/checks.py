"""The bars of the eval as asset checks. They warn and never block: the pass is report-only."""

from collections.abc import Iterator

import dagster as dg

from eval import answers, golden, score
from eval.assets import Files, decisions, judge_drift, judge_evaluation, models
from resources import settings, thresholds
from resources.clock import Clock
from resources.database import Database

VERDICTS = {True: "met", False: "not met", None: "cannot be said"}
CANNOT = "It cannot be said yet: "
WARN = dg.AssetCheckSeverity.WARN

BARS = {
    "archive_precision": "Of what this model would archive in a private golden set, at least 0.95 "
    "is right, over at least 40 proposals.",
    "zero_collapses": "Of the recurring episodes in a private golden set, this model would end not "
    "one.",
}
HOW = (
    " It warns, with what is missing, until a judge's answers on the set in FORGETTING_GOLDEN are "
    "recorded and the model has thresholds: invented items and scripted answers never count."
)


def checks() -> Iterator[dg.AssetChecksDefinition]:
    """A check for each bar, and one for what reviewers decide."""
    for name, what in BARS.items():
        yield _bar(name, what + HOW)
    yield reviewers_agree


def _bar(name: str, description: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=judge_evaluation, name=name, description=description, partitions_def=models
    )
    def check(context: dg.AssetCheckExecutionContext, files: Files) -> dg.AssetCheckResult:
        report = golden_report(context.partition_key)
        if isinstance(report, str):
            return dg.AssetCheckResult(
                passed=False, severity=WARN, metadata={"why": CANNOT + report}
            )
        bar = dict(zip(BARS, report.bars, strict=True))[name]
        inputs = {key: "-" if value is None else value for key, value in bar.inputs.items()}
        return dg.AssetCheckResult(
            passed=bar.met is True,
            severity=WARN,
            # Its counts alone: an id may say something of whose items they are.
            metadata={"bar": bar.name, "verdict": VERDICTS[bar.met], **inputs},
        )

    return check


def golden_report(model: str) -> score.Report | str:
    """How a model did on the private golden set, or why that cannot be said."""
    path = settings.read().forgetting_golden
    if path is None:
        return "FORGETTING_GOLDEN names no private golden set."
    recording = answers.path_of(model, folder=answers.beside(path))
    if not recording.exists():
        return f"no answers of {model} on it are recorded: `forgetting-eval record --golden`."
    fixture = golden.load(path)
    said = answers.replay(fixture, recording)
    if said.synthetic:
        return "its recorded answers are scripted."
    frozen = thresholds.of_model(model)
    if frozen is None:
        return f"{model} has no thresholds: `forgetting-eval calibrate`."
    return score.report(fixture, said.judged, frozen, synthetic=False)


@dg.asset_check(
    asset=judge_drift,
    description="Of what reviewers decided, they accepted so much that the lower bound of the "
    "pass's own precision is above each action's bar. It warns below it, and while too little was "
    "decided.",
)
def reviewers_agree(database: Database, clock: Clock) -> dg.AssetCheckResult:
    """Reviewers agree with the judge as much as the bars ask."""
    overall = [each for each in decisions(database, clock) if each.memory_type is None]
    return dg.AssetCheckResult(
        passed=all(each.lower is not None and not each.below for each in overall),
        severity=WARN,
        metadata={
            f"{each.action}_lower": "nothing decided" if each.lower is None else each.lower
            for each in overall
        },
    )
