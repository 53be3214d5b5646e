"""Where the databases are: the user's server when DATABASE_URL is set, else the embedded one."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from resources import embedded
from resources.errors import ConfigurationError
from resources.settings import Settings

RUNTIME_ROLE = "forgetting_runtime"
MEMORY_DATABASE = "memory"


@dataclass(frozen=True)
class Addresses:
    """The URLs of one deployment. ``admin`` is None when nobody gave the owner's URL."""

    memory: URL
    dagster: URL
    admin: URL | None

    def environment(self) -> dict[str, str]:
        """What a child process needs to reach the same databases."""
        return {
            "DATABASE_URL": self.memory.render_as_string(hide_password=False),
            "DAGSTER_DATABASE_URL": self.dagster.render_as_string(hide_password=False),
        }


def resolve(settings: Settings) -> Addresses:
    """The addresses of this process's deployment; starts the embedded server where it is used.

    Raises ConfigurationError when the given URLs do not belong together.
    """
    if settings.database_url is None:
        if settings.database_admin_url is not None:
            raise ConfigurationError(
                "DATABASE_ADMIN_URL is set without DATABASE_URL: set both, or neither for the "
                "embedded server."
            )
        server = embedded.start(settings.forgetting_home)
        memory = embedded.url(server, MEMORY_DATABASE, RUNTIME_ROLE)
        admin: URL | None = embedded.url(server, MEMORY_DATABASE, server.postgres_user)
    else:
        memory = parse("DATABASE_URL", settings.database_url.get_secret_value())
        admin = (
            parse("DATABASE_ADMIN_URL", settings.database_admin_url.get_secret_value())
            if settings.database_admin_url
            else None
        )
        if admin is not None and admin.database != memory.database:
            raise ConfigurationError(
                "DATABASE_URL and DATABASE_ADMIN_URL must name the same database, the one as the "
                "runtime role, the other as the owner."
            )
    dagster = (
        parse("DAGSTER_DATABASE_URL", settings.dagster_database_url.get_secret_value())
        if settings.dagster_database_url
        else memory.set(database=f"{memory.database}_dagster")
    )
    return Addresses(memory=memory, dagster=dagster, admin=admin)


def parse(name: str, value: str) -> URL:
    """A PostgreSQL URL on the psycopg2 driver. Raises ConfigurationError without echoing it."""
    try:
        address = make_url(value)
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise ConfigurationError(
            f"{name} is not a URL: write postgresql://role:password@host:5432/database."
        ) from None
    if "@" in (address.host or ""):
        raise ConfigurationError(f"{name} has an @ in its password or host: write it as %40.")
    if address.get_backend_name() not in ("postgresql", "postgres"):
        raise ConfigurationError(f"{name} must be a postgresql:// URL.")
    # A bare postgresql:// picks psycopg 3 under SQLAlchemy 2.1, which Dagster cannot use.
    return address.set(drivername="postgresql+psycopg2")
