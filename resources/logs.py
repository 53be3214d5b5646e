"""Structured logs: one JSON object a line on standard error, when FORGETTING_LOG_FORMAT is `json`.

Here belong the writer and the handler that turns a run's events into lines. A line has ids, times,
counts and money, and never a memory's text: of an error that is not ours it has the class alone,
and of a materialization the numbers alone.
"""

import json
import logging
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import dagster as dg
import structlog

from resources import settings
from resources.errors import ForgettingError

# Dagster calls its handlers from dagster.yaml beta, once a run, on standard error.
warnings.filterwarnings(
    "ignore", message="Handling yaml-defined logging configuration", category=dg.BetaWarning
)

Fields = MutableMapping[str, Any]


def json_log() -> structlog.BoundLogger | None:
    """The writer of JSON lines, or None while logs are text. Raises ConfigurationError."""
    if settings.read().forgetting_log_format != "json":
        return None
    log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.BoundLogger,
        processors=[structlog.contextvars.merge_contextvars, *SHAPE],
    )
    return cast(structlog.BoundLogger, log)


def speak_json() -> None:
    """Let what libraries of this process log become JSON lines too, from a warning on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _class_of_error,
                *SHAPE,
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _class_of_error(_logger: Any, _method: str, line: Fields) -> Fields:
    # A library's message and traceback may quote what it was given.
    if found := line.pop("exc_info", None):
        kind = found[0] if isinstance(found, tuple) else type(found)
        line["error"] = getattr(kind, "__name__", None)
    return line


def _in_order(_logger: Any, _method: str, line: Fields) -> Fields:
    return {name: line.pop(name) for name in ("time", "level", "event")} | dict(line)


SHAPE: list[Any] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    _in_order,
    structlog.processors.JSONRenderer(serializer=json.dumps, default=str),
]

RUNS = {
    dg.DagsterEventType.RUN_START: "run_started",
    dg.DagsterEventType.RUN_SUCCESS: "run_succeeded",
    dg.DagsterEventType.RUN_FAILURE: "run_failed",
    dg.DagsterEventType.RUN_CANCELED: "run_canceled",
    dg.DagsterEventType.STEP_SUCCESS: "step_finished",
    dg.DagsterEventType.STEP_FAILURE: "step_failed",
    dg.DagsterEventType.STEP_SKIPPED: "step_skipped",
    dg.DagsterEventType.ASSET_MATERIALIZATION: "asset_materialized",
    dg.DagsterEventType.ASSET_CHECK_EVALUATION: "check_evaluated",
}
"""Dagster's events that become a line, and the names of the lines."""


class RunLog(logging.Handler):
    """What a run did, as JSON lines; nothing while logs are text.

    dagster.yaml names it under ``python_logs``, so every process that works on a run has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._log = json_log()

    def emit(self, record: logging.LogRecord) -> None:
        if self._log is None:
            return
        meta = getattr(record, "dagster_meta", {})
        event: dg.DagsterEvent | None = meta.get("dagster_event")
        name = RUNS.get(event.event_type) if event else "said"
        if name is not None:
            fields = {**_of_run(meta), **(_of_event(event) if event else _said(record, meta))}
            least = logging.INFO if fields.get("passed", True) else logging.WARNING
            level = logging.getLevelName(max(record.levelno, least)).lower()
            getattr(self._log, level)(name, **fields)
        # Dagster's console comes after this handler, and would say the same once more as text.
        record.levelno = logging.NOTSET


def _of_run(meta: Mapping[str, Any]) -> Fields:
    tags = meta.get("job_tags") or {}
    found = {
        "run_id": meta.get("run_id"),
        "job": meta.get("job_name"),
        "step": meta.get("step_key"),
        "tenant": tags.get("dagster/partition/tenant"),
        "run_date": tags.get("dagster/partition/date"),
        "first_partition": tags.get("dagster/asset_partition_range_start"),
        "last_partition": tags.get("dagster/asset_partition_range_end"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _said(record: logging.LogRecord, meta: Mapping[str, Any]) -> Fields:
    """A line that an asset or a check wrote, which has no memory's text by our own rule."""
    said: Fields = {"message": meta.get("orig_message")}
    if record.exc_info and record.exc_info[0]:
        said["error"] = record.exc_info[0].__name__
    return said


def _of_event(event: dg.DagsterEvent) -> Fields:
    data: Any = event.event_specific_data
    match event.event_type:
        case dg.DagsterEventType.ASSET_MATERIALIZATION:
            return {"asset": _asset(event), **_partition(event), **_numbers(event)}
        case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            violations = data.metadata.get("violations")
            return {
                "asset": data.asset_key.to_user_string(),
                "check": data.check_name,
                "passed": data.passed,
                "violations": violations.value if violations else None,
            }
        case dg.DagsterEventType.STEP_SUCCESS:
            return {"seconds": round(data.duration_ms / 1000, 3)}
    error = getattr(data, "error", None)
    if error is None:
        return {}
    kind, sentence = cause(error)
    return {"error": kind, **({"message": sentence} if sentence else {})}


def _asset(event: dg.DagsterEvent) -> str | None:
    return event.asset_key.to_user_string() if event.asset_key else None


def _partition(event: dg.DagsterEvent) -> Fields:
    key = event.partition
    if not isinstance(key, dg.MultiPartitionKey):
        return {} if key is None else {"partition": key}
    dimensions = key.keys_by_dimension
    return {"tenant": dimensions.get("tenant"), "run_date": dimensions.get("date")}


def _numbers(event: dg.DagsterEvent) -> Fields:
    metadata = event.step_materialization_data.materialization.metadata
    return {
        name.removeprefix("dagster/"): value.value
        for name, value in metadata.items()
        if isinstance(value.value, bool | int | float)
    }


def _names(cls: type[ForgettingError]) -> set[str]:
    return {cls.__name__}.union(*(_names(each) for each in cls.__subclasses__()))


OURS = _names(ForgettingError)
"""The classes of errors whose messages are sentences of ours."""


def cause(error: Any) -> tuple[str, str | None]:
    """The class of a kept error and its sentence, where it or a cause is ours; else the last cause.

    ``error`` is what Dagster keeps of an exception.
    """
    while error.cls_name not in OURS and error.cause is not None:
        error = error.cause
    if error.cls_name in OURS:
        return error.cls_name, str(error.message).split(": ", 1)[-1].strip()
    return error.cls_name or "", None
