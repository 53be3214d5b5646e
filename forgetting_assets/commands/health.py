"""`forgetting health`: how a tenant's memory is doing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from forgetting_assets.commands.console import TenantOption, console, open_tenant, say
from forgetting_assets.store import health
from resources.clock import Clock


def show_health(
    tenant: TenantOption,
    session: Annotated[
        str | None, typer.Option(help="Only this session's evidence and what cites it.")
    ] = None,
    stale_days: Annotated[
        int, typer.Option(help="After how many days without a touch something is stale or idle.")
    ] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show what is live, stale, idle, archived and waiting of a tenant. Counts only, no text."""
    with open_tenant(tenant) as (database, user_id):
        found = health.memory_health(database, user_id, Clock().now(), session, stale_days)
    if as_json:
        typer.echo(json.dumps(asdict(found), default=datetime.isoformat, indent=2))
        return
    of = f", session {session}" if session else ""
    say(f"{tenant}{of}, at {found.measured_at:%Y-%m-%d %H:%M} UTC\n")
    memories = {
        kind: {**states, "stale": found.stale.get(kind, 0)}
        for kind, states in found.memories.items()
    }
    _table("memories", (*health.STATES, "stale"), memories)
    _table("evidence", health.TIERS, found.evidence)
    _table("open proposals", health.AGES, found.proposals)
    say("\n".join(f"{name}: {figure}" for name, figure in _figures(found).items()))


def _table(title: str, columns: Sequence[str], counts: health.Counts) -> None:
    table = Table(title, *(each.replace("_", " ") for each in columns))
    for each in table.columns[1:]:
        each.justify = "right"
    for name, row in counts.items():
        table.add_row(name, *(str(row[column]) for column in columns))
    table.add_section()
    totals = (sum(row[column] for row in counts.values()) for column in columns)
    table.add_row("in all", *map(str, totals))
    console.print(table)


def _figures(found: health.MemoryHealth) -> dict[str, str]:
    share = "-" if found.archive_share is None else f"{found.archive_share:.1%}"
    return {
        f"Idle evidence, for over {found.stale_threshold_days} days": str(found.idle_evidence),
        "Archived, of all evidence": share,
        "Oldest hot evidence": _day(found.oldest_hot_at),
        "Oldest open proposal": _day(found.oldest_open_at),
        "Unresolved conflicts": str(found.unresolved_conflicts),
        "Archivings that a use proved wrong": str(found.regretted),
    }


def _day(time: datetime | None) -> str:
    return "-" if time is None else f"{time:%Y-%m-%d}"
