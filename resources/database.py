"""The database resource: one transaction is one tenant, under a role that RLS binds.

Here belong connecting, the role guard and tenant transactions. What is asked of the tables belongs
in forgetting_assets/store, the statements in sql/queries.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Self
from uuid import UUID

import dagster as dg
import psycopg2
import sqlalchemy as sa
from pydantic import PrivateAttr
from sqlalchemy.exc import DBAPIError, OperationalError

import sql
from resources import addresses, settings
from resources.binary import Columns, CopyReader, Records
from resources.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    NotMigrated,
    StoreRefused,
    UnsafeRole,
)

GUARD = sql.load("guard")

ABOUT_THE_STATEMENT = {"42501", "42P01", "42703", "42883"}
"""SQLSTATEs of a right, a table, a column or a function that is not there."""


class TenantTransaction:
    """An open transaction that sees one tenant. ``:user_id`` is bound in every statement."""

    def __init__(self, connection: sa.Connection, user_id: UUID) -> None:
        self.connection = connection
        self.user_id = user_id

    def rows(self, query: sa.TextClause, **parameters: Any) -> Sequence[sa.Row[Any]]:
        """All rows of a query."""
        return self._execute(query, parameters).all()

    def stream(self, query: sa.TextClause, **parameters: Any) -> Iterator[sa.Row[Any]]:
        """The rows of a query one by one, by a cursor of the server: no more than are taken."""
        streaming = {"stream_results": True, "max_row_buffer": 200}
        bound = {"user_id": self.user_id, **parameters}
        with self.connection.execute(query, bound, execution_options=streaming) as rows:
            yield from rows

    def one(self, query: sa.TextClause, **parameters: Any) -> sa.Row[Any]:
        """The only row of a query."""
        return self._execute(query, parameters).one()

    def first(self, query: sa.TextClause, **parameters: Any) -> sa.Row[Any] | None:
        """The first row of a query, or None."""
        return self._execute(query, parameters).first()

    def run(self, query: sa.TextClause, **parameters: Any) -> int:
        """The number of rows that a statement changed."""
        return self._execute(query, parameters).rowcount

    def copy(
        self,
        query: sa.TextClause,
        columns: Columns,
        consume: Callable[[Records], None],
        *,
        rows: int,
        **parameters: Any,
    ) -> None:
        """Hand on the records of a binary COPY, at most ``rows`` at once.

        No other statement may run before it returns. Raises UnequalRows.
        """
        compiled = query.compile(dialect=self.connection.dialect)
        reader = CopyReader(columns, consume, rows)
        with closing(self.connection.connection.cursor()) as cursor:
            bound = cursor.mogrify(str(compiled), {"user_id": self.user_id, **parameters})
            cursor.copy_expert(bound, reader)
        reader.finish()

    def _execute(self, query: sa.TextClause, parameters: dict[str, Any]) -> sa.CursorResult[Any]:
        return self.connection.execute(query, {"user_id": self.user_id, **parameters})


class JudgingLock:
    """A tenant's judging lock while it is held. Threads may ask it at once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._asking = threading.Lock()

    def require(self) -> None:
        """Raise StoreRefused when the lock went with its connection: somebody else may judge."""
        with self._asking, sentences():
            self._connection.execute(GUARD["answer"])


class Database(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The memory store. ``url`` None means DATABASE_URL, or the embedded server without it.

    It connects at its first use, so that a run whose flag is off asks for nothing. It refuses a
    role that is a superuser, bypasses RLS or owns a tenant table, a table without forced RLS, and a
    schema that is not current. A run that connected is seen to be alive until it ends.
    """

    url: str | None = None

    _engine: sa.Engine | None = PrivateAttr(default=None)
    _run_id: str | None = PrivateAttr(default=None)
    _sign_of_life: sa.Connection | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        self._run_id = context.run.run_id if context.run else None

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        self.close()

    def connect(self) -> Self:
        """Open the pool and run the guard. Raises a ConfigurationError."""
        address = (
            addresses.parse("The database's url", self.url)
            if self.url
            else addresses.resolve(settings.read()).memory
        )
        pool = engine(address)
        try:
            guard(pool)
        except BaseException:
            pool.dispose()
            raise
        self._engine = pool
        if self._run_id:
            self._show_life(self._run_id)
        return self

    def close(self) -> None:
        """Close the pool."""
        if self._sign_of_life is not None:
            self._sign_of_life.invalidate()  # which ends the session, and the lock with it
            self._sign_of_life.close()
            self._sign_of_life = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _pool(self) -> sa.Engine:
        if self._engine is None:
            self.connect()
        assert self._engine is not None
        return self._engine

    @contextmanager
    def tenant(self, user_id: UUID, *, exclusive: bool = False) -> Iterator[TenantTransaction]:
        """A transaction bound to one tenant; ``exclusive`` waits for other writers of the tenant.

        Commits at the end, rolls back on any exception. A statement that the database refuses is
        raised as StoreRefused, which names the constraint and never the row.
        """
        with self.registry() as connection:
            yield bind(connection, user_id, exclusive=exclusive)

    @contextmanager
    def registry(self) -> Iterator[sa.Connection]:
        """A transaction without a tenant: it sees the tenants and no memory."""
        with sentences(), self._pool().begin() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """A registry transaction that sees one moment, however long it takes; it only reads."""
        with sentences(), self._pool().connect() as connection:
            connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            with connection.begin():
                yield connection

    @contextmanager
    def judging(self, user_id: UUID) -> Iterator[JudgingLock]:
        """Hold the tenant's judging lock, on a connection of its own, across transactions.

        Raises StoreRefused in the end when that connection was lost: nobody else was kept out then.
        """
        with self._session() as connection:
            connection.execute(GUARD["lock_judging"], {"user_id": str(user_id)})
            try:
                yield JudgingLock(connection)
            finally:
                if not connection.invalidated:  # else the lock is gone, and somebody was told
                    connection.execute(GUARD["unlock_judging"], {"user_id": str(user_id)})

    @contextmanager
    def _session(self) -> Iterator[sa.Connection]:
        """A connection that holds a lock for long; the server soon notices a host that is gone."""
        with sentences(), self._pool().connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(GUARD["notice_a_lost_host"])
            yield connection

    @contextmanager
    def living(self, run_id: str) -> Iterator[None]:
        """Let others see, by a lock on a connection of its own, that a run's process is alive."""
        with self._session() as connection:
            connection.execute(GUARD["lock_run"], {"run_id": run_id})
            try:
                yield
            finally:
                connection.invalidate()  # which ends the session, and the lock with it

    def _show_life(self, run_id: str) -> None:
        """The same for a run that Dagster launched, unless its process holds the lock already."""
        with sentences():
            connection = self._pool().connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(GUARD["notice_a_lost_host"])
            if connection.execute(GUARD["try_lock_run"], {"run_id": run_id}).scalar_one():
                self._sign_of_life = connection
            else:
                connection.close()

    @contextmanager
    def daemon_of_ours(self) -> Iterator[bool]:
        """Claim to be the one command that runs a Dagster daemon; False when another one is."""
        with self._session() as connection:
            held = bool(connection.execute(GUARD["try_lock_daemon"]).scalar_one())
            try:
                yield held
            finally:
                if held:
                    connection.invalidate()

    def is_alive(self, run_id: str) -> bool:
        """Whether the process of a run is alive, on whatever machine.

        A run that Dagster launched is seen from its first use of the database on.
        """
        with self.registry() as connection:
            return bool(connection.execute(GUARD["is_run_alive"], {"run_id": run_id}).scalar_one())

    def is_demo(self) -> bool:
        """Whether this database is marked as holding invented memories only."""
        with self.registry() as connection:
            return bool(connection.execute(GUARD["is_demo"]).scalar_one())


def bind(connection: sa.Connection, user_id: UUID, *, exclusive: bool = False) -> TenantTransaction:
    """Bind a registry transaction to a tenant, such as one that it has just added."""
    connection.execute(GUARD["set_tenant"], {"user_id": str(user_id)})
    if exclusive:
        connection.execute(GUARD["lock_tenant"], {"user_id": str(user_id)})
    return TenantTransaction(connection, user_id)


def engine(address: sa.URL) -> sa.Engine:
    """An engine whose errors never carry a statement's parameters, and whose times are UTC."""
    pool = sa.create_engine(address, hide_parameters=True, pool_pre_ping=True)
    sa.event.listen(pool, "connect", _speak_utc)
    return pool


def _speak_utc(connection: Any, _record: Any) -> None:
    # A server or a database may be set to another zone, and a date is printed as it comes.
    with closing(connection.cursor()) as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
    connection.commit()


@contextmanager
def sentences() -> Iterator[None]:
    """Turn the driver's errors, whose details may quote a row, into sentences that do not."""
    try:
        yield
    except (DBAPIError, psycopg2.Error) as error:
        # A COPY runs on the driver's cursor, past SQLAlchemy, which else wraps the driver's error.
        original = error.orig if isinstance(error, DBAPIError) else error
        diagnostics = getattr(original, "diag", None)
        constraint = getattr(diagnostics, "constraint_name", None)
        state = getattr(original, "pgcode", None)
        # What a function says may quote a row, but our own triggers do not. Without a function
        # these codes are about names in our statement.
        within = getattr(diagnostics, "context", None) or ""
        speaks = within.startswith("PL/pgSQL function forgetting.refuse_") or (
            state in ABOUT_THE_STATEMENT and not within
        )
        raised = getattr(diagnostics, "message_primary", None) if speaks else None
        reason = constraint or raised or type(original).__name__
        raise StoreRefused(
            f"The database refused a statement and rolled back ({state}: {reason})."
        ) from None


def guard(pool: sa.Engine) -> None:
    """Refuse a role or a schema under which tenants would not be safe."""
    try:
        with pool.connect() as connection:
            role = connection.execute(GUARD["read_role"]).one()
            if role.is_superuser or role.bypasses_rls:
                power = "a superuser" if role.is_superuser else "allowed to bypass RLS"
                raise UnsafeRole(
                    f"The role {role.role} is {power}, so it could read across tenants. "
                    f"Use {addresses.RUNTIME_ROLE} in DATABASE_URL."
                )
            if role.is_analyst:
                raise UnsafeRole(
                    f"The role {role.role} belongs to forgetting_analyst, which reads granted "
                    f"tenants only. Use {addresses.RUNTIME_ROLE} in DATABASE_URL."
                )
            check_version(connection)
            unsafe = connection.execute(GUARD["find_unsafe_tables"]).all()
    except OperationalError as error:
        raise DatabaseUnreachable(
            "The database does not answer or refuses the login: check host, database, role and "
            f"password in DATABASE_URL ({first_line(error)})."
        ) from None
    except sa.exc.ProgrammingError as error:
        if getattr(error.orig, "pgcode", None) is None:  # the server was never asked
            raise ConfigurationError(
                f"DATABASE_URL has an option that no server knows ({first_line(error)})."
            ) from None
        raise UnsafeRole(
            "The role in DATABASE_URL may not read the schema `forgetting`. As the owner, run "
            f"GRANT {addresses.RUNTIME_ROLE} TO that role."
        ) from None
    for table in unsafe:
        if not table.is_forced:
            raise UnsafeRole(
                f"The table {table.table_name} has no forced row-level security, so tenants are "
                "not isolated. Run `forgetting migrate` as the owner."
            )
        raise UnsafeRole(
            f"The role in DATABASE_URL owns {table.table_name} or belongs to its owner. "
            f"Use {addresses.RUNTIME_ROLE}, and the owner in DATABASE_ADMIN_URL."
        )


def check_version(connection: sa.Connection) -> None:
    """Raise NotMigrated unless the database has exactly this code's schema."""
    newest = newest_migration()
    if not connection.execute(GUARD["has_schema"]).scalar_one():
        raise NotMigrated()
    found = connection.execute(GUARD["read_version"]).scalar_one()
    if found != newest:
        raise NotMigrated(
            f"The database's schema is at {found}, this code needs {newest}: "
            "run `forgetting migrate` as the owner."
        )


def newest_migration() -> str:
    """The revision of the last file in sql/migrations."""
    return max(path.name[:4] for path in (sql.ROOT / "migrations").glob("[0-9]*.sql"))


def first_line(error: Exception) -> str:
    """What the driver says first; the lines after it may quote a statement or a row."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.splitlines()[0] if said else "no reason given"
