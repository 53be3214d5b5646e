"""Time as a resource, so that no rule of the pass reads the wall clock by itself."""

from datetime import UTC, datetime

import dagster as dg


class Clock(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The current time in UTC. ``fixed`` stops it, for tests and for reproducing a run."""

    fixed: str | None = None

    def now(self) -> datetime:
        """Now, timezone-aware, in UTC."""
        if self.fixed is not None:
            return datetime.fromisoformat(self.fixed).astimezone(UTC)
        return datetime.now(UTC)
