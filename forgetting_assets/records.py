"""What may be written into the store, line by line: the fields of evidence, and what a text and a
vector must be. The fields of a memory stand in importing.py. No I/O.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import numpy as np
from pgvector import Vector
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

DIMENSIONS = 1536
EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
"""No time before it is believed: it is what a clock that was never set says."""

NAME = re.compile(r"[A-Za-z_]{1,30}")
"""What is named as a field in a refusal: whatever else stands in its place could be a text."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
NonEmpty = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Kind = Literal[
    "trace",
    "log",
    "tool_input",
    "tool_output",
    "step_outcome",
    "lesson",
    "rule",
    "mental_model",
    "fact",
    "observation",
    "handoff",
    "archive_block",
]


def is_storable(text: str) -> bool:
    """Whether the database can hold a text: neither a NUL nor half a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


class Storable(BaseModel):
    """A line for the store: its texts can be stored, and a vector names its model."""

    model_config = ConfigDict(extra="forbid")

    embedding: list[Finite] | None = None
    embedding_model: Name | None = None

    @field_validator("*")
    @classmethod
    def storable(cls, value: Any) -> Any:
        """PostgreSQL text holds neither NUL nor half a surrogate pair."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not is_storable(text):
                raise ValueError("it has a NUL or an unpaired surrogate, which cannot be stored")
        return value

    @field_validator("embedding")
    @classmethod
    def full_length(cls, values: list[float] | None) -> list[float] | None:
        """A vector of the store's length that points somewhere."""
        if values is None:
            return None
        if len(values) != DIMENSIONS:
            raise ValueError(f"it has {len(values)} values, the store holds {DIMENSIONS}")
        if not any(values):
            raise ValueError("it is a zero vector, which has no direction: leave it null")
        # The store keeps and multiplies four bytes a value; a length of 0 or infinity there would
        # make every cosine NaN.
        with np.errstate(over="ignore", under="ignore"):
            squared = np.square(np.array(values, np.float32)).sum()
        if not np.isfinite(squared) or squared < np.finfo(np.float32).tiny:
            raise ValueError("its values are too great or too small to have a direction")
        return values

    @model_validator(mode="after")
    def names_its_model(self) -> Storable:
        """A vector is compared with vectors of its own model alone."""
        if self.embedding is not None and self.embedding_model is None:
            raise ValueError("embedding_model must name the model that made the embedding")
        return self

    @property
    def vector(self) -> str | None:
        """The vector as the database reads it."""
        return Vector(self.embedding).to_text() if self.embedding else None


class EvidenceRecord(Storable):
    """One piece of evidence to record.

    ``occurred_at`` None: it is not known when it happened, so it is never archived. ``embedding``
    has 1,536 values; without one the entry is reached by its id alone.
    """

    id: UUID = Field(default_factory=uuid4)
    session_id: Name
    kind: Kind
    content: NonEmpty
    occurred_at: AwareDatetime | None

    def row(self, now: datetime) -> dict[str, Any]:
        """The record as the insert statement reads it."""
        return self.model_dump(mode="json") | {
            "embedding": self.vector,
            "embedding_model": self.embedding_model if self.embedding else None,
            "recorded_at": now.isoformat(),
        }


def reasons(error: ValidationError) -> str:
    """What is wrong with a line, by field. Neither the input nor its context: both may quote it."""
    return "; ".join(
        ": ".join(
            [*(part for part in map(str, each["loc"][:1]) if NAME.fullmatch(part)), _message(each)]
        )
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    )


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "no such field"
    return str(error["msg"]).removeprefix("Value error, ")
