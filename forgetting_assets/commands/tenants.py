"""`forgetting tenants`: the tenants and what they agreed to."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Annotated

import typer
from rich.table import Table

from forgetting_assets.commands.console import console, locate, open_database, say
from forgetting_assets.partition import parse_day
from forgetting_assets.store import analysts, tenants
from resources.clock import Clock
from resources.errors import ConfigurationError

app = typer.Typer(help="The tenants and what they agreed to.", no_args_is_help=True)


@app.command("list")
def tenants_list() -> None:
    """Show every tenant and what it agreed to."""
    table = Table("tenant", "judgment", "archival", "uses recorded since", "retired")
    with open_database(locate()) as database:
        for each in tenants.all_tenants(database):
            table.add_row(
                each.slug,
                "on" if each.judgment_enabled else "off",
                "on" if each.archival_enabled else "off",
                f"{each.tracked_since:%Y-%m-%d}" if each.tracked_since else "",
                f"{each.retired_at:%Y-%m-%d}" if each.retired_at else "",
            )
    console.print(table)


Slug = Annotated[str, typer.Argument(metavar="SLUG", help="The tenant's slug.")]
Judgment = Annotated[bool, typer.Option("--judgment", help="The judge may read its memories.")]
Archival = Annotated[bool, typer.Option("--archival", help="The sweep may archive evidence.")]


@app.command("opt-in")
def opt_in(
    slug: Slug,
    judgment: Judgment = False,
    archival: Archival = False,
    tracked_since: Annotated[
        str | None,
        typer.Option(help="Since which UTC day every use of its evidence is recorded; else now."),
    ] = None,
) -> None:
    """Turn judgment, archival or both on for a tenant.

    The sweep archives nothing before uses were recorded for a whole window.
    """
    now = Clock().now()
    since = None
    if tracked_since:
        since = datetime.combine(parse_day(tracked_since), time(), UTC)
        if not archival or since > now:
            raise ConfigurationError("--tracked-since goes with --archival, and is in the past.")
    _consent(slug, judgment, archival, on=True, since=since, now=now)


@app.command("opt-out")
def opt_out(
    slug: Slug,
    judgment: Judgment = False,
    archival: Archival = False,
) -> None:
    """Turn judgment, archival or both off. A pass under way stops before its next send."""
    _consent(slug, judgment, archival, on=False)


def _consent(
    slug: str,
    judgment: bool,
    archival: bool,
    *,
    on: bool,
    since: datetime | None = None,
    now: datetime | None = None,
) -> None:
    if not (judgment or archival):
        raise ConfigurationError("Say what: --judgment, --archival or both.")
    with open_database(locate()) as database:
        if archival and on:
            since = since or tenants.find(database, slug).tracked_since or now
        tenants.consent(
            database,
            slug,
            judgment=on if judgment else None,
            archival=on if archival else None,
            tracked_since=since,
        )
    what = " and ".join(["judgment"] * judgment + ["archival"] * archival)
    say(f"{slug}: {what} {'on' if on else 'off'}.")
    if since:
        say(f"Every use of its evidence is recorded since {since:%Y-%m-%d %H:%M} UTC.")


@app.command("grant")
def grant(
    slug: Slug,
    role: Annotated[str, typer.Option("--to", help="The analyst's login on the server.")],
) -> None:
    """Let an analyst read a tenant's figures, and no text. As the owner of the tables."""
    new = analysts.grant(locate().admin, slug, role, Clock().now())
    say(f"{role} reads {slug}." if new else f"{role} reads {slug} already.")


@app.command("revoke")
def revoke(
    slug: Slug,
    role: Annotated[str, typer.Option("--from", help="The analyst's login on the server.")],
) -> None:
    """Take a tenant's figures from an analyst. As the owner; the login itself stays."""
    had = analysts.revoke(locate().admin, slug, role)
    say(f"{role} no longer reads {slug}." if had else f"{role} does not read {slug}.")
