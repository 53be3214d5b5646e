"""The Python API: one tenant's evidence, for the process of an agent.

from forgetting_assets import Client

with Client("acme") as memory:
    id = memory.record("trace", "GET /health 200", session_id="s1")
    memory.credit([id])
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self
from uuid import UUID

from pydantic import ValidationError

from forgetting_assets.records import EvidenceRecord, Kind, reasons
from forgetting_assets.store import evidence, health, tenants, tier
from forgetting_assets.store.evidence import Entry, Forgotten, Hit, Outcome
from forgetting_assets.store.health import MemoryHealth
from resources import settings
from resources.clock import Clock
from resources.database import Database
from resources.errors import EvidenceRefused


class Client:
    """The verbs of one tenant's evidence. Every error is a ForgettingError.

    ``url`` None means DATABASE_URL, or the embedded server without it. Threads may share a client.
    """

    def __init__(self, tenant: str, *, url: str | None = None, clock: Clock | None = None) -> None:
        """Connect as the runtime role. Raises ConfigurationError and UnknownTenant."""
        self._clock = clock or Clock()
        self._limit = settings.read().forgetting_entry_bytes
        self._database = Database(url=url).connect()
        try:
            self._user_id = tenants.find_active(self._database, tenant).user_id
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def record(
        self,
        kind: Kind,
        content: str,
        *,
        session_id: str,
        occurred_at: datetime | Literal["now"] | None = "now",
        embedding: Sequence[float] | None = None,
        embedding_model: str | None = None,
    ) -> UUID:
        """Record one piece of evidence; its id.

        ``occurred_at`` None: it is not known when it happened, so no sweep ever archives it.
        ``embedding`` has 1,536 values; without one the entry is reached by its id alone.
        """
        now = self._clock.now()
        try:
            entry = EvidenceRecord(
                session_id=session_id,
                kind=kind,
                content=content,
                occurred_at=now if occurred_at == "now" else occurred_at,
                embedding=None if embedding is None else list(embedding),
                embedding_model=embedding_model,
            )
        except ValidationError as error:
            raise EvidenceRefused(f"Nothing was recorded: {reasons(error)}.") from None
        [id_] = evidence.record(self._database, self._user_id, [entry], now, limit=self._limit)
        return id_

    def archive(self, content: str, *, session_id: str) -> UUID:
        """Keep a text exactly, as an artifact that no sweep ever touches; its id."""
        return self.record("archive_block", content, session_id=session_id)

    def touch(self, ids: Sequence[UUID]) -> int:
        """Say that entries were retrieved, which keeps them hot for a window; how many."""
        return evidence.touch(self._database, self._user_id, ids, self._clock.now())

    def credit(self, ids: Sequence[UUID], outcome: Outcome = "success") -> int:
        """Attribute a good outcome to entries, which keeps them hot for good; how many.

        An archived one comes back.
        """
        return evidence.credit(self._database, self._user_id, ids, outcome, self._clock.now())

    def retrieve(
        self,
        embedding: Sequence[float],
        embedding_model: str,
        *,
        most: int = 10,
        session_id: str | None = None,
    ) -> list[Hit]:
        """The hot entries nearest to a vector of 1,536 values; each of them counts as used."""
        return evidence.retrieve(
            self._database,
            self._user_id,
            embedding,
            embedding_model,
            self._clock.now(),
            most=most,
            session_id=session_id,
        )

    def dereference(self, entry_id: UUID) -> Entry:
        """The entry of that id from any tier, with its exact content. Reading it is a use."""
        return evidence.dereference(self._database, self._user_id, entry_id, self._clock.now())

    def unarchive(self, ids: Sequence[UUID]) -> int:
        """Bring archived entries back into retrieval, exactly as they were; how many."""
        return tier.unarchive(self._database, self._user_id, ids, self._clock.now())

    def forget(self, *, lesson_id: UUID | None = None, session_id: str | None = None) -> Forgotten:
        """Delete one lesson, or everything that a session recorded, for good. It does not ask."""
        return evidence.forget(
            self._database,
            self._user_id,
            self._clock.now(),
            lesson_id=lesson_id,
            session_id=session_id,
        )

    def memory_health(
        self, session_id: str | None = None, stale_threshold_days: int = 30
    ) -> MemoryHealth:
        """How the tenant's memory is doing, or what one session left of it: figures alone."""
        return health.memory_health(
            self._database, self._user_id, self._clock.now(), session_id, stale_threshold_days
        )
