"""`forgetting evidence`: episodic evidence and its archive tier."""

from __future__ import annotations

import sys
from typing import Annotated
from uuid import UUID

import typer

from forgetting_assets.commands.console import TenantOption, open_tenant, say
from forgetting_assets.store import evidence
from resources.clock import Clock

app = typer.Typer(help="Episodic evidence and its archive tier.", no_args_is_help=True)


@app.command("dereference")
def evidence_dereference(
    entry: Annotated[UUID, typer.Argument(metavar="ID", help="The entry's id.")],
    tenant: TenantOption,
) -> None:
    """Print one entry of any tier, exactly as it was recorded."""
    with open_tenant(tenant) as (database, user_id):
        found = evidence.dereference(database, user_id, entry)
    sys.stdout.write(found.content)


@app.command("unarchive")
def evidence_unarchive(
    entries: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Ids of the entries.")],
    tenant: TenantOption,
) -> None:
    """Bring archived entries back into retrieval, exactly as they were recorded."""
    with open_tenant(tenant) as (database, user_id):
        revived = evidence.unarchive(database, user_id, entries, Clock().now())
    say(f"Entries brought back: {revived}.")
