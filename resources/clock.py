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
        if self.fixed is not None:
            return datetime.fromisoformat(self.fixed).astimezone(UTC) + self._slept
        return datetime.now(UTC)

    def sleep(self, seconds: float, until: threading.Event) -> None:
        """Wait ``seconds``, or until the event is set."""
        if self.fixed is None:
            until.wait(seconds)
        else:
            with self._moving:
                self._slept += timedelta(seconds=seconds)
