"""One call to the judge: when it may be sent, what it may cost, and when it is tried again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import tenacity

from forgetting_assets.judging.batching import Batch
from forgetting_assets.store import tenants
from resources.budget import FORGET_DECIDE, Budget
from resources.clock import Clock
from resources.database import Database, JudgingLock
from resources.errors import GatewayUnavailable
from resources.gateway import Decision, Gateway
from resources.policy import Policy
from resources.rate import PATIENCE, TokenRate

LONGEST_PAUSE = 60.0
"""Seconds that jitter alone waits before a retry, at most."""


@dataclass
class Standing:
    """How the judge fared with the tenants of this run so far.

    ``away``: why it could not be reached, once that used up the time for it. ``failed``: tenants in
    a row for which it could not be used at all.
    """

    away: str | None = None
    failed: int = 0


@dataclass(frozen=True)
class Means:
    """What judging needs of the outside, as Dagster injects it; one for all tenants of a run."""

    database: Database
    gateway: Gateway
    budget: Budget
    rate: TokenRate
    clock: Clock
    policy: Policy
    standing: Standing = field(default_factory=Standing)


class Calls:
    """The calls of one judging of one tenant; several may be under way in threads.

    Once ``stop`` is set nothing more is sent, and no wait goes on.
    """

    def __init__(self, means: Means, user_id: UUID, lock: JudgingLock) -> None:
        self.stop = threading.Event()
        self._lock = lock
        self._means = means
        self._user_id = user_id
        self._lost = 0.0  # seconds that were lost to a judge that was away
        self._losing = threading.Lock()

    def book_lost(self) -> int:
        """Count the calls that a killed run left announced as charged; how many."""
        return self._means.budget.book_lost(self._user_id, FORGET_DECIDE)

    def ask(self, batch: Batch) -> Decision:
        """Send one call, again with full jitter while the judge is away and there is time.

        The time that all calls of a judging may lose is the policy's ``retry_seconds``. Raises what
        the rate, the budget, the opt-in and the gateway raise.
        """
        means = self._means
        self._wait_for_rate(batch)
        began = means.clock.now()

        def losing() -> float:
            return (means.clock.now() - began).total_seconds()

        def out_of_time(state: tenacity.RetryCallState) -> bool:
            lost = self._lost + losing() + state.upcoming_sleep
            return self.stop.is_set() or lost > means.policy.retry_seconds

        attempts = 0
        try:
            for attempt in tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(GatewayUnavailable),
                stop=out_of_time,
                wait=pause,
                sleep=partial(means.clock.sleep, until=self.stop),
                reraise=True,
            ):
                with attempt:
                    attempts += 1
                    if attempts > 1:
                        self._wait_for_rate(batch)
                    return self._send(batch)
            raise AssertionError("unreachable: the last attempt returns or raises")
        finally:
            if attempts > 1:
                with self._losing:
                    self._lost += losing()

    def _send(self, batch: Batch) -> Decision:
        """One attempt, inside the budget. Lock and opt-in are looked at immediately before it."""
        means = self._means

        def send() -> Decision:
            self._lock.require()
            tenants.require_judgment(means.database, self._user_id)
            return means.gateway.decide(batch.state, batch.questions)

        model = means.gateway.pinned_model
        return means.budget.metered(self._user_id, FORGET_DECIDE, model, send)

    def _wait_for_rate(self, batch: Batch) -> None:
        """Wait until the rate that all runs share lets a call go. Raises RateExceeded."""
        means = self._means
        pause = means.rate.take(batch.tokens, PATIENCE.total_seconds())
        means.clock.sleep(pause, until=self.stop)
        if self.stop.is_set():
            raise GatewayUnavailable("Judging stopped before this call was sent.")


def pause(state: tenacity.RetryCallState) -> float:
    """Seconds before the next attempt: full jitter, on top of what the endpoint asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, GatewayUnavailable) else None
    jitter = tenacity.wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE)(state)
    return jitter + (asked or 0)
