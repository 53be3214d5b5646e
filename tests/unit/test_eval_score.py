"""The report with frozen thresholds, the bars, and the rules that read nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval import baselines, score
from eval.fixture import EvalItem, Fixture
from eval.judged import Judged
from resources.errors import EvalRefused
from resources.thresholds import Thresholds
from tests.eval_items import NOW, fixture, item, said, several, verdicts

MARKER = "Ottoline keeps the violet ledger"


def frozen(source: Any = "endpoint", **selected: float | None) -> Thresholds:
    """Thresholds of another fixture than the one that is scored."""
    starting: dict[str, float | None] = {"archive": 0.85, "supersede": 0.85, "conflict": 0.6}
    return Thresholds(
        model="jev-1.14.0",
        fixture_sha256="0" * 64,
        label_checksum="1" * 64,
        source=source,
        thresholds=starting | selected,
    )


def scored(
    folder: Path,
    judged: Sequence[Judged],
    *,
    more: Sequence[EvalItem] = (),
    synthetic: bool = False,
    thresholds: Thresholds | None = None,
) -> score.Report:
    items = fixture(folder, [*(each.item for each in judged), *more])
    return score.report(items, judged, thresholds or frozen(), synthetic=synthetic)


def recurring(count: int = 30, collapsed: int = 0, probability: float = 0.9) -> list[Judged]:
    return [
        said(
            item(f"standup-{n:02}", slice="recurring"),
            "archive" if n < collapsed else "keep",
            probability,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("proposals", "right", "met"),
    [(40, 38, True), (40, 37, False), (39, 39, False), (100, 95, True), (0, 0, False)],
)
def test_the_archive_bar_needs_its_precision_and_its_proposals(
    tmp_path: Path, proposals: int, right: int, met: bool
) -> None:
    judged = several(proposals, "archive", right=right) + recurring()
    archive, collapses = scored(tmp_path, judged).bars
    assert archive.met is met
    assert archive.inputs["proposals"] == proposals
    assert archive.inputs["right"] == right
    assert collapses.met is True


def test_the_bar_is_over_all_items_whatever_their_split(tmp_path: Path) -> None:
    judged = [
        *several(20, "archive", right=20),
        *several(20, "archive", right=18, split="test", start=20),
        *recurring(),
    ]
    # Of the second twenty 18 are right: `right` counts from each start.
    report = scored(tmp_path, judged)
    assert report.bars[0].met is True
    assert report.figures["archive_dev_precision"] == 1.0
    assert report.figures["archive_test_precision"] == 0.9
    assert report.met is True
    lines = report.text().splitlines()
    for split, precision in (("dev", "1.000"), ("test", "0.900")):
        assert any(
            line.split()[:2] == [split, "archive"] and precision in line.split() for line in lines
        )


def test_one_collapse_misses_its_bar_and_is_named(tmp_path: Path) -> None:
    judged = several(60, "archive", right=60) + recurring(collapsed=1)
    report = scored(tmp_path, judged)
    archive, collapses = report.bars
    assert archive.met is True
    assert collapses.met is False
    assert report.met is False
    assert collapses.inputs["collapses"] == 1
    assert "standup-00" in report.text()
    # Below its threshold it is no proposal, and is told of.
    unsure = scored(tmp_path, several(60, "archive", right=60) + recurring(30, 2, 0.8)).bars[1]
    assert unsure.met is True
    assert unsure.inputs["collapses_below_threshold"] == 2
    assert "2 more below their threshold" in unsure.why


def test_no_collapse_among_thirty_is_not_said_to_be_none_at_all(tmp_path: Path) -> None:
    report = scored(tmp_path, several(40, "archive", right=40) + recurring())
    assert "so at most 9.5% of such" in " ".join(report.text().split())


def test_without_recurring_episodes_nothing_is_said_of_collapses(tmp_path: Path) -> None:
    report = scored(tmp_path, several(40, "archive", right=40))
    assert [bar.met for bar in report.bars] == [True, None]
    assert report.met is None


@pytest.mark.parametrize("reason", ["synthetic", "scripted", "fixture", "labels"])
def test_synthetic_results_never_count_toward_a_bar(tmp_path: Path, reason: str) -> None:
    judged = several(60, "archive", right=60) + recurring()
    items = fixture(tmp_path, [each.item for each in judged])
    thresholds = {
        "synthetic": frozen(),
        "scripted": frozen("scripted"),
        "fixture": frozen().model_copy(update={"fixture_sha256": items.sha256}),
        "labels": frozen().model_copy(update={"label_checksum": items.label_checksum}),
    }[reason]
    report = score.report(items, judged, thresholds, synthetic=reason == "synthetic")
    assert [bar.met for bar in report.bars] == [None, None]
    assert report.met is None
    text = " ".join(report.text().split())
    assert text.count("cannot be said") == 2
    assert text.count("synthetic results never count toward a bar") == 2
    assert "Synthetic: " in text
    assert scored(tmp_path, judged).met is True


def test_a_bar_that_would_be_met_cannot_be_said_while_an_item_has_no_verdict(
    tmp_path: Path,
) -> None:
    missing = [item("unjudged", "archive")]
    report = scored(tmp_path, several(40, "archive", right=40) + recurring(), more=missing)
    assert [bar.met for bar in report.bars] == [None, None]
    assert "Without a verdict: unjudged" in report.text()
    assert report.figures["archive_recall"] == 40 / 41
    worse = scored(tmp_path, several(40, "archive", right=20) + recurring(), more=missing)
    assert worse.bars[0].met is False


def test_the_report_has_the_bounds_that_a_hand_would_look_up(tmp_path: Path) -> None:
    judged = several(40, "archive", right=38) + several(40, "supersede", right=40)
    figures = scored(tmp_path, judged).figures
    assert round(figures["archive_lower"] or 0, 3) == 0.851
    assert round(figures["supersede_lower"] or 0, 3) == 0.928
    assert figures["combined_precision"] == 78 / 80
    assert figures["combined_proposals"] == 80
    assert figures["archive_fact_precision"] == 0.95
    assert figures["conflict_precision"] is None
    assert (
        (figures["archive_bootstrap_lower"] or 1) < 0.95 < (figures["archive_bootstrap_upper"] or 0)
    )
    # One cluster draws no interval.
    one = several(5, "archive", right=4, cluster="one")
    assert scored(tmp_path, one).figures["archive_bootstrap_lower"] is None


def test_an_action_without_a_threshold_has_no_proposal_and_the_report_says_none(
    tmp_path: Path,
) -> None:
    judged = several(40, "archive", right=40)
    report = scored(tmp_path, judged, thresholds=frozen(archive=None))
    assert report.figures["archive_proposals"] == 0
    assert report.figures["archive_precision"] is None
    assert report.figures["archive_recall"] == 0.0
    assert "archive none, supersede 0.85" in report.text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(verdicts(least=1), st.randoms())
def test_a_report_fits_100_columns_has_no_sweep_and_does_not_depend_on_order(
    tmp_path: Path, judged: list[Judged], chance: random.Random
) -> None:
    report = scored(tmp_path, judged)
    assert max(map(len, report.text().splitlines())) <= 100
    items = fixture(tmp_path, [each.item for each in judged])
    again = score.report(items, chance.sample(judged, len(judged)), frozen(), synthetic=False)
    assert again.figures == report.figures
    assert again.text() == report.text()
    for name, figure in report.figures.items():
        assert figure is None or isinstance(figure, int | float), name


def test_no_text_of_an_item_is_in_a_report(tmp_path: Path) -> None:
    judged = [
        said(item("one", "archive", text=MARKER)),
        said(item("two", "supersede", newer=2, text=MARKER), related=1),
        said(item("three", slice="recurring", text=MARKER), "archive"),
    ]
    report = scored(tmp_path, judged)
    assert MARKER in judged[0].item.memory.content
    told = f"{report.text()}{report.figures}{report.bars}"
    assert MARKER not in told
    assert "topic of" not in told


def test_verdicts_that_are_not_of_these_items_one_each_are_refused(tmp_path: Path) -> None:
    items = fixture(tmp_path, [item("one"), item("two")])
    for judged, sentence in (
        ([said(item("three"))], "verdicts on items that test does not have"),
        ([said(item("one", "archive"))], "verdicts on items that test does not have"),
        ([said(item("one")), said(item("one"))], "two verdicts on one"),
    ):
        with pytest.raises(EvalRefused, match=sentence):
            score.report(items, judged, frozen(), synthetic=True)


# Baselines


def of(folder: Path, *items: EvalItem) -> Fixture:
    return fixture(folder, items)


def outcome(judged: Sequence[Judged]) -> list[tuple[str, int | None]]:
    assert {each.probability for each in judged} <= {1.0}
    for each in judged:
        assert sum(each.probabilities.values()) == 1.0
    return [(each.action, each.related) for each in judged]


def test_each_baseline_says_what_its_rule_says(tmp_path: Path) -> None:
    items = of(
        tmp_path,
        item("alone", newer=0),
        item("neighbours", newer=2, similarity=0.85),
        item("pair", "supersede", kind="pair", similarity=0.7),
        item("young", newer=0, recorded=NOW - timedelta(days=89)),
        item("old", newer=0, recorded=NOW - timedelta(days=91)),
        item("blocker", newer=1, memory_type="blocker"),
    )
    keep, nearest = ("keep", None), ("supersede", 0)
    archive = ("archive", None)
    assert outcome(baselines.keep_all(items)) == [keep] * 6
    # A blocker is never superseded or archived: the pass does not offer it.
    assert outcome(baselines.newest_wins(items)) == [keep, nearest, nearest, keep, keep, keep]
    assert outcome(baselines.archive_by_age(items)) == [
        archive,
        archive,
        archive,
        keep,
        archive,
        keep,
    ]
    assert outcome(baselines.similarity_above(items)) == [keep, nearest, keep, keep, keep, keep]
    assert outcome(baselines.similarity_above(items, 0.7))[2] == nearest


def test_similarity_takes_the_most_similar_and_counts_at_its_floor(tmp_path: Path) -> None:
    two = item("two", newer=2)
    varied = EvalItem.model_validate(
        two.model_dump() | {"similarities": [0.83, 0.9], "id": "varied"}
    )
    at = item("at", newer=1, similarity=0.82)
    below = item("below", newer=1, similarity=0.8199)
    said_ = outcome(baselines.similarity_above(of(tmp_path, varied, at, below)))
    assert said_ == [("supersede", 1), ("supersede", 0), ("keep", None)]


def test_the_baselines_stand_beside_the_judge_with_their_own_figures(tmp_path: Path) -> None:
    judged = several(10, "supersede", right=5) + recurring(2)
    report = scored(tmp_path, judged)
    assert report.figures["baseline_keep_all_combined"] is None
    assert report.figures["baseline_keep_all_keep_rate"] == 1.0
    assert report.figures["baseline_newest_wins_supersede"] == 5 / 12
    assert report.figures["baseline_newest_wins_collapses"] == 2
    assert report.figures["baseline_older_than_90_days_archive"] == 0.0
    for name in ("this judge", "keep all", "newest wins", "older than 90", "similarity from 0.82"):
        assert f"  {name}" in report.text()


def test_a_baselines_figures_do_not_depend_on_the_thresholds_of_the_judge(tmp_path: Path) -> None:
    judged = several(10, "supersede", right=5)
    with_, without = (
        scored(tmp_path, judged, thresholds=frozen(supersede=each)).figures for each in (0.5, None)
    )
    of_rules = [name for name in with_ if name.startswith("baseline_")]
    assert {name: with_[name] for name in of_rules} == {name: without[name] for name in of_rules}
    assert replace(judged[0], action="keep").correct is False
