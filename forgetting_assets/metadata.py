"""What every materialization tells the Dagster UI: counts, schema, lineage and a small preview.

Ids, types and figures only. Memory text never becomes metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

import sql
from resources.database import Database

QUERIES = sql.load("catalog")
PREVIEW_ROWS = 10

Cell = str | int | float | bool


def table_schema(database: Database, table: str) -> dg.TableSchema:
    """A table's columns with the comments that the database keeps on them."""
    with database.registry() as connection:
        rows = connection.execute(QUERIES["describe_table"], {"table_name": table}).all()
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                row.name,
                row.type,
                description=row.description,
                constraints=dg.TableColumnConstraints(nullable=not row.is_required),
            )
            for row in rows
        ]
    )


def lineage(columns: Mapping[str, Sequence[tuple[str, str]]]) -> dg.TableColumnLineage:
    """Column lineage from ``{column: [(upstream asset, its column), …]}``."""
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(dg.AssetKey(asset), source) for asset, source in sources]
            for column, sources in columns.items()
        }
    )


def preview(rows: Sequence[Mapping[str, Cell]]) -> dg.TableMetadataValue:
    """The first rows as a table. Pass ids, types and figures, never text."""
    return table(rows[:PREVIEW_ROWS])


def table(rows: Sequence[Mapping[str, Cell]]) -> dg.TableMetadataValue:
    """All rows as a table. Pass ids, types and figures, never text."""
    if not rows:
        return dg.MetadataValue.table(
            [], schema=dg.TableSchema(columns=[dg.TableColumn("empty", "string")])
        )
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows])
