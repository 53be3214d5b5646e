"""`forgetting evidence`: what agents leave behind, and its archive tier."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import typer
from pydantic import ValidationError
from rich.table import Table

from forgetting_assets.commands.console import TenantOption, confirm, console, open_tenant, say
from forgetting_assets.records import EvidenceRecord, reasons
from forgetting_assets.store import evidence, tier
from resources import settings
from resources.clock import Clock
from resources.errors import EvidenceRefused

app = typer.Typer(
    help="What agents leave behind: traces, logs, outcomes, and the guidance drawn from them.",
    no_args_is_help=True,
)

EntryIds = Annotated[list[UUID] | None, typer.Argument(metavar="ID...", help="Ids of the entries.")]
SHOWN = 20
"""Bad lines that one refusal names at most."""


@app.command("record")
def record(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Entries as JSON lines; - is stdin.")
    ],
    tenant: TenantOption,
) -> None:
    """Record evidence from JSON lines, all of it or none, and print the ids that are new.

    A line has session_id, kind, content and occurred_at (null: not known, so never archived), and
    may have id, embedding and embedding_model. Recording a line again adds nothing.
    """
    records = _read(file)
    with open_tenant(tenant, active=True) as (database, user_id):
        ids = evidence.record(
            database, user_id, records, Clock().now(), limit=settings.read().forgetting_entry_bytes
        )
    for id_ in ids:
        say(str(id_))


def _read(file: Path) -> list[EvidenceRecord]:
    records, bad = [], []
    for number, line in enumerate(_bytes(file).split(b"\n"), start=1):
        if line.strip():
            try:
                records.append(EvidenceRecord.model_validate_json(line))
            except ValidationError as error:
                bad.append(f"line {number}: {reasons(error)}")
    if bad:
        more = f"\n  and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise EvidenceRefused("Nothing was recorded:\n  " + "\n  ".join(bad[:SHOWN]) + more)
    return records


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise EvidenceRefused(f"The file {file} cannot be read: {error.strerror}.") from None


@app.command("archive")
def archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to keep; - is stdin.")],
    tenant: TenantOption,
    session: Annotated[str, typer.Option(help="The session it belongs to.")],
) -> None:
    """Keep a text exactly, as an artifact that no sweep ever touches, and print its id."""
    try:
        content = _bytes(file).decode("utf-8")
    except UnicodeDecodeError:
        raise EvidenceRefused(
            f"{file} is not UTF-8 text: encode it first, in base64 for example."
        ) from None
    now = Clock().now()
    try:
        block = EvidenceRecord(
            session_id=session, kind="archive_block", content=content, occurred_at=now
        )
    except ValidationError as error:
        raise EvidenceRefused(f"Nothing was kept: {reasons(error)}.") from None
    with open_tenant(tenant, active=True) as (database, user_id):
        [id_] = evidence.record(
            database, user_id, [block], now, limit=settings.read().forgetting_entry_bytes
        )
    say(str(id_))


@app.command("touch")
def touch(tenant: TenantOption, entries: EntryIds = None) -> None:
    """Say that entries were retrieved elsewhere, which keeps them hot for a window."""
    with open_tenant(tenant) as (database, user_id):
        touched = evidence.touch(database, user_id, entries or [], Clock().now())
    say(f"Entries touched: {touched}.")


@app.command("credit")
def credit(
    tenant: TenantOption,
    entries: EntryIds = None,
    outcome: Annotated[
        Literal["success", "reinforcement"], typer.Option(help="What they contributed to.")
    ] = "success",
) -> None:
    """Attribute a good outcome to entries, which keeps them hot for good.

    An archived one comes back.
    """
    with open_tenant(tenant) as (database, user_id):
        credited = evidence.credit(database, user_id, entries or [], outcome, Clock().now())
    say(f"Entries credited: {credited}.")


@app.command("retrieve")
def retrieve(
    vector: Annotated[
        Path, typer.Argument(metavar="FILE", help="A JSON array of 1,536 numbers; - is stdin.")
    ],
    tenant: TenantOption,
    model: Annotated[str, typer.Option(help="The embedding model that made the vector.")],
    most: Annotated[int, typer.Option(help="Entries to return, 1 to 100.")] = 10,
    session: Annotated[str | None, typer.Option(help="Of one session alone.")] = None,
) -> None:
    """Show the hot entries nearest to a vector, nearest first. Each counts as used."""
    try:
        wanted = json.loads(_bytes(vector))
    except ValueError:
        raise EvidenceRefused(f"{vector} is not JSON: it has to be an array of numbers.") from None
    if not isinstance(wanted, list):
        raise EvidenceRefused(f"{vector} is no array of numbers.")
    with open_tenant(tenant) as (database, user_id):
        hits = evidence.retrieve(
            database, user_id, wanted, model, Clock().now(), most=most, session_id=session
        )
    for hit in hits:
        say(f"{hit.id}  {hit.similarity:.3f}  {hit.kind}\n    {hit.content}")
    say(f"Entries: {len(hits)}.")


@app.command("dereference")
def dereference(
    entry: Annotated[UUID, typer.Argument(metavar="ID", help="The entry's id.")],
    tenant: TenantOption,
) -> None:
    """Print one entry of any tier, exactly as it was recorded. Reading it counts as a use."""
    with open_tenant(tenant) as (database, user_id):
        found = evidence.dereference(database, user_id, entry, Clock().now())
    sys.stdout.flush()
    sys.stdout.buffer.write(found.content.encode())


@app.command("unarchive")
def unarchive(tenant: TenantOption, entries: EntryIds = None) -> None:
    """Bring archived entries back into retrieval, exactly as they were recorded."""
    with open_tenant(tenant) as (database, user_id):
        revived = tier.unarchive(database, user_id, entries or [], Clock().now())
    say(f"Entries brought back: {revived}.")


@app.command("forget")
def forget(
    tenant: TenantOption,
    lesson: Annotated[UUID | None, typer.Option(help="The lesson to delete.")] = None,
    session: Annotated[str | None, typer.Option(help="The session to delete.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete one lesson, or all that a session recorded, for good. There is no way back.

    Unlike the sweep, which only archives. What is left is that there was an entry of that kind.
    """
    with open_tenant(tenant) as (database, user_id):
        entries = evidence.forgettable(database, user_id, lesson_id=lesson, session_id=session)
        confirm(f"Delete {entries} of {tenant}'s entries for good?", yes)
        gone = evidence.forget(
            database, user_id, Clock().now(), lesson_id=lesson, session_id=session
        )
    say(f"Entries deleted for good: {gone.entries} (batch {gone.batch_id}).")


@app.command("regret")
def regret(
    tenant: TenantOption,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Sweeps of how many days.")] = 90,
) -> None:
    """Show how often the sweep was wrong: what it archived was used within 14 days all the same."""
    now = Clock().now()
    with open_tenant(tenant) as (database, user_id):
        rows = tier.regrets(database, user_id, (now - timedelta(days=days)).date(), now)
    table = Table("kind", "archived", "regretted", "rate", "may be yet")
    for row in [*rows, _all(rows)]:
        rate = f"{row.regretted / row.archived:.2%}" if row.archived else "-"
        table.add_row(row.kind, str(row.archived), str(row.regretted), rate, str(row.recent))
    console.print(table)
    say("May be yet: archived less than 14 days ago, and not used since.")


def _all(rows: Sequence[tier.Regret]) -> tier.Regret:
    return tier.Regret(
        "all",
        sum(row.archived for row in rows),
        sum(row.regretted for row in rows),
        sum(row.recent for row in rows),
    )
