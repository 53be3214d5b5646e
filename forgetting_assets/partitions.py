"""Dagster's partitions of the pass, and the way from a run's partition keys to our partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import cast

import dagster as dg
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    EXTERNALLY_MANAGED_ASSETS_TAG,
)

from forgetting_assets.partition import Partition, of_day
from forgetting_assets.store import tenants as registry
from resources import settings
from resources.clock import Clock
from resources.database import Database
from resources.errors import PartitionError, UnknownTenant

# Dimensions are ordered by name, so keys read 2026-11-28|acme.
tenants = dg.DynamicPartitionsDefinition(name="tenants")
daily = dg.DailyPartitionsDefinition(
    start_date=settings.read().forgetting_start_date.isoformat(), timezone="UTC"
)
daily_tenant = dg.MultiPartitionsDefinition({"date": daily, "tenant": tenants})


def key(run_date: date, slug: str) -> dg.MultiPartitionKey:
    """The Dagster key of a partition."""
    return dg.MultiPartitionKey({"date": run_date.isoformat(), "tenant": slug})


def range_tags(run_date: date, slugs: Sequence[str]) -> dict[str, str]:
    """The tags of one run over the tenants from the first slug to the last, in Dagster's order.

    Such a run reports each materialization itself: Dagster would report the whole range, and with
    it the tenants that failed.
    """
    return {
        ASSET_PARTITION_RANGE_START_TAG: key(run_date, slugs[0]),
        ASSET_PARTITION_RANGE_END_TAG: key(run_date, slugs[-1]),
        EXTERNALLY_MANAGED_ASSETS_TAG: "true",
    }


def is_ranged(run: dg.DagsterRun) -> bool:
    """Whether a run is over a range of partitions. Raises PartitionError for one made by hand."""
    if ASSET_PARTITION_RANGE_START_TAG not in run.tags:
        return False
    if run.tags.get(EXTERNALLY_MANAGED_ASSETS_TAG) != "true":
        raise PartitionError(
            "This run is over a range of partitions and would mark all of them as materialized, "
            "though one may fail: launch one run a partition, or let the schedule ask for the "
            "range (FORGETTING_TENANTS_PER_RUN)."
        )
    return True


def selected(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
    database: Database,
    clock: Clock,
    *,
    everybody: bool = False,
) -> Iterator[Partition]:
    """The run's partitions; those of retired tenants are skipped with a line in the log.

    A range also passes over those who agreed to nothing, or whom nobody knows any more: they lie in
    it because of their neighbours. ``everybody`` passes over nobody who is known. Raises
    UnknownTenant, and PartitionError for a day that has not ended and for a range made by hand.
    """
    ranged = is_ranged(context.run)
    for each in context.partition_keys:
        dimensions = cast(dg.MultiPartitionKey, each).keys_by_dimension
        try:
            tenant = registry.find(database, dimensions["tenant"])
        except UnknownTenant:
            if not ranged:
                raise
            continue
        if tenant.retired_at is not None and not everybody:
            context.log.info(f"{tenant.slug} is retired: skipped.")
        elif everybody or not ranged or tenant.is_served:
            yield of_day(date.fromisoformat(dimensions["date"]), tenant, clock.now())
