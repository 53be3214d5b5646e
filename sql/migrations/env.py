"""Alembic's entry: runs the migrations on the connection that ``resources.migrations`` passes."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

connection = context.config.attributes["connection"]
connection.execute(text("CREATE SCHEMA IF NOT EXISTS forgetting"))
context.configure(
    connection=connection,
    version_table="schema_version",
    version_table_schema="forgetting",
)
with context.begin_transaction():
    context.run_migrations()
