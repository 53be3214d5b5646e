"""Drift: the deployment's own precision from real decisions, and regret from real uses."""

from __future__ import annotations

from datetime import date, timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval import drift
from forgetting_assets import review
from forgetting_assets.store import evidence
from tests.support import TODAY, Pass, Store, make_policy, record_verdict

FIRST_DAY = date(2026, 1, 1)


def proposal(
    store: Store, user_id: UUID, action: str = "archive", memory_type: str = "fact"
) -> UUID:
    """An open proposal."""
    memory = store.memory(user_id, memory_type=memory_type)
    related = None
    if action != "archive":
        related = store.memory(user_id, memory_type=memory_type, age=5)
    id_ = record_verdict(
        store, user_id, memory, verdict=action, related=related, proposal="proposed"
    )
    # What the judge saw of the newer side, which accepting looks at.
    store.execute(
        """
        UPDATE forgetting.judged_verdicts AS v
        SET related_content_hash = m.content_hash, related_freshness = m.updated_at
        FROM memories AS m WHERE m.id = v.related_memory_id AND v.id = :id
        """,
        id=id_,
    )
    return id_


def decide(store: Store, user_id: UUID, id_: UUID, *verbs: str) -> None:
    """Decide a proposal, verb after verb."""
    for n, verb in enumerate(verbs):
        now = TODAY + timedelta(minutes=n)
        {"accept": review.accept, "reject": review.reject, "undo": review.undo}[verb](
            store.database, user_id, id_, now
        )


def measured(store: Store, *user_ids: UUID) -> dict[tuple[str, str | None], drift.DriftRow]:
    rows = drift.measure(store.database, user_ids, TODAY + timedelta(days=1))
    assert len({(row.action, row.memory_type) for row in rows}) == len(rows)
    return {(row.action, row.memory_type): row for row in rows}


def test_an_empty_deployment_has_no_precision_rather_than_a_perfect_one(store: Store) -> None:
    acme = store.tenant()
    proposal(store, acme)  # nobody decided it
    for user_ids in ([], [acme]):
        rows = measured(store, *user_ids)
        assert set(rows) == {("archive", None), ("supersede", None), ("conflict", None)}
        for row in rows.values():
            assert (row.accepted, row.rejected, row.undone) == (0, 0, 0)
            assert row.precision is row.lower is None
            assert not row.below
    assert drift.regrets(store.database, [acme], FIRST_DAY, TODAY) == []
    assert "100" not in drift.text(list(measured(store, acme).values()), [])


def test_decisions_are_counted_by_action_and_type_and_over_all_types(store: Store) -> None:
    acme = store.tenant()
    for memory_type, verbs in (
        ("fact", ["accept"]),
        ("fact", ["accept"]),
        ("fact", ["reject"]),
        ("decision", ["accept"]),
    ):
        decide(store, acme, proposal(store, acme, memory_type=memory_type), *verbs)
    decide(store, acme, proposal(store, acme, "supersede"), "reject")
    decide(store, acme, proposal(store, acme, "conflict"), "accept")
    rows = measured(store, acme)
    assert {key: (row.accepted, row.rejected, row.precision) for key, row in rows.items()} == {
        ("archive", None): (3, 1, 0.75),
        ("archive", "decision"): (1, 0, 1.0),
        ("archive", "fact"): (2, 1, 2 / 3),
        ("supersede", None): (0, 1, 0.0),
        ("supersede", "fact"): (0, 1, 0.0),
        ("conflict", None): (1, 0, 1.0),
        ("conflict", "fact"): (1, 0, 1.0),
    }
    assert rows["archive", None].lower == pytest.approx(0.2486, abs=1e-4)
    assert rows["archive", None].below
    assert rows["supersede", None].lower == 0.0


@pytest.mark.parametrize(
    ("verbs", "counts"),
    [
        (["accept"], (1, 0, 0)),
        (["reject"], (0, 1, 0)),
        (["accept", "undo"], (0, 0, 1)),
        (["reject", "undo"], (0, 0, 1)),
        (["accept", "undo", "reject"], (0, 1, 0)),
        (["reject", "undo", "accept"], (1, 0, 0)),
        (["accept", "undo", "accept", "undo"], (0, 0, 1)),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_the_last_decision_that_stands_counts_and_an_undone_one_says_neither(
    store: Store, verbs: list[str], counts: tuple[int, int, int]
) -> None:
    acme = store.tenant()
    decide(store, acme, proposal(store, acme), *verbs)
    row = measured(store, acme)["archive", None]
    assert (row.accepted, row.rejected, row.undone) == counts
    assert (row.precision is None) == (counts[2] == 1)


def test_decisions_after_the_present_are_not_seen(store: Store) -> None:
    acme = store.tenant()
    decide(store, acme, proposal(store, acme), "accept", "undo")
    at = drift.measure(store.database, [acme], TODAY)
    assert [row.accepted for row in at if row.memory_type is None] == [1, 0, 0]
    assert [row.undone for row in at if row.memory_type is None] == [0, 0, 0]


def test_br_42_tenants_are_read_one_by_one_and_only_those_named(store: Store) -> None:
    acme, bolt, other = (store.tenant(slug) for slug in ("acme", "bolt", "other"))
    for user_id, verb in ((acme, "accept"), (bolt, "accept"), (bolt, "reject"), (other, "reject")):
        decide(store, user_id, proposal(store, user_id), verb)
    assert measured(store, acme)["archive", None].precision == 1.0
    both = measured(store, acme, bolt)["archive", None]
    assert (both.accepted, both.rejected) == (2, 1)


OUTCOME = st.sampled_from((("accept",), ("reject",), ("accept", "undo")))
DECISIONS = st.lists(
    st.tuples(
        st.sampled_from(("archive", "conflict")), st.sampled_from(("fact", "decision")), OUTCOME
    ),
    max_size=8,
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(DECISIONS)
def test_the_types_add_up_to_the_whole_and_the_bound_is_below_the_precision(
    store: Store, decisions: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    tenant = store.tenant(f"t{store.rows('SELECT count(*) AS n FROM tenants')[0]['n']}")
    for action, memory_type, verbs in decisions:
        decide(store, tenant, proposal(store, tenant, action, memory_type), *verbs)
    rows = measured(store, tenant)
    for action in drift.BARS:
        whole = rows[action, None]
        parts = [row for (a, kind), row in rows.items() if a == action and kind]
        for name in ("accepted", "rejected", "undone"):
            assert sum(getattr(row, name) for row in parts) == getattr(whole, name)
        if whole.precision is not None and whole.lower is not None:
            assert 0 <= whole.lower <= whole.precision <= 1
    assert sum(rows[a, None].accepted for a in drift.BARS) == sum(
        verbs[-1] == "accept" for _, _, verbs in decisions
    )


def test_regret_is_of_what_is_old_enough_and_summed_over_tenants(store: Store) -> None:
    tenants = [store.tenant(slug) for slug in ("acme", "bolt")]
    for user_id, slug in zip(tenants, ("acme", "bolt"), strict=True):
        used = store.evidence(user_id)
        for _ in range(3):
            store.evidence(user_id)
        store.evidence(user_id, kind="log")
        night = Pass(store, policy=make_policy())
        assert night.sweep(store.partition(slug)).archived == 5
        evidence.dereference(store.database, user_id, used, TODAY + timedelta(days=2))
    early, late = (
        {
            row.kind: row
            for row in drift.regrets(store.database, tenants, FIRST_DAY, TODAY + timedelta(days=n))
        }
        for n in (3, 20)
    )
    trace = early["trace"]
    assert (trace.archived, trace.regretted, trace.recent, trace.rate) == (8, 2, 6, 0.25)
    assert 0.25 < trace.upper < 1
    assert (early["log"].recent, early["log"].rate) == (2, 0.0)
    assert [row.recent for row in late.values()] == [0, 0]
    assert [row.rate for row in late.values()] == [0.0, 0.25]


def test_the_report_fits_100_columns_and_flags_what_is_below_its_bar(store: Store) -> None:
    acme = store.tenant()
    decide(store, acme, proposal(store, acme, memory_type="preference"), "reject")
    rows = drift.measure(store.database, [acme], TODAY)
    text = drift.text(rows, [drift.RegretRow("step_outcome", 10, 1, 2, 0.125, 0.47)])
    assert max(map(len, text.splitlines())) <= 100
    (line,) = (each for each in text.splitlines() if "preference" in each)
    assert line.split() == [
        "archive",
        "preference",
        "0",
        "1",
        "0",
        "0.000",
        "0.000",
        "0.95",
        "below",
    ]
    assert "step_outcome" in text
