"""Tenants: finding them and what they agreed to."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

import sql
from forgetting_assets.partition import Tenant, require_slug
from resources.database import Database, TenantTransaction
from resources.errors import (
    JudgmentNotEnabled,
    RetiredTenant,
    RowsHidden,
    SlugTaken,
    TenantError,
    UnknownTenant,
)

QUERIES = sql.load("tenants")


def all_tenants(database: Database) -> list[Tenant]:
    """Every tenant by slug, retired ones too."""
    with database.registry() as connection:
        return [_tenant(row) for row in connection.execute(QUERIES["list_tenants"])]


def find(database: Database, slug: str) -> Tenant:
    """One tenant. Raises InvalidSlug or UnknownTenant."""
    with database.registry() as connection:
        return of(connection, slug)


def of(connection: sa.Connection, slug: str) -> Tenant:
    """The same inside a transaction that is under way."""
    row = connection.execute(QUERIES["find_tenant"], {"slug": require_slug(slug)}).first()
    if row is None:
        raise UnknownTenant(
            f"There is no tenant {slug}: `forgetting tenants list` shows those that exist."
        )
    return _tenant(row)


def find_active(database: Database, slug: str) -> Tenant:
    """One tenant that is not retired. Raises also RetiredTenant."""
    tenant = find(database, slug)
    if tenant.retired_at is not None:
        raise RetiredTenant(
            f"The tenant {slug} was retired on {tenant.retired_at:%Y-%m-%d}, so the pass leaves it "
            f"alone and nothing new is taken: `forgetting tenants retire {slug} --undo` brings it "
            "back."
        )
    return tenant


def require_new_or_active(database: Database, slug: str) -> None:
    """Raise InvalidSlug or RetiredTenant; a slug that nobody has is fine."""
    with contextlib.suppress(UnknownTenant):
        find_active(database, slug)


def create(database: Database, slug: str) -> None:
    """Add a tenant with judgment and archival off. Raises InvalidSlug, and SlugTaken."""
    require_slug(slug)
    with database.registry() as connection:
        if not _add(connection, slug):
            retired = of(connection, slug).retired_at is not None
            way = f"`forgetting tenants retire {slug} --undo` brings it back" if retired else ""
            raise SlugTaken(
                f"There is a tenant {slug} already{f', which is retired: {way}' if way else ''}."
            )


def add(connection: sa.Connection, slug: str) -> UUID:
    """A tenant's user id; a missing tenant is added with judgment and archival off."""
    _add(connection, require_slug(slug))
    return of(connection, slug).user_id


def _add(connection: sa.Connection, slug: str) -> bool:
    """Whether the tenant is new."""
    email = f"{slug}@tenants.invalid"
    connection.execute(QUERIES["add_user"], {"email": email})
    return bool(connection.execute(QUERIES["add_tenant"], {"slug": slug, "email": email}).rowcount)


def retire(database: Database, slug: str, now: datetime) -> None:
    """Let the pass leave a tenant alone and take nothing new of it; every row stays.

    Raises UnknownTenant, and RetiredTenant when it is retired already.
    """
    find_active(database, slug)
    with database.registry() as connection:
        connection.execute(QUERIES["set_retired"], {"slug": slug, "retired_at": now})


def bring_back(database: Database, slug: str) -> None:
    """The way back from ``retire``. Raises UnknownTenant, and TenantError without one to go."""
    if find(database, slug).retired_at is None:
        raise TenantError(f"The tenant {slug} is not retired, so there is nothing to undo.")
    with database.registry() as connection:
        connection.execute(QUERIES["set_retired"], {"slug": slug, "retired_at": None})


def require_not_retired(tx: TenantTransaction) -> None:
    """Raise RetiredTenant when the transaction's tenant is retired, whoever opened it and when."""
    if tx.one(QUERIES["read_retirement"]).is_retired:
        raise RetiredTenant("The tenant is retired, so nothing new is recorded of it.")


def consent(
    database: Database,
    slug: str,
    *,
    judgment: bool | None = None,
    archival: bool | None = None,
    tracked_since: datetime | None = None,
) -> None:
    """Set what a tenant agrees to, and since when the uses of its evidence are recorded.

    None leaves each as it is. Raises UnknownTenant.
    """
    find(database, slug)
    with database.registry() as connection:
        set_consent(
            connection, slug, judgment=judgment, archival=archival, tracked_since=tracked_since
        )


def set_consent(
    connection: sa.Connection,
    slug: str,
    *,
    judgment: bool | None,
    archival: bool | None,
    tracked_since: datetime | None,
) -> None:
    """The same inside a transaction that is under way."""
    connection.execute(
        QUERIES["set_consent"],
        {
            "slug": slug,
            "judgment": judgment,
            "archival": archival,
            "tracked_since": tracked_since,
        },
    )


def require_judgment(database: Database, user_id: UUID) -> None:
    """Raise JudgmentNotEnabled unless the tenant is opted in at this very moment."""
    with database.registry() as connection:
        enabled = connection.execute(QUERIES["read_judgment_consent"], {"user_id": user_id})
        if not enabled.scalar_one_or_none():
            raise JudgmentNotEnabled()


def require_every_row(tx: TenantTransaction, slug: str) -> int:
    """The number of the tenant's memories. Raises RowsHidden unless this role sees all of them.

    What silently sees fewer would select fewer and say nothing.
    """
    count = tx.one(QUERIES["count_memories"])
    if count.seen != count.present:
        raise RowsHidden(
            f"The runtime role sees {count.seen} of the {count.present} memories of {slug}, so "
            "nothing was selected: look for a policy or a grant on memories that hides some."
        )
    seen: int = count.seen
    return seen


def _tenant(row: sa.Row[Any]) -> Tenant:
    return Tenant(**row._mapping)
