"""The command line as a user meets it: a process, its exit code and what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import pytest
import sqlalchemy as sa
import typer

from forgetting_assets import Client
from forgetting_assets import cli as command_line
from resources import embedded, migrations
from resources.addresses import MEMORY_DATABASE, Addresses
from resources.database import Database, engine
from resources.errors import RetiredTenant
from resources.settings import PROJECT
from tests.fake_jev import FakeJev
from tests.support import Store, ago, record_verdict, vector

BIN = Path(sys.executable).parent
HANG = 300
"""Seconds after which a command is taken to hang."""
MARKER = "Ottoline keeps the violet ledger"
DAY = "2026-08-31"
ONE_DAY = timedelta(days=1)
ON = {"FORGETTING_PASS_ENABLED": "true", "FORGETTING_ARCHIVE_ENABLED": "true"}


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str

    def rows(self) -> dict[str, list[str]]:
        """The cells of the table that it printed, by the row's name.

        An indented row is named after the row that it stands under: "blast_radius judged_verdicts".
        """
        rows: dict[str, list[str]] = {}
        above = ""
        for line in self.out.splitlines():
            if line.startswith("│"):
                name, *cells = line[1:-1].split("│")
                indented = name.startswith("   ")
                above = above if indented else name.strip()
                rows[f"{above} {name.strip()}" if indented else above] = [c.strip() for c in cells]
        return rows


@dataclass
class Cli:
    """`forgetting …` in a process of its own, with an environment of the test's own."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: str = "forgetting"

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        output: IO[bytes] | None = None,
        **environment: str | None,
    ) -> subprocess.Popen[str]:
        """Start a command. A variable that is None is not set; ``output`` takes what it prints."""
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "FORGETTING_HOME": str(self.home / "forgetting"),
            "COLUMNS": "160",
            **self.environment,
            **environment,
        }
        return subprocess.Popen(
            [BIN / self.program, *arguments],
            env={name: value for name, value in given.items() if value is not None},
            cwd=self.home,
            stdin=stdin,
            stdout=output or subprocess.PIPE,
            stderr=output or subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **environment: str | None) -> Said:
        """Run a command to its end."""
        with self.start(*arguments, **environment) as command:
            try:
                out, err = command.communicate(timeout=HANG)
            except BaseException:
                command.kill()
                raise
        return Said(command.returncode, out, err)

    def good(self, *arguments: str, **environment: str | None) -> Said:
        """Run a command that must succeed and complain of nothing."""
        said = self(*arguments, **environment)
        assert (said.code, said.err) == (0, ""), said
        return said

    def sentence(self, *arguments: str, **environment: str | None) -> str:
        """Run a command that must fail with one sentence on standard error; the sentence."""
        said = self(*arguments, **environment)
        assert said.code == 1, said
        assert len(said.err.splitlines()) == 1, said
        assert "Traceback" not in said.out + said.err
        assert MARKER not in said.err
        return said.err.strip()


@pytest.fixture
def cli(tmp_path: Path, places: Addresses) -> Cli:
    """The command line on the test's own migrated database."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    return Cli(
        tmp_path,
        {
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
            "DATABASE_ADMIN_URL": places.admin.render_as_string(hide_password=False),
        },
    )


@dataclass
class Inside(Cli):
    """The same in this process, for many commands in a row: a process of its own costs seconds."""

    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)
    capture: pytest.CaptureFixture[str] | None = None

    def __call__(self, *arguments: str, **environment: str | None) -> Said:
        assert self.capture is not None
        with self.patch.context() as patch:
            for name, value in {**self.environment, **environment}.items():
                if value is None:
                    patch.delenv(name, raising=False)
                else:
                    patch.setenv(name, value)
            patch.setattr(sys, "argv", ["forgetting", *arguments])
            self.capture.readouterr()
            code: object = 0
            try:
                command_line.main()
            except SystemExit as end:
                code = end.code or 0
            out, err = self.capture.readouterr()
        assert isinstance(code, int)
        return Said(code, out, err)


@pytest.fixture
def inside(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Inside:
    """The command line in this process, on the test's own migrated database."""
    monkeypatch.setattr(command_line.console, "width", 160)
    monkeypatch.setattr(command_line.console, "file", None)
    return Inside(cli.home, cli.environment, patch=monkeypatch, capture=capfd)


@pytest.fixture
def judge() -> Iterator[dict[str, str]]:
    """An independent server of the judge's contract, as the settings that reach it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([BIN / "jevcompat", "mock", "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/v1/models").status_code == 200:
                    break
            assert server.poll() is None
            time.sleep(0.05)
        yield {
            "JEV_BASE_URL": url,
            "JEV_MODEL": "jev-1.13.0",
            "JEV_ANSWER_MODEL": "jevcompat-mock-0.1",
            "JEV_API_KEY": "x",
            # It answers by chance, and so ends far more of a scope than a judge would.
            "FORGETTING_BLAST_RADIUS": "1",
        }
    finally:
        server.kill()
        server.wait()


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of the command line, by what a user types."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for each, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {each}", child)

    yield from walk("forgetting", typer.main.get_command(command_line.app))


ALL = dict(commands())


def test_the_commands_are_these() -> None:
    assert sorted(name for name, command in ALL.items() if not hasattr(command, "commands")) == [
        "forgetting backfill",
        "forgetting demo",
        "forgetting dev",
        "forgetting evidence archive",
        "forgetting evidence credit",
        "forgetting evidence dereference",
        "forgetting evidence forget",
        "forgetting evidence record",
        "forgetting evidence regret",
        "forgetting evidence retrieve",
        "forgetting evidence touch",
        "forgetting evidence unarchive",
        "forgetting floor",
        "forgetting health",
        "forgetting import",
        "forgetting mcp",
        "forgetting metrics",
        "forgetting migrate",
        "forgetting review accept",
        "forgetting review list",
        "forgetting review reject",
        "forgetting review show",
        "forgetting review undo",
        "forgetting review walk",
        "forgetting run",
        "forgetting tenants add",
        "forgetting tenants erase",
        "forgetting tenants export",
        "forgetting tenants grant",
        "forgetting tenants list",
        "forgetting tenants opt-in",
        "forgetting tenants opt-out",
        "forgetting tenants restore",
        "forgetting tenants retire",
        "forgetting tenants revoke",
        "forgetting trim-events",
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_has_help(name: str) -> None:
    command = ALL[name]
    assert (command.help or "").strip().endswith(".")
    for parameter in command.params:
        if parameter.name != "help":
            assert (getattr(parameter, "help", None) or "").strip(), parameter.name


def test_help_is_printed_without_a_database(tmp_path: Path) -> None:
    cli = Cli(tmp_path, {"DATABASE_URL": "nonsense"})
    said = cli.good("--help")
    for name in ("demo", "floor", "import", "migrate", "run", "tenants", "review", "evidence"):
        assert name in said.out
    assert "--tenant" in cli.good("review", "accept", "--help").out
    assert list(tmp_path.iterdir()) == []


def test_run_with_the_flag_off_says_so_and_touches_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path, {"DATABASE_URL": "postgresql://nobody@/nothing?host=/nonexistent"})
    arguments = ("run", "--tenant", "acme", "--date", DAY)
    assert cli.good(*arguments).out == "FORGETTING_PASS_ENABLED is off: nothing was read.\n"
    assert list(tmp_path.iterdir()) == []

    said = cli.sentence(*arguments, FORGETTING_PASS_ENABLED="true")
    assert "DATABASE_URL" in said, "with the flag on that address cannot be used"


def test_run_with_the_flag_off_starts_no_embedded_server(tmp_path: Path) -> None:
    said = Cli(tmp_path).good("run", "--tenant", "acme", "--date", DAY)
    assert said.out == "FORGETTING_PASS_ENABLED is off: nothing was read.\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tenant_is_a_sentence(cli: Cli, store: Store) -> None:
    said = "There is no tenant globex: `forgetting tenants list` shows those that exist."
    store.tenant("acme")
    for arguments in (
        ("run", "--date", DAY, "--tenant", "globex"),
        ("review", "list", "--tenant", "globex"),
        ("tenants", "opt-in", "globex", "--judgment"),
    ):
        assert cli.sentence(*arguments, **ON) == said
    assert "acme" in cli.good("tenants", "list").out


def test_a_retired_tenant_is_a_sentence(cli: Cli, store: Store, tmp_path: Path) -> None:
    store.tenant("acme")
    store.retire("acme")
    said = cli.sentence("run", "--tenant", "acme", "--date", DAY, **ON)
    assert said.startswith("The tenant acme was retired on 2026-09-01")
    (tmp_path / "empty.jsonl").touch()
    assert "retired" in cli.sentence("import", "empty.jsonl", "--tenant", "acme")


def test_a_tenant_is_added_retired_brought_back_exported_erased_and_restored(
    inside: Inside, store: Store
) -> None:
    said = inside.good("tenants", "add", "acme").out
    assert said == "acme is added, with judgment and archival off.\n"
    [row] = store.rows("SELECT * FROM tenants")
    assert not any(row[agreed] for agreed in ("judgment_enabled", "archival_enabled"))
    assert inside.sentence("tenants", "add", "acme") == "There is a tenant acme already."
    for unusable in ("Acme", "a|b", "", "a" * 64):
        assert "1 to 63" in inside.sentence("tenants", "add", unusable)

    assert "add --yes" in inside.sentence("tenants", "retire", "acme")
    assert "--undo" in inside.good("tenants", "retire", "acme", "--yes").out
    assert "was retired on" in inside.sentence("tenants", "retire", "acme", "--yes")
    assert "--undo` brings it back" in inside.sentence("tenants", "add", "acme")
    assert "was retired on" in inside.sentence("mcp", "--tenant", "acme")
    assert inside.good("tenants", "retire", "acme", "--undo").out.startswith("acme is back")
    assert "nothing to undo" in inside.sentence("tenants", "retire", "acme", "--undo")

    store.memory(store.tenant("acme"), MARKER)
    file = str(inside.home / "acme.jsonl")
    assert "4 rows of" in inside.good("tenants", "export", "acme", "--to", file).out
    assert "add --force" in inside.sentence("tenants", "export", "acme", "--to", file)
    inside.good("tenants", "export", "acme", "--to", file, "--force")
    assert "There is a tenant acme" in inside.sentence("tenants", "restore", file)

    before = store.dump("memories", "users", "tenants")
    assert "add --confirm acme" in inside.sentence("tenants", "erase", "acme")
    wrong = inside.sentence("tenants", "erase", "acme", "--confirm", "globex")
    assert wrong == "That is not acme: nothing was erased."
    without = {"DATABASE_ADMIN_URL": None}
    for arguments in (("erase", "acme", "--confirm", "acme"), ("restore", file)):
        said = inside.sentence("tenants", *arguments, **without)
        assert "needs the owner of the tables" in said
    assert store.dump("memories", "users", "tenants") == before
    erased = inside.good("tenants", "erase", "acme", "--confirm", "acme").out
    assert erased == "acme is erased: 4 rows, 0 runs.\n"
    assert "There is no tenant acme" in inside.sentence("tenants", "erase", "acme")
    assert inside.good("tenants", "restore", file).out == "acme is restored: 4 rows.\n"
    assert store.dump("memories", "users", "tenants") == before


def test_what_a_person_does_by_hand_still_works_for_a_retired_tenant(
    inside: Inside, store: Store
) -> None:
    acme = store.tenant("acme")
    proposal = str(
        record_verdict(store, acme, store.memory(acme), verdict="archive", proposal="proposed")
    )
    entry = str(store.evidence(acme))
    client = Client("acme", url=inside.environment["DATABASE_URL"])
    store.retire()
    with client, pytest.raises(RetiredTenant):
        client.record("trace", "it was open before", session_id="s")
    of_acme = ("--tenant", "acme")
    assert proposal in inside.good("review", "list", *of_acme).out
    inside.good("review", "accept", proposal, *of_acme)
    inside.good("review", "undo", proposal, *of_acme)
    inside.good("evidence", "dereference", entry, *of_acme)
    inside.good("evidence", "forget", "--session", "session", "--yes", *of_acme)
    inside.good("health", *of_acme)
    inside.good("tenants", "export", "acme", "--to", str(inside.home / "file"))


@pytest.mark.parametrize("written", ["31.08.2026", "2026-02-30"])
def test_a_malformed_date_is_a_sentence(tmp_path: Path, written: str) -> None:
    cli = Cli(tmp_path, {"DATABASE_URL": "nonsense", **ON})
    said = cli.sentence("run", "--tenant", "acme", "--date", written)
    assert said == f"{written!r} is not a date: write it as 2026-08-31."


def today() -> date:
    return datetime.now(UTC).date()


def test_a_day_that_has_not_ended_is_a_sentence(cli: Cli, store: Store) -> None:
    store.tenant("acme")
    run = ("run", "--tenant", "acme", "--date")
    far = cli.sentence(*run, "2999-01-01", **ON)
    assert far.startswith("2999-01-01 has not ended in UTC")
    assert cli.sentence(*run, "9999-12-31", **ON).startswith("9999-12-31 has not ended in UTC")

    while True:
        day = today()
        said = cli(*run, day.isoformat(), **ON)
        if day == today():
            break
    assert said.code == 1
    newest = day - timedelta(days=1)
    assert said.err == (
        f"{day} has not ended in UTC, so it has no partition yet: the newest is {newest}.\n"
    )
    assert "2025-12-31" in cli.sentence(*run, "2025-12-31", **ON), "before FORGETTING_START_DATE"


@pytest.mark.parametrize("slug", ["acme|2026-08-31", ""])
def test_a_slug_that_is_no_partition_key_is_a_sentence(
    cli: Cli, store: Store, tmp_path: Path, slug: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    said = cli.sentence("import", "empty.jsonl", f"--tenant={slug}")
    assert said.startswith("A tenant's slug has 1 to 63 of a-z, 0-9, _ and -")
    assert store.rows("SELECT * FROM tenants") == []


def test_the_demos_flags_are_refused_on_a_database_of_real_memories(cli: Cli) -> None:
    said = cli.sentence("dev", "--demo")
    assert said.startswith("--demo turns every flag on, so it is for a demo database alone")


def test_a_memory_cannot_hide_itself_from_a_reviewers_terminal(cli: Cli, store: Store) -> None:
    acme = store.tenant("acme")
    memory = store.memory(acme, "seen\x1b[8mhidden\u202e", topic="top\x1b[2Kic")
    proposal = record_verdict(store, acme, memory, verdict="archive", proposal="proposed")
    listed = cli.good("review", "list", "--tenant", "acme").out
    shown = cli.good("review", "show", str(proposal), "--tenant", "acme").out
    assert "\x1b" not in listed + shown
    assert "top<U+001B>[2Kic" in listed
    assert "seen<U+001B>[8mhidden<U+202E>" in shown


def test_a_port_that_is_taken_is_a_sentence_and_starts_no_daemon(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = cli("dev", "--port", str(port))
    assert (said.code, said.out) == (1, ""), "it does not announce a UI that cannot open"
    assert said.err.startswith(f"The UI cannot listen on 127.0.0.1:{port}")


def test_a_superuser_in_database_url_is_a_sentence(cli: Cli) -> None:
    admin = cli.environment["DATABASE_ADMIN_URL"]
    for command in (("tenants", "list"), ("dev",)):
        said = cli.sentence(*command, DATABASE_URL=admin)
        assert said.startswith("The role postgres is a superuser, so it could read across tenants.")


def test_an_unmigrated_database_is_a_sentence(cli: Cli, store: Store) -> None:
    store.execute("DROP SCHEMA forgetting CASCADE")
    said = cli.sentence("tenants", "list")
    assert said == ("The database has no current schema: run `forgetting migrate` as its owner.")


def test_a_missing_run_storage_is_a_sentence(cli: Cli, places: Addresses) -> None:
    elsewhere = places.dagster.set(database="no_such_database").render_as_string(False)
    said = cli.sentence("dev", DAGSTER_DATABASE_URL=elsewhere)
    assert "no_such_database" in said
    assert "`forgetting migrate`" in said
    # Who reviews or imports needs no run storage.
    assert "judgment" in cli.good("tenants", "list", DAGSTER_DATABASE_URL=elsewhere).out


def test_migrating_without_the_owner_is_a_sentence(cli: Cli) -> None:
    said = cli.sentence("migrate", DATABASE_ADMIN_URL=None)
    assert "DATABASE_ADMIN_URL" in said
    said = cli.sentence("migrate", DATABASE_ADMIN_URL=cli.environment["DATABASE_URL"])
    assert "DATABASE_ADMIN_URL" in said or "migration failed" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FORGETTING_BUDGET_USD", "plenty"),
        ("FORGETTING_GATEWAY", "oracle"),
        ("FORGETTING_START_DATE", "spring"),
        ("FORGETTING_PRICES", "cheap"),
        ("DATABASE_URL", "mysql://root:hunter2@localhost/memory"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_a_sentence(
    tmp_path: Path, name: str, value: str
) -> None:
    cli = Cli(tmp_path, {"DATABASE_URL": "postgresql://nobody@/nothing?host=/nonexistent", **ON})
    said = cli.sentence("run", "--tenant", "acme", "--date", DAY, **{name: value})
    assert name in said
    assert "hunter2" not in said


def test_opting_in_to_nothing_is_a_sentence(cli: Cli, store: Store) -> None:
    store.tenant("acme")
    assert "--judgment" in cli.sentence("tenants", "opt-in", "acme")


def test_a_tenant_is_granted_to_an_analyst_and_revoked(inside: Inside, store: Store) -> None:
    cli = inside
    store.tenant("acme")
    login = f"analyst_{uuid.uuid4().hex[:12]}"
    store.execute(f"CREATE ROLE {login} LOGIN")
    grant = ("tenants", "grant", "acme", "--to", login)
    revoke = ("tenants", "revoke", "acme", "--from", login)
    try:
        assert cli.good(*grant).out == f"{login} reads acme.\n"
        assert cli.good(*grant).out == f"{login} reads acme already.\n"
        assert store.rows("SELECT grantee FROM analytics.tenant_grants") == [{"grantee": login}]
        assert cli.good(*revoke).out == f"{login} no longer reads acme.\n"
        assert cli.good(*revoke).out == f"{login} does not read acme.\n"
        assert store.rows("SELECT grantee FROM analytics.tenant_grants") == []
    finally:
        store.execute(f"DROP ROLE {login}")

    said = cli.sentence("tenants", "grant", "globex", "--to", "forgetting_analyst")
    assert said.startswith("There is no tenant globex")
    assert cli.sentence(*grant).startswith(f"The server has no role {login}")
    assert cli.good(*revoke).out == f"{login} does not read acme.\n", "it may be gone"
    for command in (grant, revoke):
        assert "DATABASE_ADMIN_URL" in cli.sentence(*command, DATABASE_ADMIN_URL=None)


def test_opting_out_leaves_the_other_switch_alone(cli: Cli, store: Store) -> None:
    store.tenant("acme")
    assert cli.good("tenants", "opt-out", "acme", "--judgment").out == "acme: judgment off.\n"
    assert store.rows("SELECT judgment_enabled AS j, archival_enabled AS a FROM tenants") == [
        {"j": False, "a": True}
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "No judge can be asked without a key: set JEV_API_KEY."),
        (
            {"JEV_API_KEY": "hunter2", "JEV_MODEL": "jev-latest"},
            "JEV_MODEL must name one version, such as jev-1.14.0",
        ),
        (
            {"JEV_API_KEY": "hunter2", "FORGETTING_GATEWAY": "scripted"},
            "The scripted judge only runs on a demo database: set FORGETTING_GATEWAY=jev.",
        ),
    ],
    ids=["no key", "alias", "scripted"],
)
def test_a_judge_that_cannot_be_asked_is_a_sentence_and_nothing_is_proposed(
    cli: Cli, store: Store, settings: Mapping[str, str], expected: str
) -> None:
    acme = store.tenant("acme")
    store.memory(acme, MARKER)
    floors = {"FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}'}
    said = cli.sentence("run", "--tenant", "acme", "--date", DAY, **ON, **floors, **settings)
    assert said.startswith(f"The pass failed for acme: {expected}")
    assert "hunter2" not in said
    assert store.rows("SELECT * FROM retention_proposals") == []
    assert store.rows("SELECT * FROM llm_usage") == []


def test_an_embedding_model_without_a_floor_is_a_sentence_that_says_how_to_set_it(
    cli: Cli, store: Store
) -> None:
    acme = store.tenant("acme")
    store.memory(acme, MARKER)
    said = cli.sentence("run", "--tenant", "acme", "--date", DAY, **ON)
    assert said.startswith(
        "The pass failed for acme: acme has vectors of the embedding model test-embedding, which "
        'has no floor: add "test-embedding" with the least cosine of a pair to '
        "FORGETTING_CONFLICT_FLOORS."
    )
    assert "`forgetting floor --tenant acme`" in said
    for table in ("minings", "mined_memories", "similar_pairs", "conflict_pairs"):
        assert store.rows(f"SELECT * FROM forgetting.{table}") == []


def test_a_file_with_a_bad_line_is_refused_by_number(
    cli: Cli, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"content": MARKER}) + "\n{\n")
    said = cli("import", "bad.jsonl", "--tenant", "acme")
    assert (said.code, said.out) == (1, "")
    head, first, second = said.err.splitlines()
    assert head == "Nothing of bad.jsonl was imported:"
    assert first.startswith("  line 1: id: Field required; ")
    assert second.startswith("  line 2: Invalid JSON: ")
    assert MARKER not in said.err
    assert store.rows("SELECT * FROM tenants") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("review", "accept", "not-an-id", "--tenant", "acme"),
            r"Invalid value for 'ID\.\.\.': .*\. See `forgetting review accept --help`\.",
        ),
        (
            ("review", "list", "--tenant", "acme", "--bogus"),
            r"No such option: --bogus\. See `forgetting review list --help`\.",
        ),
        (
            ("review", "list", "--tenant", "acme", "--action", "keep"),
            r"Invalid value for '--action': .*archive.* See `forgetting review list --help`\.",
        ),
        (
            ("review", "list", "--tenant", "acme", "--min-probability", "nan"),
            r"Invalid value for '--min-probability': .* See `forgetting review list --help`\.",
        ),
        (("review", "show"), r"Missing .* See `forgetting review show --help`\."),
        (("reveiw",), r"No such command 'reveiw'.* See `forgetting --help`\."),
    ],
    ids=["id", "option", "choice", "range", "missing", "command"],
)
def test_a_usage_error_is_a_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert re.fullmatch(said, Cli(tmp_path).sentence(*arguments))
    assert list(tmp_path.iterdir()) == [], "no server was started for it"


def test_a_group_without_a_command_shows_its_help(tmp_path: Path) -> None:
    said = Cli(tmp_path)("review")
    assert (said.code, said.err) == (1, "")
    assert "walk" in said.out


@pytest.mark.parametrize("command", ["accept", "reject", "undo"])
def test_deciding_nothing_is_a_sentence(tmp_path: Path, command: str) -> None:
    said = Cli(tmp_path).sentence("review", command, "--tenant", "acme")
    assert said.startswith("Name ")


def test_evidence_is_printed_byte_for_byte_from_any_tier(cli: Cli, store: Store) -> None:
    acme, globex = store.tenant("acme", judgment=False), store.tenant("globex")
    content = "[bold]GET[/] /health 200\t\n\n  two trailing spaces  \n" + "x" * 500
    hot = store.evidence(acme, content=content, age=1)
    cold = store.evidence(acme, content=content + "!", age=90)
    cli.good("run", "--tenant", "acme", "--date", DAY, **ON)
    archived = store.rows("SELECT id FROM evidence WHERE archived_at IS NOT NULL")
    assert archived == [{"id": cold}]
    for id_, expected in ((hot, content), (cold, content + "!")):
        assert cli.good("evidence", "dereference", str(id_), "--tenant", "acme").out == expected
    foreign = str(store.evidence(globex))
    said = cli.sentence("evidence", "dereference", foreign, "--tenant", "acme")
    assert said == f"The tenant has no evidence with the id {foreign}."


def test_health_is_tables_of_figures_or_json_and_never_text(cli: Cli, store: Store) -> None:
    acme = store.tenant("acme")
    waiting = store.memory(acme, MARKER, topic=MARKER, memory_type="decision")
    record_verdict(store, acme, waiting, verdict="archive", proposal="proposed")
    entry = store.evidence(acme, content=MARKER, age=90)
    store.cite(acme, waiting, entry)
    shown = cli.good("health", "--tenant", "acme")
    assert MARKER not in shown.out
    rows = shown.rows()
    assert rows["decision"] == ["1", "0", "0", "1"]
    assert rows["trace"] == ["1", "0"]
    assert "archive" in rows
    assert "Idle evidence, for over 30 days: 1" in shown.out
    assert "Archived, of all evidence: 0.0%" in shown.out

    figures = json.loads(cli.good("health", "--tenant", "acme", "--json").out)
    assert figures["memories"] == {"decision": {"live": 1, "archived": 0, "superseded": 0}}
    assert figures["evidence"] == {"trace": {"hot": 1, "archived": 0}}
    assert (figures["idle_evidence"], figures["archive_share"]) == (1, 0)
    assert datetime.fromisoformat(figures["measured_at"]).tzinfo is not None

    of_session = ("--session", "session", "--stale-days", "36500", "--json")
    figures = json.loads(cli.good("health", "--tenant", "acme", *of_session).out)
    assert (figures["live_memories"], figures["stale_memories"]) == (1, 0)
    assert figures["session_id"] == "session"

    said = cli.sentence("health", "--tenant", "acme", "--session", "elsewhere")
    assert said == "The tenant has no session 'elsewhere': no evidence is of it."
    said = cli.sentence("health", "--tenant", "acme", "--stale-days", "0")
    assert said == "The stale threshold is a number of days from 1 to 36500."
    store.tenant("empty")
    assert "Archived, of all evidence: -" in cli.good("health", "--tenant", "empty").out


def test_both_memories_are_shown_side_by_side_with_what_came_before(cli: Cli, store: Store) -> None:
    acme = store.tenant("acme")
    older, newer = store.pair(acme, 0.9, topic="Release [day]", project="apollo")
    store.execute("UPDATE memories SET content = 'On Fridays.' WHERE id = :id", id=older)
    store.execute("UPDATE memories SET content = 'On Mondays.' WHERE id = :id", id=newer)
    record_verdict(store, acme, older, judged_at=ago(50), verdict="archive", proposal="rejected")
    one = record_verdict(
        store, acme, older, newer=newer, verdict="conflict", related=newer, proposal="proposed"
    )
    show = ("review", "show", str(one), "--tenant", "acme")
    said = cli.good(*show).out
    sides = next(line for line in said.splitlines() if "On Fridays." in line)
    assert re.fullmatch(r"│ On Fridays\. +│ On Mondays\. +│", sides)
    assert re.search(rf"Older memory {older} +┃ Newer memory {newer}", said)
    assert said.count("Release [day]") == said.count("fact, work/apollo") == 2
    assert re.search(r"recorded 2026-07-03, \d+ days ago +│ recorded 2026-08-27, \d+ days", said)
    assert len(re.findall(r"untouched for \d+ days", said)) == 2
    assert "Similarity now: 0.90\n" in said
    assert re.search(r"^  2026-07-13  single  archive   0\.95  rejected$", said, re.MULTILINE)
    assert "What became of the proposal" not in said

    cli.good("review", "reject", str(one), "--tenant", "acme")
    store.execute(
        "UPDATE memories SET embedding = NULL, status = 'archived' WHERE id = :id", id=newer
    )
    said = cli.good(*show).out
    assert re.search(r"^  [\d-]+ [\d:]+  rejected$", said, re.MULTILINE)
    assert "Similarity now: not known, a memory has no vector\n" in said
    assert said.count("no longer live") == 1


def test_decisions_are_undone_one_by_one_or_as_a_batch(inside: Inside, store: Store) -> None:
    cli, acme = inside, store.tenant("acme")
    ids = [
        str(record_verdict(store, acme, store.memory(acme), verdict="archive", proposal="proposed"))
        for _ in range(3)
    ]
    tables = ("memories", "retention_proposals")
    before = store.dump(*tables)
    of_acme = ("--tenant", "acme")
    for command in ("accept", "reject"):
        said = cli.sentence("review", command, *ids, *of_acme)
        assert said == f"{command.capitalize()} 3 proposals? Nobody is there to ask: add --yes."
    assert store.dump(*tables) == before
    said = cli.good("review", "accept", *ids, *of_acme, "--yes").out
    assert said.startswith("Applied. Memories changed: 3. All back: forgetting review undo --batch")
    batch = said.split("--batch ")[1].split()[0]
    undone = cli.good("review", "undo", ids[0], *of_acme).out
    assert undone == "Undone. Memories restored: 1.\n"
    again = ("review", "undo", "--batch", batch, *of_acme)
    assert "Undo 2 decisions? Nobody is there" in cli.sentence(*again)
    assert cli.good(*again, "--yes").out == "Undone. Memories restored: 2.\n"
    assert store.dump(*tables) == before
    assert "no decisions of a batch" in cli.sentence(*again, "--yes")

    assert "Memories changed: 1." in cli.good("review", "accept", ids[0], *of_acme).out
    before = store.dump(*tables)
    for command in ("accept", "reject"):
        said = cli.sentence("review", command, *ids, *of_acme, "--yes")
        assert f"Proposal {ids[0]} was applied on" in said
        unknown = str(uuid.uuid4())
        said = cli.sentence("review", command, ids[1], unknown, *of_acme, "--yes")
        assert f"no proposal {unknown}" in said
    said = cli.sentence("review", "undo", ids[0], ids[1], *of_acme, "--yes")
    assert said == f"The tenant has no decided proposal {ids[1]} to undo."
    assert store.dump(*tables) == before, "a slip in a list decides nothing of it"

    store.execute(
        "UPDATE memories SET updated_at = now() WHERE id = "
        "(SELECT memory_id FROM retention_proposals WHERE id = :id)",
        id=ids[1],
    )
    some = cli("review", "accept", *ids[1:], ids[1], *of_acme, "--yes")
    assert some.code == 1
    assert "was changed or reviewed since" in some.err
    assert "The other 1 are done. All back: forgetting review undo --batch" in some.err
    back = some.err.split("forgetting ")[-1].split()
    assert cli.good(*back).out == "Undone. Memories restored: 1.\n"
    assert "not both" in cli.sentence("review", "undo", *of_acme)
    assert "not both" in cli.sentence("review", "undo", ids[0], "--batch", batch, *of_acme)


def test_what_the_database_refuses_keeps_no_other_from_being_decided(
    inside: Inside, store: Store
) -> None:
    cli, acme = inside, store.tenant("acme")
    ids = [
        str(record_verdict(store, acme, store.memory(acme), verdict="archive", proposal="proposed"))
        for _ in range(3)
    ]
    # A blocker may not be archived, whatever a verdict says.
    store.execute(
        "UPDATE memories SET memory_type = 'blocker' WHERE id = "
        "(SELECT memory_id FROM retention_proposals WHERE id = :id)",
        id=ids[1],
    )
    store.execute(
        "UPDATE forgetting.judged_verdicts SET memory_type = 'blocker' WHERE id = :id", id=ids[1]
    )
    some = cli("review", "accept", *ids, "--tenant", "acme", "--yes")
    assert some.code == 1
    assert f"Proposal {ids[1]} was not decided: The database refused a statement" in some.err
    assert "The other 2 are done. All back: forgetting review undo --batch" in some.err
    back = some.err.split("forgetting ")[-1].split()
    assert cli.good(*back, "--yes").out == "Undone. Memories restored: 2.\n"
    assert "All back" not in cli.sentence("review", "accept", ids[1], "--tenant", "acme")


def test_a_proposal_of_another_program_is_shown_and_rejected(inside: Inside, store: Store) -> None:
    cli, acme = inside, store.tenant("acme")
    memory = store.memory(acme)
    id_ = str(record_verdict(store, acme, memory, verdict="archive", proposal="proposed"))
    store.execute("DELETE FROM forgetting.judged_verdicts")
    store.execute(
        "UPDATE retention_proposals SET probabilities = CAST(:given AS jsonb)",
        given='{"archive": 0.9, "supersede:n0": 0.08, "supersede:newer": 0.02}',
    )
    shown = cli.good("review", "show", id_, "--tenant", "acme").out
    assert re.search(r"^  supersede +0\.08 ", shown, re.MULTILINE)
    said = cli.sentence("review", "accept", id_, "--tenant", "acme")
    assert "It stays open: reject it" in said
    cli.good("review", "reject", id_, "--tenant", "acme")


def test_archived_evidence_comes_back_by_its_ids(cli: Cli, store: Store) -> None:
    acme, globex = store.tenant("acme", judgment=False), store.tenant("globex")
    ids = [str(store.evidence(acme, age=90 + n)) for n in range(3)]
    foreign = str(store.evidence(globex))
    before = store.dump("evidence")
    cli.good("run", "--tenant", "acme", "--date", DAY, **ON)
    assert len(store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL")) == 3
    said = cli.sentence("evidence", "unarchive", ids[0], foreign, "--tenant", "acme")
    assert foreign in said
    assert "Nothing was brought back" in said
    said = cli.good("evidence", "unarchive", *ids, "--tenant", "acme").out
    assert said == "Entries brought back: 3.\n"
    assert store.dump("evidence") == before


def line(**fields: Any) -> str:
    given = {
        "session_id": "s1",
        "kind": "trace",
        "content": "GET /health 200",
        "occurred_at": "2026-08-01T09:00:00Z",
    }
    return json.dumps(given | fields) + "\n"


def test_evidence_is_recorded_used_and_forgotten_from_the_command_line(
    inside: Inside, store: Store, tmp_path: Path
) -> None:
    cli = inside
    store.tenant("acme")
    of_acme = ("--tenant", "acme")
    file, text, query = (tmp_path / name for name in ("lines.jsonl", "exact.sql", "query.json"))
    known = "0192f0c1-5b7e-7c3a-9d10-3f1f6f0f7a11"
    unit = vector(0)
    file.write_text(
        line(id=known, embedding=unit, embedding_model="m")
        + "\n"
        + line(kind="lesson", content=MARKER)
        + line(session_id="s2", occurred_at=None)
    )
    ids = cli.good("evidence", "record", str(file), *of_acme).out.split()
    assert len(ids) == 3
    assert ids[0] == known
    again = cli.good("evidence", "record", str(file), *of_acme).out.split()
    assert len(again) == 2, "the line with an id adds nothing"

    text.write_bytes(b"SELECT 1;\r\n\xc3\xbc")
    block = cli.good("evidence", "archive", str(text), "--session", "s3", *of_acme).out.strip()
    said = subprocess.run(
        [BIN / "forgetting", "evidence", "dereference", block, *of_acme],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **cli.environment},
        capture_output=True,
        timeout=HANG,
        check=True,
    )
    assert said.stdout == text.read_bytes()

    query.write_text(json.dumps(unit))
    found = cli.good("evidence", "retrieve", str(query), "--model", "m", *of_acme).out
    assert found == f"{known}  1.000  trace\n    GET /health 200\nEntries: 1.\n"
    assert cli.good("evidence", "touch", ids[1], ids[2], *of_acme).out == "Entries touched: 2.\n"
    credit = cli.good("evidence", "credit", ids[1], "--outcome", "reinforcement", *of_acme)
    assert credit.out == "Entries credited: 1.\n"

    lesson = ("evidence", "forget", "--lesson", ids[1], *of_acme)
    assert "add --yes" in cli.sentence(*lesson)
    assert "Entries deleted for good: 1" in cli.good(*lesson, "--yes").out
    assert "has no lesson" in cli.sentence(*lesson, "--yes")
    session = cli.good("evidence", "forget", "--session", "s2", "--yes", *of_acme).out
    assert "Entries deleted for good: 2" in session
    assert len(store.rows("SELECT 1 FROM evidence")) == 3
    assert len(store.rows("SELECT 1 FROM forgetting.forgotten")) == 3


def test_what_evidence_cannot_take_is_a_sentence_and_changes_nothing(
    inside: Inside, store: Store, tmp_path: Path
) -> None:
    cli = inside
    acme, globex = store.tenant("acme"), store.tenant("globex")
    mine, theirs = str(store.evidence(acme)), str(store.evidence(globex, kind="lesson"))
    bad, binary, large, number = (
        tmp_path / name for name in ("bad.jsonl", "binary", "large", "number")
    )
    number.write_text("5")
    bad.write_text(
        line() + line(content=MARKER, kind="event") + "{" + MARKER + "\n" + line(**{MARKER: 1})
    )
    binary.write_bytes(b"\xff\xfe")
    large.write_text(MARKER * 10)
    before = store.dump("evidence")
    of_acme = ("--tenant", "acme")
    for arguments, expected in [
        (("archive", str(binary), "--session", "s"), "not UTF-8"),
        (("archive", str(large), "--session", "s"), "the limit is 100"),
        (("archive", str(tmp_path / "none"), "--session", "s"), "cannot be read"),
        (("archive", str(large), "--session", ""), "session_id"),
        (("touch",), "at least one"),
        (("touch", mine, theirs), f"no evidence with the id {theirs}"),
        (("credit",), "at least one"),
        (("unarchive",), "at least one"),
        (("unarchive", mine), "archive tier does not have"),
        (("retrieve", str(binary), "--model", "m"), "not JSON"),
        (("retrieve", str(large), "--model", "m"), "not JSON"),
        (("retrieve", str(number), "--model", "m"), "no array of numbers"),
        (("regret", "--days", "1000000"), "36500"),
        (("forget",), "exactly one"),
        (("forget", "--session", "session", "--lesson", mine), "exactly one"),
        (("forget", "--lesson", mine, "--yes"), "has no lesson"),
        (("forget", "--lesson", theirs, "--yes"), "has no lesson"),
        (("forget", "--session", "nowhere", "--yes"), "has no session 'nowhere'"),
    ]:
        said = cli.sentence("evidence", *arguments, *of_acme, FORGETTING_ENTRY_BYTES="100")
        assert expected in said, arguments
    said = cli("evidence", "record", str(bad), *of_acme)
    assert said.code == 1
    assert said.err.startswith("Nothing was recorded:\n  line 2: kind: ")
    assert "line 3: " in said.err
    assert "line 4: no such field" in said.err
    assert MARKER not in said.err
    store.retire()
    bad.write_text(line())
    assert "was retired" in cli.sentence("evidence", "record", str(bad), *of_acme)
    assert store.dump("evidence") == before


def test_the_regret_rate_and_the_warm_up_are_told(cli: Cli, store: Store) -> None:
    acme = store.tenant("acme", judgment=False, tracked=None)
    ids = [str(store.evidence(acme, age=90, recorded_at=ago(90))) for _ in range(4)]
    run = ("run", "--tenant", "acme", "--date", (datetime.now(UTC) - ONE_DAY).date().isoformat())
    opted = cli.good("tenants", "opt-in", "acme", "--archival").out
    assert "Every use of its evidence is recorded since" in opted
    assert cli.good(*run, **ON).rows()["evidence archived"] == ["0"]
    for wrong in ("2999-01-01", "yesterday"):
        cli.sentence("tenants", "opt-in", "acme", "--archival", "--tracked-since", wrong)
    opted = cli.good("tenants", "opt-in", "acme", "--archival", "--tracked-since", "2026-01-01")
    assert "2026-01-01 00:00 UTC" in opted.out
    assert cli.good(*run, **ON).rows()["evidence archived"] == ["4"]
    cli.good("evidence", "dereference", ids[0], "--tenant", "acme")
    rows = cli.good("evidence", "regret", "--tenant", "acme").rows()
    assert rows["trace"] == rows["all"] == ["4", "1", "25.00%", "3"]
    assert "0" in cli.good("evidence", "regret", "--tenant", "acme", "--days", "1").out
    assert "2026-01-01" in cli.good("tenants", "list").out


def test_a_failing_pass_says_which_entries_broke_the_invariant(cli: Cli, store: Store) -> None:
    acme = store.tenant("acme", judgment=False)
    entry = store.evidence(acme, age=90, content=MARKER)
    store.execute("UPDATE evidence SET archived_at = now(), archived_run_date = :day", day=DAY)
    said = cli.sentence("run", "--tenant", "acme", "--date", DAY, **ON)
    assert said.startswith(
        "The pass failed for acme: Zero episodic collapse does not hold for acme"
    )
    assert str(entry) in said


def lines_of(count: int) -> str:
    """A file of facts from March 2026, stale on DAY."""
    return "".join(
        json.dumps(
            {
                "id": f"00000000-0000-4000-8000-{number:012}",
                "memory_type": "fact",
                "scope": "work",
                "topic": f"service {number}",
                "content": f"{MARKER} of service {number}.",
                "created_at": f"2026-03-01T08:00:{number % 60:02}Z",
            }
        )
        + "\n"
        for number in range(count)
    )


def test_a_run_that_was_killed_holds_up_no_other_and_is_shown_as_failed(
    cli: Cli, store: Store, places: Addresses
) -> None:
    acme = store.tenant()
    for n in range(30):
        store.memory(acme, age=300 + n, scope=str(n), embedding=None)
    under_way, let_go = threading.Event(), threading.Event()

    def hold(_call: int) -> None:
        under_way.set()
        let_go.wait(HANG)

    with FakeJev(before=hold) as server:
        cli.environment |= {
            **ON,
            "JEV_BASE_URL": server.url,
            "JEV_MODEL": server.model,
            "JEV_API_KEY": "x",
        }
        run = ("run", "--tenant", "acme", "--date", DAY)
        killed = cli.start(*run)
        while not under_way.wait(0.1):
            assert killed.poll() is None, killed.communicate()
        killed.kill()
        killed.communicate()
        let_go.set()
        server.before = None
        again = cli.good(*run).rows()
    assert again["judged"] == ["30"]
    assert again["left for the next run"] == ["0"]
    assert len(store.rows("SELECT 1 FROM llm_usage")) == len(server.calls) == 4
    with engine(places.dagster.set(username=places.admin.username)).connect() as connection:  # type: ignore[union-attr]
        runs = connection.execute(sa.text("SELECT status FROM runs ORDER BY id")).scalars().all()
        slots = connection.execute(sa.text("SELECT count(*) FROM pending_steps")).scalar_one()
    assert (runs, slots) == (["FAILURE", "SUCCESS"], 0)


def test_from_an_empty_server_to_a_decided_proposal(
    tmp_path: Path, admin_url: sa.URL, places: Addresses, store: Store, judge: dict[str, str]
) -> None:
    assert places.admin is not None
    store.database.close()
    store.owner.dispose()
    pool = engine(admin_url).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {places.memory.database}")
    pool.dispose()
    cli = Cli(
        tmp_path,
        {
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
            "DATABASE_ADMIN_URL": places.admin.render_as_string(hide_password=False),
            **ON,
            **judge,
        },
    )
    assert cli.good("migrate").out == "The schema is current.\n"

    (tmp_path / "facts.jsonl").write_text(lines_of(60))
    imported = cli.good("import", "facts.jsonl", "--tenant", "acme")
    assert imported.out == "Memories added: 60. There already: 0.\n"
    assert cli.good("tenants", "list").rows()["acme"] == ["off", "off", "", ""]

    run = ("run", "--tenant", "acme", "--date", DAY)
    before = cli.good(*run).rows()
    assert (before["opted in to judgment"], before["opted in to archival"]) == (["no"], ["no"])
    assert before["judged"] == ["-"]
    assert store.rows("SELECT * FROM llm_usage") == []
    assert store.rows("SELECT * FROM forgetting.stale_candidates") == []

    opted = cli.good("tenants", "opt-in", "acme", "--judgment", "--archival")
    assert opted.out.startswith(
        "acme: judgment and archival on.\nEvery use of its evidence is recorded since "
    )

    first = cli.good(*run)
    table = first.rows()
    assert table["day"] == [DAY]
    assert table["stale candidates"] == ["60"]
    assert table["judged"] == ["60"]
    assert table["judge calls, this run"] == ["5"]
    assert table["zero_episodic_collapse judged_verdicts"] == ["passed"]
    assert table["zero_episodic_collapse archival_sweep"] == ["passed"]
    assert table["archive_is_conserved archival_sweep"] == ["passed"]
    assert MARKER not in first.out
    usage = store.dump("llm_usage", "forgetting.judged_verdicts", "retention_proposals")
    assert len(usage["llm_usage"]) == 5

    again = cli.good(*run).rows()
    assert again["judged"] == ["60"]
    assert again["judge calls, this run"] == ["0"]
    assert store.dump(*usage) == usage, "a second run is free and changes nothing"

    listed = cli.good("review", "list", "--tenant", "acme").out
    waiting = re.findall(r"^([0-9a-f-]{36})  archive", listed, re.MULTILINE)
    assert len(waiting) >= 2
    assert re.fullmatch(
        rf"Open proposals: {len(waiting)} \(archive \d+.*\)\. Shown: {len(waiting)}\.",
        listed.splitlines()[-1],
    )
    proposals = store.rows(
        "SELECT id, memory_id FROM retention_proposals WHERE status = 'proposed'"
    )
    subject = {str(row["id"]): str(row["memory_id"]) for row in proposals}
    assert set(waiting) == set(subject)

    yes, no = waiting[:2]
    shown = cli.good("review", "show", yes, "--tenant", "acme").out
    assert f"Memory {subject[yes]}" in shown
    assert "fact, work" in shown
    assert MARKER in shown, "the reviewer reads the memory"
    assert "by jevcompat-mock-0.1" in shown
    assert re.search(r"^  archive +0\.\d\d █+$", shown, re.MULTILINE)
    assert re.search(r"^  keep +0\.\d\d", shown, re.MULTILINE)

    memories = store.dump("memories")
    assert cli.good("review", "reject", no, "--tenant", "acme").out == (
        "Rejected: no memory changed.\n"
    )
    assert store.dump("memories") == memories
    assert cli.good("review", "accept", yes, "--tenant", "acme").out == (
        "Applied. Memories changed: 1.\n"
    )
    assert store.rows("SELECT id::text FROM memories WHERE status = 'archived'") == [
        {"id": subject[yes]}
    ]
    decided = {
        str(row["id"]): row["status"]
        for row in store.rows("SELECT id, status FROM retention_proposals")
    }
    assert (decided[yes], decided[no]) == ("applied", "rejected")
    listed = cli.good("review", "list", "--tenant", "acme", "--limit", "1").out
    assert listed.splitlines()[-1].startswith(f"Open proposals: {len(waiting) - 2} (")
    assert listed.splitlines()[-1].endswith("Shown: 1.")
    said = cli.sentence("review", "accept", yes, "--tenant", "acme")
    assert said.startswith(f"Proposal {yes} was applied on ")

    recorded = Store(Database(), engine(places.admin.set(database=places.dagster.database)))
    runs = recorded.rows("SELECT DISTINCT status, pipeline_name, partition FROM runs")
    known = recorded.rows("SELECT partition FROM dynamic_partitions")
    recorded.owner.dispose()
    assert runs == [
        {"status": "SUCCESS", "pipeline_name": "forgetting_pass", "partition": f"{DAY}|acme"}
    ], "the UI shows what the command line ran"
    assert known == [{"partition": "acme"}]


# --- the demo -----------------------------------------------------------------------------------


def test_importing_into_a_demo_database_is_refused(cli: Cli, store: Store, tmp_path: Path) -> None:
    (tmp_path / "facts.jsonl").write_text(lines_of(3))
    store.mark_demo()
    said = cli.sentence("import", "facts.jsonl", "--tenant", "mine")
    assert said.startswith("This database is a demo")
    assert store.rows("SELECT * FROM tenants") == []

    store.execute("UPDATE forgetting.deployment SET demo = FALSE")
    cli.good("import", "facts.jsonl", "--tenant", "mine")


def test_the_demo_stays_out_of_a_database_with_other_tenants(cli: Cli, store: Store) -> None:
    store.memory(store.tenant("mine"))
    before = store.dump("memories", "tenants", "forgetting.deployment")
    said = cli.sentence("demo")
    assert said.startswith("Not all of the database's tenants are the demo's (1 are not)")
    assert store.dump(*before) == before


def test_the_demo_without_the_owners_address_is_a_sentence(cli: Cli, store: Store) -> None:
    assert "DATABASE_ADMIN_URL" in cli.sentence("demo", DATABASE_ADMIN_URL=None)
    assert store.rows("SELECT * FROM tenants") == []


def processes_of(folder: Path) -> list[psutil.Process]:
    """The live processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and any(str(folder) in part for part in process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def looking_into(folder: Path) -> Iterator[Store]:
    """The store of an embedded server, whose processes are seen while it runs."""
    server = embedded.start(folder)
    try:
        assert processes_of(folder), "the search finds a server that runs"
        owner = engine(embedded.url(server, MEMORY_DATABASE, server.postgres_user))
        yield Store(Database(), owner)
        owner.dispose()
    finally:
        server.cleanup()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the embedded server's own user may reach, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="forgetting-tests-demo-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_two_first_commands_at_once_make_one_server_and_take_it_down(folder: Path) -> None:
    cli = Cli(folder)
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(lambda _: cli.good("tenants", "list"), range(2)))
    assert all("judgment" in each.out for each in said)
    home = folder / "forgetting"
    assert processes_of(home) == []
    with looking_into(home) as store:
        assert len(store.rows("SELECT * FROM forgetting.schema_version")) == 1


def stripped(text: str) -> list[str]:
    """Lines without the spaces that fill up a table."""
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def test_the_demo_runs_on_its_own_server_and_a_second_run_changes_nothing(folder: Path) -> None:
    cli = Cli(folder)
    home = folder / "forgetting"
    first = cli.good("demo")
    assert processes_of(home) == [], "it takes its server down again"
    tables = [
        *("memories", "memory_events", "evidence", "memory_evidence", "retention_proposals"),
        *("tenants", "users", "llm_usage", "budget_reservations"),
        *("forgetting.conflict_pairs", "forgetting.stale_candidates"),
        *("forgetting.judged_verdicts", "forgetting.archival_sweep", "forgetting.deployment"),
    ]
    with looking_into(home) as store:
        before = store.dump(*tables)
        open_ = store.rows(
            "SELECT t.slug, count(p.id) AS n FROM tenants AS t LEFT JOIN retention_proposals AS p "
            "ON t.user_id = p.user_id AND p.status = 'proposed' GROUP BY 1 ORDER BY 1"
        )
    assert before["forgetting.deployment"] == ["(t,t)"]
    assert processes_of(home) == []

    table = first.rows()
    calls, spend = "judge calls, this run", "spend, this run (USD)"
    assert len(table["day"]) == 3
    assert [cell for cell in table[calls] if cell not in ("-", "0")]
    assert set(table[spend]) <= {"-", "0.0000"}
    assert not any("FAILED" in cells for cells in table.values())
    assert {"zero_episodic_collapse", "archive_is_conserved"} <= set(table)
    for action in ("archive", "supersede", "conflict"):
        assert any(cell not in ("-", "0") for cell in table[f"proposed: {action}"]), action
    assert "A scripted judge gave these verdicts from a fixture" in first.out
    assert len(open_) == 3

    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    printed = Said(0, readme.split("```text\n")[1].split("```")[0], "").rows()
    days = {"day": table["day"]}
    assert printed | days == table, "the README shows what the demo prints, but for the day"

    second = cli.good("demo").rows()
    assert processes_of(home) == []
    if second["day"] == table["day"]:  # midnight may have passed in between
        assert set(second[calls]) <= {"-", "0"}
        assert {k: v for k, v in second.items() if k != calls} == {
            k: v for k, v in table.items() if k != calls
        }
        with looking_into(home) as store:
            assert store.dump(*tables) == before

    slug = next(row["slug"] for row in open_ if row["n"])
    listed = cli.good("review", "list", "--tenant", slug)
    assert "Open proposals: " in listed.out
    page = (PROJECT / "docs" / "floors.md").read_text(encoding="utf-8")
    said = cli.good("floor", "--tenant", "harbor-logistics")
    assert stripped(said.out) == stripped(page.split("```text\n")[1].split("```")[0])
    said = cli.sentence("import", "facts.jsonl", "--tenant", "mine")
    assert said.startswith("This database is a demo")
    assert processes_of(home) == []
