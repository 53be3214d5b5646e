"""Storing the demo's records in a database that holds nothing else, and marking it as a demo."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, time, timedelta

import sqlalchemy as sa

import sql
from forgetting_assets import importing
from forgetting_assets.demo.generate import DemoTenant, demo_tenants
from forgetting_assets.demo.text_hash import EMBEDDING_MODEL
from forgetting_assets.store import tenants
from resources.database import Database, bind, engine
from resources.errors import ConfigurationError

EVIDENCE = sql.load("evidence")


def seed(database: Database, admin: sa.URL, now: datetime) -> list[str]:
    """Seed the invented tenants, with yesterday as their last day, and return their slugs.

    Tenants that are there already are left as they are, so a second call changes nothing. Raises
    ConfigurationError when the database has a tenant that is not the demo's.
    """
    reference = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    invented = demo_tenants(reference)
    slugs = [tenant.slug for tenant in invented]
    present = {tenant.slug for tenant in tenants.all_tenants(database)}
    if strangers := present - set(slugs):
        raise ConfigurationError(
            f"Not all of the database's tenants are the demo's ({len(strangers)} are not), so the "
            "demo stays out of it: unset DATABASE_URL, or set FORGETTING_HOME to an empty folder."
        )
    _mark(admin)
    for tenant in invented:
        if tenant.slug not in present:
            _store(database, tenant, now)
    return slugs


def _mark(admin: sa.URL) -> None:
    pool = engine(admin)
    with pool.begin() as connection:
        connection.execute(sa.text("UPDATE forgetting.deployment SET demo = TRUE WHERE NOT demo"))
    pool.dispose()


def _store(database: Database, tenant: DemoTenant, now: datetime) -> None:
    with database.registry() as connection:
        tx = bind(connection, tenants.add(connection, tenant.slug), exclusive=True)
        records = [
            importing.MemoryRecord(
                id=memory.id,
                memory_type=memory.memory_type,
                scope=memory.scope,
                project=memory.project,
                topic=memory.topic,
                content=memory.content,
                created_at=memory.created_at,
                updated_at=memory.updated_at,
                tags=list(memory.tags),
                embedding=list(memory.embedding),
                embedding_model=EMBEDDING_MODEL,
            )
            for memory in tenant.memories
        ]
        importing.insert(tx, records, actor="demo", now=now)
        entries = json.dumps([asdict(entry) for entry in tenant.evidence], default=str)
        tx.run(EVIDENCE["insert_evidence"], rows=entries)
        citations = [
            {"memory_id": memory.id, "evidence_id": entry}
            for memory in tenant.memories
            for entry in memory.cites
        ]
        tx.run(EVIDENCE["insert_citations"], rows=json.dumps(citations, default=str))
        tenants.set_consent(
            connection,
            tenant.slug,
            judgment=tenant.judgment_enabled,
            archival=tenant.archival_enabled,
            # Invented evidence comes with its uses.
            tracked_since=now - timedelta(days=365),
        )
