"""Judging a partition: the loop that joins pure judging to the calls and the store.

Each call's verdicts are committed as it returns, so a killed run resumes with what is unjudged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from decimal import Decimal
from uuid import UUID

from forgetting_assets.calls import Calls, Means
from forgetting_assets.judging.batching import Batch, batches, halves
from forgetting_assets.judging.items import Item
from forgetting_assets.judging.rendering import refs_of
from forgetting_assets.judging.shadow import Shadow, shadow_of
from forgetting_assets.judging.verdicts import Verdict, verdict_of
from forgetting_assets.partition import Partition
from forgetting_assets.store import proposals, verdicts
from forgetting_assets.store.verdicts import Record, Unjudged
from resources.errors import (
    AnswerRejected,
    BudgetExceeded,
    ForgettingError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    JudgmentNotEnabled,
    NotADemo,
    RateExceeded,
    RequestTooLarge,
    WrongModel,
)
from resources.gateway import Decision

FRUITLESS = 3
"""Calls without one usable answer, when no other was, after which the judge counts as broken."""

STOPS = (JudgmentNotEnabled, BudgetExceeded, RateExceeded, GatewayUnavailable)
"""Reasons to leave the rest of a tenant's items to the next run."""


@dataclass
class Judged:
    """How the items of a partition fared. ``stopped`` says why some were left, or is None.

    A ``reused`` item has another partition's verdict, an ``unjudgeable`` one was not asked about
    again, and what is ``left`` waits for the next run. ``lost_calls`` are those of killed runs.
    """

    items: int = 0
    judged: int = 0
    reused: int = 0
    rejected: int = 0
    too_large: int = 0
    unjudgeable: int = 0
    left: int = 0
    calls: int = 0
    lost_calls: int = 0
    unpriced_calls: int = 0
    spend_usd: Decimal = Decimal(0)
    stopped: str | None = None
    outcomes: Counter[str] = field(default_factory=Counter)


def judge(
    means: Means,
    partition: Partition,
    progress: Callable[[str], None],
    *,
    rejudge: bool = False,
) -> Judged:
    """Get a verdict for each item of the partition that has none for its input and this model.

    ``rejudge`` asks about all of them again, also what could not be judged. A tenant that opted
    out, whose budget or queue of proposals is full, or whose judge stays away is left with what was
    judged. Raises NotADemo for the scripted judge on real memories, and GatewayError when the judge
    cannot be used; what was judged before stays. ``progress`` gets counts and spend only.
    """
    if means.gateway.demo_only and not means.database.is_demo():
        raise NotADemo()
    with means.database.judging(partition.user_id) as lock:
        calls = Calls(means, partition.user_id, lock)
        return _Judging(means, partition, calls, progress).run(rejudge=rejudge)


class _Judging:
    """One judging of one partition, by whoever holds the tenant's judging lock."""

    def __init__(
        self, means: Means, partition: Partition, calls: Calls, progress: Callable[[str], None]
    ) -> None:
        self.means = means
        self.partition = partition
        self.progress = progress
        self.calls = calls
        self.done = Judged()
        self.failure: ForgettingError | None = None
        self.fruitless = 0
        self.suspects: frozenset[Item] = frozenset()
        # A verdict is as old as the text it is about: what is edited while the judge is asked is
        # newer than its verdict.
        self.record = Record(
            means.database, partition, means.gateway.pinned_model, means.clock.now()
        )

    def run(self, *, rejudge: bool) -> Judged:
        self.done.lost_calls = self.calls.book_lost()
        items = verdicts.read_items(self.means.database, self.partition)
        self.done.items = self.done.left = len(items)
        queue = self._rejudged(items) if rejudge else self._unjudged(items)
        if queue and (reason := self._why_not_ask()):
            self.done.stopped = reason
        elif queue:
            self._work(queue)
            self._stand()
        self.done.outcomes.update(verdicts.count(self.means.database, self.partition))
        return self.done

    def _why_not_ask(self) -> str | None:
        """Why no call would be of use, or None. Raises GatewayRefused for a judge that is broken.

        In a run over many tenants what one learned of the judge is not learned again by each.
        """
        standing = self.means.standing
        if standing.failed >= FRUITLESS:
            raise GatewayRefused(
                f"The judge could not be used for {standing.failed} tenants of this run in a row, "
                "so it was not asked again: see what it said of them."
            )
        return standing.away or self._queue_is_full()

    def _stand(self) -> None:
        """Keep for the next tenant how the judge fared, and raise what left it unusable."""
        standing = self.means.standing
        standing.failed = standing.failed + 1 if isinstance(self.failure, GatewayError) else 0
        if self.failure:
            raise self.failure

    def _queue_is_full(self) -> str | None:
        """Why there is no room for more proposals, or None (BR-32)."""
        waiting = proposals.count_open(self.means.database, self.partition)
        most = self.means.policy.open_proposals
        if waiting < most:
            return None
        return (
            f"{waiting} proposals of {self.partition.tenant.slug} wait for a decision, and at "
            f"{most} judging stops: decide some with `forgetting review`, or raise "
            "FORGETTING_OPEN_PROPOSALS."
        )

    def _rejudged(self, items: list[Item]) -> deque[Batch]:
        asking = verdicts.next_asking(self.means.database, self.partition)
        self.record = replace(self.record, asking=asking)
        return self._batched(items, self.means.policy.batch_items)

    def _unjudged(self, items: list[Item]) -> deque[Batch]:
        database, partition, policy = self.means.database, self.partition, self.means.policy
        model = self.record.model
        unjudged, self.done.reused = verdicts.reuse(database, partition, model, items)
        docket = verdicts.sort(
            database,
            partition,
            model,
            unjudged,
            since=partition.as_of - policy.stale_window,
            rejections=policy.rejections,
        )
        self.suspects = frozenset(docket.suspects)
        self.done.unjudgeable = len(docket.unjudgeable)
        self.done.left = len(unjudged) - len(docket.unjudgeable)
        # Last, so that what a suspect does to its call holds up nobody.
        return self._batched(docket.together, policy.batch_items) + self._batched(
            docket.suspects, 1
        )

    def _batched(self, items: list[Item], batch_items: int) -> deque[Batch]:
        planned, refused = batches(
            items, self.partition.as_of, batch_items, with_shadow=self.means.policy.shadow
        )
        self._unjudgeable([Unjudged(item, "too_large", "No call can hold it.") for item in refused])
        return deque(planned)

    def _work(self, queue: deque[Batch]) -> None:
        """Ask about every batch, a bounded number at once, until there is a reason to stop.

        What is under way then is still waited for and written down: it is paid for.
        """
        under_way: dict[Future[Decision], Batch] = {}
        most = self.means.policy.calls_in_flight
        with ThreadPoolExecutor(most, thread_name_prefix="judge") as threads:
            try:
                while True:
                    while queue and len(under_way) < most and not self.calls.stop.is_set():
                        batch = queue.popleft()
                        under_way[threads.submit(self.calls.ask, batch)] = batch
                    if not under_way:
                        break
                    for call in wait(under_way, return_when=FIRST_COMPLETED).done:
                        try:
                            self._finish(under_way.pop(call), call, queue)
                        except ForgettingError as error:
                            self._fail(error)
            finally:
                self.calls.stop.set()

    def _finish(self, batch: Batch, call: Future[Decision], queue: deque[Batch]) -> None:
        """Write down what became of a call. Raises what leaves the judge unusable."""
        try:
            decision = call.result()
        except STOPS as reason:
            self._leave_the_rest(reason)
            return
        except RequestTooLarge as error:
            if len(batch.items) > 1:
                with_shadow = self.means.policy.shadow
                parts = halves(batch, self.partition.as_of, with_shadow=with_shadow)
                queue.extendleft(reversed(parts))
            else:
                self._unjudgeable([Unjudged(batch.items[0], "too_large", str(error))])
                self._count_fruit(batch, accepted=0, reason=str(error))
        except AnswerRejected as error:
            if isinstance(error, WrongModel):
                raise
            self.done.calls += error.billed
            self.done.unpriced_calls += error.billed
            self._unjudgeable(
                [Unjudged(item, "answer_rejected", str(error)) for item in batch.items]
            )
            self._count_fruit(batch, accepted=0, reason=str(error))
        else:
            self._read(batch, decision)
        self._say_progress()

    def _leave_the_rest(self, reason: ForgettingError) -> None:
        by_itself = not self.calls.stop.is_set()  # else it was told to stop, which says nothing
        if self.done.stopped is None:
            self.done.stopped = str(reason)
            if isinstance(reason, GatewayUnavailable):
                self.done.stopped += (
                    " It was tried again as long as FORGETTING_RETRY_SECONDS allows; the rest "
                    "waits for the next run."
                )
                if by_itself:
                    self.means.standing.away = self.done.stopped
        self.calls.stop.set()

    def _read(self, batch: Batch, decision: Decision) -> None:
        """Write down a call's verdicts; a bad answer rejects its item alone."""
        accepted: list[Verdict] = []
        rejected: list[Unjudged] = []
        shadows: dict[UUID, Shadow] = {}
        for item, ref in zip(batch.items, refs_of(batch.items), strict=True):
            try:
                accepted.append(verdict_of(item, ref, decision.answers.get(ref)))
            except AnswerRejected as error:
                rejected.append(Unjudged(item, "answer_rejected", str(error)))
            if shadow := shadow_of(ref, decision.answers):
                shadows[item.subject.id] = shadow
        cost = self.means.budget.cost(decision.model, decision.input_tokens, decision.output_tokens)
        done = self.done
        done.calls += 1
        done.spend_usd += cost or 0
        done.unpriced_calls += cost is None
        written = self.record.verdicts(decision, accepted, shadows)
        done.judged += written
        done.left -= written
        self._unjudgeable(rejected)
        self._count_fruit(batch, len(accepted), rejected[0].detail if rejected else "")

    def _say_progress(self) -> None:
        done = self.done
        self.progress(
            f"{done.judged} items judged, {done.left} left, {done.calls} calls, "
            f"{done.spend_usd:.4f} US dollars"
            + (f" and {done.unpriced_calls} calls of unknown price" * bool(done.unpriced_calls))
        )

    def _unjudgeable(self, items: list[Unjudged]) -> None:
        if items:
            self.record.unjudged(items)
        for each in items:
            if each.reason == "too_large":
                self.done.too_large += 1
            else:
                self.done.rejected += 1
        self.done.left -= len(items)

    def _count_fruit(self, batch: Batch, accepted: int, reason: str) -> None:
        """Tell a judge that is broken from memories that are: it never gave a usable answer."""
        if accepted:
            self.fruitless = 0
        elif not self.done.judged and batch.items[0] not in self.suspects:
            self.fruitless += 1
        if self.fruitless >= FRUITLESS:
            raise AnswerRejected(
                f"The judge gave no usable answer in {FRUITLESS} calls in a row ({reason}). "
                "Look at JEV_BASE_URL and JEV_MODEL."
            )

    def _fail(self, error: ForgettingError) -> None:
        self.failure = self.failure or error
        self.calls.stop.set()
