"""`forgetting metrics`: the deployment's figures for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forgetting_assets import metrics
from forgetting_assets.commands.console import locate, open_database
from resources import settings
from resources.budget import Budget
from resources.clock import Clock
from resources.policy import Policy


def show_metrics(
    to: Annotated[
        Path | None, typer.Option(help="Replace this file, in one step; it should end in .prom.")
    ] = None,
    per_tenant: Annotated[
        bool, typer.Option("--per-tenant", help="One series a tenant, not totals of all.")
    ] = False,
) -> None:
    """Print the figures of all tenants in Prometheus' text format, or write them to a file.

    For node_exporter's textfile collector, from cron. Counts, times and money, no text of a memory.
    Needs the extra: pip install 'forgetting-assets[metrics]'.
    """
    metrics.require_library()
    read = settings.read()
    clock = Clock()
    with open_database(locate()) as database:
        deployment = metrics.read(
            database,
            Budget(
                database=database,
                clock=clock,
                cap_usd=read.forgetting_budget_usd,
                deployment_cap_usd=read.forgetting_deployment_budget_usd,
            ),
            Policy(
                open_proposals=read.forgetting_open_proposals,
                overdue_days=read.forgetting_overdue_days,
            ),
            clock.now(),
        )
    made = metrics.registry(deployment, per_tenant=per_tenant)
    if to is None:
        typer.echo(metrics.text(made), nl=False)
    else:
        metrics.write(made, to)
