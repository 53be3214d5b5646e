"""Arrays to and from PostgreSQL: reading its binary COPY as numpy records, writing array literals.

A vector has a thousand values and more, so that text would cost ten times the work itself. What the
records mean belongs to who asks for them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Records = NDArray[Any]
"""Rows of a COPY, one field a column."""

Columns = Sequence[tuple[str, str]]
"""Names and numpy types of a COPY's columns. ``V*`` is as wide as the first row has it."""

UUID = "V16"
BIGINT = ">i8"
REAL = ">f4"
BYTES = "V*"

HEADER = 19
"""Bytes before the first row: a signature, flags and the length of an empty extension."""

TRAILER = b"\xff\xff"
"""After the last row: the number of columns of no row."""


class UnequalRows(Exception):
    """The rows of a COPY are not of one width."""


class CopyReader:
    """A file for the driver to write a binary COPY to; hands on ``rows`` records or fewer."""

    def __init__(self, columns: Columns, consume: Callable[[Records], None], rows: int) -> None:
        self._columns = columns
        self._consume = consume
        self._rows = rows
        self._buffer = bytearray()
        self._type: np.dtype[Any] | None = None
        self._enough = HEADER

    def write(self, data: bytes) -> int:
        """Take what the driver read, in pieces of any size. Raises UnequalRows."""
        self._buffer += data
        if len(self._buffer) >= self._enough:
            self._look()
        return len(data)

    def finish(self) -> None:
        """Hand on the last rows. Raises UnequalRows."""
        self._hand_on(least=1)
        rest = self._buffer if self._type is not None else self._buffer[HEADER:]
        if rest != TRAILER:
            raise UnequalRows

    def _look(self) -> None:
        """Hand on what is whole once the type of a record is known."""
        if self._type is None and (found := self._layout()) is not None:
            del self._buffer[:HEADER]
            self._type = found
            self._enough = self._rows * found.itemsize
        self._hand_on(least=self._rows)

    def _layout(self) -> np.dtype[Any] | None:
        """The type of a record, from the first row; None while that has not come whole."""
        fields: list[tuple[str, str]] = [("columns", ">i2")]
        at = HEADER + 2
        for name, kind in self._columns:
            if len(self._buffer) < at + 4:
                return None
            width = int.from_bytes(self._buffer[at : at + 4], "big", signed=True)
            if width < 0:  # NULL
                raise UnequalRows
            fields += [(f"{name} width", ">i4"), (name, kind.replace("*", str(width)))]
            at += 4 + width
        return np.dtype(fields)

    def _hand_on(self, least: int) -> None:
        """Hand on what has come whole, when it is ``least`` records."""
        while self._type is not None:
            whole = min(self._rows, len(self._buffer) // self._type.itemsize)
            if whole < least:
                return
            taken, self._buffer = self._buffer, self._buffer[whole * self._type.itemsize :]
            records = np.frombuffer(taken, self._type, whole)
            expected = {f"{name} width": self._type[name].itemsize for name, _ in self._columns}
            for name, value in ({"columns": len(self._columns)} | expected).items():
                if (records[name] != value).any():
                    raise UnequalRows
            self._consume(records)


def array(values: Iterable[object]) -> str:
    """An array literal of numbers or of hexadecimal ids: a list of parameters is slow to parse."""
    return "{" + ",".join(map(str, values)) + "}"


def uuid_array(ids: Records) -> str:
    """An array literal of 16-byte ids."""
    digits = ids.tobytes().hex()
    return array(digits[at : at + 32] for at in range(0, len(digits), 32))
