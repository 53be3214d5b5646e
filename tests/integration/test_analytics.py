"""What analysts read: granted tenants alone, figures and no text, and what each view means."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from forgetting_assets import review
from forgetting_assets.store import analysts, tenants
from resources import migrations
from resources.addresses import RUNTIME_ROLE, Addresses
from resources.database import Database, engine
from resources.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    StoreRefused,
    UnknownTenant,
    UnsafeRole,
)
from tests.analysts import ANALYST_COLUMNS
from tests.support import DAY, TODAY, Pass, Store, TestJudge, record_verdict, say, waiting_of

ANALYST = "forgetting_analyst"
VIEWS = ("verdicts", "proposals", "evidence_tier", "budget_daily", "run_summary")

READABLE = {
    **ANALYST_COLUMNS,
    "forgetting.items": "user_id run_date memory_id newer_id",
    **{f"analytics.{view}": "*" for view in VIEWS},
}
"""Every column that an analyst may read. A text of a memory or of evidence, its digest, a topic, a
reason and an event's payload are not among them."""


@dataclass
class Analyst:
    """A login that asks."""

    name: str
    engine: sa.Engine

    def rows(self, query: str, *, tenant: UUID | None = None) -> list[Any]:
        """The rows of a query, in a transaction that says it is ``tenant``'s."""
        with self.engine.begin() as connection:
            if tenant is not None:
                setting = sa.text("SELECT set_config('app.user_id', :tenant, true)")
                connection.execute(setting, {"tenant": str(tenant)})
            return list(connection.execute(sa.text(query)))

    def refusal(self, query: str) -> str:
        """The SQLSTATE that a statement is refused with, or ''."""
        try:
            self.rows(query)
        except DBAPIError as error:
            return str(getattr(error.orig, "pgcode", None))
        return ""

    def tenants(self, view: str, *, tenant: UUID | None = None) -> set[str]:
        """The tenants that a view shows."""
        found = self.rows(f"SELECT DISTINCT tenant FROM analytics.{view}", tenant=tenant)
        return {row.tenant for row in found}


MakeAnalyst = Callable[..., Analyst]


@pytest.fixture
def make_analyst(store: Store, places: Addresses) -> Iterator[MakeAnalyst]:
    """Makes logins of the test's own, as an administrator would, and grants them tenants."""
    made: list[Analyst] = []

    def make(*slugs: str, options: str = "") -> Analyst:
        name = f"analyst_{uuid.uuid4().hex[:12]}"
        store.execute(f"CREATE ROLE {name} LOGIN {options}")
        analyst = Analyst(name, engine(places.memory.set(username=name)))
        made.append(analyst)
        for slug in slugs:
            analysts.grant(places.admin, slug, name, TODAY)
        return analyst

    yield make
    for analyst in made:
        analyst.engine.dispose()
        store.execute(f"DROP OWNED BY {analyst.name}")
        store.execute(f"DROP ROLE {analyst.name}")


@pytest.fixture
def two(store: Store) -> tuple[UUID, UUID]:
    """Two tenants with rows in every view and in every table that the views read."""
    ids = store.tenant("acme"), store.tenant("globex")
    for slug, user_id in zip(("acme", "globex"), ids, strict=True):
        fill(store, user_id, slug)
    return ids


def fill(store: Store, user_id: UUID, slug: str = "acme") -> None:
    store.memory(user_id)
    store.pair(user_id)
    entry = store.evidence(user_id, age=90)
    Pass(store, TestJudge.that(say("archive"))).run(store.partition(slug))
    Pass(store).sweep(store.partition(slug))
    (waiting, *_) = waiting_of(store, user_id)
    review.reject(store.database, user_id, waiting.id, TODAY)
    check(store, user_id, "zero_episodic_collapse", passed=True)
    for statement in (
        "INSERT INTO forgetting.regrets VALUES (:user_id, :entry, :now, :now, 'touch')",
        """INSERT INTO forgetting.revivals (user_id, evidence_id, revived_at, archived_run_date,
        reason) VALUES (:user_id, :entry, :now, '2026-08-31', 'asked')""",
        """INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
        SELECT :user_id, p.id, 'expired', :now FROM retention_proposals AS p
        WHERE p.user_id = :user_id AND cast(:entry AS uuid) IS NOT NULL""",
    ):
        assert store.execute(statement, user_id=user_id, entry=entry, now=TODAY) >= 1


def check(
    store: Store,
    user_id: UUID,
    name: str,
    *,
    passed: bool,
    asset: str = "judged_verdicts",
    minutes: int = 0,
    day: date = DAY,
) -> None:
    store.execute(
        "INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed, "
        "reasons, run_id, checked_at) VALUES (:day, :user_id, :asset, :name, :passed, '[]', 'r', "
        ":at)",
        day=day,
        user_id=user_id,
        asset=asset,
        name=name,
        passed=passed,
        at=TODAY + timedelta(minutes=minutes),
    )


# Which tenants


def test_an_analyst_without_a_grant_sees_nothing(
    store: Store, two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    assert len(store.rows("SELECT * FROM tenants")) == 2
    nobody = make_analyst()
    store.execute(f"GRANT {ANALYST} TO {nobody.name}")
    for view in VIEWS:
        assert len(store.rows(f"SELECT DISTINCT tenant FROM analytics.{view}")) == 2, view
        assert nobody.tenants(view) == set(), view
    assert nobody.rows("SELECT slug FROM tenants") == []

    stranger = make_analyst()
    assert stranger.refusal("SELECT slug FROM tenants") == "42501"


@pytest.mark.parametrize("view", VIEWS)
def test_a_grant_shows_exactly_that_tenant_and_a_revoke_takes_it_away(
    store: Store,
    places: Addresses,
    two: tuple[UUID, UUID],
    make_analyst: MakeAnalyst,
    view: str,
) -> None:
    analyst = make_analyst("acme")
    seen = analyst.rows(f"SELECT v FROM analytics.{view} AS v ORDER BY 1")
    all_of_it = store.rows(f"SELECT v FROM analytics.{view} AS v WHERE tenant = 'acme' ORDER BY 1")
    assert [row.v for row in seen] == [row["v"] for row in all_of_it]
    assert analyst.tenants(view) == {"acme"}

    assert analysts.grant(places.admin, "globex", analyst.name, TODAY) is True
    assert analyst.tenants(view) == {"acme", "globex"}
    assert analysts.revoke(places.admin, "acme", analyst.name) is True
    assert analyst.tenants(view) == {"globex"}
    assert analysts.revoke(places.admin, "globex", analyst.name) is True
    assert analyst.tenants(view) == set()


def test_the_tenant_setting_gives_an_analyst_nothing_more(
    store: Store, two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    acme, globex = two
    analyst = make_analyst("acme")
    for view in VIEWS:
        assert analyst.tenants(view, tenant=globex) == {"acme"}, view
    for table in set(READABLE) - {f"analytics.{view}" for view in VIEWS}:
        query = f"SELECT DISTINCT user_id FROM {table}"
        assert len(store.rows(query)) == (1 if table == "analytics.tenant_grants" else 2), table
        assert analyst.rows(query, tenant=globex) == [(acme,)], table

    # The control: the setting opens the tables where nothing limits the analyst.
    store.execute("DROP POLICY analyst_limit ON evidence")
    query = "SELECT DISTINCT user_id FROM evidence"
    assert {row.user_id for row in analyst.rows(query, tenant=globex)} == {acme, globex}


def test_another_analysts_grants_are_out_of_sight_and_of_reach(
    two: tuple[UUID, UUID], places: Addresses, make_analyst: MakeAnalyst
) -> None:
    acme, _ = two
    mine, other = make_analyst("acme"), make_analyst("globex")
    analysts.grant(places.admin, "globex", ANALYST, TODAY)
    assert mine.rows("SELECT grantee, user_id FROM analytics.tenant_grants") == [(mine.name, acme)]
    assert mine.tenants("evidence_tier") == {"acme"}
    assert other.tenants("evidence_tier") == {"globex"}
    for becoming in (ANALYST, other.name, RUNTIME_ROLE):
        assert mine.refusal(f"SET ROLE {becoming}") == "42501", becoming

    itself = Analyst(ANALYST, engine(places.memory.set(username=ANALYST)))
    assert itself.tenants("evidence_tier") == {"globex"}
    itself.engine.dispose()


def test_the_runtime_role_reads_the_views_of_its_tenant(
    store: Store, two: tuple[UUID, UUID]
) -> None:
    with store.database.tenant(two[1]) as tx:
        for view in VIEWS:
            query = sa.text(f"SELECT DISTINCT tenant FROM analytics.{view}")
            assert tx.rows(query) == [("globex",)], view


def test_the_runtime_role_and_its_members_still_see_and_register_every_tenant(
    store: Store, places: Addresses, two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    member = make_analyst()
    store.execute(f"GRANT {RUNTIME_ROLE} TO {member.name}")
    url = places.memory.set(username=member.name).render_as_string(hide_password=False)
    database = Database(url=url).connect()
    with database.registry() as connection:
        tenants.add(connection, "initech")
    tenants.consent(database, "acme", judgment=False)
    assert [(each.slug, each.judgment_enabled) for each in tenants.all_tenants(database)] == [
        ("acme", False),
        ("globex", True),
        ("initech", False),
    ]
    database.close()
    assert len(tenants.all_tenants(store.database)) == 3


def test_a_deleted_user_takes_its_grants_along(store: Store, make_analyst: MakeAnalyst) -> None:
    acme = store.tenant("acme")
    analyst = make_analyst("acme")
    store.execute("DELETE FROM users WHERE id = :id", id=acme)
    assert analyst.rows("SELECT * FROM analytics.tenant_grants") == []
    assert store.rows("SELECT * FROM analytics.tenant_grants") == []


# Which columns


def test_an_analyst_reads_the_listed_columns_and_no_other_of_the_whole_store(
    store: Store, two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    analyst = make_analyst("acme", "globex")
    columns = store.rows(
        """
        SELECT format('%s.%s', n.nspname, c.relname) AS relation, a.attname AS name
        FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
        WHERE n.nspname IN ('public', 'forgetting', 'analytics')
            AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY 1, 2
        """
    )
    assert len(columns) > 300
    for each in columns:
        relation, name = each["relation"], each["name"]
        listed = READABLE.get(relation, "")
        may = listed == "*" or name in listed.split()
        said = analyst.refusal(f'SELECT "{name}" FROM {relation}')
        assert said == ("" if may else "42501"), f"{relation}.{name}"
    texts = ("content", "topic", "tags", "embedding", "search_tsv", "session_id", "detail")
    assert set(texts) <= {each["name"] for each in columns}
    named = {name for listed in READABLE.values() for name in listed.split()}
    assert named.isdisjoint({*texts, "rationale", "payload", "reasons", "content_hash"})


def test_what_the_views_show_is_ids_labels_figures_and_times(
    two: tuple[UUID, UUID], make_analyst: MakeAnalyst, store: Store
) -> None:
    store.execute("UPDATE evidence SET content = 'violet ledger ' || id")
    store.execute("UPDATE memories SET topic = 'violet topic', content = 'violet ledger ' || id")
    analyst = make_analyst("acme", "globex")
    for view in VIEWS:
        shown = "\n".join(row.v for row in analyst.rows(f"SELECT v::text FROM analytics.{view} v"))
        assert "acme" in shown, view
        assert "violet" not in shown, view


def test_an_analyst_changes_nothing_and_makes_nothing(
    two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    analyst = make_analyst("acme")
    for statement in (
        f"INSERT INTO analytics.tenant_grants VALUES ('{analyst.name}', '{two[1]}', now())",
        "DELETE FROM analytics.tenant_grants",
        "UPDATE tenants SET judgment_enabled = TRUE",
        "UPDATE retention_proposals SET status = 'applied'",
        "DELETE FROM forgetting.judged_verdicts",
        "INSERT INTO llm_usage (user_id, operation, model) SELECT user_id, 'x', 'y' FROM tenants",
        "CREATE TABLE analytics.mine (id int)",
        "CREATE TABLE public.mine (id int)",
        "CREATE TABLE forgetting.mine (id int)",
    ):
        assert analyst.refusal(statement) == "42501", statement


def test_an_analyst_may_execute_no_function_of_ours(
    store: Store, places: Addresses, make_analyst: MakeAnalyst, two: tuple[UUID, UUID]
) -> None:
    functions = {
        row["name"]: row["runs"]
        for row in store.rows(
            """
            SELECT p.proname AS name, has_function_privilege(:analyst, p.oid, 'EXECUTE') AS analyst,
                has_function_privilege(:runtime, p.oid, 'EXECUTE') AS runs
            FROM pg_proc AS p INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
            WHERE n.nspname IN ('public', 'forgetting', 'analytics') AND NOT EXISTS (
                SELECT 1 FROM pg_depend AS d
                WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
            )
            """,
            analyst=ANALYST,
            runtime=RUNTIME_ROLE,
        )
        if not row["analyst"]
    }
    used = {"count_as_owner", "forget", "group_key", "remove_accepted_edge"}
    triggers = {"refuse_episodic", "refuse_episodic_mining", "refuse_unjudgeable"}
    assert functions == dict.fromkeys(used, True) | dict.fromkeys(triggers, False)

    analyst = make_analyst("acme")
    entry = store.rows("SELECT id FROM evidence LIMIT 1")[0]["id"]
    for call in (
        f"count_as_owner('{two[0]}')",
        f"forget('{entry}', NULL, '{entry}', now())",
        f"remove_accepted_edge('{entry}')",
        "group_key('fact', 'work', NULL, 'm')",
    ):
        assert analyst.refusal(f"SELECT forgetting.{call}") == "42501", call


# Granting


def test_granting_twice_and_revoking_twice_changes_nothing(
    store: Store, places: Addresses, make_analyst: MakeAnalyst
) -> None:
    store.tenant("acme")
    analyst = make_analyst()
    assert analysts.revoke(places.admin, "acme", analyst.name) is False
    assert analysts.grant(places.admin, "acme", analyst.name, TODAY) is True
    before = store.dump("analytics.tenant_grants")
    assert analysts.grant(places.admin, "acme", analyst.name, TODAY + timedelta(days=1)) is False
    assert store.dump("analytics.tenant_grants") == before
    assert store.rows(
        "SELECT inherit_option, set_option, admin_option FROM pg_auth_members "
        "WHERE member = CAST(:name AS regrole)",
        name=analyst.name,
    ) == [{"inherit_option": True, "set_option": False, "admin_option": False}]
    assert analysts.revoke(places.admin, "acme", analyst.name) is True
    assert analysts.revoke(places.admin, "acme", analyst.name) is False


def test_a_login_that_does_not_inherit_reads_what_it_was_granted(
    two: tuple[UUID, UUID], make_analyst: MakeAnalyst
) -> None:
    assert make_analyst("acme", options="NOINHERIT").tenants("verdicts") == {"acme"}


def test_a_name_that_needs_quotes_is_granted_as_it_stands(
    store: Store, places: Addresses, two: tuple[UUID, UUID]
) -> None:
    name = f'An % "analyst" {uuid.uuid4().hex[:8]}'
    quoted = '"' + name.replace('"', '""') + '"'
    with store.owner.begin() as connection:
        connection.connection.cursor().execute(f"CREATE ROLE {quoted} LOGIN")
    try:
        assert analysts.grant(places.admin, "acme", name, TODAY) is True
        analyst = Analyst(name, engine(places.memory.set(username=name)))
        assert analyst.tenants("verdicts") == {"acme"}
        analyst.engine.dispose()
    finally:
        with store.owner.begin() as connection:
            connection.connection.cursor().execute(f"DROP ROLE {quoted}")


def test_a_group_that_the_pass_belongs_to_cannot_be_granted(store: Store) -> None:
    group = f"group_{uuid.uuid4().hex[:8]}"
    with store.owner.connect() as connection:  # rolled back: roles are the whole server's
        connection.exec_driver_sql(f"CREATE ROLE {group} NOLOGIN")
        found = connection.execute(analysts.QUERIES["find_role"], {"role": group}).one()
        assert (found.runs_the_pass, found.owns_the_tables) == (False, False)
        connection.exec_driver_sql(f"GRANT {group} TO forgetting_runtime")
        found = connection.execute(analysts.QUERIES["find_role"], {"role": group}).one()
        assert (found.runs_the_pass, found.owns_the_tables) == (True, False)


def test_the_grants_of_a_role_that_is_gone_can_be_revoked(store: Store, places: Addresses) -> None:
    store.tenant("acme")
    name = f"gone_{uuid.uuid4().hex[:8]}"
    store.execute(f"CREATE ROLE {name} LOGIN")
    assert analysts.grant(places.admin, "acme", name, TODAY)
    store.execute(f"DROP ROLE {name}")
    assert analysts.revoke(places.admin, "acme", name) is True
    assert store.rows("SELECT * FROM analytics.tenant_grants") == []


def test_what_cannot_be_granted_is_refused_with_a_sentence_and_nothing_is_written(
    store: Store, places: Addresses, make_analyst: MakeAnalyst
) -> None:
    store.tenant("acme")
    analyst = make_analyst()
    admin = places.admin
    assert admin is not None
    for slug, role, error, said in (
        ("globex", analyst.name, UnknownTenant, "There is no tenant globex"),
        ("acme", "nobody_at_all", ConfigurationError, "has no role nobody_at_all"),
        ("acme", str(admin.username), UnsafeRole, "is a superuser or may bypass RLS"),
        ("acme", make_analyst(options="BYPASSRLS").name, UnsafeRole, "may bypass RLS"),
        ("acme", RUNTIME_ROLE, UnsafeRole, "The pass or the owner of its tables is"),
    ):
        with pytest.raises(error, match=said) as refused:
            analysts.grant(admin, slug, role, TODAY)
        assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(UnknownTenant):
        analysts.revoke(admin, "globex", analyst.name)
    assert analysts.revoke(admin, "acme", "nobody_at_all") is False
    with pytest.raises(ConfigurationError, match="DATABASE_ADMIN_URL"):
        analysts.grant(None, "acme", analyst.name, TODAY)
    with pytest.raises(StoreRefused, match="permission denied"):
        analysts.grant(places.memory, "acme", analyst.name, TODAY)
    away = admin.set(query={"host": "/nonexistent"})
    with pytest.raises(DatabaseUnreachable, match="DATABASE_ADMIN_URL"):
        analysts.grant(away, "acme", analyst.name, TODAY)
    assert store.rows("SELECT * FROM analytics.tenant_grants") == []
    assert analyst.refusal("SELECT * FROM analytics.verdicts") == "42501"


def test_an_owner_that_is_no_superuser_migrates_grants_and_revokes(
    store: Store, admin_url: sa.URL, make_analyst: MakeAnalyst
) -> None:
    name = f"owner_{uuid.uuid4().hex[:12]}"
    store.execute(f"CREATE ROLE {name} LOGIN CREATEROLE")
    # As one who made the role has it. The template made it here.
    store.execute(f"GRANT {ANALYST} TO {name} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
    owner, pool = admin_url.set(username=name, database=name), engine(admin_url)
    analyst = make_analyst()
    url = owner.set(username=RUNTIME_ROLE).render_as_string(hide_password=False)
    try:
        migrations.create_database(admin_url, name, owner=name)
        with engine(admin_url.set(database=name)).begin() as connection:
            connection.exec_driver_sql("CREATE EXTENSION vector")
        migrations.upgrade(owner)
        theirs = Store(Database(url=url).connect(), engine(admin_url.set(database=name)))
        acme = theirs.tenant("acme")
        theirs.tenant("globex")
        fill(theirs, acme)
        reading = Analyst(analyst.name, engine(owner.set(username=analyst.name)))
        assert analysts.grant(owner, "acme", analyst.name, TODAY) is True
        for view in VIEWS:
            assert reading.tenants(view) == {"acme"}, view
        # What runs as the owner still sees what it must.
        with theirs.database.tenant(acme) as tx:
            assert tenants.require_every_row(tx, "acme") == 3
            gone = sa.text("SELECT forgetting.forget(NULL, 'session', uuidv7(), now())")
            assert tx.connection.execute(gone).scalar_one() == 1
        assert analysts.revoke(owner, "acme", analyst.name) is True
        assert reading.tenants("verdicts") == set()
        reading.engine.dispose()
        theirs.database.close()
        theirs.owner.dispose()
    finally:
        with pool.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.exec_driver_sql(f"DROP OWNED BY {name} CASCADE")
            connection.exec_driver_sql(f"DROP ROLE {name}")
        pool.dispose()


# What a row is


def one(store: Store, query: str, **parameters: Any) -> dict[str, Any]:
    (row,) = store.rows(query, **parameters)
    return row


def test_a_verdicts_runner_up_is_the_second_likeliest_answer(store: Store) -> None:
    acme = store.tenant("acme")
    id_ = record_verdict(store, acme, store.memory(acme), verdict="archive", proposal="proposed")
    query = (
        "SELECT probability AS p, runner_up_probability AS r, reused, proposal_status AS s "
        "FROM analytics.verdicts"
    )
    for probabilities, runner_up in (
        ({"keep": 0.04, "archive": 0.95, "supersede:n0": 0.01}, 0.04),
        ({"keep": 0.5, "archive": 0.5}, 0.5),
        ({"keep": 1e-9, "archive": 1.0}, 1e-9),
        ({"archive": 1.0}, None),
        ({}, None),
    ):
        store.execute(
            "UPDATE forgetting.judged_verdicts SET probabilities = CAST(:p AS jsonb)",
            p=json.dumps(probabilities),
        )
        expected = {"p": 0.95, "r": runner_up, "reused": False, "s": "proposed"}
        assert one(store, query) == expected
    store.execute("UPDATE forgetting.judged_verdicts SET reused_from = :id", id=id_)
    store.execute("DELETE FROM retention_proposals")
    assert one(store, query) == {"p": 0.95, "r": None, "reused": True, "s": None}


def test_a_proposal_says_how_long_it_waited_and_how_it_ended(store: Store) -> None:
    acme = store.tenant("acme")
    memory = store.memory(acme)
    days = timedelta(days=1)
    open_, dismissed = (
        record_verdict(
            store, acme, memory, verdict="archive", judged_at=TODAY - 4 * days, proposal=status
        )
        for status in ("proposed", "dismissed")
    )

    def said(id_: UUID) -> tuple[Any, ...]:
        row = one(
            store,
            "SELECT status, days_open, last_decision, closed_because, ever_undone "
            "FROM analytics.proposals WHERE id = :id",
            id=id_,
        )
        return tuple(row.values())

    assert said(dismissed) == ("dismissed", None, None, None, False), "it never waited"
    assert said(open_) == ("proposed", None, None, None, False)
    review.accept(store.database, acme, open_, TODAY)
    assert said(open_) == ("applied", Decimal("4.000"), "accept", None, False)
    review.undo(store.database, acme, open_, TODAY)
    assert said(open_) == ("proposed", None, "undo", None, True)
    review.reject(store.database, acme, open_, TODAY + 12 * days / 24)
    assert said(open_) == ("rejected", Decimal("4.500"), "reject", None, True)
    review.undo(store.database, acme, open_, TODAY + days)
    store.execute("UPDATE retention_proposals SET status = 'dismissed' WHERE id = :id", id=open_)
    for reason, later in (("replaced", 1), ("expired", 2)):
        store.execute(
            "INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at) "
            "VALUES (:user_id, :id, :reason, :at)",
            user_id=acme,
            id=open_,
            reason=reason,
            at=TODAY + later * days,
        )
    assert said(open_) == ("dismissed", Decimal("6.000"), "undo", "expired", True)
    assert len(store.rows("SELECT * FROM analytics.proposals")) == 2


def test_an_entry_is_one_row_however_often_it_went_and_came_back(store: Store) -> None:
    acme = store.tenant("acme")
    hot, cold = store.evidence(acme, age=3), store.evidence(acme, age=200, retrieved=150)
    for day in (DAY - timedelta(days=60), DAY):
        Pass(store).sweep(store.partition(day=day))
        if day != DAY:
            assert (
                one(
                    store,
                    "SELECT evidence_id, tier FROM analytics.evidence_tier WHERE tier = 'archived'",
                )["evidence_id"]
                == cold
            )
            store.execute(
                "UPDATE evidence SET archived_at = NULL, archived_run_date = NULL WHERE id = :id",
                id=cold,
            )
    for n in range(2):
        store.execute(
            "INSERT INTO forgetting.revivals (user_id, evidence_id, revived_at, "
            "archived_run_date, reason) "
            "VALUES (:user_id, :id, '2026-07-01', '2026-07-01', 'asked')",
            user_id=acme,
            id=cold,
        )
        store.execute(
            "INSERT INTO forgetting.regrets VALUES (:user_id, :id, :at, :at, 'touch')",
            user_id=acme,
            id=cold,
            at=TODAY + timedelta(days=n),
        )
    found = store.rows("SELECT * FROM analytics.evidence_tier")
    rows = {row["evidence_id"]: row for row in found}
    assert set(rows) == {hot, cold}
    assert len(found) == 2
    figures = ("tier", "times_archived", "times_revived", "regretted")
    assert [rows[cold][name] for name in figures] == ["archived", 2, 2, True]
    assert [rows[hot][name] for name in figures] == ["hot", 0, 0, False]
    retrieved = one(store, "SELECT last_retrieved_at AS at FROM evidence WHERE id = :id", id=cold)
    assert rows[cold]["last_used_at"] == retrieved["at"]
    assert rows[cold]["archived_run_date"] == DAY


def test_a_day_of_spending_ends_at_midnight_in_utc_and_counts_what_has_no_price(
    store: Store, places: Addresses
) -> None:
    for slug in ("acme", "globex"):
        for at, cost in (
            ("2026-08-01 23:59:59+00", "0.25"),
            ("2026-08-02 00:00:00+00", "0.5"),
            ("2026-08-02 10:00:00+00", None),
        ):
            store.execute(
                "INSERT INTO llm_usage (user_id, operation, model, input_tokens, output_tokens, "
                "cost_usd, created_at) VALUES (:id, 'o', 'm', :tokens, 1, :cost, :at)",
                id=store.tenant(slug),
                tokens=None if cost is None else 100,
                cost=cost,
                at=at,
            )
    with store.owner.begin() as connection:
        connection.exec_driver_sql("SET LOCAL timezone = 'Asia/Tokyo'")
        rows = connection.exec_driver_sql(
            "SELECT tenant, day, calls, unpriced_calls, input_tokens, output_tokens, cost_usd "
            "FROM analytics.budget_daily ORDER BY tenant, day"
        ).all()
    assert rows == [
        row
        for slug in ("acme", "globex")
        for row in (
            (slug, date(2026, 8, 1), 1, 0, 100, 1, Decimal("0.25")),
            (slug, date(2026, 8, 2), 2, 1, 100, 2, Decimal("0.5")),
        )
    ]


def test_a_run_is_one_row_whose_counts_do_not_multiply(store: Store) -> None:
    acme = store.tenant("acme")
    for _ in range(4):
        store.memory(acme)
    for _ in range(2):
        store.pair(acme)
        store.evidence(acme, age=90)
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    Pass(store).sweep(store.partition())
    waiting = waiting_of(store, acme)
    review.accept(store.database, acme, waiting[0].id, TODAY)
    review.reject(store.database, acme, waiting[1].id, TODAY)
    # The newest result of a check counts, in whatever order they came.
    for name, results in {"a": "FT", "b": "TF", "c": "FF", "d": "TT", "e": "FT"}.items():
        for minute, result in enumerate(results):
            check(store, acme, name, passed=result == "T", minutes=minute)
    check(store, acme, "b", passed=True, asset="archival_sweep", minutes=5)
    check(store, acme, "a", passed=False, day=DAY - timedelta(days=1))

    items = one(store, "SELECT count(*) AS n FROM forgetting.items")["n"]
    verdicts = store.rows("SELECT verdict, proposal_status AS s FROM analytics.verdicts")
    assert items == len(verdicts) == 6
    kinds = [row["verdict"] for row in verdicts]
    row = one(store, "SELECT * FROM analytics.run_summary WHERE run_date = :day", day=DAY)
    assert row == {
        "tenant": "acme",
        "user_id": acme,
        "run_date": DAY,
        "stale_candidates": one(store, "SELECT count(*) AS n FROM forgetting.stale_candidates")[
            "n"
        ],
        "pairs": 2,
        "items": 6,
        "verdicts": 6,
        "keeps": kinds.count("keep"),
        "archives": kinds.count("archive"),
        "supersedes": 0,
        "conflicts": 0,
        "proposed": len(waiting) - 2,
        "dismissed": 6 - len(waiting),
        "applied": 1,
        "rejected": 1,
        "evidence_archived": 2,
        "failed_checks": 2,
        "first_at": TODAY,
        "last_at": TODAY + timedelta(minutes=5),
    }
    assert kinds.count("archive") >= 4
    other = one(store, "SELECT * FROM analytics.run_summary WHERE run_date < :day", day=DAY)
    assert (other["items"], other["failed_checks"]) == (0, 1)


# What a query costs

MANY = """
INSERT INTO memories (id, user_id, memory_type, topic, content, content_hash)
SELECT md5(u.id::text || n)::uuid, u.id, 'fact', 't', 'c', u.id::text || n
FROM users AS u, generate_series(1, 400) AS n;
INSERT INTO forgetting.judged_verdicts (id, run_date, user_id, kind, memory_id, memory_type,
    verdict, answer_key, probability, probabilities, model, answer_model, input_digest,
    memory_content_hash, memory_freshness, judged_at)
SELECT md5('v' || u.id::text || n)::uuid, date '2026-01-01' + mod(n, 200), u.id, 'single',
    md5(u.id::text || (1 + mod(n, 400)))::uuid, 'fact', 'keep', 'keep', 0.9,
    '{"keep": 0.9, "archive": 0.1}', 'm', 'm', n::text, 'h', now(), now()
FROM users AS u, generate_series(1, 5000) AS n;
INSERT INTO retention_proposals (id, user_id, memory_id, action, probability, probabilities, model,
    status, created_at)
SELECT v.id, v.user_id, v.memory_id, v.verdict, 0.9, '{}', 'm', 'dismissed', now()
FROM forgetting.judged_verdicts AS v;
INSERT INTO forgetting.decisions (user_id, batch_id, proposal_id, decision, memories_changed,
    decided_at)
SELECT p.user_id, p.id, p.id, d, 0, now()
FROM retention_proposals AS p, unnest(ARRAY['reject', 'undo']) AS d;
INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
SELECT p.user_id, p.id, 'expired', now() FROM retention_proposals AS p;
INSERT INTO evidence (id, user_id, session_id, kind, content, occurred_at)
SELECT md5('e' || u.id::text || n)::uuid, u.id, 's', 'trace', 'c', '2026-01-01'
FROM users AS u, generate_series(1, 10000) AS n;
INSERT INTO forgetting.archival_sweep (run_date, user_id, evidence_id, kind, success_count,
    reinforcement_count, content_sha256, due_before, archived_at)
SELECT date '2026-01-01' + mod(n, 100) + d, u.id, md5('e' || u.id::text || n)::uuid, 'trace', 0, 0,
    '', now(), now()
FROM users AS u, generate_series(1, 10000) AS n, unnest(ARRAY[0, 100]) AS d;
INSERT INTO forgetting.revivals (user_id, evidence_id, revived_at, archived_run_date, reason)
SELECT e.user_id, e.id, now(), '2026-01-01', 'asked' FROM evidence AS e;
INSERT INTO forgetting.regrets SELECT e.user_id, e.id, now(), now(), 'touch' FROM evidence AS e;
INSERT INTO forgetting.stale_candidates (run_date, user_id, rank, memory_id, memory_type, freshness,
    in_pair, newer_ids, newer_similarities)
SELECT date '2026-01-01' + d, u.id, n, md5(u.id::text || n)::uuid, 'fact', now(), FALSE, '{}', '{}'
FROM users AS u, generate_series(1, 60) AS n, generate_series(0, 199) AS d;
INSERT INTO forgetting.conflict_pairs (run_date, user_id, rank, older_id, newer_id, memory_type,
    similarity, older_is_stale, floor)
SELECT date '2026-01-01' + d, u.id, n, md5(u.id::text || n)::uuid,
    md5(u.id::text || (n + 100))::uuid, 'fact', 0.9, TRUE, 0.8
FROM users AS u, generate_series(1, 20) AS n, generate_series(0, 199) AS d;
INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed, reasons,
    run_id, checked_at)
SELECT date '2026-01-01' + d, u.id, 'a' || n, 'c', TRUE, '[]', 'r', now()
FROM users AS u, generate_series(1, 8) AS n, generate_series(0, 199) AS d;
INSERT INTO llm_usage (user_id, operation, model, cost_usd, created_at)
SELECT u.id, 'o', 'm', 0.1, timestamptz '2026-01-01' + n * interval '1 hour'
FROM users AS u, generate_series(1, 5000) AS n;
"""


def handled(plan: dict[str, Any]) -> int:
    """How many rows went through all nodes of a plan, what was dropped included."""
    dropped = sum(value for key, value in plan.items() if key.startswith("Rows Removed by"))
    own = round((plan["Actual Rows"] + dropped) * plan["Actual Loops"])
    return own + sum(handled(child) for child in plan.get("Plans", []))


def test_a_view_costs_what_its_rows_cost_and_never_their_square(
    store: Store, make_analyst: MakeAnalyst
) -> None:
    for slug in ("acme", "globex", "initech", "umbrella"):
        store.tenant(slug)
    analyst = make_analyst("acme", "globex")
    with store.owner.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(MANY)
    store.execute("ANALYZE")
    rows = {
        "verdicts": 5000,
        "proposals": 5000,
        "evidence_tier": 10000,
        "budget_daily": 209,
        "run_summary": 200,
    }
    # Of one tenant, in all tables that the view reads.
    read = {
        "verdicts": 10_000,
        "proposals": 25_000,
        "evidence_tier": 50_000,
        "budget_daily": 5_000,
        "run_summary": 60_000,
    }
    for view in VIEWS:
        for where, granted in (("", 2), ("WHERE tenant = 'acme'", 1)):
            query = f"SELECT * FROM analytics.{view} {where}"
            assert len(analyst.rows(query)) == granted * rows[view], query
            explained = analyst.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")[0][0]
            plan = explained[0]["Plan"]
            pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert handled(plan) < 10 * 2 * read[view], query
            assert pages < read[view], query
