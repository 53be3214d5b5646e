"""Every error the project raises on purpose. The docstring is the default message.

    ForgettingError
    ├── ConfigurationError
    │   ├── DatabaseUnreachable
    │   ├── UnsafeRole
    │   ├── NotMigrated
    │   ├── NotADemo
    │   ├── FloorMissing
    │   ├── MissingApiKey
    │   └── UnpinnedModel
    ├── StoreRefused
    ├── UnusableVectors
    ├── TenantError
    │   ├── UnknownTenant
    │   ├── RetiredTenant
    │   ├── InvalidSlug
    │   ├── SlugTaken
    │   ├── TenantUnderWay
    │   ├── JudgmentNotEnabled
    │   └── RowsHidden
    ├── PartitionError
    ├── ImportRefused
    ├── ExportRefused
    ├── RestoreRefused
    ├── GatewayError
    │   ├── GatewayUnavailable
    │   ├── GatewayRefused
    │   ├── RequestTooLarge
    │   └── AnswerRejected
    │       └── WrongModel
    ├── AlertNotDelivered
    ├── BudgetExceeded
    ├── RateExceeded
    ├── InvariantViolated
    │   └── BlastRadiusExceeded
    ├── TenantsFailed
    ├── StepBroken
    ├── EvidenceRefused
    ├── EvalRefused
    └── ReviewRefused

A message says what is wrong and what to do next. It names slugs, ids, counts and settings, never
the content of a memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Literal

SHOWN = 5
"""Ids that one sentence names at most."""


class ForgettingError(Exception):
    """The forgetting pass could not go on."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(self.__doc__ or ""))


class ConfigurationError(ForgettingError):
    """A setting is missing or unusable."""


class DatabaseUnreachable(ConfigurationError):
    """The database does not answer or refuses the login: check DATABASE_URL."""


class UnsafeRole(ConfigurationError):
    """The database role could read across tenants: use a role that RLS binds."""


class NotMigrated(ConfigurationError):
    """The database has no current schema: run `forgetting migrate` as its owner."""


class NotADemo(ConfigurationError):
    """The scripted judge only runs on a demo database: set FORGETTING_GATEWAY=jev."""


class FloorMissing(ConfigurationError):
    """An embedding model has no floor: set FORGETTING_CONFLICT_FLOORS."""


class MissingApiKey(ConfigurationError):
    """No judge can be asked without a key: set JEV_API_KEY."""


class UnpinnedModel(ConfigurationError):
    """JEV_MODEL must name one version, such as jev-1.14.0: an alias changes under the pass."""


class StoreRefused(ForgettingError):
    """The database refused a statement; its transaction was rolled back."""


class UnusableVectors(ForgettingError):
    """The tenant's vectors cannot be compared; nothing was mined."""


class TenantError(ForgettingError):
    """The tenant cannot be used."""


class UnknownTenant(TenantError):
    """There is no such tenant: `forgetting tenants list` shows those that exist."""


class RetiredTenant(TenantError):
    """The tenant is retired, so the pass leaves it alone."""


class InvalidSlug(TenantError):
    """A tenant's slug has 1 to 63 of a-z, 0-9, _ and -, and starts with a letter or a digit."""


class SlugTaken(TenantError):
    """There is a tenant of that slug already."""


class TenantUnderWay(TenantError):
    """A run or a backfill of the tenant is under way: wait for its end, or cancel it."""


class JudgmentNotEnabled(TenantError):
    """The tenant has not opted in to judgment, so nothing is sent."""


class RowsHidden(TenantError):
    """The runtime role does not see all memories of the tenant, so nothing was selected."""


class PartitionError(ForgettingError):
    """The partition cannot be materialized."""


class ImportRefused(ForgettingError):
    """The file has lines that cannot be imported; nothing of it was written."""


class ExportRefused(ForgettingError):
    """The tenant cannot be exported to that file; nothing was written."""


class RestoreRefused(ForgettingError):
    """The file cannot be restored; nothing of it was written."""


class GatewayError(ForgettingError):
    """The judge gave no usable answer.

    ``billed`` says that the endpoint may have judged and charged the request all the same.
    """

    def __init__(self, message: str | None = None, *, billed: bool = False) -> None:
        super().__init__(message)
        self.billed = billed


class GatewayUnavailable(GatewayError):
    """The judge cannot be reached now; the unjudged items wait for the next run.

    ``retry_after`` is what the endpoint asked for, in seconds, or None.
    """

    def __init__(
        self, message: str | None = None, *, billed: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message, billed=billed)
        self.retry_after = retry_after


class GatewayRefused(GatewayError):
    """The judge refuses the request; asking again would not help."""


class RequestTooLarge(GatewayError):
    """The judge finds the request too large; half of it may fit."""


class AnswerRejected(GatewayError):
    """The judge's answer breaks its contract, so nothing of it is used."""


class WrongModel(AnswerRejected):
    """The judge answered as another model than the pinned one, so nothing of it is used."""


class AlertNotDelivered(ForgettingError):
    """The webhook did not take an alert; the next tick sends it again."""


class BudgetExceeded(ForgettingError):
    """The budget does not cover another call; what was judged stays."""


class RateExceeded(ForgettingError):
    """The token rate that all runs share is taken for too long; what was judged stays."""


class InvariantViolated(ForgettingError):
    """Zero episodic collapse or conservation does not hold; nothing was written.

    ``found`` has the id and the reason of each violation.
    """

    def __init__(self, message: str | None = None, found: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.found = found


class BlastRadiusExceeded(InvariantViolated):
    """The verdicts of one run would end too much of a scope; nothing was proposed."""


class TenantsFailed(ForgettingError):
    """Some tenants of a run over many failed; the others finished."""


class StepBroken(ForgettingError):
    """A step broke on an error that is not ours: this is a bug."""


class EvidenceRefused(ForgettingError):
    """Evidence cannot be recorded, used or forgotten this way; nothing was changed."""


class EvalRefused(ForgettingError):
    """What the eval was given cannot be used; nothing was judged, scored or written."""


RefusalReason = Literal[
    "unknown",
    "decided",
    "changed",
    "gone",
    "episodic",
    "no_embedding",
    "no_verdict",
    "not_yet",
    "touched",
    "depends",
    "empty",
]
"""Why a decision is refused.

unknown: the tenant has no such proposal, or none to undo. decided: it is applied, rejected or
dismissed already. changed: a side is not what the judge saw. gone: a side is not live. episodic: a
side is an event or a note now. no_embedding: what would take the older one's place has no vector.
no_verdict: nothing tells what its judge saw. not_yet: the older side is not valid yet, so its time
cannot end. touched: accepting another proposal changed a side. depends: something later stands on
the decision. empty: nothing was named.
"""


class ReviewRefused(ForgettingError):
    """The proposal cannot be decided this way.

    ``reason`` says why, for a program.
    """

    def __init__(self, message: str, reason: RefusalReason) -> None:
        super().__init__(message)
        self.reason = reason


def some(ids: Sequence[object]) -> str:
    """A few ids of what may be many, for a sentence."""
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(map(str, ids[:SHOWN])) + more
