"""Asking the judge: the loop that joins pure judging to the gateway, the budget and the store.

Each batch's verdicts are committed as it returns, so a killed run resumes with what is unjudged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import tenacity

from forgetting_assets.judging.batching import Batch, batches, halves
from forgetting_assets.judging.rendering import refs_of
from forgetting_assets.judging.verdicts import Verdict, verdict_of
from forgetting_assets.partition import Partition
from forgetting_assets.store import tenants, verdicts
from resources.budget import FORGET_DECIDE, Budget
from resources.clock import Clock
from resources.database import Database
from resources.errors import (
    AnswerRejected,
    BudgetExceeded,
    GatewayUnavailable,
    JudgmentNotEnabled,
    NotADemo,
    RequestTooLarge,
)
from resources.gateway import Decision, Gateway
from resources.policy import Policy

ATTEMPTS = 5
LONGEST_WAIT = 60.0
"""Seconds that one retry waits at most; an endpoint that asks for more is left to the next run."""


@dataclass
class Judged:
    """How the items of a partition fared. ``stopped`` says why some were left, or is None."""

    items: int = 0
    judged: int = 0
    reused: int = 0
    rejected: int = 0
    too_large: int = 0
    calls: int = 0
    unpriced_calls: int = 0
    spend_usd: Decimal = Decimal(0)
    stopped: str | None = None
    outcomes: Counter[str] = field(default_factory=Counter)


def judge(
    database: Database,
    gateway: Gateway,
    budget: Budget,
    clock: Clock,
    policy: Policy,
    partition: Partition,
    progress: Callable[[str], None],
) -> Judged:
    """Get a verdict for each item of the partition that has none for its input and this model.

    A tenant that opted out, or whose budget is spent, is left with what was judged. Raises NotADemo
    for the scripted judge on real memories, and GatewayError when the judge cannot be used; what
    was judged before stays. ``progress`` gets counts only.
    """
    if gateway.demo_only and not database.is_demo():
        raise NotADemo()
    done = Judged()
    with database.judging(partition.user_id):
        # A verdict is as old as the text it is about: what is edited while the judge is asked is
        # newer than its verdict.
        read_at = clock.now()
        items = verdicts.read_items(database, partition)
        done.items = len(items)
        unjudged, done.reused = verdicts.reuse(database, partition, gateway.pinned_model, items)
        planned, refused = batches(unjudged, partition.as_of, policy.batch_items)
        done.too_large = len(refused)
        queue = deque(planned)
        while queue:
            batch = queue.popleft()
            try:
                decision = _ask(database, gateway, budget, partition, batch)
            except (JudgmentNotEnabled, BudgetExceeded) as reason:
                done.stopped = str(reason)
                break
            except RequestTooLarge:
                if len(batch.items) == 1:
                    done.too_large += 1
                else:
                    queue.extendleft(reversed(halves(batch, partition.as_of)))
                continue
            done.calls += 1
            cost = budget.cost(decision.model, decision.input_tokens, decision.output_tokens)
            done.spend_usd += cost or 0
            done.unpriced_calls += cost is None
            accepted = _read(batch, decision, done)
            verdicts.record(database, partition, gateway.pinned_model, decision, accepted, read_at)
            done.judged += len(accepted)
            progress(f"{done.judged} of {len(unjudged)} items judged in {done.calls} calls")
    done.outcomes.update(verdicts.count(database, partition))
    return done


def _ask(
    database: Database, gateway: Gateway, budget: Budget, partition: Partition, batch: Batch
) -> Decision:
    """Send one batch, again with full jitter while the judge is away. Opt-in is read each time."""

    def send() -> Decision:
        tenants.require_judgment(database, partition.user_id)
        return gateway.decide(batch.state, batch.questions)

    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception(_worth_retrying),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=_wait,
        reraise=True,
    ):
        with attempt:
            return budget.metered(partition.user_id, FORGET_DECIDE, gateway.pinned_model, send)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _read(batch: Batch, decision: Decision, done: Judged) -> list[Verdict]:
    """The verdicts of a batch; an answer that breaks the contract rejects its item alone."""
    accepted = []
    for item, ref in zip(batch.items, refs_of(batch.items), strict=True):
        try:
            accepted.append(verdict_of(item, ref, decision.answers.get(ref)))
        except AnswerRejected:
            done.rejected += 1
    return accepted


def _worth_retrying(error: BaseException) -> bool:
    return isinstance(error, GatewayUnavailable) and (error.retry_after or 0) <= LONGEST_WAIT


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, GatewayUnavailable) else None
    jitter = tenacity.wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT)(state)
    return jitter if asked is None else max(asked, jitter)
