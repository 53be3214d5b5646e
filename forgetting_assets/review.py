"""A person decides: list, show, accept, reject, undo. The only way a proposal changes a memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

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


def accept(
    database: Database,
    user_id: UUID,
    proposal_id: UUID,
    now: datetime,
    batch_id: UUID | None = None,
) -> int:
    """Apply an open proposal and return the number of memories changed (ADR, Accepting).

    archive: the memory is archived. supersede: the older memory's validity ends and a `supersedes`
    edge is written. conflict: only the review is recorded. All in one transaction with an audit
    row; content, topic and tags are never touched. Both sides are read again under lock. Raises
    ReviewRefused, and then the proposal stays open, when a side changed since the verdict, is not
    live any more, or may not be changed this way. Decisions of one ``batch_id`` can be undone as
    one.
    """
    with database.tenant(user_id, exclusive=True) as tx:
        proposal = _lock(tx, proposal_id)
        if _superseded_already(tx, proposal):
            _decide(tx, proposal_id, "applied", now, batch_id)
            return 0
        before = _require_unchanged(tx, proposal)
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
        _decide(tx, proposal_id, "applied", now, batch_id, changed, before if changed else None)
        return changed


def reject(
    database: Database,
    user_id: UUID,
    proposal_id: UUID,
    now: datetime,
    batch_id: UUID | None = None,
) -> None:
    """Say no: final for this memory and action until its freshness moves. Raises ReviewRefused."""
    with database.tenant(user_id, exclusive=True) as tx:
        _lock(tx, proposal_id)
        _decide(tx, proposal_id, "rejected", now, batch_id)


def undo(database: Database, user_id: UUID, proposal_id: UUID, now: datetime) -> int:
    """Take the last decision on a proposal back; how many memories are as they were before it.

    The memory's row becomes byte for byte what it was, the edge of a supersede goes, the audit
    trail stays and tells of both, and the proposal is open again. Raises ReviewRefused, and changes
    nothing, when something that came later depends on the decision.
    """
    with database.tenant(user_id, exclusive=True) as tx:
        decided = tx.first(QUERIES["lock_decided"], id=proposal_id)
        if decided is None:
            raise ReviewRefused(f"The tenant has no decided proposal {proposal_id} to undo.")
        if decided.decision not in ("accept", "reject"):
            raise ReviewRefused(
                f"Proposal {proposal_id} was decided by an older release, which kept nothing to "
                "undo it with."
            )
        memory_type = _require_undoable(tx, decided)
        if decided.memories_changed:
            _restore(tx, decided)
            _audit(tx, decided, "revise", now, undone=decided.action)
        # What became episodic meanwhile is proposed for nothing.
        status = "dismissed" if memory_type in ("event", "note") else "proposed"
        tx.run(QUERIES["reopen_proposal"], id=proposal_id, status=status)
        tx.run(
            QUERIES["insert_decision"],
            batch_id=uuid4(),
            proposal_id=proposal_id,
            decision="undo",
            memories_changed=decided.memories_changed,
            updated_at_before=None,
            now=now,
        )
        changed: int = decided.memories_changed
        return changed


def of_batch(database: Database, user_id: UUID, batch_id: UUID) -> list[UUID]:
    """The proposals that one command decided, last first. Raises ReviewRefused without any."""
    with database.tenant(user_id) as tx:
        found = [row.proposal_id for row in tx.rows(QUERIES["find_batch"], batch_id=batch_id)]
    if not found:
        raise ReviewRefused(f"The tenant has no decisions of a batch {batch_id}.")
    return found


def _decide(
    tx: TenantTransaction,
    proposal_id: UUID,
    status: str,
    now: datetime,
    batch_id: UUID | None,
    changed: int = 0,
    before: datetime | None = None,
) -> None:
    tx.run(QUERIES["decide_proposal"], id=proposal_id, status=status, now=now)
    tx.run(
        QUERIES["insert_decision"],
        batch_id=batch_id or uuid4(),
        proposal_id=proposal_id,
        decision="accept" if status == "applied" else "reject",
        memories_changed=changed,
        updated_at_before=before,
        now=now,
    )


def _require_undoable(tx: TenantTransaction, decided: sa.Row[Any]) -> str:
    """Nothing that came later stands on the decision; the memory's type as it is now."""
    sides = [id_ for id_ in (decided.memory_id, decided.related_memory_id) if id_]
    # Both sides are locked, so that they stay what they are found to be.
    now_there = {row.id: row for row in tx.rows(QUERIES["lock_sides"], ids=sides)}
    if waiting := tx.first(QUERIES["find_waiting"], ids=sides):
        raise ReviewRefused(
            f"Proposal {waiting.proposal_id} about the same memory is open: decide that one first."
        )
    memory_type: str = now_there[decided.memory_id].memory_type
    if not decided.memories_changed:
        return memory_type
    newer = now_there.get(decided.related_memory_id)
    if decided.action == "supersede" and not (newer and newer.is_live):
        raise ReviewRefused(
            f"Memory {decided.related_memory_id}, which took its place, is no longer live itself: "
            "undo that first."
        )
    twin = tx.first(
        QUERIES["find_twin"], id=decided.memory_id, content_hash=decided.memory_content_hash
    )
    if twin:
        raise ReviewRefused(
            f"Memory {twin.id} says exactly the same meanwhile, so both cannot stand."
        )
    return memory_type


def _restore(tx: TenantTransaction, decided: sa.Row[Any]) -> None:
    restored = tx.run(
        QUERIES["restore_memory"],
        id=decided.memory_id,
        action=decided.action,
        content_hash=decided.memory_content_hash,
        freshness=decided.memory_freshness,
        decided_at=decided.decided_at,
        updated_at_before=decided.updated_at_before,
    )
    if restored != 1:
        raise ReviewRefused(
            f"Memory {decided.memory_id} was changed or reviewed since it was decided, so undoing "
            "would lose that. Nothing was changed."
        )
    if decided.action == "supersede" and tx.one(QUERIES["remove_edge"], id=decided.id).removed != 1:
        raise ReviewRefused(
            f"The edge that accepting {decided.id} wrote is not there any more, so it cannot be "
            "taken back. Nothing was changed."
        )


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


def _require_unchanged(tx: TenantTransaction, proposal: sa.Row[Any]) -> datetime:
    """Both sides are live, not episodic, and what the judge saw; the subject's updated_at."""
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
    updated_at: datetime = now_there[proposal.memory_id].updated_at
    return updated_at


def _audit(
    tx: TenantTransaction,
    proposal: sa.Row[Any],
    event_kind: str,
    now: datetime,
    undone: str | None = None,
) -> None:
    related = proposal.related_memory_id
    taken_back = {"undone": undone} if undone else {}
    tx.run(
        QUERIES["insert_event"],
        memory_id=proposal.memory_id,
        event_kind=event_kind,
        actor=ACTOR,
        payload=json.dumps(
            {
                "proposal_id": str(proposal.id),
                "related_memory_id": str(related) if related else None,
                **taken_back,
            }
        ),
        now=now,
    )
