"""What a judge answered about labelled items: asking once, keeping it, and reading it again.

``run`` and ``replay`` read answers with the same code, so a replay says what the run said. What is
kept has digests, keys and probabilities; it has no text of a memory, and neither has any message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import UUID

import tenacity
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from eval.fixture import EvalItem, Fixture
from eval.judged import Judged, judged
from forgetting_assets.calls import pause
from forgetting_assets.judge import FRUITLESS
from forgetting_assets.judging.batching import Batch, batches, halves
from forgetting_assets.judging.items import Pair
from forgetting_assets.judging.rendering import refs_of
from forgetting_assets.judging.shadow import Shadow, shadow_of
from forgetting_assets.judging.verdicts import verdict_of
from forgetting_assets.records import reasons
from resources.clock import Clock
from resources.errors import (
    AnswerRejected,
    EvalRefused,
    GatewayUnavailable,
    RequestTooLarge,
    WrongModel,
)
from resources.gateway import Decision, Gateway, Questions
from resources.settings import PROJECT

Source = Literal["scripted", "endpoint"]

SCRIPTED = (
    "A script gave these answers from the labels, with seeded noise. No model judged anything, and "
    "no figure that follows from them says anything about a judge."
)
"""What everything that shows scripted answers says."""

RECORDED = PROJECT / "eval" / "recorded"

Say = Callable[[str], None]
Kept = dict[str, dict[str, object]]
"""The answers of one call by question id, without anything that the contract does not read."""


class Call(BaseModel):
    """One request, by its digest, and what came back. An item's bad answer is its ``rejected``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str = Field(pattern="^[0-9a-f]{64}$")
    answers: Kept
    input_tokens: int | None
    output_tokens: int | None


class Header(BaseModel):
    """The first line of a recording: who answered what, asked how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["forgetting-eval-answers-1"] = "forgetting-eval-answers-1"
    model: str
    answer_model: str
    fixture: str
    fixture_sha256: str
    batch_items: int = Field(ge=1, le=100)
    with_shadow: bool
    source: Source
    recorded_at: AwareDatetime
    note: str

    @model_validator(mode="after")
    def says_that_it_is_scripted(self) -> Header:
        """The script's own answers never pass for a judge's."""
        if ("scripted" in (self.model, self.answer_model)) != (self.source == "scripted"):
            raise ValueError("the script and only the script has the source scripted")
        if self.source == "scripted" and SCRIPTED not in self.note:
            raise ValueError("the note of scripted answers says that no model judged anything")
        return self


@dataclass(frozen=True)
class Answers:
    """What was said of a fixture's items.

    ``rejected`` has why an item has no verdict, by its id; ``shadows`` what was said beside a pair.
    """

    model: str
    answer_model: str
    source: Source
    fixture: str
    fixture_sha256: str
    batch_items: int
    with_shadow: bool
    calls: tuple[Call, ...]
    judged: tuple[Judged, ...]
    rejected: Mapping[str, str] = field(default_factory=dict)
    shadows: Mapping[str, Shadow] = field(default_factory=dict)

    @property
    def synthetic(self) -> bool:
        """Whether no model judged anything."""
        return self.source == "scripted"

    @property
    def judged_by(self) -> str:
        """Who answered, as every report and every metadata entry names it."""
        return "scripted (no model)" if self.synthetic else self.model

    @property
    def input_tokens(self) -> int:
        """Input tokens of all calls, where they were said."""
        return sum(each.input_tokens or 0 for each in self.calls)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all calls, where they were said."""
        return sum(each.output_tokens or 0 for each in self.calls)


@dataclass(frozen=True)
class Plan:
    """The calls that judging a fixture takes, before any is sent."""

    fixture: Fixture
    batch_items: int
    with_shadow: bool
    batches: tuple[Batch, ...]
    by_subject: Mapping[UUID, EvalItem]
    refused: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """About as many input tokens as the calls have together, rather more than fewer."""
        return sum(each.tokens for each in self.batches)

    def item(self, subject: UUID) -> EvalItem:
        """The labelled item of a rendered one."""
        return self.by_subject[subject]


def plan(fixture: Fixture, *, batch_items: int = 12, with_shadow: bool = False) -> Plan:
    """Render a fixture's items into calls as the pass does: pairs first, then singles.

    Within each they stand in the order of their ids' hashes, or a call would hold items of one
    label, which the pass never sees and a judge could follow.
    """
    if not 1 <= batch_items <= 100:
        raise EvalRefused(f"A call has 1 to 100 items, not {batch_items}.")
    ordered = sorted(
        fixture.items,
        key=lambda each: (each.kind != "pair", hashlib.sha256(each.id.encode()).hexdigest()),
    )
    rendered = [(each.to_item(), each) for each in ordered]
    planned, refused = batches(
        [item for item, _ in rendered], fixture.now, batch_items, with_shadow=with_shadow
    )
    by_subject = {item.subject.id: each for item, each in rendered}
    return Plan(
        fixture,
        batch_items,
        with_shadow,
        tuple(planned),
        by_subject,
        tuple(by_subject[item.subject.id].id for item in refused),
    )


def run(
    fixture: Fixture,
    gateway: Gateway,
    *,
    batch_items: int = 12,
    with_shadow: bool = False,
    say: Say,
    max_calls: int = 400,
    retry_seconds: float = 120.0,
    clock: Clock | None = None,
) -> Answers:
    """Ask a judge about every item, once a call, and again while it is away and there is time.

    All calls together may lose ``retry_seconds`` to a judge that is away. ``max_calls`` bounds what
    is sent, retries included. ``say`` gets counts alone. Raises EvalRefused and GatewayError; then
    nothing is kept of what was answered until then.
    """
    planned = plan(fixture, batch_items=batch_items, with_shadow=with_shadow)
    if len(planned.batches) > max_calls:
        raise EvalRefused(
            f"{fixture.name} takes {len(planned.batches)} calls of {batch_items} items, and "
            f"--max-calls allows {max_calls}: raise it, or put more items into a call."
        )
    asking = _Asking(planned, gateway, say, max_calls, retry_seconds, clock or Clock())
    for batch in planned.batches:
        asking.ask(batch)
    source: Source = "scripted" if gateway.demo_only else "endpoint"
    return _read(
        planned, asking.calls, gateway.pinned_model, asking.model or gateway.pinned_model, source
    )


class _Asking:
    """The calls of one run. Two requests of one digest are one question and are asked once."""

    def __init__(
        self,
        planned: Plan,
        gateway: Gateway,
        say: Say,
        max_calls: int,
        retry_seconds: float,
        clock: Clock,
    ) -> None:
        self.calls: dict[str, Call] = {}
        self.model: str | None = None
        self._plan = planned
        self._gateway = gateway
        self._say = say
        self._max_calls = max_calls
        self._retry_seconds = retry_seconds
        self._lost = 0.0  # seconds that were lost to a judge that was away
        self._clock = clock
        self._sent = 0
        self._useful = False
        self._fruitless = 0

    def ask(self, batch: Batch) -> None:
        """Ask about a batch, in halves where the judge finds it too large."""
        digest = digest_of(batch)
        if digest in self.calls:
            return
        try:
            decision = self._send(batch)
        except RequestTooLarge as error:
            if len(batch.items) > 1:
                for half in halves(
                    batch, self._plan.fixture.now, with_shadow=self._plan.with_shadow
                ):
                    self.ask(half)
                return
            call = _without_answers(digest, batch, str(error))
        except AnswerRejected as error:
            if isinstance(error, WrongModel):
                raise
            call = _without_answers(digest, batch, str(error))
        else:
            self.model = decision.model
            call = _kept(digest, batch, decision)
        self.calls[digest] = call
        self._count_fruit(call)
        answered = sum(
            "rejected" not in answer and answer["type"] == "choice"
            for each in self.calls.values()
            for answer in each.answers.values()
        )
        self._say(
            f"{answered} of {len(self._plan.by_subject)} items answered, {self._sent} calls sent."
        )

    def _send(self, batch: Batch) -> Decision:
        began = self._clock.now()

        def losing() -> float:
            return (self._clock.now() - began).total_seconds()

        def out_of_time(state: tenacity.RetryCallState) -> bool:
            return self._lost + losing() + state.upcoming_sleep > self._retry_seconds

        attempts = 0
        try:
            for attempt in tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(GatewayUnavailable),
                stop=out_of_time,
                wait=pause,
                sleep=partial(self._clock.sleep, until=threading.Event()),
                reraise=True,
            ):
                with attempt:
                    if self._sent >= self._max_calls:
                        raise EvalRefused(
                            f"{self._sent} calls were sent and some items have no answer yet: "
                            "nothing was recorded. Raise --max-calls, or find out why the judge "
                            "is away."
                        )
                    self._sent += 1
                    attempts += 1
                    return self._gateway.decide(batch.state, batch.questions)
        except GatewayUnavailable as error:
            raise GatewayUnavailable(
                f"{str(error).rstrip('.')}, after {len(self.calls)} answered calls: nothing was "
                "recorded. Run it again later."
            ) from None
        finally:
            if attempts > 1:
                self._lost += losing()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _count_fruit(self, call: Call) -> None:
        """Tell a judge that is broken from items that are, before it is paid for all of them."""
        usable = any("rejected" not in answer for answer in call.answers.values())
        self._useful = self._useful or usable
        self._fruitless += not usable
        if not self._useful and self._fruitless >= FRUITLESS:
            raise AnswerRejected(
                f"The judge gave no usable answer in its first {FRUITLESS} calls: nothing was "
                "recorded. Look at JEV_BASE_URL and JEV_MODEL."
            )


def digest_of(batch: Batch) -> str:
    """SHA-256 of a request: its state and its questions, in whatever order those are keyed.

    The order of a question's options counts, since a judge leans to what is listed first.
    """
    questions = {
        ref: [asked["type"], asked["instructions"], list(_criteria(asked).items())]
        for ref, asked in batch.questions.items()
    }
    request = json.dumps([batch.state, questions], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()


def _criteria(question: Mapping[str, object]) -> Mapping[str, object]:
    criteria = question["criteria"]
    assert isinstance(criteria, Mapping)
    return criteria


def _kept(digest: str, batch: Batch, decision: Decision) -> Call:
    """What is kept of a decision. Words of the endpoint are not: they could repeat a memory."""
    answers: Kept = {}
    for item, ref in zip(batch.items, refs_of(batch.items), strict=True):
        answer = decision.answers.get(ref)
        try:
            verdict_of(item, ref, answer)
        except AnswerRejected as error:
            answers[ref] = {"rejected": str(error)}
        else:
            assert isinstance(answer, dict)
            answers[ref] = {name: answer[name] for name in ("type", "choice", "probabilities")}
    asked: Questions = batch.questions
    for name, question in asked.items():
        given = decision.answers.get(name)
        if question["type"] == "noul" and isinstance(given, dict):
            value = given.get("noul")
            if isinstance(value, int | float) and given.get("type") == "noul":
                answers[name] = {"type": "noul", "noul": value}
    return Call(
        digest=digest,
        answers=answers,
        input_tokens=decision.input_tokens,
        output_tokens=decision.output_tokens,
    )


def _without_answers(digest: str, batch: Batch, reason: str) -> Call:
    answers: Kept = {ref: {"rejected": reason} for ref in refs_of(batch.items)}
    return Call(digest=digest, answers=answers, input_tokens=None, output_tokens=None)


def _read(
    planned: Plan, calls: Mapping[str, Call], model: str, answer_model: str, source: Source
) -> Answers:
    """The verdicts that recorded calls give on a plan's items.

    Raises EvalRefused for a request without an answer and for an answer without a request.
    """
    said: list[Judged] = []
    rejected = dict.fromkeys(planned.refused, "No call can hold it.")
    shadows: dict[str, Shadow] = {}
    used: dict[str, Call] = {}
    for batch, call in _answered(planned, calls):
        used[call.digest] = call
        for item, ref in zip(batch.items, refs_of(batch.items), strict=True):
            labelled = planned.item(item.subject.id)
            answer = call.answers.get(ref, {})
            try:
                if "rejected" in answer:
                    raise AnswerRejected(str(answer["rejected"]))
                said.append(judged(labelled, verdict_of(item, ref, answer)))
            except AnswerRejected as error:
                rejected[labelled.id] = str(error)
            if isinstance(item, Pair) and (shadow := shadow_of(ref, call.answers)):
                shadows[labelled.id] = shadow
    if over := len(calls) - len(used):
        raise EvalRefused(
            f"{over} recorded answers belong to no request that is rendered now: record again."
        )
    return Answers(
        model=model,
        answer_model=answer_model,
        source=source,
        fixture=planned.fixture.name,
        fixture_sha256=planned.fixture.sha256,
        batch_items=planned.batch_items,
        with_shadow=planned.with_shadow,
        calls=tuple(used.values()),
        judged=tuple(said),
        rejected=rejected,
        shadows=shadows,
    )


def _answered(planned: Plan, calls: Mapping[str, Call]) -> Iterator[tuple[Batch, Call]]:
    """Each batch with its call; a batch that the judge found too large in its halves."""

    def find(batch: Batch) -> list[tuple[Batch, Call]] | None:
        call = calls.get(digest_of(batch))
        if call is not None:
            return [(batch, call)]
        if len(batch.items) == 1:
            return None
        found = []
        for half in halves(batch, planned.fixture.now, with_shadow=planned.with_shadow):
            part = find(half)
            if part is None:
                return None
            found += part
        return found

    missing = 0
    for batch in planned.batches:
        found = find(batch)
        missing += found is None
        yield from found or ()
    if missing:
        raise EvalRefused(
            f"{missing} of {len(planned.batches)} requests have no recorded answer. The rendering, "
            "the number of items in a call or the recording has changed: record again."
        )


def record(path: Path, answers: Answers, *, recorded_at: datetime, note: str = "") -> None:
    """Write answers down as JSON lines, all of them or nothing."""
    if answers.synthetic:
        note = f"{SCRIPTED} {note}".strip()
    header = Header(
        model=answers.model,
        answer_model=answers.answer_model,
        fixture=answers.fixture,
        fixture_sha256=answers.fixture_sha256,
        batch_items=answers.batch_items,
        with_shadow=answers.with_shadow,
        source=answers.source,
        recorded_at=recorded_at,
        note=note or "Answers of an endpoint, as `forgetting-eval record` got them.",
    )
    lines: Sequence[BaseModel] = [header, *answers.calls]
    text = "".join(f"{json.dumps(each.model_dump(mode='json'))}\n" for each in lines)
    write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there. Raises EvalRefused where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EvalRefused(f"{path} cannot be written: {error.strerror}.") from None


def replay(fixture: Fixture, path: Path) -> Answers:
    """What a recording says of a fixture's items. It needs no network and no key.

    Raises EvalRefused when the fixture or the rendering is not what was recorded.
    """
    header, calls = read_recording(path)
    if header.fixture_sha256 != fixture.sha256:
        raise EvalRefused(
            f"{path} was recorded on other bytes than {fixture.name} has now: restore the file of "
            "items, or record again."
        )
    planned = plan(fixture, batch_items=header.batch_items, with_shadow=header.with_shadow)
    try:
        return _read(planned, calls, header.model, header.answer_model, header.source)
    except EvalRefused as error:
        raise EvalRefused(f"{path}: {error}") from None


def read_recording(path: Path) -> tuple[Header, dict[str, Call]]:
    """A recording's header, and its calls by digest. Raises EvalRefused."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise EvalRefused(
            f"The recording {path} cannot be read: {error.strerror}. `forgetting-eval record` "
            "writes one."
        ) from None
    except UnicodeDecodeError:
        raise EvalRefused(f"{path} is no recording: it is not UTF-8. Record again.") from None
    number = 1
    calls: dict[str, Call] = {}
    try:
        header = Header.model_validate_json(lines[0] if lines else "")
        for number, line in enumerate(lines[1:], start=2):
            call = Call.model_validate_json(line)
            if call.digest in calls:
                raise EvalRefused(f"{path} answers one request twice (line {number}).")
            calls[call.digest] = call
    except ValidationError as error:
        raise EvalRefused(
            f"{path} is no recording (line {number}: {reasons(error)}). Record again."
        ) from None
    return header, calls


def path_of(
    model: str, *, batch_items: int = 12, with_shadow: bool = False, folder: Path = RECORDED
) -> Path:
    """Where a model's answers belong, by how it was asked: those on the calibration fixture."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", model)
    batch = "" if batch_items == 12 else f"-batch-{batch_items}"
    return folder / f"{name}{batch}{'-shadow' if with_shadow else ''}.jsonl"


def beside(golden: Path) -> Path:
    """The folder of the answers on a private golden set."""
    return golden.parent / "recorded"
