"""Analysts: which tenants a login may read in the schema ``analytics``. The owner decides it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import sqlalchemy as sa

import sql
from forgetting_assets.partition import require_slug
from forgetting_assets.store import owner
from resources.errors import ConfigurationError, UnknownTenant, UnsafeRole

QUERIES = sql.load("analysts")
TENANTS = sql.load("tenants")


def grant(admin: sa.URL | None, slug: str, role: str, now: datetime) -> bool:
    """Let a role read a tenant's figures; whether that is new.

    The role becomes a member of forgetting_analyst, with its rights and without becoming it: a
    login reads what was granted to its own name. Raises ConfigurationError without the owner's
    address or the role, UnsafeRole for a role that cannot be an analyst, and UnknownTenant.
    """
    with _owner(admin, slug) as connection:
        found = _find(connection, role)
        if found.is_unbound:
            raise UnsafeRole(
                f"The role {role} is a superuser or may bypass RLS, so no grant would limit it. "
                "Name another login."
            )
        if found.runs_the_pass or found.owns_the_tables:
            raise UnsafeRole(
                f"The pass or the owner of its tables is {role} or belongs to it, and would see "
                "granted tenants only. Name another login."
            )
        if not found.is_the_group:
            quoted = connection.dialect.identifier_preparer.quote_identifier(role)
            connection.exec_driver_sql(
                f"GRANT forgetting_analyst TO {quoted} WITH INHERIT TRUE, SET FALSE"
            )
        bound = {"slug": slug, "role": role, "now": now}
        return bool(connection.execute(QUERIES["grant_tenant"], bound).rowcount)


def revoke(admin: sa.URL | None, slug: str, role: str) -> bool:
    """Take a tenant from a role; whether it had it.

    A role that is gone may still be named: its grants would else be those of the next of that name.
    Raises ConfigurationError without the owner's address, and UnknownTenant.
    """
    with _owner(admin, slug) as connection:
        bound = {"slug": slug, "role": role}
        return bool(connection.execute(QUERIES["revoke_tenant"], bound).rowcount)


def _find(connection: sa.Connection, role: str) -> sa.Row[tuple[bool, bool, bool, bool]]:
    found = connection.execute(QUERIES["find_role"], {"role": role}).first()
    if found is None:
        raise ConfigurationError(
            f"The server has no role {role}: make it with CREATE ROLE {role} LOGIN, or name one "
            "that is there."
        )
    return found


@contextmanager
def _owner(admin: sa.URL | None, slug: str) -> Iterator[sa.Connection]:
    """A transaction of the owner about a tenant that there is."""
    require_slug(slug)
    with owner.begin(admin, "Granting") as connection:
        if connection.execute(TENANTS["find_tenant"], {"slug": slug}).first() is None:
            raise UnknownTenant(
                f"There is no tenant {slug}: `forgetting tenants list` shows those that exist."
            )
        yield connection
