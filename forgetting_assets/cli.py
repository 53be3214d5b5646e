"""The command line: `forgetting …`. An error is one sentence on standard error and exit code 1."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

import typer
from rich.console import Console
from rich.table import Table

from forgetting_assets import floors, importing, review
from forgetting_assets.partition import of_day, parse_day
from forgetting_assets.store import analysts, evidence, tenants
from resources import addresses, migrations, settings
from resources.addresses import Addresses
from resources.clock import Clock
from resources.database import Database
from resources.errors import ConfigurationError, ForgettingError, NotADemo, ReviewRefused

app = typer.Typer(
    help="A nightly forgetting pass for agents' long-term memory. Nothing is ever deleted by it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tenants_app = typer.Typer(help="The tenants and what they agreed to.", no_args_is_help=True)
review_app = typer.Typer(help="Decide the proposals that wait for a human.", no_args_is_help=True)
evidence_app = typer.Typer(help="Episodic evidence and its archive tier.", no_args_is_help=True)
app.add_typer(tenants_app, name="tenants")
app.add_typer(review_app, name="review")
app.add_typer(evidence_app, name="evidence")

TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug.")]
ProposalId = Annotated[UUID, typer.Argument(metavar="ID", help="The proposal's id.")]
ProposalIds = Annotated[list[UUID], typer.Argument(metavar="ID...", help="Ids of proposals.")]

console = Console(highlight=False)


def main() -> None:
    """Run the command line. Errors of ours become one sentence; others keep their traceback."""
    try:
        app()
    except ForgettingError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(1)


@app.command()
def demo() -> None:
    """Seed three invented tenants, run yesterday's pass for each, and print what it found.

    A scripted judge answers, so no key is needed and nothing is sent anywhere. A second run on the
    same day, before anything is decided, changes nothing and costs nothing.
    """
    from forgetting_assets import report
    from forgetting_assets.demo import seed

    os.environ.update(DEMO_ENVIRONMENT)
    places = _with_dagster()
    if places.admin is None:
        raise ConfigurationError(migrations.NO_OWNER)
    with _database(places) as database:
        now = Clock().now()
        slugs = seed.seed(database, places.admin, now)
        report.run_pass(console, database, report.yesterdays(database, slugs, now))
    _say(NEXT_STEPS.format(slug=slugs[0]))


NEXT_STEPS = """\
A scripted judge gave these verdicts from a fixture; no model judged anything.

Open the UI:         make dev
See the proposals:   .venv/bin/forgetting review list --tenant {slug}
Look at one:         .venv/bin/forgetting review show ID --tenant {slug}
Decide it:           .venv/bin/forgetting review accept ID --tenant {slug}   (or reject)"""

DEMO_ENVIRONMENT = {
    "FORGETTING_GATEWAY": "scripted",
    "FORGETTING_PASS_ENABLED": "true",
    "FORGETTING_ARCHIVE_ENABLED": "true",
}


@app.command()
def dev(
    host: Annotated[str, typer.Option(help="The UI has no login: keep it local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The UI's port.")] = 3000,
    demo: Annotated[bool, typer.Option("--demo", help="Flags on, scripted judge.")] = False,
) -> None:
    """Start the Dagster UI, and the embedded server where DATABASE_URL is not set.

    Ctrl-C stops everything that it started.
    """
    from forgetting_assets import instance

    if demo:
        os.environ.update(DEMO_ENVIRONMENT)
    # The guard speaks here, before any process starts.
    with _database(_with_dagster()) as database:
        if demo and not database.is_demo():
            raise NotADemo(
                "--demo turns every flag on, so it is for a demo database alone: run "
                "`forgetting demo` first, or leave --demo out."
            )
    instance.require_free(host, port)
    _say(f"The Dagster UI opens at http://{host}:{port}. Ctrl-C stops it.")
    raise typer.Exit(instance.develop(host, port))


@app.command()
def migrate() -> None:
    """Bring the database to the current schema, as the owner in DATABASE_ADMIN_URL.

    Creates the runtime role and Dagster's database where they are missing. A second run changes
    nothing.
    """
    migrations.migrate(addresses.resolve(settings.read()))
    _say("The schema is current.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Memories as JSON lines.")],
    tenant: TenantOption,
) -> None:
    """Import memories from JSON lines: all of the file or nothing of it.

    Creates the tenant, with judgment and archival off. A bad line is named by number and reason.
    Importing the same file again adds nothing.
    """
    with _database(_places()) as database:
        if database.is_demo():
            raise ConfigurationError(
                "This database is a demo, whose judge is scripted: import into another one. "
                "Set FORGETTING_HOME to an empty folder, or DATABASE_URL."
            )
        done = importing.import_file(database, file, tenant, Clock().now())
    _say(f"Memories added: {done.added}. There already: {done.known}.")


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
        _say("FORGETTING_PASS_ENABLED is off: nothing was read.")
        return
    from forgetting_assets import report

    with _database(_with_dagster()) as database:
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
    with _database(_places()) as database:
        models = floors.measure(database, tenants.find(database, tenant), labelled)
    if not models:
        _say(f"{tenant} has no decision, preference, fact or blocker with a vector.")
        return
    for model in models:
        is_set = f"Its floor is {configured[model.name]}." if model.name in configured else NO_FLOOR
        _say(
            f"{model.name}: {model.memories} memories, {model.compared} pairs of one type, scope "
            f"and project. {is_set}"
        )
        console.print(_floor_table(model))
        if model.apart:
            _say(f"Labelled pairs that are not compared, so found at no floor: {model.apart}.")
    _say("Bars: pairs between this floor and the one above, on a logarithmic scale.")


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


@tenants_app.command("list")
def tenants_list() -> None:
    """Show every tenant and what it agreed to."""
    table = Table("tenant", "judgment", "archival", "retired")
    with _database(_places()) as database:
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


@tenants_app.command("opt-in")
def opt_in(
    slug: Slug,
    judgment: Judgment = False,
    archival: Archival = False,
) -> None:
    """Turn judgment, archival or both on for a tenant."""
    _consent(slug, judgment, archival, on=True)


@tenants_app.command("opt-out")
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
    with _database(_places()) as database:
        tenants.consent(
            database,
            slug,
            judgment=on if judgment else None,
            archival=on if archival else None,
        )
    what = " and ".join(["judgment"] * judgment + ["archival"] * archival)
    _say(f"{slug}: {what} {'on' if on else 'off'}.")


@tenants_app.command("grant")
def tenants_grant(
    slug: Slug,
    role: Annotated[str, typer.Option("--to", help="The analyst's login on the server.")],
) -> None:
    """Let an analyst read a tenant's figures, and no text. As the owner of the tables."""
    new = analysts.grant(_places().admin, slug, role, Clock().now())
    _say(f"{role} reads {slug}." if new else f"{role} reads {slug} already.")


@tenants_app.command("revoke")
def tenants_revoke(
    slug: Slug,
    role: Annotated[str, typer.Option("--from", help="The analyst's login on the server.")],
) -> None:
    """Take a tenant's figures from an analyst. As the owner; the login itself stays."""
    had = analysts.revoke(_places().admin, slug, role)
    _say(f"{role} no longer reads {slug}." if had else f"{role} does not read {slug}.")


@review_app.command("list")
def review_list(tenant: TenantOption) -> None:
    """List the open proposals of a tenant: oldest first, of one run the surest first."""
    with _tenant(tenant) as (database, user_id):
        waiting = review.list_open(database, user_id)
    for row in waiting:
        by = f" by: {row.related_topic}" if row.action == "supersede" else ""
        by = f" with: {row.related_topic}" if row.action == "conflict" else by
        _say(
            f"{row.id}  {row.action:<9} {row.probability:.2f}  {row.memory_type}, untouched since "
            f"{row.freshness:%Y-%m-%d}\n    {row.topic}{by}"
        )
    _say(f"Open proposals: {len(waiting)}.")


@review_app.command("show")
def review_show(proposal: ProposalId, tenant: TenantOption) -> None:
    """Show one proposal: both memories, their ages and the judge's whole distribution."""
    with _tenant(tenant) as (database, user_id):
        row = review.show(database, user_id, proposal)
    age = (Clock().now() - row["freshness"]).days
    project = f"/{row['project']}" if row["project"] else ""
    _say(
        f"{row['action']} ({row['status']}), probability {row['probability']:.2f}, "
        f"by {row['model']}\n\n"
        f"Memory {row['memory_id']}: {row['memory_type']}, {row['scope']}{project}, "
        f"untouched for {age} days\n"
        + _memory(row["topic"], row["content"], row["memory_created_at"])
    )
    if row["related_memory_id"]:
        _say(
            f"\nNewer memory {row['related_memory_id']}\n"
            + _memory(row["related_topic"], row["related_content"], row["related_created_at"])
        )
    _say("\nWhat the judge made of it")
    for key, probability in sorted(row["probabilities"].items(), key=lambda each: -each[1]):
        answer, _, place = key.partition(":n")
        of = f"  {row['newer_topics'][int(place)]}" if place else ""
        _say(f"  {answer:<15} {probability:>5.2f} {'█' * round(probability * 30)}{of}")


@review_app.command("accept")
def review_accept(proposals: ProposalIds, tenant: TenantOption) -> None:
    """Apply proposals: archive, supersede, or record that a conflict was seen."""
    batch = uuid4()
    with _tenant(tenant) as (database, user_id):
        changed = _each(
            proposals, lambda id_: review.accept(database, user_id, id_, Clock().now(), batch)
        )
    _say(f"Applied. Memories changed: {changed}.{_way_back(proposals, batch, tenant)}")


@review_app.command("reject")
def review_reject(proposals: ProposalIds, tenant: TenantOption) -> None:
    """Say no: final for a memory and action until the memory changes or is reviewed."""
    batch = uuid4()
    with _tenant(tenant) as (database, user_id):
        _each(proposals, lambda id_: review.reject(database, user_id, id_, Clock().now(), batch))
    _say(f"Rejected: no memory changed.{_way_back(proposals, batch, tenant)}")


@review_app.command("undo")
def review_undo(
    tenant: TenantOption,
    proposals: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID...", help="Ids of decided proposals.")
    ] = None,
    batch: Annotated[
        UUID | None, typer.Option(help="Undo what one accept or reject of many decided.")
    ] = None,
) -> None:
    """Take decisions back: memories are as they were, and the proposals are open again."""
    if bool(proposals) == bool(batch):
        raise ReviewRefused("Name proposals to undo, or a --batch, and not both.")
    with _tenant(tenant) as (database, user_id):
        ids = review.of_batch(database, user_id, batch) if batch else list(proposals or [])
        changed = _each(ids, lambda id_: review.undo(database, user_id, id_, Clock().now()))
    _say(f"Undone. Memories restored: {changed}.")


def _each(ids: Sequence[UUID], decide: Callable[[UUID], int | None]) -> int:
    """Decide each proposal by itself; how many memories changed.

    Those that are refused do not keep the others from being decided. Raises ReviewRefused with
    every reason when some were.
    """
    changed, refused = 0, []
    wanted = list(dict.fromkeys(ids))
    for id_ in wanted:
        try:
            changed += decide(id_) or 0
        except ReviewRefused as reason:
            refused.append(str(reason))
    if refused:
        done = len(wanted) - len(refused)
        raise ReviewRefused(
            " ".join([*refused, *([f"The other {done} are done."] if done else [])])
        )
    return changed


def _way_back(proposals: Sequence[UUID], batch: UUID, tenant: str) -> str:
    if len(proposals) == 1:
        return ""
    return f" All back: forgetting review undo --batch {batch} --tenant {tenant}"


@evidence_app.command("dereference")
def evidence_dereference(
    entry: Annotated[UUID, typer.Argument(metavar="ID", help="The entry's id.")],
    tenant: TenantOption,
) -> None:
    """Print one entry of any tier, exactly as it was recorded."""
    with _tenant(tenant) as (database, user_id):
        found = evidence.dereference(database, user_id, entry)
    sys.stdout.write(found.content)


@evidence_app.command("unarchive")
def evidence_unarchive(
    entries: Annotated[list[UUID], typer.Argument(metavar="ID...", help="Ids of the entries.")],
    tenant: TenantOption,
) -> None:
    """Bring archived entries back into retrieval, exactly as they were recorded."""
    with _tenant(tenant) as (database, user_id):
        revived = evidence.unarchive(database, user_id, entries, Clock().now())
    _say(f"Entries brought back: {revived}.")


def _say(text: str) -> None:
    """Print text as it is: neither markup nor wrapping, and no character that moves the cursor.

    A memory may hold terminal controls; they are shown, so that none of it hides from a reviewer.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>" for c in text)
    console.print(shown, markup=False, soft_wrap=True)


def _memory(topic: str, content: str, created_at: datetime) -> str:
    age = (Clock().now() - created_at).days
    return f"  {topic} (recorded {created_at:%Y-%m-%d}, {age} days ago)\n  {content}"


def _places() -> Addresses:
    """Where the databases are; the embedded one is started and migrated."""
    read = settings.read()
    places = addresses.resolve(read)
    if read.database_url is None:
        migrations.migrate(places)
    return places


def _with_dagster() -> Addresses:
    """The same, with Dagster's own database at hand for what runs or shows the pass."""
    from forgetting_assets import instance

    places = _places()
    instance.prepare(places, settings.read())
    return places


@contextmanager
def _database(places: Addresses) -> Iterator[Database]:
    database = Database(url=places.memory.render_as_string(hide_password=False)).connect()
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _tenant(slug: str) -> Iterator[tuple[Database, UUID]]:
    with _database(_places()) as database:
        yield database, tenants.find(database, slug).user_id
