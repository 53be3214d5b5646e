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
from resources.errors import JudgmentNotEnabled, RetiredTenant, RowsHidden, UnknownTenant

QUERIES = sql.load("tenants")


def all_tenants(database: Database) -> list[Tenant]:
    """Every tenant by slug, retired ones too."""
    with database.registry() as connection:
        return [_tenant(row) for row in connection.execute(QUERIES["list_tenants"])]


def find(database: Database, slug: str) -> Tenant:
    """One tenant. Raises InvalidSlug or UnknownTenant."""
    require_slug(slug)
    with database.registry() as connection:
        row = connection.execute(QUERIES["find_tenant"], {"slug": slug}).first()
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
            "alone."
        )
    return tenant


def require_new_or_active(database: Database, slug: str) -> None:
    """Raise InvalidSlug or RetiredTenant; a slug that nobody has is fine."""
    with contextlib.suppress(UnknownTenant):
        find_active(database, slug)


def add(connection: sa.Connection, slug: str) -> UUID:
    """A tenant's user id; a missing tenant is added with judgment and archival off."""
    email = f"{require_slug(slug)}@tenants.invalid"
    connection.execute(QUERIES["add_user"], {"email": email})
    connection.execute(QUERIES["add_tenant"], {"slug": slug, "email": email})
    tenant = connection.execute(QUERIES["find_tenant"], {"slug": slug}).one()
    return UUID(str(tenant.user_id))


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
