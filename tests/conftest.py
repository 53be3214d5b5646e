"""One embedded PostgreSQL for the whole run, one database a test, and builders of rows.

The controller starts the server; xdist workers get its address. A template database is migrated
once, and each test gets a copy of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from resources import embedded, migrations
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.database import Database, engine
from tests.graph import Graph
from tests.support import Store

TEMPLATE = "template_memory"
SHARED = Path(__file__).parent.parent.parent / "shared"

# No test reads the developer's own settings.
for name in [each for each in os.environ if each.startswith(("FORGETTING_", "JEV_", "DAGSTER_"))]:
    del os.environ[name]
os.environ.pop("DATABASE_URL", None)
os.environ.pop("DATABASE_ADMIN_URL", None)
os.environ["FORGETTING_START_DATE"] = "2026-01-01"

_server: embedded.PostgresServer | None = None
_folder: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _server, _folder
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    _folder = Path(tempfile.mkdtemp(prefix="forgetting-tests-"))
    _folder.chmod(0o755)
    _server = embedded.start(_folder)
    admin = embedded.url(_server, "postgres", _server.postgres_user)
    pool = engine(admin).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
            connection.exec_driver_sql(f"ALTER SYSTEM SET {setting}")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        connection.exec_driver_sql(f"CREATE DATABASE {TEMPLATE}")
    pool.dispose()
    migrations.upgrade(admin.set(database=TEMPLATE))
    config.stash[ADMIN] = admin.render_as_string(hide_password=False)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server is not None and _folder is not None:
        _server.cleanup()
        shutil.rmtree(_folder, ignore_errors=True)


WAITING = ("test_backfill.py", "test_ui.py", "test_dev.py", "test_machines.py")
"""Tests that mostly wait for Dagster's daemon, whose interval is fixed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits, so that nobody waits for it in the end."""
    items.sort(key=lambda item: item.path.name not in WAITING)


ADMIN = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker where the server is."""
    node.workerinput["admin"] = node.config.stash[ADMIN]


@pytest.fixture(scope="session")
def admin_url(pytestconfig: pytest.Config) -> sa.URL:
    """The superuser's address of the test server's `postgres` database."""
    given = getattr(pytestconfig, "workerinput", None)
    return sa.make_url(given["admin"] if given else pytestconfig.stash[ADMIN])


@pytest.fixture
def places(admin_url: sa.URL) -> Iterator[Addresses]:
    """A migrated database of the test's own; Dagster's is named and not made."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    pool = engine(admin_url).execution_options(isolation_level="AUTOCOMMIT")
    with pool.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
    admin = admin_url.set(database=name)
    memory = admin.set(username=RUNTIME_ROLE)
    yield Addresses(memory=memory, dagster=memory.set(database=f"{name}_dagster"), admin=admin)
    with pool.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}_dagster WITH (FORCE)")
    pool.dispose()


@pytest.fixture
def database(places: Addresses) -> Iterator[Database]:
    """The store as the runtime role sees it."""
    database = Database(url=places.memory.render_as_string(hide_password=False)).connect()
    yield database
    database.close()


@pytest.fixture
def store(database: Database, places: Addresses) -> Iterator[Store]:
    """Builders of tenants, memories, pairs, verdicts and evidence in the test's database."""
    assert places.admin is not None
    owner = engine(places.admin)
    yield Store(database, owner)
    owner.dispose()


@pytest.fixture
def graph(store: Store) -> Iterator[Graph]:
    """The product around the test's store, on an instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Graph(store, instance)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real, anonymised memories; tests that use it skip where it is absent."""
    folder = SHARED / "data"
    if not (folder / "golden_memories.jsonl").exists():
        pytest.skip("the shared data folder is not here")
    return folder
