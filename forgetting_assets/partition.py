"""One partition of the pass: a UTC day and a tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from resources.errors import InvalidSlug, PartitionError

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Tenant:
    """A row of the tenants table.

    ``tracked_since``: since when every use of its evidence is recorded; None means it is not.
    """

    slug: str
    user_id: UUID
    judgment_enabled: bool
    archival_enabled: bool
    tracked_since: datetime | None
    retired_at: datetime | None

    @property
    def is_served(self) -> bool:
        """Whether the pass does anything for it."""
        return self.retired_at is None and (self.judgment_enabled or self.archival_enabled)


@dataclass(frozen=True)
class Partition:
    """The store of ``tenant`` as of the end of ``run_date``.

    Nothing created after ``as_of`` is seen (design, decision 1).
    """

    run_date: date
    tenant: Tenant
    as_of: datetime

    @property
    def user_id(self) -> UUID:
        """The tenant's id in every table."""
        return self.tenant.user_id


def of_day(run_date: date, tenant: Tenant, now: datetime) -> Partition:
    """The partition of a day that has ended. Raises PartitionError for today and the future."""
    today = now.astimezone(UTC).date()
    if run_date >= today:
        newest = today - timedelta(days=1)
        raise PartitionError(
            f"{run_date} has not ended in UTC, so it has no partition yet: the newest is {newest}."
        )
    return Partition(run_date, tenant, datetime.combine(run_date + timedelta(days=1), time(), UTC))


def require_slug(slug: str) -> str:
    """``slug`` itself. Raises InvalidSlug when it could not be a partition key."""
    if not SLUG.fullmatch(slug):
        raise InvalidSlug()
    return slug


def parse_day(text: str) -> date:
    """A date written YYYY-MM-DD. Raises PartitionError."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise PartitionError(f"{text!r} is not a date: write it as 2026-08-31.") from None
