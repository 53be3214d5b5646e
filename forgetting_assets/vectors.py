"""Vectors in blocks, their one-byte codes, and which of them may be close. Pure: no database here.

Nothing here decides that two memories are a pair. It proposes every pair that could be one, and few
others, and the database's own cosine decides. A code is a unit vector rounded to one byte a
coordinate. How far the rounding moved it is kept beside it: by Cauchy-Schwarz a cosine taken with
the code is off by that much at most, so a floor lowered by it misses nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resources.binary import BIGINT, BYTES, REAL, UUID, Columns, Records

Floats = NDArray[np.float32]
Proposed = tuple[Records, Records]
"""Ids of pairs that may be close: those of the one sides, and those of the other."""

NONE: Proposed = (np.empty(0, UUID), np.empty(0, UUID))

VECTOR_COLUMNS: Columns = [
    ("id", UUID),
    ("group", BIGINT),
    ("created_at", "V8"),
    ("vector", BYTES),
]
CODE_COLUMNS: Columns = [
    ("id", UUID),
    ("group", BIGINT),
    ("step", REAL),
    ("error", REAL),
    ("code", BYTES),
]

STRIP = 512
"""Vectors that one step works on: it bounds the memory and keeps it in the processor's cache."""

TINY = 1e-30
"""Lengths below it need double precision."""


@dataclass(frozen=True)
class Block:
    """Some vectors, sorted by group. ``unit`` has a row of length 1 for each, 0 for a zero vector.

    ``finite`` says of each whether it was a vector of numbers. A fingerprint is the SHA-256 of the
    vector and its memory's time of creation, 32 bytes each, one after the other.
    """

    ids: Records
    groups: NDArray[np.int64]
    unit: Floats
    finite: NDArray[np.bool_]
    fingerprints: bytes

    @property
    def dimensions(self) -> int:
        """Values of a vector."""
        return int(self.unit.shape[1])

    @property
    def directionless(self) -> Records:
        """The ids of zero vectors."""
        return self.ids[~self.unit.any(axis=1)]

    def by_group(self) -> Iterator[tuple[int, slice]]:
        """Each group and the rows it has."""
        edges = np.flatnonzero(np.diff(self.groups)) + 1
        for start, stop in zip([0, *edges], [*edges, len(self.groups)], strict=True):
            yield int(self.groups[start]), slice(int(start), int(stop))


@dataclass(frozen=True)
class Codes:
    """The codes of a block: ``codes`` times ``steps`` is each unit vector, but for its error."""

    codes: NDArray[np.int8]
    steps: Floats
    errors: Floats


def read_block(records: Records) -> Block:
    """A block from a copy with VECTOR_COLUMNS."""
    width = records.dtype["vector"].itemsize // 4 - 1
    # pgvector sends the number of values, an unused word, and the values.
    values = records["vector"].view(np.dtype([("head", ">i4"), ("values", ">f4", (width,))]))[
        "values"
    ]
    unit = np.empty((len(records), width), np.float32)
    finite = np.empty(len(records), np.bool_)
    for start in range(0, len(records), STRIP):
        rows = slice(start, start + STRIP)
        unit[rows] = values[rows]
        norms = np.sqrt(np.einsum("ij,ij->i", unit[rows], unit[rows], dtype=np.float64))
        finite[rows] = np.isfinite(norms)
        tiny = np.flatnonzero(norms < TINY)
        norms[tiny] = 1
        with np.errstate(invalid="ignore"):
            unit[rows] *= (1 / norms).astype(np.float32)[:, None]
        for row in tiny:
            unit[start + row] = _of_length_one(values[start + row])
    fingerprints = b"".join(
        hashlib.sha256(vector.tobytes() + created_at.tobytes()).digest()
        for vector, created_at in zip(records["vector"], records["created_at"], strict=True)
    )
    groups = records["group"].astype(np.int64)
    return Block(records["id"].copy(), groups, unit, finite, fingerprints)


def _of_length_one(values: NDArray[np.float32]) -> Floats:
    """A vector so short that single precision cannot divide by its length; 0 stays 0."""
    exact = values.astype(np.float64)
    length = np.linalg.norm(exact)
    return (exact / length if length > 0 else exact).astype(np.float32)


def encode(unit: Floats) -> Codes:
    """The codes of unit vectors."""
    codes = np.empty(unit.shape, np.int8)
    steps = np.empty(len(unit), np.float32)
    errors = np.empty(len(unit), np.float32)
    for start in range(0, len(unit), STRIP):
        rows = slice(start, start + STRIP)
        step = np.abs(unit[rows]).max(axis=1) / np.float32(127)
        per_step = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
        rounded = unit[rows] * per_step[:, None]
        np.rint(rounded, out=rounded)
        codes[rows] = rounded
        rounded *= step[:, None]
        rounded -= unit[rows]
        steps[rows] = step
        # A thousandth more, for the rounding of this very sum.
        errors[rows] = np.sqrt(np.einsum("ij,ij->i", rounded, rounded)) * np.float32(1.001)
    return Codes(codes, steps, errors)


def rounding(dimensions: int) -> float:
    """How far two ways of summing one cosine in single precision can be apart, at most."""
    return dimensions * 2.0**-22


def close_within(block: Block, floor: float) -> Iterator[Proposed]:
    """Every pair inside the block whose cosine may be at or above the floor."""
    least = np.float32(floor - rounding(block.dimensions))
    for _, rows in block.by_group():
        unit, ids = block.unit[rows], block.ids[rows]
        for start in range(0, len(unit), STRIP):
            cosines = unit[start : start + STRIP] @ unit[start:].T
            ones, others = np.nonzero(cosines >= least)
            later = ones < others
            yield ids[start:][ones[later]], ids[start:][others[later]]


def close_to_codes(block: Block, coded: Records, floor: float) -> Iterator[Proposed]:
    """Every pair of the block and a copy with CODE_COLUMNS whose cosine may be at or above it."""
    groups = coded["group"].astype(np.int64)
    if (groups[1:] < groups[:-1]).any():  # else they are still as a first mining wrote them
        order = np.argsort(groups, kind="stable")
        coded, groups = coded[order], groups[order]
    codes = coded["code"].view(np.dtype((np.int8, (coded.dtype["code"].itemsize,))))
    unscaled = codes.astype(np.float32)
    steps = coded["step"].astype(np.float32)
    # In steps of the code, so that the product need not be scaled; a zero vector is close to none.
    least = np.full(len(coded), np.inf, np.float32)
    lowered = np.float32(floor - 2 * rounding(block.dimensions)) - coded["error"]
    np.divide(lowered, steps, out=least, where=steps > 0)
    for group, rows in block.by_group():
        start = np.searchsorted(groups, group, "left")
        members = slice(start, np.searchsorted(groups, group, "right"))
        if start == members.stop:
            continue
        for top in range(rows.start, rows.stop, STRIP):
            strip = slice(top, min(rows.stop, top + STRIP))
            cosines = block.unit[strip] @ unscaled[members].T
            ones, others = np.nonzero(cosines >= least[members])
            yield block.ids[strip][ones], coded["id"][members][others]
