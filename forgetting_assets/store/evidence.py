"""Evidence: recording it, using it, crediting it, reaching it by its id, forgetting it for good.

What moves between the hot and the archive tier stands in tier.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

import sqlalchemy as sa
from pydantic import ValidationError

import sql
from forgetting_assets.records import (
    EARLIEST,
    EvidenceRecord,
    Storable,
    is_storable,
    reasons,
)
from forgetting_assets.store import tenants, tier
from resources.database import Database, TenantTransaction
from resources.errors import EvidenceRefused, StoreRefused, some

QUERIES = sql.load("evidence")

CHUNK = 500
"""Entries that one statement inserts at most."""
CHUNK_BYTES = 32_000_000
"""Bytes of content after which a statement takes no further entry."""
MOST = 100
"""Entries that one retrieval returns at most."""
AHEAD = timedelta(days=1)
"""How far an agent's clock may be ahead of ours."""

Outcome = Literal["success", "reinforcement"]


@dataclass(frozen=True)
class Entry:
    """One piece of evidence, exactly as it was recorded. ``archived_at`` None: it is hot."""

    id: UUID
    session_id: str
    kind: str
    content: str
    occurred_at: datetime | None
    archived_at: datetime | None


@dataclass(frozen=True)
class Hit:
    """A hot entry that was retrieved, and its cosine with what was asked for."""

    id: UUID
    session_id: str
    kind: str
    content: str
    occurred_at: datetime | None
    similarity: float


@dataclass(frozen=True)
class Forgotten:
    """How many entries were deleted for good, under which batch of forgetting.forgotten."""

    entries: int
    batch_id: UUID


def record(
    database: Database,
    user_id: UUID,
    records: Sequence[EvidenceRecord],
    now: datetime,
    *,
    limit: int,
) -> list[UUID]:
    """Record evidence, all of it or none; the ids that are new.

    An entry whose id is there already with the same content is left as it is, so sending again
    adds nothing. ``limit`` is the most bytes of one content. Raises EvidenceRefused, and
    RetiredTenant.
    """
    _require_recordable(records, now, limit)
    for attempt in range(2):
        try:
            with database.tenant(user_id) as tx:
                tenants.require_not_retired(tx)
                return _insert_unknown(tx, records, now)
        except StoreRefused as refused:
            if "evidence_pkey" not in str(refused):
                raise
            # Sent twice at once, the same entry is known by now; else it is another tenant's id.
            if attempt:
                raise EvidenceRefused(
                    "An id cannot be used: leave ids out, or make random ones. Nothing was "
                    "recorded."
                ) from None
    raise AssertionError


def _insert_unknown(
    tx: TenantTransaction, records: Sequence[EvidenceRecord], now: datetime
) -> list[UUID]:
    known = {
        row.id: (row.session_id, row.kind, row.content_sha256)
        for row in tx.rows(QUERIES["find_known"], ids=[each.id for each in records])
    }
    for each in records:
        digest = hashlib.sha256(each.content.encode()).hexdigest()
        if known.get(each.id) not in (None, (each.session_id, each.kind, digest)):
            raise EvidenceRefused(
                f"The id {each.id} is taken by another entry or was forgotten: nothing is "
                "overwritten, and nothing was recorded."
            )
    new = [each for each in records if each.id not in known]
    for chunk in _chunks(new):
        rows = json.dumps([each.row(now) for each in chunk])
        tx.run(QUERIES["insert_evidence"], rows=rows)
    return [each.id for each in new]


def _chunks(records: Sequence[EvidenceRecord]) -> Iterator[list[EvidenceRecord]]:
    """The records in order, in parts that one JSON array of the database can hold."""
    chunk: list[EvidenceRecord] = []
    size = 0
    for each in records:
        chunk.append(each)
        size += len(each.content.encode())
        if len(chunk) == CHUNK or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _require_recordable(records: Sequence[EvidenceRecord], now: datetime, limit: int) -> None:
    if not records:
        raise EvidenceRefused("Name at least one entry to record.")
    if len({each.id for each in records}) < len(records):
        raise EvidenceRefused("Two of the entries have one id. Nothing was recorded.")
    for each in records:
        if (size := len(each.content.encode())) > limit:
            raise EvidenceRefused(
                f"An entry has {size} bytes, the limit is {limit}: store it elsewhere and record "
                "where, or raise FORGETTING_ENTRY_BYTES. Nothing was recorded."
            )
        if each.occurred_at is not None and not EARLIEST <= each.occurred_at <= now + AHEAD:
            raise EvidenceRefused(
                "An entry's time is before 1970 or more than a day ahead: leave it null when it is "
                "not known. Nothing was recorded."
            )


def touch(database: Database, user_id: UUID, ids: Sequence[UUID], now: datetime) -> int:
    """Say that entries were retrieved, which keeps them hot for a window; how many.

    Raises EvidenceRefused, and then none is touched, when there is none or one is not the tenant's.
    """
    with database.tenant(user_id) as tx:
        used = _use(tx, ids, "touch", now)
    return len(used)


def credit(
    database: Database, user_id: UUID, ids: Sequence[UUID], outcome: Outcome, now: datetime
) -> int:
    """Attribute a good outcome to entries, which keeps them hot for good; how many.

    An archived one comes back: it turned out to matter. Raises EvidenceRefused, and then none is
    credited, when there is none or one is not the tenant's.
    """
    with database.tenant(user_id) as tx:
        locked = _use(tx, ids, "credit", now, outcome=outcome)
        if archived := [row.id for row in locked if row.archived_at is not None]:
            tier.bring_back(tx, archived, "credited", now)
    return len(locked)


def retrieve(
    database: Database,
    user_id: UUID,
    embedding: Sequence[float],
    embedding_model: str,
    now: datetime,
    *,
    most: int = 10,
    session_id: str | None = None,
) -> list[Hit]:
    """The hot entries nearest to a vector of 1,536 values, nearest first; each counts as used.

    Exact: every hot vector of that model is compared. Raises EvidenceRefused on a vector that has
    no direction, and on ``most`` outside 1 to 100.
    """
    if not 1 <= most <= MOST:
        raise EvidenceRefused(f"A retrieval returns 1 to {MOST} entries, not {most}.")
    if session_id is not None and not is_storable(session_id):
        raise _no_session(session_id)
    try:
        wanted = Storable(embedding=list(embedding), embedding_model=embedding_model)
    except ValidationError as error:
        raise EvidenceRefused(f"Nothing can be retrieved: {reasons(error)}.") from None
    with database.tenant(user_id) as tx:
        rows = tx.rows(
            QUERIES["find_nearest"],
            embedding=wanted.vector,
            embedding_model=wanted.embedding_model,
            session_id=session_id,
            most=most,
        )
        # A zero vector that somebody else wrote is like no other: its cosine is NaN.
        hits = [Hit(**row._mapping) for row in rows if not math.isnan(row.similarity)]
        # What somebody forgot since it was found is not returned.
        there = tx.rows(QUERIES["lock_entries"], ids=[hit.id for hit in hits])
        _write_down(tx, there, "touch", now)
    kept = {row.id for row in there}
    return [hit for hit in hits if hit.id in kept]


def dereference(database: Database, user_id: UUID, entry_id: UUID, now: datetime) -> Entry:
    """The entry of that id from any tier, with its exact bytes (BR-40). Reading it is a use.

    Raises EvidenceRefused when the tenant has no such entry.
    """
    with database.tenant(user_id) as tx:
        [row] = _use(tx, [entry_id], "dereference", now)
    return Entry(**row._mapping)


def forgettable(
    database: Database,
    user_id: UUID,
    *,
    lesson_id: UUID | None = None,
    session_id: str | None = None,
) -> int:
    """How many entries forget() would delete. Raises EvidenceRefused as it does."""
    with database.tenant(user_id) as tx:
        return _forgettable(tx, lesson_id, session_id)


def forget(
    database: Database,
    user_id: UUID,
    now: datetime,
    *,
    lesson_id: UUID | None = None,
    session_id: str | None = None,
) -> Forgotten:
    """Delete one lesson, or everything that a session recorded, for good.

    Each entry leaves a row in forgetting.forgotten that says nothing of its content. Raises
    EvidenceRefused without exactly one of the two, and when there is no such lesson or session.
    """
    batch_id = uuid4()
    with database.tenant(user_id, exclusive=True) as tx:
        expected = _forgettable(tx, lesson_id, session_id)
        deleted = tx.one(
            QUERIES["forget"],
            lesson_id=lesson_id,
            session_id=session_id,
            batch_id=batch_id,
            now=now,
        ).entries
        if deleted < expected:
            raise EvidenceRefused(
                f"Only {deleted} of {expected} entries could be deleted, so none was: look at the "
                "rights of the owner of forgetting.forget."
            )
    return Forgotten(deleted, batch_id)


def _forgettable(tx: TenantTransaction, lesson_id: UUID | None, session_id: str | None) -> int:
    if (lesson_id is None) == (session_id is None):
        raise EvidenceRefused("Say what to forget: a lesson or a session, exactly one of the two.")
    if session_id is not None and not is_storable(session_id):
        raise _no_session(session_id)
    entries: int = tx.one(
        QUERIES["count_forgettable"], lesson_id=lesson_id, session_id=session_id
    ).entries
    if not entries and session_id is not None:
        raise _no_session(session_id)
    if not entries:
        raise EvidenceRefused(f"The tenant has no lesson {lesson_id}. Nothing was deleted.")
    return entries


def _no_session(session_id: str) -> EvidenceRefused:
    return EvidenceRefused(f"The tenant has no session {session_id!r}.")


def _use(
    tx: TenantTransaction,
    ids: Sequence[UUID],
    use: str,
    now: datetime,
    outcome: Outcome | None = None,
) -> Sequence[sa.Row[Any]]:
    """Lock entries of any tier and write down one use of each; the entries as they were before it.

    Raises EvidenceRefused, and then none is used, when there is none or one is not the tenant's.
    """
    wanted = list(set(ids))
    if not wanted:
        raise EvidenceRefused("Name at least one entry.")
    locked = tx.rows(QUERIES["lock_entries"], ids=wanted)
    if missing := sorted(set(wanted) - {row.id for row in locked}):
        raise EvidenceRefused(f"The tenant has no evidence with the id {some(missing)}.")
    _write_down(tx, locked, use, now, outcome)
    return locked


def _write_down(
    tx: TenantTransaction,
    locked: Sequence[sa.Row[Any]],
    use: str,
    now: datetime,
    outcome: Outcome | None = None,
) -> None:
    """One use of each locked entry. One that was archived less than 14 days ago is regretted."""
    ids = [row.id for row in locked]
    if outcome:
        tx.run(QUERIES["mark_credited"], ids=ids, outcome=outcome, now=now)
    else:
        tx.run(QUERIES["mark_used"], ids=ids, now=now)
    if any(row.archived_at is not None for row in locked):
        tx.run(
            QUERIES["log_regrets"],
            ids=ids,
            use=use,
            now=now,
            archived_since=now - tier.REGRET_WINDOW,
        )
