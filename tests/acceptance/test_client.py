"""The Python API as an agent's process uses it, and the examples of its page."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

import forgetting_assets
from forgetting_assets import Client, ForgettingError
from forgetting_assets.records import EvidenceRecord
from resources.addresses import Addresses
from resources.clock import Clock
from resources.errors import UnknownTenant
from resources.settings import PROJECT
from tests.support import DAY, TODAY, Pass, Store, ago, make_policy, vector

PAGE = (PROJECT / "docs" / "evidence.md").read_text(encoding="utf-8")


def client(places: Addresses, slug: str = "acme", now: datetime = TODAY) -> Client:
    url = places.memory.render_as_string(hide_password=False)
    return Client(slug, url=url, clock=Clock(fixed=now.isoformat()))


def test_the_verbs_of_an_entrys_life(places: Addresses, store: Store) -> None:
    store.tenant()
    with client(places, now=ago(30)) as memory:
        routine, credited, retrieved = (
            memory.record(
                "trace",
                f"entry {angle}",
                session_id="s1",
                embedding=vector(angle),
                embedding_model="m",
            )
            for angle in (0, 45, 80)
        )
        block = memory.archive("exact \r\n bytes", session_id="s1")
        undated = memory.record("log", "sometime", session_id="s1", occurred_at=None)
        assert memory.credit([credited], "reinforcement") == 1
    with client(places, now=ago(3)) as memory:
        assert [hit.id for hit in memory.retrieve(vector(80), "m", most=1)] == [retrieved]
    assert Pass(store, policy=make_policy()).sweep(store.partition()).archived == 1
    with client(places, now=TODAY + timedelta(hours=1)) as memory:
        assert [hit.id for hit in memory.retrieve(vector(0), "m")] == [credited, retrieved]
        found = memory.dereference(routine)
        assert (found.content, found.archived_at) == ("entry 0", TODAY)
        assert memory.dereference(block).content == "exact \r\n bytes"
        assert memory.dereference(undated).occurred_at is None
        assert memory.unarchive([routine]) == 1
        assert memory.touch([routine, credited]) == 2
        assert len(memory.retrieve(vector(0), "m", session_id="s1")) == 3
        assert memory.forget(session_id="s1").entries == 5
        with pytest.raises(ForgettingError, match="no evidence"):
            memory.dereference(block)
    assert store.rows("SELECT count(*) AS n FROM forgetting.regrets") == [{"n": 0}]


def test_errors_are_sentences_of_one_tree_and_leave_nothing(
    places: Addresses, store: Store
) -> None:
    store.tenant()
    before = store.dump("evidence")
    with client(places) as memory:
        for wrong in (
            lambda: memory.record("event", "x", session_id="s1"),  # type: ignore[arg-type]
            lambda: memory.record("trace", "", session_id="s1"),
            lambda: memory.record("trace", "x", session_id="s1", embedding=[1.0]),
            lambda: memory.archive("x" * 20_000_000, session_id="s1"),
            lambda: memory.touch([]),
            lambda: memory.credit([uuid4()]),
            lambda: memory.forget(),
            lambda: memory.retrieve([], "m"),
        ):
            with pytest.raises(ForgettingError) as said:
                wrong()
            assert len(str(said.value).splitlines()) == 1
    assert store.dump("evidence") == before


def test_an_unknown_tenant_is_refused_and_leaves_no_connection(
    places: Addresses, store: Store
) -> None:
    with pytest.raises(UnknownTenant):
        client(places, "nobody")
    sessions = store.rows(
        "SELECT count(*) AS n FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename = 'forgetting_runtime'"
    )
    assert sessions[0]["n"] <= 1, "the test's own"


def test_what_the_package_exports_is_what_its_page_needs() -> None:
    assert set(forgetting_assets.__all__) >= {"Client", "ForgettingError"}
    for name in forgetting_assets.__all__:
        assert (getattr(forgetting_assets, name).__doc__ or "").strip()
    verbs = re.findall(r"^\| (\w+) \| `forgetting evidence", PAGE, re.MULTILINE)
    assert len(verbs) == 9
    for verb in set(verbs) - {"regrets"}:
        assert hasattr(Client, verb)


def test_importing_the_package_prints_nothing_and_starts_nothing() -> None:
    said = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", "import forgetting_assets"],
        capture_output=True,
        cwd="/",
        env={"PYTHONPATH": str(PROJECT)},
        timeout=60,
        check=True,
    )
    assert (said.stdout, said.stderr) == (b"", b"")


def test_the_example_of_the_page_runs(
    places: Addresses, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tenant()
    monkeypatch.setenv("DATABASE_URL", places.memory.render_as_string(hide_password=False))
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "docs/evidence.md", "exec"), {})
    content, counts = printed.getvalue().split("\n\n")
    assert content == "SELECT 1;"
    assert ast.literal_eval(counts) == {
        "archive_block": {"hot": 1, "archived": 0},
        "trace": {"hot": 1, "archived": 0},
    }
    rows = store.rows("SELECT kind, success_count FROM evidence ORDER BY kind")
    assert rows == [
        {"kind": "archive_block", "success_count": 0},
        {"kind": "trace", "success_count": 1},
    ]


def test_the_example_line_of_the_page_is_a_record() -> None:
    [line] = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert EvidenceRecord.model_validate_json(line).occurred_at == datetime(
        2026, 8, 30, 9, tzinfo=UTC
    )
    assert set(json.loads(line)) == {
        name for name, field in EvidenceRecord.model_fields.items() if field.is_required()
    }
    assert DAY.isoformat() > json.loads(line)["occurred_at"]
