"""The one place where everything is wired. `dagster dev -w workspace.yaml` loads this module."""

from __future__ import annotations

from typing import Any

import dagster as dg

from forgetting_assets import alerts, catalog, jobs, schedules, sensors
from forgetting_assets.assets import sources
from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.assets.conflict_pairs import conflict_pairs
from forgetting_assets.assets.judged_verdicts import judged_verdicts
from forgetting_assets.assets.memory_health import memory_health
from forgetting_assets.assets.retention_proposals import retention_proposals
from forgetting_assets.assets.stale_candidates import stale_candidates
from forgetting_assets.checks import finished, invariant
from forgetting_assets.demo.scripted import ScriptedGateway
from resources import settings
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.gateway import Gateway, JevGateway
from resources.policy import Policy
from resources.rate import TokenRate


def build_defs(**resource_overrides: Any) -> dg.Definitions:
    """Everything that Dagster shows, with the environment's resources or those passed instead."""
    return dg.Definitions(
        assets=catalog.linked(
            [
                sources.memories,
                sources.evidence,
                conflict_pairs,
                stale_candidates,
                judged_verdicts,
                retention_proposals,
                archival_sweep,
                memory_health,
            ]
        ),
        asset_checks=[*invariant.checks(), finished.every_tenant_finished()],
        jobs=[jobs.forgetting_pass, jobs.sweep_alone],
        schedules=[schedules.nightly],
        sensors=[sensors.tenant_registry, *alerts.SENSORS],
        resources=_resources(**resource_overrides),
        # 2.6 CPU seconds a run where the default executor takes 14.6.
        executor=dg.in_process_executor,
    )


def gateway_of(read: settings.Settings) -> Gateway:
    """The judge that the settings name, or the demo's script."""
    if read.forgetting_gateway == "scripted":
        return ScriptedGateway()
    return JevGateway.configured(read)


def _resources(**overrides: Any) -> dict[str, Any]:
    # Secrets are not here: a resource reads its own when it starts.
    read = settings.read()
    database = overrides.get("database", Database())
    clock = overrides.get("clock", Clock())
    gateway = gateway_of(read)
    judge = overrides.get("gateway", gateway)
    return {
        "database": database,
        "clock": clock,
        "gateway": gateway,
        "budget": Budget(
            database=database,
            clock=clock,
            cap_usd=read.forgetting_budget_usd,
            deployment_cap_usd=read.forgetting_deployment_budget_usd,
            prices={model: list(price) for model, price in read.forgetting_prices.items()},
        ),
        "rate": TokenRate(
            database=database, clock=clock, tokens_per_minute=read.forgetting_tokens_per_minute
        ),
        "flag": Flag(
            pass_enabled=read.forgetting_pass_enabled,
            archive_enabled=read.forgetting_archive_enabled,
            unforget=read.forgetting_unforget,
        ),
        "policy": Policy(
            conflict_floors=read.forgetting_conflict_floors,
            thresholds_of=judge.pinned_model if isinstance(judge, Gateway) else None,
            batch_items=read.forgetting_batch_items,
            calls_in_flight=read.forgetting_calls_in_flight,
            retry_seconds=read.forgetting_retry_seconds,
            shadow=read.forgetting_judge_shadow,
            open_proposals=read.forgetting_open_proposals,
            proposal_days=read.forgetting_proposal_days,
            blast_radius=read.forgetting_blast_radius,
            blast_radius_least=read.forgetting_blast_radius_least,
            sweep_batch=read.forgetting_sweep_batch,
            sweep_window_days=read.forgetting_sweep_window_days,
            overdue_days=read.forgetting_overdue_days,
        ),
        **overrides,
    }


defs = build_defs()
