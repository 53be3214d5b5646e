"""What becomes of every wrong answer, refusal and failure; docs/gateway.md has the two tables.

The faults are those of `jevcompat mock`, an independent server of the judge's contract. After a
wanted change of a table here:

    UPDATE_DOCS=1 .venv/bin/python -m pytest tests/integration/test_gateway_faults.py
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from jevcompat.mock import FAULTS  # type: ignore[import-untyped]
from pydantic import PrivateAttr

from forgetting_assets.judge import Judged
from forgetting_assets.judging.items import Item, Pair, Single
from forgetting_assets.judging.rendering import choices, refs_of, render
from forgetting_assets.judging.shadow import shadow_of
from forgetting_assets.judging.verdicts import Verdict, verdict_of
from resources.errors import (
    AnswerRejected,
    ConfigurationError,
    ForgettingError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    MissingApiKey,
    RequestTooLarge,
    UnpinnedModel,
    WrongModel,
)
from resources.gateway import Decision, JevGateway, Questions
from resources.settings import PROJECT
from tests.http_server import Reply, ScriptedServer
from tests.items import AS_OF, HOSTILE, memory, single
from tests.support import Pass, Store, make_policy

PAGE = PROJECT / "docs" / "gateway.md"
PATIENCE = 30.0
"""Seconds that a test waits where an answer is certain to come; no test waits that long."""

KEY = "key-KEYTEXT"
MODEL = "jev-1.13.0"
ANSWER_MODEL = "jevcompat-mock-0.1"

ITEMS: list[Item] = [
    Pair(memory("".join(HOSTILE), topic="```"), memory("b", number=1), 0.86),
    single(3, number=10),
    single(2, memory_type="blocker", number=20),
    single(number=30),
]
REFS = ("p0", "s0", "s1", "s2")
STATE, QUESTIONS = render(ITEMS, AS_OF, with_shadow=True)

Outcome = Literal[
    "accepted", "item rejected", "shadow answer dropped", "call rejected", "tenant stopped"
]


@dataclass(frozen=True)
class Request:
    """What is asked of the mock; as it stands, what the pass asks. No key is the empty string."""

    model: str = MODEL
    state: str | list[str] = STATE
    questions: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: QUESTIONS)
    more: Mapping[str, object] = field(default_factory=dict)
    key: str = KEY
    method: str = "POST"
    path: str = "/v1/systemone"


@dataclass(frozen=True)
class Seen:
    """What came of a request: its items without a verdict, and whether its tokens are known."""

    outcome: Outcome
    error: type[ForgettingError] | None = None
    billed: bool = False
    rejected: tuple[str, ...] = ()
    counted: bool = True

    @property
    def sent(self) -> bool:
        """Whether the request left; what the configuration forbids does not."""
        return self.error is None or not issubclass(self.error, ConfigurationError)


@dataclass(frozen=True)
class Special:
    """A request that the pass does not send and that the fault needs, and what came of it.

    ``seen`` is None where the gateway cannot send it.
    """

    what: str
    request: Request
    seen: Seen | None
    says: str = ""


@dataclass(frozen=True)
class Row:
    """One fault: what it breaks, what came of the pass's own request, and what the pass does then.

    ``differs`` says that the reply to the pass's own request is another one than without the fault.
    """

    breaks: str
    seen: Seen
    then: str
    says: str = ""
    differs: bool = True
    keyed: bool = False
    special: Special | None = None


ACCEPTED = Seen("accepted")
UNCOUNTED = Seen("accepted", counted=False)
EVERY_ITEM = Seen("item rejected", AnswerRejected, rejected=REFS)
LAST_ITEM = Seen("item rejected", AnswerRejected, rejected=("s2",))
NO_SHADOW = Seen("shadow answer dropped")
WHOLE_CALL = Seen("call rejected", AnswerRejected, billed=True)
REFUSED = Seen("tenant stopped", GatewayRefused)
AWAY = Seen("tenant stopped", GatewayUnavailable, billed=True)

FAILS = "The run fails with a sentence that says where to look; what was judged stays."
NO_VERDICTS = (
    "No item of the call gets a verdict; the next run asks about each alone. Three such calls in a "
    "row fail the run."
)
VERDICTS_STAND = "The verdicts stand; the pair is without that shadow answer."
UNPRICED = "The verdicts stand; the call is recorded with unknown tokens and no price."
NOT_READ = "The verdicts stand: the confidence is not read, a verdict has its own probability."
NO_SCORE = "No score question is asked."
UNKNOWN_MODEL = Request(model="jev-9.9.9")


def asking(ref: str, **changes: object) -> Request:
    """The pass's request with one question changed, or a new one."""
    return Request(questions=QUESTIONS | {ref: dict(QUESTIONS.get(ref, {})) | changes})


def refused(what: str, request: Request) -> Special:
    return Special(what, request, REFUSED, "JEV_MODEL" if request.model != MODEL else "status")


def beyond(what: str, request: Request) -> Special:
    return Special(what, request, None)


def unasked(breaks: str, then: str, special: Special, *, keyed: bool = False) -> Row:
    """A fault that leaves the pass's own request alone."""
    return Row(breaks, ACCEPTED, then, differs=False, keyed=keyed, special=special)


def score(breaks: str) -> Row:
    levels = ["low", "middle", "high"]
    request = asking("s2", type="score", criteria=levels)
    special = Special("a score for an item", request, LAST_ITEM, "not a choice")
    return unasked(breaks, NO_SCORE, special)


TABLE: dict[str, Row] = {
    # The address, the envelope and the key.
    "wrong-route": Row("the path", REFUSED, FAILS, "JEV_BASE_URL"),
    "xssi-200": Row("JSON in a 200", WHOLE_CALL, NO_VERDICTS, "not JSON"),
    "nan": Row("no NaN in JSON", WHOLE_CALL, NO_VERDICTS, "not JSON"),
    "plain-content-type": Row(
        "the content type", ACCEPTED, "The verdicts stand: the body alone is read."
    ),
    "unprefixed-extra": Row(
        "names of extra fields",
        ACCEPTED,
        "The verdicts stand: unknown fields beside the answers are not read.",
    ),
    "no-usage": Row("usage is said", UNCOUNTED, UNPRICED),
    "float-usage": Row("whole token counts", UNCOUNTED, UNPRICED),
    "models-404": unasked(
        "the list of models",
        "The list of models is never fetched.",
        beyond("a request for the list", Request(method="GET", path="/v1/models")),
    ),
    "auth-rejects-header": Row(
        "a key is ignored where none is needed", REFUSED, FAILS, "JEV_API_KEY"
    ),
    "auth-x-api-key": Row("the bearer header", REFUSED, FAILS, "JEV_API_KEY", keyed=True),
    "auth-plain": unasked(
        "the reply to a missing key",
        "A key is always sent.",
        Special(
            "no key",
            Request(key=""),
            Seen("tenant stopped", MissingApiKey),
            "JEV_API_KEY",
        ),
        keyed=True,
    ),
    "auth-invalid-403-text": unasked(
        "the reply to a wrong key",
        "The right key is accepted.",
        Special("a wrong key", Request(key="another-KEYTEXT"), REFUSED, "JEV_API_KEY"),
        keyed=True,
    ),
    # Refusals.
    "text-errors": unasked(
        "JSON in errors", "Nothing is refused.", refused("an unknown model", UNKNOWN_MODEL)
    ),
    "error-flat": unasked(
        "the form of errors", "Nothing is refused.", refused("an unknown model", UNKNOWN_MODEL)
    ),
    "validation-400": unasked(
        "the status of an invalid request",
        "Nothing is refused.",
        refused("an unknown question type", asking("s2", type="guess")),
    ),
    "500-on-unknown-type": unasked(
        "no 500 for an unknown type",
        "No unknown type is asked.",
        Special(
            "an unknown type",
            asking("s2", type="guess"),
            AWAY,
            "status 500",
        ),
    ),
    "reject-jev-latest": unasked(
        "the alias of the model",
        "An exact model is asked.",
        Special(
            "the alias",
            Request(model="jev-latest"),
            Seen("tenant stopped", UnpinnedModel),
            "JEV_MODEL",
        ),
    ),
    "accept-boolean": unasked(
        "refusal of type boolean",
        "No such type is asked.",
        Special("a noul of that type", asking("p0_same_matter", type="boolean"), ACCEPTED),
    ),
    "accept-map-score": unasked(
        "refusal of a map of levels",
        NO_SCORE,
        Special(
            "a score for an item",
            asking("s2", type="score", criteria={"0": "low", "1": "high"}),
            LAST_ITEM,
            "not a choice",
        ),
    ),
    # What may be asked.
    "reject-array-state": unasked(
        "a state that is an array",
        "The pass's state is text.",
        beyond("an array", Request(state=[STATE])),
    ),
    "forbid-extra": unasked(
        "unknown fields of a request",
        "A request has exactly model, state and questions.",
        beyond("another field", Request(more={"note": "x"})),
    ),
    "strict-ids": unasked(
        "free ids of questions",
        "Ids are letters, digits and underscores.",
        refused("an id with a dot", asking("s.3", type="noul")),
    ),
    "string-only-text": unasked(
        "structured instructions",
        "Instructions and options are text.",
        refused("structured instructions", asking("s2", instructions={"ask": "which?"})),
    ),
    "no-null-description": unasked(
        "an option without a text",
        "Each option has a text.",
        refused("an option without a text", asking("s2", criteria={"keep": None, "archive": "b"})),
    ),
    "cap-64": unasked(
        "255 options",
        "An item has 5 options at most.",
        refused("65 options", asking("s2", criteria={f"k{n}": "text" for n in range(65)})),
    ),
    "noul-two-sided": unasked(
        "a noul with one criterion",
        "Shadow questions have both.",
        refused("one criterion", asking("p0_same_matter", criteria={"true": "yes"})),
    ),
    "noul-needs-instructions": unasked(
        "a noul without instructions",
        "Shadow questions have them.",
        refused("no instructions", asking("p0_same_matter", instructions=None)),
    ),
    "cap-5-levels": unasked(
        "10 levels of a score",
        NO_SCORE,
        refused("a score of 6 levels", asking("s2", type="score", criteria=list("abcdef"))),
    ),
    # Which questions are answered.
    "first-question-only": Row(
        "an answer to each question",
        Seen("item rejected", AnswerRejected, rejected=REFS[1:]),
        "The first item has its verdict; the next run asks about each other one alone.",
        "not a choice",
    ),
    "extra-answer": Row("no unasked answer", WHOLE_CALL, NO_VERDICTS, "nobody asked"),
    # Choices.
    "choice-sum": Row(
        "probabilities sum to 1", EVERY_ITEM, NO_VERDICTS, "the probabilities sum to 1."
    ),
    "choice-second": Row(
        "the choice is a most probable one", EVERY_ITEM, NO_VERDICTS, "not a most probable one"
    ),
    "choice-key-case": unasked(
        "option keys keep their case",
        "Option keys are in lower case.",
        Special(
            "a key with capitals",
            asking("s2", criteria={"Keep_It": "a", "Archive_It": "b"}),
            LAST_ITEM,
            "offered",
        ),
    ),
    "nfd-keys": unasked(
        "option keys keep their bytes",
        "Option keys are ASCII.",
        Special(
            "a key with an accent",
            asking("s2", criteria={"gard\u00e9": "a", "archiv\u00e9": "b"}),
            LAST_ITEM,
            "offered",
        ),
    ),
    "choice-no-confidence": Row("a choice has a confidence", ACCEPTED, NOT_READ),
    "confidence-over": Row("confidence up to 1", ACCEPTED, NOT_READ),
    "confidence-margin": Row("the formula of confidence", ACCEPTED, NOT_READ),
    # Nouls, which are our shadow questions.
    "boolean-type": Row("the type of a noul's answer", NO_SHADOW, VERDICTS_STAND),
    "noul-range": Row("a noul up to 1", NO_SHADOW, VERDICTS_STAND),
    # Scores.
    "score-no-legend": score("a score has a legend"),
    "legend-1-based": score("the legend counts from 0"),
    "score-keys-1-based": score("levels count from 0"),
    "score-sum": score("levels sum to 1"),
    "score-argmax": score("a score is an expectation"),
    # What no single answer shows.
    "id-leaks": Row(
        "ids do not change answers",
        ACCEPTED,
        "The verdicts stand: no single answer can show it.",
    ),
    "batch-leaks": Row(
        "company does not change answers",
        ACCEPTED,
        "The verdicts stand: no single answer can show it.",
    ),
    "order-leaks": Row(
        "order does not change answers",
        ACCEPTED,
        "The verdicts stand: no single answer can show it.",
    ),
}
"""Every fault of the installed jevcompat."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEY", KEY)
    # No proxy of the machine's stands between the test and its own server.
    monkeypatch.setenv("NO_PROXY", "*")


@contextmanager
def mock_judge(*faults: str, keyed: bool = False) -> Iterator[str]:
    """The base URL of `jevcompat mock` in a process of its own, once it listens."""
    command = [sys.executable, "-m", "jevcompat.cli", "mock", "--port", "0"]
    if keyed:
        command += ["--key", KEY]
    for fault in faults:
        command += ["--fault", fault]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stderr is not None
    try:
        # It binds port 0 and then says which one it got, so there is nothing to poll for.
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stderr.readline()
            assert line, f"jevcompat mock ended: {said}"
            said += line
        yield found.group()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def sound() -> Iterator[str]:
    """A mock without a fault, which wants the key."""
    with mock_judge(keyed=True) as url:
        yield url


class Counting(JevGateway):
    """The real gateway, and how often it was asked."""

    _asked: int = PrivateAttr(default=0)

    def decide(self, state: str, questions: Questions) -> Decision:
        self._asked += 1
        return super().decide(state, questions)


@contextmanager
def connected(
    base_url: str,
    *,
    model: str = MODEL,
    answer_model: str | None = ANSWER_MODEL,
    timeout: float = PATIENCE,
) -> Iterator[Counting]:
    """The real gateway. It connects at its first use."""
    gateway = Counting(
        base_url=base_url, model=model, answer_model=answer_model, timeout_seconds=timeout
    )
    try:
        yield gateway
    finally:
        gateway.close()


def reply_of(base_url: str, request: Request) -> tuple[int, str | None, bytes]:
    """The reply itself, without the gateway."""
    body = {"model": request.model, "state": request.state, "questions": request.questions}
    reply = httpx.request(
        request.method,
        base_url + request.path,
        json={**body, **request.more},
        headers={"Authorization": f"Bearer {request.key}"} if request.key else {},
        timeout=PATIENCE,
    )
    return reply.status_code, reply.headers.get("content-type"), reply.content


def read(decision: Decision) -> dict[str, Verdict | AnswerRejected]:
    """The verdict on each item by ref, or why its answer was rejected."""
    found: dict[str, Verdict | AnswerRejected] = {}
    for item, ref in zip(ITEMS, refs_of(ITEMS), strict=True):
        try:
            found[ref] = verdict_of(item, ref, decision.answers.get(ref))
        except AnswerRejected as rejection:
            found[ref] = rejection
    return found


def ask(base_url: str, request: Request, monkeypatch: pytest.MonkeyPatch) -> tuple[Seen, list[str]]:
    """What comes of a request through the gateway and our reading, and the reasons given."""
    assert isinstance(request.state, str)
    monkeypatch.setenv("JEV_API_KEY", request.key)
    with connected(base_url, model=request.model) as gateway:
        try:
            decision = gateway.decide(request.state, request.questions)
        except ForgettingError as error:
            rejected = isinstance(error, AnswerRejected) and not isinstance(error, WrongModel)
            billed = isinstance(error, GatewayError) and error.billed
            outcome: Outcome = "call rejected" if rejected else "tenant stopped"
            return Seen(outcome, type(error), billed), [str(error)]
    verdicts = read(decision)
    bad = {ref: each for ref, each in verdicts.items() if isinstance(each, AnswerRejected)}
    for ref in verdicts.keys() - bad.keys():
        holds_to_its_answer(ref, verdicts[ref], decision.answers[ref])
    counted = None not in (decision.input_tokens, decision.output_tokens)
    if bad:
        assert all(str(each).startswith(f"{ref}: ") for ref, each in bad.items())
        seen = Seen("item rejected", AnswerRejected, rejected=tuple(bad), counted=counted)
        return seen, [str(each) for each in bad.values()]
    shadow = shadow_of("p0", decision.answers)
    if shadow is None or shadow.same_matter is None or shadow.one_outdated is None:
        return Seen("shadow answer dropped", counted=counted), []
    return Seen("accepted", counted=counted), []


def holds_to_its_answer(ref: str, verdict: object, answer: Any) -> None:
    assert isinstance(verdict, Verdict)
    assert verdict.probability == answer["probabilities"][answer["choice"]]
    assert 0 <= verdict.probability <= 1
    assert verdict.answer_key == answer["choice"].replace(f":{ref}n", ":n")


def test_the_table_has_every_fault_of_the_installed_mock() -> None:
    assert set(TABLE) == set(FAULTS)


def test_a_sound_mock_takes_our_request_and_all_its_answers_are_read(
    sound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(sound, Request(), monkeypatch) == (ACCEPTED, [])
    with connected(sound) as gateway:
        decision = gateway.decide(STATE, QUESTIONS)
    assert decision.model == ANSWER_MODEL
    assert decision.request_id == "req_mock"
    assert decision.output_tokens == 2 * len(QUESTIONS)
    assert tuple(read(decision)) == REFS
    assert shadow_of("p0", decision.answers)


@pytest.mark.parametrize("fault", TABLE)
def test_each_fault_of_the_mock_has_the_outcome_of_its_row(
    sound: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    row = TABLE[fault]
    with mock_judge(fault, keyed=row.keyed) as url:
        seen, reasons = ask(url, Request(), monkeypatch)
        assert seen == row.seen, reasons
        assert all(row.says in reason for reason in reasons)
        # That the fault is at work shows in the reply to what we ask, or to what it needs.
        differs = reply_of(url, Request()) != reply_of(sound, Request())
        assert differs is row.differs
        assert differs or row.special
        if (special := row.special) is None:
            return
        assert reply_of(url, special.request) != reply_of(sound, special.request)
        if special.seen:
            seen, reasons = ask(url, special.request, monkeypatch)
            assert seen == special.seen, reasons
            assert all(special.says in reason for reason in reasons)


def test_our_keys_and_ids_are_lower_case_ascii_and_our_options_few() -> None:
    for item, ref in zip(ITEMS, REFS, strict=True):
        keys = [choice.key for choice in choices(item, ref)]
        assert all(re.fullmatch(r"[a-z0-9_:]+", key) for key in keys)
        assert len(keys) <= 5
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in QUESTIONS)


def test_a_sound_mock_refuses_a_wrong_key_an_unknown_model_and_another_path(
    sound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base_url, request, says in (
        (sound, Request(key="another-KEYTEXT"), "JEV_API_KEY"),
        (sound, UNKNOWN_MODEL, "JEV_MODEL"),
        (f"{sound}/elsewhere", Request(), "JEV_BASE_URL"),
    ):
        seen, (reason,) = ask(base_url, request, monkeypatch)
        assert seen == REFUSED
        assert says in reason
        assert "KEYTEXT" not in reason


def test_a_sound_mock_that_answers_as_another_model_than_the_expected_is_rejected(
    sound: str,
) -> None:
    with (
        connected(sound, answer_model=None) as gateway,
        pytest.raises(WrongModel, match="JEV_ANSWER_MODEL") as rejection,
    ):
        gateway.decide(STATE, QUESTIONS)
    assert rejection.value.billed is True


# What the pass does then


@dataclass(frozen=True)
class Day:
    """How the items of a day fared, and the rows that the day left behind."""

    judged: int = 0
    rejected: int = 0
    shadows: int = 0
    usage: int = 0
    unpriced: int = 0
    failure: type[ForgettingError] | None = None


DAYS = {
    "plain-content-type": Day(judged=4, shadows=1, usage=1),
    "no-usage": Day(judged=4, shadows=1, usage=1, unpriced=1),
    "first-question-only": Day(judged=1, rejected=3, usage=1),
    "choice-sum": Day(rejected=4, usage=1),
    "noul-range": Day(judged=4, usage=1),
    "nan": Day(rejected=4, usage=1, unpriced=1),
    "wrong-route": Day(failure=GatewayRefused),
}


@pytest.mark.parametrize("fault", DAYS)
def test_the_pass_does_with_each_outcome_what_the_table_says(store: Store, fault: str) -> None:
    acme = store.tenant()
    store.pair(acme)
    for scope in ("one", "two", "three"):
        store.memory(acme, scope=scope)
    with mock_judge(fault) as url, connected(url) as gateway:
        work = Pass(store, gateway, policy=make_policy(shadow=True))
        work.candidates(store.partition())
        failure, done = None, Judged()
        try:
            done = work.verdicts(store.partition())
        except ForgettingError as error:
            failure = type(error)
    expected = DAYS[fault]
    assert expected == Day(
        judged=count(store, "forgetting.judged_verdicts"),
        rejected=count(store, "forgetting.unjudged_items WHERE reason = 'answer_rejected'"),
        shadows=count(store, "forgetting.shadow_answers"),
        usage=count(store, "llm_usage"),
        unpriced=count(store, "llm_usage WHERE input_tokens IS NULL"),
        failure=failure,
    )
    assert (done.judged, done.rejected) == (expected.judged, expected.rejected)
    assert (done.left, done.stopped) == (0, None)


def count(store: Store, rows: str) -> int:
    return int(store.rows(f"SELECT count(*) AS n FROM {rows}")[0]["n"])


# Statuses and failures on the way


@dataclass(frozen=True)
class Trouble:
    """A reply that is no answer, or None for no server at all, and what becomes of it.

    A request counts as charged where the endpoint may have judged it.
    """

    reply: Reply | None
    error: type[GatewayError]
    charged: bool = False


def status(code: int, body: str = "") -> Reply:
    return Reply(code, body.encode())


TOO_MANY_TOKENS = '{"detail": {"error_type": "max_tokens_exceeded", "message": "BODYTEXT"}}'
HALF = Reply(body=b'{"model": "BODYTEXT"}', manner="breaks off")

TROUBLES: dict[str, Trouble] = {
    "204": Trouble(status(204), GatewayRefused),
    "301": Trouble(status(301, "BODYTEXT"), GatewayRefused),
    "302": Trouble(status(302, "BODYTEXT"), GatewayRefused),
    "400": Trouble(status(400, '{"detail": "BODYTEXT"}'), GatewayRefused),
    "400 with a list of details": Trouble(
        status(400, '{"detail": [{"msg": "BODYTEXT"}]}'), GatewayRefused
    ),
    "400 with max_tokens_exceeded": Trouble(status(400, TOO_MANY_TOKENS), RequestTooLarge),
    "401": Trouble(status(401, '{"detail": "BODYTEXT"}'), GatewayRefused),
    "403": Trouble(status(403, '{"detail": "BODYTEXT"}'), GatewayRefused),
    "404": Trouble(status(404, "BODYTEXT"), GatewayRefused),
    "408": Trouble(status(408), GatewayUnavailable),
    "413": Trouble(status(413, "BODYTEXT"), RequestTooLarge),
    # This one echoes what was sent.
    "422": Trouble(status(422, '{"detail": [{"input": "STATETEXT BODYTEXT"}]}'), GatewayRefused),
    "429": Trouble(status(429, '{"detail": "BODYTEXT"}'), GatewayUnavailable),
    "500": Trouble(status(500), GatewayUnavailable, charged=True),
    "502": Trouble(status(502, "<html>BODYTEXT</html>"), GatewayUnavailable, charged=True),
    "503": Trouble(status(503), GatewayUnavailable),
    "504": Trouble(status(504), GatewayUnavailable, charged=True),
    "529": Trouble(status(529, '{"error": "BODYTEXT"}'), GatewayUnavailable),
    "connection refused": Trouble(None, GatewayUnavailable),
    "connection dropped": Trouble(Reply(manner="drops"), GatewayUnavailable, charged=True),
    "body broken off": Trouble(HALF, GatewayUnavailable, charged=True),
    "no answer in time": Trouble(Reply(manner="hangs"), GatewayUnavailable, charged=True),
}

AGAIN = {GatewayUnavailable: "yes", RequestTooLarge: "in halves", GatewayRefused: "no"}
"""Whether a call is sent again after an error."""


@contextmanager
def in_trouble(trouble: Trouble) -> Iterator[tuple[Counting, ScriptedServer | None]]:
    """The real gateway at a server that replies so."""
    if trouble.reply is None:
        # A bound socket that does not listen holds the port and refuses.
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            with connected(f"http://127.0.0.1:{deaf.getsockname()[1]}") as gateway:
                yield gateway, None
        return
    # A server that hangs never answers, so however slow the machine is, the timeout ends it.
    timeout = 0.3 if trouble.reply.manner == "hangs" else PATIENCE
    with ScriptedServer() as server, connected(server.url, timeout=timeout) as gateway:
        reply = trouble.reply
        if 300 <= reply.status < 400:
            reply = replace(reply, headers={"location": f"{server.url}/elsewhere"})
        server.reply = reply
        yield gateway, server


@pytest.mark.parametrize("name", TROUBLES)
def test_each_status_and_failure_is_an_error_that_says_whether_it_may_cost_and_quotes_nothing(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    trouble = TROUBLES[name]
    state, questions = render([Single(memory("STATETEXT"), ())], AS_OF)
    assert "STATETEXT" in state
    with in_trouble(trouble) as (gateway, server), pytest.raises(GatewayError) as failure:
        gateway.decide(state, questions)
    error = failure.value
    assert type(error) is trouble.error
    assert error.billed is trouble.charged
    assert not isinstance(error, GatewayUnavailable) or error.retry_after is None
    shown = "".join(traceback.format_exception(error)) + repr(error)
    for text in ("STATETEXT", "BODYTEXT", "KEYTEXT"):
        assert text not in shown
        assert text not in caplog.text
    assert "HTTP Request" not in caplog.text, "the client's log would repeat the reason phrase"
    # A redirect is not followed, and the gateway itself sends nothing twice. A slow machine may
    # give up on a server that hangs before that has read anything.
    if server:
        assert [request.path for request in server.requests] in (["/v1/systemone"], [])


@pytest.mark.parametrize("name", TROUBLES)
def test_the_pass_tries_again_and_records_a_charge_as_the_table_says(
    store: Store, name: str
) -> None:
    trouble = TROUBLES[name]
    acme = store.tenant()
    for scope in ("one", "two"):
        store.memory(acme, scope=scope)
    with in_trouble(trouble) as (gateway, _):
        # No time really passes: the clock is moved by what is waited. One wait always fits.
        work = Pass(store, gateway, policy=make_policy(retry_seconds=0.5))
        work.candidates(store.partition())
        if AGAIN[trouble.error] == "no":
            with pytest.raises(trouble.error):
                work.verdicts(store.partition())
            assert gateway._asked == 1
        else:
            done = work.verdicts(store.partition())
            if AGAIN[trouble.error] == "yes":
                assert gateway._asked >= 2
                assert (done.left, done.stopped is None) == (2, False)
            else:
                assert gateway._asked == 3
                assert (done.left, done.too_large) == (0, 2)
    assert count(store, "llm_usage") == (gateway._asked if trouble.charged else 0)
    assert count(store, "forgetting.judged_verdicts") == 0


# The page


def fault_table() -> list[str]:
    lines = ["| Fault | What it breaks | Outcome | Error |", "| --- | --- | --- | --- |"]
    for fault, row in TABLE.items():
        outcome = f"{row.seen.outcome}. {row.then}"
        errors = [name_of(row.seen.error)]
        if row.special and row.special.seen:
            sent = "" if row.special.seen.sent else " before anything is sent"
            outcome += f" With {row.special.what}: {row.special.seen.outcome}{sent}."
            errors.append(name_of(row.special.seen.error))
        elif row.special:
            outcome += f" The gateway cannot send {row.special.what}."
        lines.append(f"| {fault} | {row.breaks} | {outcome} | {'; '.join(errors)} |")
    return lines


def trouble_table() -> list[str]:
    lines = [
        "| What comes back | Error | Tried again | Recorded as charged |",
        "| --- | --- | --- | --- |",
    ]
    for name, trouble in TROUBLES.items():
        again, charged = AGAIN[trouble.error], "yes" if trouble.charged else "no"
        lines.append(f"| {name} | {name_of(trouble.error)} | {again} | {charged} |")
    return lines


def name_of(error: type[ForgettingError] | None) -> str:
    return f"`{error.__name__}`" if error else "none"


def test_the_page_has_the_two_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    expected = page
    for name, lines in {"faults": fault_table(), "statuses": trouble_table()}.items():
        start = f"<!-- {name}: written by tests/integration/{Path(__file__).name} -->\n"
        end = f"<!-- end of {name} -->"
        assert expected.count(start) == expected.count(end) == 1, f"{PAGE.name}: {start}"
        before, rest = expected.split(start)
        after = rest.split(end)[1]
        expected = before + start + "\n" + "\n".join(lines) + "\n\n" + end + after
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(
            PAGE.read_text(encoding="utf-8").splitlines(),
            expected.splitlines(),
            PAGE.name,
            "the tests",
            lineterm="",
            n=0,
        )
    )
    assert not difference, (
        f"{PAGE.name} has other tables than the tests. If that is wanted, write them anew with "
        f"UPDATE_DOCS=1 pytest {Path(__file__).name}:\n{difference}"
    )
