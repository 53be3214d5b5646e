"""Our own fake of a Jev server (jev-contract): ``POST /v1/systemone`` and ``GET /v1/models``.

It checks requests with the official SDK's own models and answers over real HTTP. Unknown top-level
fields are ignored, as jevcompat wants it; the real one is said to refuse them.

``python -m tests.fake_jev --port 0`` runs it as a process of its own: the first line of its output
is its URL, and ``GET /calls`` says what each call asked about.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate, count, pairwise
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError
from typesafe_sdk._schemas.models import BoxQuestion, ChoiceQuestion, SystemOneRequest

from forgetting_assets.judging.rendering import PREAMBLE
from tests.http_server import Reply
from tests.support import Answer, block_of

MODEL = "jev-1.13.0"
MAX_OPTIONS = 255

Body = dict[str, Any]
"""A request's parsed body: model, state and questions."""


class FakeJev:
    """A Jev on a port of this machine, a free one for port 0. It asks for a key if it has one.

    A call is a request that passed its checks. It is put in ``calls``, ``before`` runs with its
    number (from 1), and then it gets the first of ``faults`` that is left, or else its answers. An
    exception from ``before`` or ``answer`` closes the connection and is printed.

    ``answer`` answers the choice questions on the items of our rendered states. All others, and
    these without it, are answered by a hash of state, instructions and option. ``usage`` is said
    instead of what was measured. All of these can be set anew while it runs.
    """

    def __init__(
        self,
        *,
        answer: Answer | None = None,
        before: Callable[[int], None] | None = None,
        faults: Iterable[Reply] = (),
        usage: Mapping[str, object] | None = None,
        model: str = MODEL,
        key: str | None = None,
        port: int = 0,
    ) -> None:
        self.answer = answer
        self.before = before
        self.faults = list(faults)
        self.usage = usage
        self.model = model
        self.key = key
        self.calls: list[Body] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ids = count(1)
        fake = self

        # It stays at HTTP/1.0, where each connection ends with its answer: closing waits for the
        # handlers, and a client that keeps its connection would hold one back.
        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", "0"))
                body = self.rfile.read(length)
                route = f"{self.command} {self.path}"
                fake._send(self, fake._reply(route, self.headers.get("authorization"), body))

            do_GET = do_POST  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The items that were asked about, over all calls."""
        return [item for call in list(self.calls) for item in items_of(call).values()]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _reply(self, route: str, authorization: str | None, body: bytes) -> Reply:
        if route == "GET /calls":
            # For another process, which cannot see ``calls``.
            asked = [items_of(call) for call in list(self.calls)]
            return self._json(
                200,
                [{ref: judged(item)["content"] for ref, item in call.items()} for call in asked],
            )
        if route not in ("GET /v1/models", "POST /v1/systemone"):
            return self._refusal(404, "not_found_error", f"There is no {route}.")
        if self.key is not None and authorization != f"Bearer {self.key}":
            status, fault = (401, "wrong") if authorization else (403, "missing")
            return self._refusal(status, "authentication_error", f"The key is {fault}.")
        known = ["jev-latest", self.model]
        if route == "GET /v1/models":
            about = {"description": "A fake.", "release_date": "2026-09-01"}
            return self._json(200, {"models": [{"name": name, **about} for name in known]})
        try:
            request = SystemOneRequest.model_validate_json(body)
        except ValidationError as error:
            # Like the real one, it echoes what it was sent.
            faults = json.loads(error.json(include_url=False))
            return self._json(
                422, {"detail": [{**each, "loc": ["body", *each["loc"]]} for each in faults]}
            )
        if unanswerable := _unanswerable(request):
            return self._json(422, {"detail": unanswerable})
        if request.model not in known:
            return self._refusal(400, "invalid_request_error", "There is no such model.")
        return self._call(json.loads(body))

    def _call(self, body: Body) -> Reply:
        with self._lock:
            self.calls.append(body)
            number = len(self.calls)
            fault = self.faults.pop(0) if self.faults else None
        if self.before:
            self.before(number)
        if fault:
            return fault
        items = items_of(body)
        answers = {
            name: self.answer(items[name], list(question["criteria"]))
            if self.answer and name in items and question["type"] == "choice"
            else by_hash(body["state"], question)
            for name, question in body["questions"].items()
        }
        measured = {
            "input_tokens": math.ceil(len(json.dumps(body["state"], ensure_ascii=False)) / 4),
            "output_tokens": 2 * len(answers),
        }
        usage = measured if self.usage is None else self.usage
        return self._json(200, {"model": self.model, "answers": answers, "usage": usage})

    def _refusal(self, status: int, error_type: str, message: str) -> Reply:
        return self._json(status, {"detail": {"error_type": error_type, "message": message}})

    def _json(self, status: int, value: object) -> Reply:
        headers = {
            "content-type": "application/json",
            "x-typesafe-request-id": f"req-{next(self._ids)}",
        }
        return Reply(status, json.dumps(value).encode(), headers)

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.manner == "hangs":
            self._closing.wait()
        if reply.manner in ("hangs", "drops"):
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body[:-1] if reply.manner == "breaks off" else reply.body)


def items_of(body: Body) -> dict[str, dict[str, Any]]:
    """The items of our rendered state that are asked about, by ref; none of another state."""
    state = body["state"]
    if not isinstance(state, str) or not state.startswith(PREAMBLE):
        return {}
    return {i["ref"]: i for i in block_of(state)["items"] if i["ref"] in body["questions"]}


def judged(item: dict[str, Any]) -> dict[str, Any]:
    """The memory of an item that its verdict is about, in a pair the older one."""
    memory: dict[str, Any] = item["older"] if item["kind"] == "pair" else item["memory"]
    return memory


def by_content(item: dict[str, Any], keys: list[str]) -> object:
    """An answer by the judged content, the same whatever else is in the batch."""
    # A key may name its item's place in the batch, so its own place stands for it.
    return choice_of(keys, [judged(item)["content"]], range(len(keys)))


def by_hash(state: object, question: dict[str, Any]) -> dict[str, object]:
    """An answer by state, instructions and option, whatever the question's id and company."""
    seed = [state, question.get("instructions")]
    criteria: Any = question.get("criteria")
    if question["type"] == "choice":
        return choice_of(list(criteria), seed, criteria)
    if question["type"] == "noul":
        return {"type": "noul", "noul": probabilities_of(seed, [True, False])[0]}
    probabilities = probabilities_of(seed, range(len(criteria)))
    return {
        "type": "score",
        "score": sum(level * p for level, p in enumerate(probabilities)),
        "confidence": confidence_of(probabilities),
        "legend": {str(level): text for level, text in enumerate(criteria)},
        "probabilities": {str(level): p for level, p in enumerate(probabilities)},
    }


def choice_of(keys: Sequence[str], seed: object, options: Iterable[object]) -> dict[str, object]:
    """A choice of one of the keys, whose options are hashed in their order."""
    probabilities = probabilities_of(seed, options)
    return {
        "type": "choice",
        "choice": keys[probabilities.index(max(probabilities))],
        "confidence": confidence_of(probabilities),
        "probabilities": dict(zip(keys, probabilities, strict=True)),
    }


def probabilities_of(seed: object, options: Iterable[object]) -> list[float]:
    """A probability an option by the hash of it and the seed: hundredths that sum to 1."""
    hashes = [hashlib.sha256(json.dumps([seed, option]).encode()).digest() for option in options]
    # The exponent lets one option stand out, as in a judge that has an opinion.
    weights = [math.exp(10 * int.from_bytes(each[:4]) / 2**32) for each in hashes]
    # Rounding where the shares meet, not the shares, keeps their sum.
    meetings = list(accumulate(weights, initial=0.0))
    hundredths = [round(100 * meeting / meetings[-1]) for meeting in meetings]
    return [(upper - lower) / 100 for lower, upper in pairwise(hundredths)]


def confidence_of(probabilities: Sequence[float]) -> float:
    """How far the greatest probability is from an even spread (0) to certainty (1)."""
    even = 1 / len(probabilities)
    return 1.0 if even == 1 else (max(probabilities) - even) / (1 - even)


def _unanswerable(request: SystemOneRequest) -> list[dict[str, object]]:
    """What the SDK's models let through and the endpoint refuses, as validation errors."""
    faults: list[dict[str, object]] = []
    for name, question in request.questions.items():
        asked = question.root
        loc = ["body", "questions", name, asked.type]
        if isinstance(asked, ChoiceQuestion) and not 1 <= len(asked.criteria) <= MAX_OPTIONS:
            message = f"A choice has 1 to {MAX_OPTIONS} options."
            faults.append({"loc": [*loc, "criteria"], "msg": message, "type": "value_error"})
        if isinstance(asked, BoxQuestion):
            faults.append({"loc": loc, "msg": "There is no image.", "type": "value_error"})
    return faults


def main() -> None:
    """Answer every item by its content until killed."""
    parser = argparse.ArgumentParser(description="A fake Jev server; it prints its URL.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    with FakeJev(answer=by_content, port=parser.parse_args().port) as jev:
        sys.stdout.write(f"{jev.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
