"""How far a measured share may be from the true one: exact bounds, and a clustered bootstrap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import beta


class Bounds(NamedTuple):
    """Where the true share is, from 0 to 1."""

    lower: float
    upper: float


def clopper_pearson(
    successes: int, trials: int, confidence: float = 0.95, one_sided: bool = True
) -> Bounds | None:
    """The exact bounds of a share; None without a trial.

    ``one_sided``: each bound holds with this confidence taken by itself. Otherwise both hold
    together. Trials count as independent, which items of one cluster are not.
    """
    if not 0 <= successes <= trials:
        raise ValueError("successes are between 0 and the trials")
    if not 0 < confidence < 1:
        raise ValueError("a confidence is between 0 and 1")
    if trials == 0:
        return None
    risk = (1 - confidence) if one_sided else (1 - confidence) / 2
    failures = trials - successes
    lower = 0.0 if successes == 0 else float(beta.ppf(risk, successes, failures + 1))
    upper = 1.0 if failures == 0 else float(beta.ppf(1 - risk, successes + 1, failures))
    return Bounds(lower, upper)


def clustered_bootstrap(
    values: Sequence[float],
    clusters: Sequence[str],
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Bounds | None:
    """The interval of the mean of ``values`` when whole clusters are drawn again and again.

    Items of one cluster are alike, so clusters are drawn, not items; the same seed gives the same
    interval. None for fewer than two clusters. All values equal gives an interval of no width,
    which says nothing: read it beside Clopper-Pearson.
    """
    grouped: dict[str, list[float]] = defaultdict(list)
    for cluster, value in zip(clusters, values, strict=True):
        grouped[cluster].append(float(value))
    if len(grouped) < 2:
        return None
    groups = [sorted(grouped[name]) for name in sorted(grouped)]
    sums = np.array([sum(group) for group in groups])
    counts = np.array([len(group) for group in groups])
    draws = np.random.default_rng(seed).integers(len(groups), size=(resamples, len(groups)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail])
    return Bounds(float(lower), float(upper))
