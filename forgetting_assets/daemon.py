"""Dagster's processes as children of a command: `dagster dev`, and the daemon alone.

Here belongs who executes what is queued, and that two daemons never work on one database.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import dagster as dg

from forgetting_assets import runs
from forgetting_assets.instance import WORKSPACE
from resources.clock import Clock
from resources.database import Database
from resources.errors import ConfigurationError, ForgettingError
from resources.logs import json_log
from resources.settings import PROJECT

STOP_SECONDS = 30
SIGN_OF_LIFE = timedelta(seconds=60)
"""Since when a daemon counts as gone; it gives a sign of life every 30 seconds."""


def require_free(host: str, port: int) -> None:
    """Raise ConfigurationError when the UI's port is taken.

    `dagster dev` would go on without a UI, and its daemon would act beside the other one.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"The UI cannot listen on {host}:{port} ({error.strerror}): stop what does, or "
                "choose another with --port."
            ) from None


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set an event meanwhile, and end nothing.

    Children start inside: a handler is reset in them, an inherited "ignore" would not be, and they
    would then not hear the SIGINT that they are stopped with.
    """
    stopping = threading.Event()
    previous = {
        each: signal.signal(each, lambda _signal, _frame: stopping.set())
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopping
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def child(*arguments: str, output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module of Dagster as a process; at the end none of its processes is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=PROJECT,
        start_new_session=True,
        stdout=output,
        stderr=output,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def develop(database: Database, host: str, port: int) -> int:
    """Run `dagster dev` until it ends or is interrupted, and leave none of its processes behind.

    Returns its exit code, or 0 when it was interrupted. Raises ConfigurationError while another
    command's daemon works on this database.
    """
    with database.daemon_of_ours() as ours, interrupts() as stopping:
        if not ours:
            raise ConfigurationError(
                "Another forgetting command runs a Dagster daemon on this database, and two would "
                "disturb each other: wait until it ends, or stop it."
            )
        arguments = ["dev", "-w", str(WORKSPACE), "-h", host, "-p", str(port)]
        if json_log():
            arguments += ["--log-format", "json"]
        with child("dagster", *arguments) as dev:
            while dev.poll() is None and not stopping.is_set():
                stopping.wait(0.2)
            code = 0 if stopping.is_set() else dev.returncode
        with dg.DagsterInstance.get() as instance:
            forget_heartbeats(instance)
        return code


def forget_heartbeats(instance: dg.DagsterInstance) -> None:
    """Let nobody wait for the daemon that this command has just ended."""
    if len({each.daemon_id for each in instance.get_daemon_heartbeats().values()}) == 1:
        instance.wipe_daemon_heartbeats()


class Executor:
    """Who executes what is queued: a daemon that runs already, or else one of this command's own.

    A context: at its end its own daemon is gone, and what that had under way is recorded as ended.
    """

    def __init__(
        self, database: Database, instance: dg.DagsterInstance, clock: Clock, log: Path
    ) -> None:
        self._database = database
        self._instance = instance
        self._clock = clock
        self._log = log
        self._said: str | None = None
        self._holds = False
        self._claim = contextlib.ExitStack()
        self._own: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._claim.close()

    @property
    def is_own(self) -> bool:
        """Whether this command runs the daemon."""
        return self._own is not None

    def settle(self, stopping: threading.Event) -> str | None:
        """Record the end of runs that were killed together with the daemon that launched them.

        Where runs look killed and a daemon was there a moment ago, wait for it to show life, or for
        SIGN_OF_LIFE to be over. Returns a sentence when runs were ended.
        """
        seen = self._last_beat()
        while not stopping.is_set():
            if not runs.killed(self._database, self._instance):
                return None
            if not self._claimed() or self._last_beat() != seen:
                return None  # somebody is there: these runs are just starting, or theirs to end
            if not self._beats():
                ended = self._end_killed()
                return f"Runs that were killed before: {ended}. They are recorded as failed."
            self._clock.sleep(1.0, until=stopping)
        return None

    def ensure(self) -> str | None:
        """Start a daemon where nobody's runs; to be asked again and again.

        Returns a sentence when something is new. Raises ForgettingError when the own one ended.
        """
        if self._own is not None:
            if (code := self._own.poll()) is None:
                return None
            raise ForgettingError(
                f"The Dagster daemon ended with exit code {code}: {self._log} says why. The same "
                "command goes on with the backfill."
            )
        if not self._claimed():
            return self._once("Another command's Dagster daemon executes it.")
        if self._beats():
            return self._once("A Dagster daemon runs already and executes it.")
        self._end_killed()
        self._claim.callback(self._after_the_end)
        log = self._claim.enter_context(self._log.open("wb"))
        arguments = ("dagster._daemon", "run", "-w", str(WORKSPACE), "--log-format", "json")
        self._own = self._claim.enter_context(child(*arguments, output=log))
        return self._once(
            f"No Dagster daemon runs: this command runs one until it ends. Its log: {self._log}"
        )

    def _claimed(self) -> bool:
        """Whether this command is the one that may start a daemon."""
        if not self._holds:
            with contextlib.ExitStack() as attempt:
                self._holds = attempt.enter_context(self._database.daemon_of_ours())
                if self._holds:
                    self._claim.enter_context(attempt.pop_all())
        return self._holds

    def _after_the_end(self) -> None:
        self._end_killed()
        forget_heartbeats(self._instance)

    def _end_killed(self) -> int:
        return runs.end_killed(self._database, self._instance)

    def _last_beat(self) -> float:
        beats = self._instance.get_daemon_heartbeats().values()
        return max((each.timestamp for each in beats), default=0.0)

    def _beats(self) -> bool:
        return self._last_beat() > (self._clock.now() - SIGN_OF_LIFE).timestamp()

    def _once(self, sentence: str) -> str | None:
        new = sentence != self._said
        self._said = sentence
        return sentence if new else None
