"""The SQL of the project and the loader of its named queries.

Here belong statements (queries/), schema (migrations/) and what analysts read (views/), plus the
few lines that find them. No Python logic about memories belongs here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import MappingProxyType

from sqlalchemy import Connection, TextClause, text

ROOT = Path(__file__).parent

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def load(noun: str) -> MappingProxyType[str, TextClause]:
    """The named queries of ``sql/queries/<noun>.sql``, by name, in the file's order.

    A block starts with ``-- name: verb_object`` and runs to the next one. Raises ValueError when
    two blocks share a name or text stands before the first.
    """
    head, *parts = _NAME.split((ROOT / "queries" / f"{noun}.sql").read_text(encoding="utf-8"))
    if any(line and not line.startswith("--") for line in head.splitlines()):
        raise ValueError(f"sql/queries/{noun}.sql has a statement before its first '-- name:' line")
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"sql/queries/{noun}.sql names a query twice")
    return MappingProxyType(
        {name: text(body.strip()) for name, body in zip(names, bodies, strict=True)}
    )


def run_file(connection: Connection, path: Path) -> None:
    """Run a file of statements as it stands, in the connection's transaction.

    On the driver's cursor: a statement given parameters, even none, would have its % signs read.
    """
    cursor = connection.connection.cursor()
    cursor.execute(path.read_text(encoding="utf-8"))
    cursor.close()
