"""The token rate: how fast all runs of a deployment together may send to the judge."""

from datetime import timedelta

import dagster as dg

import sql
from resources.clock import Clock
from resources.database import Database
from resources.errors import RateExceeded

QUERIES = sql.load("rate")

BURST = timedelta(seconds=10)
"""How much unused rate may be saved up, as time."""

PATIENCE = timedelta(minutes=2)
"""How long one call waits for the rate at most."""

LARGEST_CALL = 200_000
"""More tokens than any call can have."""


class TokenRate(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Tokens per minute that all runs share, through one row in PostgreSQL."""

    database: dg.ResourceDependency[Database]
    clock: dg.ResourceDependency[Clock]
    tokens_per_minute: int = 1_000_000

    def take(self, tokens: int, patience: float) -> float:
        """Take ``tokens`` of the rate; the seconds to wait before they may be sent.

        Raises RateExceeded, and takes nothing, when that would be more than ``patience`` seconds.
        """
        with self.database.registry() as connection:
            row = connection.execute(
                QUERIES["take_tokens"],
                {
                    "now": self.clock.stopped_at,
                    "burst": BURST,
                    "horizon": timedelta(seconds=patience) + self._time_of(LARGEST_CALL),
                    "patience": timedelta(seconds=patience),
                    "duration": self._time_of(tokens),
                },
            ).first()
        if row is None:
            raise RateExceeded(
                f"Judging stops: the rate of {self.tokens_per_minute} tokens a minute is taken for "
                f"more than {patience:.0f} seconds. What was judged stays, the rest waits for the "
                "next run; raise FORGETTING_TOKENS_PER_MINUTE if the endpoint allows more."
            )
        wait: timedelta = row.wait
        return wait.total_seconds()

    def _time_of(self, tokens: int) -> timedelta:
        return timedelta(minutes=tokens / self.tokens_per_minute)
