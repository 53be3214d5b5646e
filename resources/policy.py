"""The figures of the pass: windows, caps, floors, thresholds, batches."""

from datetime import timedelta

import dagster as dg

from resources import thresholds

STARTING = {"archive": 0.85, "supersede": 0.85, "conflict": 0.6}
"""The ADR's thresholds for a model that none were selected for."""


class Policy(dg.ConfigurableResource):  # type: ignore[type-arg]
    """How much the pass takes and how sure it must be. Defaults are the ADR's starting values.

    What docs/settings.md does not list is set in code, by `build_defs(policy=Policy(...))`.
    ``thresholds_of`` is the judge whose selected thresholds count, where there are any, instead of
    the three here.
    """

    stale_window_days: int = 30
    single_cap: int = 60
    pair_cap: int = 40
    conflict_floors: dict[str, float] = {}  # noqa: RUF012 - pydantic copies the default
    batch_items: int = 12
    archive_threshold: float = STARTING["archive"]
    supersede_threshold: float = STARTING["supersede"]
    conflict_threshold: float = STARTING["conflict"]
    thresholds_of: str | None = None
    calls_in_flight: int = 1
    retry_seconds: float = 120.0
    rejections: int = 3
    shadow: bool = False
    open_proposals: int = 500
    proposal_days: int = 90
    blast_radius: float = 0.5
    blast_radius_least: int = 20
    sweep_window_days: int = 7
    sweep_batch: int = 500
    overdue_days: int = 2

    @property
    def stale_window(self) -> timedelta:
        """How long a memory stays fresh after its last change or review."""
        return timedelta(days=self.stale_window_days)

    @property
    def sweep_window(self) -> timedelta:
        """How long evidence stays hot after its last use."""
        return timedelta(days=self.sweep_window_days)

    @property
    def proposal_window(self) -> timedelta:
        """How long an undecided proposal stays open."""
        return timedelta(days=self.proposal_days)

    @property
    def overdue(self) -> timedelta:
        """How long after the end of the newest day that was passed a tenant's pass is overdue."""
        return timedelta(days=self.overdue_days)

    @property
    def thresholds(self) -> dict[str, float | None]:
        """The least probability at which a verdict becomes a proposal, by action; None: at none.

        Raises ConfigurationError when the selected ones are of another model or fixture.
        """
        return self._thresholds()[0]

    @property
    def thresholds_from(self) -> str:
        """Where the thresholds come from. Raises as ``thresholds`` does."""
        return self._thresholds()[1]

    def _thresholds(self) -> tuple[dict[str, float | None], str]:
        if self.thresholds_of and (selected := thresholds.of_model(self.thresholds_of)):
            path = thresholds.path_of(self.thresholds_of)
            return dict(selected.thresholds), f"eval/thresholds/{path.name}"
        given: dict[str, float | None] = {
            "archive": self.archive_threshold,
            "supersede": self.supersede_threshold,
            "conflict": self.conflict_threshold,
        }
        return given, "starting values" if given == STARTING else "set in code"
