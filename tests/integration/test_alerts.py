"""Alerts from rows to a message: real tenants, real sensors and a real webhook that may fail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import dagster as dg
import pytest
import sqlalchemy as sa

from forgetting_assets import alerts
from forgetting_assets.definitions import build_defs
from forgetting_assets.store import failures, health, invariant, monitoring
from forgetting_assets.store.failures import Failure
from resources.budget import Budget
from resources.clock import Clock
from resources.errors import AlertNotDelivered, ConfigurationError, InvariantViolated
from resources.flag import Flag
from resources.policy import Policy
from tests.http_server import Reply, ScriptedServer
from tests.support import DAY, TODAY, Pass, Store, ago, record_verdict

# Dagster's own use of its own deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run")

MARKER = "Ottoline keeps the violet ledger"
VARIABLE = "FORGETTING_ALERT_WEBHOOK"
ONE_DAY = timedelta(days=1)
SECRET = "/services/T0/very-secret"


@dataclass
class Watch:
    """Sensors of one deployment, each with the cursor that its last good tick left."""

    store: Store
    flag: Flag
    policy: Policy

    def __post_init__(self) -> None:
        self.cursors: dict[str, str | None] = {}

    def tick(self, name: str, days: float = 0) -> str:
        """One tick of a sensor, so many days after TODAY; what the UI shows of it."""
        clock = Clock(fixed=(TODAY + days * ONE_DAY).isoformat())
        database = self.store.database
        repository = build_defs().get_repository_def()
        resources = {
            "database": database,
            "clock": clock,
            "budget": Budget(database=database, clock=clock, deployment_cap_usd=1.0),
            "policy": self.policy,
            "flag": self.flag,
        }
        with dg.build_sensor_context(
            instance=dg.DagsterInstance.ephemeral(),
            cursor=self.cursors.get(name),
            repository_def=repository,
            resources=resources,
        ) as context:
            data = repository.get_sensor_def(name).evaluate_tick(context)
        self.cursors[name] = data.cursor
        assert not data.run_requests
        return str(data.skip_message)


@pytest.fixture
def watch(store: Store) -> Watch:
    return Watch(store, Flag(pass_enabled=True), Policy(open_proposals=3))


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        monkeypatch.setenv(VARIABLE, server.url + SECRET)
        yield server


def posted(webhook: ScriptedServer) -> list[dict[str, Any]]:
    """The messages that arrived since the last look."""
    bodies = [json.loads(request.body) for request in webhook.requests]
    assert all(request.path == SECRET for request in webhook.requests)
    webhook.requests.clear()
    return bodies


def result(
    store: Store,
    user_id: UUID,
    *,
    passed: bool,
    day: date = DAY,
    check: str = "zero_episodic_collapse",
    asset: str = "retention_proposals",
    hours: float = 0,
) -> None:
    """A check's result, so many hours after TODAY."""
    store.execute(
        """
        INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed,
            reasons, run_id, checked_at)
        VALUES (:day, :user_id, :asset, :check, :passed, '[]', 'run', :at)
        """,
        day=day,
        user_id=user_id,
        asset=asset,
        check=check,
        passed=passed,
        at=TODAY + timedelta(hours=hours),
    )


def use(store: Store, user_id: UUID, usd: float, days: float = 0) -> None:
    """What a call cost, so many days before TODAY."""
    store.execute(
        "INSERT INTO llm_usage (user_id, operation, model, cost_usd, created_at) "
        "VALUES (:user_id, 'memory.forget.decide', 'm', :usd, :at)",
        user_id=user_id,
        usd=usd,
        at=TODAY - days * ONE_DAY,
    )


def propose(store: Store, user_id: UUID, *, days: float = 1) -> UUID:
    """A memory of a marked text with an open proposal, so many days old."""
    memory = store.memory(user_id, MARKER + str(days), topic=MARKER)
    return record_verdict(
        store,
        user_id,
        memory,
        verdict="archive",
        proposal="proposed",
        judged_at=TODAY - days * ONE_DAY,
    )


# --- what each of them sees -----------------------------------------------------------------------


def test_a_failed_check_is_told_once_and_its_mending_once(
    watch: Watch, store: Store, webhook: ScriptedServer
) -> None:
    acme, globex = store.tenant("acme"), store.tenant("globex")
    result(store, globex, passed=True)
    result(store, acme, passed=False, check="every_item_is_judged")
    assert watch.tick("alert_failed_check") == "Nothing to report."
    result(store, acme, passed=False)
    # Another tenant's pass, another day's and another asset's hide nothing.
    result(store, globex, passed=True, hours=1)
    result(store, acme, passed=True, day=DAY - ONE_DAY, hours=1)
    result(store, acme, passed=True, asset="archival_sweep", hours=1)
    for _ in range(3):
        assert "acme: the check zero_episodic_collapse fails" in watch.tick("alert_failed_check")
    (body,) = posted(webhook)
    assert body["alert"] == "alert_failed_check"
    assert body["begun"][0]["tenant"] == "acme"
    assert body["begun"][0]["figures"] == {"failed": 1}
    result(store, acme, passed=True, hours=2)
    assert watch.tick("alert_failed_check") == "Nothing to report."
    (body,) = posted(webhook)
    assert body["ended"] == [{"tenant": "acme", "what": "zero_episodic_collapse"}]


def test_a_failed_check_stays_open_however_old_it_is(watch: Watch, store: Store) -> None:
    result(store, store.tenant("acme"), passed=False)
    assert "acme" in watch.tick("alert_failed_check", days=400)


def test_a_step_that_failed_is_told_of_until_it_succeeds(
    watch: Watch, store: Store, webhook: ScriptedServer
) -> None:
    store.tenant("globex")
    store.tenant("acme")
    partition = store.partition("acme")
    failure = Failure("archival_sweep", "archival_sweep", "A reason.", "run", TODAY)
    failures.record(store.database, partition, failure)
    for _ in range(2):
        said = watch.tick("alert_failed_partition")
        assert said.startswith("acme: 1 step failed and has not succeeded, last on")
    (body,) = posted(webhook)
    assert body["begun"][0]["figures"] == {"failed_steps": 1, "newest_day": str(DAY)}
    failures.clear(store.database, partition, "archival_sweep", "another")
    assert watch.tick("alert_failed_partition") == "Nothing to report."


def test_a_budget_is_told_of_at_90_percent_and_again_when_it_is_spent(
    watch: Watch, store: Store, webhook: ScriptedServer
) -> None:
    acme = store.tenant("acme")
    store.execute("INSERT INTO user_budgets (user_id, cap_usd_override) VALUES (:u, 1)", u=acme)
    use(store, acme, 0.5)
    use(store, acme, 0.35, days=29)
    assert watch.tick("alert_spent_budget") == "Nothing to report."
    use(store, acme, 0.10)
    watch.tick("alert_spent_budget")
    use(store, acme, 0.05)
    watch.tick("alert_spent_budget")
    assert [body["begun"][0]["figures"]["percent"] for body in posted(webhook)] == [90, 100]
    # Three days later 0.35 of it left the window.
    assert watch.tick("alert_spent_budget", days=3) == "Nothing to report."
    assert posted(webhook)[0]["ended"] == [{"tenant": "acme", "what": "budget"}]


def test_the_deployments_budget_is_told_of_without_any_tenant(watch: Watch, store: Store) -> None:
    store.execute("INSERT INTO forgetting.deployment_spend VALUES (:day, 0.95)", day=TODAY.date())
    said = watch.tick("alert_spent_budget")
    assert said.startswith("All tenants together: 0.95 of 1.00 US dollars")


def test_a_queue_is_told_of_as_it_grows_and_with_its_oldest_in_its_last_week(
    watch: Watch, store: Store, webhook: ScriptedServer
) -> None:
    acme = store.tenant("acme")
    for days in (1, 2):
        propose(store, acme, days=days)
    assert watch.tick("alert_long_queue") == "Nothing to report."
    oldest = propose(store, acme, days=85)
    said = watch.tick("alert_long_queue")
    assert "3 of 3 proposals" in said
    assert "expires undecided on 2026-09-06" in said
    (body,) = posted(webhook)
    assert [each["what"] for each in body["begun"]] == ["expiry", "queue"]
    store.execute("UPDATE retention_proposals SET status = 'dismissed' WHERE id = :id", id=oldest)
    assert watch.tick("alert_long_queue") == "Nothing to report."
    assert posted(webhook)[0]["ended_in_all"] == 2


def test_one_tenant_without_a_pass_is_told_of_while_others_are_fresh(
    watch: Watch, store: Store
) -> None:
    for slug in ("acme", "globex", "silent", "gone"):
        user_id = store.tenant(slug, judgment=slug != "silent", archival=False)
        store.execute("UPDATE users SET created_at = :at WHERE id = :id", at=ago(400), id=user_id)
    store.retire("gone")
    fresh = store.partition("globex", DAY)
    health.record(store.database, fresh, Policy(), TODAY)
    health.record(store.database, store.partition("acme", DAY - 5 * ONE_DAY), Policy(), TODAY)
    said = watch.tick("alert_overdue_pass")
    assert said.startswith("acme: the pass is overdue; the newest day that it went through is 2026")
    assert not any(slug in said for slug in ("globex", "silent", "gone"))
    health.record(store.database, store.partition("acme", DAY), Policy(), TODAY)
    assert watch.tick("alert_overdue_pass") == "Nothing to report."


def test_no_pass_is_overdue_while_everything_is_off(store: Store) -> None:
    store.tenant("acme")
    off = Watch(store, Flag(), Policy())
    assert off.tick("alert_overdue_pass", days=400) == "Nothing to report."


def test_failures_are_found_without_a_look_at_what_passed(store: Store) -> None:
    acme = store.tenant()
    store.execute(
        """
        INSERT INTO forgetting.invariant_results (run_date, user_id, asset, check_name, passed,
            reasons, run_id, checked_at)
        SELECT CAST(:day AS date) - n, :user_id, 'asset', 'blast_radius', n <> 7, '[]', 'run', :at
        FROM generate_series(1, 3000) AS n
        """,
        day=DAY,
        user_id=acme,
        at=TODAY,
    )
    store.execute("ANALYZE forgetting.invariant_results")
    asked = monitoring.QUERIES["count_failures"]
    with store.database.tenant(acme) as tx:
        plan = tx.rows(
            sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked.text}"),
            since=TODAY,
            checks=list(monitoring.CHECKS),
        )
    text = json.dumps(plan[0][0])
    assert "invariant_results_failed_idx" in text
    read = re.findall(r'"Actual Rows": ([0-9.]+)', text)
    assert max(map(float, read)) <= 1


# --- the webhook ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply", [Reply(500), Reply(404), Reply(302), Reply(manner="drops")], ids=lambda r: str(r)[:30]
)
def test_a_message_that_is_not_taken_is_sent_again_by_the_next_tick(
    watch: Watch, store: Store, webhook: ScriptedServer, reply: Reply
) -> None:
    result(store, store.tenant("acme"), passed=False)
    webhook.reply = reply
    for _ in range(2):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - Dagster wraps it
            watch.tick("alert_failed_check")
        failure = raised.value.__cause__ or raised.value
        assert isinstance(failure, AlertNotDelivered)
        # What is lost on the way still stands in the tick, and the URL is a secret.
        assert "acme: the check zero_episodic_collapse fails" in str(failure)
        assert "secret" not in str(failure)
        assert "127.0.0.1" not in str(failure)
    lost = posted(webhook)
    webhook.reply = Reply(204)
    watch.tick("alert_failed_check")
    assert posted(webhook) == lost[:1]
    watch.tick("alert_failed_check")
    assert posted(webhook) == []


def test_a_webhook_that_never_answers_is_given_up_in_time(
    webhook: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "TIMEOUT_SECONDS", 0.2)
    webhook.reply = Reply(manner="hangs")
    with pytest.raises(AlertNotDelivered, match="does not answer \\(ReadTimeout\\)"):
        alerts.post(webhook.url, {"text": "acme"})


@pytest.mark.parametrize(
    "url", ["hooks.example/secret", "ftp://h/secret", "https://host:port/secret"]
)
def test_a_webhook_that_is_no_address_is_named_by_its_setting_alone(url: str) -> None:
    with pytest.raises(ConfigurationError, match=VARIABLE) as raised:
        alerts.post(url, {"text": "acme"})
    assert "secret" not in str(raised.value)


def test_without_a_webhook_it_stands_in_the_tick_and_a_later_webhook_is_told_of_it(
    watch: Watch, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    result(store, store.tenant("acme"), passed=False)
    for _ in range(2):
        assert "acme: the check" in watch.tick("alert_failed_check")
    with ScriptedServer() as server:
        monkeypatch.setenv(VARIABLE, server.url + SECRET)
        watch.tick("alert_failed_check")
        watch.tick("alert_failed_check")
        assert len(posted(server)) == 1


def test_no_text_of_a_memory_is_in_a_message_a_tick_or_a_cursor(
    watch: Watch, store: Store, webhook: ScriptedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    acme = store.tenant("acme")
    for days in (1, 2, 85):
        propose(store, acme, days=days)
    result(store, acme, passed=False)
    said = [watch.tick(sensor.name) for sensor in alerts.SENSORS]
    assert sum(each != "Nothing to report." for each in said) >= 2
    sent = b"".join(request.body for request in webhook.requests)
    assert b"acme" in sent
    everything = "".join([*said, sent.decode(), str(watch.cursors), *capfd.readouterr()])
    for word in MARKER.split():
        assert f"{word} " not in everything or word in ("the", "keeps"), word
    assert "Ottoline" not in everything
    assert "violet" not in everything


def test_a_whole_pass_that_fails_a_check_is_told_of(watch: Watch, store: Store) -> None:
    """Not a row by hand: the invariant's own record is what the alert reads."""
    acme = store.tenant("acme")
    Pass(store).run(store.partition())
    assert watch.tick("alert_failed_check") == "Nothing to report."
    with (
        pytest.raises(InvariantViolated),
        invariant.kept(
            store.database, store.partition(), "archival_sweep", run_id="run", now=TODAY
        ),
    ):
        raise InvariantViolated("broken", [(str(acme), "a reason")])
    assert "acme: the check zero_episodic_collapse fails on 1 result" in watch.tick(
        "alert_failed_check"
    )
