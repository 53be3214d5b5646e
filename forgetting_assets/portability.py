"""A tenant as a file: every row of it, written from one snapshot, and the way back in.

The file is JSON lines: a header, then a line a row, tables that others refer to first, rows by
primary key. The same rows are always the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

import sql
from forgetting_assets.partition import SLUG
from forgetting_assets.records import reasons
from forgetting_assets.store import invariant, owner, tenant_rows, tenants
from resources.database import Database, TenantTransaction, bind, newest_migration, sentences
from resources.errors import ExportRefused, InvariantViolated, RestoreRefused, StoreRefused, some

QUERIES = sql.load("tenant_rows")
GUARD = sql.load("guard")

CHUNK = 500
"""Rows that one statement inserts at most."""
CHUNK_BYTES = 16_000_000
"""Bytes of lines after which a statement takes no further row."""
LOOKS = (
    "collapse_in_stale_candidates",
    "collapse_in_conflict_pairs",
    "collapse_in_judged_verdicts",
    "collapse_in_archival_sweep",
    "losses_of_archive",
)
"""What is looked for in each partition of a restored tenant."""
ALL_DAYS = "collapse_in_retention_proposals"
"""The look that is at every partition at once."""


class Header(BaseModel):
    """The first line of an export. ``rows`` counts them by table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["forgetting-tenant"] = "forgetting-tenant"
    version: Literal[1] = 1
    schema_revision: str
    demo: bool
    slug: str
    user_id: str
    rows: Mapping[str, NonNegativeInt]

    @property
    def total(self) -> int:
        """The rows of all tables."""
        return sum(self.rows.values())


@dataclass(frozen=True)
class Exported:
    """What an export wrote. ``unrestorable``: memories and tables of rows that no restore takes."""

    header: Header
    unrestorable: list[str]


@dataclass(frozen=True)
class Restored:
    """What a restore brought back. ``not_granted``: logins that are no analysts on this server."""

    header: Header
    not_granted: list[str]


# --- out ------------------------------------------------------------------------------------------


def export(database: Database, slug: str, path: Path, *, force: bool = False) -> Exported:
    """Write every row of a tenant to a file that its owner alone may read.

    All of the file or none: it is written beside ``path`` and renamed. ``force`` overwrites. The
    runtime role reads, in a transaction of the tenant that sees one moment. Raises UnknownTenant,
    and ExportRefused when the file is there already or cannot be written.
    """
    _require_absent(path, force)
    with database.snapshot() as connection:
        tenant = tenants.of(connection, slug)
        tx = bind(connection, tenant.user_id)
        tenants.require_every_row(tx, slug)
        connection.execute(QUERIES["write_exactly"])
        tables = tenant_rows.tables(connection)
        header = Header(
            schema_revision=newest_migration(),
            demo=bool(connection.execute(GUARD["is_demo"]).scalar_one()),
            slug=slug,
            user_id=str(tenant.user_id),
            rows=tenant_rows.count(connection, tables, tenant.user_id),
        )
        lost = [f"{row.memory_id} in {row.place}" for row in tx.rows(QUERIES["find_unrestorable"])]
        try:
            with _whole(path, force) as file:
                file.write(header.model_dump_json().encode() + b"\n")
                for table in tables:
                    start = f'{{"table": {json.dumps(table.name)}, "row": '
                    for row in tenant_rows.read(connection, table, tenant.user_id):
                        file.write(f"{start}{row}}}\n".encode())
        except OSError as error:
            raise ExportRefused(
                f"{path} cannot be written ({error.strerror}): nothing was exported. Name a file "
                "in a folder that you may write to, with enough room."
            ) from None
    return Exported(header, lost)


def _require_absent(path: Path, force: bool) -> None:
    if path.is_dir():
        raise ExportRefused(f"{path} is a folder: name a file in it.")
    if path.exists() and not path.is_file():
        raise ExportRefused(f"{path} is no ordinary file: name another one.")
    if path.exists() and not force:
        raise ExportRefused(f"{path} is there already: name another file, or add --force.")


@contextlib.contextmanager
def _whole(path: Path, force: bool) -> Iterator[BinaryIO]:
    """A file, readable by its owner alone, that takes its name once all of it is on the disk."""
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _require_absent(path, force)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


# --- and back in ----------------------------------------------------------------------------------


def restore(admin: sa.URL | None, path: Path) -> Restored:
    """Bring an exported tenant back into a database that does not have it.

    All of it or nothing. Every trigger and constraint holds, and the invariant is looked for in
    each partition afterwards. A grant to a login that is no analyst here is left out: it would be
    that of the next of its name. Raises RestoreRefused, InvariantViolated, and ConfigurationError
    without the owner's address.
    """
    try:
        with path.open("rb") as file, owner.begin(admin, "Restoring") as connection:
            header = _header(path, file.readline())
            _require_room(connection, path, header)
            tx = bind(connection, UUID(header.user_id))
            try:
                with sentences():
                    _load(connection, path, file, header)
            except StoreRefused as refused:
                raise RestoreRefused(f"Nothing of {path} was restored. {refused}") from None
            _require_same(connection, path, header)
            _require_invariant(tx, path)
            dropped = [row.grantee for row in tx.rows(QUERIES["drop_foreign_grants"])]
    except OSError as error:
        raise RestoreRefused(f"The file {path} cannot be read: {error.strerror}.") from None
    return Restored(header, dropped)


def _header(path: Path, line: bytes) -> Header:
    try:
        header = Header.model_validate_json(line)
        if not SLUG.fullmatch(header.slug):
            raise ValueError
        UUID(header.user_id)
    except ValidationError as error:
        raise RestoreRefused(
            f"{path} does not begin as an export of a tenant does ({reasons(error)}): "
            "`forgetting tenants export` writes such a file."
        ) from None
    except ValueError:
        raise RestoreRefused(f"{path} names a slug or a user that cannot be used.") from None
    newest = newest_migration()
    if header.schema_revision != newest:
        raise RestoreRefused(
            f"{path} was exported at schema {header.schema_revision}, and this database is at "
            f"{newest}: restore it with the release that wrote it into a database of its own, run "
            "`forgetting migrate` there, and export it again."
        )
    return header


def _require_room(connection: sa.Connection, path: Path, header: Header) -> None:
    taken = connection.execute(
        QUERIES["find_taken"], {"slug": header.slug, "user_id": header.user_id}
    ).one()
    if taken.slug_taken:
        raise RestoreRefused(
            f"There is a tenant {header.slug} already, and a restore replaces nothing: "
            f"restore {path} into a database without it."
        )
    if taken.user_taken:
        raise RestoreRefused(
            f"The user {header.user_id} of {path} is there already, under another slug: "
            "restore it into a database without that user."
        )
    if header.demo != bool(connection.execute(GUARD["is_demo"]).scalar_one()):
        raise RestoreRefused(
            f"Of {path} and this database one is a demo, whose judge is scripted, and the other "
            "is not: set FORGETTING_HOME to another folder, or DATABASE_URL."
        )


def _load(connection: sa.Connection, path: Path, file: BinaryIO, header: Header) -> None:
    """Insert every line in the file's order, many at once.

    Raises RestoreRefused for another number of lines than the header counts: with as many rows of
    the tenant there afterwards, none can be somebody else's.
    """
    lines_of: Counter[str] = Counter()
    tables = {each.name: each for each in tenant_rows.tables(connection)}
    table: str | None = None
    lines: list[str] = []
    size = 0
    for number, raw in enumerate(file, start=2):
        name, line = _line(path, number, raw, tables)
        if lines and (name != table or len(lines) == CHUNK or size > CHUNK_BYTES):
            tenant_rows.add(connection, tables[str(table)], lines)
            lines, size = [], 0
        table = name
        lines_of[name] += 1
        lines.append(line)
        size += len(raw)
    if lines:
        tenant_rows.add(connection, tables[str(table)], lines)
    if wrong := sorted(
        n for n in {*lines_of, *header.rows} if lines_of[n] != header.rows.get(n, 0)
    ):
        raise RestoreRefused(_counts_differ(path, wrong))


def _counts_differ(path: Path, tables: Sequence[str]) -> str:
    return (
        f"{path} does not have the rows that its first line counts, in {', '.join(tables)}: it is "
        "damaged, incomplete or not of one tenant. Nothing was restored."
    )


def _line(
    path: Path, number: int, raw: bytes, tables: Mapping[str, tenant_rows.TenantTable]
) -> tuple[str, str]:
    """The table of a line, and the line. Raises RestoreRefused without quoting it."""
    try:
        line = raw.decode()
        parsed = json.loads(line)
        if set(parsed) != {"table", "row"} or not isinstance(parsed["row"], dict):
            raise ValueError
    except (ValueError, TypeError):
        raise RestoreRefused(
            f"Line {number} of {path} is not a table and a row: the file is damaged or incomplete. "
            "Nothing was restored."
        ) from None
    table = parsed["table"]
    if table not in tables:
        raise RestoreRefused(
            f"Line {number} of {path} is of a table that holds no tenant's rows. Nothing was "
            "restored."
        )
    return table, line


def _require_same(connection: sa.Connection, path: Path, header: Header) -> None:
    """Raise RestoreRefused unless exactly the counted rows are there, and are this tenant's."""
    user_id = UUID(header.user_id)
    found = tenant_rows.count(connection, tenant_rows.tables(connection), user_id)
    slug = connection.execute(QUERIES["read_slug"], {"user_id": user_id}).scalar_one_or_none()
    names = sorted({*found, *header.rows})
    if wrong := [name for name in names if found.get(name) != header.rows.get(name)]:
        raise RestoreRefused(_counts_differ(path, wrong))
    if slug != header.slug:
        raise RestoreRefused(f"{path} holds another tenant than its first line says.")


def _require_invariant(tx: TenantTransaction, path: Path) -> None:
    """Raise InvariantViolated when what was loaded holds a collapse or a loss, on any day."""
    days = [row.run_date for row in tx.rows(QUERIES["list_days"])]
    found = [
        violation
        for look, day in [(ALL_DAYS, None), *((look, day) for look in LOOKS for day in days)]
        for violation in invariant.look_at(tx, look, day)
    ]
    if found:
        raise InvariantViolated(
            f"Nothing of {path} was restored: the invariant does not hold for "
            f"{some([each.id for each in found])} ({found[0].reason}).",
            [(str(each.id), each.reason) for each in found],
        )
