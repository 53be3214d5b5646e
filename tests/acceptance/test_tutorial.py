"""docs/tutorial.md: every command of the page runs, in its order, and says what the page says.

The demo is anchored at today, so the days, times, ages and ids of proposals on the page stand for
whatever they are now; an id that the page shows is the same one wherever the page names it. A line
of three dots stands for any lines.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forgetting_assets import cli as command_line
from resources import embedded
from resources.settings import PROJECT
from tests.acceptance.test_cli import HANG, Cli, Inside, folder  # noqa: F401 - a fixture

PAGE = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"^\$ (?P<typed>[^\n]*<<'(?P<end>\w+)'.*?^(?P=end)|[^\n]*)\n(?P<shown>(?:(?!\$ )[^\n]*\n)*)",
    re.MULTILINE | re.DOTALL,
)
PARTS = {
    "id": r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
    "day": r"\d{4}-\d\d-\d\d",
    "age": r"\d+ days",
    "time": r"(?<=\d\d\d\d-\d\d-\d\d )\d\d:\d\d",
}
STANDS_FOR = re.compile("|".join(f"(?P<{name}>{part})" for name, part in PARTS.items()))
ELSEWHERE = "make dev"
"""It stays until it is stopped; tests/acceptance/test_dev.py runs what it runs."""


def typed_and_shown(page: str) -> Iterator[tuple[str, str]]:
    """Each command of the page with the answer below it."""
    for block in BLOCK.findall(page):
        found = list(COMMAND.finditer(block))
        assert "".join(each[0] for each in found) == block, f"not read in full:\n{block}"
        yield from ((each["typed"], each["shown"]) for each in found)


def recipe(target: str) -> list[str]:
    """The arguments of `forgetting` that a target of the Makefile runs."""
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    rule = re.search(rf"^{target}:.*\n\t@\$\(BIN\)/forgetting (.*)\n", makefile, re.MULTILINE)
    assert rule is not None, target
    return rule[1].split()


@dataclass
class Reader:
    """Somebody who types what the page says into one shell."""

    inside: Inside
    cli: Cli
    variables: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict)

    def types(self, command: str) -> str:
        """What a command of the page prints here, where ids of the page are others."""
        for shown, here in self.ids.items():
            command = command.replace(shown, here)
        if command.startswith("make "):
            # A run in this process would take the tests' filter of warnings into it.
            return self.cli.good(*recipe(command.removeprefix("make ")), **self.variables).out
        if named := re.match(r"export (\w+)=", command):
            self.variables[named[1]] = self.shell(f'{command}; printf %s "${named[1]}"')
            return ""
        if not command.startswith(".venv/bin/forgetting "):
            return self.shell(command)
        before = dict(os.environ)
        try:
            said = self.inside(*command.split()[1:], **self.variables)
        finally:
            # In a shell each command has an environment of its own.
            os.environ.clear()
            os.environ.update(before)
        assert (said.code, said.err) == (0, ""), said
        return said.out

    def shell(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.inside.home,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def compare(self, shown: str, said: str, command: str) -> None:
        """Hold what is shown against what was said, and learn which id stands for which."""
        groups: dict[str, str] = {}

        def pattern(part: re.Match[str]) -> str:
            if part.lastgroup != "id":
                return PARTS[part.lastgroup or ""]
            known = next((name for name, id_ in groups.items() if id_ == part[0]), None)
            if part[0] in self.ids or known:
                return f"(?P={known})" if known else self.ids[part[0]]
            groups[f"id{len(groups)}"] = part[0]
            return f"(?P<id{len(groups) - 1}>{PARTS['id']})"

        def line(text: str) -> str:
            if text == "...":
                return r"(?:.*\n)*?"
            parts, end = [], 0
            for part in STANDS_FOR.finditer(text):
                parts += [re.escape(text[end : part.start()]), pattern(part)]
                end = part.end()
            return "".join([*parts, re.escape(text[end:])]) + r" *\n"

        wanted = "".join(line(each.rstrip()) for each in shown.splitlines())
        printed = said.strip("\n")
        found = re.fullmatch(wanted, f"{printed}\n" if printed else "")
        assert found, f"$ {command}\nsays\n{said}\nand the page shows\n{shown}"
        self.ids |= {groups[name]: here for name, here in found.groupdict().items()}


@pytest.fixture
def reader(
    folder: Path,  # noqa: F811 - the fixture that is imported
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Reader]:
    """A newcomer in a clone that nothing was done in yet; a UI that is open keeps the server."""
    monkeypatch.setattr(command_line.console, "width", 100)
    monkeypatch.setattr(command_line.console, "file", None)
    monkeypatch.chdir(folder)
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "FORGETTING_HOME": str(folder / ".forgetting"),
    }
    server = embedded.start(folder / ".forgetting")
    yield Reader(Inside(folder, patch=monkeypatch, capture=capfd), Cli(folder), variables)
    server.cleanup()
    if (folder / "forgetting").exists():
        embedded.start(folder / "forgetting").cleanup()  # the server of the reader's own memories


def test_every_command_of_the_tutorial_runs_and_says_what_the_page_says(reader: Reader) -> None:
    commands = list(typed_and_shown(PAGE))
    assert len(commands) > 15
    for typed, shown in commands:
        if typed != ELSEWHERE:
            reader.compare(shown, reader.types(typed), typed)
    assert len(reader.ids) >= 3
    assert recipe("dev") == ["dev", "--demo"]
