"""`forgetting tenants`: the tenants and what they agreed to."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from forgetting_assets.commands.console import console, locate, open_database, say
from forgetting_assets.store import tenants
from resources.errors import ConfigurationError

app = typer.Typer(help="The tenants and what they agreed to.", no_args_is_help=True)


@app.command("list")
def tenants_list() -> None:
    """Show every tenant and what it agreed to."""
    table = Table("tenant", "judgment", "archival", "retired")
    with open_database(locate()) as database:
        for each in tenants.all_tenants(database):
            table.add_row(
                each.slug,
                "on" if each.judgment_enabled else "off",
                "on" if each.archival_enabled else "off",
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
) -> None:
    """Turn judgment, archival or both on for a tenant."""
    _consent(slug, judgment, archival, on=True)


@app.command("opt-out")
def opt_out(
    slug: Slug,
    judgment: Judgment = False,
    archival: Archival = False,
) -> None:
    """Turn judgment, archival or both off. A pass under way stops before its next send."""
    _consent(slug, judgment, archival, on=False)


def _consent(slug: str, judgment: bool, archival: bool, *, on: bool) -> None:
    if not (judgment or archival):
        raise ConfigurationError("Say what: --judgment, --archival or both.")
    with open_database(locate()) as database:
        tenants.consent(
            database,
            slug,
            judgment=on if judgment else None,
            archival=on if archival else None,
        )
    what = " and ".join(["judgment"] * judgment + ["archival"] * archival)
    say(f"{slug}: {what} {'on' if on else 'off'}.")
