"""Bringing memories in from JSON lines: all of a file or nothing of it."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field, ValidationError, model_validator

import sql
from forgetting_assets.records import EARLIEST, Name, NonEmpty, Storable, reasons
from forgetting_assets.store import tenants
from resources.database import Database, TenantTransaction, bind
from resources.errors import ImportRefused, StoreRefused

QUERIES = sql.load("memories")
SHOWN = 20
"""Bad lines that one refusal names at most."""
CHUNK = 500
"""Memories that one statement inserts."""


class MemoryRecord(Storable):
    """One line of an import. Times carry an offset; ``embedding`` has 1,536 values or is null."""

    id: UUID
    memory_type: Literal[
        "decision", "commitment", "blocker", "fact", "preference", "pattern", "note", "event"
    ]
    scope: Name = "personal"
    project: Name | None = None
    topic: NonEmpty
    content: NonEmpty
    created_at: AwareDatetime
    updated_at: AwareDatetime | None = None
    tags: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def in_order(self) -> MemoryRecord:
        """Nothing is updated before it was created."""
        if self.updated_at is not None and self.updated_at < self.created_at:
            raise ValueError("updated_at is before created_at")
        return self

    @property
    def content_hash(self) -> str:
        """SHA-256 of the content, in hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    def row(self) -> dict[str, Any]:
        """The record as the insert statements read it."""
        return self.model_dump(mode="json", exclude={"embedding", "updated_at"}) | {
            "embedding": self.vector,
            "updated_at": (self.updated_at or self.created_at).isoformat(),
            "content_hash": self.content_hash,
        }


@dataclass(frozen=True)
class Imported:
    """What an import did: memories added, and memories that were there already."""

    added: int
    known: int


def read(path: Path, now: datetime) -> list[MemoryRecord]:
    """The records of a file of JSON lines; blank lines are passed over.

    A time before 1970 or after ``now`` is refused: freshness and order would follow from it.

    Raises ImportRefused that names each bad line by number and reason, never by content.
    """
    records: list[MemoryRecord] = []
    bad: list[str] = []
    by_id: dict[UUID, int] = {}
    by_hash: dict[str, int] = {}
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise ImportRefused(f"The file {path} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = MemoryRecord.model_validate_json(line)
        except ValidationError as error:
            bad.append(f"line {number}: {reasons(error)}")
            continue
        if record.created_at < EARLIEST or (record.updated_at or record.created_at) > now:
            bad.append(f"line {number}: its times are before 1970 or in the future")
        elif record.id in by_id:
            bad.append(f"line {number}: id: the same id as line {by_id[record.id]}")
        elif record.content_hash in by_hash:
            first = by_hash[record.content_hash]
            bad.append(f"line {number}: content: the same content as line {first}")
        else:
            by_id[record.id] = by_hash[record.content_hash] = number
            records.append(record)
    _refuse(path, bad)
    return records


def import_file(database: Database, path: Path, slug: str, now: datetime) -> Imported:
    """Import a file of JSON lines for a tenant, which is created where it is missing.

    A memory that is there already with the same content is left as it is, whatever became of it
    since, so importing a file twice adds nothing. Raises ImportRefused, and then nothing of the
    file is written, and InvalidSlug.
    """
    tenants.require_new_or_active(database, slug)
    records = read(path, now)
    try:
        with database.registry() as connection:
            tx = bind(connection, tenants.add(connection, slug), exclusive=True)
            new = unknown(tx, path, records)
            insert(tx, new, actor="import", now=now)
    except StoreRefused as refused:
        if "memories_pkey" in str(refused):
            raise ImportRefused(
                f"{path} was not imported: an id in it belongs to another tenant."
            ) from None
        raise
    return Imported(len(new), len(records) - len(new))


def unknown(
    tx: TenantTransaction, path: Path, records: Sequence[MemoryRecord]
) -> list[MemoryRecord]:
    """The records that the tenant does not have. Raises ImportRefused on what would overwrite."""
    clashes = tx.rows(
        QUERIES["find_clashes"],
        ids=[record.id for record in records],
        content_hashes=[record.content_hash for record in records],
    )
    hash_of = {row.id: row.content_hash for row in clashes}
    current = {row.content_hash: row.id for row in clashes if row.is_current}
    new, bad = [], []
    for record in records:
        known = hash_of.get(record.id)
        if known == record.content_hash:
            continue
        if known is not None:
            bad.append(f"id {record.id}: it is known with other content; nothing is overwritten")
        elif record.content_hash in current:
            bad.append(f"id {record.id}: memory {current[record.content_hash]} has its content")
        else:
            new.append(record)
    _refuse(path, bad)
    return new


def insert(
    tx: TenantTransaction, records: Sequence[MemoryRecord], *, actor: str, now: datetime
) -> None:
    """Write memories with their embedding models and an audit row each."""
    for start in range(0, len(records), CHUNK):
        rows = json.dumps([record.row() for record in records[start : start + CHUNK]])
        tx.run(QUERIES["insert_memories"], rows=rows)
        tx.run(QUERIES["insert_embedding_models"], rows=rows)
        tx.run(QUERIES["insert_import_events"], rows=rows, actor=actor, now=now)


def _refuse(path: Path, bad: Iterable[str]) -> None:
    if lines := list(bad):
        shown = "\n  ".join(lines[:SHOWN])
        more = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise ImportRefused(f"Nothing of {path} was imported:\n  {shown}{more}")
