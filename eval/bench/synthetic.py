"""A store of invented memories with the shape of a real one, of any size, from a seed.

Types, scopes and Zipf-distributed projects as agents leave them; vectors that share a common
direction and a topic, as embeddings do; and planted near-duplicates inside their groups.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

DIMENSIONS = 1536
MODEL = "synthetic-1536"
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
CHUNK = 2000

TYPES = {
    "decision": 0.18,
    "preference": 0.10,
    "fact": 0.30,
    "blocker": 0.04,
    "commitment": 0.05,
    "pattern": 0.05,
    "note": 0.14,
    "event": 0.14,
}
SCOPES = {"work": 0.7, "personal": 0.3}
PROJECTS = 80
WITHOUT_PROJECT = 0.15
NEAR_DUPLICATES = 0.05
TOPICS = 400

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rows:
    """Some memories; ``ids`` are 16 bytes each, ``vectors`` (n, 1536)."""

    ids: list[bytes]
    types: list[str]
    scopes: list[str]
    projects: list[str | None]
    ages: NDArray[np.float64]
    vectors: NDArray[np.float32]


class Maker:
    """Makes memories one chunk after another; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._common = self._directions(1)
        self._topics = self._directions(TOPICS)
        weights = 1 / np.arange(1, PROJECTS + 1) ** 1.2
        self._projects = weights / weights.sum()

    def chunks(self, memories: int) -> Iterator[Rows]:
        """``memories`` in all."""
        for start in range(0, memories, CHUNK):
            yield self.rows(min(CHUNK, memories - start))

    def rows(self, n: int, *, youngest: float = 1.0, oldest: float = 400.0) -> Rows:
        """``n`` memories, created ``youngest`` to ``oldest`` days ago."""
        random = self._random
        types = random.choice(list(TYPES), n, p=list(TYPES.values()))
        scopes = random.choice(list(SCOPES), n, p=list(SCOPES.values()))
        projects = random.choice(PROJECTS, n, p=self._projects)
        projects[random.random(n) < WITHOUT_PROJECT] = -1
        topic = self._topics[random.integers(0, TOPICS, n)]
        vectors = 0.35 * self._common + 0.5 * topic + 0.8 * self._directions(n)
        copies = np.flatnonzero(random.random(n) < NEAR_DUPLICATES)
        if n > 1:
            of = (copies + random.integers(1, n, len(copies))) % n
            types[copies], scopes[copies], projects[copies] = types[of], scopes[of], projects[of]
            cosine = random.uniform(0.75, 0.99, (len(copies), 1)).astype(np.float32)
            away = np.sqrt(1 / cosine**2 - 1)
            lengths = np.linalg.norm(vectors[of], axis=1, keepdims=True)
            vectors[copies] = vectors[of] + lengths * away * self._directions(len(copies))
        return Rows(
            [random.bytes(16) for _ in range(n)],
            types.tolist(),
            scopes.tolist(),
            [f"project-{number}" if number >= 0 else None for number in projects],
            random.uniform(youngest, oldest, n),
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        )

    def rows_of(self, types: Sequence[str], n: int) -> Rows:
        """``n`` memories of some types, created within the last day."""
        made = self.rows(4 * n, youngest=0.0, oldest=1.0)
        kept = [place for place, kind in enumerate(made.types) if kind in types][:n]
        return Rows(
            [made.ids[place] for place in kept],
            [made.types[place] for place in kept],
            [made.scopes[place] for place in kept],
            [made.projects[place] for place in kept],
            made.ages[kept],
            made.vectors[kept],
        )

    def _directions(self, n: int) -> NDArray[np.float32]:
        drawn = self._random.standard_normal((n, DIMENSIONS), np.float32)
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return drawn


def insert(connection: sa.Connection, user_id: UUID, rows: Rows) -> None:
    """Write memories past RLS, as a superuser, with their embedding model."""
    vectors = rows.vectors.astype(">f4")
    head = struct.pack("!hh", DIMENSIONS, 0)
    out = io.BytesIO()
    out.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
    for place, id_ in enumerate(rows.ids):
        created = int((NOW - timedelta(days=float(rows.ages[place])) - _EPOCH) / _MICROSECOND)
        project = rows.projects[place]
        fields: list[bytes | None] = [
            id_,
            user_id.bytes,
            rows.types[place].encode(),
            b"topic",
            b"What was said of it, " + id_.hex().encode() * 6,
            rows.scopes[place].encode(),
            None if project is None else project.encode(),
            head + vectors[place].tobytes(),
            id_.hex().encode(),
            *[struct.pack("!q", created)] * 4,
        ]
        out.write(struct.pack("!h", len(fields)))
        for field in fields:
            out.write(
                struct.pack("!i", -1) if field is None else struct.pack("!i", len(field)) + field
            )
    out.write(b"\xff\xff")
    out.seek(0)
    cursor = connection.connection.cursor()
    cursor.copy_expert(COPY, out)
    cursor.execute(MODELS, (str(user_id), MODEL, [id_.hex() for id_ in rows.ids]))
    cursor.close()


_MICROSECOND = timedelta(microseconds=1)

COPY = """
COPY memories (id, user_id, memory_type, topic, content, scope, project, embedding, content_hash,
    valid_from, recorded_at, created_at, updated_at)
FROM STDIN (FORMAT binary)
"""
MODELS = """
INSERT INTO forgetting.embedding_models (user_id, memory_id, embedding_model)
SELECT %s, r.id, %s FROM unnest(CAST(%s AS uuid[])) AS r (id)
"""
