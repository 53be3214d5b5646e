"""Time as a resource, so that no rule of the pass reads the wall clock by itself."""

import threading
from datetime import UTC, datetime, timedelta

import dagster as dg
from pydantic import PrivateAttr


class Clock(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The current time in UTC. ``fixed`` stops it, for tests and for reproducing a run.

    A stopped clock moves only by what is slept on it, and then nobody really waits.
    """

    fixed: str | None = None

    _slept: timedelta = PrivateAttr(default=timedelta())
    _moving: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def now(self) -> datetime:
        """Now, timezone-aware, in UTC."""
        return self.stopped_at or datetime.now(UTC)

    @property
    def stopped_at(self) -> datetime | None:
        """Where a stopped clock stands now, in UTC; None while time goes on."""
        if self.fixed is None:
            return None
        return datetime.fromisoformat(self.fixed).astimezone(UTC) + self._slept

    def sleep(self, seconds: float, until: threading.Event) -> None:
        """Wait ``seconds``, or until the event is set."""
        if self.fixed is None:
            until.wait(seconds)
        else:
            with self._moving:
                self._slept += timedelta(seconds=seconds)
