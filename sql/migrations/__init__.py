"""The schema, in order. Each revision runs one SQL file; nothing here goes backwards."""

from __future__ import annotations

from pathlib import Path

from alembic import op

import sql


def upgrade_with(name: str) -> None:
    """Run one migration file."""
    sql.run_file(op.get_bind(), Path(__file__).parent / name)
