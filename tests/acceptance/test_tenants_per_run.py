"""A run over many tenants: each for itself, the invariant as plain to see as in a run of one."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import pytest
from dagster import AssetCheckKey, AssetKey
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator
from hypothesis import given
from hypothesis import strategies as st

from forgetting_assets import partitions
from forgetting_assets.runs import QUIET, reason
from forgetting_assets.schedules import nightly, requests
from forgetting_assets.store import tenants
from forgetting_assets.store.failures import failed_days
from resources.errors import GatewayRefused, GatewayUnavailable
from tests.graph import ASSETS, MARKER, Graph, evaluations, failures, furnish, steps
from tests.support import DAY, TODAY, Store, TestJudge, make_policy, say

pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

SLUGS = ("acme", "globex", "initech", "umbrella")
NO_FLOOR = "no-floor"


def furnish_all(store: Store) -> dict[str, UUID]:
    return {slug: furnish(store, slug) for slug in SLUGS}


def refused(store: Store, user_id: UUID) -> None:
    """Make a tenant's conflict_pairs fail: a vector of a model that has no floor."""
    store.execute(
        "UPDATE forgetting.embedding_models SET embedding_model = :model WHERE user_id = :id",
        model=NO_FLOOR,
        id=user_id,
    )


def materialized(graph: Graph, asset: str) -> set[str]:
    """The tenants whose partition Dagster counts as materialized."""
    keys = graph.instance.get_materialized_partitions(AssetKey(asset))
    return {str(key).split("|")[1] for key in keys}


def said(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, dict[str, Any]]:
    """What a run said of each tenant's partition."""
    return {
        str(event.partition).split("|")[1]: {
            name: value.value
            for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(asset)
    }


def statuses(graph: Graph, asset: str, check: str) -> dict[str, bool]:
    """What Dagster keeps of a check, by tenant."""
    history = graph.instance.event_log_storage.get_asset_check_execution_history(
        AssetCheckKey(AssetKey(asset), check), limit=50
    )
    return {
        str(record.partition).split("|")[1]: record.status.value == "SUCCEEDED"
        for record in reversed(history)  # the newest last, which stands
        if record.partition
    }


def test_every_tenant_of_a_range_gets_its_own_figures_rows_and_check_results(
    graph: Graph, store: Store
) -> None:
    ids = furnish_all(store)
    store.memory(ids["globex"], "one more", topic="one more", age=70)
    graph.judge = TestJudge.that(say("archive"))
    result = graph.run_range(SLUGS)
    assert result.success, failures(result)
    for asset in ASSETS:
        assert materialized(graph, asset) == set(SLUGS), asset
    found = said(result, "stale_candidates")
    assert found["globex"]["stale_candidates"] == found["acme"]["stale_candidates"] + 1
    assert {found[slug]["dagster/partition_row_count"] for slug in SLUGS} == {
        row["n"]
        for row in store.rows(
            "SELECT count(*) AS n FROM forgetting.stale_candidates GROUP BY user_id"
        )
    }
    assert all(evaluations(result).values())
    (table,) = (
        each.metadata["tenants"]
        for each in result.get_asset_check_evaluations()
        if (each.asset_key, each.check_name)
        == (AssetKey("conflict_pairs"), "zero_episodic_collapse")
    )
    assert isinstance(table, dg.TableMetadataValue)
    assert [(row.data["tenant"], row.data["violations"]) for row in table.records] == [
        (slug, 0) for slug in SLUGS
    ]
    kept = store.rows("SELECT user_id, passed FROM forgetting.invariant_results")
    assert {row["user_id"] for row in kept} == set(ids.values())
    assert all(row["passed"] for row in kept)
    assert store.rows("SELECT * FROM forgetting.partition_failures") == []


def test_a_range_writes_what_one_run_a_tenant_writes(graph: Graph, store: Store) -> None:
    """The same tables, whichever way: the second way finds nothing left to do or to pay."""
    furnish_all(store)
    graph.judge = TestJudge.that(say("archive"))
    for slug in SLUGS:
        assert graph.run(slug).success
    tables = ("conflict_pairs", "stale_candidates", "judged_verdicts", "archival_sweep")
    before = {name: store.dump(f"forgetting.{name}") for name in tables}
    proposals, calls = store.dump("retention_proposals"), graph.judge.calls
    result = graph.run_range(SLUGS)
    assert result.success, failures(result)
    assert {name: store.dump(f"forgetting.{name}") for name in tables} == before
    assert store.dump("retention_proposals") == proposals
    assert graph.judge.calls == calls


def test_a_tenant_that_fails_is_left_alone_and_named_and_the_others_finish(
    graph: Graph, store: Store
) -> None:
    ids = furnish_all(store)
    refused(store, ids["globex"])
    graph.judge = TestJudge.that(say("archive"))
    graph.policy = make_policy()
    result = graph.run_range(SLUGS)
    assert not result.success, "a run that left somebody behind is not a success"
    assert steps(result, "STEP_FAILURE") == ["memory_health_every_tenant_finished"]
    others = set(SLUGS) - {"globex"}
    for asset in ASSETS:
        assert materialized(graph, asset) == others, asset

    said = reason(result.all_events)
    assert said is not None
    assert said.startswith("1 of 4 partitions failed, the others finished: globex on")
    assert "in conflict_pairs" in said
    assert NO_FLOOR in said, "our own sentence says which model has no floor"
    (row,) = store.rows("SELECT * FROM forgetting.partition_failures")
    assert (row["user_id"], row["run_date"], row["run_id"]) == (
        ids["globex"],
        DAY,
        result.run_id,
    )
    assert (row["step"], row["asset"], row["failed_at"]) == (
        "conflict_pairs",
        "conflict_pairs",
        TODAY,
    )
    for table in ("stale_candidates", "judged_verdicts"):
        found = store.rows(f"SELECT DISTINCT user_id FROM forgetting.{table}")
        assert {each["user_id"] for each in found} == {ids[slug] for slug in others}, table
    assert statuses(graph, "memory_health", "every_tenant_finished") == {"globex": False}

    # Mended and run again, it stands no longer.
    store.execute("UPDATE forgetting.embedding_models SET embedding_model = 'test-embedding'")
    assert graph.run_range(SLUGS).success
    assert statuses(graph, "memory_health", "every_tenant_finished") == {"globex": True}
    assert store.rows("SELECT * FROM forgetting.partition_failures") == []
    assert materialized(graph, "memory_health") == set(SLUGS)


@pytest.mark.parametrize("asset", ["conflict_pairs", "judged_verdicts", "archival_sweep"])
def test_a_collapse_stops_its_tenant_and_is_an_error_of_its_partition_and_of_the_run(
    graph: Graph, store: Store, asset: str
) -> None:
    ids = furnish_all(store)
    graph.judge = TestJudge.that(say("archive"))
    collapse(store, asset, ids["initech"])
    result = graph.run_range(SLUGS)
    assert not result.success
    assert "initech" in str(reason(result.all_events))
    assert "zero_episodic_collapse" in str(reason(result.all_events))
    assert statuses(graph, asset, "zero_episodic_collapse") == {"initech": False}
    assert evaluations(result)[(asset, "zero_episodic_collapse")] is False
    red = [
        each
        for each in result.get_asset_check_evaluations()
        if each.check_name == "zero_episodic_collapse" and not each.passed and each.partition
    ]
    assert [each.severity for each in red] == [dg.AssetCheckSeverity.ERROR]
    assert red[0].metadata["reasons"].value
    after = ASSETS[ASSETS.index(asset) + 1 :]
    for later in after:
        # Health does not depend on the sweep, in a run of one tenant neither.
        stopped = set() if asset == "archival_sweep" else {"initech"}
        assert materialized(graph, later) == set(SLUGS) - stopped, later
    (row,) = store.rows("SELECT * FROM forgetting.partition_failures")
    assert (row["user_id"], row["step"]) == (ids["initech"], f"{asset}_zero_episodic_collapse")
    kept = store.rows("SELECT * FROM forgetting.invariant_results WHERE NOT passed")
    assert {(row["user_id"], row["asset"], row["check_name"]) for row in kept} == {
        (ids["initech"], asset, "zero_episodic_collapse"),
        (ids["initech"], "memory_health", "every_tenant_finished"),
    }


UNLOGGED = """
    UPDATE evidence SET archived_at = new.archived_at, archived_run_date = new.run_date
    WHERE archived_at IS NULL
"""
COLLAPSES = {
    "conflict_pairs": (
        "forgetting.conflict_pairs",
        "UPDATE memories SET memory_type = 'note' WHERE id = new.newer_id",
    ),
    "judged_verdicts": (
        "forgetting.judged_verdicts",
        "UPDATE memories SET memory_type = 'note' WHERE id = new.memory_id",
    ),
    "archival_sweep": (
        "forgetting.archival_sweep",
        UNLOGGED,
    ),
}


def collapse(store: Store, asset: str, user_id: UUID) -> None:
    """Break the invariant for one tenant, by a trigger that runs when its asset commits."""
    table, action = COLLAPSES[asset]
    store.execute(
        f"""
        CREATE FUNCTION forgetting.sabotage() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            IF new.user_id = '{user_id}' THEN {action}; END IF;
            RETURN NULL;
        END
        $body$;
        CREATE CONSTRAINT TRIGGER sabotage AFTER INSERT ON {table}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forgetting.sabotage()
        """
    )


def test_a_foreign_error_is_kept_by_its_class_and_quotes_nothing(
    graph: Graph, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forgetting_assets.store import candidates

    furnish_all(store)
    real = candidates.select

    def breaks(database: Any, partition: Any, *rest: Any) -> Any:
        if partition.tenant.slug == "acme":
            raise KeyError(MARKER)
        return real(database, partition, *rest)

    monkeypatch.setattr(candidates, "select", breaks)
    graph.judge = TestJudge.that(say("archive"))
    result = graph.run_range(SLUGS)
    (row,) = store.rows("SELECT step, reason FROM forgetting.partition_failures")
    assert row["step"] == "stale_candidates"
    assert re.fullmatch(r"KeyError at test_tenants_per_run\.py:\d+\.", row["reason"])
    alone = graph.run("acme")
    assert not alone.success
    assert str(reason(alone.all_events)).startswith("stale_candidates: KeyError at")
    for run in (result, alone):
        events = "".join(str(entry) for entry in graph.instance.all_logs(run.run_id))
        assert MARKER not in events


def test_another_run_of_the_failed_partition_meanwhile_hides_nothing(
    graph: Graph, store: Store
) -> None:
    """The operator runs the tenant again while the range still goes, and it fails again."""
    ids = furnish_all(store)
    refused(store, ids["globex"])

    def again(call: int) -> None:
        if call == 1:
            assert not Graph(store, graph.instance).run("globex").success

    graph.judge = TestJudge.that(say("archive"), before=again)
    result = graph.run_range(SLUGS)
    assert not result.success
    assert "globex" in str(reason(result.all_events))
    rows = store.rows("SELECT run_id FROM forgetting.partition_failures")
    assert len(rows) == 2, "each run wrote down its own"
    for table in ("stale_candidates", "judged_verdicts"):
        found = store.rows(f"SELECT DISTINCT user_id FROM forgetting.{table}")
        assert ids["globex"] not in {each["user_id"] for each in found}, table


def test_who_failed_and_opted_out_meanwhile_is_still_named(graph: Graph, store: Store) -> None:
    ids = furnish_all(store)
    refused(store, ids["globex"])

    def leave(call: int) -> None:
        tenants.consent(store.database, "globex", judgment=False, archival=False)

    graph.judge = TestJudge.that(say("archive"), before=leave)
    result = graph.run_range(SLUGS)
    assert not result.success
    assert "globex" in str(reason(result.all_events))


def test_a_failure_stands_until_its_step_has_succeeded(
    graph: Graph, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not until it starts: a run that is killed in it has mended nothing."""
    from forgetting_assets.store import pairs

    ids = furnish_all(store)
    refused(store, ids["globex"])
    assert not graph.run("globex").success

    def killed(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pairs, "select", killed)
        with contextlib.suppress(BaseException):
            graph.run("globex")
    assert len(store.rows("SELECT 1 FROM forgetting.partition_failures")) == 1
    assert [str(day) for day in failed_days(store.database, ids["globex"])] == [str(DAY)]


def test_who_lies_in_a_range_and_agreed_to_nothing_or_is_gone_is_passed_over(
    graph: Graph, store: Store
) -> None:
    ids = furnish_all(store)
    tenants.consent(store.database, "globex", judgment=False, archival=False)
    store.retire("initech")
    graph.instance.add_dynamic_partitions("tenants", ["acme", "gone", *SLUGS[1:]])
    graph.judge = TestJudge.that(say("archive"))
    result = graph.run_range(["acme", "umbrella"])
    assert result.success, failures(result)
    for asset in ASSETS:
        assert materialized(graph, asset) == {"acme", "umbrella"}, asset
    read = store.rows("SELECT DISTINCT user_id FROM forgetting.memory_health")
    assert {row["user_id"] for row in read} == {ids["acme"], ids["umbrella"]}


def test_a_run_executed_again_from_its_failure_is_not_green_by_forgetting_the_first(
    graph: Graph, store: Store
) -> None:
    ids = furnish_all(store)
    refused(store, ids["globex"])
    graph.judge = TestJudge.that(say("archive"))
    first = graph.run_range(SLUGS)
    assert not first.success
    job = graph.defs.resolve_job_def("forgetting_pass")
    last = job.get_subset(
        asset_check_selection={AssetCheckKey(AssetKey("memory_health"), "every_tenant_finished")},
        asset_selection=set(),
    )
    again = graph.instance.create_run_for_job(
        job_def=last,
        run_config=QUIET,
        tags=partitions.range_tags(DAY, SLUGS),
        parent_run_id=first.run_id,
        root_run_id=first.run_id,
    )
    list(execute_run_iterator(InMemoryJob(last), again, graph.instance))
    ended = graph.instance.get_run_by_id(again.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.FAILURE


def test_a_range_made_by_hand_is_refused_before_anything_is_read(
    graph: Graph, store: Store
) -> None:
    furnish_all(store)
    graph.instance.add_dynamic_partitions("tenants", list(SLUGS))
    tags = partitions.range_tags(DAY, SLUGS)
    result = graph.defs.resolve_job_def("forgetting_pass").execute_in_process(
        instance=graph.instance,
        tags={name: value for name, value in tags.items() if "range" in name},
        raise_on_error=False,
        run_config=QUIET,
    )
    assert not result.success
    assert "FORGETTING_TENANTS_PER_RUN" in str(reason(result.all_events))
    assert store.rows("SELECT * FROM forgetting.stale_candidates") == []


def test_a_judge_that_is_away_costs_a_range_its_retry_time_once(graph: Graph, store: Store) -> None:
    furnish_all(store)
    graph.policy = make_policy(retry_seconds=0)
    asked = failing(graph, GatewayUnavailable("No answer."))
    result = graph.run_range(SLUGS)
    assert result.success, failures(result)
    assert len(asked) == 1
    found = said(result, "judged_verdicts")
    assert all(each["partial"] and each["items_left"] == each["items"] for each in found.values())
    assert materialized(graph, "archival_sweep") == set(SLUGS)


def test_a_judge_that_is_broken_is_not_asked_for_every_tenant(graph: Graph, store: Store) -> None:
    furnish_all(store)
    asked = failing(graph, GatewayRefused("The key is refused."))
    result = graph.run_range(SLUGS)
    assert not result.success
    assert len(asked) == 3
    reasons = store.rows("SELECT reason FROM forgetting.partition_failures ORDER BY 1")
    assert len(reasons) == len(SLUGS)
    assert sum("in a row" in row["reason"] for row in reasons) == 1


def failing(graph: Graph, error: Exception) -> list[int]:
    """A judge that fails every call; the calls so far."""
    asked: list[int] = []

    def fail(call: int) -> None:
        asked.append(call)
        raise error

    graph.judge = TestJudge.that(say("keep"), before=fail)
    return asked


# --- what the schedule asks for -------------------------------------------------------------------


@given(
    agrees=st.lists(st.booleans(), min_size=1, max_size=60),
    per_run=st.integers(1, 70),
)
def test_the_schedule_reaches_each_tenant_that_agreed_once_in_as_few_runs_as_it_may(
    agrees: list[bool], per_run: int
) -> None:
    known = [f"tenant-{number}" for number in range(len(agrees))]
    agreed = [slug for slug, yes in zip(known, agrees, strict=True) if yes]
    asked = list(requests(DAY, agreed, per_run))
    found = [[slug for slug in reached(each, known) if slug in agreed] for each in asked]
    assert [slug for slugs in found for slug in slugs] == agreed
    assert all(len(slugs) <= per_run for slugs in found)
    assert len(asked) == -(-len(agreed) // per_run)
    assert len({request.run_key for request in asked}) == len(asked)


def test_the_schedules_range_is_one_that_dagster_runs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for by a tick, in Dagster's order of the tenants, and run with its tags alone."""
    monkeypatch.setenv("FORGETTING_TENANTS_PER_RUN", "3")
    ids = furnish_all(store)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_dynamic_partitions("tenants", ["umbrella", "acme", "initech", "globex"])
        graph = Graph(store, instance)
        with dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2026, 9, 1, 4, 30, tzinfo=UTC),
            resources={"database": store.database, "flag": graph.flag},
            repository_def=graph.defs.get_repository_def(),
        ) as context:
            asked = nightly.evaluate_tick(context).run_requests or []
        assert [reached(each, ["umbrella", "acme", "initech", "globex"]) for each in asked] == [
            ["umbrella", "acme", "initech"],
            ["globex"],
        ]
        result = graph.defs.resolve_job_def("forgetting_pass").execute_in_process(
            instance=instance, tags=dict(asked[0].tags), raise_on_error=False, run_config=QUIET
        )
        assert result.success, failures(result)
    measured = store.rows("SELECT user_id FROM forgetting.memory_health")
    assert {row["user_id"] for row in measured} == set(ids.values()) - {ids["globex"]}


def reached(request: dg.RunRequest, known: list[str]) -> list[str]:
    """The tenants that a request reaches, in order."""
    if request.partition_key:
        return [request.partition_key.split("|")[1]]
    start, end = (
        request.tags[f"dagster/asset_partition_range_{edge}"].split("|")[1]
        for edge in ("start", "end")
    )
    return known[known.index(start) : known.index(end) + 1]
