"""The thresholds that the eval selected for a model, as the pass loads them.

The file is data, bound to one model and one fixture. Selecting belongs to eval/calibrate.py.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from resources.errors import ConfigurationError
from resources.settings import PROJECT

FOLDER = PROJECT / "eval" / "thresholds"
CALIBRATION = PROJECT / "eval" / "fixtures" / "calibration.json"

SWEEP = tuple(n / 100 for n in range(50, 100, 5))
"""The thresholds that selection tries: 0.50 to 0.95 in steps of 0.05."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
AGAIN = "Run `forgetting-eval calibrate` for it again, or take the file away."


class Thresholds(BaseModel):
    """What was selected, for which pinned model, on which fixture, from whose answers.

    An action whose threshold is None proposes nothing. ``source``: scripted answers judge nothing,
    so what follows from them claims nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1)]
    fixture_sha256: Digest
    label_checksum: Digest
    source: Literal["scripted", "endpoint"]
    thresholds: dict[str, float | None]

    @field_validator("thresholds")
    @classmethod
    def selected(cls, value: dict[str, float | None]) -> dict[str, float | None]:
        """Selection gives each action one of the swept thresholds or none."""
        if set(value) != {"archive", "supersede", "conflict"}:
            raise ValueError("it has archive, supersede and conflict and no other")
        if any(each is not None and each not in SWEEP for each in value.values()):
            raise ValueError("a threshold is one of 0.50, 0.55 … 0.95, or null")
        return value

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=2) + "\n"


def path_of(model: str) -> Path:
    """Where the thresholds of a model belong."""
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9._-]', '_', model)}.json"


def read(path: Path) -> Thresholds:
    """Read and check a file of thresholds. Raises ConfigurationError."""
    try:
        return Thresholds.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"The thresholds in {path} cannot be read: {error.strerror}."
        ) from None
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False)
        )
        raise ConfigurationError(f"{path} is no file of thresholds ({wrong}). {AGAIN}") from None


def of_model(model: str) -> Thresholds | None:
    """The thresholds that were selected for a model; None when there are none.

    Raises ConfigurationError for a file that is of another model, of scripted answers though the
    model is not scripted, or of another calibration fixture than there is now.
    """
    path = path_of(model)
    if not path.exists():
        return None
    found = read(path)
    if found.model != model:
        raise ConfigurationError(
            f"The thresholds in {path} are of the model {found.model}, not of {model}, and "
            f"thresholds belong to the model that selected them. {AGAIN}"
        )
    if found.source == "scripted" and "scripted" not in model:
        raise ConfigurationError(
            f"The thresholds in {path} follow from scripted answers, which say nothing of {model}. "
            f"{AGAIN}"
        )
    try:
        fixture = hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigurationError(
            f"The thresholds in {path} cannot be checked, for {CALIBRATION} cannot be read: "
            f"{error.strerror}."
        ) from None
    if found.fixture_sha256 != fixture:
        raise ConfigurationError(
            f"The thresholds in {path} were selected on another fixture than {CALIBRATION} is now. "
            f"{AGAIN}"
        )
    return found
