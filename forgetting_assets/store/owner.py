"""A transaction of the owner of the tables, for what the runtime role may not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from resources.database import check_version, engine, first_line, sentences
from resources.errors import ConfigurationError, DatabaseUnreachable


@contextmanager
def begin(admin: sa.URL | None, what: str) -> Iterator[sa.Connection]:
    """A transaction of the owner, who does ``what``: commits at the end, rolls back on any error.

    Raises ConfigurationError without the owner's address, DatabaseUnreachable and NotMigrated.
    """
    if admin is None:
        raise ConfigurationError(
            f"{what} needs the owner of the tables: set DATABASE_ADMIN_URL to the role that "
            "migrates."
        )
    pool = engine(admin)
    try:
        connection = pool.connect()
    except OperationalError as error:
        pool.dispose()
        raise DatabaseUnreachable(
            f"The server does not answer or refuses the login: check DATABASE_ADMIN_URL "
            f"({first_line(error)})."
        ) from None
    try:
        with sentences(), connection, connection.begin():
            check_version(connection)
            yield connection
    finally:
        pool.dispose()
