"""What the benchmarks share: a server of their own, statements past RLS, and the machine's name."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from resources import embedded, migrations
from resources.database import engine

DOCS = Path(__file__).parent.parent.parent / "docs" / "benchmarks"


@contextmanager
def server() -> Iterator[sa.URL]:
    """An embedded server in a temporary folder: its superuser's address."""
    with tempfile.TemporaryDirectory(prefix="forgetting-bench-") as folder:
        os.chmod(folder, 0o755)
        started = embedded.start(Path(folder))
        try:
            yield embedded.url(started, "postgres", started.postgres_user)
        finally:
            started.cleanup()


def database(server: sa.URL, name: str) -> sa.URL:
    """A new, migrated database of the server: its superuser's address."""
    migrations.create_database(server, name)
    admin = server.set(database=name)
    migrations.upgrade(admin)
    return admin


def execute(admin: sa.URL, *statements: str) -> None:
    """Statements outside a transaction, as the superuser."""
    pool = engine(admin).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    pool.dispose()


def machine() -> str:
    """Its cores and its processor's name, where the system tells."""
    return f"{os.cpu_count()} cores, {_processor()}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    return next(
        (line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")),
        platform.machine(),
    )


def write(name: str, report: str) -> None:
    """Write a report into docs/benchmarks."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / name).write_text(report, encoding="utf-8")


def say(line: str) -> None:
    """Progress, and the report."""
    print(line, flush=True)  # noqa: T201
