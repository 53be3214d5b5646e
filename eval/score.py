"""The report of an eval with frozen thresholds: figures, baselines, and the ADR's bars.

Nothing here selects: no sweep is printed. A report has ids, labels and figures, never text of an
item. Synthetic results never count toward a bar.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval import baselines, metrics
from eval.bounds import clopper_pearson, clustered_bootstrap
from eval.fixture import Fixture
from eval.judged import Judged
from resources.errors import EvalRefused, some
from resources.thresholds import Thresholds

ARCHIVE_PRECISION = 0.95
ARCHIVE_PROPOSALS = 40

SPLITS = ("dev", "test")
GROUPS: Mapping[str, Sequence[str]] = {
    "archive": ("archive",),
    "supersede": ("supersede",),
    "combined": metrics.HEADLINE,
    "conflict": ("conflict",),
}
SURE = dict.fromkeys(metrics.ACTIONS, 0.5)
"""Baselines have no doubt, so any threshold gives the same."""
NOT_SAID = "-"
WIDTH = 100

Figure = float | int | None
Row = Sequence[str | Figure]


@dataclass(frozen=True)
class Bar:
    """A condition for the pass to be more than report-only. ``met`` None: it cannot be said.

    ``why`` says what it is met or not met by.
    """

    name: str
    met: bool | None
    inputs: Mapping[str, Figure]
    why: str


@dataclass(frozen=True)
class Report:
    """What an eval found. ``figures`` are for machines, such as Dagster's metadata."""

    figures: Mapping[str, Figure]
    bars: Sequence[Bar]
    lines: Sequence[str]

    @property
    def met(self) -> bool | None:
        """Whether all bars are met; None when none fails and one cannot be said."""
        each = [bar.met for bar in self.bars]
        return False if False in each else None if None in each else True

    def text(self) -> str:
        """The report for people, in at most 100 columns."""
        return "\n".join(self.lines) + "\n"


def report(
    fixture: Fixture,
    judged: Sequence[Judged],
    thresholds: Thresholds,
    *,
    synthetic: bool,
) -> Report:
    """Score verdicts on a fixture with frozen thresholds.

    ``synthetic``: the items or the answers are invented. The fixture that the thresholds were
    selected on, and what follows from scripted answers, always count as such. Raises EvalRefused
    when the verdicts are not of the fixture's items, one each.
    """
    missing = _missing(fixture, judged)
    invented = [
        reason
        for reason, holds in (
            ("its items are invented", synthetic),
            (
                "its items are those that selected the thresholds",
                fixture.label_checksum == thresholds.label_checksum
                or fixture.sha256 == thresholds.fixture_sha256,
            ),
            ("the thresholds follow from scripted answers", thresholds.source == "scripted"),
        )
        if holds
    ]
    scorer = _Scorer(fixture, judged, thresholds, missing, invented)
    return Report(scorer.figures, scorer.bars, scorer.lines)


def _missing(fixture: Fixture, judged: Sequence[Judged]) -> list[str]:
    """The ids of items without a verdict."""
    known = {item.id: item for item in fixture.items}
    ids = [each.item.id for each in judged]
    if foreign := sorted({each.item.id for each in judged if known.get(each.item.id) != each.item}):
        raise EvalRefused(
            f"There are verdicts on items that {fixture.name} does not have as they were judged: "
            f"{some(foreign)}. Judge it anew."
        )
    if len(set(ids)) < len(ids):
        twice = sorted({each for each in ids if ids.count(each) > 1})
        raise EvalRefused(
            f"There are two verdicts on {some(twice)}: score the answers of one run at a time."
        )
    return sorted(known.keys() - set(ids))


class _Scorer:
    """One report under way."""

    def __init__(
        self,
        fixture: Fixture,
        judged: Sequence[Judged],
        thresholds: Thresholds,
        missing: Sequence[str],
        invented: Sequence[str],
    ) -> None:
        self.fixture = fixture
        self.judged = judged
        self.thresholds = thresholds.thresholds
        self.missing = missing
        self.invented = invented
        self.figures: dict[str, Figure] = {"items": len(fixture.items), "judged": len(judged)}
        self.lines: list[str] = []
        self._head(thresholds)
        self._precision()
        self._by_type()
        self._by_split()
        self._honesty()
        self._baselines()
        self.bars = (self._archive_bar(), self._collapse_bar())
        self._say_bars()

    def _head(self, thresholds: Thresholds) -> None:
        chosen = ", ".join(f"{a} {_share(self.thresholds[a], 2, 'none')}" for a in metrics.ACTIONS)
        items = len(self.fixture.items)
        self._say(f"{self.fixture.name}: {len(self.judged)} of {items} items judged")
        self._say(f"Thresholds of {thresholds.model}, frozen: {chosen}")
        if self.missing:
            self._say(f"Without a verdict: {some(self.missing)}")
        for reason in self.invented:
            self._say(f"Synthetic: {reason}.")

    def _precision(self) -> None:
        rows: list[Row] = []
        for name, actions in GROUPS.items():
            made = self._made(self.judged, actions)
            exact = clopper_pearson(_right(made), len(made))
            drawn = clustered_bootstrap(
                [float(each.correct) for each in made], [each.item.cluster for each in made]
            )
            share = metrics.accuracy(made)
            # An item without a verdict is not found either.
            labelled = sum(item.label in actions for item in self.fixture.items)
            recall = _right(made) / labelled if labelled else None
            lower = exact.lower if exact else None
            self._keep(
                name,
                proposals=len(made),
                right=_right(made),
                precision=share,
                lower=lower,
                bootstrap_lower=drawn.lower if drawn else None,
                bootstrap_upper=drawn.upper if drawn else None,
                recall=recall,
                labelled=labelled,
            )
            interval = f"{_share(drawn.lower)} to {_share(drawn.upper)}" if drawn else NOT_SAID
            rows.append([name, len(made), _right(made), share, lower, interval, recall])
        self._table(
            "Precision of proposals, with the lower 95 % bound and an interval over clusters",
            ["action", "proposals", "right", "precision", "lower", "bootstrap", "recall"],
            rows,
        )

    def _by_type(self) -> None:
        rows: list[Row] = []
        for memory_type, part in metrics.by_memory_type(self.judged).items():
            for name, actions in GROUPS.items():
                if made := self._made(part, actions):
                    rows.append([memory_type, name, *self._counted(f"{name}_{memory_type}", made)])
        self._table(
            "By memory type (those without a proposal are left out)",
            ["type", "action", "proposals", "right", "precision", "lower"],
            rows,
        )

    def _by_split(self) -> None:
        rows: list[Row] = []
        for split in SPLITS:
            part = [each for each in self.judged if each.item.split == split]
            collapsed = len(metrics.collapses(part, self.thresholds))
            self.figures[f"collapses_{split}"] = collapsed
            for name, actions in GROUPS.items():
                counted = self._counted(f"{name}_{split}", self._made(part, actions))
                rows.append([split, name, *counted, collapsed])
        self._table(
            "By split",
            ["split", "action", "proposals", "right", "precision", "lower", "collapses"],
            rows,
        )

    def _counted(self, key: str, made: Sequence[Judged]) -> list[Figure]:
        exact = clopper_pearson(_right(made), len(made))
        lower, share = exact.lower if exact else None, metrics.accuracy(made)
        self._keep(key, proposals=len(made), right=_right(made), precision=share, lower=lower)
        return [len(made), _right(made), share, lower]

    def _honesty(self) -> None:
        valid = metrics.still_valid(self.judged)
        keep = metrics.keep_rate(self.judged)
        exact = clopper_pearson(_right(valid), len(valid))
        ece = metrics.expected_calibration_error(self.judged)
        adaptive = metrics.expected_calibration_error(self.judged, adaptive=True)
        brier = metrics.brier(self.judged)
        self.figures |= {
            "keep_rate": keep,
            "keep_rate_lower": exact.lower if exact else None,
            "still_valid": len(valid),
            "ece": ece,
            "ece_adaptive": adaptive,
            "brier": brier,
        }
        lower = exact.lower if exact else None
        self.lines.append("")
        self._say(
            f"Keep rate on {len(valid)} still-valid items: {_share(keep)} (lower bound "
            f"{_share(lower)})"
        )
        self._say(
            f"Expected calibration error: {_share(ece)} in bins of equal width, {_share(adaptive)} "
            "in bins of equal count"
        )
        self._say(f"Brier score: {_share(brier)}")

    def _baselines(self) -> None:
        rows: list[Row] = [["this judge", *self._compare("judge", self.judged, self.thresholds)]]
        for name, said in baselines.every(self.fixture).items():
            key = f"baseline_{name.replace(' ', '_')}"
            rows.append([name, *self._compare(key, said, SURE)])
        self._table(
            "Precision beside rules that read nothing",
            [
                "",
                "archive",
                "supersede",
                "combined",
                "recall",
                "conflict",
                "keep rate",
                "collapses",
            ],
            rows,
        )

    def _compare(
        self, key: str, said: Sequence[Judged], thresholds: metrics.Thresholds
    ) -> list[Figure]:
        headline = {action: thresholds[action] for action in metrics.HEADLINE}
        labelled = sum(item.label in metrics.HEADLINE for item in self.fixture.items)
        found = _right(metrics.proposals(said, headline))
        compared: dict[str, Figure] = {
            "archive": metrics.precision(said, "archive", thresholds["archive"]),
            "supersede": metrics.precision(said, "supersede", thresholds["supersede"]),
            "combined": metrics.combined_precision(said, headline),
            "recall": found / labelled if labelled else None,
            "conflict": metrics.precision(said, "conflict", thresholds["conflict"]),
            "keep_rate": metrics.keep_rate(said),
            "collapses": len(metrics.collapses(said, thresholds)),
        }
        if key != "judge":  # whose figures are kept already
            self._keep(key, **compared)
        return list(compared.values())

    def _archive_bar(self) -> Bar:
        """Precision and proposals of archive over every item, whatever its split."""
        made = self._made(self.judged, ("archive",))
        share = metrics.accuracy(made)
        precise = share is not None and share >= ARCHIVE_PRECISION
        enough = len(made) >= ARCHIVE_PROPOSALS
        why = f"precision {_share(share)}: {_met(precise)}; {len(made)} proposals: {_met(enough)}"
        return self._bar(
            f"archive precision of at least {ARCHIVE_PRECISION} "
            f"with at least {ARCHIVE_PROPOSALS} proposals",
            precise and enough,
            {
                key: self.figures[f"archive_{key}"]
                for key in ("proposals", "right", "precision", "lower")
            },
            why,
        )

    def _collapse_bar(self) -> Bar:
        recurring = [each for each in self.judged if each.item.slice == "recurring"]
        collapsed = metrics.collapses(self.judged, self.thresholds)
        unsure = [e for e in recurring if e.action != "keep" and e.item.id not in collapsed]
        exact = clopper_pearson(len(collapsed), len(recurring))
        inputs: dict[str, Figure] = {
            "collapses": len(collapsed),
            "recurring": len(recurring),
            "collapse_rate_upper": exact.upper if exact else None,
            "collapses_below_threshold": len(unsure),
        }
        self.figures |= inputs
        why = f"{len(collapsed)} collapses of {len(recurring)} recurring episodes"
        if exact:
            why += f", so at most {exact.upper:.1%} of such"
        if collapsed:
            why += f": {some(collapsed)}"
        if unsure:
            why += f"; {len(unsure)} more below their threshold"
        met = not collapsed if recurring or collapsed else None
        return self._bar("zero recurring-episodic collapses", met, inputs, why)

    def _bar(self, name: str, met: bool | None, inputs: Mapping[str, Figure], why: str) -> Bar:
        """A bar that is about every item, and about none that was invented."""
        if self.invented:
            return Bar(name, None, inputs, f"{why}; synthetic results never count toward a bar")
        if met and self.missing:
            return Bar(name, None, inputs, f"{why}; {len(self.missing)} items have no verdict")
        return Bar(name, met, inputs, why)

    def _say_bars(self) -> None:
        self.lines += ["", "Bars, over all items together"]
        for bar in self.bars:
            self._say(f"{_met(bar.met)}: {bar.name} ({bar.why}).", indent="  ")

    def _say(self, sentence: str, indent: str = "") -> None:
        self.lines += textwrap.wrap(
            sentence, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  "
        )

    def _keep(self, prefix: str, **figures: Figure) -> None:
        self.figures |= {f"{prefix}_{name}": figure for name, figure in figures.items()}

    def _table(self, title: str, head: Sequence[str], rows: Sequence[Row]) -> None:
        cells = [list(head), *[[_cell(each) for each in row] for row in rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        self.lines += ["", title]
        for row in cells:
            line = "  ".join(
                cell.rjust(width) if n else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self.lines.append(f"  {line}".rstrip())

    def _made(self, judged: Sequence[Judged], actions: Sequence[str]) -> list[Judged]:
        return metrics.proposals(judged, {action: self.thresholds[action] for action in actions})


def _right(made: Sequence[Judged]) -> int:
    return sum(each.correct for each in made)


def _met(holds: bool | None) -> str:
    return {True: "met", False: "not met", None: "cannot be said"}[holds]


def _share(value: float | None, digits: int = 3, none: str = NOT_SAID) -> str:
    return none if value is None else f"{value:.{digits}f}"


def _cell(value: str | Figure) -> str:
    return _share(value) if isinstance(value, float | None) else str(value)
