"""A tenant that went through everything: rows in every table that holds a tenant's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import sqlalchemy as sa

from forgetting_assets import review
from forgetting_assets.records import EvidenceRecord
from forgetting_assets.store import evidence, health, tenant_rows, tier
from tests.support import (
    DAY,
    TODAY,
    Pass,
    Store,
    TestJudge,
    ago,
    by_topic,
    make_policy,
    record_consolidation,
    record_edge,
    say,
    vector,
)

ODD = 'quote " backslash \\ newline \n tab \t nul-like \\u0000 emoji 🪶 separator \u2028 $1 %s :x'
"""Text that a careless writer of JSON, SQL or lines would change."""


@dataclass(frozen=True)
class Life:
    """What a test needs of the tenant that lived it."""

    user_id: UUID
    slug: str


def furnish(store: Store, slug: str, text: str = ODD) -> UUID:
    """Memories of each fate and evidence of each kind of use, before any pass; the tenant's id."""
    user = store.tenant(slug)
    for number in range(3):
        store.memory(user, f"{text} archive {number}", topic="archive", age=60 + number)
    store.memory(user, f"{text} old", topic="supersede", age=90, embedding=vector(0, 750))
    store.memory(user, f"{text} near", topic="supersede", age=5, embedding=vector(20, 750))
    store.memory(user, f"{text} large", topic="`" * 70_000, age=99)
    for name in ("one", "other"):
        older, newer = store.pair(user, topic=f"supersede {text} {name}", project=text)
        for side, id_ in (("older", older), ("newer", newer)):
            store.execute(
                "UPDATE memories SET content = :c, content_hash = CAST(:i AS text) WHERE id = :i",
                c=f"{text} {name} {side}",
                i=id_,
            )
    event = store.memory(user, f"{text} event", memory_type="event", embedding=None)
    for kind, age in (("trace", 90), ("log", 80), ("tool_output", 70), ("trace", 1)):
        store.evidence(user, kind=kind, content=f"{text} {kind}", age=age, recorded_at=ago(age))
    cited = store.evidence(user, kind="observation", content=text, age=None)
    with store.database.tenant(user) as tx:
        tx.run(
            sa.text("INSERT INTO memory_evidence VALUES (:user_id, :memory, :evidence)"),
            memory=event,
            evidence=cited,
        )
    record_edge(store, user, older, newer, "extends")
    record_consolidation(store, user, newer, older)
    return user


def live(store: Store, slug: str = "acme", text: str = ODD) -> Life:
    """The whole life of a tenant, without Dagster: it ends with a row in every table."""
    user = furnish(store, slug, text)
    judge = TestJudge.that(by_topic({"archive": say("archive")}, otherwise=say("supersede_older")))
    policy = make_policy(shadow=True, blast_radius=1.0)
    work = Pass(store, judge, policy)
    work.run(store.partition(slug))
    grow_old(store, user, slug, text)
    return Life(user, slug)


def grow_old(store: Store, user: UUID, slug: str, text: str = ODD) -> None:
    """What people and agents do after a pass that proposed something: decide, undo, use, forget."""
    database, partition, policy = store.database, store.partition(slug), make_policy()
    waiting = review.list_open(database, user, review.Filters(), TODAY).rows
    assert len(waiting) >= 4, "there has to be something to decide"
    accepted, undone, rejected, expiring, *_ = (row.id for row in waiting)
    batch = uuid4()
    review.accept(database, user, accepted, TODAY, batch)
    review.accept(database, user, undone, TODAY, batch)
    review.undo(database, user, undone, TODAY)
    review.reject(database, user, rejected, TODAY, uuid4())
    assert tier.sweep(database, partition, policy, TODAY).archived == 3
    archived = [
        row["id"]
        for row in store.rows(
            "SELECT id FROM evidence WHERE archived_at IS NOT NULL AND user_id = :u ORDER BY id",
            u=user,
        )
    ]
    evidence.dereference(database, user, archived[0], TODAY + timedelta(days=1))
    tier.unarchive(database, user, archived[:1], TODAY + timedelta(days=2))
    [lesson] = evidence.record(
        database,
        user,
        [
            EvidenceRecord(
                session_id=text,
                kind="lesson",
                content=text,
                occurred_at=ago(3),
                embedding=[0.1] * 1536,
                embedding_model="test-embedding",
            )
        ],
        TODAY,
        limit=10_000,
    )
    evidence.credit(database, user, [lesson], "success", TODAY)
    gone = EvidenceRecord(session_id="gone", kind="trace", content=text, occurred_at=ago(3))
    evidence.record(database, user, [gone], TODAY, limit=10_000)
    evidence.forget(database, user, TODAY, session_id="gone")
    health.record(database, partition, policy, TODAY)
    store.execute(
        """
        UPDATE memories SET tags = '[{"deep": null}, 1e400, "x"]' WHERE user_id = :u
            AND topic = 'archive';
        UPDATE memories SET tags = 'null' WHERE user_id = :u AND memory_type = 'event';
        INSERT INTO user_budgets VALUES (:u, 0.000000000001, '-infinity', NULL);
        INSERT INTO budget_reservations (user_id, estimated_cost_usd) VALUES (:u, 12345678.9);
        INSERT INTO forgetting.calls_under_way VALUES (:u, uuidv7(), :text, :text, :now);
        INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
        VALUES (:u, :closed, 'expired', :now);
        INSERT INTO forgetting.partition_failures
        VALUES (:day, :u, 'judged_verdicts', 'judged_verdicts', :text, 'run', :now);
        INSERT INTO analytics.tenant_grants VALUES ('forgetting_analyst', :u, :now);
        INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed,
            reasons, run_id, checked_at)
        VALUES (:day, :u, 'retention_proposals', 'zero_episodic_collapse', TRUE, '[]', 'run', :now);
        """,
        u=user,
        text=text,
        closed=expiring,
        now=TODAY,
        day=DAY,
    )
    with store.owner.begin() as connection:
        found = tenant_rows.count(connection, tenant_rows.tables(connection), user)
    assert [name for name, rows in found.items() if not rows] == [], "a table was not furnished"
