"""`forgetting backfill`: the pass over many days and tenants, by Dagster's daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from forgetting_assets.commands.console import say
from forgetting_assets.partition import parse_day
from resources import settings


def backfill(
    first: Annotated[str, typer.Option("--from", help="The first UTC day, YYYY-MM-DD.")],
    last: Annotated[str, typer.Option("--to", help="The last UTC day, YYYY-MM-DD, included.")],
    tenants: Annotated[
        str | None,
        typer.Option(help="The tenants' slugs, with commas between; else every active tenant."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also the partitions that are materialized already.")
    ] = False,
) -> None:
    """Run the pass over many days and tenants as a Dagster backfill, and follow it to its end.

    The same command again goes on: it follows what is still under way and requests what is missing
    or failed. With FORGETTING_PASS_ENABLED off it says so, reads nothing and exits with 0.
    """
    read = settings.read()
    days = parse_day(first), parse_day(last)
    if not read.forgetting_pass_enabled:
        say("FORGETTING_PASS_ENABLED is off: nothing was read.")
        return
    # Only now: Dagster's partitions are made of settings, which were not read before.
    from forgetting_assets.commands.following import run_backfill

    slugs = None if tenants is None else [each.strip() for each in tenants.split(",")]
    run_backfill(read, slugs, *days, every=all_)
