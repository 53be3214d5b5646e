"""A pass that kills itself with SIGKILL at a counted point, for the tests of resuming.

``python -m tests.killed_pass`` reads orders from its input, one JSON object a line. It forks for
each, so that imports are paid once, and answers with the exit code of the fork. A fork runs one
pass with its own connections: over real PostgreSQL, against a real HTTP judge.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.default import DefaultDialect

import sql
from forgetting_assets import judge as judging
from forgetting_assets.partition import of_day
from forgetting_assets.store import candidates, pairs, proposals, tenants
from resources import budget
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database, TenantTransaction
from resources.gateway import JevGateway
from resources.rate import TokenRate
from tests.fake_jev import MODEL
from tests.support import DAY, TODAY, make_policy

ROOT = Path(__file__).parent.parent
BATCH_ITEMS = 4

BEFORE_SEND, HALF_SENT, SENT = "before send", "half sent", "sent"
REPLY_BEGUN, AFTER_REPLY = "reply begun", "after reply"

TRACED = {
    "http11.send_request_headers.complete": HALF_SENT,
    "http11.send_request_body.complete": SENT,
    "http11.receive_response_headers.complete": REPLY_BEGUN,
}
"""What httpx says of a request under way, and the point that it is."""

BRAKE = 300
"""Seconds after which a pass that hangs is ended, so that its test fails and does not hang too."""


@dataclass(frozen=True)
class Order:
    """One pass: of which tenant, where, and at which point it is killed, by number or by name.

    Every point that is reached is a line of ``log``. ``replaced`` has other SQL for some queries
    of the budget, by name, for a control that breaks it.
    """

    database_url: str
    judge_url: str
    slug: str
    log: str
    kill_at: int | str | None = None
    calls_in_flight: int = 1
    replaced: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The line that the process reads."""
        return json.dumps(asdict(self))


class Points:
    """Counts the points of a process over all its threads, writes each down, and kills at one."""

    def __init__(self, order: Order) -> None:
        self._kill_at = order.kill_at
        self._log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._count = 0
        self._last = threading.local()
        self._names = {
            _compiled(query): name
            for path in (sql.ROOT / "queries").glob("*.sql")
            for name, query in sql.load(path.stem).items()
        } | {each: name for name, each in order.replaced.items()}

    def reach(self, name: str) -> None:
        """Be at a point. The one to be killed at is the last line of the log."""
        with self._lock:
            self._count += 1
            os.write(self._log, f"{name}\n".encode())
            if self._kill_at in (self._count, name):
                os.fsync(self._log)
                os.kill(os.getpid(), signal.SIGKILL)

    def watch_database(self) -> None:
        """Count before and after each statement and each commit, of every engine."""
        dialect_commit, tenant_copy = DefaultDialect.do_commit, TenantTransaction.copy

        def before(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            self._last.name = self._names.get(statement) or " ".join(statement.split()[:4])
            self.reach(f"before {self._last.name}")

        def after(*_: Any) -> None:
            self.reach(f"after {self._last.name}")

        def commit(dialect: DefaultDialect, connection: Any) -> None:
            self.reach(f"before commit of {self._last.name}")
            dialect_commit(dialect, connection)  # type: ignore[no-untyped-call]
            self.reach(f"after commit of {self._last.name}")

        def copy(tx: TenantTransaction, query: sa.TextClause, *rest: Any, **named: Any) -> None:
            self._last.name = self._names[_compiled(query)]
            self.reach(f"before {self._last.name}")
            tenant_copy(tx, query, *rest, **named)
            self.reach(f"after {self._last.name}")

        sa.event.listen(sa.Engine, "before_cursor_execute", before)
        sa.event.listen(sa.Engine, "after_cursor_execute", after)
        DefaultDialect.do_commit = commit  # type: ignore[method-assign]
        TenantTransaction.copy = copy  # type: ignore[assignment,method-assign]

    def watch(self, client: httpx.Client) -> None:
        """Count what each request of a client goes through."""

        def trace(event: str, _details: Any) -> None:
            if event in TRACED:
                self.reach(TRACED[event])

        def before(request: httpx.Request) -> None:
            request.extensions = {**request.extensions, "trace": trace}
            self.reach(BEFORE_SEND)

        def after(response: httpx.Response) -> None:
            response.read()
            self.reach(AFTER_REPLY)

        client.event_hooks = {"request": [before], "response": [after]}


def run(order: Order) -> None:
    """Run the pass of an order: pairs, candidates, verdicts, proposals."""
    os.environ["DATABASE_URL"] = order.database_url
    points = Points(order)
    points.watch_database()
    replaced = {name: sa.text(each) for name, each in order.replaced.items()}
    budget.QUERIES = MappingProxyType({**budget.QUERIES, **replaced})

    database, clock = Database(), Clock(fixed=TODAY.isoformat())
    policy = make_policy(
        batch_items=BATCH_ITEMS, calls_in_flight=order.calls_in_flight, blast_radius=1.0
    )
    gateway = JevGateway(base_url=order.judge_url, model=MODEL).connect()
    assert gateway._client is not None
    points.watch(gateway._client)
    money = Budget(
        database=database,
        clock=clock,
        cap_usd=1000.0,
        deployment_cap_usd=1000.0,
        prices={MODEL: [1.0, 1.0]},
    )
    # So fast that the calls of any number of runs are all sent at once.
    rate = TokenRate(database=database, clock=clock, tokens_per_minute=1_000_000_000)
    means = judging.Means(database, gateway, money, rate, clock, policy)

    partition = of_day(DAY, tenants.find(database, order.slug), TODAY)
    pairs.select(database, partition, policy, TODAY)
    candidates.select(database, partition, policy, TODAY)
    judged = judging.judge(means, partition, lambda _: None)
    assert (judged.left, judged.stopped) == (0, None), judged
    proposals.write(database, partition, policy, TODAY)


def _compiled(query: sa.TextClause) -> str:
    dialect = postgresql.psycopg2.dialect()  # type: ignore[no-untyped-call]
    return str(query.compile(dialect=dialect))


def main() -> None:
    """Fork for every order, until there are no more."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(BRAKE)
                run(Order(**json.loads(line)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
