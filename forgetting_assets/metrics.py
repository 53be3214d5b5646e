"""The figures of the deployment as Prometheus gauges, by the official client library.

docs/metrics.md lists them. Without tenants as labels they are totals, so that a thousand tenants
make no more series than one. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forgetting_assets.partition import Tenant
from forgetting_assets.store import monitoring, tenants
from forgetting_assets.store.monitoring import Calls, Failures, State
from resources.budget import Budget, Spend
from resources.database import Database, TenantTransaction
from resources.errors import ConfigurationError
from resources.policy import Policy

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

MISSING = "Metrics need a library that is not installed: pip install 'forgetting-assets[metrics]'."


@dataclass(frozen=True)
class Watched:
    """All that is counted of one tenant that is not retired."""

    tenant: Tenant
    state: State
    failures: Mapping[str, Failures]
    spend: Spend
    calls: Calls
    overdue: bool


@dataclass(frozen=True)
class Deployment:
    """All that is counted at ``read_at``."""

    read_at: datetime
    registered: Sequence[Tenant]
    watched: Sequence[Watched]
    committed_usd: float
    cap_usd: float
    open_proposals_limit: int


def read(database: Database, budget: Budget, policy: Policy, now: datetime) -> Deployment:
    """Look at every tenant once."""

    def look(tx: TenantTransaction) -> tuple[State, dict[str, Failures], Spend, Calls]:
        return (
            monitoring.state(tx),
            monitoring.failures(tx, now),
            budget.spend(tx, now),
            monitoring.calls(tx, now),
        )

    return Deployment(
        read_at=now,
        registered=tenants.all_tenants(database),
        watched=[
            Watched(
                tenant,
                *found,
                overdue=monitoring.is_overdue(tenant, found[0], policy.overdue, now),
            )
            for tenant, found in monitoring.each(database, look)
        ],
        committed_usd=float(monitoring.committed_usd(database, budget, now)),
        cap_usd=budget.deployment_cap_usd,
        open_proposals_limit=policy.open_proposals,
    )


@dataclass(frozen=True)
class Gauge:
    """A metric. ``label`` tells its samples apart, beside the tenant; None: there is one."""

    name: str
    meaning: str
    label: str | None = None


@dataclass(frozen=True)
class TenantGauge(Gauge):
    """A metric of each tenant: a value by the label's value, or under "" where there is no label.

    ``total`` makes one value of those of several tenants.
    """

    of: Callable[[Watched], Mapping[str, float]] = lambda _watched: {}
    total: Callable[[Iterable[float]], float] = sum


@dataclass(frozen=True)
class DeploymentGauge(Gauge):
    """A metric of the whole deployment."""

    of: Callable[[Deployment], Mapping[str, float]] = lambda _deployment: {}


def _one(value: float | None) -> Mapping[str, float]:
    return {} if value is None else {"": value}


def _seconds(time: datetime | None) -> Mapping[str, float]:
    return _one(None if time is None else time.timestamp())


def _health(names: Mapping[str, str], watched: Watched) -> Mapping[str, float]:
    health = watched.state.health
    return {} if health is None else {shown: health[name] for name, shown in names.items()}


def _counted(name: str) -> Callable[[Watched], Mapping[str, float]]:
    return partial(_health, {name: ""})


def _kinds(deployment: Deployment) -> Mapping[str, float]:
    active = [each for each in deployment.registered if each.retired_at is None]
    return {
        "active": len(active),
        "judgment": sum(each.judgment_enabled for each in active),
        "archival": sum(each.archival_enabled for each in active),
        "retired": len(deployment.registered) - len(active),
    }


def _failed(which: str, watched: Watched) -> Mapping[str, float]:
    found = watched.failures
    return {
        check: getattr(found[check], which) if check in found else 0 for check in monitoring.CHECKS
    }


def _passed_until(watched: Watched) -> Mapping[str, float]:
    if not (watched.tenant.judgment_enabled or watched.tenant.archival_enabled):
        return {}
    return _seconds(watched.state.passed_until)


def _verdict_day(watched: Watched) -> Mapping[str, float]:
    day = watched.state.verdict_day
    if day is None or not watched.tenant.judgment_enabled:
        return {}
    return _seconds(monitoring.end_of(day))


GAUGES: tuple[TenantGauge | DeploymentGauge, ...] = (
    DeploymentGauge(
        "forgetting_read_timestamp_seconds",
        "When these figures were read, as a Unix time.",
        of=lambda deployment: _seconds(deployment.read_at),
    ),
    DeploymentGauge(
        "forgetting_tenants",
        "Tenants: active, of these opted in to judgment and to archival, and retired.",
        "kind",
        of=_kinds,
    ),
    DeploymentGauge(
        "forgetting_deployment_spend_usd",
        "US dollars that all tenants together spent or reserved on judging in 30 days.",
        of=lambda deployment: _one(deployment.committed_usd),
    ),
    DeploymentGauge(
        "forgetting_deployment_budget_usd",
        "US dollars that all tenants together may spend in 30 days.",
        of=lambda deployment: _one(deployment.cap_usd),
    ),
    DeploymentGauge(
        "forgetting_open_proposals_limit",
        "Open proposals of one tenant at which its judging stops.",
        of=lambda deployment: _one(deployment.open_proposals_limit),
    ),
    TenantGauge(
        "forgetting_open_proposals",
        "Proposals that wait for a person.",
        of=lambda watched: _one(watched.state.open_proposals),
    ),
    TenantGauge(
        "forgetting_oldest_open_proposal_timestamp_seconds",
        "When the oldest open proposal was proposed, as a Unix time; absent when none is open.",
        of=lambda watched: _seconds(watched.state.oldest_open_at),
        total=min,
    ),
    TenantGauge(
        "forgetting_passed_until_timestamp_seconds",
        "End of the newest day that the pass went through, as a Unix time; before the first one, "
        "when the tenant was added. Tenants that opted in only.",
        of=_passed_until,
        total=min,
    ),
    TenantGauge(
        "forgetting_overdue_tenants",
        "Tenants that opted in and had no whole pass for FORGETTING_OVERDUE_DAYS.",
        of=lambda watched: _one(int(watched.overdue)),
    ),
    TenantGauge(
        "forgetting_verdicts_until_timestamp_seconds",
        "End of the newest day that has verdicts, as a Unix time; absent when there is none. "
        "Tenants that opted in to judgment only.",
        of=_verdict_day,
        total=min,
    ),
    TenantGauge(
        "forgetting_failed_checks",
        "Results of blocking checks that did not pass and that no later result replaced.",
        "check",
        of=partial(_failed, "still_open"),
    ),
    TenantGauge(
        "forgetting_failed_checks_last_day",
        "Results of blocking checks that did not pass in the last 24 hours.",
        "check",
        of=partial(_failed, "lately"),
    ),
    TenantGauge(
        "forgetting_failed_steps",
        "Steps of partitions that failed and have not succeeded since.",
        of=lambda watched: _one(watched.state.failed_steps),
    ),
    TenantGauge(
        "forgetting_spend_usd",
        "US dollars that judging cost in the budget's period, 30 days unless the tenant's own is "
        "set.",
        of=lambda watched: _one(float(watched.spend.spent_usd)),
    ),
    TenantGauge(
        "forgetting_reserved_usd",
        "US dollars that are reserved for calls under way.",
        of=lambda watched: _one(float(watched.spend.reserved_usd)),
    ),
    TenantGauge(
        "forgetting_budget_usd",
        "US dollars that judging may cost in the budget's period.",
        of=lambda watched: _one(float(watched.spend.cap_usd)),
    ),
    TenantGauge(
        "forgetting_judge_calls",
        "Calls of the judge in 30 days.",
        of=lambda watched: _one(watched.calls.calls),
    ),
    TenantGauge(
        "forgetting_unpriced_calls",
        "Calls of the judge in 30 days whose cost is not known.",
        of=lambda watched: _one(watched.calls.unpriced_calls),
    ),
    TenantGauge(
        "forgetting_unjudgeable_items",
        "Items that were put to the judge in 30 days and got no verdict: too large, or answered "
        "against the contract.",
        of=lambda watched: _one(watched.calls.unjudgeable_items),
    ),
    TenantGauge(
        "forgetting_memories",
        "Memories by state, at the newest pass: live, archived or superseded.",
        "state",
        of=partial(
            _health, {f"{state}_memories": state for state in ("live", "archived", "superseded")}
        ),
    ),
    TenantGauge(
        "forgetting_stale_memories",
        "Live memories that nothing touched for the stale window, at the newest pass.",
        of=_counted("stale_memories"),
    ),
    TenantGauge(
        "forgetting_evidence",
        "Evidence by tier, at the newest pass: hot or archived.",
        "tier",
        of=partial(_health, {f"{tier}_evidence": tier for tier in ("hot", "archived")}),
    ),
    TenantGauge(
        "forgetting_idle_evidence",
        "Hot evidence that nothing used for the stale window, at the newest pass.",
        of=_counted("idle_evidence"),
    ),
    TenantGauge(
        "forgetting_unresolved_conflicts",
        "Conflicts that are proposed or were accepted while both memories are live, at the newest "
        "pass.",
        of=_counted("unresolved_conflicts"),
    ),
    TenantGauge(
        "forgetting_regretted_archivings",
        "Archived entries that a use soon after proved wrong, at the newest pass.",
        of=_counted("regretted"),
    ),
)


def require_library() -> None:
    """Raise ConfigurationError unless the extra is installed."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigurationError(MISSING) from None


def registry(deployment: Deployment, *, per_tenant: bool) -> CollectorRegistry:
    """The gauges for the client library to write."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    class Collector:
        def collect(self) -> Iterator[Metric]:
            for gauge in GAUGES:
                by_tenant = per_tenant and isinstance(gauge, TenantGauge)
                labels = [*(["tenant"] if by_tenant else []), *filter(None, [gauge.label])]
                family = GaugeMetricFamily(gauge.name, gauge.meaning, labels=labels)
                for values, value in _samples(gauge, deployment, by_tenant):
                    family.add_metric(values, value)
                yield family

    made = CollectorRegistry()
    made.register(Collector())
    return made


def _samples(
    gauge: TenantGauge | DeploymentGauge, deployment: Deployment, by_tenant: bool
) -> Iterator[tuple[list[str], float]]:
    """Label values and the value of each sample."""
    if isinstance(gauge, DeploymentGauge):
        for value, figure in gauge.of(deployment).items():
            yield [value] if gauge.label else [], figure
        return
    found: dict[str, list[float]] = {}
    for watched in deployment.watched:
        for value, figure in gauge.of(watched).items():
            found.setdefault(value, []).append(figure)
            if by_tenant:
                yield [watched.tenant.slug, *([value] if gauge.label else [])], figure
    if not by_tenant:
        for value, figures in found.items():
            yield [value] if gauge.label else [], gauge.total(figures)


def write(made: CollectorRegistry, path: Path) -> None:
    """Replace a file, so that a reader sees the old figures or the new ones.

    Raises ConfigurationError where it cannot be written.
    """
    from prometheus_client import write_to_textfile

    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is no ordinary file: name another one.")
    try:
        write_to_textfile(str(path), made)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


def text(made: CollectorRegistry) -> str:
    """The same as text."""
    from prometheus_client import generate_latest

    return generate_latest(made).decode()
