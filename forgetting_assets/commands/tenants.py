"""`forgetting tenants`: the tenants, what they agreed to, and how they come and go."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from forgetting_assets import portability
from forgetting_assets.commands.console import (
    confirm,
    console,
    locate,
    locate_with_dagster,
    open_database,
    say,
)
from forgetting_assets.partition import Tenant, parse_day
from forgetting_assets.store import analysts, tenants
from resources.clock import Clock
from resources.database import Database
from resources.errors import ConfigurationError, UnknownTenant, some

app = typer.Typer(
    help="The tenants, what they agreed to, and how they come and go.", no_args_is_help=True
)


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


@app.command("add")
def add(slug: Slug) -> None:
    """Add a tenant. It has agreed to nothing yet, so the pass leaves it alone."""
    with open_database(locate()) as database:
        tenants.create(database, slug)
    say(f"{slug} is added, with judgment and archival off.")


@app.command("retire")
def retire(
    slug: Slug,
    undo: Annotated[bool, typer.Option("--undo", help="Bring a retired tenant back.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let the pass leave a tenant alone, and take nothing new of it. Every row stays.

    Its open proposals can still be decided, and what was decided can still be undone.
    """
    with open_database(locate()) as database:
        if undo:
            tenants.bring_back(database, slug)
            say(f"{slug} is back, with what it had agreed to.")
            return
        tenants.find_active(database, slug)
        confirm(f"Retire {slug}?", yes)
        tenants.retire(database, slug, Clock().now())
    say(f"{slug} is retired. Back: forgetting tenants retire {slug} --undo")


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


@app.command("export")
def export(
    slug: Slug,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write every row of a tenant, its memories' text included, to a file of JSON lines.

    The file is readable by you alone. `forgetting tenants restore` brings it back.
    """
    with open_database(locate()) as database:
        done = portability.export(database, slug, to, force=force)
    say(f"{slug} is in {to}: {done.header.total} rows of {len(done.header.rows)} tables.")
    if done.unrestorable:
        say(
            f"It cannot be restored as it stands: {some(done.unrestorable)} changed the type since "
            "the pass judged it, and the database lets no such row in."
        )


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")],
) -> None:
    """Bring an exported tenant back: all of it, into a database without it, or nothing.

    As the owner of the tables.
    """
    done = portability.restore(locate().admin, file)
    say(f"{done.header.slug} is restored: {done.header.total} rows.")
    if done.not_granted:
        say(f"No analysts on this server, so not granted: {some(done.not_granted)}.")


@app.command("erase")
def erase(
    slug: Slug,
    confirmed: Annotated[
        str | None,
        typer.Option("--confirm", metavar="SLUG", help="The slug once more: do not ask."),
    ] = None,
) -> None:
    """Delete a tenant for good: its rows in every table, and what Dagster keeps of its runs.

    There is no way back but a file of `forgetting tenants export`. As the owner of the tables.
    """
    from forgetting_assets import erasure, instance
    from forgetting_assets.runs import OF_THE_COMMAND_LINE, end_killed

    places = locate_with_dagster()
    with open_database(places) as database, instance.open() as dagster:
        tenant = _unless_gone(database, slug)
        if tenant is None and not erasure.is_known(dagster, slug):
            tenants.find(database, slug)
        end_killed(database, dagster, tags=OF_THE_COMMAND_LINE)
        erasure.require_idle(dagster, slug)
        rows = erasure.count_rows(places.admin, tenant) if tenant else 0
        _confirm_erasing(slug, rows, confirmed)
        if tenant is not None:
            rows = erasure.erase_rows(places.admin, tenant)
        runs = erasure.erase_runs(dagster, slug)
    say(f"{slug} is erased: {rows} rows, {runs} runs.")


def _unless_gone(database: Database, slug: str) -> Tenant | None:
    try:
        return tenants.find(database, slug)
    except UnknownTenant:
        return None


def _confirm_erasing(slug: str, rows: int, confirmed: str | None) -> None:
    """Have the slug typed, or given. Raises ConfigurationError where it is not."""
    if confirmed is None:
        warning = f"This deletes {slug} for good: {rows} rows, and its runs in Dagster."
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"{warning} Nobody is there to ask: add --confirm {slug}. Export it first with "
                f"`forgetting tenants export {slug} --to FILE`."
            )
        say(f"{warning} Only a file of `forgetting tenants export` brings it back.")
        confirmed = typer.prompt("Type its slug to go on")
    if confirmed != slug:
        raise ConfigurationError(f"That is not {slug}: nothing was erased.")
