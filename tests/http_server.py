"""A real HTTP server in a thread that answers as told and remembers what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self


@dataclass(frozen=True)
class Reply:
    """One scripted answer. ``hangs`` never sends it; ``drops`` closes the connection instead."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    manner: Literal["sends", "hangs", "drops", "breaks off"] = "sends"


@dataclass(frozen=True)
class Request:
    """What arrived, header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """A server on a free port of this machine. ``reply`` is its answer until it is set anew."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.requests: list[Request] = []
        self._closing = threading.Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body leave as two small writes, and Nagle would hold the second back.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", "0"))
                scripted.requests.append(
                    Request(
                        self.command,
                        self.path,
                        {name.lower(): value for name, value in self.headers.items()},
                        self.rfile.read(length),
                    )
                )
                scripted._answer(self)

            do_GET = do_POST  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Closing waits for the handlers, so none outlives its test.
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

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

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        reply = self.reply
        if reply.manner == "hangs":
            self._closing.wait()
        if reply.manner in ("hangs", "drops"):
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(reply.body)))
        handler.end_headers()
        if reply.manner == "breaks off":
            handler.wfile.write(reply.body[:-1])
            handler.close_connection = True
        else:
            handler.wfile.write(reply.body)
