"""A person decides: list, show, accept, reject. The only way a proposal changes a memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

import sql
from resources.database import Database, TenantTransaction
from resources.errors import ReviewRefused

QUERIES = sql.load("review")
ACTOR = "forgetting_review"


def list_open(database: Database, user_id: UUID) -> Sequence[sa.Row[Any]]:
    """The open proposals of a tenant, oldest first."""
    with database.tenant(user_id) as tx:
        return tx.rows(QUERIES["list_open"])


def show(database: Database, user_id: UUID, proposal_id: UUID) -> Mapping[str, Any]:
    """One proposal in any status with both sides. Raises ReviewRefused when there is none."""
    with database.tenant(user_id) as tx:
        row = tx.first(QUERIES["show_proposal"], id=proposal_id)
    if row is None:
        raise ReviewRefused(f"The tenant has no proposal {proposal_id}.")
    return dict(row._mapping)


def accept(database: Database, user_id: UUID, proposal_id: UUID, now: datetime) -> int:
    """Apply an open proposal and return the number of memories changed (ADR, Accepting).

    archive: the memory is archived. supersede: the older memory's validity ends and a `supersedes`
    edge is written. conflict: only the review is recorded. All in one transaction with an audit
    row; content, topic and tags are never touched. Both sides are read again under lock. Raises
    ReviewRefused, and then the proposal stays open, when a side changed since the verdict, is not
    live any more, or may not be changed this way.
    """
    with database.tenant(user_id, exclusive=True) as tx:
        proposal = _lock(tx, proposal_id)
        if _superseded_already(tx, proposal):
            tx.run(QUERIES["decide_proposal"], id=proposal_id, status="applied", now=now)
            return 0
        _require_unchanged(tx, proposal)
        changed = 0
        if proposal.action == "archive":
            changed = tx.run(QUERIES["archive_memory"], id=proposal.memory_id, now=now)
            _audit(tx, proposal, "archive", now)
        elif proposal.action == "supersede":
            changed = tx.run(QUERIES["close_memory"], id=proposal.memory_id, now=now)
            tx.run(
                QUERIES["insert_supersedes_edge"],
                newer_id=proposal.related_memory_id,
                older_id=proposal.memory_id,
                actor=ACTOR,
                now=now,
            )
            _audit(tx, proposal, "supersede", now)
        tx.run(QUERIES["decide_proposal"], id=proposal_id, status="applied", now=now)
        return changed


def reject(database: Database, user_id: UUID, proposal_id: UUID, now: datetime) -> None:
    """Say no: final for this memory and action until its freshness moves. Raises ReviewRefused."""
    with database.tenant(user_id, exclusive=True) as tx:
        _lock(tx, proposal_id)
        tx.run(QUERIES["decide_proposal"], id=proposal_id, status="rejected", now=now)


def _lock(tx: TenantTransaction, proposal_id: UUID) -> sa.Row[Any]:
    proposal = tx.first(QUERIES["lock_open"], id=proposal_id)
    if proposal is None:
        raise ReviewRefused(
            f"The tenant has no open proposal {proposal_id}: it may be decided or withdrawn "
            "already. `forgetting review list` shows the open ones."
        )
    return proposal


def _superseded_already(tx: TenantTransaction, proposal: sa.Row[Any]) -> bool:
    return proposal.action == "supersede" and bool(
        tx.one(
            QUERIES["has_edge"],
            newer_id=proposal.related_memory_id,
            older_id=proposal.memory_id,
        ).present
    )


def _require_unchanged(tx: TenantTransaction, proposal: sa.Row[Any]) -> None:
    """Both sides are live, not episodic, and exactly what the judge saw."""
    # An item is of one type: the related memory has the subject's.
    type_ = proposal.memory_type
    seen = {proposal.memory_id: (type_, proposal.memory_content_hash, proposal.memory_freshness)}
    if proposal.related_memory_id is not None:
        seen[proposal.related_memory_id] = (
            type_,
            proposal.related_content_hash,
            proposal.related_freshness,
        )
    now_there = {row.id: row for row in tx.rows(QUERIES["lock_sides"], ids=list(seen))}
    for memory_id, as_judged in seen.items():
        memory = now_there.get(memory_id)
        if memory is None or not memory.is_live:
            raise ReviewRefused(
                f"Memory {memory_id} is no longer live, so the proposal cannot be applied. "
                "Reject it, or let the next pass withdraw it."
            )
        if memory.memory_type in ("event", "note"):
            raise ReviewRefused(f"Memory {memory_id} is episodic now and is never collapsed.")
        if (memory.memory_type, memory.content_hash, memory.freshness) != as_judged:
            raise ReviewRefused(
                f"Memory {memory_id} was changed or reviewed since the judge saw it. Reject the "
                "proposal, or let the next pass withdraw it and judge the memory anew."
            )


def _audit(tx: TenantTransaction, proposal: sa.Row[Any], event_kind: str, now: datetime) -> None:
    related = proposal.related_memory_id
    tx.run(
        QUERIES["insert_event"],
        memory_id=proposal.memory_id,
        event_kind=event_kind,
        actor=ACTOR,
        payload=json.dumps(
            {
                "proposal_id": str(proposal.id),
                "related_memory_id": str(related) if related else None,
            }
        ),
        now=now,
    )
