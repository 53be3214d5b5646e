"""Account deletion, through a real Dagster on PostgreSQL: nothing is left, nobody else notices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.scheduler.instigation import (
    DynamicPartitionsRequestResult,
    InstigatorType,
    TickData,
    TickStatus,
)

from forgetting_assets import erasure, partitions
from forgetting_assets.definitions import build_defs
from forgetting_assets.store import tenant_rows, tenants
from resources import migrations
from resources.addresses import Addresses
from resources.clock import Clock
from resources.database import Database, engine
from resources.errors import StoreRefused, TenantUnderWay
from resources.flag import Flag
from tests.lives import furnish, grow_old
from tests.support import DAY, TODAY, Store, TestJudge, by_topic, make_policy, say

# Dagster's own uses of its own deprecated names.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

MARKER = "Zebulon7Quill"
SLUG = "quagga-co"
BEGINS_LIKE_IT = "quagga-co-2"
"""Another tenant, whose slug begins with the erased one's."""


@dataclass
class World:
    """Two tenants, Dagster on PostgreSQL and a scripted judge."""

    store: Store
    places: Addresses
    instance: dg.DagsterInstance
    dagster: sa.Engine
    users: dict[str, Any] = field(default_factory=dict)

    def run(self, slug: str, **tags: str) -> str:
        """One whole pass; its run's id."""
        self.instance.add_dynamic_partitions("tenants", [slug])
        judge = TestJudge.that(by_topic({"archive": say("archive")}, say("supersede_older")))
        defs = build_defs(
            database=self.store.database,
            clock=Clock(fixed=TODAY.isoformat()),
            gateway=dg.ResourceDefinition.hardcoded_resource(judge),
            flag=Flag(pass_enabled=True, archive_enabled=False),
            policy=make_policy(shadow=True, blast_radius=1.0),
        )
        result = defs.resolve_job_def("forgetting_pass").execute_in_process(
            partition_key=partitions.key(DAY, slug), instance=self.instance, tags=tags
        )
        assert result.success
        return result.run_id

    def erase(self, slug: str = SLUG) -> tuple[int, int]:
        """Both parts, as the command does them."""
        erasure.require_idle(self.instance, slug)
        tenant = tenants.find(self.store.database, slug)
        rows = erasure.erase_rows(self.places.admin, tenant)
        return rows, erasure.erase_runs(self.instance, slug)

    def holds(self, *words: str) -> dict[str, list[str]]:
        """The tables of both databases, the planner's statistics among them, that hold a word."""
        sought = {word: re.compile(rf"{re.escape(word)}(?!-2)") for word in words}
        return {
            f"{name}: {table}": found
            for name, pool in (("ours", self.store.owner), ("dagster", self.dagster))
            for table, rows in every_row(pool).items()
            if (found := [word for word, form in sought.items() if form.search(rows)])
        }


def every_row(pool: sa.Engine) -> dict[str, str]:
    """Each table with each row as text; bytes also as the text that they may be."""
    with pool.begin() as connection:
        names = connection.exec_driver_sql(
            "SELECT c.oid::regclass::text FROM pg_class AS c INNER JOIN pg_namespace AS n "
            "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND (c.relname = 'pg_statistic' OR "
            "n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_toast')"
        ).scalars()
        held = {}
        for name in list(names):
            connection.exec_driver_sql("SET LOCAL bytea_output = 'escape'")
            rows = connection.exec_driver_sql(f"SELECT CAST(t AS text) FROM {name} AS t").scalars()
            held[name] = "\n".join(rows)
        return held


def mark_every_text(store: Store, user_id: Any) -> list[str]:
    """Write the marker into every column of the tenant's that can hold it; the columns."""
    columns = store.rows(
        """
        SELECT format('%I.%I', table_schema, table_name) AS tbl, column_name AS col, data_type
        FROM information_schema.columns INNER JOIN information_schema.tables
            USING (table_schema, table_name)
        WHERE table_type = 'BASE TABLE' AND is_generated = 'NEVER'
            AND table_schema IN ('public', 'forgetting', 'analytics')
            AND data_type IN ('text', 'jsonb', 'bytea', 'name')
        """
    )
    marked = []
    with store.owner.begin() as connection:
        tables = {each.name for each in tenant_rows.tables(connection)}
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for row in columns:
            if row["tbl"] not in tables or row["col"] == "slug":
                continue
            old = f"left(CAST({row['col']} AS text), 200)"
            text = f"'{MARKER}' || substr(md5({old}), 1, 8)"
            value = {
                "jsonb": f"jsonb_build_object({text}, {text})",
                "bytea": f"convert_to({text} || repeat('x', {24 - len(MARKER)}), 'UTF8')",
            }.get(row["data_type"], text)
            owner = "id" if row["tbl"] == "public.users" else "user_id"
            savepoint = connection.begin_nested()
            try:
                connection.execute(
                    sa.text(f"UPDATE {row['tbl']} SET {row['col']} = {value} WHERE {owner} = :u"),
                    {"u": user_id},
                )
                savepoint.commit()
                marked.append(f"{row['tbl']}.{row['col']}")
            except sa.exc.DBAPIError:
                savepoint.rollback()
    return marked


@pytest.fixture
def world(store: Store, places: Addresses, tmp_path: Path) -> Iterator[World]:
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    pool = engine(places.admin.set(database=places.dagster.database))
    url = places.dagster.set(drivername="postgresql+psycopg2")
    overrides: dg._core.instance.types.DagsterInstanceOverrides = {
        "storage": {"postgres": {"postgres_url": url.render_as_string(hide_password=False)}},
        "telemetry": {"enabled": False},
    }
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        built = World(store, places, instance, pool)
        for slug, text in ((SLUG, MARKER), (BEGINS_LIKE_IT, "another's")):
            built.users[slug] = furnish(store, slug, text)
        yield built
    pool.dispose()


def backfill(world: World, id_: str, status: BulkActionStatus, *slugs: str) -> None:
    """A backfill of one day of some tenants, as the daemon keeps it."""
    asked = PartitionBackfill.from_asset_partitions(
        backfill_id=id_,
        asset_graph=build_defs().resolve_asset_graph(),
        partition_names=[partitions.key(DAY, slug) for slug in slugs],
        asset_selection=[dg.AssetKey("conflict_pairs")],
        backfill_timestamp=TODAY.timestamp(),
        tags={},
        dynamic_partitions_store=world.instance,
        all_partitions=False,
        title=None,
        description=None,
        run_config=None,
    )
    world.instance.add_backfill(asked.with_status(status))


def tick(world: World) -> None:
    """What the sensor and the schedule leave of the night in which they met the tenant."""
    added = DynamicPartitionsRequestResult("tenants", [SLUG, BEGINS_LIKE_IT], None, [])
    world.instance.create_tick(
        TickData(
            instigator_origin_id="o",
            instigator_name="tenant_registry",
            instigator_type=InstigatorType.SENSOR,
            status=TickStatus.SUCCESS,
            timestamp=TODAY.timestamp(),
            selector_id="s",
            run_ids=[],
            run_keys=[partitions.key(DAY, SLUG), partitions.key(DAY, BEGINS_LIKE_IT)],
            dynamic_partitions_request_results=[added],
        )
    )


def range_run(world: World, run_id: str) -> None:
    """Make a finished run one over both tenants, with what such a run records of each."""
    for end, slug in (("start", SLUG), ("end", BEGINS_LIKE_IT)):
        tag = f"dagster/asset_partition_range_{end}"
        world.instance.add_run_tags(run_id, {tag: partitions.key(DAY, slug)})
    run = world.instance.get_run_by_id(run_id)
    assert run is not None
    world.instance.report_engine_event(f"{DAY}|{SLUG} and {DAY}|{BEGINS_LIKE_IT} begin", run)
    with world.dagster.begin() as connection:
        connection.exec_driver_sql("UPDATE event_logs SET run_id = %s WHERE run_id = ''", (run_id,))


def test_nothing_is_left_of_an_erased_tenant_and_nobody_else_notices(world: World) -> None:
    store, instance = world.store, world.instance
    for slug in (BEGINS_LIKE_IT, SLUG):
        instance.report_runless_asset_event(
            dg.AssetMaterialization("conflict_pairs", partition=partitions.key(DAY, slug))
        )
    shared = world.run(BEGINS_LIKE_IT)
    range_run(world, shared)
    of_the_tenant = world.run(SLUG)
    backfill(world, "done", BulkActionStatus.COMPLETED_SUCCESS, SLUG, BEGINS_LIKE_IT)
    tick(world)
    for slug, user in world.users.items():
        grow_old(store, user, slug, MARKER if slug == SLUG else "another's")
    marked = mark_every_text(store, world.users[SLUG])
    with store.owner.begin() as connection:
        tables = [each.name for each in tenant_rows.tables(connection)]
        connection.exec_driver_sql("ANALYZE")
    bare = tuple(f"{before}{SLUG}{after}" for before in " ,(" for after in " ,)")
    words = (MARKER, str(world.users[SLUG]), f'{SLUG}"', f"|{SLUG}", of_the_tenant, *bare)
    mine = str(world.users[BEGINS_LIKE_IT])
    kept = {t: [row for row in rows if mine in row] for t, rows in store.dump(*tables).items()}
    # The controls: what is searched for is there to be found.
    held = world.holds(*words)
    assert {"ours: pg_statistic", "ours: memories", "ours: tenants"} <= set(held)
    assert {
        f"dagster: {t}"
        for t in (
            "event_logs",
            "runs",
            "run_tags",
            "bulk_actions",
            "job_ticks",
            "asset_keys",
            "dynamic_partitions",
            "asset_event_tags",
            "asset_check_executions",
        )
    } <= set(held)
    assert len(marked) > 40, marked
    events_of_others = len(instance.all_logs(shared))

    rows, runs = world.erase()

    assert (rows > 50, runs) == (True, 1)
    assert world.holds(*words) == {}
    assert {t: rows for t, rows in store.dump(*tables).items() if any(rows)} == {
        t: rows for t, rows in kept.items() if rows
    }
    assert instance.get_dynamic_partitions("tenants") == [BEGINS_LIKE_IT]
    # The other tenant's materializations, the newest of them included, are what Dagster shows now.
    latest = instance.get_latest_materialization_event(dg.AssetKey("conflict_pairs"))
    assert latest is not None
    assert latest.asset_materialization is not None
    assert latest.asset_materialization.partition == partitions.key(DAY, BEGINS_LIKE_IT)
    # The runless event of each tenant was put into the shared run; the erased one's is gone.
    assert len(instance.all_logs(shared)) == events_of_others - 1
    assert instance.get_backfill("done") is not None
    assert erasure.erase_runs(instance, SLUG) == 0, "again, nothing is found"
    world.run(BEGINS_LIKE_IT)


def test_the_owner_need_not_be_a_superuser(world: World) -> None:
    store = world.store
    owner = f"owner_{os.getpid()}"
    with store.owner.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {owner} LOGIN")
        for each in tenant_rows.tables(connection):
            connection.exec_driver_sql(f"ALTER TABLE {each.name} OWNER TO {owner}")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA forgetting, analytics TO {owner}")
        connection.exec_driver_sql(f"GRANT SELECT ON forgetting.schema_version TO {owner}")
    try:
        assert world.places.admin is not None
        admin = world.places.admin.set(username=owner)
        assert erasure.erase_rows(admin, tenants.find(store.database, SLUG)) > 20
        assert [row["slug"] for row in store.rows("SELECT slug FROM tenants")] == [BEGINS_LIKE_IT]
        assert store.rows("SELECT DISTINCT user_id FROM memories") == [
            {"user_id": world.users[BEGINS_LIKE_IT]}
        ]
    finally:
        store.execute(f"REASSIGN OWNED BY {owner} TO postgres")
        store.execute(f"DROP OWNED BY {owner}")
        store.execute(f"DROP ROLE {owner}")


def test_the_runtime_role_erases_nobody(world: World, database: Database) -> None:
    before = world.store.dump("memories", "tenants", "users")
    with pytest.raises(StoreRefused, match="permission denied"):
        erasure.erase_rows(world.places.memory, tenants.find(database, SLUG))
    assert world.store.dump("memories", "tenants", "users") == before


def test_nothing_is_erased_while_a_run_or_a_backfill_of_the_tenant_is_under_way(
    world: World,
) -> None:
    instance = world.instance
    instance.add_dynamic_partitions("tenants", [SLUG, BEGINS_LIKE_IT])
    job = build_defs().resolve_job_def("forgetting_pass")
    ends = {f"dagster/asset_partition_range_{end}": f"{DAY}|{SLUG}" for end in ("start", "end")}
    for tags in ({"dagster/partition/tenant": SLUG}, ends):
        for status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED):
            run = instance.create_run_for_job(job, status=status, tags=tags)
            with pytest.raises(TenantUnderWay, match=f"The run {run.run_id} is under way"):
                erasure.require_idle(instance, SLUG)
            instance.report_run_canceled(run)
    others = {"dagster/partition/tenant": BEGINS_LIKE_IT}
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=others)
    backfill(world, "other", BulkActionStatus.REQUESTED, BEGINS_LIKE_IT)
    erasure.require_idle(instance, SLUG)
    backfill(world, "mine", BulkActionStatus.REQUESTED, BEGINS_LIKE_IT, SLUG)
    with pytest.raises(TenantUnderWay, match="The backfill mine is under way"):
        erasure.erase_runs(instance, SLUG)
    assert SLUG in instance.get_dynamic_partitions("tenants")


KILLED = """
import os, signal, sys
from forgetting_assets import erasure
from forgetting_assets.cli import main
erasure.erase_runs = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["forgetting", "tenants", "erase", *sys.argv[1:]]
main()
"""


def test_broken_off_between_its_two_parts_it_is_finished_by_asking_again(
    world: World, tmp_path: Path
) -> None:
    assert world.places.admin is not None
    world.run(SLUG)
    # As autovacuum does at some time: what the planner keeps of a table that is then emptied.
    pool = engine(world.places.dagster).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
    pool.dispose()
    assert "dagster: pg_statistic" in world.holds(f"|{SLUG}")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"},
        **world.places.environment(),
        "DATABASE_ADMIN_URL": world.places.admin.render_as_string(hide_password=False),
        "FORGETTING_HOME": str(tmp_path / "home"),
    }

    def erase(*program: str) -> subprocess.CompletedProcess[str]:
        command = [*program, SLUG, "--confirm", SLUG]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    assert erase(sys.executable, "-c", KILLED).returncode == -9
    assert "ours: memories" not in world.holds(str(world.users[SLUG]))
    assert "dagster: runs" in world.holds(f"|{SLUG}")
    said = erase(str(Path(sys.executable).parent / "forgetting"), "tenants", "erase")
    assert (said.returncode, said.stderr) == (0, ""), said.stderr
    assert said.stdout == f"{SLUG} is erased: 0 rows, 1 runs.\n"
    assert world.holds(f"|{SLUG}", f'{SLUG}"') == {}
