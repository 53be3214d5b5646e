"""The product's asset graph around a test's store: running it, and what a run left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from uuid import UUID

import dagster as dg

from forgetting_assets import partitions
from forgetting_assets.definitions import build_defs
from forgetting_assets.runs import QUIET
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database
from resources.flag import Flag
from resources.policy import Policy
from tests.support import DAY, TODAY, Store, TestJudge, make_policy

MARKER = "Ottoline keeps the violet ledger"
ASSETS = (
    "conflict_pairs",
    "stale_candidates",
    "judged_verdicts",
    "retention_proposals",
    "archival_sweep",
    "memory_health",
)
BOTH = Flag(pass_enabled=True, archive_enabled=True)


@dataclass
class Graph:
    """The product's definitions around a test's store, and an instance that runs them."""

    store: Store
    instance: dg.DagsterInstance
    judge: TestJudge = field(default_factory=TestJudge)
    flag: Flag = field(default_factory=lambda: BOTH)
    database: Database | None = None
    gateway: Any = None
    policy: Policy = field(default_factory=make_policy)
    cap_usd: float = 10.0

    @property
    def defs(self) -> dg.Definitions:
        # A resource of Dagster's own kind would be copied, and the judge's memory with it.
        judge = dg.ResourceDefinition.hardcoded_resource(self.judge)
        database, clock = self.database or self.store.database, Clock(fixed=TODAY.isoformat())
        return build_defs(
            database=database,
            clock=clock,
            budget=Budget(database=database, clock=clock, cap_usd=self.cap_usd),
            gateway=self.gateway or judge,
            flag=self.flag,
            policy=self.policy,
        )

    def run(
        self,
        slug: str = "acme",
        *,
        job: str = "forgetting_pass",
        alone: str | None = None,
        day: date = DAY,
    ) -> dg.ExecuteInProcessResult:
        """Run a job, or one asset ``alone``, for one partition, as the schedule or the UI would."""
        self.instance.add_dynamic_partitions("tenants", [slug])
        defs = self.defs
        chosen = (
            defs.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey(alone)])
            if alone
            else defs.resolve_job_def(job)
        )
        assert chosen is not None
        return chosen.execute_in_process(
            partition_key=partitions.key(day, slug),
            instance=self.instance,
            asset_selection=[dg.AssetKey(alone)] if alone else None,
            raise_on_error=False,
            run_config=QUIET,
        )

    def run_range(self, slugs: Sequence[str], *, day: date = DAY) -> dg.ExecuteInProcessResult:
        """Run the whole pass over several tenants at once, as the schedule does above 1 a run."""
        self.instance.add_dynamic_partitions("tenants", list(slugs))
        return self.defs.resolve_job_def("forgetting_pass").execute_in_process(
            instance=self.instance,
            tags=partitions.range_tags(day, slugs),
            raise_on_error=False,
            run_config=QUIET,
        )


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What each materialized asset said of itself."""
    return {
        event.asset_key.to_user_string(): {
            name: value.value
            for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }


def evaluations(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], bool]:
    """Whether each check that ran passed."""
    return {
        (each.asset_key.to_user_string(), each.check_name): each.passed
        for each in result.get_asset_check_evaluations()
    }


def steps(result: dg.ExecuteInProcessResult, event_type: str) -> list[str]:
    """The steps with an event of that type, in order."""
    return [
        str(event.step_key) for event in result.all_events if event.event_type_value == event_type
    ]


def failures(result: dg.ExecuteInProcessResult) -> str:
    """Every error of a run, with all its causes, as the UI would show them."""
    return "\n".join(
        error.to_string()
        for event in result.all_events
        if event.is_failure
        and (error := getattr(event.event_specific_data, "error", None)) is not None
    )


def furnish(store: Store, slug: str = "acme", **agreed: bool) -> UUID:
    """A tenant with two stale singles, a pair, an event, a note, and evidence old and new."""
    user_id = store.tenant(slug, **agreed)
    for number in range(2):
        store.memory(user_id, f"{MARKER} {slug} {number}", topic=f"{MARKER} topic", age=60 + number)
    store.pair(user_id, topic=f"{MARKER} topic")
    store.memory(user_id, f"{MARKER} {slug} event", memory_type="event")
    store.memory(user_id, f"{MARKER} {slug} note", memory_type="note")
    store.evidence(user_id, content=f"{MARKER} trace", age=90)
    store.evidence(user_id, content=f"{MARKER} log", kind="log", age=1)
    return user_id
