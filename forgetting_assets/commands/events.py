"""`forgetting trim-events`: keep Dagster's event log from growing for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from forgetting_assets.commands.console import confirm, locate_with_dagster, say
from forgetting_assets.store import events
from resources.clock import Clock
from resources.database import engine


def trim_events(
    older_than_days: Annotated[
        int, typer.Option(min=1, help="Runs that ended longer ago than this many days.")
    ] = 90,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take the detail of old runs from Dagster's event log, after saying how much it is.

    Steps' beginnings and ends, log lines and the like. Partitions, materializations, checks,
    failures and the list of runs stay as they are.
    """
    ended_before = Clock().now() - timedelta(days=older_than_days)
    dagster = engine(locate_with_dagster().dagster)
    try:
        found = events.count(dagster, ended_before)
        if not found.events:
            say(f"No run that ended before {ended_before:%Y-%m-%d} has events to trim.")
            return
        what = f"{found.events} events, {found.bytes / 1e6:.1f} MB, of {found.runs} runs"
        confirm(f"Delete {what} that ended before {ended_before:%Y-%m-%d %H:%M} UTC?", yes)
        done = sum(events.trim(dagster, ended_before))
    finally:
        dagster.dispose()
    say(f"Deleted {done} events. PostgreSQL's autovacuum gives their space to new ones.")
