"""Metrics: known values, and what holds for whatever a judge said."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import metrics
from eval.judged import Judged
from tests.eval_items import item, said, several, verdicts

SURE = {"archive": 0.5, "supersede": 0.5, "conflict": 0.5}


def test_precision_is_the_share_of_right_proposals_at_or_above_the_threshold() -> None:
    judged = [
        *several(4, "archive", right=3, probability=0.9),
        *several(2, "archive", right=0, probability=0.84, start=10),
        said(item("supersede"), "supersede", 0.99),
    ]
    assert metrics.precision(judged, "archive", 0.9) == 3 / 4
    assert metrics.precision(judged, "archive", 0.85) == 3 / 4
    assert metrics.precision(judged, "archive", 0.84) == 3 / 6
    assert metrics.precision(judged, "supersede", 0.5) == 0.0


def test_a_supersede_that_names_the_wrong_newer_memory_is_a_wrong_proposal() -> None:
    of = item("single", "supersede", newer=3, named=2)
    right, wrong = said(of, related=2), said(of, related=0)
    assert metrics.precision([right], "supersede", 0.5) == 1.0
    assert metrics.precision([wrong], "supersede", 0.5) == 0.0
    assert metrics.recall([wrong], "supersede", 0.5) == 0.0
    assert metrics.misses([wrong], SURE) == [("single", "supersede:n2", "supersede:n0", 0.9)]


def test_a_collapse_of_a_recurring_episode_is_a_wrong_proposal_and_named() -> None:
    recurring = said(item("standup", slice="recurring"), "archive", 0.9)
    judged = [*several(3, "archive", right=3), recurring]
    assert metrics.precision(judged, "archive", 0.5) == 3 / 4
    assert metrics.collapses(judged, SURE) == ["standup"]
    assert metrics.collapses(judged, SURE | {"archive": 0.95}) == []
    # The same on what still holds is a wrong proposal and no collapse.
    assert metrics.collapses([said(item("fact"), "archive", 0.9)], SURE) == []


def test_recall_is_the_share_of_labelled_items_that_are_found() -> None:
    judged = [
        said(item("found", "archive"), probability=0.9),
        said(item("unsure", "archive"), probability=0.4),
        said(item("missed", "archive"), "keep"),
        said(item("another", "keep"), "archive"),
    ]
    assert metrics.recall(judged, "archive", 0.5) == 1 / 3
    assert metrics.recall(judged, "archive", 0.4) == 2 / 3
    assert metrics.recall(judged, "archive", None) == 0.0


def test_the_keep_rate_is_of_still_valid_items_alone_and_whatever_the_probability() -> None:
    judged = [
        said(item("sure")),
        said(item("unsure"), "keep", 0.3),
        said(item("wrong"), "archive", 0.3),
        said(item("archived", "archive"), "keep"),
        said(item("recurring", slice="recurring"), "archive"),
    ]
    assert metrics.keep_rate(judged) == 2 / 3


def test_brier_is_the_mean_square_of_what_the_probability_missed() -> None:
    judged = [said(item("right"), probability=0.8), said(item("wrong"), "archive", 0.6)]
    assert metrics.brier(judged) == pytest.approx((0.2**2 + 0.6**2) / 2)


def test_the_calibration_error_of_known_verdicts_in_both_kinds_of_bins() -> None:
    judged = [
        *several(1, "archive", right=1, probability=0.95),
        *several(1, "archive", right=0, probability=0.93, start=1),
        *several(1, "archive", right=1, probability=0.55, start=2),
        *several(1, "archive", right=1, probability=0.15, start=3),
    ]
    wide = (2 * abs(0.5 - 0.94) + abs(1 - 0.55) + abs(1 - 0.15)) / 4
    assert metrics.expected_calibration_error(judged) == pytest.approx(wide)
    two = (2 * abs(1 - 0.35) + 2 * abs(0.5 - 0.94)) / 4
    assert metrics.expected_calibration_error(judged, 2, adaptive=True) == pytest.approx(two)


def test_a_bin_of_equal_width_has_its_lower_end_and_the_last_one_both() -> None:
    judged = [said(item(str(p)), probability=p) for p in (0.0, 0.1, 0.5, 0.95, 1.0)]
    rows = metrics.reliability(judged)
    assert [(row.lower, row.upper, row.size) for row in rows] == [
        (0.0, 0.1, 1),
        (0.1, 0.2, 1),
        (0.5, 0.6, 1),
        (0.9, 1.0, 2),
    ]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("tenths", range(11))
def test_the_calibration_error_of_an_honest_judge_is_zero(tenths: int, adaptive: bool) -> None:
    honest = several(10, "archive", right=tenths, probability=tenths / 10)
    assert metrics.expected_calibration_error(honest, 1, adaptive) == pytest.approx(0)
    if not adaptive:
        assert metrics.expected_calibration_error(honest) == pytest.approx(0)


@given(st.lists(st.integers(0, 10), unique=True, min_size=1))
def test_a_judge_that_is_honest_in_every_bin_has_no_calibration_error(tenths: list[int]) -> None:
    honest = [
        each
        for n in sorted(tenths)
        for each in several(10, "archive", right=n, probability=n / 10, start=100 * n)
    ]
    assert metrics.expected_calibration_error(honest) == pytest.approx(0)
    # As many verdicts in each group as in any other, so the adaptive bins are the groups.
    error = metrics.expected_calibration_error(honest, len(tenths), adaptive=True)
    assert error == pytest.approx(0)


@given(verdicts(), st.integers(1, 12))
def test_adaptive_bins_have_equal_counts_up_to_one(judged: list[Judged], bins: int) -> None:
    sizes = [row.size for row in metrics.reliability(judged, bins, adaptive=True)]
    assert sum(sizes) == len(judged)
    assert len(sizes) == min(bins, len(judged))
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(verdicts(least=1), st.integers(1, 12), st.booleans(), st.randoms())
def test_no_bin_counts_more_for_where_it_stands(
    judged: list[Judged], bins: int, adaptive: bool, chance: random.Random
) -> None:
    rows = metrics.reliability(judged, bins, adaptive)
    assert sum(row.size for row in rows) == len(judged)
    shuffled = chance.sample(rows, len(rows))
    assert metrics.calibration_error(shuffled) == metrics.calibration_error(rows)


def everything(judged: list[Judged]) -> dict[str, object]:
    """Every metric of some verdicts."""
    return {
        "bins": metrics.reliability(judged),
        "adaptive": metrics.reliability(judged, adaptive=True),
        "misses": metrics.misses(judged, SURE),
        "collapses": metrics.collapses(judged, SURE),
    } | shares(judged)


def shares(judged: list[Judged]) -> dict[str, float | None]:
    """Every metric that is a share."""
    return {
        "keep_rate": metrics.keep_rate(judged),
        "brier": metrics.brier(judged),
        "ece": metrics.expected_calibration_error(judged),
        "adaptive_ece": metrics.expected_calibration_error(judged, adaptive=True),
        "combined": metrics.combined_precision(judged, SURE),
        **{f"precision_{a}": metrics.precision(judged, a, 0.7) for a in metrics.ACTIONS},
        **{f"recall_{a}": metrics.recall(judged, a, 0.7) for a in metrics.ACTIONS},
    }


@given(verdicts(), st.randoms())
def test_no_metric_depends_on_the_order_of_the_items(
    judged: list[Judged], chance: random.Random
) -> None:
    assert everything(chance.sample(judged, len(judged))) == everything(judged)


@given(verdicts())
def test_every_share_is_between_0_and_1_or_cannot_be_said(judged: list[Judged]) -> None:
    for share in shares(judged).values():
        assert share is None or (math.isfinite(share) and 0 <= share <= 1)


@given(verdicts())
def test_what_hits_misses_and_rightly_kept_items_are_is_every_item(judged: list[Judged]) -> None:
    proposed = metrics.proposals(judged, SURE)
    hits = {each.item.id for each in proposed if each.correct}
    kept = {e.item.id for e in judged if e.item.label == "keep" and e not in proposed}
    missed = [miss.id for miss in metrics.misses(judged, SURE)]
    assert sorted([*missed, *hits, *kept]) == sorted(each.item.id for each in judged)


def test_nothing_says_nothing() -> None:
    assert set(shares([]).values()) == {None}
    assert metrics.reliability([], adaptive=True) == metrics.misses([], SURE) == []
    only_keeps = [said(item("kept"))]
    assert metrics.precision(only_keeps, "archive", 0.5) is None
    assert metrics.recall(only_keeps, "archive", 0.5) is None
    assert metrics.precision(several(3, "archive", right=3), "archive", None) is None


def test_the_types_of_memories_are_told_apart() -> None:
    judged = [said(item(each, memory_type=each)) for each in ("fact", "blocker", "decision")]
    assert {
        name: [e.item.id for e in part] for name, part in metrics.by_memory_type(judged).items()
    } == {each: [each] for each in ("blocker", "decision", "fact")}
