"""docs/analytics.md: each query of the page runs as an analyst on the demo, and answers as it says.

UPDATE_DOCS=1 writes the answers anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from forgetting_assets import review
from forgetting_assets.store import analysts, tenants
from resources import migrations
from resources.addresses import Addresses
from resources.database import engine
from resources.settings import PROJECT
from tests.support import Store, waiting_of

FORGETTING = Path(sys.executable).with_name("forgetting")
PAGE = PROJECT / "docs" / "analytics.md"
GRANTED = ("harbor-logistics", "juniper-clinic")
QUESTION = re.compile(
    r"^### (?P<question>[^\n]+\?)\n(?P<why>.*?)^```sql\n(?P<query>.*?)^```\n"
    r"(?:\n```text\n(?P<answer>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def analyst(places: Addresses, store: Store, tmp_path: Path) -> Iterator[sa.Engine]:
    """A login that may read two of the demo's tenants, some of whose proposals are decided."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    subprocess.run(
        [FORGETTING, "demo"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "FORGETTING_HOME": str(tmp_path / "forgetting"),
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
            "DATABASE_ADMIN_URL": places.admin.render_as_string(hide_password=False),
        },
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=300,
    )
    for slug in GRANTED:
        decide_some(store, slug)
    login = f"analyst_{uuid.uuid4().hex[:12]}"
    store.execute(f"CREATE ROLE {login} LOGIN")
    for slug in GRANTED:
        analysts.grant(places.admin, slug, login, datetime.now(UTC))
    pool = engine(places.memory.set(username=login))
    yield pool
    pool.dispose()
    store.execute(f"DROP OWNED BY {login}")
    store.execute(f"DROP ROLE {login}")


def decide_some(store: Store, slug: str) -> None:
    """Of each action the first proposal is accepted and the second rejected; one no is undone."""
    user_id, now = tenants.find(store.database, slug).user_id, datetime.now(UTC)
    waiting: dict[str, list[UUID]] = defaultdict(list)
    for row in waiting_of(store, user_id):
        waiting[row.action].append(row.id)
    assert len(waiting) == 3
    for accepted, rejected, *_ in waiting.values():
        review.accept(store.database, user_id, accepted, now)
        review.reject(store.database, user_id, rejected, now)
    review.undo(store.database, user_id, waiting["archive"][1], now)


def test_each_query_of_the_page_answers_an_analyst_on_the_demo_as_it_says(
    analyst: sa.Engine,
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    questions = list(QUESTION.finditer(page))
    assert len(questions) == page.count("```sql") == page.count("\n### ") == 10
    written = page
    for each in questions:
        with analyst.begin() as connection:
            found = connection.exec_driver_sql(each["query"])
            columns, rows = list(found.keys()), found.all()
        assert rows, each["question"]
        if "tenant" in columns:
            assert {row.tenant for row in rows} <= set(GRANTED), each["question"]
        timed = any(isinstance(value, date | timedelta | UUID) for row in rows for value in row)
        assert timed == (each["answer"] is None), f"{each['question']} shows its answer or has days"
        if each["answer"] is not None:
            block = each[0].replace(
                f"```text\n{each['answer']}", f"```text\n{table(columns, rows)}"
            )
            written = written.replace(each[0], block)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written, "write the answers anew with UPDATE_DOCS=1"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as psql would show them, without the spaces at the ends of lines."""
    cells = [list(columns), *(["" if v is None else str(v) for v in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [isinstance(value, str) for value in rows[0]]
    lines = [
        " | ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(line, widths, words, strict=True)
        )
        for line in cells
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "".join(f"{line.rstrip()}\n" for line in lines)
