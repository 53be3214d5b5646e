"""Blocks, codes and proposals: nothing that could be a pair is left out, and little else is in.

The oracle is the cosine in double precision. What is proposed must be a superset of the pairs at or
above the floor, for any floor: the database decides on what is proposed and on nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forgetting_assets import vectors
from forgetting_assets.vectors import Block, Proposed
from resources.binary import Records

Pair = frozenset[int]

GROUPS = [-(2**63), -1, 0, 7, 2**63 - 1]
"""Keys are hashes: of either sign, and as large as they come."""


@dataclass(frozen=True)
class Rows:
    """Vectors in single precision, as the database has them, and the group of each."""

    values: NDArray[np.float32]
    groups: list[int]

    @property
    def count(self) -> int:
        return len(self.groups)


def sent(rows: Rows, numbers: Iterable[int]) -> Records:
    """Some of the rows as PostgreSQL sends them; the id of a row is its number."""
    width = rows.values.shape[1]
    layout = [
        ("id", "V16"),
        ("group", ">i8"),
        ("created_at", "V8"),
        ("vector", f"V{4 + 4 * width}"),
    ]
    return np.array(
        [
            (
                number.to_bytes(16, "big"),
                rows.groups[number],
                struct.pack(">q", number * 1_000_003),
                struct.pack(">hh", width, 0) + rows.values[number].astype(">f4").tobytes(),
            )
            for number in numbers
        ],
        layout,
    )


def block_of(rows: Rows, numbers: Iterable[int]) -> Block:
    """Some of the rows as a block, sorted by group as mining asks for them."""
    return vectors.read_block(sent(rows, sorted(numbers, key=lambda each: rows.groups[each])))


def coded(rows: Rows, numbers: Sequence[int]) -> Records:
    """The codes of some of the rows as PostgreSQL sends them, in this very order."""
    width = rows.values.shape[1]
    layout = [("id", "V16"), ("group", ">i8"), ("step", ">f4"), ("error", ">f4")]
    records = np.empty(len(numbers), [*layout, ("code", f"V{width}")])
    codes = vectors.encode(vectors.read_block(sent(rows, numbers)).unit)
    for place, number in enumerate(numbers):
        records[place] = (
            number.to_bytes(16, "big"),
            rows.groups[number],
            codes.steps[place],
            codes.errors[place],
            codes.codes[place].tobytes(),
        )
    return records


def numbers_of(ids: Records) -> list[int]:
    return [int.from_bytes(each.tobytes(), "big") for each in ids]


def listed(proposed: Iterable[Proposed]) -> list[tuple[int, int]]:
    """All proposals, as row numbers."""
    found: list[tuple[int, int]] = []
    for ones, others in proposed:
        found += zip(numbers_of(ones), numbers_of(others), strict=True)
    return found


def cosines(rows: Rows) -> NDArray[np.float64]:
    """Of every two rows in double precision; NaN where one has no direction."""
    exact = rows.values.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = exact / norms[:, None]
    return np.asarray(unit @ unit.T)


def close(rows: Rows, floor: float, pairs: Iterable[tuple[int, int]]) -> set[Pair]:
    """Those of the pairs that are of one group and at or above the floor. NaN is not."""
    of_two = cosines(rows)
    return {
        frozenset((one, other))
        for one, other in pairs
        if rows.groups[one] == rows.groups[other] and of_two[one, other] >= floor
    }


ROUNDED = vectors.rounding(1)
"""What single precision itself loses of a unit vector; a floor is lowered by more than that."""

SCALES = [1.0, 1e-3, 1e3, 1e-12, 1e12, 1e-18, 1e18]
"""Lengths whose squares single precision still has."""


@st.composite
def rows(draw: st.DrawFn, most: int = 12) -> Rows:
    """Rows that lie close together or apart: duplicates, opposites, zeros, spikes, odd scales."""
    dimensions = draw(st.integers(1, 64))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    near = draw(st.sampled_from([0.0, 1e-7, 1e-4, 0.01, 0.1, 0.5, 3.0]))
    centre = generator.standard_normal(dimensions)
    made: list[NDArray[np.float64]] = []
    kinds = st.sampled_from(["near", "near", "near", "same", "opposite", "zero", "spike", "far"])
    for kind in draw(st.lists(kinds, min_size=1, max_size=most)):
        row = centre + near * generator.standard_normal(dimensions)
        if kind == "same" and made:
            row = made[int(generator.integers(len(made)))].copy()
        elif kind == "opposite":
            row = -row
        elif kind == "zero":
            row = np.zeros(dimensions)
        elif kind == "spike":
            # One coordinate above all others: what remains of them in a code is next to nothing.
            row[int(generator.integers(dimensions))] = 10 ** generator.uniform(1, 6)
        elif kind == "far":
            row = generator.standard_normal(dimensions)
        made.append(row)
    groups = draw(st.lists(st.sampled_from(GROUPS), min_size=1, max_size=3))
    return Rows(
        np.array([row * draw(st.sampled_from(SCALES)) for row in made], np.float32),
        [draw(st.sampled_from(groups)) for _ in made],
    )


@st.composite
def floors(draw: st.DrawFn, of: Rows) -> float:
    """Any floor, or the very cosine of two of the rows."""
    found = cosines(of)
    exact = sorted(set(found[np.isfinite(found)].clip(-1, 1).tolist()))
    return float(draw(st.one_of(st.floats(-1, 1), *([st.sampled_from(exact)] if exact else []))))


STRIPS = st.sampled_from([1, 2, 3, 512])


@settings(deadline=None, max_examples=300)
@given(st.data(), rows(), STRIPS)
def test_inside_a_block_every_close_pair_is_proposed_once_and_little_else(
    data: st.DataObject, rows: Rows, strip: int
) -> None:
    floor = data.draw(floors(rows))
    block = block_of(rows, range(rows.count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "STRIP", strip)
        proposed = listed(vectors.close_within(block, floor))
    pairs = [frozenset(pair) for pair in proposed]
    expected = close(rows, floor, itertools.combinations(range(rows.count), 2))
    event(f"{min(len(expected), 3)} or more close pairs")
    assert expected <= set(pairs)
    assert len(pairs) == len(set(pairs)), "no pair twice"
    assert all(len(pair) == 2 for pair in pairs), "never a row with itself"
    assert all(rows.groups[one] == rows.groups[other] for one, other in proposed)
    slack = 2 * vectors.rounding(block.dimensions) + 1e-6
    assert all(not of_two < floor - slack for of_two in cosines_of(rows, proposed))


@settings(deadline=None, max_examples=300)
@given(st.data(), rows(), STRIPS, STRIPS)
def test_of_a_block_and_what_is_mined_every_close_pair_is_proposed_once_and_little_else(
    data: st.DataObject, rows: Rows, strip: int, together: int
) -> None:
    floor = data.draw(floors(rows))
    shuffled = data.draw(st.permutations(range(rows.count)))
    cut = data.draw(st.integers(0, rows.count))
    new, mined = shuffled[:cut], shuffled[cut:]
    if not new or not mined:
        return
    block, codes = block_of(rows, new), coded(rows, mined)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "STRIP", strip)
        proposed = [
            pair
            for start in range(0, len(codes), together)
            for pair in listed(
                vectors.close_to_codes(block, codes[start : start + together], floor)
            )
        ]
    expected = close(rows, floor, itertools.product(new, mined))
    event(f"{min(len(expected), 3)} or more close pairs")
    assert expected <= {frozenset(pair) for pair in proposed}
    assert len(proposed) == len(set(proposed)), "no pair twice"
    assert set(proposed) <= set(itertools.product(new, mined)), (
        "one of the block, one that is mined"
    )
    assert all(rows.groups[one] == rows.groups[other] for one, other in proposed)
    without_direction = {row for row in mined if not rows.values[row].any()}
    assert not without_direction & {other for _, other in proposed}
    errors = dict(zip(mined, codes["error"].tolist(), strict=True))
    slack = 4 * vectors.rounding(block.dimensions) + 1e-6
    assert all(
        not of_two < floor - 2 * errors[other] - slack
        for (_, other), of_two in zip(proposed, cosines_of(rows, proposed), strict=True)
    )


def cosines_of(rows: Rows, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """The cosine of each of the pairs."""
    of_two = cosines(rows)
    return [float(of_two[pair]) for pair in pairs]


@settings(deadline=None, max_examples=300)
@given(rows(), STRIPS)
def test_an_error_bounds_how_far_a_code_is_from_its_unit_vector(rows: Rows, strip: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "STRIP", strip)
        unit = vectors.read_block(sent(rows, range(rows.count))).unit
        codes = vectors.encode(unit)
    assert codes.codes.dtype == np.int8
    assert codes.codes.shape == unit.shape
    decoded = codes.codes.astype(np.float64) * codes.steps.astype(np.float64)[:, None]
    distances = np.sqrt(((decoded - unit.astype(np.float64)) ** 2).sum(axis=1))
    assert (distances <= codes.errors + ROUNDED).all()
    # Rounding moves no coordinate by more than half a step, so the bound is not a loose one either.
    most = codes.steps.astype(np.float64) * 0.51 * np.sqrt(unit.shape[1])
    assert (codes.errors <= most).all()
    assert (codes.steps[~unit.any(axis=1)] == 0).all()
    assert not codes.codes[~unit.any(axis=1)].any()


@settings(deadline=None, max_examples=200)
@given(rows(), STRIPS)
def test_a_block_has_unit_vectors_ids_groups_and_what_has_no_direction(
    rows: Rows, strip: int
) -> None:
    records = sent(rows, sorted(range(rows.count), key=lambda each: rows.groups[each]))
    order = numbers_of(records["id"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "STRIP", strip)
        block = vectors.read_block(records)
    assert block.dimensions == rows.values.shape[1]
    assert numbers_of(block.ids) == order
    assert block.groups.tolist() == [rows.groups[number] for number in order]
    assert block.finite.all()
    zero = [number for number in order if not rows.values[number].any()]
    assert numbers_of(block.directionless) == zero
    exact = rows.values[order].astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1))
    wanted = exact / np.where(norms > 0, norms, 1)[:, None]
    assert np.abs(block.unit - wanted).max() <= 2.0**-22
    by_group = [(group, range(rows_.start, rows_.stop)) for group, rows_ in block.by_group()]
    assert [place for _, places in by_group for place in places] == list(range(len(order)))
    assert [group for group, _ in by_group] == sorted(set(rows.groups))
    assert all(block.groups[place] == group for group, places in by_group for place in places)


@settings(deadline=None)
@given(rows(most=5))
def test_a_fingerprint_is_of_the_bytes_of_the_vector_and_the_time_of_creation(rows: Rows) -> None:
    records = sent(rows, range(rows.count))
    block = vectors.read_block(records)
    assert len(block.fingerprints) == 32 * rows.count
    for place, record in enumerate(records):
        whole = record["vector"].tobytes() + record["created_at"].tobytes()
        assert len(whole) == 4 + 4 * block.dimensions + 8
        found = block.fingerprints[32 * place : 32 * place + 32]
        assert found == hashlib.sha256(whole).digest()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_vector_with_a_value_that_is_no_number_is_told_apart(odd: float) -> None:
    values = np.eye(4, dtype=np.float32)
    values[1, 3] = odd
    values[3] = 0
    block = block_of(Rows(values, [7] * 4), range(4))
    assert block.finite.tolist() == [True, False, True, True]
    assert numbers_of(block.directionless) == [3]


SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.floats(-LARGEST, LARGEST, width=32, allow_subnormal=True), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=4,
    )
)
@example([[SMALLEST, 0.0, 0.0]])
@example([[1e-39, 1e-39, 0.0], [1e-39, 0.0, 0.0]])
@example([[LARGEST] * 3, [-LARGEST] * 3])
def test_whatever_numbers_a_vector_has_its_code_is_of_numbers_and_its_error_bounds_it(
    values: list[list[float]],
) -> None:
    rows = Rows(np.array(values, np.float32), [0] * len(values))
    # A warning of numpy is an error here: an overflow or a NaN would be one.
    block = block_of(rows, range(rows.count))
    assert block.finite.all()
    assert np.isfinite(block.unit).all()
    lengths = np.sqrt((block.unit.astype(np.float64) ** 2).sum(axis=1))
    has_direction = rows.values.any(axis=1)
    assert lengths == pytest.approx(has_direction.astype(float), abs=1e-5)
    codes = vectors.encode(block.unit)
    decoded = codes.codes.astype(np.float64) * codes.steps.astype(np.float64)[:, None]
    distances = np.sqrt(((decoded - block.unit) ** 2).sum(axis=1))
    assert (distances <= codes.errors + ROUNDED).all()


def test_opposites_are_proposed_at_the_floor_minus_one_and_only_there() -> None:
    rows = Rows(np.array([[3, 4], [-3, -4]], np.float32), [0, 0])
    for floor, found in ((-1.0, [(0, 1)]), (-0.99, [])):
        assert listed(vectors.close_within(block_of(rows, [0, 1]), floor)) == found
        near = listed(vectors.close_to_codes(block_of(rows, [0]), coded(rows, [1]), floor))
        assert near == found


def test_what_is_mined_in_groups_that_the_block_has_not_is_left_out() -> None:
    rows = Rows(np.ones((5, 2), np.float32), [1, 3, 0, 2, 4])
    assert listed(vectors.close_within(block_of(rows, range(5)), -1)) == []
    assert listed(vectors.close_to_codes(block_of(rows, [0, 1]), coded(rows, [2, 3, 4]), -1)) == []


def test_codes_choose_closely_enough_to_be_worth_having() -> None:
    # 1,536 coordinates, as real vectors have them: a code is off by a hundredth at most.
    generator = np.random.default_rng(5)
    values = generator.standard_normal((400, 1536)).astype(np.float32)
    values[200:] = values[:200] + generator.uniform(0, 2, (200, 1)).astype(
        np.float32
    ) * generator.standard_normal((200, 1536)).astype(np.float32)
    rows = Rows(values, [0] * 400)
    new, mined = range(200), range(200, 400)
    codes = coded(rows, mined)
    assert float(codes["error"].max()) < 0.015
    proposed = listed(vectors.close_to_codes(block_of(rows, new), codes, 0.82))
    expected = close(rows, 0.82, itertools.product(new, mined))
    assert expected <= {frozenset(pair) for pair in proposed}
    assert len(expected) > 50
    assert len(proposed) < 1.1 * len(expected)
