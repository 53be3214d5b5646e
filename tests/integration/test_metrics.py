"""Metrics: what the official parser reads of them, from real rows."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forgetting_assets import cli, metrics
from forgetting_assets.metrics import GAUGES, TenantGauge
from forgetting_assets.store import health, monitoring
from resources.addresses import Addresses
from resources.budget import Budget
from resources.clock import Clock
from resources.errors import ConfigurationError
from resources.policy import Policy
from resources.settings import PROJECT
from tests.integration.test_alerts import propose, result, use
from tests.support import DAY, TODAY, Store

Samples = dict[tuple[str, ...], float]
"""Values by the metric's name and the values of its labels."""


def read(store: Store, *, per_tenant: bool = False) -> Samples:
    """What a collector reads at TODAY."""
    clock = Clock(fixed=TODAY.isoformat())
    budget = Budget(database=store.database, clock=clock)
    deployment = metrics.read(store.database, budget, Policy(), TODAY)
    return parsed(metrics.text(metrics.registry(deployment, per_tenant=per_tenant)))


def parsed(text: str) -> Samples:
    """The samples of a text, each of which must have a kind and a meaning."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            tenant = [sample.labels.pop("tenant")] if "tenant" in sample.labels else []
            key = (sample.name, *tenant, *sample.labels.values())
            assert key not in found, "no sample is there twice"
            found[key] = sample.value
    return found


def furnish(store: Store) -> tuple[UUID, UUID]:
    """Two tenants that differ in everything that is counted, and one that is retired."""
    acme, globex = store.tenant("acme"), store.tenant("globex", judgment=False)
    store.tenant("gone")
    store.retire("gone")
    for days in (3, 10):
        propose(store, acme, days=days)
    propose(store, globex, days=5)
    use(store, acme, 0.25)
    use(store, acme, 0.5, days=40)
    use(store, globex, 0.125)
    store.execute("UPDATE llm_usage SET cost_usd = NULL WHERE cost_usd = 0.125")
    store.execute("INSERT INTO forgetting.deployment_spend VALUES (:d, 0.375)", d=TODAY.date())
    result(store, acme, passed=False, hours=-30)
    result(store, acme, passed=False, hours=-1, check="blast_radius")
    result(store, acme, passed=True, hours=-0.5, check="blast_radius")
    store.evidence(acme)
    store.evidence(globex, kind="lesson")
    health.record(store.database, store.partition("acme"), Policy(), TODAY)
    older = store.partition("globex", DAY - timedelta(days=4))
    health.record(store.database, older, Policy(), TODAY)
    return acme, globex


def test_totals_are_sums_and_of_times_the_earliest(store: Store) -> None:
    furnish(store)
    found = read(store)
    assert found[("forgetting_tenants", "active")] == 2
    assert found[("forgetting_tenants", "judgment")] == 1
    assert found[("forgetting_tenants", "retired")] == 1
    assert found[("forgetting_open_proposals",)] == 3
    oldest = TODAY - timedelta(days=10)
    assert found[("forgetting_oldest_open_proposal_timestamp_seconds",)] == oldest.timestamp()
    behind = monitoring.end_of(DAY - timedelta(days=4))
    assert found[("forgetting_passed_until_timestamp_seconds",)] == behind.timestamp()
    assert found[("forgetting_overdue_tenants",)] == 1
    # An unpriced call counts at its ceiling, and what left the window does not count.
    assert found[("forgetting_spend_usd",)] == pytest.approx(0.26)
    assert found[("forgetting_budget_usd",)] == 20
    assert found[("forgetting_deployment_spend_usd",)] == 0.375
    assert found[("forgetting_judge_calls",)] == 2
    assert found[("forgetting_unpriced_calls",)] == 1
    assert found[("forgetting_failed_checks", "zero_episodic_collapse")] == 1
    assert found[("forgetting_failed_checks_last_day", "zero_episodic_collapse")] == 0
    assert found[("forgetting_failed_checks", "blast_radius")] == 0
    assert found[("forgetting_failed_checks_last_day", "blast_radius")] == 1
    assert found[("forgetting_memories", "live")] == 3
    assert found[("forgetting_evidence", "hot")] == 2
    assert found[("forgetting_idle_evidence",)] == 1


def test_with_tenants_as_labels_each_has_its_own_and_they_add_up(store: Store) -> None:
    furnish(store)
    totals, found = read(store), read(store, per_tenant=True)
    assert {key[1] for key in found if key[0] == "forgetting_open_proposals"} == {"acme", "globex"}
    for gauge in GAUGES:
        if not isinstance(gauge, TenantGauge):
            continue
        apart: dict[tuple[str, ...], list[float]] = {}
        for (name, _tenant, *rest), value in (
            (key, value) for key, value in found.items() if key[0] == gauge.name
        ):
            apart.setdefault((name, *rest), []).append(value)
        assert {key: gauge.total(values) for key, values in apart.items()} == {
            key: value for key, value in totals.items() if key[0] == gauge.name
        }


def test_the_number_of_series_of_totals_does_not_grow_with_the_tenants(store: Store) -> None:
    furnish(store)
    before = read(store)
    for n in range(20):
        store.tenant(f"t{n}")
    assert set(read(store)) == set(before)


def test_an_empty_deployment_has_figures_too(store: Store) -> None:
    found = read(store)
    assert found[("forgetting_tenants", "active")] == 0
    assert found[("forgetting_deployment_budget_usd",)] == 100


def test_a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it(
    store: Store, tmp_path: Path
) -> None:
    furnish(store)
    clock = Clock(fixed=TODAY.isoformat())
    budget = Budget(database=store.database, clock=clock)
    made = metrics.registry(metrics.read(store.database, budget, Policy(), TODAY), per_tenant=False)
    path = tmp_path / "forgetting.prom"
    path.write_text("old")
    before = path.stat().st_ino
    metrics.write(made, path)
    assert path.stat().st_ino != before, "renamed over it, not written into it"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert parsed(path.read_text()) == read(store)
    with pytest.raises(ConfigurationError, match=r"nowhere/x\.prom cannot be written"):
        metrics.write(made, tmp_path / "nowhere" / "x.prom")


def test_the_command_prints_what_it_writes_to_a_file(
    store: Store,
    places: Addresses,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    furnish(store)
    monkeypatch.setenv("DATABASE_URL", places.memory.render_as_string(hide_password=False))

    def forgetting(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["forgetting", "metrics", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        return capfd.readouterr().out

    printed = parsed(forgetting())
    path = tmp_path / "forgetting.prom"
    assert forgetting("--to", str(path)) == ""
    written = parsed(path.read_text())
    assert set(written) == set(printed) == set(read(store))
    assert ("forgetting_open_proposals", "acme") in parsed(forgetting("--per-tenant"))


def test_without_the_extra_one_sentence_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.require_library()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'forgetting-assets\[metrics\]'"):
        metrics.require_library()


def test_the_page_lists_each_metric_with_its_label_unit_and_meaning() -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (forgetting_\w+) \| (\w+) \| (\w*) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE
    )
    units = {"timestamp_seconds": "Unix time, seconds", "usd": "US dollars"}
    assert [tuple(row) for row in rows] == [
        (
            gauge.name,
            "tenant" if isinstance(gauge, TenantGauge) else "deployment",
            gauge.label or "",
            next((unit for end, unit in units.items() if gauge.name.endswith(end)), "count"),
            gauge.meaning,
        )
        for gauge in GAUGES
    ]
    everywhere = (PROJECT / "docs" / "monitoring.md").read_text(encoding="utf-8") + page
    named = set(re.findall(r"\bforgetting_[a-z_]+", everywhere))
    assert named - {"forgetting_assets"} <= {gauge.name for gauge in GAUGES}
