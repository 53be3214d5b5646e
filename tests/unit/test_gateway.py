"""The judge over real HTTP: what is sent, what each answer becomes, and that nothing leaks.

Statuses, failures on the way and the faults of `jevcompat mock` are in
tests/integration/test_gateway_faults.py.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgetting_assets.judging.items import Item, Pair
from forgetting_assets.judging.rendering import choices, refs_of, render
from resources.errors import (
    AnswerRejected,
    ConfigurationError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    MissingApiKey,
    RequestTooLarge,
    UnpinnedModel,
    WrongModel,
)
from resources.gateway import (
    MAX_QUESTIONS,
    MAX_STATE_CHARACTERS,
    Decision,
    JevGateway,
    require_pinned,
    retry_after,
)
from tests.http_server import Reply, ScriptedServer
from tests.items import AS_OF, HOSTILE, memory, pair, single

thorough = settings(deadline=None, max_examples=100)
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
KEY = "key-KEYTEXT"
MODEL = "jev-1.14.0"
STATE = "a state with STATETEXT in it"
QUESTIONS = {
    "s0": {"type": "choice", "instructions": "INSTRUCTIONTEXT", "criteria": {"keep": "a"}},
    "p0": {"type": "choice", "instructions": "items[1]", "criteria": {"keep_both": "b"}},
}
PATIENCE = 30.0
"""Seconds that a test waits where an answer is certain to come; no test waits that long."""


def answers(**changes: Any) -> dict[str, Any]:
    """A well-formed body, with changes; None takes a key away."""
    body: dict[str, Any] = {
        "model": MODEL,
        "answers": {
            "s0": {"type": "choice", "choice": "keep", "probabilities": {"keep": 1.0}},
            "p0": {"type": "choice", "choice": "keep_both", "probabilities": {"keep_both": 1.0}},
        },
        "usage": {"input_tokens": 300, "output_tokens": 36},
    }
    return {key: value for key, value in (body | changes).items() if value is not None}


def reply(**changes: Any) -> Reply:
    return Reply(body=json.dumps(answers(**changes)).encode())


@contextmanager
def connected(
    base_url: str,
    *,
    model: str = MODEL,
    answer_model: str | None = None,
    timeout: float = PATIENCE,
) -> Iterator[JevGateway]:
    gateway = JevGateway(
        base_url=base_url, model=model, answer_model=answer_model, timeout_seconds=timeout
    ).connect()
    try:
        yield gateway
    finally:
        gateway.close()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEY", KEY)
    # No proxy of the machine's stands between the test and its own server.
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def gateway(server: ScriptedServer) -> Iterator[JevGateway]:
    with connected(server.url) as open_gateway:
        yield open_gateway


def fails(gateway: JevGateway, expected: type[GatewayError]) -> GatewayError:
    """The error that asking ends in, which must be of exactly that type and leak nothing."""
    with pytest.raises(GatewayError) as failure:
        gateway.decide(STATE, QUESTIONS)
    assert type(failure.value) is expected
    shown = "".join(traceback.format_exception(failure.value)) + repr(failure.value)
    for text in ("STATETEXT", "INSTRUCTIONTEXT", "BODYTEXT", "KEYTEXT"):
        assert text not in shown
    return failure.value


def unavailable(gateway: JevGateway) -> GatewayUnavailable:
    error = fails(gateway, GatewayUnavailable)
    assert isinstance(error, GatewayUnavailable)
    return error


def test_a_request_has_exactly_model_state_and_questions_and_carries_the_key(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    server.reply = reply()
    gateway.decide(STATE, QUESTIONS)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/systemone")
    assert json.loads(request.body) == {"model": MODEL, "state": STATE, "questions": QUESTIONS}
    assert list(json.loads(request.body)) == ["model", "state", "questions"]
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"


def test_questions_and_options_arrive_in_their_order_and_text_arrives_byte_for_byte(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    some: list[Item] = [Pair(memory("".join(HOSTILE)), memory("b"), 0.9), single(3), pair(9)]
    state, questions = render(some, AS_OF)
    server.reply = reply(answers={})
    gateway.decide(state, questions)
    sent = json.loads(server.requests[0].body)
    assert sent["state"] == state
    assert list(sent["questions"]) == refs_of(some)
    for item, ref in zip(some, refs_of(some), strict=True):
        offered = [choice.key for choice in choices(item, ref)]
        assert list(sent["questions"][ref]["criteria"]) == offered


def test_a_base_url_with_a_path_or_a_slash_at_its_end_is_kept(server: ScriptedServer) -> None:
    server.reply = reply()
    for base in ("/", "/typesafe", "/typesafe/"):
        with connected(server.url + base) as gateway:
            gateway.decide(STATE, QUESTIONS)
    assert [request.path for request in server.requests] == [
        "/v1/systemone",
        "/typesafe/v1/systemone",
        "/typesafe/v1/systemone",
    ]


def test_an_answer_is_a_decision_with_its_usage_and_its_request_id(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    good = reply()
    server.reply = Reply(body=good.body, headers={"x-typesafe-request-id": "req-17"})
    assert gateway.decide(STATE, QUESTIONS) == Decision(
        model=MODEL,
        answers=answers()["answers"],
        input_tokens=300,
        output_tokens=36,
        request_id="req-17",
    )
    server.reply = good
    assert gateway.decide(STATE, QUESTIONS).request_id is None


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_an_unavailable_judge_says_how_long_to_wait(
    server: ScriptedServer, gateway: JevGateway, status: int
) -> None:
    server.reply = Reply(status, headers={"retry-after": "7"})
    assert unavailable(gateway).retry_after == 7.0
    server.reply = Reply(status, headers={"retry-after-ms": "1500"})
    assert unavailable(gateway).retry_after == 1.5
    # A date in the past is no wait, whatever the time is now.
    server.reply = Reply(status, headers={"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"})
    assert unavailable(gateway).retry_after == 0.0
    server.reply = Reply(status, headers={"retry-after": "soon"})
    assert unavailable(gateway).retry_after is None
    server.reply = Reply(status)
    assert unavailable(gateway).retry_after is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "120"}, 120.0),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"retry-after": "Tue, 01 Sep 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Tue, 01 Sep 2026 11:59:30 GMT"}, 0.0),
        ({"retry-after": "Tue, 01 Sep 2026 14:01:00 +0200"}, 60.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "-250"}, 0.0),
        ({"retry-after-ms": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "in 5 minutes"}, None),
        ({"retry-after": "Tue, 99 Sep 2026 12:00:30 GMT"}, None),
        ({"retry-after": "Tue, 01 Sep 2026 12:00:30 -0000"}, None),
        ({"retry-after": "Tue, 01 Sep 2026 12:00:30 +99999999999999"}, None),
        ({"retry-after": "Tue, 01 Sep 99999999999999999999 12:00:30 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_its_three_forms_and_garbage_is_no_wish(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(httpx.Headers(headers), NOW) == seconds


@thorough
@given(
    st.sampled_from((b"retry-after", b"retry-after-ms")),
    st.binary(max_size=40)
    | st.from_regex(r"\w{3}, \d{1,30} Sep \d{1,30} \d+:\d+:\d+ [+-]?\w{1,30}").map(str.encode)
    | st.floats().map(lambda number: str(number).encode()),
)
def test_no_retry_after_header_can_break_the_run(name: bytes, value: bytes) -> None:
    wait = retry_after(httpx.Headers([(name, value)]), NOW)
    assert wait is None or wait >= 0


@pytest.mark.parametrize("base_url", ["api.typesafe.ai", "ftp://127.0.0.1"])
def test_an_address_that_nothing_can_be_sent_to_costs_nothing(base_url: str) -> None:
    with connected(base_url) as gateway:
        assert unavailable(gateway).billed is False


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"BODYTEXT",
        b"<html>BODYTEXT</html>",
        b")]}'\n" + json.dumps(answers()).encode(),
        json.dumps(answers(x_debug=float("nan"))).encode(),
        json.dumps(answers(x_debug=float("inf"))).encode(),
        json.dumps(answers(x_debug=-float("inf"))).encode(),
        b'{"model": "\xff"}',
        b"null",
        b"[]",
        b'"BODYTEXT"',
        b"[" * 200_000,
        b'{"model": ' + b"9" * 5_000 + b"}",
        json.dumps(answers(answers=None)).encode(),
        json.dumps(answers(answers=[])).encode(),
        json.dumps(answers(answers="BODYTEXT")).encode(),
        json.dumps(answers(answers={**answers()["answers"], "BODYTEXT": {}})).encode(),
        json.dumps(answers(answers={"s0n0": {}})).encode(),
    ],
    ids=range(18),
)
def test_a_200_that_breaks_the_contract_is_rejected_and_counts_as_charged(
    server: ScriptedServer, gateway: JevGateway, body: bytes
) -> None:
    server.reply = Reply(body=body)
    assert fails(gateway, AnswerRejected).billed is True
    # The control: the same gateway takes a good answer.
    server.reply = reply()
    assert gateway.decide(STATE, QUESTIONS).model == MODEL


@pytest.mark.parametrize("model", ["jev-1.13.0", "jev-latest", "BODYTEXT", None, [MODEL]])
def test_an_answer_of_another_model_or_of_none_is_rejected_as_such_and_counts_as_charged(
    server: ScriptedServer, gateway: JevGateway, model: object
) -> None:
    server.reply = reply(model=model)
    assert fails(gateway, WrongModel).billed is True
    server.reply = reply()
    assert gateway.decide(STATE, QUESTIONS).model == MODEL


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 0, "output_tokens": 0}, (0, 0)),
        ({"input_tokens": 300}, (300, None)),
        ({"input_tokens": 300.0, "output_tokens": "36"}, (None, None)),
        ({"input_tokens": True, "output_tokens": -1}, (None, None)),
        ([], (None, None)),
        ("many", (None, None)),
        (None, (None, None)),
    ],
)
def test_usage_that_is_not_said_in_whole_numbers_is_unknown_and_never_guessed(
    server: ScriptedServer,
    gateway: JevGateway,
    usage: object,
    tokens: tuple[int | None, int | None],
) -> None:
    server.reply = reply(usage=usage)
    decision = gateway.decide(STATE, QUESTIONS)
    assert (decision.input_tokens, decision.output_tokens) == tokens


def test_a_missing_answer_is_left_to_the_verdict_of_its_item(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    server.reply = reply(answers={"s0": answers()["answers"]["s0"]})
    assert set(gateway.decide(STATE, QUESTIONS).answers) == {"s0"}


def test_the_model_that_must_answer_can_be_another_than_the_one_that_is_asked(
    server: ScriptedServer,
) -> None:
    with connected(server.url, answer_model="typesafe/jev-1.14-20261120") as gateway:
        server.reply = reply(model="typesafe/jev-1.14-20261120")
        assert gateway.decide(STATE, QUESTIONS).model == "typesafe/jev-1.14-20261120"
        assert gateway.pinned_model == MODEL
        server.reply = reply()
        fails(gateway, WrongModel)


def test_any_body_is_a_decision_or_a_rejection_and_nothing_else(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(("s0", "p0", "input_tokens", "x")), inner)
        ),
        max_leaves=8,
    )
    bodies = st.binary(max_size=50) | st.fixed_dictionaries(
        {"model": st.just(MODEL) | values, "answers": values, "usage": values}
    ).map(lambda body: json.dumps(body).encode())

    @thorough
    @example(json.dumps(answers()).encode())
    @given(bodies)
    def ask(body: bytes) -> None:
        server.reply = Reply(body=body)
        try:
            decision = gateway.decide(STATE, QUESTIONS)
        except AnswerRejected as rejection:
            outcomes.append(rejection.billed)
        else:
            outcomes.append(set(decision.answers) <= set(QUESTIONS))

    outcomes: list[bool] = []
    ask()
    assert outcomes
    assert all(outcomes)


@pytest.mark.parametrize("length", [MAX_STATE_CHARACTERS, MAX_STATE_CHARACTERS + 1])
def test_a_state_of_64000_characters_is_sent_and_a_longer_one_is_not(
    server: ScriptedServer, gateway: JevGateway, length: int
) -> None:
    server.reply = reply()
    state = "STATETEXT" + "x" * (length - 9)
    if length <= MAX_STATE_CHARACTERS == 64_000:
        gateway.decide(state, QUESTIONS)
        assert len(server.requests) == 1
    else:
        with pytest.raises(RequestTooLarge) as refused:
            gateway.decide(state, QUESTIONS)
        assert server.requests == []
        assert refused.value.billed is False
        assert "STATETEXT" not in str(refused.value)


@pytest.mark.parametrize("count", [MAX_QUESTIONS, MAX_QUESTIONS + 1])
def test_a_hundred_questions_are_sent_and_one_more_is_not(
    server: ScriptedServer, gateway: JevGateway, count: int
) -> None:
    server.reply = reply(answers={})
    questions = {f"s{n}": QUESTIONS["s0"] for n in range(count)}
    if count <= MAX_QUESTIONS == 100:
        gateway.decide(STATE, questions)
        assert len(server.requests) == 1
    else:
        with pytest.raises(RequestTooLarge):
            gateway.decide(STATE, questions)
        assert server.requests == []


def test_a_judge_connects_at_its_first_use_and_again_after_it_was_closed(
    server: ScriptedServer,
) -> None:
    server.reply = reply()
    gateway = JevGateway(base_url=server.url)
    gateway.close()  # nothing to close yet
    for _ in range(2):
        assert gateway.decide(STATE, QUESTIONS).model == MODEL
        gateway.close()
    assert len(server.requests) == 2


@pytest.mark.parametrize("key", [None, "", "  ", "\n"])
def test_no_judge_is_asked_without_a_key(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv("JEV_API_KEY")
    else:
        monkeypatch.setenv("JEV_API_KEY", key)
    with pytest.raises(MissingApiKey, match="JEV_API_KEY"):
        JevGateway().connect()
    with pytest.raises(MissingApiKey):
        JevGateway(base_url=server.url).decide(STATE, QUESTIONS)
    assert server.requests == []


def test_the_key_is_no_field_of_the_resource_and_the_space_around_it_is_not_sent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JEV_API_KEY", f" {KEY}\n")
    server.reply = reply()
    with connected(server.url) as gateway:
        gateway.decide(STATE, QUESTIONS)
        assert KEY not in repr(gateway)
        assert KEY not in gateway.model_dump_json()
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "alias",
    [
        "jev-latest",
        "jev-preview",
        "jev",
        "mock",
        "jev-1.14-latest",
        "jev-1.14.0-preview",
        "JEV-1.14-LATEST",
        "jev-stable-1.14",
        "",
    ],
)
def test_an_alias_is_no_pinned_model_and_is_refused_before_anything_is_sent(
    server: ScriptedServer, alias: str
) -> None:
    with pytest.raises(UnpinnedModel, match="JEV_MODEL"):
        require_pinned(alias)
    with pytest.raises(UnpinnedModel):
        JevGateway(base_url=server.url, model=alias).connect()
    with pytest.raises(UnpinnedModel):
        JevGateway(base_url=server.url, model=alias).decide(STATE, QUESTIONS)
    assert server.requests == []


@pytest.mark.parametrize(
    "model",
    ["jev-1.14.0", "jev-1.13.0", "jev-1.13", "typesafe/jev-20261120", "qwen3:8b", "llama-3.1-8b"],
)
def test_a_name_that_carries_a_version_is_pinned(model: str) -> None:
    require_pinned(model)
    with connected("http://127.0.0.1:9", model=model) as gateway:
        assert gateway.pinned_model == model


# What only a hostile or broken endpoint sends


@pytest.mark.parametrize(
    "text",
    [
        f'{{"model": "{MODEL}", "answers": {{"s0": {{"type": "choice"}}, "s0": {{}}}}}}',
        f'{{"model": "{MODEL}", "model": "{MODEL}", "answers": {{}}}}',
        f'{{"model": "{MODEL}", "answers": {{"s0": {{"probabilities": {{"a": 0, "a": 1}}}}}}}}',
    ],
    ids=["two answers to one question", "two models", "one key twice"],
)
def test_a_name_that_occurs_twice_is_an_extra_answer_and_rejected(
    server: ScriptedServer, gateway: JevGateway, text: str
) -> None:
    server.reply = Reply(body=text.encode())
    rejected = fails(gateway, AnswerRejected)
    assert rejected.billed


def test_an_answer_that_cannot_be_decoded_is_rejected_and_not_asked_for_again(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    server.reply = Reply(body=b"no gzip", headers={"content-encoding": "gzip"})
    rejected = fails(gateway, AnswerRejected)
    assert rejected.billed


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://a\x00b", "http://[::1"])
def test_a_base_url_that_is_no_address_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("JEV_API_KEY", "a key")
    with pytest.raises(ConfigurationError, match="JEV_BASE_URL"):
        JevGateway(base_url=url).decide("{}", {})


@pytest.mark.parametrize(
    ("text", "too_large"),
    [
        ('{"detail": {"error_type": "max_tokens_exceeded", "message": "m"}}', True),
        ('{"detail": "max_tokens_exceeded: 40000 tokens"}', True),
        ('{"error": {"code": "max_tokens_exceeded"}}', True),
        ('{"detail": {"error_type": "x", "message": "your input: max_tokens_exceeded"}}', False),
        ('{"detail": [{"input": "max_tokens_exceeded"}]}', False),
        ("max_tokens_exceeded", False),
        ('{"detail": null}', False),
        ("[]", False),
    ],
)
def test_a_400_is_about_size_when_its_code_says_so_and_not_when_it_quotes_a_memory(
    server: ScriptedServer, gateway: JevGateway, text: str, too_large: bool
) -> None:
    server.reply = Reply(status=400, body=text.encode())
    fails(gateway, RequestTooLarge if too_large else GatewayRefused)


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("req_01-a.b:c", "req_01-a.b:c"),
        ("The cat of a customer is called Mimi", None),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
        ("", None),
    ],
)
def test_a_request_id_that_no_id_looks_like_is_not_kept(
    server: ScriptedServer, gateway: JevGateway, header: str, kept: str | None
) -> None:
    server.reply = Reply(body=reply().body, headers={"x-typesafe-request-id": header})
    assert gateway.decide(STATE, QUESTIONS).request_id == kept


@contextmanager
def trickling(byte: bytes) -> Iterator[str]:
    """A server that sends an answer of a megabyte a byte at a time, and so never ends."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                while not stop.wait(0.01):
                    peer.sendall(byte)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        stop.set()
        thread.join()


def test_an_answer_that_trickles_in_for_ever_is_given_up_and_may_have_cost() -> None:
    with trickling(b" ") as url, connected(url, timeout=0.5) as gateway:
        assert unavailable(gateway).billed


def test_an_answer_that_is_far_too_long_is_rejected_before_all_of_it_is_read(
    server: ScriptedServer, gateway: JevGateway
) -> None:
    server.reply = Reply(body=b" " * 5_000_000)
    assert "too long" in str(fails(gateway, AnswerRejected))


def test_a_retry_after_date_is_read_by_the_endpoints_own_clock() -> None:
    headers = httpx.Headers(
        {
            "date": "Tue, 01 Sep 2020 00:00:00 GMT",
            "retry-after": "Tue, 01 Sep 2020 00:00:30 GMT",
        }
    )
    assert retry_after(headers, datetime(2026, 1, 1, tzinfo=UTC)) == 30
