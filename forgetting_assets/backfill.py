"""Backfills of the pass: requesting one as Dagster's UI does, and following it to its end.

Here belongs what a backfill covers, what became of its partitions and why one failed. Who executes
it is in daemon.py, what is printed in commands/backfill.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.execution.backfill import (
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.storage.partition_status_cache import AssetPartitionStatus
from dagster._core.utils import make_new_backfill_id

from forgetting_assets import jobs, partitions, runs
from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.partition import of_day
from forgetting_assets.store import failures, tenants
from resources.database import Database
from resources.errors import PartitionError
from resources.flag import Flag

STARTED_BY = {"forgetting/started_by": "backfill"}
BACKFILL_TAG = "dagster/backfill"
PARTITION_TAG = "dagster/partition"
UNFINISHED = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
AT_ONCE = 1000
"""Tags that one look at the runs names at most."""
OVERLAP = timedelta(minutes=2)
"""How far a look at the runs goes back behind the last one: their clocks may be other machines'."""


@dataclass(frozen=True)
class Selection:
    """Tenants times days, both ends included."""

    slugs: tuple[str, ...]
    first: date
    last: date

    @property
    def keys(self) -> list[dg.MultiPartitionKey]:
        """The partition keys, oldest day first."""
        days = range((self.last - self.first).days + 1)
        return [
            partitions.key(self.first + timedelta(days=n), slug)
            for n in days
            for slug in self.slugs
        ]


def failed_keys(database: Database, selection: Selection) -> set[str]:
    """The partitions of which a step failed, in whatever run, and has not succeeded since.

    Of a run over many tenants Dagster's own record does not say it.
    """
    return {
        partitions.key(day, slug)
        for slug in selection.slugs
        for day in failures.failed_days(database, tenants.find(database, slug).user_id)
    }


def select(
    database: Database, slugs: Sequence[str] | None, first: date, last: date, now: datetime
) -> Selection:
    """The partitions of some tenants, or of every active one, on some days.

    Raises UnknownTenant, RetiredTenant, InvalidSlug, and PartitionError for days that have not
    ended, that are before the first partition, or that go backwards.
    """
    if slugs is None:
        chosen = [each for each in tenants.all_tenants(database) if each.retired_at is None]
    else:
        chosen = [tenants.find_active(database, slug) for slug in dict.fromkeys(slugs)]
    if not chosen:
        raise PartitionError("There is no active tenant, so there is nothing to backfill.")
    if first > last:
        raise PartitionError(f"--from {first} is later than --to {last}: swap them.")
    of_day(last, chosen[0], now)
    runs.require_partition(first)
    return Selection(tuple(each.slug for each in chosen), first, last)


class State(Enum):
    """What became of a partition."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "not run"


@dataclass(frozen=True)
class Attempt:
    """The latest run that followed backfills made for a partition."""

    run_id: str
    status: dg.DagsterRunStatus
    storage_id: int


@dataclass
class Following:
    """Partitions, the backfills that they wait for, and the latest run of each in those."""

    keys: Sequence[str]
    backfill_ids: list[str]
    attempts: dict[str, Attempt] = field(default_factory=dict)
    looked_at: datetime | None = None

    def look(self, instance: dg.DagsterInstance, now: datetime) -> None:
        """Read what happened to the runs since the last look."""
        if not self.backfill_ids:
            return
        since = self.looked_at and self.looked_at - OVERLAP
        wanted = set(self.keys)
        changed = instance.get_run_records(
            dg.RunsFilter(tags={BACKFILL_TAG: self.backfill_ids}, updated_after=since)
        )
        for each in changed:
            run, key = each.dagster_run, each.dagster_run.tags.get(PARTITION_TAG)
            known = self.attempts.get(key or "")
            if key in wanted and (known is None or known.storage_id <= each.storage_id):
                self.attempts[key] = Attempt(run.run_id, run.status, each.storage_id)
        self.looked_at = now

    def state(self, key: str) -> State:
        """What became of a partition's latest run."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return State.WAITING
        if attempt.status is dg.DagsterRunStatus.SUCCESS:
            return State.DONE
        if attempt.status in FAILED:
            return State.FAILED
        return State.RUNNING if attempt.status in runs.UNDER_WAY else State.WAITING

    def count(self) -> Counter[State]:
        """How many partitions are in each state."""
        return Counter(map(self.state, self.keys))

    def running(self) -> list[str]:
        """The partitions that are run now."""
        return sorted(key for key in self.attempts if self.state(key) is State.RUNNING)

    def ended(self, instance: dg.DagsterInstance) -> bool:
        """Whether every followed backfill has ended."""
        return not self.backfill_ids or not instance.get_backfills_count(
            BulkActionsFilter(statuses=UNFINISHED, backfill_ids=self.backfill_ids)
        )


class Backfills:
    """The backfills of an instance over the assets of the pass."""

    def __init__(
        self, instance: dg.DagsterInstance, graph: BaseAssetGraph[Any], flag: Flag
    ) -> None:
        self.instance = instance
        self._graph = graph
        chosen = jobs.forgetting_pass.selection.resolve(graph)
        if flag.why_archive_is_off():
            # A sweep whose flag is off materializes nothing, which Dagster counts as a failure.
            chosen = chosen - {archival_sweep.key}
        self._assets = sorted(chosen)

    def done(self, keys: Sequence[str]) -> set[str]:
        """The partitions of which every asset is materialized and the last run did not fail."""
        found = set(keys)
        for asset in self._assets:
            if found:
                statuses = self.instance.get_status_by_partition(
                    asset, sorted(found), partitions.daily_tenant
                )
                found = {
                    key
                    for key, status in (statuses or {}).items()
                    if status is AssetPartitionStatus.MATERIALIZED
                }
        return found - self._failed_in_the_end(found)

    def _failed_in_the_end(self, keys: set[str]) -> set[str]:
        """Those whose last run failed with all of it there: a check comes after the last asset."""
        failures = self._latest(keys, dg.DagsterRunStatus.FAILURE, by_tenant=True)
        successes = self._latest(set(failures), dg.DagsterRunStatus.SUCCESS)
        return {key for key, run in failures.items() if run > successes.get(key, 0)}

    def _latest(
        self, keys: set[str], status: dg.DagsterRunStatus, *, by_tenant: bool = False
    ) -> dict[str, int]:
        """The storage id of the last run of each partition that ended so."""
        found: dict[str, int] = {}
        wanted = sorted({key.split("|")[1] for key in keys} if by_tenant else keys)
        tag = runs.TENANT_TAG if by_tenant else PARTITION_TAG
        for start in range(0, len(wanted), AT_ONCE):
            of_these = dg.RunsFilter(statuses=[status], tags={tag: wanted[start : start + AT_ONCE]})
            for each in self.instance.get_run_records(of_these):
                key = each.dagster_run.tags.get(PARTITION_TAG, "")
                if key in keys:
                    found[key] = max(found.get(key, 0), each.storage_id)
        return found

    def under_way(self, keys: Sequence[str], now: datetime) -> dict[str, set[str]]:
        """Which partitions each unfinished backfill will still materialize, by its id."""
        found = {}
        for backfill in self.instance.get_backfills(
            filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
        ):
            if covered := self._targets(backfill).intersection(keys):
                following = Following(sorted(covered), [backfill.backfill_id])
                following.look(self.instance, now)
                ended = (State.DONE, State.FAILED)
                if left := {key for key in covered if following.state(key) not in ended}:
                    found[backfill.backfill_id] = left
        return found

    def _targets(self, backfill: PartitionBackfill) -> set[str]:
        """The partitions of which a backfill materializes every asset of the pass."""
        if not backfill.is_asset_backfill:
            return set()
        try:
            data = backfill.get_asset_backfill_data(self._graph)
        except dg.DagsterError:  # of assets that are not ours, or no more
            return set()
        subsets = data.target_subset.partitions_subsets_by_asset_key
        if not set(self._assets) <= set(subsets):
            return set()
        return set.intersection(*(set(subsets[each].get_partition_keys()) for each in self._assets))

    def request(self, selection: Selection, keys: Sequence[str], now: datetime) -> str:
        """Request a backfill of some of the selection's partitions; its id.

        It is recorded as the UI records one. Tenants that Dagster does not know yet are added.
        """
        self.instance.add_dynamic_partitions(partitions.tenants.name or "", selection.slugs)
        backfill_id = make_new_backfill_id()
        many = f"{len(selection.slugs)} tenants"
        subset = partitions.daily_tenant.subset_with_partition_keys(keys)
        self.instance.add_backfill(
            PartitionBackfill.from_asset_graph_subset(
                backfill_id=backfill_id,
                asset_graph_subset=AssetGraphSubset.create_empty_subset()._replace(
                    partitions_subsets_by_asset_key=dict.fromkeys(self._assets, subset)
                ),
                backfill_timestamp=now.timestamp(),
                tags=STARTED_BY,
                dynamic_partitions_store=self.instance,
                title=f"{selection.first} to {selection.last}, "
                + (selection.slugs[0] if len(selection.slugs) == 1 else many),
                description=None,
                run_config=None,
            )
        )
        return backfill_id

    def given_up(self, backfill_ids: Sequence[str]) -> list[str]:
        """A sentence for each backfill that was cancelled, or that Dagster could not go on with."""
        gone = [BulkActionStatus.CANCELED, BulkActionStatus.FAILED]
        return [
            f"The backfill {each.backfill_id} ended early: "
            + ("it was cancelled." if each.error is None else "Dagster could not go on with it.")
            for each in self.instance.get_backfills(
                filters=BulkActionsFilter(statuses=gone, backfill_ids=[*backfill_ids])
            )
        ]

    def reason(self, attempt: Attempt) -> str:
        """Why the run of a partition that is not done ended, as a sentence."""
        if attempt.status is dg.DagsterRunStatus.CANCELED:
            return "Its run was cancelled."
        if attempt.status is dg.DagsterRunStatus.SUCCESS:
            return (
                "Its run materialized less than was asked for: a flag is off where the daemon "
                "runs, or the tenant was retired meanwhile."
            )
        entries = self.instance.all_logs(attempt.run_id, of_type=FAILURES)
        events = (each.dagster_event for each in entries if each.dagster_event is not None)
        return runs.reason(events) or "Its run failed; the UI shows why."
