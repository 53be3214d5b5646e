"""The asset graph: what Dagster shows, what a run materializes, and what stops it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster_shared.serdes import serialize_value

import sql
from forgetting_assets import partitions
from forgetting_assets.definitions import build_defs
from forgetting_assets.schedules import nightly
from forgetting_assets.sensors import tenant_registry
from forgetting_assets.store import evidence, tenants
from resources import thresholds
from resources.database import Database
from resources.flag import Flag
from resources.gateway import JevGateway
from tests.graph import (
    ASSETS,
    BOTH,
    MARKER,
    Graph,
    evaluations,
    failures,
    furnish,
    materialized,
    steps,
)
from tests.support import (
    DAY,
    TODAY,
    Store,
    TestJudge,
    ago,
    make_policy,
    record_verdict,
    say,
    vector,
)

# Dagster's own uses of its own deprecated names.
pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

COLLAPSE = "zero_episodic_collapse"
FINISHED = ("memory_health", "every_tenant_finished")
BLOCKING = [
    *((asset, COLLAPSE) for asset in ASSETS if asset != "memory_health"),
    ("archival_sweep", "archive_is_conserved"),
    ("judged_verdicts", "blast_radius"),
    FINISHED,
]
NOWHERE = "postgresql://nobody@/nothing?host=/nonexistent"
OFF = Flag()


@contextmanager
def statements() -> Iterator[set[str]]:
    """The named statements of sql/queries that run inside, such as ``pairs.mine_pairs``."""
    named = {
        id(statement): f"{path.stem}.{name}"
        for path in sorted((sql.ROOT / "queries").glob("*.sql"))
        for name, statement in sql.load(path.stem).items()
    }
    seen: set[str] = set()

    def note(_connection: sa.Connection, statement: object, *_rest: object) -> None:
        if id(statement) in named:
            seen.add(named[id(statement)])

    sa.event.listen(sa.Engine, "before_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, "before_execute", note)


def nouns(seen: set[str]) -> set[str]:
    return {name.split(".")[0] for name in seen}


READS_MEMORIES = {
    "candidates",
    "pairs",
    "verdicts",
    "proposals",
    "evidence",
    "memories",
    "review",
    "health",
}


# --- what Dagster shows ---------------------------------------------------------------------------


def test_the_asset_graph_is_this() -> None:
    graph = build_defs().resolve_asset_graph()
    shown = {
        key.to_user_string(): {
            "deps": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            "group": graph.get(key).group_name,
            "kinds": sorted(graph.get(key).kinds),
            "layer": graph.get(key).tags["layer"],
            "owners": list(graph.get(key).owners),
            "pools": sorted(graph.get(key).pools or ()),
            "table": graph.get(key).metadata["dagster/table_name"],
            "partitions": graph.get(key).partitions_def == partitions.daily_tenant,
            "backfill": graph.get(key).backfill_policy,
        }
        for key in graph.materializable_asset_keys
    }
    common = {
        "group": "forgetting",
        "owners": ["team:memory-platform"],
        "partitions": True,
        "backfill": None,
    }
    sql_only = {"kinds": ["postgres", "sql"], "pools": []}
    assert shown == {
        "conflict_pairs": {
            **common,
            **sql_only,
            "deps": ["memories"],
            "layer": "candidates",
            "table": "forgetting.conflict_pairs",
        },
        "stale_candidates": {
            **common,
            **sql_only,
            "deps": ["conflict_pairs", "memories"],
            "layer": "candidates",
            "table": "forgetting.stale_candidates",
        },
        "judged_verdicts": {
            **common,
            "kinds": ["llm", "postgres"],
            "pools": ["judge_gateway"],
            "deps": ["conflict_pairs", "memories", "stale_candidates"],
            "layer": "verdicts",
            "table": "forgetting.judged_verdicts",
        },
        "retention_proposals": {
            **common,
            **sql_only,
            "deps": ["judged_verdicts"],
            "layer": "proposals",
            "table": "public.retention_proposals",
        },
        "archival_sweep": {
            **common,
            **sql_only,
            "deps": ["evidence", "retention_proposals"],
            "layer": "archive",
            "table": "forgetting.archival_sweep",
        },
        "memory_health": {
            **common,
            **sql_only,
            "deps": ["evidence", "memories", "retention_proposals"],
            "layer": "health",
            "table": "forgetting.memory_health",
        },
    }
    sources = graph.get_all_asset_keys() - graph.materializable_asset_keys
    assert {key.to_user_string() for key in sources} == {"memories", "evidence"}


def test_every_asset_that_names_a_memory_has_the_invariant_as_a_blocking_check() -> None:
    graph = build_defs().resolve_asset_graph()
    checks = {
        (key.asset_key.to_user_string(), key.name): graph.get(key) for key in graph.asset_check_keys
    }
    assert sorted(key for key, check in checks.items() if check.blocking) == sorted(BLOCKING)
    assert [key for key, check in checks.items() if not check.blocking] == [
        ("judged_verdicts", "every_item_is_judged")
    ]
    for key, check in checks.items():
        assert check.partitions_def == partitions.daily_tenant, key
        assert check.description, key


def test_everything_that_dagster_shows_is_described() -> None:
    defs = build_defs()
    graph = defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        assert (graph.get(key).description or "").endswith("."), key
    for job in ("forgetting_pass", "sweep_alone"):
        assert (defs.resolve_job_def(job).description or "").endswith("."), job
    assert (nightly.description or "").endswith(".")
    assert (tenant_registry.description or "").endswith(".")


def test_the_jobs_are_the_whole_pass_and_the_sweep_with_its_health() -> None:
    repository = build_defs().get_repository_def()
    selected = {
        job.name: {node.name for node in job.nodes}
        for job in repository.get_all_jobs()
        if not job.name.startswith("__")
    }
    checks = {f"{asset}_{check}" for asset, check in BLOCKING}
    assert selected == {
        "forgetting_pass": {*ASSETS, *checks, "judged_verdicts_every_item_is_judged"},
        "sweep_alone": {
            "archival_sweep",
            "memory_health",
            *(name for name in checks if name.startswith(("archival_sweep", "memory_health"))),
        },
    }
    for name in selected:
        job = repository.get_job(name)
        assert job.partitions_def == partitions.daily_tenant
        assert job.executor_def is dg.in_process_executor


def test_the_schedule_is_half_past_four_utc_and_stopped_until_somebody_starts_it() -> None:
    repository = build_defs().get_repository_def()
    (schedule,) = repository.schedule_defs
    assert schedule.name == "nightly"
    assert schedule.cron_schedule == "30 4 * * *"
    assert schedule.execution_timezone == "UTC"
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert schedule.job_name == "forgetting_pass"


def test_the_sensor_runs_every_minute_by_itself() -> None:
    sensor = build_defs().get_repository_def().get_sensor_def("tenant_registry")
    assert sensor.minimum_interval_seconds == 60
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


def test_a_partition_is_a_day_and_a_tenant_in_this_order() -> None:
    assert str(partitions.key(date(2026, 11, 28), "acme")) == "2026-11-28|acme"
    assert partitions.daily_tenant.partition_dimension_names == ["date", "tenant"]
    assert partitions.daily.timezone == "UTC"
    assert partitions.daily.get_first_partition_key() == "2026-01-01"


def test_no_secret_is_in_what_the_ui_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.remote_representation.external_data import RepositorySnap

    monkeypatch.setenv("JEV_API_KEY", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://runtime:hunter2@db/memory")
    monkeypatch.setenv("DATABASE_ADMIN_URL", "postgresql://owner:hunter2@db/memory")
    monkeypatch.setenv("JEV_BASE_URL", "http://judge.invalid")
    shown = serialize_value(RepositorySnap.from_def(build_defs().get_repository_def()))
    assert "hunter2" not in shown
    assert "http://judge.invalid" in shown, "the configuration of a resource is shown"


# --- flags, consent and retirement ----------------------------------------------------------------


def test_with_the_flags_off_a_run_asks_nobody_and_succeeds_with_its_steps_skipped(
    graph: Graph,
) -> None:
    graph.flag = OFF
    graph.database = Database(url=NOWHERE)
    graph.gateway = JevGateway()
    with statements() as seen:
        result = graph.run()
    assert result.success, failures(result)
    assert materialized(result) == {}
    assert evaluations(result) == {}
    assert seen == set()
    assert steps(result, "STEP_SUCCESS") == ["conflict_pairs"], "which says why it does nothing"
    assert len(steps(result, "STEP_SKIPPED")) == len(ASSETS) + len(BLOCKING)
    said = [entry.message for entry in graph.instance.all_logs(result.run_id)]
    assert "FORGETTING_PASS_ENABLED is off: nothing was read." in said

    graph.flag = BOTH
    result = graph.run()
    assert not result.success, "positive control: the same run asks with the flags on"
    assert "DATABASE_URL" in failures(result)


@pytest.mark.parametrize("asset", ASSETS)
def test_with_the_flags_off_each_asset_alone_asks_nobody(graph: Graph, asset: str) -> None:
    graph.flag = OFF
    graph.database = Database(url=NOWHERE)
    graph.gateway = JevGateway()
    with statements() as seen:
        result = graph.run(alone=asset)
    assert result.success
    assert materialized(result) == {}
    assert steps(result, "STEP_START") == [asset]
    assert seen == set()


def test_with_only_the_archive_flag_off_the_sweep_alone_is_skipped(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.flag = Flag(pass_enabled=True)
    with statements() as seen:
        result = graph.run()
    assert result.success
    assert sorted(materialized(result)) == sorted(set(ASSETS) - {"archival_sweep"})
    assert "evidence" not in nouns(seen)
    assert store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL") == []
    assert graph.run(job="sweep_alone").success
    assert store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL") == []

    graph.flag = Flag(archive_enabled=True)
    assert graph.run(job="sweep_alone").success
    assert len(store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL")) == 1


def test_a_tenant_that_opted_in_to_nothing_gets_empty_partitions_and_no_memory_is_read(
    graph: Graph, store: Store
) -> None:
    furnish(store, judgment=False, archival=False)
    with statements() as seen:
        result = graph.run()
    assert result.success, failures(result)
    said = materialized(result)
    assert {asset: said[asset]["dagster/partition_row_count"] for asset in said} == dict.fromkeys(
        ASSETS, 0
    )
    assert not nouns(seen) & READS_MEMORIES
    assert graph.judge.calls == 0
    assert store.rows("SELECT * FROM forgetting.stale_candidates") == []
    assert store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL") == []

    furnish(store, "globex")
    with statements() as seen:
        assert graph.run("globex").success
    assert nouns(seen) >= {"candidates", "pairs", "verdicts", "proposals", "tier", "health"}
    assert graph.judge.calls == 1


def test_judgment_and_archival_are_agreed_to_apart(graph: Graph, store: Store) -> None:
    furnish(store, "judged", archival=False)
    furnish(store, "swept", judgment=False)
    judged, swept = materialized(graph.run("judged")), materialized(graph.run("swept"))
    assert judged["judged_verdicts"]["dagster/partition_row_count"] == 3
    assert judged["archival_sweep"]["dagster/partition_row_count"] == 0
    assert swept["judged_verdicts"]["dagster/partition_row_count"] == 0
    assert swept["archival_sweep"]["dagster/partition_row_count"] == 1


def test_a_retired_tenant_is_skipped_with_a_line_in_the_log(graph: Graph, store: Store) -> None:
    furnish(store)
    store.retire()
    before = store.dump("memories", "evidence")
    with statements() as seen:
        result = graph.run()
    assert result.success, failures(result)
    assert materialized(result) == {}
    assert evaluations(result) == {}
    assert not nouns(seen) & READS_MEMORIES
    assert store.dump("memories", "evidence") == before
    said = [entry.message for entry in graph.instance.all_logs(result.run_id)]
    assert "acme is retired: skipped." in said
    assert graph.run(job="sweep_alone").success
    assert store.dump("memories", "evidence") == before


def test_a_tenant_that_the_registry_does_not_know_fails_the_run(graph: Graph, store: Store) -> None:
    store.tenant("acme")
    result = graph.run("stranger")
    assert not result.success
    assert "There is no tenant stranger" in failures(result)
    assert materialized(result) == {}


def test_a_day_that_has_not_ended_fails_the_run(graph: Graph, store: Store) -> None:
    furnish(store)
    result = graph.run(day=TODAY.date())
    assert not result.success
    assert "2026-09-01 has not ended in UTC" in failures(result)
    assert materialized(result) == {}


# --- a whole pass ---------------------------------------------------------------------------------


def test_a_pass_materializes_every_asset_and_evaluates_every_check_for_its_partition(
    graph: Graph, store: Store
) -> None:
    acme = furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    result = graph.run()
    assert result.success, failures(result)
    key = f"{DAY}|acme"
    events = result.get_asset_materialization_events()
    assert [(e.asset_key.to_user_string(), e.partition) for e in events if e.asset_key] == [
        (asset, key) for asset in ASSETS
    ]
    found = result.get_asset_check_evaluations()
    assert sorted((e.asset_key.to_user_string(), e.check_name) for e in found if e.blocking) == (
        sorted(BLOCKING)
    )
    for evaluation in found:
        assert evaluation.passed, evaluation
        assert evaluation.partition == key
        assert evaluation.metadata["partitions"].value == 1
    run = graph.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["dagster/partition"] == key
    assert run.tags["dagster/partition/tenant"] == "acme"

    kept = store.rows(
        "SELECT asset, check_name, passed, reasons, run_id, run_date, user_id, checked_at "
        "FROM forgetting.invariant_results"
    )
    assert {(row["asset"], row["check_name"]) for row in kept} >= set(BLOCKING)
    for row in kept:
        assert row["passed"]
        assert row["reasons"] == []
        assert (row["run_id"], row["run_date"]) == (result.run_id, DAY)
        assert (row["user_id"], row["checked_at"]) == (acme, TODAY)

    proposals = store.rows("SELECT action, status FROM retention_proposals ORDER BY 1")
    archive = {"action": "archive", "status": "proposed"}
    assert proposals == [archive, archive, {"action": "keep", "status": "dismissed"}]
    assert len(store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL")) == 1


def test_a_partition_materialized_twice_gives_the_same_rows_and_bills_nothing(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    first = materialized(graph.run())
    tables = [
        *("memories", "evidence", "retention_proposals", "llm_usage", "budget_reservations"),
        *("forgetting.conflict_pairs", "forgetting.stale_candidates"),
        *("forgetting.judged_verdicts", "forgetting.archival_sweep"),
    ]
    before = store.dump(*tables)
    assert all(before[table] for table in tables if table != "budget_reservations")
    assert first["judged_verdicts"]["calls"] == 1

    second = materialized(graph.run())
    assert store.dump(*tables) == before
    assert graph.judge.calls == 1
    assert second["judged_verdicts"]["calls"] == 0
    assert second["judged_verdicts"]["spend_usd"] == 0
    assert {asset: said["dagster/partition_row_count"] for asset, said in second.items()} == {
        asset: said["dagster/partition_row_count"] for asset, said in first.items()
    }


def test_one_tenants_run_touches_no_other(graph: Graph, store: Store) -> None:
    furnish(store, "acme")
    globex = furnish(store, "globex")
    graph.judge = TestJudge.that(say("archive"))
    assert graph.run("acme").success
    for table in (
        "forgetting.stale_candidates",
        "retention_proposals",
        "forgetting.archival_sweep",
    ):
        owners = {row["user_id"] for row in store.rows(f"SELECT user_id FROM {table}")}
        assert len(owners) == 1
        assert globex not in owners
    assert not any("globex" in state for state in graph.judge.states)


TABLES = {
    "conflict_pairs": "forgetting.conflict_pairs",
    "stale_candidates": "forgetting.stale_candidates",
    "judged_verdicts": "forgetting.judged_verdicts",
    "retention_proposals": "public.retention_proposals",
    "archival_sweep": "forgetting.archival_sweep",
    "memory_health": "forgetting.memory_health",
}


def test_the_metadata_says_how_many_rows_of_which_columns_from_where(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    said = materialized(graph.run())
    for asset, table in TABLES.items():
        (counted,) = store.rows(f"SELECT count(*) AS n FROM {table}")
        assert said[asset]["dagster/partition_row_count"] == counted["n"] > 0, asset
        schema = said[asset]["dagster/column_schema"]
        columns = store.rows(
            "SELECT attname AS name, format_type(atttypid, atttypmod) AS type, "
            "attnotnull AS required FROM pg_attribute "
            "WHERE attrelid = CAST(:t AS regclass) AND attnum > 0 ORDER BY attnum",
            t=table,
        )
        assert [(c.name, c.type, not c.constraints.nullable) for c in schema.columns] == [
            (c["name"], c["type"], c["required"]) for c in columns
        ]
        assert all((column.description or "").endswith(".") for column in schema.columns), asset


def test_the_lineage_names_columns_that_exist(graph: Graph, store: Store) -> None:
    furnish(store)
    said = materialized(graph.run())
    columns = {
        asset: {column.name for column in said[asset]["dagster/column_schema"].columns}
        for asset in ASSETS
    }
    traced = {asset for asset in ASSETS if "dagster/column_lineage" in said[asset]}
    assert traced == set(ASSETS)
    for source in ("memories", "evidence"):
        found = store.rows(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name = :source",
            source=source,
        )
        columns[source] = {row["column_name"] for row in found}
    parents = build_defs().resolve_asset_graph()
    for asset in traced:
        above = {parent.to_user_string() for parent in parents.get(dg.AssetKey(asset)).parent_keys}
        for column, sources in said[asset]["dagster/column_lineage"].deps_by_column.items():
            assert column in columns[asset]
            for source in sources:
                assert source.asset_key.to_user_string() in above
                assert source.column_name in columns[source.asset_key.to_user_string()]


def test_the_preview_shows_ids_and_figures_of_ten_rows_at_most(graph: Graph, store: Store) -> None:
    acme = furnish(store)
    for _ in range(12):
        store.memory(acme, topic=MARKER)
    said = materialized(graph.run())
    singles = said["stale_candidates"]["preview"].records
    assert said["stale_candidates"]["stale_candidates"] == 15
    assert len(singles) == 10
    ids = {str(row["id"]) for row in store.rows("SELECT id FROM memories")}
    for row in singles:
        assert row.data["memory_id"] in ids
        assert set(row.data) == {"memory_id", "memory_type", "freshness", "newer", "in_pair"}
    (pair,) = said["conflict_pairs"]["preview"].records
    assert {pair.data["older_id"], pair.data["newer_id"]} <= ids
    assert pair.data["similarity"] == pytest.approx(0.9, abs=0.001)


def test_an_empty_partition_still_has_its_metadata(graph: Graph, store: Store) -> None:
    store.tenant("acme")
    result = graph.run()
    assert result.success, failures(result)
    said = materialized(result)
    counted = {asset: said[asset]["dagster/partition_row_count"] for asset in said}
    assert counted == dict.fromkeys(ASSETS, 0) | {"memory_health": 1}, "that there is nothing"
    assert {said["memory_health"][name] for name in FIGURES} == {0}


# --- how the memory is doing ----------------------------------------------------------------------

FIGURES = {
    *("live_memories", "stale_memories", "archived_memories", "superseded_memories"),
    *("hot_evidence", "idle_evidence", "archived_evidence", "archive_share"),
    *("open_proposals", "oldest_open_days", "unresolved_conflicts", "regretted"),
}


def test_health_is_measured_after_the_sweep_in_figures_that_dagster_plots(
    graph: Graph, store: Store
) -> None:
    acme = furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    waiting = store.memory(acme, age=3)
    record_verdict(store, acme, waiting, verdict="archive", proposal="proposed", judged_at=ago(1.5))
    result = graph.run()
    assert result.success, failures(result)
    said = materialized(result)["memory_health"]
    assert {name for name in said if not name.startswith("dagster/")} == FIGURES
    for event in result.asset_materializations_for_node("memory_health"):
        for name in FIGURES:
            assert isinstance(event.metadata[name], dg.IntMetadataValue | dg.FloatMetadataValue)
    assert {name: said[name] for name in FIGURES} == {
        "live_memories": 7,
        "stale_memories": 3,
        "archived_memories": 0,
        "superseded_memories": 0,
        "hot_evidence": 1,
        "idle_evidence": 0,
        "archived_evidence": 1,
        "archive_share": 0.5,
        "open_proposals": 3,
        "oldest_open_days": 2.0,
        "unresolved_conflicts": 0,
        "regretted": 0,
    }


def test_health_materialized_twice_is_one_row_with_the_later_figures(
    graph: Graph, store: Store
) -> None:
    acme = furnish(store)
    assert graph.run().success
    store.memory(acme, age=1)
    result = graph.run(alone="memory_health")
    assert result.success, failures(result)
    (row,) = store.rows("SELECT * FROM forgetting.memory_health")
    assert (row["user_id"], row["run_date"], row["measured_at"]) == (acme, DAY, TODAY)
    assert row["live_memories"] == materialized(result)["memory_health"]["live_memories"] == 7


def test_an_older_partition_has_a_row_of_its_own_with_the_figures_of_now(
    graph: Graph, store: Store
) -> None:
    acme = furnish(store)
    for day in (date(2026, 8, 29), DAY):
        assert graph.run(alone="memory_health", day=day).success
        store.memory(acme, age=1)
    rows = store.rows("SELECT * FROM forgetting.memory_health ORDER BY run_date")
    assert [row["live_memories"] for row in rows] == [6, 7]
    assert {row["measured_at"] for row in rows} == {TODAY}


@pytest.mark.parametrize(
    "flag", [Flag(pass_enabled=True), Flag(archive_enabled=True), Flag(unforget=True)]
)
def test_health_alone_is_measured_with_either_flag_on(
    graph: Graph, store: Store, flag: Flag
) -> None:
    furnish(store)
    graph.flag = flag
    assert list(materialized(graph.run(alone="memory_health"))) == ["memory_health"]
    assert len(store.rows("SELECT * FROM forgetting.memory_health")) == 1


@pytest.mark.parametrize("agreed", [{"judgment": False}, {"archival": False}])
def test_health_is_measured_of_who_agreed_to_anything(
    graph: Graph, store: Store, agreed: dict[str, bool]
) -> None:
    furnish(store, **agreed)
    assert materialized(graph.run())["memory_health"]["live_memories"] == 6


def test_of_who_agreed_to_nothing_there_is_no_figure_and_no_row(graph: Graph, store: Store) -> None:
    furnish(store, judgment=False, archival=False)
    said = materialized(graph.run())["memory_health"]
    assert said["dagster/partition_row_count"] == 0
    assert not FIGURES & set(said)
    assert store.rows("SELECT * FROM forgetting.memory_health") == []


# --- the invariant stops the run ------------------------------------------------------------------


def plant(store: Store, table: str, action: str) -> None:
    """Break the invariant by a trigger that runs when the asset of ``table`` commits.

    The runtime role runs it: nothing but the invariant's own checks stands in its way.
    """
    store.execute(
        f"""
        CREATE FUNCTION forgetting.sabotage() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            {action};
            RETURN NULL;
        END
        $body$
        """
    )
    store.execute(
        f"""
        CREATE CONSTRAINT TRIGGER sabotage AFTER INSERT ON {table}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forgetting.sabotage()
        """
    )


def reclassify(column: str) -> str:
    return f"UPDATE memories SET memory_type = 'note' WHERE id = new.{column}"


UNLOGGED = """
    UPDATE evidence SET archived_at = new.archived_at, archived_run_date = new.run_date
    WHERE archived_at IS NULL
"""
UUID_IN_TEXT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PLANTED = {
    "conflict_pairs": (COLLAPSE, reclassify("newer_id"), "of type note, and a side of a pair"),
    "stale_candidates": (
        COLLAPSE,
        reclassify("memory_id"),
        "of type note, and a candidate or its neighbour",
    ),
    "judged_verdicts": (COLLAPSE, reclassify("memory_id"), "of type note, and named by a verdict"),
    "retention_proposals": (
        COLLAPSE,
        reclassify("memory_id"),
        "of type note, and named by a proposal that is proposed: reject proposal ID",
    ),
    "archival_sweep": (
        COLLAPSE,
        UNLOGGED,
        "evidence is archived, but no sweep archived it",
    ),
    "archival_sweep, its bytes": (
        "archive_is_conserved",
        "UPDATE evidence SET content = 'summary' WHERE id = new.evidence_id",
        "an archived entry does not have the bytes it was archived with",
    ),
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_violation_fails_the_run_at_the_blocking_check_and_nothing_after_it_runs(
    graph: Graph, store: Store, where: str
) -> None:
    check, action, reason = PLANTED[where]
    asset = where.split(",")[0]
    acme = furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    plant(store, TABLES[asset], action)
    result = graph.run()
    assert not result.success
    reached: tuple[str, ...] = ASSETS[: ASSETS.index(asset) + 1]
    if asset == "archival_sweep":
        reached = (*reached, "memory_health")  # which counts, and does not depend on the sweep
    assert [name for name in steps(result, "STEP_START") if name in ASSETS] == list(reached)
    assert list(materialized(result)) == list(reached)
    assert f"{asset}_{check}" in steps(result, "STEP_FAILURE")
    found = {key: passed for key, passed in evaluations(result).items() if not passed}
    # Health is measured although the sweep failed, and after it this is seen.
    left_behind = {FINISHED: False} if asset == "archival_sweep" else {}
    assert found == {(asset, check): False, **left_behind}

    (evaluation, *_) = (e for e in result.get_asset_check_evaluations() if not e.passed)
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    reasons = evaluation.metadata["reasons"].value
    assert isinstance(reasons, Sequence)
    assert evaluation.metadata["violations"].value == len(reasons) > 0
    (row,) = store.rows(
        "SELECT user_id, run_date, asset, check_name, reasons, run_id "
        "FROM forgetting.invariant_results WHERE NOT passed AND check_name <> :finished",
        finished=FINISHED[1],
    )
    assert (row["user_id"], row["run_date"], row["run_id"]) == (acme, DAY, result.run_id)
    assert (row["asset"], row["check_name"]) == (asset, check)
    assert sorted(f"{each['id']}: {each['reason']}" for each in row["reasons"]) == sorted(reasons)
    assert {UUID_IN_TEXT.sub("ID", each["reason"]) for each in row["reasons"]} == {reason}
    known = store.rows("SELECT id FROM memories UNION ALL SELECT id FROM evidence")
    assert {UUID(each["id"]) for each in row["reasons"]} <= {each["id"] for each in known}

    if asset in ("conflict_pairs", "stale_candidates"):
        assert graph.judge.calls == 0, "nothing was sent"
    if asset != "archival_sweep":
        assert store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL") == []


def test_a_violation_in_a_proposals_own_transaction_writes_no_proposal(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    store.execute(
        "CREATE FUNCTION forgetting.sabotage() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN "
        f"{reclassify('memory_id')}; RETURN NULL; END $body$"
    )
    store.execute(
        "CREATE TRIGGER sabotage AFTER INSERT ON retention_proposals FOR EACH ROW "
        "EXECUTE FUNCTION forgetting.sabotage()"
    )
    memories = store.dump("memories")
    result = graph.run()
    assert not result.success
    assert "Zero episodic collapse does not hold for acme" in failures(result)
    assert store.rows("SELECT * FROM retention_proposals") == []
    assert store.dump("memories") == memories
    assert "archival_sweep" not in materialized(result)


def test_a_violation_of_one_tenant_stops_no_other(graph: Graph, store: Store) -> None:
    furnish(store, "acme")
    globex = furnish(store, "globex")
    plant(
        store,
        "forgetting.stale_candidates",
        "UPDATE memories SET memory_type = 'note' WHERE id = new.memory_id "
        f"AND user_id = '{globex}'",
    )
    assert graph.run("acme").success
    assert not graph.run("globex").success
    assert graph.run("acme").success
    failed = store.rows(
        "SELECT DISTINCT user_id FROM forgetting.invariant_results WHERE NOT passed"
    )
    assert failed == [{"user_id": globex}]


def test_the_sweep_alone_fails_by_itself_when_the_queue_names_an_episode(
    graph: Graph, store: Store
) -> None:
    acme = store.tenant("acme")
    memory = store.memory(acme, MARKER)
    record_verdict(store, acme, memory, verdict="archive", proposal="proposed")
    store.evidence(acme, age=90)
    store.execute("UPDATE memories SET memory_type = 'note'")
    before = store.dump("evidence", "forgetting.archival_sweep")
    result = graph.run(job="sweep_alone")
    assert not result.success
    assert "Zero episodic collapse does not hold for acme" in failures(result)
    assert str(memory) in failures(result)
    assert store.dump("evidence", "forgetting.archival_sweep") == before

    store.execute("UPDATE memories SET memory_type = 'fact'")
    assert graph.run(job="sweep_alone").success
    assert len(store.rows("SELECT * FROM forgetting.archival_sweep")) == 1


def test_the_sweep_alone_fails_by_itself_when_evidence_left_the_hot_tier_unlogged(
    graph: Graph, store: Store
) -> None:
    acme = store.tenant("acme")
    gone = store.evidence(acme, age=90, content=MARKER)
    store.evidence(acme, age=80)
    store.execute(
        "UPDATE evidence SET archived_at = :now, archived_run_date = :day WHERE id = :id",
        now=TODAY,
        day=DAY,
        id=gone,
    )
    before = store.dump("evidence", "forgetting.archival_sweep")
    result = graph.run(job="sweep_alone")
    assert not result.success
    assert str(gone) in failures(result)
    assert store.dump("evidence", "forgetting.archival_sweep") == before
    assert list(materialized(result)) == ["memory_health"]


def test_a_failed_check_of_one_run_does_not_let_the_sweep_of_another_run_pass(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    plant(store, "public.retention_proposals", reclassify("memory_id"))
    assert not graph.run().success
    assert not graph.run(job="sweep_alone").success
    assert store.rows("SELECT 1 FROM evidence WHERE archived_at IS NOT NULL") == []


def test_a_large_blast_radius_stops_the_run_before_anything_is_proposed(
    graph: Graph, store: Store
) -> None:
    acme = furnish(store)
    for _ in range(25):
        store.memory(acme)
    graph.judge = TestJudge.that(say("archive"))
    result = graph.run()
    assert not result.success
    assert {key: passed for key, passed in evaluations(result).items() if not passed} == {
        ("judged_verdicts", "blast_radius"): False
    }
    (evaluation,) = (e for e in result.get_asset_check_evaluations() if not e.passed)
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert "retention_proposals" not in materialized(result)
    assert store.rows("SELECT 1 FROM retention_proposals") == []

    # A blocking check gates one run alone, so the asset verifies it again for itself.
    alone = graph.run(alone="retention_proposals")
    assert not alone.success
    assert "FORGETTING_BLAST_RADIUS" in failures(alone)
    assert store.rows("SELECT 1 FROM retention_proposals") == []
    kept = store.rows(
        "SELECT asset, passed FROM forgetting.invariant_results WHERE check_name = 'blast_radius' "
        "AND NOT passed ORDER BY asset"
    )
    assert [row["asset"] for row in kept] == ["judged_verdicts", "judged_verdicts"]


def calibrated(folder: Path, monkeypatch: pytest.MonkeyPatch, **of: Any) -> None:
    """Thresholds of `test-model` in a folder of the test's own: only archive has one."""
    monkeypatch.setattr(thresholds, "FOLDER", folder)
    monkeypatch.setattr(thresholds, "CALIBRATION", folder / "fixture")
    (folder / "fixture").write_bytes(b"items")
    selected = {
        "model": "test-model",
        "fixture_sha256": hashlib.sha256(b"items").hexdigest(),
        "label_checksum": "0" * 64,
        "source": "endpoint",
        "thresholds": {"archive": 0.95, "supersede": None, "conflict": None},
    }
    thresholds.path_of("test-model").write_text(json.dumps(selected | of))


def test_the_pass_takes_the_thresholds_that_the_eval_selected_and_says_so(
    graph: Graph, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.policy = make_policy(thresholds_of="test-model")
    graph.judge = TestJudge.that(say("supersede_older", 0.99))
    calibrated(tmp_path, monkeypatch)
    store.pair(store.tenant())
    result = graph.run()
    assert result.success
    said = materialized(result)
    for asset in ("judged_verdicts", "retention_proposals"):
        assert said[asset]["thresholds_from"] == "eval/thresholds/test-model.json"
    assert said["judged_verdicts"]["verdicts_supersede"] == 1
    # A sure verdict, but its action has no threshold, so it proposes nothing.
    assert said["retention_proposals"]["proposed"] == 0
    assert said["retention_proposals"]["dismissed"] == 1


def test_without_a_file_the_thresholds_are_the_starting_values(graph: Graph, store: Store) -> None:
    graph.judge = TestJudge.that(say("supersede_older", 0.85))
    graph.policy = make_policy(thresholds_of="test-model")
    store.pair(store.tenant())
    said = materialized(graph.run())
    assert said["retention_proposals"]["thresholds_from"] == "starting values"
    assert said["retention_proposals"]["proposed_supersede"] == 1


@pytest.mark.parametrize("alone", [None, "judged_verdicts"])
def test_thresholds_of_another_fixture_stop_the_pass_before_anything_is_asked_and_not_the_ui(
    graph: Graph,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: str | None,
) -> None:
    graph.policy = make_policy(thresholds_of="test-model")
    store.pair(store.tenant())
    assert graph.run(alone="conflict_pairs").success
    assert graph.run(alone="stale_candidates").success
    calibrated(tmp_path, monkeypatch, fixture_sha256="1" * 64)
    dg.Definitions.validate_loadable(graph.defs)
    result = graph.run(alone=alone)
    assert not result.success
    assert "were selected on another fixture" in failures(result)
    assert graph.judge.calls == 0
    # What needs no thresholds goes on, and so does a pass that is off.
    assert graph.run(job="sweep_alone").success
    graph.flag = OFF
    assert graph.run().success


def test_the_models_name_comes_from_the_gateway_that_is_wired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of() -> object:
        return build_defs().resources["policy"].thresholds_of  # type: ignore[index,union-attr]

    monkeypatch.setenv("JEV_MODEL", "jev-1.13.0")
    assert of() == "jev-1.13.0"
    monkeypatch.setenv("FORGETTING_GATEWAY", "scripted")
    assert of() == "scripted"


def test_a_partial_pass_succeeds_and_warns_of_what_is_left(graph: Graph, store: Store) -> None:
    acme = furnish(store)
    for _ in range(14):
        store.memory(acme)
    graph.judge = TestJudge.that(say("keep"))
    graph.cap_usd = 0.0105
    result = graph.run()
    assert result.success, failures(result)
    (evaluation,) = (e for e in result.get_asset_check_evaluations() if not e.passed)
    assert evaluation.check_name == "every_item_is_judged"
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    said = materialized(result)["judged_verdicts"]
    assert said["partial"] is True
    assert said["items_left"] == evaluation.metadata["violations"].value > 0
    assert "retention_proposals" in materialized(result)


def test_under_unforget_a_sweep_archives_nothing_and_says_what_it_brought_back(
    graph: Graph, store: Store
) -> None:
    acme = store.tenant(archival=False)
    entries = [store.evidence(acme, age=30 + n) for n in range(3)]
    tenants.consent(store.database, "acme", archival=True)
    assert graph.run(job="sweep_alone").success
    tenants.consent(store.database, "acme", archival=False)
    store.evidence(acme, age=400)

    graph.flag = Flag(unforget=True)
    graph.policy = make_policy(sweep_batch=2)
    for revived, remaining in ((2, 1), (1, 0)):
        result = graph.run(job="sweep_alone")
        assert result.success, failures(result)
        said = materialized(result)["archival_sweep"]
        assert (said["revived"], said["archived_remaining"]) == (revived, remaining)
        assert (said["archived"], said["revival_batch"]) == (0, 2)
    assert len(store.rows("SELECT 1 FROM hot_evidence")) == len(entries) + 1


@pytest.mark.parametrize("job", ["forgetting_pass", "sweep_alone"])
def test_health_is_counted_last_although_it_does_not_depend_on_the_sweep(
    graph: Graph, store: Store, job: str
) -> None:
    store.evidence(store.tenant(), age=90)
    result = graph.run(job=job)
    assert steps(result, "STEP_START")[-2:] == [
        "memory_health",
        "memory_health_every_tenant_finished",
    ]
    assert materialized(result)["memory_health"]["archived_evidence"] == 1


def test_br_28_a_warm_up_archives_nothing_and_the_regret_rate_is_a_figure(
    graph: Graph, store: Store
) -> None:
    acme = store.tenant(tracked=1)
    ids = [store.evidence(acme) for _ in range(4)]
    said = materialized(graph.run(job="sweep_alone"))["archival_sweep"]
    assert (said["archived"], said["warming_up"], said["regretted"]) == (0, 1, 0)
    assert "regret_rate" not in said, "a share of nothing"
    tenants.consent(store.database, "acme", tracked_since=ago(30))
    said = materialized(graph.run(job="sweep_alone"))["archival_sweep"]
    assert (said["archived"], said["warming_up"], said["regret_rate"]) == (4, 0, 0.0)
    evidence.dereference(store.database, acme, ids[0], TODAY)
    said = materialized(graph.run(job="sweep_alone"))["archival_sweep"]
    assert (said["regretted"], said["regret_rate"]) == (1, 0.25)


# --- memory content stays in the store ------------------------------------------------------------


@contextmanager
def on_disk(folder: Path) -> Iterator[dg.DagsterInstance]:
    """An instance whose whole storage is files in a folder."""
    with dg.DagsterInstance.local_temp(
        str(folder), overrides={"telemetry": {"enabled": False}}
    ) as instance:
        yield instance


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_memory_content_is_in_any_event_log_or_metadata_of_a_run(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    acme = furnish(store)
    memory = store.memory(acme, MARKER, topic=MARKER, project=MARKER, age=400)
    store.evidence(acme, content=MARKER, age=400)
    with on_disk(tmp_path) as instance:
        graph = Graph(store, instance, TestJudge.that(say("archive")))
        good = graph.run()
        assert good.success, failures(good)
        assert any(MARKER in state for state in graph.judge.states), "the judge did read it"

        plant(store, "forgetting.stale_candidates", reclassify("memory_id"))
        bad = graph.run()
        assert not bad.success
        assert f"{memory}: of type note, and a candidate" in str(bad.get_asset_check_evaluations())

        store.execute("DROP FUNCTION forgetting.sabotage CASCADE")
        store.execute("UPDATE memories SET memory_type = 'fact' WHERE id = :id", id=memory)
        store.execute(
            "CREATE FUNCTION forgetting.chatter() RETURNS trigger LANGUAGE plpgsql AS $body$ "
            "BEGIN RAISE EXCEPTION 'cannot store %', (SELECT content FROM memories "
            "WHERE id = new.memory_id) USING DETAIL = (SELECT topic FROM memories "
            "WHERE id = new.memory_id); END $body$"
        )
        store.execute(
            "CREATE TRIGGER chatter BEFORE INSERT ON forgetting.stale_candidates "
            "FOR EACH ROW EXECUTE FUNCTION forgetting.chatter()"
        )
        talkative = graph.run()
        assert not talkative.success
        assert "The database refused a statement" in failures(talkative)

        logs = [
            serialize_value(entry)
            for result in (good, bad, talkative)
            for entry in instance.all_logs(result.run_id)
        ]
        assert len(logs) > 100
        runs = [serialize_value(run) for run in instance.get_runs()]
        assert len(runs) == 3
    stored = everything_in(tmp_path)
    printed = "".join(capfd.readouterr())
    assert str(memory) in "".join(logs)
    assert str(memory).encode() in stored, "the search finds what is there"
    for word in (MARKER, "violet"):
        assert word not in "".join(logs)
        assert word not in "".join(runs)
        assert word not in printed
        assert word.encode() not in stored


# --- the schedule and the sensor ------------------------------------------------------------------


@pytest.fixture
def kept(store: Store, tmp_path: Path) -> Iterator[Graph]:
    """The product on an instance on disk: a schedule's context opens its instance anew."""
    with on_disk(tmp_path) as instance:
        yield Graph(store, instance)


def tick(
    graph: Graph, database: Database | None = None, flag: Flag = BOTH, at: datetime | None = None
) -> Any:
    with dg.build_schedule_context(
        instance=graph.instance,
        scheduled_execution_time=at or datetime(2026, 9, 1, 4, 30, tzinfo=UTC),
        resources={"database": database or graph.store.database, "flag": flag},
        repository_def=graph.defs.get_repository_def(),
    ) as context:
        return nightly.evaluate_tick(context)


def test_the_schedule_asks_for_yesterdays_partition_of_each_tenant_that_opted_in_to_anything(
    kept: Graph, store: Store
) -> None:
    store.tenant("acme")
    store.tenant("judged", archival=False)
    store.tenant("swept", judgment=False)
    store.tenant("silent", judgment=False, archival=False)
    store.tenant("gone")
    store.retire("gone")
    store.tenant("brand-new")
    known = ["acme", "judged", "swept", "silent", "gone", "nobody"]
    kept.instance.add_dynamic_partitions("tenants", known)
    asked = tick(kept)
    assert [request.partition_key for request in asked.run_requests] == [
        "2026-08-31|acme",
        "2026-08-31|judged",
        "2026-08-31|swept",
    ], "brand-new waits for its partition, which the sensor adds"
    assert [request.run_key for request in asked.run_requests] == [
        request.partition_key for request in asked.run_requests
    ], "so that no tick runs a partition twice"


def test_the_schedule_asks_for_the_day_before_when_a_month_ends(kept: Graph, store: Store) -> None:
    store.tenant("acme")
    kept.instance.add_dynamic_partitions("tenants", ["acme"])
    asked = tick(kept, at=datetime(2026, 3, 1, 4, 30, tzinfo=UTC))
    assert [request.partition_key for request in asked.run_requests] == ["2026-02-28|acme"]


def test_the_schedule_with_the_flag_off_skips_and_asks_nobody(kept: Graph) -> None:
    with statements() as seen:
        skipped = tick(kept, Database(url=NOWHERE), OFF)
    assert skipped.run_requests == []
    assert skipped.skip_message == "FORGETTING_PASS_ENABLED is off: nothing was read."
    assert seen == set()


def test_the_schedule_without_a_tenant_that_agreed_skips_with_the_next_step(
    kept: Graph, store: Store
) -> None:
    store.tenant("silent", judgment=False, archival=False)
    kept.instance.add_dynamic_partitions("tenants", ["silent"])
    skipped = tick(kept)
    assert skipped.run_requests == []
    assert "`forgetting tenants list`" in skipped.skip_message


def sense(graph: Graph) -> Any:
    with dg.build_sensor_context(
        instance=graph.instance,
        resources={"database": graph.store.database},
        repository_def=graph.defs.get_repository_def(),
    ) as context:
        return tenant_registry.evaluate_tick(context)


def test_the_sensor_adds_tenants_and_never_removes_one(kept: Graph, store: Store) -> None:
    for slug in ("acme", "globex", "retired-early"):
        store.tenant(slug, judgment=False, archival=False)
    store.retire("retired-early")
    kept.instance.add_dynamic_partitions("tenants", ["ghost", "globex"])

    (request,) = sense(kept).dynamic_partitions_requests
    assert isinstance(request, dg.AddDynamicPartitionsRequest)
    assert (request.partitions_def_name, request.partition_keys) == ("tenants", ["acme"])
    kept.instance.add_dynamic_partitions("tenants", request.partition_keys)

    store.retire("acme")
    quiet = sense(kept)
    assert not quiet.dynamic_partitions_requests, "neither for the retired nor for the ghost"
    assert not quiet.run_requests
    assert quiet.skip_message == "Every tenant has its partition."
    assert set(kept.instance.get_dynamic_partitions("tenants")) == {"acme", "ghost", "globex"}


def test_a_tenant_that_is_only_imported_gets_a_partition_and_no_run(
    kept: Graph, store: Store
) -> None:
    store.tenant("acme", judgment=False, archival=False)
    (request,) = sense(kept).dynamic_partitions_requests
    kept.instance.add_dynamic_partitions("tenants", request.partition_keys)
    assert tick(kept).run_requests == []


def test_nothing_made_after_the_partitions_day_is_seen(graph: Graph, store: Store) -> None:
    acme = store.tenant("acme")
    old = store.memory(acme, age=90, embedding=vector(0))
    store.memory(acme, created_at=ago(-0.1), embedding=vector(5))
    said = materialized(graph.run())
    assert said["conflict_pairs"]["pairs"] == 0
    assert said["stale_candidates"]["stale_candidates"] == 1
    (single,) = said["stale_candidates"]["preview"].records
    assert single.data["memory_id"] == str(old)
