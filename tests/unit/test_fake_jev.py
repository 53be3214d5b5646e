"""The fake Jev keeps the contract, and our requests and its answers pass the official SDK."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import httpx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typesafe_sdk import RetryPolicy, TypeSafeClient
from typesafe_sdk._schemas.models import SystemOneRequest

from forgetting_assets.judging.items import Item, Pair
from forgetting_assets.judging.rendering import refs_of, render
from forgetting_assets.judging.verdicts import Verdict, verdict_of
from resources.errors import GatewayRefused, GatewayUnavailable
from resources.gateway import MAX_STATE_CHARACTERS, Decision, JevGateway
from tests import items as strategies
from tests.fake_jev import MODEL, FakeJev, by_content, by_hash
from tests.http_server import Reply, ScriptedServer
from tests.items import AS_OF, HOSTILE, memory, pair, single
from tests.support import block_of, say

thorough = settings(deadline=None, max_examples=50)
ROOT = Path(__file__).parent.parent.parent
KEY = "fake-key"
PATIENCE = 30.0
"""Seconds that a test waits where something is certain to come."""

ITEMS: list[Item] = [
    Pair(memory("".join(HOSTILE), topic="```"), memory("b", number=1), 0.86),
    single(3, number=10),
    single(2, memory_type="blocker", number=20),
    single(number=30),
]
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"a": "A", "b": None}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEY", KEY)
    # No proxy of the machine's stands between the test and its own server.
    monkeypatch.setenv("NO_PROXY", "*")


@contextmanager
def asking(url: str, model: str = MODEL) -> Iterator[JevGateway]:
    """Our gateway to a judge there."""
    gateway = JevGateway(base_url=url, model=model, timeout_seconds=PATIENCE)
    try:
        yield gateway
    finally:
        gateway.close()


def post(jev: FakeJev, *, key: str | None = None, **changes: Any) -> httpx.Response:
    """Post a good body with changes, past our gateway; None takes a field away."""
    body = {"model": MODEL, "state": "a state", "questions": {"q": CHOICE}} | changes
    return httpx.post(
        f"{jev.url}/v1/systemone",
        json={name: value for name, value in body.items() if value is not None},
        headers={} if key is None else {"authorization": f"Bearer {key}"},
        timeout=PATIENCE,
    )


def read(some: list[Item], decision: Decision) -> dict[str, Verdict]:
    """The verdict on each item by ref. Raises AnswerRejected."""
    return {
        ref: verdict_of(item, ref, decision.answers.get(ref))
        for item, ref in zip(some, refs_of(some), strict=True)
    }


@pytest.mark.parametrize(
    ("key", "untested"),
    [(None, {"auth.bearer", "auth.missing", "auth.invalid"}), (KEY, {"auth.ignored-when-off"})],
    ids=["without a key", "with a key"],
)
def test_it_passes_every_check_of_jevcompat_that_applies(
    tmp_path: Path, key: str | None, untested: set[str]
) -> None:
    path = tmp_path / "report.json"
    with FakeJev(key=key) as jev:
        command = [sys.executable, "-m", "jevcompat.cli", "test", jev.url, "--json", str(path)]
        ran = subprocess.run(
            command + (["--key", key] if key else []),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=4 * PATIENCE,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["summary"]["verdict"] == "conformant"
    assert (report["aborted"], report["case_errors"], report["inconclusive"]) == (None, [], [])
    status = {result["id"]: result["status"] for result in report["results"]}
    assert len(status) == 48
    # What is about a key needs one, and what is about no key needs none.
    assert {name for name, each in status.items() if each == "skip"} == untested
    assert all(each["reason"] for each in report["results"] if each["status"] == "skip")
    assert [name for name, each in status.items() if each not in ("pass", "skip")] == []


def test_the_official_client_asks_our_questions_and_its_answers_are_verdicts() -> None:
    state, questions = render(ITEMS, AS_OF)
    asked: Any = questions
    with (
        FakeJev(key=KEY) as jev,
        TypeSafeClient(
            api_key=KEY, base_url=jev.url, compression=False, retry=RetryPolicy(max_retries=0)
        ) as client,
    ):
        response = client.system_one(state, asked, model=MODEL)
        assert [model.name for model in client.models.list().models] == ["jev-latest", MODEL]
        with asking(jev.url) as gateway:
            decision = gateway.decide(state, questions)
    assert response.model == MODEL
    for item, ref in zip(ITEMS, refs_of(ITEMS), strict=True):
        verdict = verdict_of(item, ref, response.choices[ref].model_dump())
        assert verdict.probability == max(response.choices[ref].probabilities.values())
        assert verdict == verdict_of(item, ref, decision.answers[ref])
    # The official client and our gateway send the same.
    first, second = jev.calls
    assert first == second


def test_our_request_is_one_of_the_official_schema_down_to_its_last_field() -> None:
    with ScriptedServer() as server, asking(server.url) as gateway:
        server.reply = Reply(body=json.dumps({"model": MODEL, "answers": {}}).encode())

        @thorough
        @given(st.lists(strategies.items(), min_size=1, max_size=4))
        def ask(some: list[Item]) -> None:
            state, questions = render(some, AS_OF)
            assume(len(state) <= MAX_STATE_CHARACTERS)
            gateway.decide(state, questions)
            body = server.requests[-1].body
            assert list(json.loads(body)) == ["model", "state", "questions"]
            # The schema drops a field that it does not know, so nothing of ours is misspelt.
            request = SystemOneRequest.model_validate_json(body)
            assert request.model_dump(mode="json", exclude_unset=True) == json.loads(body)

        ask()


def test_our_gateway_gets_a_verdict_on_every_item_of_any_mix() -> None:
    with FakeJev() as jev, asking(jev.url) as gateway:

        @thorough
        @given(st.lists(strategies.items(), min_size=1, max_size=4), st.booleans())
        def ask(some: list[Item], contents: bool) -> None:
            jev.answer = by_content if contents else None
            state, questions = render(some, AS_OF)
            assume(len(state) <= MAX_STATE_CHARACTERS)
            decision = gateway.decide(state, questions)
            assert list(read(some, decision)) == refs_of(some)
            assert (decision.input_tokens, decision.output_tokens) == (
                math.ceil(len(json.dumps(state, ensure_ascii=False)) / 4),
                2 * len(some),
            )

        ask()


@settings(deadline=None)
@given(st.integers(1, 255), st.text(max_size=9))
def test_probabilities_are_hundredths_that_sum_to_1_and_the_choice_is_a_most_probable_one(
    options: int, state: str
) -> None:
    keys = [f"option {n}" for n in range(options)]
    answer: Any = by_hash(state, {"type": "choice", "criteria": dict.fromkeys(keys)})
    given_ = answer["probabilities"]
    assert list(given_) == keys
    assert math.fsum(given_.values()) == pytest.approx(1)
    assert all(round(p, 2) == p and 0 <= p <= 1 for p in given_.values())
    top = given_[answer["choice"]]
    assert top == max(given_.values())
    expected = 1 if options == 1 else (top - 1 / options) / (1 - 1 / options)
    assert answer["confidence"] == pytest.approx(expected)
    assert 0 <= answer["confidence"] <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"state": None},
        {"state": 5},
        {"model": None},
        {"questions": None},
        {"questions": {}},
        {"questions": {"q": {**CHOICE, "type": "boolean"}}},
        {"questions": {"q": {"type": "choice", "instructions": "Which?"}}},
        {"questions": {"q": {**CHOICE, "criteria": {}}}},
        {"questions": {"q": {**CHOICE, "criteria": {str(n): None for n in range(256)}}}},
        {"questions": {"q": {**CHOICE, "criteria": {"a": 1}}}},
        {"questions": {"q": {"type": "score", "criteria": {"0": "a"}}}},
        {"questions": {"q": CHOICE, "box": {"type": "box"}}},
    ],
    ids=range(12),
)
def test_a_bad_request_is_a_422_that_says_where_and_is_no_call(changes: dict[str, Any]) -> None:
    with FakeJev() as jev:
        refused = post(jev, **changes)
        assert post(jev).status_code == 200  # the control
    assert refused.status_code == 422
    assert all(fault["loc"][0] == "body" for fault in refused.json()["detail"])
    assert refused.headers["x-typesafe-request-id"] == "req-1"
    assert len(jev.calls) == 1


def test_a_wrong_key_is_a_401_a_missing_one_a_403_and_an_unknown_model_a_400() -> None:
    with FakeJev(key=KEY) as jev:
        refusals = [post(jev, key="another"), post(jev), post(jev, key=KEY, model="jev-1.12.0")]
        pinned, latest = (post(jev, key=KEY, model=model) for model in (MODEL, "jev-latest"))
        with (
            asking(jev.url, model="jev-1.12.0") as gateway,
            pytest.raises(GatewayRefused, match="JEV_MODEL"),
        ):
            gateway.decide(*render(ITEMS, AS_OF))
    assert [refused.status_code for refused in refusals] == [401, 403, 400]
    for refused in refusals:
        assert set(refused.json()["detail"]) == {"error_type", "message"}
    assert [answered.json()["model"] for answered in (pinned, latest)] == [MODEL, MODEL]
    assert len(jev.calls) == 2


def test_it_answers_our_items_as_it_is_told_and_remembers_them() -> None:
    state, questions = render(ITEMS, AS_OF)
    with FakeJev(answer=say("archive")) as jev, asking(jev.url) as gateway:
        first = read(ITEMS, gateway.decide(state, questions))
        jev.answer = say("supersede_by")
        second = read(ITEMS[1:2], gateway.decide(*render(ITEMS[1:2], AS_OF)))
        # A question on another state is none on an item of ours, whatever its name.
        assert post(jev, questions={"s0": CHOICE}).json()["answers"]["s0"] == by_hash(
            "a state", CHOICE
        )
    assert [verdict.action for verdict in first.values()] == ["keep", "archive", "keep", "archive"]
    assert second["s0"].answer_key == "supersede_by:n0"
    assert [item["ref"] for item in jev.asked] == ["p0", "s0", "s1", "s2", "s0"]
    assert jev.asked[:4] == block_of(state)["items"]
    assert jev.calls[0] == {"model": MODEL, "state": state, "questions": questions}
    assert len(jev.calls) == 3


def test_it_says_the_usage_that_it_is_told_to() -> None:
    with FakeJev(usage={"input_tokens": 7}) as jev, asking(jev.url) as gateway:
        decision = gateway.decide(*render(ITEMS, AS_OF))
    assert (decision.input_tokens, decision.output_tokens) == (7, None)


def test_its_faults_come_first_one_a_call_and_then_it_answers() -> None:
    faults = [
        Reply(503, headers={"retry-after": "7"}),
        Reply(manner="drops"),
        Reply(body=b"{}", manner="breaks off"),
    ]
    with FakeJev(faults=faults) as jev, asking(jev.url) as gateway:
        found = []
        for _ in faults:
            with pytest.raises(GatewayUnavailable) as failure:
                gateway.decide(*render(ITEMS, AS_OF))
            found.append((failure.value.billed, failure.value.retry_after))
        assert read(ITEMS, gateway.decide(*render(ITEMS, AS_OF)))
    assert found == [(False, 7.0), (True, None), (True, None)]
    assert len(jev.calls) == 4


def test_a_reply_that_hangs_ends_with_the_server() -> None:
    arrived = Event()
    with ThreadPoolExecutor(1) as pool:
        with FakeJev(faults=[Reply(manner="hangs")], before=lambda _: arrived.set()) as jev:
            hanging = pool.submit(post, jev)
            assert arrived.wait(PATIENCE)
            assert post(jev).status_code == 200
            assert not hanging.done()
        with pytest.raises(httpx.RemoteProtocolError):
            hanging.result(PATIENCE)


def test_calls_are_numbered_and_served_at_once() -> None:
    # Each call waits for the other, so one after the other would break the barrier.
    meeting = Barrier(2)
    numbers = []

    def before(number: int) -> None:
        numbers.append(number)
        meeting.wait(PATIENCE)

    with FakeJev(before=before) as jev, ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: post(jev).status_code, range(2)))
    assert replies == [200, 200]
    assert sorted(numbers) == [1, 2]


def test_what_is_raised_before_an_answer_drops_the_connection(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def before(number: int) -> None:
        if number == 1:
            raise RuntimeError("the judge fell over")

    with FakeJev(before=before) as jev, asking(jev.url) as gateway:
        with pytest.raises(GatewayUnavailable) as failure:
            gateway.decide(*render(ITEMS, AS_OF))
        assert read(ITEMS, gateway.decide(*render(ITEMS, AS_OF)))
    assert failure.value.billed is True
    assert "the judge fell over" in capfd.readouterr().err


def test_as_a_process_it_answers_by_content_whatever_the_batch_and_says_what_was_asked() -> None:
    command = [sys.executable, "-m", "tests.fake_jev", "--port", "0"]
    some = [single(2, number=1), pair(5), *ITEMS[1:]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with asking(url) as gateway:
                together = read(some, gateway.decide(*render(some, AS_OF))).values()
                alone = [
                    verdict
                    for item in some
                    for verdict in read([item], gateway.decide(*render([item], AS_OF))).values()
                ]
            calls = httpx.get(f"{url}/calls", timeout=PATIENCE).json()
        finally:
            process.kill()
    assert list(together) == alone
    contents = {"s0": "content", "p0": "older", "s1": "content", "s2": "content", "s3": "content"}
    assert calls[0] == contents
    assert calls[1:3] == [{"s0": "content"}, {"p0": "older"}]
    assert len(calls) == 1 + len(some)
