"""What the UI says of the tables that the pass only reads is what the database says of them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

import sql
from forgetting_assets.metadata import QUERIES
from resources.database import Database

FILE = sql.ROOT / "source_tables.json"
TABLES = ("public.memories", "public.evidence")


def test_the_columns_of_the_source_tables_are_those_of_the_database(database: Database) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES:
        with database.registry() as connection:
            rows = connection.execute(QUERIES["describe_table"], {"table_name": table})
            found[table] = [dict(row._mapping) for row in rows]
    if os.environ.get("UPDATE_SCHEMA"):
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    written = json.loads(FILE.read_text(encoding="utf-8"))
    if written != found:
        pytest.fail(
            f"{FILE.name} has other columns than the database: write it anew with UPDATE_SCHEMA=1 "
            "pytest tests/integration/test_source_tables.py, and read the diff."
        )
    assert all(len(found[table]) > 10 for table in TABLES)
