"""Mining: bringing the index of similar pairs up to date, at the cost of what changed.

The matrix product runs here and proposes pairs (forgetting_assets/vectors.py). The database's own
cosine decides which of them enter `forgetting.similar_pairs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import Row

import sql
from forgetting_assets import vectors
from forgetting_assets.vectors import Block, Proposed
from resources import binary
from resources.binary import Records, UnequalRows
from resources.database import TenantTransaction
from resources.errors import FloorMissing, UnusableVectors, some

QUERIES = sql.load("mining")

BLOCK = 4096
"""Memories whose vectors are in memory at once."""

CODES = 2**12
"""Codes that are in memory at once: few, so that the same pages of it serve again."""

WRITTEN = 2**17
"""Memories that one statement compares with what was mined of them."""

PROPOSED = 2**20
"""Pairs that a block may propose; a block with more is mined in halves."""

DECIDED = 2**15
"""Pairs that one statement decides on."""

REMEMBERED = 2**10
"""Mined memories that one statement writes; longer statements parse more slowly."""

WRITTEN_COLUMNS = [("id", binary.UUID)]
UNMINED_COLUMNS = [("id", binary.UUID), ("group", binary.BIGINT), ("place", binary.BIGINT)]
UNMINED = np.dtype([("id", "V16"), ("group", np.int64), ("place", np.int64)])


@dataclass
class Mined:
    """What a mining did. ``directionless``: memories with a zero vector, which are in no pair."""

    memories: int = 0
    pairs: int = 0
    directionless: list[UUID] = field(default_factory=list)


class _TooMany(Exception):
    """A block proposes more pairs than are kept in memory."""


def update(tx: TenantTransaction, slug: str, floors: Mapping[str, float], now: datetime) -> Mined:
    """Mine what was written since the tenant's last mining. ``floors``: cosine by embedding model.

    The caller's transaction is exclusive, so two minings of one tenant wait for each other, and all
    of it is written or nothing. Raises FloorMissing when the tenant has vectors of a model without
    a floor, and UnusableVectors when vectors of one model differ in length or are no numbers.
    """
    models = sorted(floors)
    # Read before anything else: what commits from now on is looked at the next time.
    last = tx.one(QUERIES["find_last_mining"])
    # What was mined of a model at a floor that nobody recorded is mined again as well.
    lowered = [model for model in models if floors[model] < last.floors.get(model, math.inf)]
    known = last.is_comparable and not lowered and last.floors.keys() <= floors.keys()
    work = _Mining(tx, slug, now, dict(last.lengths))
    for unmined in _blocks(_find_unmined(tx, models, lowered, everything=not known)):
        if not (place := unmined["place"][0]):
            raise _without_floor(tx, slug, unmined)
        work.mine(unmined, models[place - 1], floors[models[place - 1]])
    tx.run(
        QUERIES["record_mining"],
        now=now,
        floors=json.dumps(dict(floors)),
        lengths=json.dumps(work.lengths),
        written_before=last.written_before,
    )
    return work.mined


def _find_unmined(
    tx: TenantTransaction, models: list[str], lowered: list[str], *, everything: bool
) -> Records:
    """What must be mined, by model and group. What was mined of it before is forgotten."""
    written: list[Records] = []
    tx.copy(
        QUERIES["copy_written"],
        WRITTEN_COLUMNS,
        written.append,
        rows=WRITTEN,
        everything=everything,
    )
    unmined = [np.empty(0, UNMINED)]
    for page in written:
        tx.copy(
            QUERIES["copy_unmined"],
            UNMINED_COLUMNS,
            lambda rows: unmined.append(rows[["id", "group", "place"]].astype(UNMINED)),
            rows=WRITTEN,
            ids=binary.uuid_array(page["id"]),
            models=models,
            lowered=lowered,
        )
    found = np.concatenate(unmined)
    return found[np.lexsort((found["group"], found["place"]))]


def _blocks(unmined: Records) -> Iterator[Records]:
    """Blocks of one embedding model each."""
    for of_model in np.split(unmined, np.flatnonzero(np.diff(unmined["place"])) + 1):
        for start in range(0, len(of_model), BLOCK):
            yield of_model[start : start + BLOCK]


@dataclass
class _Mining:
    """A mining under way. ``lengths`` is how many values a vector of each embedding model has."""

    tx: TenantTransaction
    slug: str
    now: datetime
    lengths: dict[str, int]
    mined: Mined = field(default_factory=Mined)

    def mine(self, unmined: Records, model: str, floor: float) -> None:
        """Mine one block against itself and against all that is mined in its groups."""
        block = read(self.tx, self.slug, unmined["id"], unmined["group"])
        if block is None:
            return
        if block.dimensions != self.lengths.setdefault(model, block.dimensions):
            # Either some were embedded at another length or all were.
            if len(_lengths(self.tx, block.ids)) > 1:
                raise _of_unequal_lengths(self.tx, self.slug, block.ids)
            self.lengths[model] = block.dimensions
        try:
            ones, others = _propose(self.tx, block, floor)
        except _TooMany:
            half = len(unmined) // 2
            self.mine(unmined[:half], model, floor)
            self.mine(unmined[half:], model, floor)
            return
        self._remember(block)
        for start in range(0, len(ones), DECIDED):
            self.mined.pairs += self.tx.run(
                QUERIES["insert_pairs"],
                ones=binary.uuid_array(ones[start : start + DECIDED]),
                others=binary.uuid_array(others[start : start + DECIDED]),
                floor=floor,
                now=self.now,
            )
        self.mined.memories += len(block.ids)
        self.mined.directionless += _uuids(block.directionless)

    def _remember(self, block: Block) -> None:
        coded = vectors.encode(block.unit)
        for start in range(0, len(block.ids), REMEMBERED):
            rows = slice(start, start + REMEMBERED)
            self.tx.run(
                QUERIES["insert_mined"],
                ids=binary.uuid_array(block.ids[rows]),
                group_keys=binary.array(block.groups[rows]),
                fingerprints=block.fingerprints[32 * rows.start : 32 * rows.stop],
                codes=coded.codes[rows].tobytes(),
                dimensions=block.dimensions,
                steps=binary.array(coded.steps[rows]),
                errors=binary.array(coded.errors[rows]),
            )


def read(tx: TenantTransaction, slug: str, ids: Records, groups: Records) -> Block | None:
    """The vectors of memories of one embedding model, given group by group, as they are now.

    None when none of them is comparable any more. Raises UnusableVectors.
    """
    found: list[Block] = []
    try:
        tx.copy(
            QUERIES["copy_vectors"],
            vectors.VECTOR_COLUMNS,
            lambda records: found.append(vectors.read_block(records)),
            rows=len(ids),
            ids=binary.uuid_array(ids),
            group_keys=binary.array(groups),
        )
    except UnequalRows:
        raise _of_unequal_lengths(tx, slug, ids) from None
    block = found[0] if found else None
    if block and not block.finite.all():
        raise UnusableVectors(
            f"Vectors of {slug} hold values that are no numbers, so nothing was mined: embed these "
            f"memories again: {some(_uuids(block.ids[~block.finite]))}."
        )
    return block


def _propose(tx: TenantTransaction, block: Block, floor: float) -> Proposed:
    """Every pair of the block's memories, with each other or with mined ones, that may be close.

    Raises _TooMany.
    """
    proposed = [vectors.NONE]
    # A block of one memory cannot be halved, and proposes no more than its group has.
    room = PROPOSED if len(block.ids) > 1 else None

    def collect(pairs: Iterable[Proposed]) -> None:
        nonlocal room
        for ones, others in pairs:
            if room is not None and (room := room - len(ones)) < 0:
                raise _TooMany
            proposed.append((ones, others))

    collect(vectors.close_within(block, floor))
    tx.copy(
        QUERIES["copy_codes"],
        vectors.CODE_COLUMNS,
        lambda codes: collect(vectors.close_to_codes(block, codes, floor)),
        rows=CODES,
        dimensions=block.dimensions,
        group_keys=binary.array(group for group, _ in block.by_group()),
    )
    ones, others = zip(*proposed, strict=True)
    return np.concatenate(ones), np.concatenate(others)


def _without_floor(tx: TenantTransaction, slug: str, unmined: Records) -> FloorMissing:
    found = tx.first(QUERIES["find_model_of"], id=_uuids(unmined["id"][:1])[0])
    model = found.embedding_model if found else "unknown"
    return FloorMissing(
        f"{slug} has vectors of the embedding model {model}, which has no floor: add "
        f"{json.dumps(model)} with the least cosine of a pair to FORGETTING_CONFLICT_FLOORS. "
        f"`forgetting floor --tenant {slug}` shows what each floor would find."
    )


def _lengths(tx: TenantTransaction, ids: Records) -> Sequence[Row[Any]]:
    return tx.rows(QUERIES["find_lengths"], id=_uuids(ids[:1])[0])


def _of_unequal_lengths(tx: TenantTransaction, slug: str, ids: Records) -> UnusableVectors:
    found = _lengths(tx, ids)
    lengths = ", ".join(
        f"{row.memories} of {row.dimensions} values ({row.example})" for row in found
    )
    model = found[0].embedding_model if found else "unknown"
    return UnusableVectors(
        f"{slug} has vectors of the embedding model {model} that differ in length, so nothing was "
        f"mined: {lengths}. Embed them again, or record in forgetting.embedding_models which model "
        "made each."
    )


def _uuids(ids: Records) -> list[UUID]:
    return [UUID(bytes=id_.tobytes()) for id_ in ids]
