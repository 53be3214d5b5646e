"""The command line: `forgetting …`. An error is one sentence on standard error and exit code 1."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from forgetting_assets import floors, importing
from forgetting_assets.commands import backfill as backfill_command
from forgetting_assets.commands import events, evidence, health, mcp, metrics, review
from forgetting_assets.commands import tenants as tenant_commands
from forgetting_assets.commands.console import (
    TenantOption,
    console,
    locate,
    locate_with_dagster,
    open_database,
    run_app,
    say,
)
from forgetting_assets.partition import of_day, parse_day
from forgetting_assets.store import tenants
from resources import addresses, migrations, settings
from resources.clock import Clock
from resources.errors import ConfigurationError, NotADemo

app = typer.Typer(
    help="A nightly forgetting pass for agents' long-term memory. Nothing is ever deleted by it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(tenant_commands.app, name="tenants")
app.add_typer(review.app, name="review")
app.add_typer(evidence.app, name="evidence")
app.command("backfill")(backfill_command.backfill)
app.command("health")(health.show_health)
app.command("metrics")(metrics.show_metrics)
app.command("mcp")(mcp.serve)
app.command("trim-events")(events.trim_events)


def main() -> None:
    """Run the command line."""
    run_app(app)


@app.command()
def demo() -> None:
    """Seed three invented tenants, run yesterday's pass for each, and print what it found.

    A scripted judge answers, so no key is needed and nothing is sent anywhere. A second run on the
    same day, before anything is decided, changes nothing and costs nothing.
    """
    from forgetting_assets import report
    from forgetting_assets.demo import seed

    os.environ.update(DEMO_ENVIRONMENT)
    places = locate_with_dagster()
    if places.admin is None:
        raise ConfigurationError(migrations.NO_OWNER)
    with open_database(places) as database:
        now = Clock().now()
        slugs = seed.seed(database, places.admin, now)
        report.run_pass(console, database, report.yesterdays(database, slugs, now))
    say(
        NEXT_STEPS.format(
            slug=slugs[0],
            dev="make dev" if settings.IS_CHECKOUT else "forgetting dev --demo",
            forgetting=".venv/bin/forgetting" if settings.IS_CHECKOUT else "forgetting",
        )
    )


NEXT_STEPS = """\
A scripted judge gave these verdicts from a fixture; no model judged anything.

Open the UI:         {dev}
See the proposals:   {forgetting} review list --tenant {slug}
Look at one:         {forgetting} review show ID --tenant {slug}
Decide it:           {forgetting} review accept ID --tenant {slug}   (or reject)
Decide all of them:  {forgetting} review walk --tenant {slug}"""

DEMO_ENVIRONMENT = {
    "FORGETTING_GATEWAY": "scripted",
    "FORGETTING_PASS_ENABLED": "true",
    "FORGETTING_ARCHIVE_ENABLED": "true",
}


@app.command()
def dev(
    host: Annotated[str, typer.Option(help="The UI has no login: keep it local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The UI's port.")] = 3000,
    demo: Annotated[bool, typer.Option("--demo", help="Flags on, scripted judge.")] = False,
) -> None:
    """Start the Dagster UI, and the embedded server where DATABASE_URL is not set.

    Ctrl-C stops everything that it started.
    """
    from forgetting_assets import daemon

    if demo:
        os.environ.update(DEMO_ENVIRONMENT)
    # The guard speaks here, before any process starts.
    with open_database(locate_with_dagster()) as database:
        if demo and not database.is_demo():
            raise NotADemo(
                "--demo turns every flag on, so it is for a demo database alone: run "
                "`forgetting demo` first, or leave --demo out."
            )
        daemon.require_free(host, port)
        say(f"The Dagster UI opens at http://{host}:{port}. Ctrl-C stops it.")
        raise typer.Exit(daemon.develop(database, host, port))


@app.command()
def migrate() -> None:
    """Bring the database to the current schema, as the owner in DATABASE_ADMIN_URL.

    Creates the runtime role and Dagster's database where they are missing. A second run changes
    nothing.
    """
    migrations.migrate(addresses.resolve(settings.read()))
    say("The schema is current.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Memories as JSON lines.")],
    tenant: TenantOption,
) -> None:
    """Import memories from JSON lines: all of the file or nothing of it.

    Creates the tenant, with judgment and archival off. A bad line is named by number and reason.
    Importing the same file again adds nothing.
    """
    with open_database(locate()) as database:
        if database.is_demo():
            raise ConfigurationError(
                "This database is a demo, whose judge is scripted: import into another one. "
                "Set FORGETTING_HOME to an empty folder, or DATABASE_URL."
            )
        done = importing.import_file(database, file, tenant, Clock().now())
    say(f"Memories added: {done.added}. There already: {done.known}.")


@app.command()
def run(
    tenant: TenantOption,
    date: Annotated[str, typer.Option(help="The UTC day to judge, YYYY-MM-DD.")],
    rejudge: Annotated[
        bool,
        typer.Option("--rejudge", help="Ask about every item again, and pay for it again."),
    ] = False,
) -> None:
    """Run the pass once for one tenant and day, and record it where the UI sees it.

    With FORGETTING_PASS_ENABLED off it says so, reads nothing and exits with 0.
    """
    read = settings.read()
    run_date = parse_day(date)
    if not read.forgetting_pass_enabled:
        say("FORGETTING_PASS_ENABLED is off: nothing was read.")
        return
    from forgetting_assets import report

    with open_database(locate_with_dagster()) as database:
        partition = of_day(run_date, tenants.find_active(database, tenant), Clock().now())
        report.run_pass(console, database, [partition], rejudge=rejudge)


@app.command()
def floor(
    tenant: TenantOption,
    labels: Annotated[
        Path | None,
        typer.Option(help="Known replacements: a JSON array of objects with `older` and `newer`."),
    ] = None,
) -> None:
    """Show what each similarity floor would find among a tenant's memories.

    For every embedding model: the pairs that would be mined, the share of the memories that would
    be in one, and how many of the labelled pairs are among them. Reads vectors, writes nothing.
    """
    labelled = floors.read_labels(labels) if labels else []
    configured = settings.read().forgetting_conflict_floors
    with open_database(locate()) as database:
        models = floors.measure(database, tenants.find(database, tenant), labelled)
    if not models:
        say(f"{tenant} has no decision, preference, fact or blocker with a vector.")
        return
    for model in models:
        is_set = f"Its floor is {configured[model.name]}." if model.name in configured else NO_FLOOR
        say(
            f"{model.name}: {model.memories} memories, {model.compared} pairs of one type, scope "
            f"and project. {is_set}"
        )
        console.print(_floor_table(model))
        if model.apart:
            say(f"Labelled pairs that are not compared, so found at no floor: {model.apart}.")
    say("Bars: pairs between this floor and the one above, on a logarithmic scale.")


def _floor_table(model: floors.Model) -> Table:
    table = Table("floor", "pairs", "memories in one", "", box=None)
    if model.labelled:
        table.add_column("labelled found")
    most = math.log1p(max(each.pairs for each in model.candidates)) or 1
    above = 0
    for each in model.candidates:
        table.add_row(
            f"{each.floor:.2f}",
            str(each.pairs),
            f"{each.memories} ({each.memories / model.memories:.1%})",
            "█" * round(30 * math.log1p(each.pairs - above) / most),
            *([f"{each.labelled} of {model.labelled}"] if model.labelled else []),
        )
        above = each.pairs
    return table


NO_FLOOR = "It has no floor: set one in FORGETTING_CONFLICT_FLOORS."
