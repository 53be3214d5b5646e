"""Dagster's partitions of the pass, and the way from a run's partition keys to our partitions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import cast

import dagster as dg

from forgetting_assets.partition import Partition, of_day
from forgetting_assets.store import tenants as registry
from resources import settings
from resources.clock import Clock
from resources.database import Database

# Dimensions are ordered by name, so keys read 2026-11-28|acme.
tenants = dg.DynamicPartitionsDefinition(name="tenants")
daily = dg.DailyPartitionsDefinition(
    start_date=settings.read().forgetting_start_date.isoformat(), timezone="UTC"
)
daily_tenant = dg.MultiPartitionsDefinition({"date": daily, "tenant": tenants})


def key(run_date: date, slug: str) -> dg.MultiPartitionKey:
    """The Dagster key of a partition."""
    return dg.MultiPartitionKey({"date": run_date.isoformat(), "tenant": slug})


def selected(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
    database: Database,
    clock: Clock,
) -> Iterator[Partition]:
    """The run's partitions; those of retired tenants are skipped with a line in the log.

    Raises UnknownTenant, and PartitionError for a day that has not ended.
    """
    for each in context.partition_keys:
        dimensions = cast(dg.MultiPartitionKey, each).keys_by_dimension
        tenant = registry.find(database, dimensions["tenant"])
        if tenant.retired_at is not None:
            context.log.info(f"{tenant.slug} is retired: skipped.")
        else:
            yield of_day(date.fromisoformat(dimensions["date"]), tenant, clock.now())
