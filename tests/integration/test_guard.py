"""The role guard: the database resource starts only where tenants are safe, or says why not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from forgetting_assets.store import candidates, pairs, tenants
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.database import Database, engine, newest_migration
from resources.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    ForgettingError,
    NotMigrated,
    RowsHidden,
    UnsafeRole,
)
from tests.support import TODAY, Store, ago, make_policy

PASSWORD = "correct-horse-battery"  # the server trusts its socket, so no login depends on it

MakeRole = Callable[..., str]


@pytest.fixture
def make_role(places: Addresses) -> Iterator[MakeRole]:
    """Makes login roles of the test's own: ``make_role("BYPASSRLS", member_of=[…])``."""
    assert places.admin is not None
    owner = engine(places.admin)
    made: list[str] = []

    def make(options: str = "", *, member_of: tuple[str, ...] = ()) -> str:
        name = f"guard_{uuid.uuid4().hex[:12]}"
        with owner.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN {options}")
            made.append(name)
            for each in member_of:
                connection.exec_driver_sql(f"GRANT {each} TO {name}")
        return name

    yield make
    with owner.begin() as connection:
        for name in reversed(made):
            connection.exec_driver_sql(f"REASSIGN OWNED BY {name} TO CURRENT_USER")
            connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP ROLE {name}")
    owner.dispose()


def as_role(places: Addresses, role: str) -> str:
    return places.memory.set(username=role, password=PASSWORD).render_as_string(False)


def refusal(url: str, error: type[ForgettingError]) -> str:
    """The sentence that the database resource refuses ``url`` with."""
    with pytest.raises(ForgettingError) as refused:
        Database(url=url).connect()
    assert type(refused.value) is error
    said = str(refused.value)
    assert len(said.splitlines()) == 1
    assert said.endswith(".")
    assert "\t" not in said
    assert PASSWORD not in said
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return said


def reads_what_is_its_own(url: str, store: Store) -> None:
    """Positive control: the role gets in, and RLS binds it."""
    acme, globex = store.tenant("acme"), store.tenant("globex")
    mine = store.memory(acme)
    store.memory(globex)
    database = Database(url=url).connect()
    try:
        with database.tenant(acme) as tx:
            assert tx.rows(sa.text("SELECT id FROM memories")) == [(mine,)]
        with database.registry() as connection:
            assert connection.execute(sa.text("SELECT id FROM memories")).all() == []
    finally:
        database.close()


def test_the_runtime_role_is_let_in(places: Addresses, store: Store) -> None:
    reads_what_is_its_own(as_role(places, RUNTIME_ROLE), store)


def test_a_login_role_that_was_granted_the_runtime_role_is_let_in(
    places: Addresses, store: Store, make_role: MakeRole
) -> None:
    reads_what_is_its_own(as_role(places, make_role(member_of=(RUNTIME_ROLE,))), store)


def test_a_superuser_is_refused(places: Addresses) -> None:
    assert places.admin is not None
    said = refusal(as_role(places, str(places.admin.username)), UnsafeRole)
    assert f"The role {places.admin.username} is a superuser" in said
    assert RUNTIME_ROLE in said


def test_a_superuser_is_refused_although_it_was_granted_the_runtime_role(
    places: Addresses, make_role: MakeRole
) -> None:
    role = make_role("SUPERUSER", member_of=(RUNTIME_ROLE,))
    assert "a superuser" in refusal(as_role(places, role), UnsafeRole)


def test_a_role_that_bypasses_row_level_security_is_refused(
    places: Addresses, make_role: MakeRole
) -> None:
    role = make_role("BYPASSRLS", member_of=(RUNTIME_ROLE,))
    said = refusal(as_role(places, role), UnsafeRole)
    assert f"The role {role} is allowed to bypass RLS" in said


def test_an_analyst_is_refused_although_it_was_granted_the_runtime_role(
    places: Addresses, make_role: MakeRole
) -> None:
    role = make_role(member_of=(RUNTIME_ROLE, "forgetting_analyst"))
    said = refusal(as_role(places, role), UnsafeRole)
    assert f"The role {role} belongs to forgetting_analyst" in said


def test_the_owner_of_a_tenant_table_is_refused(
    places: Addresses, store: Store, make_role: MakeRole
) -> None:
    role = make_role(member_of=(RUNTIME_ROLE,))
    url = as_role(places, role)
    Database(url=url).connect().close()

    store.execute(f"ALTER TABLE evidence OWNER TO {role}")
    said = refusal(url, UnsafeRole)
    assert "owns evidence or belongs to its owner" in said
    assert "DATABASE_ADMIN_URL" in said


@pytest.mark.parametrize("inherits", [True, False])
def test_a_member_of_the_owner_is_refused(
    places: Addresses, store: Store, make_role: MakeRole, inherits: bool
) -> None:
    owner = make_role()
    store.execute(f"ALTER TABLE forgetting.judged_verdicts OWNER TO {owner}")
    role = make_role(member_of=(RUNTIME_ROLE,))
    Database(url=as_role(places, role)).connect().close()

    store.execute(f"GRANT {owner} TO {role} WITH INHERIT {inherits}")
    said = refusal(as_role(places, role), UnsafeRole)
    assert "owns forgetting.judged_verdicts or belongs to its owner" in said


def test_a_role_without_grants_is_told_what_to_grant(
    places: Addresses, store: Store, make_role: MakeRole
) -> None:
    role = make_role()
    said = refusal(as_role(places, role), UnsafeRole)
    assert f"GRANT {RUNTIME_ROLE} TO" in said

    store.execute(f"GRANT {RUNTIME_ROLE} TO {role}")
    Database(url=as_role(places, role)).connect().close()


@pytest.mark.parametrize("off", ["NO FORCE", "DISABLE"])
def test_a_table_whose_row_level_security_was_switched_off_is_refused(
    places: Addresses, store: Store, off: str
) -> None:
    url = as_role(places, RUNTIME_ROLE)
    Database(url=url).connect().close()

    store.execute(f"ALTER TABLE memories {off} ROW LEVEL SECURITY")
    said = refusal(url, UnsafeRole)
    assert "The table memories has no forced row-level security" in said


def test_a_new_tenant_table_without_row_level_security_is_refused(
    places: Addresses, store: Store
) -> None:
    store.execute("CREATE TABLE forgetting.notes (user_id uuid)")
    said = refusal(as_role(places, RUNTIME_ROLE), UnsafeRole)
    assert "forgetting.notes" in said

    store.execute("ALTER TABLE forgetting.notes ENABLE ROW LEVEL SECURITY")
    store.execute("ALTER TABLE forgetting.notes FORCE ROW LEVEL SECURITY")
    Database(url=as_role(places, RUNTIME_ROLE)).connect().close()


def test_a_database_that_was_never_migrated_is_refused(places: Addresses, store: Store) -> None:
    store.execute("DROP SCHEMA forgetting CASCADE")
    said = refusal(as_role(places, RUNTIME_ROLE), NotMigrated)
    assert "`forgetting migrate`" in said


@pytest.mark.parametrize("version", ["0001", "9999", "a branch"])
def test_a_database_at_another_version_is_refused(
    places: Addresses, store: Store, version: str
) -> None:
    store.execute("UPDATE forgetting.schema_version SET version_num = :v", v=version)
    said = refusal(as_role(places, RUNTIME_ROLE), NotMigrated)
    assert f"is at {version}, this code needs {newest_migration()}" in said
    assert "`forgetting migrate`" in said


def test_a_database_whose_migration_never_ended_is_refused(places: Addresses, store: Store) -> None:
    store.execute("DELETE FROM forgetting.schema_version")
    refusal(as_role(places, RUNTIME_ROLE), NotMigrated)


def elsewhere(places: Addresses, **changed: object) -> str:
    """The test's address with a password and some parts of it changed."""
    query = {"host": str(places.memory.query["host"]), **{k: str(v) for k, v in changed.items()}}
    return places.memory.set(password=PASSWORD, query=query).render_as_string(False)


@pytest.mark.parametrize(
    "url",
    [
        # RFC 2606 and RFC 5737 keep these from ever being anybody's; nothing listens on port 1.
        f"postgresql://{RUNTIME_ROLE}:{PASSWORD}@nowhere.invalid/memory",
        f"postgresql://{RUNTIME_ROLE}:{PASSWORD}@127.0.0.1:1/memory",
        f"postgresql://{RUNTIME_ROLE}:{PASSWORD}@/memory?host=/nonexistent",
    ],
    ids=["host", "port", "socket"],
)
def test_a_server_that_is_not_there_is_named_as_unreachable(url: str) -> None:
    said = refusal(url, DatabaseUnreachable)
    assert "DATABASE_URL" in said


def test_a_socket_of_another_port_is_unreachable(places: Addresses) -> None:
    refusal(elsewhere(places, port=1), DatabaseUnreachable)
    Database(url=elsewhere(places)).connect().close()


def test_a_database_of_another_name_is_unreachable(places: Addresses) -> None:
    url = places.memory.set(database="no_such_database", password=PASSWORD)
    said = refusal(url.render_as_string(False), DatabaseUnreachable)
    assert "no_such_database" in said


def test_a_role_that_does_not_exist_is_unreachable(places: Addresses) -> None:
    refusal(as_role(places, "nobody_at_all"), DatabaseUnreachable)


@pytest.mark.parametrize(
    "url",
    [
        "the server downstairs",
        f"{PASSWORD}",
        f"host=localhost password={PASSWORD}",
        f"postgresql://{RUNTIME_ROLE}:{PASSWORD}@localhost:port/memory",
        f"postgresql://{RUNTIME_ROLE}:some@{PASSWORD}@localhost/memory",
        f"mysql://root:{PASSWORD}@localhost/memory",
        f"sqlite:///{PASSWORD}.db",
        f"https://user:{PASSWORD}@localhost/memory",
    ],
)
def test_what_is_no_postgresql_url_is_refused_without_being_echoed(url: str) -> None:
    said = refusal(url, ConfigurationError)
    assert url not in said


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_every_way_to_write_a_postgresql_url_reaches_the_driver_that_dagster_has(
    places: Addresses, scheme: str
) -> None:
    url = as_role(places, RUNTIME_ROLE).replace("postgresql+psycopg2", scheme, 1)
    assert url.startswith(f"{scheme}://")
    Database(url=url).connect().close()


def test_an_option_that_postgresql_does_not_know_is_named_as_such(places: Addresses) -> None:
    said = refusal(elsewhere(places, colour="blue"), ConfigurationError)
    assert "colour" in said
    Database(url=elsewhere(places, application_name="blue")).connect().close()


def test_an_address_without_a_database_or_role_is_refused_with_a_sentence() -> None:
    refusal("postgresql://127.0.0.1:1", DatabaseUnreachable)


def test_a_refused_resource_holds_no_connection(places: Addresses, store: Store) -> None:
    store.execute("UPDATE forgetting.schema_version SET version_num = '0001'")
    name = str(places.memory.database)
    url = as_role(places, RUNTIME_ROLE)

    def connections() -> int:
        return len(
            store.rows(
                "SELECT 1 FROM pg_stat_activity WHERE datname = :name AND application_name = 'g'",
                name=name,
            )
        )

    marked = f"{url}&application_name=g"
    pool = engine(sa.make_url(marked))
    with pool.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        assert connections() == 1
    pool.dispose()
    refusal(marked, NotMigrated)
    assert settled(connections) == 0


def settled(count: Callable[[], int]) -> int:
    """The count once the server noticed that its clients left."""
    deadline = time.monotonic() + 60
    while count() and time.monotonic() < deadline:
        time.sleep(0.05)
    return count()


# The tenant role sees every row there is


HIDES = """
    CREATE POLICY hides ON memories AS RESTRICTIVE FOR SELECT TO forgetting_runtime
    USING (topic <> 'hidden')
"""


@pytest.mark.parametrize("verb", ["pairs", "singles"])
def test_a_policy_that_hides_a_memory_from_the_tenant_role_stops_the_pass(
    store: Store, verb: str
) -> None:
    acme = store.tenant()
    store.memory(acme, topic="hidden", memory_type="note")
    store.memory(acme)
    select = pairs.select if verb == "pairs" else candidates.select
    select(store.database, store.partition(), make_policy(), TODAY)
    before = store.dump("forgetting.stale_candidates", "forgetting.mined_memories")

    store.memory(acme)
    store.execute(HIDES)
    with pytest.raises(RowsHidden, match="sees 2 of the 3 memories of acme"):
        select(store.database, store.partition(), make_policy(), TODAY)
    assert store.dump("forgetting.stale_candidates", "forgetting.mined_memories") == before


def test_the_count_is_of_one_tenant_and_leaves_the_tenant_setting_as_it_was(store: Store) -> None:
    acme, other = store.tenant(), store.tenant("other")
    store.memory(acme)
    for _ in range(3):
        store.memory(other)
    with store.database.tenant(acme) as tx:
        assert tenants.require_every_row(tx, "acme") == 1
        there = sa.text("SELECT forgetting.count_as_owner(:id)")
        assert tx.connection.execute(there, {"id": other}).scalar_one() == 3
        setting = sa.text("SELECT current_setting('app.user_id')")
        assert tx.connection.execute(setting).scalar_one() == str(acme)
        assert tx.connection.execute(sa.text("SELECT count(*) FROM memories")).scalar_one() == 1


def test_a_transaction_that_lost_its_tenant_sees_nothing_and_is_stopped(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    with store.database.tenant(acme) as tx:
        tx.connection.execute(sa.text("SELECT set_config('app.user_id', '', TRUE)"))
        with pytest.raises(RowsHidden, match="sees 0 of the 1"):
            tenants.require_every_row(tx, "acme")


def test_the_count_is_right_for_an_owner_that_is_no_superuser(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    store.memory(acme)
    store.execute("CREATE ROLE plain_owner NOSUPERUSER")
    try:
        store.execute("GRANT CREATE, USAGE ON SCHEMA public, forgetting TO plain_owner")
        store.execute("ALTER TABLE memories OWNER TO plain_owner")
        store.execute("ALTER FUNCTION forgetting.count_as_owner(uuid) OWNER TO plain_owner")
        with store.database.tenant(acme) as tx:
            assert tenants.require_every_row(tx, "acme") == 2
    finally:
        store.execute("REASSIGN OWNED BY plain_owner TO CURRENT_USER")
        store.execute("DROP OWNED BY plain_owner")
        store.execute("DROP ROLE plain_owner")


def test_a_temporary_table_of_the_callers_does_not_stand_in_for_the_memories(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme)
    store.execute(
        "DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO "
        "forgetting_runtime', current_database()); END $$"
    )
    with store.database.tenant(acme) as tx:
        tx.connection.execute(sa.text("CREATE TEMPORARY TABLE memories (user_id uuid)"))
        there = sa.text("SELECT forgetting.count_as_owner(:id)")
        assert tx.connection.execute(there, {"id": acme}).scalar_one() == 1


def test_times_are_utc_whatever_zone_the_database_is_set_to(
    store: Store, places: Addresses
) -> None:
    store.execute(f"ALTER DATABASE {places.memory.database} SET timezone = 'Asia/Tokyo'")
    store.tenant(tracked=0.5)
    database = Database(url=places.memory.render_as_string(hide_password=False)).connect()
    for _ in range(2):  # a connection that was used before, too
        since = tenants.find(database, "acme").tracked_since
        assert since is not None
        assert (since, since.utcoffset()) == (ago(0.5), timedelta(0))
    database.close()
