"""Choosing a floor: what each would find, before it is set. Nothing is written and nothing sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, ValidationError

import sql
from forgetting_assets.partition import Tenant
from forgetting_assets.store import mining
from forgetting_assets.vectors import STRIP, Block, Floats
from resources import binary
from resources.binary import Records
from resources.database import Database, TenantTransaction
from resources.errors import ImportRefused

QUERIES = sql.load("floors")

FLOORS = tuple(percent / 100 for percent in range(95, 35, -5))
"""The candidates, highest first."""


class Label(BaseModel):
    """Two memories of which the newer is known to replace or contradict the older."""

    older: UUID
    newer: UUID


@dataclass(frozen=True)
class Candidate:
    """What a floor would find: pairs, memories that are in one, labelled pairs."""

    floor: float
    pairs: int
    memories: int
    labelled: int


@dataclass(frozen=True)
class Model:
    """The vectors of one embedding model: how many there are and are compared, and each candidate.

    ``labelled`` counts the labelled pairs, ``apart`` those that are found at no floor since their
    sides are of two groups or are not compared.
    """

    name: str
    memories: int
    compared: int
    candidates: list[Candidate]
    labelled: int
    apart: int


def read_labels(path: Path) -> list[Label]:
    """The labelled pairs of a JSON array; other fields than older and newer are passed over.

    Raises ImportRefused.
    """
    try:
        return TypeAdapter(list[Label]).validate_json(path.read_bytes())
    except OSError as error:
        raise ImportRefused(f"The file {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = f"pair {int(first['loc'][0]) + 1}: " if first["loc"] else ""
        raise ImportRefused(
            f"{path} is no JSON array of objects with the ids `older` and `newer` "
            f"({where}{first['msg']})."
        ) from None


def measure(database: Database, tenant: Tenant, labels: Sequence[Label] = ()) -> list[Model]:
    """Every embedding model of a tenant and what each candidate floor would find among its vectors.

    Compares all that mining compares, in single precision. Raises UnusableVectors.
    """
    with database.tenant(tenant.user_id) as tx:
        known = tx.rows(
            QUERIES["find_labelled"],
            older_ids=[label.older for label in labels],
            newer_ids=[label.newer for label in labels],
        )
        return [
            _measure(
                tx,
                tenant.slug,
                row.embedding_model,
                [each.similarity for each in known if each.embedding_model == row.embedding_model],
            )
            for row in tx.rows(QUERIES["find_models"])
        ]


def _measure(
    tx: TenantTransaction, slug: str, model: str, labelled: Sequence[float | None]
) -> Model:
    pages: list[Records] = []
    columns = [("id", binary.UUID), ("group", binary.BIGINT)]
    tx.copy(
        QUERIES["copy_comparable"], columns, pages.append, rows=mining.BLOCK, embedding_model=model
    )
    tally = _Tally(sum(map(len, pages)))
    first = 0
    for place, page in enumerate(pages):
        later = first + len(page)
        if here := _read(tx, slug, first, page):
            for rows in (rows for _, rows in here.block.by_group()):
                tally.add(here, rows, here, rows)
            # Only its last group goes on in the pages after it.
            last = page["group"][-1]
            for other in pages[place + 1 :]:
                if other["group"][0] != last:
                    break
                if there := _read(tx, slug, later, other[other["group"] == last]):
                    tally.add(here, here.rows_of(last), there, there.rows_of(last))
                later += len(other)
        first += len(page)
    found = [similarity for similarity in labelled if similarity is not None]
    return Model(
        model,
        len(tally.nearest),
        tally.compared,
        [
            Candidate(
                floor,
                int(pairs),
                int(np.count_nonzero(tally.nearest >= floor)),
                sum(similarity >= floor for similarity in found),
            )
            for floor, pairs in zip(FLOORS, tally.pairs, strict=True)
        ],
        len(labelled),
        len(labelled) - len(found),
    )


@dataclass(frozen=True)
class _Read:
    """A block with the place of each of its memories among all of the model's."""

    block: Block
    places: NDArray[np.int64]

    def rows_of(self, group: int) -> slice:
        return next((rows for each, rows in self.block.by_group() if each == group), slice(0, 0))


def _read(tx: TenantTransaction, slug: str, first: int, page: Records) -> _Read | None:
    block = mining.read(tx, slug, page["id"], page["group"])
    if block is None:
        return None
    places = first + np.arange(len(page))
    if len(block.ids) < len(page):  # some are gone since the page was read
        still = {id_.tobytes() for id_ in block.ids}
        places = places[[id_.tobytes() in still for id_ in page["id"]]]
    return _Read(block, places)


class _Tally:
    """Counts of pairs at or above each candidate, and each memory's nearest other."""

    def __init__(self, memories: int) -> None:
        self.compared = 0
        self.pairs = np.zeros(len(FLOORS), np.int64)
        self.nearest: Floats = np.full(memories, -np.inf, np.float32)

    def add(self, one: _Read, ones: slice, other: _Read, others: slice) -> None:
        """Count the pairs of some rows with others; of a block with itself each pair once."""
        itself = one is other
        unit = other.block.unit[others]
        directed = unit.any(axis=1)
        for start in range(ones.start, ones.stop, STRIP):
            rows = slice(start, min(ones.stop, start + STRIP))
            cosines = one.block.unit[rows] @ unit.T
            counts = np.outer(one.block.unit[rows].any(axis=1), directed)
            if itself:
                counts &= (
                    np.arange(others.start, others.stop) > np.arange(start, rows.stop)[:, None]
                )
            cosines[~counts] = -np.inf
            self.compared += int(np.count_nonzero(counts))
            for place, floor in enumerate(FLOORS):
                self.pairs[place] += np.count_nonzero(cosines >= floor)
            if cosines.size:
                _raise(self.nearest, one.places[rows], cosines.max(axis=1))
                _raise(self.nearest, other.places[others], cosines.max(axis=0))


def _raise(nearest: Floats, places: NDArray[np.int64], cosines: Floats) -> None:
    nearest[places] = np.maximum(nearest[places], cosines)
