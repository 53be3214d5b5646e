"""How sure the judge must be before a verdict becomes a proposal (ADR, Judgment)."""

from __future__ import annotations

from collections.abc import Mapping


def status_of(action: str, probability: float, thresholds: Mapping[str, float | None]) -> str:
    """``proposed`` for a non-keep verdict at or above its action's threshold, else ``dismissed``.

    An action without a threshold, or with None, proposes nothing.
    """
    threshold = thresholds.get(action)
    return "proposed" if threshold is not None and probability >= threshold else "dismissed"
