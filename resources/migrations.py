"""Bringing a database to the current schema, as its owner."""

from __future__ import annotations

import psycopg2
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, OperationalError

import sql
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.database import engine, first_line
from resources.errors import ConfigurationError, DatabaseUnreachable

NO_OWNER = (
    "Migrating needs the owner of the tables: set DATABASE_ADMIN_URL to a role that may create "
    "tables, extensions and roles."
)

ALREADY_THERE = ("42P04", "23505")
"""What CREATE DATABASE says when another process made the database in the meantime."""


def migrate(places: Addresses) -> None:
    """Create both databases where they are missing, then run every migration that has not run.

    Running it again changes nothing. Raises ConfigurationError without the owner's address, and
    DatabaseUnreachable when the server does not answer.
    """
    if places.admin is None:
        raise ConfigurationError(NO_OWNER)
    server = places.admin.set(database="postgres")
    create_database(server, str(places.admin.database))
    upgrade(places.admin)
    create_database(server, str(places.dagster.database), owner=str(places.dagster.username))


def upgrade(admin: sa.URL) -> None:
    """Run the missing migrations and lay the views, in one transaction."""
    config = Config()
    config.set_main_option("script_location", str(sql.ROOT / "migrations"))
    config.set_main_option("path_separator", "os")
    pool = engine(admin)
    try:
        with pool.begin() as connection:
            # Two migrations of one database wait for each other.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4250)")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            for view in sorted((sql.ROOT / "views").glob("*.sql")):
                sql.run_file(connection, view)
    except (DBAPIError, psycopg2.Error) as error:
        reason = first_line(error)
        hint = (
            " Let a superuser run CREATE EXTENSION vector in this database first."
            if "extension" in reason
            else ""
        )
        raise ConfigurationError(
            f"The migration failed and was rolled back: {reason}.{hint}"
        ) from None
    except CommandError as error:
        raise ConfigurationError(
            f"The database's schema is not one that this code can migrate ({error}): a newer "
            "release may have migrated it, so update the code."
        ) from None
    finally:
        pool.dispose()


def create_database(server: sa.URL, name: str, owner: str | None = None) -> None:
    """Create a database unless it is there. ``owner`` None keeps the creating role as the owner."""
    pool = engine(server).execution_options(isolation_level="AUTOCOMMIT")
    try:
        with pool.connect() as connection:
            found = connection.execute(
                sa.text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}
            ).first()
            if found is None:
                quote = connection.dialect.identifier_preparer.quote_identifier
                suffix = f" OWNER {quote(owner)}" if owner else ""
                connection.exec_driver_sql(f"CREATE DATABASE {quote(name)}{suffix}")
    except OperationalError as error:
        raise DatabaseUnreachable(
            f"The server does not answer or refuses the login: check DATABASE_ADMIN_URL "
            f"({first_line(error)})."
        ) from None
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) in ALREADY_THERE:
            return
        raise ConfigurationError(
            f"The database {name} is missing and could not be created: {first_line(error)}. "
            f"Create it by hand, owned by {owner or RUNTIME_ROLE}, and run this again."
        ) from None
    finally:
        pool.dispose()
