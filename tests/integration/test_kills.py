"""Kill -9 at counted points of a pass: what was paid for and what was said stays right.

A seed draws the points. They are counted and not timed, so with one call under way a seed that
fails fails again. ``SOAK_KILLS`` is how many to make at least by seed; without it, it is ten.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forgetting_assets.judging.items import Pair
from forgetting_assets.store import verdicts
from resources.addresses import Addresses
from resources.budget import CEILINGS, FORGET_DECIDE
from tests.fake_jev import FakeJev, items_of, judged
from tests.killed_pass import (
    AFTER_REPLY,
    BATCH_ITEMS,
    BEFORE_SEND,
    HALF_SENT,
    REPLY_BEGUN,
    ROOT,
    SENT,
    Order,
)
from tests.support import Store, choose, degrees, vector

KILLS = 10
"""Kills of one seed."""

KILLS_OF_A_PASS = 5
SEEDS = range(max(1, math.ceil(int(os.environ.get("SOAK_KILLS", "0")) / KILLS)))

APPLICATION = f"killed-pass-{os.getpid()}"
"""What the connections of the passes are called."""

PATIENCE = 60.0
"""Seconds that a test waits where something is certain to come."""

ANNOUNCED = "after commit of announce_call"
ANNOUNCING = "before commit of announce_call"
CHARGED = "after commit of insert_usage"
KEPT = "after commit of insert_verdict"

NEVER_LEFT = (
    ANNOUNCED,
    "before answer",
    "after answer",
    "before read_judgment_consent",
    "after read_judgment_consent",
    "before commit of read_judgment_consent",
    "after commit of read_judgment_consent",
    BEFORE_SEND,
    HALF_SENT,
)
"""Points at which a call is announced and the judge has not got all of it."""

STEPS = (
    ANNOUNCING,
    ANNOUNCED,
    BEFORE_SEND,
    HALF_SENT,
    SENT,
    REPLY_BEGUN,
    AFTER_REPLY,
    "before commit of insert_usage",
    CHARGED,
    "before commit of insert_verdict",
    KEPT,
)
"""What a call goes through, from its announcement to its verdicts."""


@dataclass(frozen=True)
class Run:
    """One run of a pass: the points that it reached and the calls that the judge accepted.

    A call is the contents it asked about. A killed run's last point is the one it was killed at.
    """

    points: list[str]
    calls: list[list[str]]
    killed: bool

    def reached(self, point: str) -> int:
        """How often it was at a point."""
        return self.points.count(point)


@dataclass
class Forks:
    """The process that runs the passes, and what it says when one breaks."""

    process: subprocess.Popen[str]
    errors: Path

    def run(self, order: Order) -> int:
        """The exit code of one pass."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(order.to_json() + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said, self.errors.read_text()
        return int(said)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    errors = tmp_path_factory.mktemp("killed") / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.killed_pass"],
            cwd=ROOT,
            # No proxy of the machine's stands between the pass and the test's own server.
            env={
                **os.environ,
                "JEV_API_KEY": "fake-key",
                "NO_PROXY": "*",
                "PGAPPNAME": APPLICATION,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        yield Forks(process, errors)
        assert process.stdin is not None
        process.stdin.close()


@dataclass
class Passes:
    """The passes of one database, each of a tenant of its own with the same memories."""

    store: Store
    url: str
    forks: Forks
    folder: Path
    calls_in_flight: int = 1
    replaced: Mapping[str, str] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    tenants: dict[str, UUID] = field(default_factory=dict)
    memories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, slug: str) -> None:
        """A tenant with all its memories."""
        self.tenants[slug] = remember(self.store, slug)
        self.memories[slug] = self.memories_of(slug)
        self.runs[slug] = []

    def memories_of(self, slug: str) -> list[dict[str, Any]]:
        """Every byte of a tenant's memories, edges and models."""
        return [
            row
            for table in ("memories", "memory_edges", "forgetting.embedding_models")
            for row in self.store.rows(
                f"SELECT t::text AS row FROM {table} AS t WHERE user_id = :user_id ORDER BY 1",
                user_id=self.tenants[slug],
            )
        ]

    def run(self, slug: str, kill_at: int | str | None = None) -> Run:
        """Run a tenant's pass to its end, or until it is killed at that point."""
        runs = self.runs[slug]
        points = self.folder / f"{slug}-{len(runs)}"
        arrived = threading.Semaphore(0)
        # A judge of its own, so that a call is known to be this run's.
        with FakeJev(answer=answer, before=lambda _: arrived.release()) as jev:
            order = Order(
                database_url=self.url,
                judge_url=jev.url,
                slug=slug,
                log=str(points),
                kill_at=kill_at,
                calls_in_flight=self.calls_in_flight,
                replaced=self.replaced,
            )
            code = self.forks.run(order)
            assert code == 0 or (code == -signal.SIGKILL and kill_at), (
                f"exit {code} at {kill_at}: {self.forks.errors.read_text()}"
            )
            reached = points.read_text().splitlines()
            # What a killed process has sent may still be on its way.
            for _ in range(reached.count(SENT)):
                assert arrived.acquire(timeout=PATIENCE)
        if self.calls_in_flight > 1:
            self.settle()
        calls = [[judged(i)["content"] for i in items_of(call).values()] for call in jev.calls]
        runs.append(Run(reached, calls, killed=code != 0))
        return runs[-1]

    def settle(self) -> None:
        """Wait until PostgreSQL has noticed that a process is gone.

        With several calls under way a commit may be too when the process is killed, and then it is
        carried out or not, before or after whatever comes next.
        """
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
        for _ in range(int(100 * PATIENCE)):
            if self.store.rows(left, name=APPLICATION) == [{"count": 0}]:
                return
            self.store.rows("SELECT CAST(pg_sleep(0.01) AS text)")
        raise AssertionError("PostgreSQL did not notice that a pass is gone.")

    def kill(self, slug: str, reference: Run, draw: random.Random, most: int) -> int:
        """Kill a tenant's pass up to ``most`` times, then let it finish; how often it was."""
        self.add(slug)
        for _ in range(most):
            done = sum(run.reached(KEPT) for run in self.runs[slug])
            if not self.run(slug, drawn(draw, reference, done)).killed:
                break
        if self.runs[slug][-1].killed:
            self.run(slug)
        return len(self.killed(slug))

    def killed(self, *slugs: str) -> list[Run]:
        """The killed runs of some tenants, or of all."""
        return [run for slug in slugs or self.runs for run in self.runs[slug] if run.killed]


@pytest.fixture
def passes(store: Store, places: Addresses, forks: Forks, tmp_path: Path) -> Passes:
    return Passes(store, places.memory.render_as_string(hide_password=False), forks, tmp_path)


def remember(store: Store, slug: str) -> UUID:
    """A tenant with 36 items: pairs, singles with and without newer ones, blockers, chains.

    All tenants get the same but for ids. No two ages, cosines or answers are equal, so that an id
    decides nothing.
    """
    user_id = store.tenant(slug)
    for n in range(12):
        for side, age, angle in (
            ("older", 40 + n, 0.0),
            ("newer", 5 + n / 10, degrees(0.86 + n / 100)),
        ):
            topic = f"pair-{n}-{side}"
            store.memory(
                user_id,
                content_of(topic),
                topic=topic,
                scope="pairs",
                age=age,
                embedding=vector(angle, axis=n + 1),
            )

    def scoped(scope: str, *members: tuple[float, float], **both: Any) -> None:
        """Memories of a scope by age and angle; 0.82 is 35 degrees, so none is a pair."""
        for m, (age, angle) in enumerate(members):
            store.memory(
                user_id,
                content_of(f"{scope}-{m}"),
                topic=f"{scope}-{m}",
                scope=scope,
                age=age,
                embedding=vector(angle, axis=100),
                **both,
            )

    for n in range(5):
        scoped(f"alone-{n}", (60 + n / 10, 0))
        scoped(f"followed-{n}", (70 + n / 10, 0), (5, 50), (4, -60))
        # Answers on these contradict each other, and the less sure one is withheld.
        scoped(f"chain-{n}", (90 + n / 10, 0), (80 + n / 10, 50))
    for n in range(4):
        scoped(f"blocker-{n}", (100 + n / 10, 0), (6, 50), memory_type="blocker")
    return user_id


def content_of(topic: str) -> str:
    return f"it says {topic}"


def answer(item: dict[str, Any], keys: list[str]) -> object:
    """An answer by the judged content alone, as sure as its hash says: 0.5 to 1.

    Of a chain, both are surely to end: the older one for the newer one, which is archived.
    """
    content = judged(item)["content"]
    hashed = hashlib.sha256(content.encode()).digest()
    share = int.from_bytes(hashed[:4]) / 2**32
    if "chain" in content:
        return choose(keys[-1], keys, 0.9 + share / 10)
    return choose(keys[hashed[4] % len(keys)], keys, 0.5 + share / 2)


def drawn(draw: random.Random, reference: Run, done: int) -> int:
    """A point of a pass of which so many calls are done: one of judging in three of four draws.

    The points before and after judging are many and alike.
    """
    points = reference.points
    first = points.index("before take_tokens") + 1
    last = len(points) - points[::-1].index(KEPT)
    calls = len(reference.calls)
    judging = (last - first) * max(0, calls - done) // calls
    if judging and draw.random() < 0.75:
        return first + draw.randrange(judging)
    return draw.randint(1, len(points) - (last - first) + judging)


def said(store: Store, user_id: UUID, table: str, columns: str) -> list[dict[str, Any]]:
    """What a tenant's rows say of its memories, by topic instead of id."""
    return store.rows(
        f"""
        SELECT m.topic, r.topic AS related, {columns}
        FROM {table} AS t
        INNER JOIN memories AS m ON t.memory_id = m.id
        LEFT JOIN memories AS r ON t.related_memory_id = r.id
        WHERE t.user_id = :user_id
        ORDER BY m.topic, t.probability
        """,
        user_id=user_id,
    )


def proposals_of(store: Store, user_id: UUID) -> list[dict[str, Any]]:
    return said(store, user_id, "retention_proposals", "t.action, t.status, t.probability")


def verdicts_of(store: Store, user_id: UUID) -> list[dict[str, Any]]:
    return said(
        store,
        user_id,
        "forgetting.judged_verdicts",
        "t.kind, t.verdict, t.answer_key, t.probability, t.memory_content_hash",
    )


def one(store: Store, query: str) -> Any:
    (row,) = store.rows(query)
    (value,) = row.values()
    return value


def require_one_verdict_an_item(passes: Passes, slug: str) -> None:
    store = passes.store
    items = verdicts.read_items(store.database, store.partition(slug))
    expected = [
        (item.subject.id, item.newer.id if isinstance(item, Pair) else None) for item in items
    ]
    rows = store.rows(
        "SELECT memory_id, newer_id FROM forgetting.judged_verdicts WHERE user_id = :user_id",
        user_id=passes.tenants[slug],
    )
    assert len(expected) == 36
    assert Counter((row["memory_id"], row["newer_id"]) for row in rows) == Counter(expected)


def require_same_words(passes: Passes, slug: str, reference: str) -> None:
    """What is said of a tenant's memories is what an unkilled pass says."""
    for read in (verdicts_of, proposals_of):
        expected = read(passes.store, passes.tenants[reference])
        assert read(passes.store, passes.tenants[slug]) == expected


def require_few_asked_again(passes: Passes, slug: str) -> None:
    """At most as many calls a kill as were under way are billed again, and no others.

    With one call under way the points tell which: what arrived and was not committed.
    """
    runs = passes.runs[slug]
    for n, run in enumerate(runs):
        later = {content for each in runs[n + 1 :] for call in each.calls for content in call}
        again = [call for call in run.calls if not later.isdisjoint(call)]
        assert len(again) <= passes.calls_in_flight * run.killed
        if passes.calls_in_flight == 1:
            assert len(again) == run.reached(SENT) - run.reached(KEPT)
        in_run = Counter(content for call in run.calls for content in call)
        assert set(in_run.values()) <= {1}
    asked = Counter(content for run in runs for call in run.calls for content in call)
    assert len(asked) == 36
    assert max(asked.values()) <= 1 + len(passes.killed(slug))


def require_right_books(passes: Passes) -> None:
    """Usage has one row for each call that was accepted, and for each that never left.

    A call that was announced and never left counts as sent: it fails closed. These are the calls
    of kills at a point of NEVER_LEFT, one a kill at most with one call under way. With more, a
    kill finds the other threads between two points, so there are bounds.
    """
    store, runs = passes.store, [run for each in passes.runs.values() for run in each]
    accepted = sum(len(run.calls) for run in runs)
    usage = one(store, "SELECT count(*) FROM llm_usage")
    unknown = one(store, "SELECT count(*) FROM llm_usage WHERE cost_usd IS NULL")

    def total(point: str) -> int:
        return sum(run.reached(point) for run in runs)

    if passes.calls_in_flight == 1:
        never_left = sum(run.points[-1] in NEVER_LEFT for run in passes.killed())
        assert usage == accepted + never_left
        assert never_left == total(ANNOUNCED) - total(SENT)
        assert accepted == total(SENT)
        assert unknown == total(ANNOUNCED) - total(CHARGED)
    assert total(SENT) <= accepted <= total(HALF_SENT)
    assert total(ANNOUNCED) <= usage <= total(ANNOUNCING)
    most = passes.calls_in_flight * len(passes.killed())
    assert 0 <= usage - accepted <= most
    assert 0 <= unknown <= most

    assert one(store, "SELECT count(*) FROM budget_reservations") == 0
    assert one(store, "SELECT count(*) FROM forgetting.calls_under_way") == 0
    booked = store.rows("SELECT cost_usd FROM llm_usage")
    ceiling = CEILINGS[FORGET_DECIDE]
    owed = sum((ceiling if r["cost_usd"] is None else r["cost_usd"] for r in booked), Decimal(0))
    assert owed > 0
    assert one(store, "SELECT sum(committed_usd) FROM forgetting.deployment_spend") == owed


def require_a_mix(passes: Passes, slug: str) -> None:
    """The unkilled pass has something of everything, so that a difference would show."""
    proposed = Counter(
        (row["action"], row["status"]) for row in proposals_of(passes.store, passes.tenants[slug])
    )
    judged = Counter(row["verdict"] for row in verdicts_of(passes.store, passes.tenants[slug]))
    for action in ("archive", "supersede", "conflict"):
        assert proposed[action, "proposed"] > 0
        assert proposed[action, "dismissed"] > 0
    assert proposed["keep", "dismissed"] == judged["keep"] > 0
    assert proposed.total() < judged.total() == 36, "some are withheld"


def require_all(passes: Passes) -> None:
    """All that is promised of passes that were killed and resumed to their end."""
    for slug in passes.runs:
        require_one_verdict_an_item(passes, slug)
        require_same_words(passes, slug, "reference")
        require_few_asked_again(passes, slug)
        assert passes.memories_of(slug) == passes.memories[slug]
    require_right_books(passes)


@pytest.mark.parametrize(
    ("seed", "kills", "calls_in_flight"),
    [*((seed, KILLS, 1) for seed in SEEDS), *((seed, 4, 3) for seed in SEEDS)],
)
def test_a_pass_that_is_killed_anywhere_and_resumed_says_and_books_what_an_unkilled_one_does(
    passes: Passes, seed: int, kills: int, calls_in_flight: int
) -> None:
    passes.calls_in_flight = calls_in_flight
    draw = random.Random(f"{seed} {calls_in_flight}")
    passes.add("reference")
    reference = passes.run("reference")
    assert [len(call) for call in reference.calls] == [BATCH_ITEMS] * 9
    require_a_mix(passes, "reference")
    made = 0
    while made < kills:
        slug = f"killed-{len(passes.runs)}"
        most = min(KILLS_OF_A_PASS, kills - made)
        made += passes.kill(slug, reference, draw, most)
    points = [run.points[-1] for run in passes.killed()]
    sys.stdout.write(f"Killed: {'; '.join(points)}\n")
    require_all(passes)


def test_a_pass_that_is_killed_at_every_step_of_a_call_says_and_books_what_an_unkilled_one_does(
    passes: Passes,
) -> None:
    passes.add("reference")
    passes.run("reference")
    passes.add("killed")
    for point in STEPS:
        assert passes.run("killed", point).points[-1] == point
    passes.run("killed")
    require_all(passes)


@pytest.mark.parametrize(
    "replaced",
    [
        {"announce_call": "SELECT 1 AS announce_call", "end_call": "SELECT 1 AS end_call"},
        {"book_lost_calls": "SELECT 1 AS book_lost_calls"},
    ],
    ids=["calls are not announced", "lost calls are not booked"],
)
def test_books_that_hold_only_while_nothing_is_killed_are_found_by_a_kill(
    passes: Passes, replaced: dict[str, str]
) -> None:
    passes.replaced = replaced
    passes.add("whole")
    passes.run("whole")
    require_right_books(passes)
    passes.add("killed")
    assert passes.run("killed", SENT).killed
    passes.run("killed")
    with pytest.raises(AssertionError):
        require_right_books(passes)
