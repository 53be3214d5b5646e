"""Account deletion: the one thing in the project that deletes a tenant. No pass ever calls it.

First the tenant's rows go, all of them or none; then what Dagster keeps of it. Broken off in
between, the second part is done when it is asked for again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
)
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log import schema as events
from dagster._core.storage.runs import SqlRunStorage
from dagster._core.storage.runs import schema as runs
from dagster._core.storage.schedules import SqlScheduleStorage
from dagster._core.storage.schedules import schema as schedules
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
)

import sql
from forgetting_assets import partitions
from forgetting_assets.partition import Tenant
from forgetting_assets.runs import TENANT_TAG
from forgetting_assets.store import owner, tenant_rows
from resources.database import bind
from resources.errors import TenantUnderWay

DYNAMIC = partitions.tenants.name or ""
ERASED = "(erased)"
"""What stands where the slug of an erased tenant stood. No slug can be this."""
AT_ONCE = 500
"""Runs that one statement looks at."""

QUERIES = sql.load("tenant_rows")

EVENTS = events.SqlEventLogStorageTable
EVENT_TAGS = events.AssetEventTagsTable
CHECKS = events.AssetCheckExecutionsTable
ASSETS = events.AssetKeyTable
RUN_TAGS = runs.RunTagsTable

Connect = Callable[[], AbstractContextManager[sa.Connection]]


# --- our own tables -------------------------------------------------------------------------------


def count_rows(admin: sa.URL | None, tenant: Tenant) -> int:
    """How many rows erasing a tenant would delete."""
    with owner.begin(admin, "Erasing") as connection:
        bind(connection, tenant.user_id)
        found = tenant_rows.count(connection, tenant_rows.tables(connection), tenant.user_id)
        return sum(found.values())


def erase_rows(admin: sa.URL | None, tenant: Tenant) -> int:
    """Delete every row of a tenant in one transaction, as the owner; how many.

    It waits for the tenant's other writers. Raises ConfigurationError without the owner's address.
    """
    with owner.begin(admin, "Erasing") as connection:
        bind(connection, tenant.user_id, exclusive=True)
        return tenant_rows.remove(connection, tenant_rows.tables(connection), tenant.user_id)


# --- what Dagster keeps ---------------------------------------------------------------------------


def is_known(instance: dg.DagsterInstance, slug: str) -> bool:
    """Whether Dagster still has the tenant's partition or a run of it."""
    return slug in instance.get_dynamic_partitions(DYNAMIC) or bool(_runs_of(instance, slug))


def require_idle(instance: dg.DagsterInstance, slug: str) -> None:
    """Raise TenantUnderWay while a run or a backfill is under way that may be the tenant's."""
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        if run.tags.get(TENANT_TAG) == slug or ASSET_PARTITION_RANGE_START_TAG in run.tags:
            raise TenantUnderWay(
                f"The run {run.run_id} is under way and may be about {slug}: wait for its end or "
                "cancel it in the UI, then erase again."
            )
    active = [each for each in BulkActionStatus if each not in BULK_ACTION_TERMINAL_STATUSES]
    for backfill in instance.get_backfills(BulkActionsFilter(statuses=active)):
        if _keys(slug).search(dg.serialize_value(backfill)):
            raise TenantUnderWay(
                f"The backfill {backfill.backfill_id} is under way and includes {slug}; without "
                "that partition all of it would fail. Wait for its end or cancel it in the UI, "
                "then erase again."
            )


def erase_runs(instance: dg.DagsterInstance, slug: str) -> int:
    """Delete the tenant's partition, its runs and their events; how many runs.

    Where others share a record with it, as in a finished backfill, its partition keys become
    ERASED. Running it again finds nothing. Raises TenantUnderWay.
    """
    require_idle(instance, slug)
    instance.delete_dynamic_partition(DYNAMIC, slug)
    gone = 0
    while found := _runs_of(instance, slug):
        for run_id in found:
            _delete_checks(instance, CHECKS.c.run_id == run_id)
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            instance.delete_run(run_id)
        gone += len(found)
    log = instance.event_log_storage
    if isinstance(log, SqlEventLogStorage):
        _delete_checks(instance, CHECKS.c.partition.endswith(f"|{slug}", autoescape=True))
        _delete_events(log, slug)
        with log.index_connection() as connection:
            _rewrite_shared_events(connection, list(_ranged_runs(instance)), slug)
        _mend_assets(instance, log, slug)
        _rewrite(log.index_connection, events.SqlEventLogStorageMetadata, slug)
        _renew_statistics(log.index_connection, events.SqlEventLogStorageMetadata)
    if isinstance(instance.run_storage, SqlRunStorage):
        _rewrite(instance.run_storage.connect, runs.RunStorageSqlMetadata, slug)
        _renew_statistics(instance.run_storage.connect, runs.RunStorageSqlMetadata)
    ticks = instance.schedule_storage
    if isinstance(ticks, SqlScheduleStorage):
        _rewrite(ticks.connect, schedules.ScheduleStorageSqlMetadata, slug)
        _rewrite_ticks(ticks.connect, slug)
        _renew_statistics(ticks.connect, schedules.ScheduleStorageSqlMetadata)
    return gone


def _keys(slug: str) -> re.Pattern[str]:
    """The tenant's partition keys, wherever they stand, and no other tenant's."""
    return re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}}\|){slug}(?![a-z0-9_-])")


def _runs_of(instance: dg.DagsterInstance, slug: str) -> list[str]:
    """Some runs of the tenant alone: of one partition, or of a range of its days."""
    single = instance.get_runs(dg.RunsFilter(tags={TENANT_TAG: slug}), limit=AT_ONCE)
    ranged = [
        run_id
        for run_id, ends in _ranged_runs(instance).items()
        if all(_keys(slug).fullmatch(end) for end in ends)
    ]
    return [*(run.run_id for run in single), *ranged]


def _ranged_runs(instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """Every run over a range of partitions, and both ends of it."""
    if not isinstance(instance.run_storage, SqlRunStorage):
        return {}
    ends = RUN_TAGS.c.key.in_([ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG])
    found: dict[str, list[str]] = {}
    with instance.run_storage.connect() as connection:
        query = sa.select(RUN_TAGS.c.run_id, RUN_TAGS.c.value).where(ends)
        for run_id, value in connection.execute(query):
            found.setdefault(run_id, []).append(value)
    return found


def _delete_checks(instance: dg.DagsterInstance, which: sa.ColumnElement[bool]) -> None:
    # Deleting a run leaves the results of its checks.
    if isinstance(instance.event_log_storage, SqlEventLogStorage):
        with instance.event_log_storage.index_connection() as connection:
            connection.execute(CHECKS.delete().where(which))


def _delete_events(log: SqlEventLogStorage, slug: str) -> None:
    """Delete what runs of several tenants, or of none, recorded of the tenant's partitions."""
    with log.index_connection() as connection:
        keys = connection.execute(sa.select(ASSETS.c.asset_key)).scalars().all()
        found = sa.select(EVENTS.c.id).where(
            EVENTS.c.asset_key.in_(keys), EVENTS.c.partition.endswith(f"|{slug}", autoescape=True)
        )
        ids = connection.execute(found).scalars().all()
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            connection.execute(EVENT_TAGS.delete().where(EVENT_TAGS.c.event_id.in_(some)))
            connection.execute(EVENTS.delete().where(EVENTS.c.id.in_(some)))


def _rewrite_shared_events(connection: sa.Connection, run_ids: Sequence[str], slug: str) -> None:
    """Take the tenant's keys out of what runs over several tenants say of all of them."""
    for start in range(0, len(run_ids), AT_ONCE):
        _rewrite_rows(
            connection, EVENTS, slug, EVENTS.c.run_id.in_(run_ids[start : start + AT_ONCE])
        )


def _mend_assets(instance: dg.DagsterInstance, log: SqlEventLogStorage, slug: str) -> None:
    """Let each asset's latest materialization be of another tenant, and its caches be empty."""
    with log.index_connection() as connection:
        rows = connection.execute(sa.select(ASSETS)).all()
        for row in rows:
            said = f"{row.last_materialization} {row.cached_status_data}"
            gone = row.last_run_id and not instance.has_run(row.last_run_id)
            if not gone and not _keys(slug).search(said):
                continue
            key = dg.AssetKey.from_db_string(row.asset_key)
            assert key is not None
            latest = instance.fetch_materializations(key, limit=1).records
            connection.execute(
                ASSETS.update()
                .where(ASSETS.c.id == row.id)
                .values(
                    last_materialization=dg.serialize_value(latest[0]) if latest else None,
                    last_run_id=latest[0].run_id if latest else None,
                    cached_status_data=None,
                )
            )


def _rewrite(connect: Connect, metadata: sa.MetaData, slug: str) -> None:
    """Take the tenant's keys out of every text of every table but the log of events."""
    with connect() as connection:
        present = set(sa.inspect(connection).get_table_names())
        for table in metadata.tables.values():
            if table.name in present and table.name != EVENTS.name:
                _rewrite_rows(connection, table, slug, sa.true())


def _renew_statistics(connect: Connect, metadata: sa.MetaData) -> None:
    """Let the planner forget the values of rows that are gone, in a table that is empty now too."""
    with connect() as connection:
        if connection.dialect.name != "postgresql":
            return
        clears = connection.execute(QUERIES["can_clear_statistics"]).scalar_one()
        for name in metadata.tables.keys() & set(sa.inspect(connection).get_table_names()):
            if clears:
                connection.execute(QUERIES["clear_statistics"], {"table_name": name})
            connection.execute(sa.text(f"ANALYZE {name}"))


def _rewrite_rows(
    connection: sa.Connection, table: sa.Table, slug: str, which: sa.ColumnElement[bool]
) -> None:
    texts = [column for column in table.c if isinstance(column.type, sa.String)]
    if not texts:
        return
    named = sa.or_(*(column.contains(f"|{slug}", autoescape=True) for column in texts))
    for row in connection.execute(sa.select(table.c.id, *texts).where(which, named)).all():
        held = {column.name: getattr(row, column.name) for column in texts}
        changed = {
            name: _keys(slug).sub(rf"\g<1>{ERASED}", value)
            for name, value in held.items()
            if value and _keys(slug).search(value)
        }
        if changed:
            connection.execute(table.update().where(table.c.id == row.id).values(**changed))


def _rewrite_ticks(connect: Connect, slug: str) -> None:
    """Take the slug out of what the sensor said of the partitions that it added.

    A tick itself stays: from its last one a schedule knows what it has requested.
    """
    ticks = schedules.JobTickTable
    with connect() as connection:
        quoted = ticks.c.tick_body.contains(f'"{slug}"', autoescape=True)
        for row in connection.execute(sa.select(ticks.c.id, ticks.c.tick_body).where(quoted)).all():
            body = json.loads(row.tick_body)
            for result in body.get("dynamic_partitions_request_results") or []:
                _replace_members(result, slug)
            connection.execute(
                ticks.update().where(ticks.c.id == row.id).values(tick_body=json.dumps(body))
            )


def _replace_members(result: dict[str, Any], slug: str) -> None:
    for name, value in result.items():
        if isinstance(value, list):
            result[name] = [ERASED if each == slug else each for each in value]
