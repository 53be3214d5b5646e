"""A person decides: list, show, accept, reject, undo. The only way a proposal changes a memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

import sqlalchemy as sa

import sql
from resources.database import Database, TenantTransaction
from resources.errors import RefusalReason, ReviewRefused

QUERIES = sql.load("review")
ACTOR = "forgetting_review"
EPISODIC = ("event", "note")
CLOSING: frozenset[RefusalReason] = frozenset({"changed", "gone", "episodic", "touched"})
"""Why a proposal can never be applied: it is closed, so that nobody meets it again."""
STAYS_OPEN: frozenset[RefusalReason] = frozenset({"no_embedding", "no_verdict", "not_yet"})
"""Why a proposal cannot be applied now: it is open all the same."""

Action = Literal["archive", "supersede", "conflict"]
MemoryType = Literal["decision", "preference", "blocker", "fact"]
"""What may be judged."""
Sort = Literal["surest", "newest"]


@dataclass(frozen=True)
class Filters:
    """Which open proposals are wanted, and in which order. None leaves all through.

    The days are the age of the proposal. surest: the most probable first, of those the oldest.
    """

    action: Action | None = None
    memory_type: MemoryType | None = None
    older_than_days: int | None = None
    younger_than_days: int | None = None
    min_probability: float | None = None
    max_probability: float | None = None
    sort: Sort = "surest"
    limit: int | None = 50


@dataclass(frozen=True)
class Listing:
    """The open proposals that pass the filters, and how many are open in all, by action."""

    rows: Sequence[sa.Row[Any]]
    counts: Mapping[str, int]


def list_open(database: Database, user_id: UUID, filters: Filters, now: datetime) -> Listing:
    """The open proposals of a tenant that pass the filters."""
    with database.tenant(user_id) as tx:
        rows = tx.rows(
            QUERIES["list_open"],
            action=filters.action,
            memory_type=filters.memory_type,
            created_before=_days_before(now, filters.older_than_days),
            created_after=_days_before(now, filters.younger_than_days),
            min_probability=filters.min_probability,
            max_probability=filters.max_probability,
            sort=filters.sort,
            most=filters.limit,
        )
        counts = {row.action: row.proposals for row in tx.rows(QUERIES["count_open"])}
    return Listing(rows, counts)


def show(database: Database, user_id: UUID, proposal_id: UUID) -> Mapping[str, Any]:
    """One proposal in any status with both sides as they are now.

    ``similarity`` is the cosine of their vectors, None where there is none. ``earlier`` has what
    the judge said about the memory before, newest first, ``history`` what was decided about the
    proposal and why it was closed, first to last. Raises ReviewRefused when there is none.
    """
    with database.tenant(user_id) as tx:
        row = tx.first(QUERIES["show_proposal"], id=proposal_id)
        if row is None:
            raise _unknown(proposal_id)
        comparable = (
            row.has_vector
            and row.related_has_vector
            and row.embedding_model == row.related_embedding_model
            # A zero vector is like no other.
            and not math.isnan(row.cosine)
        )
        return {
            **row._mapping,
            "similarity": row.cosine if comparable else None,
            "earlier": tx.rows(QUERIES["read_earlier"], id=proposal_id),
            "history": tx.rows(QUERIES["read_history"], id=proposal_id),
        }


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
    ReviewRefused, and then no memory is changed; a proposal that can never be applied any more is
    closed by that. Decisions of one ``batch_id`` can be undone as one.
    """
    with database.tenant(user_id, exclusive=True) as tx:
        proposal = _lock(tx, proposal_id)
        if proposal.verdict_id is None:
            raise ReviewRefused(
                f"Nothing tells what the judge of proposal {proposal_id} saw, as it has no verdict "
                "of this pass, so it cannot be applied. It stays open: reject it, or decide it "
                "with the program that wrote it.",
                "no_verdict",
            )
        sides = _lock_sides(tx, proposal)
        refused = _refuse_types(proposal, sides)
        if refused is None:
            if _superseded_already(tx, proposal):
                _decide(tx, proposal_id, "applied", now, batch_id)
                return 0
            refused = _refuse_sides(tx, proposal, sides, now)
        if refused is None:
            return _apply(tx, proposal, sides[proposal.memory_id].updated_at, now, batch_id)
        if refused.reason in CLOSING:
            tx.run(QUERIES["close_overtaken"], id=proposal_id, now=now)
    # Only now, so that the closing is committed.
    raise refused


def _apply(
    tx: TenantTransaction,
    proposal: sa.Row[Any],
    before: datetime,
    now: datetime,
    batch_id: UUID | None,
) -> int:
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
    _decide(tx, proposal.id, "applied", now, batch_id, changed, before if changed else None)
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


def undo(
    database: Database,
    user_id: UUID,
    proposal_id: UUID,
    now: datetime,
    batch_id: UUID | None = None,
) -> int:
    """Take the last decision on a proposal back; how many memories are as they were before it.

    The memory's row becomes byte for byte what it was, the edge of a supersede goes, the audit
    trail stays and tells of both, and the proposal is open again. Raises ReviewRefused, and changes
    nothing, when something that came later depends on the decision, or when it is not one of
    ``batch_id``.

    A memory that was filed as an event or a note since is not byte for byte what it was: it gets
    its attention and its time back and stays filed as it is, and the proposal is closed. Nothing
    but another text of it, or the same text elsewhere, keeps it from that: it may not stay ended.
    """
    with database.tenant(user_id, exclusive=True) as tx:
        decided = _lock_decided(tx, proposal_id)
        if batch_id and decided.batch_id != batch_id:
            raise ReviewRefused(
                f"Proposal {proposal_id} was decided elsewhere since, so that decision stays.",
                "decided",
            )
        # Both sides are locked, so that they stay what they are found to be.
        sides = _lock_sides(tx, decided)
        is_episodic = sides[decided.memory_id].memory_type in EPISODIC
        _require_undoable(tx, decided, sides, is_episodic)
        if decided.memories_changed:
            _restore(tx, decided, is_episodic)
            _audit(tx, decided, "revise", now, undone=decided.action)
        # What is of another type now, an event or a commitment, is proposed for nothing.
        if _refuse_types(decided, sides) is None:
            tx.run(QUERIES["reopen_proposal"], id=proposal_id)
        else:
            tx.run(QUERIES["close_overtaken"], id=proposal_id, now=now)
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


def require_open(database: Database, user_id: UUID, ids: Sequence[UUID]) -> None:
    """Raise ReviewRefused unless every proposal is open: a slip in a list decides nothing of it."""
    # Under the tenant's lock: rows locked in the order named would else deadlock with a pass.
    with database.tenant(user_id, exclusive=True) as tx:
        for id_ in ids:
            _lock(tx, id_)


def require_decided(database: Database, user_id: UUID, ids: Sequence[UUID]) -> None:
    """Raise ReviewRefused unless every proposal has a decision that can be undone."""
    with database.tenant(user_id, exclusive=True) as tx:
        for id_ in ids:
            _lock_decided(tx, id_)


def of_batch(database: Database, user_id: UUID, batch_id: UUID) -> list[UUID]:
    """The proposals whose last decision is of the batch, last first.

    Raises ReviewRefused without any: what was undone since, or decided anew, is not the batch's.
    """
    with database.tenant(user_id) as tx:
        found = [row.proposal_id for row in tx.rows(QUERIES["find_batch"], batch_id=batch_id)]
    if not found:
        raise ReviewRefused(
            f"The tenant has no decisions of a batch {batch_id} that stand.", "unknown"
        )
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


def _require_undoable(
    tx: TenantTransaction,
    decided: sa.Row[Any],
    sides: Mapping[UUID, sa.Row[Any]],
    is_episodic: bool,
) -> None:
    """Raise ReviewRefused when something that came later stands on the decision."""
    # What is episodic is proposed for nothing again, so no other proposal is beside it.
    contradicting = not is_episodic and tx.first(
        QUERIES["find_contradicting"],
        id=decided.id,
        memory_id=decided.memory_id,
        related_memory_id=decided.related_memory_id,
    )
    if contradicting:
        raise ReviewRefused(
            f"Proposal {contradicting.id} about the same memory is open: decide that one first.",
            "depends",
        )
    if not decided.memories_changed:
        return
    newer = sides.get(decided.related_memory_id)
    if decided.action == "supersede" and not is_episodic and not (newer and newer.is_live):
        raise ReviewRefused(
            f"Memory {decided.related_memory_id}, which took its place, is no longer live itself: "
            "undo that first.",
            "depends",
        )
    twin = tx.first(
        QUERIES["find_twin"], id=decided.memory_id, content_hash=decided.memory_content_hash
    )
    if twin:
        raise ReviewRefused(
            f"Memory {twin.id} says exactly the same meanwhile, so both cannot stand.", "depends"
        )


def _restore(tx: TenantTransaction, decided: sa.Row[Any], is_episodic: bool) -> None:
    judged = {"id": decided.memory_id, "content_hash": decided.memory_content_hash}
    accepted = {"action": decided.action, "decided_at": decided.decided_at}
    if is_episodic:
        restored = tx.run(QUERIES["restore_episodic"], **judged, **accepted)
    else:
        restored = tx.run(
            QUERIES["restore_memory"],
            **judged,
            **accepted,
            freshness=decided.memory_freshness,
            updated_at_before=decided.updated_at_before,
        )
    if restored != 1:
        raise ReviewRefused(
            f"Memory {decided.memory_id} was changed or reviewed since it was decided, so undoing "
            "would lose that. Nothing was changed.",
            "depends",
        )
    if decided.action != "supersede":
        return
    removed = tx.one(QUERIES["remove_edge"], id=decided.id).removed
    if removed != 1 and not is_episodic:
        raise ReviewRefused(
            f"The edge that accepting {decided.id} wrote is not there any more, so it cannot be "
            "taken back. Nothing was changed.",
            "depends",
        )


def _lock(tx: TenantTransaction, proposal_id: UUID) -> sa.Row[Any]:
    """The open proposal, locked."""
    proposal = tx.first(QUERIES["lock_proposal"], id=proposal_id)
    if proposal is None:
        raise _unknown(proposal_id)
    if proposal.status == "proposed":
        return proposal
    if proposal.ended_at is None:
        # Dismissed from the first, or withdrawn by a release that kept no record of it.
        how = (
            f"of {_moment(proposal.created_at)} is {proposal.status}; when and why is not recorded"
        )
    else:
        as_ = f" as {proposal.closed}" if proposal.status == "dismissed" else ""
        how = f"was {proposal.status}{as_} on {_moment(proposal.ended_at)}"
    raise ReviewRefused(f"Proposal {proposal_id} {how}.", "decided")


def _lock_decided(tx: TenantTransaction, proposal_id: UUID) -> sa.Row[Any]:
    """The decided proposal with its last decision, locked."""
    decided = tx.first(QUERIES["lock_decided"], id=proposal_id)
    if decided is None:
        raise ReviewRefused(f"The tenant has no decided proposal {proposal_id} to undo.", "unknown")
    if decided.decision not in ("accept", "reject"):
        raise ReviewRefused(
            f"Proposal {proposal_id} was decided by an older release, which kept nothing to undo "
            "it with.",
            "decided",
        )
    return decided


def _unknown(proposal_id: UUID) -> ReviewRefused:
    """One answer, whether there is none or it is another tenant's."""
    return ReviewRefused(
        f"The tenant has no proposal {proposal_id}. `forgetting review list` shows the open ones.",
        "unknown",
    )


def _lock_sides(tx: TenantTransaction, proposal: sa.Row[Any]) -> dict[UUID, sa.Row[Any]]:
    """The memories of a proposal as they are now, locked, the subject first."""
    ids = [id_ for id_ in (proposal.memory_id, proposal.related_memory_id) if id_]
    found = {row.id: row for row in tx.rows(QUERIES["lock_sides"], ids=ids)}
    return {id_: found[id_] for id_ in ids}


def _superseded_already(tx: TenantTransaction, proposal: sa.Row[Any]) -> bool:
    return proposal.action == "supersede" and bool(
        tx.one(
            QUERIES["has_edge"],
            newer_id=proposal.related_memory_id,
            older_id=proposal.memory_id,
        ).present
    )


def _refuse_types(proposal: sa.Row[Any], sides: Mapping[UUID, sa.Row[Any]]) -> ReviewRefused | None:
    """Refuse what is of another type than the judge saw, whatever else is true of it."""
    for side in sides.values():
        if side.memory_type in EPISODIC:
            return _never(proposal, f"Memory {side.id} is episodic now", "episodic")
        # An item is of one type: the related memory has the subject's. Without a verdict, any.
        if proposal.memory_type not in (None, side.memory_type):
            return _never(proposal, f"Memory {side.id} is of another type now", "changed")
    return None


def _refuse_sides(
    tx: TenantTransaction, proposal: sa.Row[Any], sides: Mapping[UUID, sa.Row[Any]], now: datetime
) -> ReviewRefused | None:
    """Refuse unless both sides are live and exactly what the judge saw."""
    seen = {
        proposal.memory_id: (proposal.memory_content_hash, proposal.memory_freshness),
        proposal.related_memory_id: (proposal.related_content_hash, proposal.related_freshness),
    }
    for id_, side in sides.items():
        if side.is_live and (side.content_hash, side.freshness) == seen[id_]:
            continue
        touching = tx.first(QUERIES["find_touching"], memory_id=id_, created_at=proposal.created_at)
        if touching:
            what = f"Memory {id_} was changed by accepting proposal {touching.id}"
            return _never(proposal, what, "touched")
        if not side.is_live:
            return _never(proposal, f"Memory {id_} is no longer live", "gone")
        what = f"Memory {id_} was changed or reviewed since the judge saw it"
        return _never(proposal, what, "changed")
    if proposal.action == "supersede" and not sides[proposal.related_memory_id].has_vector:
        return ReviewRefused(
            f"Memory {proposal.related_memory_id} has no vector, so what takes the older one's "
            f"place could not be found. Proposal {proposal.id} stays open: reject it, or accept it "
            "when the memory has one.",
            "no_embedding",
        )
    valid_from = sides[proposal.memory_id].valid_from
    if proposal.action == "supersede" and valid_from > now:
        return ReviewRefused(
            f"Memory {proposal.memory_id} is not valid before {_moment(valid_from)}, so its "
            f"validity cannot end now. Proposal {proposal.id} stays open: reject it, or accept it "
            "then.",
            "not_yet",
        )
    return None


def _never(proposal: sa.Row[Any], what: str, reason: RefusalReason) -> ReviewRefused:
    return ReviewRefused(
        f"{what}, so proposal {proposal.id} can never be applied. It is closed, which is not a "
        "rejection; no memory was changed.",
        reason,
    )


def _days_before(now: datetime, days: int | None) -> datetime | None:
    # A century is before every proposal, and no date before the calendar's first.
    return None if days is None else now - timedelta(days=min(days, 36_500))


def _moment(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d at %H:%M} UTC"


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
