"""The walk through the queue, and the question before many decisions: on a terminal and piped."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import pytest

from forgetting_assets import review
from tests.acceptance.test_cli import BIN, HANG, Cli, cli  # noqa: F401 - a fixture
from tests.support import Store, record_verdict

OF_ACME = ("--tenant", "acme")
WALK = ("review", "walk", *OF_ACME)
PROMPT = "[a accept, r reject, s skip, u undo the last one, q quit]"
TABLES = ("memories", "memory_edges", "retention_proposals")
CONTROL_C, CONTROL_D, UP = "\x03", "\x04", "\x1b[A"


@dataclass
class Terminal:
    """A command on a pseudo-terminal: what it shows, and the keys that are pressed."""

    command: subprocess.Popen[bytes]
    screen: int
    seen: str = ""
    _read: int = 0
    _text: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def _more(self) -> bool:
        """Read what it says; False at its end."""
        if not select.select([self.screen], [], [], 0.05)[0]:
            return True
        try:
            got = os.read(self.screen, 65536)
        except OSError:  # how a pseudo-terminal ends
            return False
        self.seen += self._text.decode(got).replace("\r", "")
        return bool(got)

    def until(self, text: str) -> str:
        """Wait for a text; what was said before it, since the last time."""
        deadline = time.monotonic() + HANG
        while (at := self.seen.find(text, self._read)) < 0:
            assert self._more(), self.seen
            assert time.monotonic() < deadline, self.seen
        said = self.seen[self._read : at]
        self._read = at + len(text)
        return said

    def press(self, keys: str) -> str:
        """Press a key when the walk asks for one; what it showed before it asked.

        What is typed before it listens is thrown away, so that nothing is decided unseen.
        """
        said = self.until(PROMPT)
        deadline = time.monotonic() + HANG
        while termios.tcgetattr(self.screen)[3] & termios.ICANON:
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.01)
        self.type(keys)
        return said

    def type(self, text: str) -> None:
        """Type something without waiting."""
        os.write(self.screen, text.encode())

    def end(self) -> tuple[int, str]:
        """Wait for its end: the exit code, and what was said since the last time."""
        while self._more():
            pass
        return self.command.wait(HANG), self.seen[self._read :]


@contextlib.contextmanager
def on_terminal(cli: Cli, *arguments: str) -> Iterator[Terminal]:  # noqa: F811
    """Run a command on a terminal of its own."""
    screen, stdio = pty.openpty()
    command = subprocess.Popen(
        [BIN / "forgetting", *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(cli.home),
            "FORGETTING_HOME": str(cli.home / "forgetting"),
            "COLUMNS": "120",
            **cli.environment,
        },
        stdin=stdio,
        stdout=stdio,
        stderr=stdio,
        start_new_session=True,
    )
    os.close(stdio)
    try:
        yield Terminal(command, screen)
    finally:
        command.kill()
        command.wait()
        os.close(screen)


def piped(cli: Cli, keys: str, *more: str) -> str:  # noqa: F811
    """What a walk says to lines of keys."""
    with cli.start(*WALK, *more, stdin=subprocess.PIPE) as walk:
        out, err = walk.communicate(keys, timeout=HANG)
    assert (walk.returncode, err) == (0, "")
    return out


@dataclass
class Queue:
    """Open proposals of a tenant, the surest first."""

    store: Store
    user_id: UUID
    ids: list[UUID]

    def statuses(self) -> list[str]:
        found = {r["id"]: r["status"] for r in self.store.rows("SELECT * FROM retention_proposals")}
        return [found[id_] for id_ in self.ids]


@pytest.fixture
def queue(store: Store) -> Queue:
    acme = store.tenant("acme")
    return Queue(
        store,
        acme,
        [
            record_verdict(
                store,
                acme,
                store.memory(acme, topic=f"topic {n}"),
                verdict="archive",
                proposal="proposed",
                probability=0.99 - n / 100,
            )
            for n in range(4)
        ],
    )


def way_back(said: str) -> tuple[str, ...]:
    """The command that a walk ends with."""
    found = re.search(r"All back: forgetting (review undo --batch \S+ --tenant acme)", said)
    assert found, said
    return tuple(found[1].split())


def test_a_walk_on_a_terminal_decides_by_a_key_each_and_is_taken_back_as_one(
    cli: Cli,  # noqa: F811
    queue: Queue,
) -> None:
    before = queue.store.dump(*TABLES)
    first, second, third, fourth = map(str, queue.ids)
    with on_terminal(cli, *WALK) as walk:
        shown = walk.press("a")
        assert f"Proposal {first}, 4 to go" in shown
        assert "topic 0" in shown
        assert "untouched for" in shown
        shown = walk.press("r")
        assert "Accepted. Memories changed: 1." in shown
        assert f"Proposal {second}, 3 to go" in shown
        shown = walk.press("u")
        assert "Rejected: no memory changed." in shown
        assert f"Proposal {third}, 2 to go" in shown
        shown = walk.press(UP)
        assert "Undone: it is not rejected any more." in shown
        assert f"Proposal {second}, 3 to go" in shown, "what was undone is shown again"
        assert walk.press("x").strip() == "", "a key that means nothing decides nothing"
        assert walk.press("s").strip() == ""
        assert f"Proposal {third}" in walk.press("R")
        assert f"Proposal {fourth}, 1 to go" in walk.press("q")
        code, said = walk.end()
    assert code == 0
    assert "Accepted: 1. Rejected: 1. Skipped: 1. Left: 1." in said
    assert queue.statuses() == ["applied", "proposed", "rejected", "proposed"]
    standing = queue.store.rows(
        "SELECT DISTINCT batch_id FROM forgetting.decisions WHERE decision <> 'undo'"
    )
    assert len(standing) == 1, "one walk is one batch"
    assert cli.good(*way_back(said), "--yes").out == "Undone. Memories restored: 1.\n"
    assert queue.store.dump(*TABLES) == before


@pytest.mark.parametrize("key", [CONTROL_C, CONTROL_D], ids=["interrupt", "end of input"])
def test_a_walk_that_is_broken_off_says_how_to_take_it_back(
    cli: Cli,  # noqa: F811
    queue: Queue,
    key: str,
) -> None:
    with on_terminal(cli, *WALK) as walk:
        walk.press("a")
        walk.press(key)
        code, said = walk.end()
    assert code == 0
    assert "Accepted: 1. Rejected: 0. Skipped: 0. Left: 3." in said
    way_back(said)


def test_a_walk_reads_a_line_a_key_where_there_is_no_terminal(cli: Cli, queue: Queue) -> None:  # noqa: F811
    before = queue.store.dump(*TABLES)
    said = piped(cli, "u\na\nR\nwhat\n\nu\nu\nr\ns\ns\ns\na\n")
    assert "Nothing was decided in this walk yet." in said
    assert "Accepted: 0. Rejected: 1. Skipped: 3. Left: 0." in said
    assert queue.statuses() == ["rejected", "proposed", "proposed", "proposed"]
    cli.good(*way_back(said), "--yes")
    assert queue.store.dump(*TABLES) == before


def test_the_end_of_input_quits_and_nothing_decided_has_no_way_back(cli: Cli, queue: Queue) -> None:  # noqa: F811
    said = piped(cli, "s\n")
    assert said.endswith("Accepted: 0. Rejected: 0. Skipped: 1. Left: 3.\n")
    assert queue.statuses() == ["proposed"] * 4


def test_a_walk_takes_the_filters_of_the_list(cli: Cli, queue: Queue) -> None:  # noqa: F811
    said = piped(cli, "a\n", "--max-probability", "0.975", "--sort", "newest", "--limit", "1")
    assert "Accepted: 1. Rejected: 0. Skipped: 0. Left: 0." in said
    assert sorted(queue.statuses()[:2]) == ["proposed", "proposed"]
    said = piped(cli, "", "--action", "conflict")
    assert said == "\nAccepted: 0. Rejected: 0. Skipped: 0. Left: 0.\n"


def test_what_is_refused_is_said_and_the_walk_goes_on(cli: Cli, queue: Queue) -> None:  # noqa: F811
    store, acme = queue.store, queue.user_id
    older, newer = store.pair(acme, topic="no vector")
    store.execute("UPDATE memories SET embedding = NULL WHERE id = :id", id=newer)
    queue.ids.append(
        record_verdict(
            store,
            acme,
            older,
            verdict="supersede",
            related=newer,
            proposal="proposed",
            probability=0.5,
        )
    )
    store.execute(
        "UPDATE forgetting.judged_verdicts AS v SET related_content_hash = m.content_hash, "
        "related_freshness = m.updated_at FROM memories AS m WHERE m.id = v.related_memory_id"
    )
    store.execute("UPDATE memories SET last_reviewed_at = now() WHERE topic = 'topic 0'")
    said = piped(cli, "a\na\ns\ns\na\n")
    assert "It is closed, which is not a rejection" in said
    assert "has no vector" in said
    assert "Accepted: 1. Rejected: 0. Skipped: 2. Left: 1." in said
    assert queue.statuses() == ["dismissed", "applied", "proposed", "proposed", "proposed"]


def test_what_somebody_else_decided_meanwhile_is_passed_over_with_a_line(
    cli: Cli,  # noqa: F811
    queue: Queue,
) -> None:
    now = datetime.now(UTC)
    with on_terminal(cli, *WALK) as walk:
        assert "topic 0" in walk.until(PROMPT)
        for id_, decide in zip(queue.ids[:3], (review.accept, review.reject) * 2, strict=False):
            decide(queue.store.database, queue.user_id, id_, now)
        walk._read -= len(PROMPT)
        walk.press("a")
        shown = walk.press("s")
        code, said = walk.end()
    assert code == 0
    assert re.search(rf"Proposal {queue.ids[0]} was applied on .*\.", shown), "it was too late"
    assert f"Proposal {queue.ids[1]} is not open any more: it was rejected meanwhile." in shown
    assert f"Proposal {queue.ids[2]} is not open any more: it was applied meanwhile." in shown
    assert "Accepted: 0. Rejected: 0. Skipped: 1. Left: 0." in said


def test_a_walk_undoes_and_counts_its_own_decisions_alone(cli: Cli, queue: Queue) -> None:  # noqa: F811
    now, store = datetime.now(UTC), queue.store
    with on_terminal(cli, *WALK) as walk:
        for key in "aar":
            walk.press(key)
        walk.until(PROMPT)
        for id_ in queue.ids[1:3]:
            review.undo(store.database, queue.user_id, id_, now)
        review.accept(store.database, queue.user_id, queue.ids[2], now)
        walk._read -= len(PROMPT)
        walk.press("u")
        assert f"Proposal {queue.ids[2]} was decided elsewhere since" in walk.press("u")
        shown = walk.press("q")
        code, said = walk.end()
    assert code == 0
    assert f"Proposal {queue.ids[0]}, 2 to go" in shown, "the last one that stands is undone"
    assert "Accepted: 0. Rejected: 0. Skipped: 0. Left: 2." in said
    assert "All back" not in said
    assert queue.statuses() == ["proposed", "proposed", "applied", "proposed"]


def test_the_summary_has_what_stands_of_the_walk(cli: Cli, queue: Queue) -> None:  # noqa: F811
    now, store = datetime.now(UTC), queue.store
    with on_terminal(cli, *WALK) as walk:
        walk.press("a")
        walk.press("a")
        walk.until(PROMPT)
        review.undo(store.database, queue.user_id, queue.ids[0], now)
        walk._read -= len(PROMPT)
        walk.press("q")
        code, said = walk.end()
    assert code == 0
    assert "Accepted: 1. Rejected: 0. Skipped: 0. Left: 2." in said
    assert cli.good(*way_back(said), "--yes").out == "Undone. Memories restored: 1.\n"


def test_memory_text_is_shown_in_the_walk_and_never_interpreted(cli: Cli, store: Store) -> None:  # noqa: F811
    acme = store.tenant("acme")
    memory = store.memory(acme, "[bold]seen\x1b[8mhidden\u202e[/nothing]", topic="[red]top\x1b[2K")
    record_verdict(store, acme, memory, verdict="archive", proposal="proposed")
    with on_terminal(cli, *WALK) as walk:
        shown = walk.press("q")
        walk.end()
    assert "[bold]seen<U+001B>[8mhidden<U+202E>[/nothing]" in shown
    assert "[red]top<U+001B>[2K" in shown
    assert "\x1b[8m" not in walk.seen


# The question before many


@pytest.mark.parametrize("verb", ["accept", "reject"])
def test_many_decisions_are_asked_about_once_on_a_terminal(
    cli: Cli,  # noqa: F811
    queue: Queue,
    verb: str,
) -> None:
    before = queue.store.dump(*TABLES)
    command = ("review", verb, *map(str, queue.ids), *OF_ACME)
    with on_terminal(cli, *command) as asked:
        asked.until(f"{verb.capitalize()} 4 proposals?")
        asked.type("n\n")
        code, said = asked.end()
    assert code == 1
    assert "Nothing was done." in said
    assert queue.store.dump(*TABLES) == before
    with on_terminal(cli, *command) as asked:
        asked.until(f"{verb.capitalize()} 4 proposals?")
        asked.type("y\n")
        code, said = asked.end()
    assert code == 0
    assert "proposed" not in queue.statuses()
    back = way_back(said)
    with on_terminal(cli, *back) as asked:
        asked.until("Undo 4 decisions?")
        asked.type("n\n")
        assert asked.end()[0] == 1
    with on_terminal(cli, *back) as asked:
        asked.until("Undo 4 decisions?")
        asked.type("y\n")
        assert asked.end()[0] == 0
    assert queue.store.dump(*TABLES) == before


def test_one_decision_is_never_asked_about_and_yes_answers_for_many(cli: Cli, queue: Queue) -> None:  # noqa: F811
    one, *others = map(str, queue.ids)
    for command in (
        ("accept", one),
        ("undo", one),
        ("reject", one, one),
        ("accept", *others, "--yes"),
        ("undo", *others, "--yes"),
    ):
        with on_terminal(cli, "review", *command, *OF_ACME) as done:
            code, said = done.end()
        assert code == 0, said
        assert "?" not in said
    assert queue.statuses() == ["rejected", "proposed", "proposed", "proposed"]
