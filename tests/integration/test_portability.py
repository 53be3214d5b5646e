"""A tenant as a file and back: every row, every byte, and no way in for what must not be there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from forgetting_assets import erasure, portability
from forgetting_assets.store import tenant_rows, tenants
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.errors import ExportRefused, InvariantViolated, RestoreRefused, UnknownTenant
from tests.lives import Life, live
from tests.support import TODAY, Pass, Store


@pytest.fixture
def acme(store: Store) -> Life:
    return live(store)


def everything(store: Store, *, but: Life | None = None) -> dict[str, list[str]]:
    """Every byte of every table that holds tenants' rows, those of one tenant left out."""
    with store.owner.begin() as connection:
        names = [each.name for each in tenant_rows.tables(connection)]
    held = store.dump(*names)
    if but is None:
        return held
    return {
        name: [row for row in rows if str(but.user_id) not in row] for name, rows in held.items()
    }


def away(store: Store, places: Addresses, life: Life, path: Path) -> None:
    """Export a tenant and take it out of the database."""
    portability.export(store.database, life.slug, path)
    erasure.erase_rows(places.admin, tenants.find(store.database, life.slug))


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_whole_life_goes_out_and_back_in_to_the_last_byte(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    live(store, "globex", "another's")
    before = everything(store)
    first, second = tmp_path / "first", tmp_path / "second"
    away(store, places, acme, first)
    assert everything(store) == everything(store, but=acme) != before
    done = portability.restore(places.admin, first)
    assert (done.header.slug, done.not_granted) == ("acme", [])
    assert everything(store) == before, "generated columns and each other tenant included"
    portability.export(store.database, "acme", second)
    assert second.read_bytes() == first.read_bytes()


def test_the_file_has_every_row_of_every_table_and_its_owner_alone_may_read_it(
    store: Store, acme: Life, tmp_path: Path
) -> None:
    live(store, "globex", "another's")
    path = tmp_path / "acme.jsonl"
    done = portability.export(store.database, "acme", path)
    header, *rows = lines_of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert header["rows"] == dict(done.header.rows)
    assert len(rows) == done.header.total
    assert all(header["rows"].values()), "each table has a row in this test"
    assert {str(acme.user_id)} == {
        each["row"].get("user_id", each["row"]["id"] if each["table"] == "public.users" else None)
        for each in rows
    }
    assert "another's" not in path.read_text(encoding="utf-8")
    assert done.unrestorable == []
    assert os.listdir(tmp_path) == ["acme.jsonl"]


def test_every_table_with_a_tenant_can_be_exported_erased_and_restored(store: Store) -> None:
    with store.owner.begin() as connection:
        listed = [each.name for each in tenant_rows.tables(connection)]
    asked = store.rows(
        """
        SELECT format('%I.%I', table_schema, table_name) AS name,
            bool_or(is_identity = 'YES' OR column_default LIKE 'nextval%') AS counted,
            bool_and(has_column_privilege(:role, format('%I.%I', table_schema, table_name),
                column_name, 'SELECT')) AS readable
        FROM information_schema.columns INNER JOIN information_schema.tables
            USING (table_schema, table_name)
        WHERE table_type = 'BASE TABLE'
            AND table_schema NOT IN ('pg_catalog', 'information_schema')
        GROUP BY table_schema, table_name
        HAVING bool_or(column_name = 'user_id') OR table_name = 'users'
        """,
        role=RUNTIME_ROLE,
    )
    assert sorted(listed) == sorted(row["name"] for row in asked), "a table needs a primary key"
    assert [row["name"] for row in asked if not row["readable"]] == [], "the runtime role exports"
    assert [row["name"] for row in asked if row["counted"]] == [], "a sequence is not restored"
    assert listed[0] == "public.users"


def test_an_export_sees_one_moment_and_holds_few_rows_at_once(
    store: Store, acme: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = tenant_rows.read

    def interrupted(connection: Any, table: Any, user_id: Any) -> Any:
        store.memory(acme.user_id, f"written while {table.name} is read")
        return reading(connection, table, user_id)

    monkeypatch.setattr(tenant_rows, "read", interrupted)
    path = tmp_path / "acme.jsonl"
    done = portability.export(store.database, "acme", path)
    assert len(lines_of(path)) - 1 == done.header.total
    assert "written while" not in path.read_text(encoding="utf-8")


def test_no_file_is_overwritten_half_written_or_made_for_nobody(
    store: Store, acme: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "acme.jsonl"
    path.write_text("mine")
    with pytest.raises(ExportRefused, match="is there already: name another file, or add --force"):
        portability.export(store.database, "acme", path)
    with pytest.raises(ExportRefused, match="is a folder"):
        portability.export(store.database, "acme", tmp_path, force=True)
    with pytest.raises(ExportRefused, match="cannot be written"):
        portability.export(store.database, "acme", tmp_path / "nowhere" / "file")
    with pytest.raises(UnknownTenant):
        portability.export(store.database, "globex", tmp_path / "globex")

    def broken(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tenant_rows, "read", broken)
    with pytest.raises(ExportRefused, match="No space left on device"):
        portability.export(store.database, "acme", path, force=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["acme.jsonl"]


def test_force_overwrites(store: Store, acme: Life, tmp_path: Path) -> None:
    path = tmp_path / "acme.jsonl"
    path.write_text("mine")
    path.chmod(0o644)
    portability.export(store.database, "acme", path, force=True)
    assert lines_of(path)[0]["slug"] == "acme"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_restore_replaces_nobody(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    path = tmp_path / "acme.jsonl"
    portability.export(store.database, "acme", path)
    before = everything(store)
    with pytest.raises(RestoreRefused, match="There is a tenant acme already"):
        portability.restore(places.admin, path)
    store.execute("UPDATE tenants SET slug = 'renamed'")
    with pytest.raises(RestoreRefused, match="is there already, under another slug"):
        portability.restore(places.admin, path)
    store.execute("UPDATE tenants SET slug = 'acme'")
    assert everything(store) == before


Change = Callable[[list[Any]], object]


def of(table: str, lines: list[Any]) -> list[Any]:
    return [line["row"] for line in lines[1:] if line["table"] == table]


def without_last(lines: list[Any]) -> None:
    lines.pop()


def another_users(lines: list[Any]) -> None:
    of("public.llm_usage", lines)[0]["user_id"] = "OTHER"


def twice(lines: list[Any]) -> None:
    lines.append({"table": "public.llm_usage", "row": {**of("public.llm_usage", lines)[0]}})


def other_call(lines: list[Any]) -> None:
    call = dict(of("public.llm_usage", lines)[0], id=str(uuid4()), user_id="OTHER")
    place = max(n for n, line in enumerate(lines) if line.get("table") == "public.llm_usage")
    lines.insert(place + 1, {"table": "public.llm_usage", "row": call})


DAMAGE: dict[str, tuple[Change, str]] = {
    "a row is missing": (without_last, "does not have the rows that its first line counts"),
    "a row is there twice": (twice, "llm_usage_pkey"),
    "a row is another tenant's": (another_users, "does not have the rows"),
    "a call of another tenant is added": (other_call, "does not have the rows"),
    "a line is no row": (lambda lines: lines.insert(3, {"row": {}}), "Line 4 of .* is not a table"),
    "a line is of no table": (
        lambda lines: lines.append({"table": "forgetting.token_rate", "row": {}}),
        "is of a table that holds no tenant's rows",
    ),
    "a parent comes after its child": (lambda lines: lines.append(lines.pop(1)), "_fkey"),
    "another format": (lambda lines: lines[0].update(format="x"), "does not begin as an export"),
    "another version": (lambda lines: lines[0].update(version=2), "does not begin as an export"),
    "an older schema": (
        lambda lines: lines[0].update(schema_revision="0009"),
        "was exported at schema 0009",
    ),
    "a demo": (lambda lines: lines[0].update(demo=True), "one is a demo"),
    "another slug": (lambda lines: lines[0].update(slug="other"), "holds another tenant"),
    "no slug": (lambda lines: lines[0].update(slug="NO|"), "cannot be used"),
    "a value that is none": (
        lambda lines: of("public.memories", lines)[0].update(created_at="when?"),
        "The database refused",
    ),
}


def test_a_damaged_file_is_refused_whole(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    globex = live(store, "globex", "another's")
    path = tmp_path / "acme.jsonl"
    away(store, places, acme, path)
    before, good = everything(store), lines_of(path)
    for name, (change, said) in DAMAGE.items():
        lines = json.loads(json.dumps(good))
        change(lines)
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        path.write_text(text.replace("OTHER", str(globex.user_id)), encoding="utf-8")
        with pytest.raises(RestoreRefused, match=said) as refused:
            portability.restore(places.admin, path)
        assert "quote" not in str(refused.value), name
        assert everything(store) == before, name
    for raw in (b"", b"{}\n", b"\xff\xfe\n", text.encode()[:-20]):
        path.write_bytes(raw)
        with pytest.raises(RestoreRefused):
            portability.restore(places.admin, path)
    with pytest.raises(RestoreRefused, match="cannot be read"):
        portability.restore(places.admin, tmp_path / "nowhere")
    assert everything(store) == before


def archive_what_was_used(lines: list[Any]) -> None:
    for row in of("forgetting.archival_sweep", lines):
        row["success_count"] = 3


def archive_without_a_sweep(lines: list[Any]) -> None:
    entry = next(row for row in of("public.evidence", lines) if row["archived_at"] is None)
    entry.update(
        kind="trace",
        occurred_at="2026-01-01T00:00:00+00:00",
        archived_at="2026-08-01T00:00:00+00:00",
        archived_run_date="2026-07-31",
    )


def other_bytes(lines: list[Any]) -> None:
    ids = {row["evidence_id"] for row in of("forgetting.archival_sweep", lines)}
    next(row for row in of("public.evidence", lines) if row["id"] in ids)["content"] = "other"


def name_an_event(table: str, column: str) -> Change:
    def change(lines: list[Any]) -> None:
        event = next(r for r in of("public.memories", lines) if r["memory_type"] == "event")
        of(table, lines)[0][column] = event["id"]

    return change


COLLAPSES: dict[str, tuple[Change, type[Exception], str]] = {
    "used evidence was archived": (archive_what_was_used, InvariantViolated, "still of use"),
    "no sweep archived it": (archive_without_a_sweep, InvariantViolated, "no sweep archived it"),
    "other bytes": (other_bytes, InvariantViolated, "bytes it was archived with"),
    **{
        f"an event in {table}": (
            name_an_event(table, column),
            RestoreRefused,
            "zero episodic collapse: an event or a note may not enter",
        )
        for table, column in (
            ("public.retention_proposals", "memory_id"),
            ("forgetting.stale_candidates", "memory_id"),
            ("forgetting.judged_verdicts", "memory_id"),
            ("forgetting.conflict_pairs", "older_id"),
            ("forgetting.mined_memories", "memory_id"),
        )
    },
}


def test_no_collapse_comes_in_with_a_file(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    path = tmp_path / "acme.jsonl"
    away(store, places, acme, path)
    good = lines_of(path)
    for name, (change, error, said) in COLLAPSES.items():
        lines = json.loads(json.dumps(good))
        change(lines)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        with pytest.raises(error, match=said):
            portability.restore(places.admin, path)
        assert store.rows("SELECT 1 FROM users") == [], name


def test_an_export_says_when_no_restore_would_take_it(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    path = tmp_path / "acme.jsonl"
    [row] = store.rows(
        "SELECT memory_id FROM forgetting.conflict_pairs cp "
        "JOIN LATERAL (SELECT cp.older_id AS memory_id) x ON TRUE LIMIT 1"
    )
    store.execute("UPDATE memories SET memory_type = 'note' WHERE id = :id", id=row["memory_id"])
    done = portability.export(store.database, "acme", path)
    assert f"{row['memory_id']} in conflict_pairs" in done.unrestorable
    erasure.erase_rows(places.admin, tenants.find(store.database, "acme"))
    with pytest.raises(RestoreRefused, match="an event or a note may not enter"):
        portability.restore(places.admin, path)


def test_a_grant_to_a_login_that_is_no_analyst_here_is_left_out(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    store.execute(
        "INSERT INTO analytics.tenant_grants VALUES ('gone_with_the_server', :u, :now), "
        "('forgetting_runtime', :u, :now)",
        u=acme.user_id,
        now=TODAY,
    )
    path = tmp_path / "acme.jsonl"
    away(store, places, acme, path)
    done = portability.restore(places.admin, path)
    assert sorted(done.not_granted) == ["forgetting_runtime", "gone_with_the_server"]
    assert store.rows("SELECT grantee::text FROM analytics.tenant_grants") == [
        {"grantee": "forgetting_analyst"}
    ]


def test_a_restored_tenant_goes_on_where_it_was(
    store: Store, places: Addresses, acme: Life, tmp_path: Path
) -> None:
    away(store, places, acme, tmp_path / "acme.jsonl")
    portability.restore(places.admin, tmp_path / "acme.jsonl")
    work = Pass(store)
    work.candidates(store.partition())
    work.verdicts(store.partition())
    assert work.judge.calls == 0, "what was judged is not asked or paid for again"  # type: ignore[attr-defined]
