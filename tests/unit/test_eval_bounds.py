"""Bounds of a share: published figures, and what holds for any counts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.bounds import clopper_pearson, clustered_bootstrap


@pytest.mark.parametrize(
    ("successes", "trials", "lower"), [(38, 40, 0.851), (40, 40, 0.928), (59, 59, 0.950)]
)
def test_the_lower_bound_of_known_counts(successes: int, trials: int, lower: float) -> None:
    bounds = clopper_pearson(successes, trials)
    assert bounds is not None
    assert round(bounds.lower, 3) == lower


def test_59_of_59_is_the_least_that_demonstrates_95_percent() -> None:
    enough, short = clopper_pearson(59, 59), clopper_pearson(58, 58)
    assert enough is not None
    assert short is not None
    assert short.lower < 0.95 <= enough.lower


@pytest.mark.parametrize(("trials", "upper"), [(30, 0.095), (299, 0.010)])
def test_none_in_so_many_bounds_the_rate(trials: int, upper: float) -> None:
    bounds = clopper_pearson(0, trials)
    assert bounds is not None
    assert bounds.lower == 0
    assert round(bounds.upper, 3) == upper


COUNTS = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS, st.floats(0.5, 0.999), st.booleans())
def test_the_bounds_are_in_order_around_the_share_and_within_0_and_1(
    counts: tuple[int, int], confidence: float, one_sided: bool
) -> None:
    successes, trials = counts
    bounds = clopper_pearson(successes, trials, confidence, one_sided)
    assert bounds is not None
    assert 0 <= bounds.lower <= successes / trials <= bounds.upper <= 1


@given(COUNTS)
def test_both_bounds_together_are_wider_than_one_by_itself(counts: tuple[int, int]) -> None:
    alone, together = clopper_pearson(*counts), clopper_pearson(*counts, one_sided=False)
    assert alone is not None
    assert together is not None
    assert together.lower <= alone.lower
    assert together.upper >= alone.upper


@given(COUNTS)
def test_one_more_success_never_lowers_the_bound(counts: tuple[int, int]) -> None:
    successes, trials = counts
    less, more = clopper_pearson(successes, trials + 1), clopper_pearson(successes + 1, trials + 1)
    assert less is not None
    assert more is not None
    assert less.lower <= more.lower


def test_no_trial_gives_no_bound_and_impossible_counts_are_refused() -> None:
    assert clopper_pearson(0, 0) is None
    for successes, trials in ((2, 1), (-1, 3)):
        with pytest.raises(ValueError, match="successes are between"):
            clopper_pearson(successes, trials)
    with pytest.raises(ValueError, match="confidence"):
        clopper_pearson(1, 2, confidence=1.0)


VALUES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from((0.0, 1.0))), min_size=1, max_size=40
)


@given(VALUES, st.randoms())
def test_the_bootstrap_is_the_same_in_any_order_and_within_the_values(
    drawn: list[tuple[str, float]], chance: random.Random
) -> None:
    def of(pairs: list[tuple[str, float]]) -> object:
        return clustered_bootstrap([v for _, v in pairs], [c for c, _ in pairs], resamples=200)

    bounds = of(drawn)
    assert bounds == of(chance.sample(drawn, len(drawn)))
    if len({cluster for cluster, _ in drawn}) < 2:
        assert bounds is None
    else:
        lower, upper = bounds  # type: ignore[misc]
        assert min(v for _, v in drawn) <= lower <= upper <= max(v for _, v in drawn)


def test_items_of_few_clusters_say_less_than_as_many_independent_ones() -> None:
    values = [1.0] * 30 + [0.0] * 10
    apart = clustered_bootstrap(values, [str(n) for n in range(40)])
    together = clustered_bootstrap(values, [str(n // 10) for n in range(40)])
    assert apart is not None
    assert together is not None
    assert together.upper - together.lower > 1.5 * (apart.upper - apart.lower)
    assert apart.lower == pytest.approx(0.6, abs=0.05)
    assert apart.upper == pytest.approx(0.88, abs=0.05)


def test_another_seed_draws_other_clusters_and_the_same_seed_the_same() -> None:
    values, clusters = [1.0, 0.0, 1.0, 1.0, 0.5], list("abcde")
    seeds = [clustered_bootstrap(values, clusters, resamples=20, seed=seed) for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]
