"""What the commands share: how they end, the console, the tenant they are for, the database."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn
from uuid import UUID

import structlog
import typer
from rich.console import Console
from rich.text import Text

from forgetting_assets.store import tenants
from resources import addresses, migrations, settings
from resources.addresses import Addresses
from resources.database import Database
from resources.errors import ConfigurationError, ForgettingError
from resources.logs import json_log

TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug.")]

console = Console(highlight=False)


def run_app(app: typer.Typer) -> NoReturn:
    """Run a command line. Errors of ours, and of usage, become one sentence each; others keep their
    traceback. With JSON logs each end of a command is a line, and no error has more than its class.
    """
    began = time.monotonic()
    command = _command(app)
    try:
        # A command ends with 0, or with the code of the Exit that it raised.
        code = app(standalone_mode=False)
        if log := _json_log():
            log.info("command_finished", **_ended(command, began), exit_code=code or 0)
        sys.exit(code)
    except ForgettingError as error:
        _fail(command, began, error, str(error))
    except typer.Abort as error:
        _fail(command, began, error, "Nothing was done.")
    except typer.TyperException as error:
        _fail(command, began, error, usage(error))
    except Exception as error:
        if _json_log() is None:
            raise
        _fail(command, began, error, None)


def _command(app: typer.Typer) -> str:
    """The name of the command that was given, without its arguments."""
    group, names = typer.main.get_command(app), []
    for word in sys.argv[1:]:
        below = getattr(group, "commands", {}).get(word)
        if below is None:
            break
        group = below
        names.append(word)
    return " ".join(names)


def _json_log() -> structlog.BoundLogger | None:
    try:
        return json_log()
    except ConfigurationError:
        return None  # settings that cannot be read; the command says so in plain words


def _ended(command: str, began: float) -> dict[str, Any]:
    return {"command": command, "seconds": round(time.monotonic() - began, 3)}


def _fail(command: str, began: float, error: Exception, sentence: str | None) -> NoReturn:
    if log := _json_log():
        said = {"message": sentence} if sentence else {}
        log.error("command_failed", **_ended(command, began), error=type(error).__name__, **said)
        sys.exit(1)
    fail(sentence or "")


def usage(error: typer.TyperException) -> str:
    """A usage error as one sentence that ends with where the help is."""
    said = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if not said or context is None:
        # A group without a command has shown its help already.
        return said
    return f"{said}{'' if said.endswith('?') else '.'} See `{context.command_path} --help`."


def fail(sentence: str) -> NoReturn:
    """Say what is wrong and end."""
    if sentence:
        print(sentence, file=sys.stderr)  # noqa: T201
    sys.exit(1)


def say(text: str) -> None:
    """Print text as it is: neither markup nor wrapping, and no character that moves the cursor."""
    console.print(harmless(text), soft_wrap=True)


def harmless(text: str) -> Text:
    """Text as it is, for a table too.

    A memory may hold terminal controls; they are shown, so that none of it hides from a reviewer.
    """
    return Text("".join(c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>" for c in text))


def confirm(question: str, yes: bool) -> None:
    """Ask once before many things are done; ``--yes`` answers. Raises where nobody can."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} Nobody is there to ask: add --yes.")
    if not typer.confirm(question):
        raise typer.Abort


def locate() -> Addresses:
    """Where the databases are; the embedded one is started and migrated."""
    read = settings.read()
    places = addresses.resolve(read)
    if read.database_url is None:
        migrations.migrate(places)
    return places


def locate_with_dagster() -> Addresses:
    """The same, with Dagster's own database at hand for what runs or shows the pass."""
    from forgetting_assets import instance

    places = locate()
    instance.prepare(places, settings.read())
    return places


@contextmanager
def open_database(places: Addresses) -> Iterator[Database]:
    database = Database(url=places.memory.render_as_string(hide_password=False)).connect()
    try:
        yield database
    finally:
        database.close()


@contextmanager
def open_tenant(slug: str, *, active: bool = False) -> Iterator[tuple[Database, UUID]]:
    """A tenant's database and id; ``active`` refuses one that is retired."""
    with open_database(locate()) as database:
        find = tenants.find_active if active else tenants.find
        yield database, find(database, slug).user_id
