"""Running partitions from the command line and printing what each found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from forgetting_assets.definitions import build_defs
from forgetting_assets.partition import Partition, of_day
from forgetting_assets.runs import run_partition
from forgetting_assets.store import invariant, tenants
from resources.database import Database
from resources.errors import ForgettingError


def run_pass(
    console: Console,
    database: Database,
    partitions: Sequence[Partition],
    *,
    rejudge: bool = False,
) -> None:
    """Run the whole pass for each partition and print a table. Raises when one of them failed."""
    job = build_defs().resolve_job_def("forgetting_pass")
    runs = [(each, run_partition(database, job, each, rejudge=rejudge)) for each in partitions]
    table = Table(Column(no_wrap=True), *(each.tenant.slug for each in partitions))
    for name, figure in FIGURES.items():
        table.add_row(name, *(figure(each, run.metadata) for each, run in runs))
    results = [invariant.results(database, each, run.run_id) for each, run in runs]
    for check in CHECKS:
        table.add_section()
        table.add_row(check)
        for asset in ASSETS:
            if any((asset, check) in found for found in results):
                table.add_row(f"  {asset}", *(_passed(found, asset, check) for found in results))
    console.print(table)
    for partition, run in runs:
        for reason in run.metadata.get("judged_verdicts", {}).get("stopped", []):
            console.print(f"{partition.tenant.slug}: {reason}", soft_wrap=True)
    failed = [(each.tenant.slug, run) for each, run in runs if not run.success]
    if failed:
        raise ForgettingError(
            "\n".join(
                f"The pass failed for {slug}: {run.reason or 'see the UI.'} (run {run.run_id})"
                for slug, run in failed
            )
        )


def yesterdays(database: Database, slugs: Sequence[str], now: datetime) -> list[Partition]:
    """The newest partition of each tenant."""
    yesterday = now.astimezone(UTC).date() - timedelta(days=1)
    return [of_day(yesterday, tenants.find_active(database, slug), now) for slug in slugs]


Said = Mapping[str, Mapping[str, Any]]


def _figure(asset: str, name: str, shape: str = "{}") -> Callable[[Partition, Said], str]:
    def figure(partition: Partition, said: Said) -> str:
        tenant = partition.tenant
        agreed = tenant.archival_enabled if asset == "archival_sweep" else tenant.judgment_enabled
        value = said.get(asset, {}).get(name)
        return shape.format(value) if agreed and value is not None else "-"

    return figure


def _yes(on: bool) -> str:
    return "yes" if on else "no"


FIGURES: Mapping[str, Callable[[Partition, Said], str]] = {
    "day": lambda partition, _said: partition.run_date.isoformat(),
    "opted in to judgment": lambda partition, _said: _yes(partition.tenant.judgment_enabled),
    "opted in to archival": lambda partition, _said: _yes(partition.tenant.archival_enabled),
    "stale candidates": _figure("stale_candidates", "stale_candidates"),
    "stale in all": _figure("stale_candidates", "stale_total"),
    "pairs": _figure("conflict_pairs", "pairs"),
    "judged": _figure("judged_verdicts", "dagster/partition_row_count"),
    "left for the next run": _figure("judged_verdicts", "items_left"),
    "proposed: archive": _figure("retention_proposals", "proposed_archive"),
    "proposed: supersede": _figure("retention_proposals", "proposed_supersede"),
    "proposed: conflict": _figure("retention_proposals", "proposed_conflict"),
    "evidence archived": _figure("archival_sweep", "archived_by_partition"),
    "judge calls, this run": _figure("judged_verdicts", "calls"),
    "spend, this run (USD)": _figure("judged_verdicts", "spend_usd", "{:.4f}"),
}


CHECKS = (
    invariant.ZERO_EPISODIC_COLLAPSE,
    invariant.CONSERVATION,
    invariant.BLAST_RADIUS,
    invariant.COMPLETE,
)

ASSETS = (
    "conflict_pairs",
    "stale_candidates",
    "judged_verdicts",
    "retention_proposals",
    "archival_sweep",
)


def _passed(found: Mapping[tuple[str, str], bool], asset: str, check: str) -> str:
    passed = found.get((asset, check))
    if passed is None:
        return "-"
    failed = "warned" if check == invariant.COMPLETE else "FAILED"
    return "passed" if passed else failed
