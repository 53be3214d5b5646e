"""All rows of one tenant, table by table, as the catalog lists the tables.

Here belong counting, reading, adding and removing them. Files belong in portability.py, and who may
erase a tenant in erasure.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

import sql

QUERIES = sql.load("tenant_rows")

BUFFERED = 50
"""Rows that are held at once while a table is read."""


@dataclass(frozen=True)
class TenantTable:
    """A table that holds rows of tenants, and the statements for them.

    ``clearing``: takes what the planner keeps of its columns; None where the server cannot.
    """

    name: str
    counting: str
    reading: str
    adding: str
    removing: str
    clearing: str | None
    analyzing: str


def tables(connection: sa.Connection) -> list[TenantTable]:
    """Every table that holds rows of tenants, those that others refer to first."""
    rows = connection.execute(QUERIES["list_tables"])
    return [TenantTable(**row._mapping) for row in rows]


def count(connection: sa.Connection, of: Sequence[TenantTable], user_id: UUID) -> Mapping[str, int]:
    """How many rows the tenant has in each table."""
    bound = {"user_id": str(user_id)}
    return {each.name: connection.exec_driver_sql(each.counting, bound).scalar_one() for each in of}


def read(connection: sa.Connection, table: TenantTable, user_id: UUID) -> Iterator[str]:
    """Each row as one JSON object, by primary key; a cursor of the server holds few at once."""
    streaming = {"stream_results": True, "max_row_buffer": BUFFERED}
    bound = {"user_id": str(user_id)}
    with connection.exec_driver_sql(table.reading, bound, streaming) as rows:
        yield from rows.scalars()


def add(connection: sa.Connection, table: TenantTable, lines: Sequence[str]) -> None:
    """Insert rows, each the ``row`` of a JSON object."""
    connection.exec_driver_sql(table.adding, {"rows": f"[{','.join(lines)}]"})


def remove(connection: sa.Connection, of: Sequence[TenantTable], user_id: UUID) -> int:
    """Delete every row of the tenant, those that refer to others first; how many.

    What the planner keeps of the columns, which are values of rows, is made anew.
    """
    bound = {"user_id": str(user_id)}
    gone = sum(connection.exec_driver_sql(each.removing, bound).rowcount for each in reversed(of))
    for each in of:
        if each.clearing is not None:
            connection.exec_driver_sql(each.clearing)
        connection.exec_driver_sql(each.analyzing)
    return gone
