"""What a backfill has to do: which partitions are done, and which others will still be run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from uuid import uuid4

import dagster as dg
import pytest

from forgetting_assets import partitions
from forgetting_assets.backfill import Backfills, Following, Selection, State
from forgetting_assets.definitions import build_defs
from resources.flag import Flag
from tests.support import TODAY

SELECTION = Selection(("acme", "globex"), date(2026, 8, 30), date(2026, 8, 31))
KEY = "2026-08-30|acme"
ASSETS = (
    *("conflict_pairs", "stale_candidates", "judged_verdicts"),
    *("retention_proposals", "archival_sweep", "memory_health"),
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tenants", SELECTION.slugs)
        yield instance


def backfills_of(instance: dg.DagsterInstance, *, archive: bool = True) -> Backfills:
    flag = Flag(pass_enabled=True, archive_enabled=archive)
    return Backfills(instance, build_defs().resolve_asset_graph(), flag)


def materialize(instance: dg.DagsterInstance, *assets: str, key: str = KEY) -> None:
    for asset in assets:
        instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key))


def run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, key: str = KEY, **tags: str
) -> None:
    multi = partitions.daily_tenant.get_partition_key_from_str(key)
    tags = {**partitions.daily_tenant.get_tags_for_partition_key(multi), **tags}
    instance.add_run(dg.DagsterRun(job_name="pass", run_id=str(uuid4()), status=status, tags=tags))


def test_the_days_come_oldest_first_and_the_last_one_is_included() -> None:
    assert SELECTION.keys == [
        *("2026-08-30|acme", "2026-08-30|globex"),
        *("2026-08-31|acme", "2026-08-31|globex"),
    ]


def test_a_partition_is_done_when_each_asset_is_there_and_its_last_run_did_not_fail(
    instance: dg.DagsterInstance,
) -> None:
    backfills = backfills_of(instance)
    materialize(instance, *ASSETS[:-1])
    assert backfills.done(SELECTION.keys) == set()
    materialize(instance, ASSETS[-1])
    assert backfills.done(SELECTION.keys) == {KEY}
    run(instance, dg.DagsterRunStatus.FAILURE)
    assert backfills.done(SELECTION.keys) == set(), "a check failed after the last asset"
    run(instance, dg.DagsterRunStatus.SUCCESS)
    assert backfills.done(SELECTION.keys) == {KEY}


def test_a_sweep_whose_flag_is_off_is_not_waited_for(instance: dg.DagsterInstance) -> None:
    materialize(instance, *(set(ASSETS) - {"archival_sweep"}))
    assert backfills_of(instance).done([KEY]) == set()
    assert backfills_of(instance, archive=False).done([KEY]) == {KEY}


def test_what_an_unfinished_backfill_will_still_run_is_followed_and_what_failed_in_it_is_not(
    instance: dg.DagsterInstance,
) -> None:
    backfills = backfills_of(instance)
    assert backfills.under_way(SELECTION.keys, TODAY) == {}
    first = backfills.request(SELECTION, SELECTION.keys, TODAY)
    assert backfills.under_way(SELECTION.keys[:3], TODAY) == {first: {*SELECTION.keys[:3]}}

    mine = {"dagster/backfill": first}
    run(instance, dg.DagsterRunStatus.FAILURE, SELECTION.keys[0], **mine)
    run(instance, dg.DagsterRunStatus.SUCCESS, SELECTION.keys[1], **mine)
    run(instance, dg.DagsterRunStatus.STARTED, SELECTION.keys[2], **mine)
    assert backfills.under_way(SELECTION.keys, TODAY) == {first: {*SELECTION.keys[2:]}}


def test_a_backfill_without_the_sweep_does_not_cover_the_whole_pass(
    instance: dg.DagsterInstance,
) -> None:
    backfills_of(instance, archive=False).request(SELECTION, SELECTION.keys, TODAY)
    assert backfills_of(instance).under_way(SELECTION.keys, TODAY) == {}


def test_of_a_partition_that_is_requested_again_the_later_run_counts(
    instance: dg.DagsterInstance,
) -> None:
    run(instance, dg.DagsterRunStatus.FAILURE, **{"dagster/backfill": "first"})
    following = Following([KEY, "2026-08-31|acme"], ["first", "second"])
    following.look(instance, TODAY)
    assert following.state(KEY) is State.FAILED
    run(instance, dg.DagsterRunStatus.STARTED, **{"dagster/backfill": "second"})
    following.look(instance, TODAY)
    assert following.running() == [KEY]
    assert following.count() == {State.RUNNING: 1, State.WAITING: 1}
