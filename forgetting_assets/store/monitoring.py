"""What an operator watches of every tenant at one moment: counts, times and money, and no text.

Metrics and alerts are drawn from here. Each tenant is read under its own row-level security, one
after another in one transaction, by one short statement for each question: docs/monitoring.md says
what that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TypeVar

import sql
from forgetting_assets.partition import Tenant
from forgetting_assets.store import invariant, tenants
from resources.budget import WINDOW, Budget
from resources.database import Database, TenantTransaction, bind

QUERIES = sql.load("metrics")

CHECKS = (invariant.ZERO_EPISODIC_COLLAPSE, invariant.CONSERVATION, invariant.BLAST_RADIUS)
"""The checks whose failure stops a run."""

HEALTH = (
    "live_memories",
    "stale_memories",
    "archived_memories",
    "superseded_memories",
    "hot_evidence",
    "idle_evidence",
    "archived_evidence",
    "unresolved_conflicts",
    "regretted",
)
"""Counts that a row of forgetting.memory_health has."""

T = TypeVar("T")
PerTenant = list[tuple[Tenant, T]]
"""What was found of each tenant that is not retired, by slug."""


@dataclass(frozen=True)
class State:
    """How a tenant stands.

    ``health`` has the counts of ``health_day``, the newest day that a pass went through; both are
    None before the first one. ``verdict_day`` is the newest day that has verdicts. ``failed_steps``
    of partitions have not succeeded since; ``failed_day`` is the newest day of one, or None.
    """

    added_at: datetime
    open_proposals: int
    oldest_open_at: datetime | None
    health_day: date | None
    health: Mapping[str, int] | None
    verdict_day: date | None
    failed_steps: int = 0
    failed_day: date | None = None

    @property
    def passed_until(self) -> datetime:
        """The end, UTC, of the newest day that was passed; of none, when the tenant was added."""
        return self.added_at if self.health_day is None else end_of(self.health_day)


@dataclass(frozen=True)
class Failures:
    """Results that did not pass: of the last 24 hours, and those that nothing has replaced."""

    lately: int
    still_open: int


@dataclass(frozen=True)
class Calls:
    """What was asked of the judge in the budget's window."""

    calls: int
    unpriced_calls: int
    unjudgeable_items: int


def each(database: Database, read: Callable[[TenantTransaction], T]) -> PerTenant[T]:
    """What ``read`` finds of each tenant that is not retired."""
    active = [one for one in tenants.all_tenants(database) if one.retired_at is None]
    with database.registry() as connection:
        return [(tenant, read(bind(connection, tenant.user_id))) for tenant in active]


def state(tx: TenantTransaction) -> State:
    """How the tenant stands."""
    row = tx.one(QUERIES["read_state"])
    health = None
    if row.health_day is not None:
        health = {name: getattr(row, name) for name in HEALTH}
    return State(
        row.added_at,
        row.open_proposals,
        row.oldest_open_at,
        row.health_day,
        health,
        row.verdict_day,
        row.failed_steps,
        row.failed_day,
    )


def failures(tx: TenantTransaction, now: datetime) -> dict[str, Failures]:
    """Results of blocking checks that did not pass, by check."""
    since = now - timedelta(days=1)
    rows = tx.rows(QUERIES["count_failures"], since=since, checks=list(CHECKS))
    return {row.check_name: Failures(row.lately, row.still_open) for row in rows}


def calls(tx: TenantTransaction, now: datetime) -> Calls:
    """What was asked of the judge."""
    row = tx.one(QUERIES["count_calls"], since=now - WINDOW)
    return Calls(row.calls, row.unpriced_calls, row.unjudgeable_items)


def committed_usd(database: Database, budget: Budget, now: datetime) -> Decimal:
    """US dollars that all tenants together spent or reserved in the budget's window."""
    with database.registry() as connection:
        return budget.committed_usd(connection, now)


def is_overdue(tenant: Tenant, state: State, patience: timedelta, now: datetime) -> bool:
    """Whether a tenant that opted in to anything has had no whole pass for longer than that."""
    opted_in = tenant.judgment_enabled or tenant.archival_enabled
    return opted_in and now - state.passed_until > patience


def end_of(day: date) -> datetime:
    """The end of a UTC day."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)
