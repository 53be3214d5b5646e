"""Reading a binary COPY as numpy records, and writing array literals, over bytes made by hand."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources import binary
from resources.binary import Columns, CopyReader, Records, UnequalRows

COLUMNS: Columns = [
    ("id", binary.UUID),
    ("number", binary.BIGINT),
    ("share", binary.REAL),
    ("bytes", binary.BYTES),
]
START = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
END = b"\xff\xff"

Fields = Sequence[bytes | None]


def row_of(fields: Fields) -> bytes:
    """A row as PostgreSQL sends it; NULL has the width -1."""
    return struct.pack(">h", len(fields)) + b"".join(
        struct.pack(">i", -1 if each is None else len(each)) + (each or b"") for each in fields
    )


def stream_of(rows: Sequence[Fields]) -> bytes:
    """A whole COPY of these rows."""
    return START + b"".join(map(row_of, rows)) + END


def good(number: int, width: int = 5) -> list[bytes | None]:
    """A row that fits COLUMNS, unlike that of another number."""
    return [
        number.to_bytes(16, "big"),
        struct.pack(">q", -number),
        struct.pack(">f", number / 4),
        bytes([number % 256]) * width,
    ]


def read(pieces: Sequence[bytes], rows: int, columns: Columns = COLUMNS) -> list[Records]:
    """What a reader hands on of a stream that comes in these pieces."""
    handed_on: list[Records] = []
    reader = CopyReader(columns, lambda records: handed_on.append(records.copy()), rows)
    for piece in pieces:
        assert reader.write(piece) == len(piece), "the driver takes less for a short write"
    reader.finish()
    return handed_on


def values(handed_on: Sequence[Records]) -> list[tuple[Any, ...]]:
    """The values of all records, as Python has them."""
    return [
        (bytes(each["id"]), int(each["number"]), float(each["share"]), bytes(each["bytes"]))
        for records in handed_on
        for each in records
    ]


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The stream in pieces of any size, empty ones too."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:stop] for start, stop in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.data(), st.integers(0, 9), st.integers(1, 4), st.integers(1, 9))
def test_any_splitting_of_the_stream_gives_the_same_records_in_pieces_that_are_small_enough(
    data: st.DataObject, count: int, rows: int, width: int
) -> None:
    written = [good(number, width) for number in range(count)]
    handed_on = read(data.draw(cuts(stream_of(written))), rows)
    assert values(handed_on) == [
        (number.to_bytes(16, "big"), -number, number / 4, bytes([number]) * width)
        for number in range(count)
    ]
    assert all(0 < len(records) <= rows for records in handed_on)


@pytest.mark.parametrize("size", [1, 2, 19, 20, 21])
def test_a_stream_in_even_pieces_is_handed_on_as_soon_as_enough_of_it_has_come(size: int) -> None:
    data = stream_of([good(number) for number in range(7)])
    handed_on = read([data[at : at + size] for at in range(0, len(data), size)], rows=3)
    assert [len(records) for records in handed_on] == [3, 3, 1]


def test_no_rows_hand_on_nothing() -> None:
    assert read([stream_of([])], rows=3) == []
    assert read([bytes([byte]) for byte in stream_of([])], rows=3) == []


def test_a_row_of_bytes_is_as_wide_as_the_first_row_of_its_own_stream() -> None:
    for width in (1, 4, 6148):
        (records,) = read([stream_of([good(1, width), good(2, width)])], rows=2)
        assert records.dtype["bytes"].itemsize == width
        assert [bytes(each)[:1] for each in records["bytes"]] == [b"\x01", b"\x02"]


def fields_but(place: int, other: bytes | None) -> list[bytes | None]:
    """A row like the others but for one field."""
    return [other if place == at else each for at, each in enumerate(good(3))]


ODD: dict[str, list[bytes | None]] = {
    "narrower": good(3, width=4),
    "wider": good(3, width=6),
    "empty": good(3, width=0),
    **{f"null in {name}": fields_but(at, None) for at, (name, _) in enumerate(COLUMNS)},
    **{f"other {name}": fields_but(at, b"1234567") for at, (name, _) in enumerate(COLUMNS[:3])},
    # As long as any other in all.
    "other widths that make up for each other": [*fields_but(1, b"1234567")[:3], b"123456"],
    "a null that another column makes up for": [*fields_but(1, None)[:3], b"1234567890123"],
    "a column less": good(3)[:-1],
    "one column": good(3)[:1],
    "no column": [],
    "a column more": [*good(3), b"more"],
    "a null more": [*good(3), None],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_a_row_of_another_width_or_with_a_null_is_refused_wherever_it_stands(
    odd: list[bytes | None], place: int
) -> None:
    written: list[Fields] = [good(number) for number in range(5)]
    written.insert(place, odd)
    data = stream_of(written)
    for size, rows in itertools.product((1, 7, len(data)), (1, 2, 100)):
        with pytest.raises(UnequalRows):
            read([data[at : at + size] for at in range(0, len(data), size)], rows)


@pytest.mark.parametrize("place", range(4), ids=[name for name, _ in COLUMNS])
def test_rows_that_are_null_in_a_column_throughout_are_refused(place: int) -> None:
    # Alike among themselves, so nothing but the width of a NULL tells.
    with pytest.raises(UnequalRows):
        read([stream_of([fields_but(place, None)] * 3)], rows=2)


@given(st.data(), st.integers(0, 4), st.integers(1, 3))
def test_a_stream_that_ends_early_is_refused_wherever_it_ends(
    data: st.DataObject, count: int, rows: int
) -> None:
    whole = stream_of([good(number) for number in range(count)])
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(UnequalRows):
        read(data.draw(cuts(cut)), rows)


def test_what_the_reader_hands_on_is_not_overwritten_by_what_comes_later() -> None:
    kept: list[Records] = []
    reader = CopyReader(COLUMNS, kept.append, rows=2)
    data = stream_of([good(number) for number in range(6)])
    for at in range(0, len(data), 11):
        reader.write(data[at : at + 11])
    reader.finish()
    assert [number for _, number, _, _ in values(kept)] == [0, -1, -2, -3, -4, -5]


def test_an_error_of_the_consumer_comes_out_of_the_reader_as_it_is() -> None:
    class TooMany(Exception):
        pass

    def refuse(_records: Records) -> None:
        raise TooMany

    reader = CopyReader(COLUMNS, refuse, rows=1)
    with pytest.raises(TooMany):
        reader.write(stream_of([good(1), good(2)]))


@given(st.lists(st.uuids(), max_size=5))
def test_an_array_of_ids_has_each_id_once_in_its_order(ids: list[UUID]) -> None:
    records = np.frombuffer(b"".join(each.bytes for each in ids), binary.UUID)
    literal = binary.uuid_array(records)
    assert (literal[0], literal[-1]) == ("{", "}")
    assert [UUID(each) for each in literal[1:-1].split(",") if each] == ids


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=5))
def test_an_array_of_single_precision_numbers_loses_nothing(numbers: list[float]) -> None:
    literal = binary.array(np.array(numbers, np.float32))
    read_back = [np.float32(each) for each in literal[1:-1].split(",") if each]
    assert read_back == [np.float32(each) for each in numbers]


def test_an_array_of_whole_numbers_is_written_as_postgresql_reads_it() -> None:
    assert binary.array([]) == "{}"
    assert binary.array(iter([1, -2])) == "{1,-2}"
    assert binary.array(np.array([-(2**63), 2**63 - 1])) == (
        "{-9223372036854775808,9223372036854775807}"
    )
    assert binary.uuid_array(np.empty(0, binary.UUID)) == "{}"
