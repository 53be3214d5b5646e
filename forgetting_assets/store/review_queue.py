"""What waits for a human, of every kind of proposal, and the texts that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import sql
from resources.database import Database

QUERIES = sql.load("review_queue")
CATALOG = sql.load("catalog")


def count(database: Database, user_id: UUID) -> dict[str, int | None]:
    """How many proposals of each kind are open; None where they cannot be counted."""
    with database.tenant(user_id) as tx:
        return {
            row.kind: tx.one(QUERIES[f"count_{row.kind}"]).waiting if row.can_be_counted else None
            for row in tx.rows(CATALOG["find_review_queues"])
        }


def contents(database: Database, user_id: UUID, memory_ids: Iterable[UUID]) -> dict[UUID, str]:
    """What each of some memories says now."""
    with database.tenant(user_id) as tx:
        rows = tx.rows(QUERIES["read_contents"], ids=list(memory_ids))
    return {row.id: row.content for row in rows}
