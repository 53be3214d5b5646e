"""The judge behind one method, ``decide(state, questions)``: Jev over HTTP, or the demo's script.

A gateway sends once and says what came of it. When to send again, what it costs and what an answer
means for a memory belong elsewhere.
"""

import json
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Self

import dagster as dg
import httpx
from pydantic import PrivateAttr

from resources import settings
from resources.errors import (
    AnswerRejected,
    ConfigurationError,
    GatewayRefused,
    GatewayUnavailable,
    MissingApiKey,
    RequestTooLarge,
    UnpinnedModel,
    WrongModel,
)

MAX_STATE_CHARACTERS = 64_000
MAX_QUESTIONS = 100
MAX_ANSWER_BYTES = 4_000_000

NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""Failures before any of the request left, so it cannot have been judged and charged."""

# They log what the endpoint says of a call, its reason phrase and its headers, which could repeat a
# memory. Whoever turns them up by name knows what he asks for.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

Questions = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Decision:
    """What the judge answered: one raw answer a question, and what the call used.

    ``model`` is what the endpoint says it is. Tokens are None where the endpoint did not say.
    """

    model: str
    answers: Mapping[str, object]
    input_tokens: int | None
    output_tokens: int | None
    request_id: str | None


class Gateway(dg.ConfigurableResource, ABC):  # type: ignore[type-arg]
    """The one way to a judge."""

    @property
    @abstractmethod
    def pinned_model(self) -> str:
        """The model that is asked, as verdicts record it."""

    @property
    def demo_only(self) -> bool:
        """Whether this judge may answer for invented memories only."""
        return False

    @abstractmethod
    def decide(self, state: str, questions: Questions) -> Decision:
        """Ask once. Raises a GatewayError when no usable answer came back."""


class JevGateway(Gateway):
    """Any server of ``POST /v1/systemone``. The key comes from JEV_API_KEY, never from a field.

    It connects at its first use, so that a run that asks for nothing needs no key.
    """

    base_url: str = "https://api.typesafe.ai"
    model: str = "jev-1.14.0"
    answer_model: str | None = None
    timeout_seconds: float = 60.0

    _client: httpx.Client | None = PrivateAttr(default=None)
    _connecting: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @classmethod
    def configured(cls, read: settings.Settings) -> Self:
        """The judge that the settings name."""
        return cls(
            base_url=read.jev_base_url,
            model=read.jev_model,
            answer_model=read.jev_answer_model,
            timeout_seconds=read.jev_timeout_seconds,
        )

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        self.close()

    def connect(self) -> Self:
        """Open the client. Raises MissingApiKey, UnpinnedModel or ConfigurationError."""
        key = settings.read().jev_api_key
        if key is None or not key.get_secret_value().strip():
            raise MissingApiKey()
        if not key.get_secret_value().isascii():
            raise MissingApiKey("JEV_API_KEY has characters that no key has: copy it again.")
        require_pinned(self.model)
        try:
            self._client = httpx.Client(
                base_url=self.base_url.rstrip("/"),
                headers={"Authorization": f"Bearer {key.get_secret_value().strip()}"},
                timeout=self.timeout_seconds,
                follow_redirects=False,
            )
        except httpx.InvalidURL:
            raise ConfigurationError("JEV_BASE_URL is no address: write it as https://host.") from (
                None
            )
        return self

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def pinned_model(self) -> str:
        return self.model

    def decide(self, state: str, questions: Questions) -> Decision:
        if len(state) > MAX_STATE_CHARACTERS or len(questions) > MAX_QUESTIONS:
            raise RequestTooLarge(
                f"A call of {len(state)} characters and {len(questions)} questions passes the "
                f"limits of {MAX_STATE_CHARACTERS} and {MAX_QUESTIONS}: lower "
                "FORGETTING_BATCH_ITEMS."
            )
        with self._connecting:  # several calls may be the first
            if self._client is None:
                self.connect()
            client = self._client
        assert client is not None
        body = {"model": self.model, "state": state, "questions": questions}
        try:
            response = self._post(client, body)
        except NEVER_SENT as error:
            raise GatewayUnavailable(
                f"The judge at JEV_BASE_URL does not answer ({type(error).__name__})."
            ) from None
        except httpx.DecodingError:
            raise AnswerRejected("The judge's answer cannot be decoded.", billed=True) from None
        except httpx.HTTPError as error:
            # The request may have arrived, so it may have been judged and charged.
            raise GatewayUnavailable(
                f"The judge's answer did not arrive ({type(error).__name__}).", billed=True
            ) from None
        if response.status_code != 200:
            raise refusal(response)
        return self._read(response, questions)

    def _post(self, client: httpx.Client, body: Mapping[str, object]) -> httpx.Response:
        """Send and read the whole answer, within its time and a size that no answer needs.

        httpx bounds each read alone, so an answer that trickles in would never end.
        """
        ends = time.monotonic() + self.timeout_seconds
        with client.stream("POST", "/v1/systemone", json=body) as response:
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise AnswerRejected("The judge's answer is far too long.", billed=True)
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout("The answer took too long.")
        return httpx.Response(
            response.status_code, headers=_plain(response.headers), content=bytes(content)
        )

    def _read(self, response: httpx.Response, questions: Questions) -> Decision:
        try:
            body = json.loads(
                response.content, parse_constant=_no_constant, object_pairs_hook=_each_once
            )
        except (ValueError, RecursionError):
            raise AnswerRejected("The judge's answer is not JSON.", billed=True) from None
        expected = self.answer_model or self.model
        if not isinstance(body, dict) or not isinstance(body.get("answers"), dict):
            raise AnswerRejected("The judge's answer has no answers.", billed=True)
        if body.get("model") != expected:
            raise WrongModel(
                f"The judge answered as another model than {expected}: pin JEV_MODEL to what the "
                "endpoint serves, or name the model it answers as in JEV_ANSWER_MODEL.",
                billed=True,
            )
        if set(body["answers"]) - set(questions):
            raise AnswerRejected("The judge answered questions that nobody asked.", billed=True)
        usage = body.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Decision(
            model=expected,
            answers=body["answers"],
            input_tokens=_tokens(usage.get("input_tokens")),
            output_tokens=_tokens(usage.get("output_tokens")),
            request_id=_request_id(response.headers),
        )


def _plain(headers: httpx.Headers) -> list[tuple[str, str]]:
    """The headers of an answer that is decoded already."""
    coded = ("content-encoding", "content-length", "transfer-encoding")
    return [(name, value) for name, value in headers.multi_items() if name not in coded]


def require_pinned(model: str) -> None:
    """Raise UnpinnedModel unless the name carries a version and is no alias."""
    if not re.search(r"\d+\.\d+|\d{6,}|\d{4}-\d{2}-\d{2}|[-:]\d+b\b", model) or re.search(
        r"latest|preview|stable|current", model, re.IGNORECASE
    ):
        raise UnpinnedModel()


def refusal(response: httpx.Response) -> Exception:
    """The error of a status other than 200. Its body may echo our input, so it is not quoted."""
    status = response.status_code
    if status in (408, 429, 529) or status >= 500:
        return GatewayUnavailable(
            f"The judge answers with status {status}.",
            billed=status >= 500 and status not in (503, 529),
            retry_after=retry_after(response.headers, datetime.now(UTC)),
        )
    if status == 413 or (status == 400 and _says_too_large(response)):
        return RequestTooLarge()
    hint = {
        401: "The key in JEV_API_KEY is wrong.",
        403: "The key in JEV_API_KEY is missing or not allowed.",
        404: "JEV_BASE_URL has no /v1/systemone.",
        400: "It may not know the model in JEV_MODEL.",
    }.get(status, "Redirects are not followed." if 300 <= status < 400 else "")
    return GatewayRefused(f"The judge refuses the request with status {status}. {hint}".strip())


def retry_after(headers: httpx.Headers, now: datetime) -> float | None:
    """Seconds to wait as the endpoint asks: retry-after-ms, Retry-After in seconds or as a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
            return float(value)
        # By the endpoint's own clock where it says what that shows.
        if "date" in headers:
            now = parsedate_to_datetime(headers["date"])
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _says_too_large(response: httpx.Response) -> bool:
    """Whether a 400 is about size, by its code alone: its text may quote a memory."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return False
    said = [body.get(name) for name in ("detail", "error")] if isinstance(body, dict) else []
    codes = [
        each.get(name)
        for each in said
        if isinstance(each, dict)
        for name in ("error_type", "type", "code")
    ]
    return any(
        isinstance(code, str) and code.startswith("max_tokens_exceeded") for code in said + codes
    )


def _request_id(headers: httpx.Headers) -> str | None:
    """The endpoint's id of the call, unless it is something that no id is."""
    found = headers.get("x-typesafe-request-id", "")
    return found if re.fullmatch(r"[A-Za-z0-9._:/=+-]{1,128}", found) else None


def _tokens(value: object) -> int | None:
    """A count that the usage table can hold, or None where the endpoint did not say one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    return None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
