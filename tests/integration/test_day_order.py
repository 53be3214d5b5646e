"""A day that runs after later days of its tenant: what a repeated part of a backfill is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

import pytest

from tests.support import DAY, Pass, Store

DAYS = [DAY - timedelta(days=n) for n in reversed(range(5))]
REPEATED = [*DAYS[:1], *DAYS[2:], DAYS[1]]


@pytest.mark.parametrize("order", [DAYS, REPEATED, DAYS[::-1]], ids=["in order", "repeat", "back"])
def test_in_whatever_order_days_run_every_item_is_judged_once_and_no_day_undoes_another(
    store: Store, order: Sequence[date]
) -> None:
    user_id = store.tenant()
    for n in range(len(DAYS)):
        store.memory(user_id, age=30.5 + n)  # becomes stale on the n-th day before the last
        store.pair(user_id, older_age=30.5 + n)
    night = Pass(store)
    for day in order:
        night.run(store.partition(day=day))

    judged = store.rows("SELECT memory_id, newer_id FROM forgetting.judged_verdicts")
    items = {(row["memory_id"], row["newer_id"]) for row in judged}
    assert len(items) == len(judged)
    memories = {row["id"] for row in store.rows("SELECT id FROM memories")}
    assert {each for item in items for each in item} - {None} == memories
    tables = ("forgetting.judged_verdicts", "retention_proposals")
    before, calls = store.dump(*tables), len(night.judge.states)
    for day in order:
        night.run(store.partition(day=day))
    assert store.dump(*tables) == before
    assert len(night.judge.states) == calls, "and running all of them again pays for nothing"
