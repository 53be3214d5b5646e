"""What calls a person: sensors that look at every tenant and say when something begins and ends.

Here belong the conditions, what is news about them, and the sending. Nothing here reads a memory:
the figures are those of store/monitoring.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import dagster as dg
import httpx

from forgetting_assets import catalog
from forgetting_assets.store import monitoring
from resources import settings
from resources.budget import CEILINGS, FORGET_DECIDE, Budget, Spend
from resources.clock import Clock
from resources.database import Database
from resources.errors import AlertNotDelivered, ConfigurationError
from resources.flag import Flag
from resources.logs import json_log
from resources.policy import Policy

INTERVAL_SECONDS = 300
TIMEOUT_SECONDS = 10.0

FOLLOWED = 1000
"""Conditions that one sensor remembers at most, so that its cursor stays small."""

LISTED = 20
"""Conditions that one message or tick spells out at most; it counts the rest."""

NEARLY = 0.9
"""Share of a budget from which it is nearly spent."""

LONG_QUEUE = 0.8
"""Share of FORGETTING_OPEN_PROPOSALS from which the review queue is long."""

NEAR_EXPIRY = timedelta(days=7)

DEPLOYMENT = "*"
"""Stands where a tenant's slug would, for all tenants together; no slug can be this."""

Figures = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Condition:
    """Something that a person should look at. It is news again when ``level`` rises."""

    level: int
    sentence: str
    figures: Figures


Conditions = dict[str, Condition]
"""What holds now, by ``slug/what``."""


# --- what holds -----------------------------------------------------------------------------------


def failed_checks(found: monitoring.PerTenant[dict[str, monitoring.Failures]]) -> Conditions:
    """Blocking checks whose newest result on a partition is a failure."""
    return {
        f"{tenant.slug}/{check}": Condition(
            failures.still_open,
            f"{tenant.slug}: the check {check} fails on {_count(failures.still_open, 'result')}. "
            "The run stopped there; the ids and reasons are in forgetting.invariant_results.",
            {"failed": failures.still_open},
        )
        for tenant, checks in found
        for check, failures in checks.items()
        if failures.still_open
    }


def spent_budgets(
    found: monitoring.PerTenant[Spend], committed_usd: Decimal, deployment_cap_usd: Decimal
) -> Conditions:
    """Budgets of which 90 % are spent, and those that cover no further call.

    A cap of 0 is a decision and no alert, and so is that of a tenant without judgment.
    """
    spends = {
        tenant.slug: (spend.spent_usd, spend.cap_usd)
        for tenant, spend in found
        if tenant.judgment_enabled
    }
    spends[DEPLOYMENT] = (committed_usd, deployment_cap_usd)
    conditions = {}
    for slug, (spent, cap) in spends.items():
        level = _level(spent, cap)
        if level is None:
            continue
        whose = "All tenants together" if slug == DEPLOYMENT else slug
        setting = (
            "FORGETTING_DEPLOYMENT_BUDGET_USD"
            if slug == DEPLOYMENT
            else "FORGETTING_BUDGET_USD or the tenant's cap_usd_override"
        )
        stops = "No further call is covered" if level == 100 else "Judging stops when it is spent"
        conditions[f"{slug}/budget"] = Condition(
            level,
            f"{whose}: {spent:.2f} of {cap:.2f} US dollars of 30 days are spent. {stops}: raise "
            f"{setting}, or wait for the window to move.",
            {"spent_usd": float(spent), "cap_usd": float(cap), "percent": level},
        )
    return conditions


def _level(spent: Decimal, cap: Decimal) -> int | None:
    if cap <= 0:
        return None
    if spent + CEILINGS[FORGET_DECIDE] > cap:
        return 100
    return 90 if spent >= Decimal(str(NEARLY)) * cap else None


def long_queues(
    found: monitoring.PerTenant[monitoring.State], policy: Policy, now: datetime
) -> Conditions:
    """Review queues that are nearly full or full, and those whose oldest proposal soon expires."""
    conditions = {}
    near = min(NEAR_EXPIRY, policy.proposal_window / 2)
    for tenant, state in found:
        share = state.open_proposals / policy.open_proposals
        if share >= LONG_QUEUE:
            stops = "Judging has stopped until" if share >= 1 else "Judging stops when it is full:"
            conditions[f"{tenant.slug}/queue"] = Condition(
                100 if share >= 1 else 80,
                f"{tenant.slug}: {state.open_proposals} of {policy.open_proposals} proposals that "
                f"may be open wait for a person. {stops} some are decided: `forgetting review list "
                f"--tenant {tenant.slug}`.",
                {"open_proposals": state.open_proposals, "limit": policy.open_proposals},
            )
        if state.oldest_open_at is None:
            continue
        expires = state.oldest_open_at + policy.proposal_window
        if expires - now <= near:
            conditions[f"{tenant.slug}/expiry"] = Condition(
                1,
                f"{tenant.slug}: the oldest of {_count(state.open_proposals, 'open proposal')} "
                f"expires undecided on {expires:%Y-%m-%d}: `forgetting review list --tenant "
                f"{tenant.slug}`.",
                {"open_proposals": state.open_proposals, "expires_at": expires.isoformat()},
            )
    return conditions


def failed_partitions(found: monitoring.PerTenant[monitoring.State]) -> Conditions:
    """Tenants of whom a step failed that has not succeeded since."""
    return {
        f"{tenant.slug}/partition": Condition(
            state.failed_steps,
            f"{tenant.slug}: {_count(state.failed_steps, 'step')} failed and has not succeeded, "
            f"last on {state.failed_day}. The reasons are in forgetting.partition_failures; "
            "run those days again, which pays for nothing twice.",
            {"failed_steps": state.failed_steps, "newest_day": str(state.failed_day)},
        )
        for tenant, state in found
        if state.failed_steps
    }


def overdue_passes(
    found: monitoring.PerTenant[monitoring.State], policy: Policy, now: datetime
) -> Conditions:
    """Tenants that opted in to something and have had no whole pass for too many days."""
    conditions = {}
    for tenant, state in found:
        if not monitoring.is_overdue(tenant, state, policy.overdue, now):
            continue
        behind = now - state.passed_until
        newest = f"{state.health_day}" if state.health_day else "none yet"
        conditions[f"{tenant.slug}/pass"] = Condition(
            1,
            f"{tenant.slug}: the pass is overdue; the newest day that it went through is {newest}. "
            "Its runs failed, or nothing started them (the schedule `nightly` is stopped until "
            f"somebody starts it): look at the runs with the tag dagster/partition/tenant="
            f"{tenant.slug}. A tenant that opted in today waits for its first night.",
            {"newest_day": newest, "days_behind": behind // timedelta(days=1)},
        )
    return conditions


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- what is news ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class News:
    """What began, or rose, and what ended since the last message, by key; ``said`` is what a sensor
    remembers once the message is delivered: each key that was announced, with its level."""

    begun: list[str]
    ended: list[str]
    said: dict[str, int]


def news(said: Mapping[str, int], holding: Mapping[str, int], followed: int = FOLLOWED) -> News:
    """What to say of conditions that hold at these levels, after what was said of them before.

    At most ``followed`` are remembered, the highest levels first; the rest wait for a place.
    """
    kept = {key: level for key, level in holding.items() if key in said}
    waiting = sorted(holding.keys() - said.keys(), key=lambda key: (-holding[key], key))
    new = waiting[: max(0, followed - len(kept))]
    rose = [key for key, level in kept.items() if level > said[key]]
    return News(
        begun=sorted([*new, *rose]),
        ended=sorted(said.keys() - holding.keys()),
        said=kept | {key: holding[key] for key in new},
    )


def read_cursor(cursor: str | None, channel: str) -> dict[str, int]:
    """What was said on a channel; on another one, nothing was."""
    try:
        found = json.loads(cursor or "{}")
        if found.get("channel") != channel:
            return {}
        return {str(key): int(level) for key, level in found["said"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}  # somebody wrote it by hand: what holds is said once more


def write_cursor(channel: str, said: Mapping[str, int]) -> str:
    """What ``read_cursor`` reads."""
    return json.dumps({"channel": channel, "said": said}, sort_keys=True)


def message(alert: str, told: News, conditions: Conditions, now: datetime) -> dict[str, Any]:
    """The body that is posted: a text for people and chats, and the same in fields for programs."""
    lines = [conditions[key].sentence for key in told.begun[:LISTED]]
    if more := len(told.begun) - LISTED:
        lines += [f"And {more} more began."] if more > 0 else []
    if told.ended:
        over = ", ".join(told.ended[:LISTED])
        more = len(told.ended) - LISTED
        lines.append(f"Over: {over}{f' and {more} more' if more > 0 else ''}.")
    return {
        "text": "\n".join([f"{alert}:", *lines]),
        "alert": alert,
        "at": now.isoformat(),
        "begun": [_fields(key, conditions[key]) for key in told.begun[:LISTED]],
        "begun_in_all": len(told.begun),
        "ended": [_fields(key) for key in told.ended[:LISTED]],
        "ended_in_all": len(told.ended),
        "holding_in_all": len(conditions),
    }


def _fields(key: str, condition: Condition | None = None) -> dict[str, Any]:
    slug, what = key.split("/", 1)
    named = {"tenant": None if slug == DEPLOYMENT else slug, "what": what}
    if condition is None:
        return named
    return {**named, "sentence": condition.sentence, "figures": dict(condition.figures)}


def post(url: str, body: Mapping[str, Any]) -> None:
    """Send a message. Raises AlertNotDelivered, or ConfigurationError for what is no URL.

    Neither names the URL, which is a secret, nor what the other end says.
    """
    try:
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_SECONDS) as response:
            status = response.status_code
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise ConfigurationError(
            "FORGETTING_ALERT_WEBHOOK is no address: write it as https://host/path."
        ) from None
    except httpx.HTTPError as error:
        raise AlertNotDelivered(
            f"The webhook does not answer ({type(error).__name__}); the next tick sends this "
            f"again: {body['text']}"
        ) from None
    if not 200 <= status < 300:
        raise AlertNotDelivered(
            f"The webhook answers with status {status}; the next tick sends this again: "
            f"{body['text']}"
        )


# --- the sensors ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Means:
    """What a look at the tenants needs."""

    database: Database
    budget: Budget
    policy: Policy
    flag: Flag
    now: datetime


def _look_at_checks(means: Means) -> Conditions:
    return failed_checks(
        monitoring.each(means.database, lambda tx: monitoring.failures(tx, means.now))
    )


def _look_at_partitions(means: Means) -> Conditions:
    return failed_partitions(monitoring.each(means.database, monitoring.state))


def _look_at_budgets(means: Means) -> Conditions:
    return spent_budgets(
        monitoring.each(means.database, lambda tx: means.budget.spend(tx, means.now)),
        monitoring.committed_usd(means.database, means.budget, means.now),
        Decimal(str(means.budget.deployment_cap_usd)),
    )


def _look_at_queues(means: Means) -> Conditions:
    return long_queues(monitoring.each(means.database, monitoring.state), means.policy, means.now)


def _look_at_passes(means: Means) -> Conditions:
    if means.flag.why_everything_is_off():
        return {}
    return overdue_passes(
        monitoring.each(means.database, monitoring.state), means.policy, means.now
    )


def _sensor(
    name: str, look: Callable[[Means], Conditions], description: str
) -> dg.SensorDefinition:
    @dg.sensor(
        name=name,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        owners=catalog.OWNERS,
        description=f"{description} Each tick says what holds. With FORGETTING_ALERT_WEBHOOK set, "
        "it posts one message when something begins or gets worse, and one when it is over. It "
        "reads figures and no memory.",
    )
    def alert(
        context: dg.SensorEvaluationContext,
        database: Database,
        budget: Budget,
        policy: Policy,
        flag: Flag,
        clock: Clock,
    ) -> dg.SensorResult:
        now = clock.now()
        conditions = look(Means(database, budget, policy, flag, now))
        webhook = settings.read().forgetting_alert_webhook
        channel = "webhook" if webhook else "log"
        told = news(
            read_cursor(context.cursor, channel),
            {key: each.level for key, each in conditions.items()},
        )
        if told.begun or told.ended:
            body = message(name, told, conditions, now)
            context.log.warning(body["text"])
            if log := json_log():
                log.warning(
                    name, **{key: body[key] for key in body if key not in ("text", "alert")}
                )
            if webhook:
                post(webhook.get_secret_value(), body)
        # Only now: what was not delivered stays news for the next tick.
        return dg.SensorResult(
            skip_reason=_holding(conditions), cursor=write_cursor(channel, told.said)
        )

    return alert


def _holding(conditions: Conditions) -> str:
    if not conditions:
        return "Nothing to report."
    said = [conditions[key].sentence for key in sorted(conditions)[:LISTED]]
    more = len(conditions) - LISTED
    return "\n".join([*said, *([f"And {more} more."] if more > 0 else [])])


failed_check = _sensor(
    "alert_failed_check",
    _look_at_checks,
    "Zero episodic collapse, conservation of the archive or the blast radius failed on a partition "
    "of a tenant, and no later run of it passed.",
)
failed_partition = _sensor(
    "alert_failed_partition",
    _look_at_partitions,
    "A step failed for a tenant's partition and has not succeeded since. In a run over many "
    "tenants the others went on.",
)
spent_budget = _sensor(
    "alert_spent_budget",
    _look_at_budgets,
    "90 % of what a tenant, or all of them together, may spend on judging in 30 days is spent, or "
    "no further call is covered.",
)
long_queue = _sensor(
    "alert_long_queue",
    _look_at_queues,
    "80 % of the proposals that a tenant may have open wait for a person, or all, at which judging "
    "stops; or the oldest of them expires within a week.",
)
overdue_pass = _sensor(
    "alert_overdue_pass",
    _look_at_passes,
    "A tenant that opted in has had no whole pass for FORGETTING_OVERDUE_DAYS. The freshness of an "
    "asset does not show that: another tenant's pass keeps it fresh.",
)

SENSORS = (failed_check, failed_partition, spent_budget, long_queue, overdue_pass)
