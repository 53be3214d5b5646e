"""What tests build with: a store of rows, a judge that answers as told, and a day to stand on.

TODAY is the fixed present of the tests: 2026-09-01 at noon, so the newest partition is 2026-08-31.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from pydantic import PrivateAttr

from forgetting_assets import judge as judging
from forgetting_assets import review
from forgetting_assets.calls import Means
from forgetting_assets.partition import Partition, of_day
from forgetting_assets.store import candidates, evidence, pairs, proposals, tenants
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database
from resources.gateway import Decision, Gateway, Questions
from resources.policy import Policy
from resources.rate import TokenRate

TODAY = datetime(2026, 9, 1, 12, tzinfo=UTC)
DAY = date(2026, 8, 31)
MODEL = "test-model"


def ago(days: float) -> datetime:
    """A moment before the end of DAY, which is what ages are counted from."""
    return datetime(2026, 9, 1, tzinfo=UTC) - timedelta(days=days)


MODELS = (
    "test-embedding",
    "unknown",
    "another",
    "another-model",
    "loose",
    "minilm",
    "nomic",
    "nomic-embed-text-v1.5",
    "plain",
    "strict",
)
"""Embedding models that tests name; `unknown` is what a memory of no recorded model counts as."""


def make_policy(
    *, floor: float = 0.82, conflict_floors: dict[str, float] | None = None, **figures: Any
) -> Policy:
    """The pass's figures with the ADR's floor for every model but those of ``conflict_floors``."""
    floors = dict.fromkeys(MODELS, floor) | (conflict_floors or {})
    return Policy(conflict_floors=floors, **figures)


def vector(degrees: float, axis: int = 0) -> list[float]:
    """A unit vector; the cosine of two on one axis is the cosine of their angle."""
    values = [0.0] * 1536
    values[2 * axis] = math.cos(math.radians(degrees))
    values[2 * axis + 1] = math.sin(math.radians(degrees))
    return values


def degrees(cosine: float) -> float:
    """The angle that two vectors of this cosine are apart."""
    return math.degrees(math.acos(cosine))


@dataclass
class Store:
    """Rows in a test's database. ``owner`` is the superuser, for what the runtime role may not."""

    database: Database
    owner: sa.Engine
    _axis: int = field(default=0)

    def tenant(
        self,
        slug: str = "acme",
        *,
        judgment: bool = True,
        archival: bool = True,
        tracked: float | None = 1000,
    ) -> UUID:
        """A tenant that agreed to both unless told otherwise; its id.

        ``tracked``: for how many days at the end of DAY its uses are recorded; None: not at all.
        """
        with self.database.registry() as connection:
            tenants.add(connection, slug)
        tenants.consent(
            self.database,
            slug,
            judgment=judgment,
            archival=archival,
            tracked_since=None if tracked is None else ago(tracked),
        )
        return tenants.find(self.database, slug).user_id

    def retire(self, slug: str = "acme") -> None:
        """Retire a tenant."""
        self.execute(
            "UPDATE tenants SET retired_at = :now WHERE slug = :slug", now=TODAY, slug=slug
        )

    def partition(self, slug: str = "acme", day: date = DAY, now: datetime = TODAY) -> Partition:
        """A partition of a tenant."""
        return of_day(day, tenants.find(self.database, slug), now)

    def memory(
        self,
        user_id: UUID,
        content: str | None = None,
        *,
        id: UUID | None = None,
        memory_type: str = "fact",
        topic: str = "topic",
        scope: str = "work",
        project: str | None = None,
        age: float = 60,
        touched: float | None = None,
        created_at: datetime | None = None,
        updated_at: datetime | None = None,
        reviewed_at: datetime | None = None,
        status: str = "active",
        valid_to: datetime | None = None,
        embedding: Sequence[float] | str | None = "own",
        embedding_model: str | None = "test-embedding",
    ) -> UUID:
        """A memory, ``age`` days old and last ``touched`` days ago; its id.

        ``embedding`` "own" is a vector unlike every other; None is no vector.
        """
        id_ = id or uuid4()
        content = f"memory {id_}" if content is None else content
        if embedding == "own":
            self._axis = self._axis % 700 + 1
            embedding = vector(0, axis=self._axis)
        created = created_at or ago(age)
        updated = updated_at or ago(age if touched is None else touched)
        self.execute(
            """
            INSERT INTO memories (id, user_id, memory_type, topic, content, scope, project, status,
                embedding, content_hash, valid_from, valid_to, recorded_at, created_at, updated_at,
                last_reviewed_at)
            VALUES (:id, :user_id, :memory_type, :topic, :content, :scope, :project, :status,
                CAST(:embedding AS vector), :hash, :created, :valid_to, :created, :created,
                :updated, :reviewed_at)
            """,
            id=id_,
            user_id=user_id,
            memory_type=memory_type,
            topic=topic,
            content=content,
            scope=scope,
            project=project,
            status=status,
            embedding=None if embedding is None else json.dumps(list(embedding)),
            hash=hashlib.sha256(content.encode()).hexdigest(),
            created=created,
            valid_to=valid_to,
            updated=updated,
            reviewed_at=reviewed_at,
        )
        if embedding is not None and embedding_model is not None:
            self.execute(
                "INSERT INTO forgetting.embedding_models VALUES (:user_id, :id, :model)",
                user_id=user_id,
                id=id_,
                model=embedding_model,
            )
        return id_

    def pair(
        self, user_id: UUID, cosine: float = 0.9, *, older_age: float = 60, **both: Any
    ) -> tuple[UUID, UUID]:
        """Two memories of that cosine on an axis of their own: (older, newer)."""
        self._axis = self._axis % 700 + 1
        axis = self._axis
        older = self.memory(user_id, age=older_age, embedding=vector(0, axis), **both)
        newer = self.memory(user_id, age=5, embedding=vector(degrees(cosine), axis), **both)
        return older, newer

    def evidence(
        self,
        user_id: UUID,
        *,
        id: UUID | None = None,
        kind: str = "trace",
        content: str = "GET /health 200",
        age: float | None = 30,
        recorded_at: datetime | None = None,
        success: int = 0,
        reinforcement: int = 0,
        retrieved: float | None = None,
        outcome: float | None = None,
    ) -> UUID:
        """An entry that happened ``age`` days ago (None: unknown); its id. Ages are in days."""
        id_ = id or uuid4()
        occurred = None if age is None else ago(age)
        self.execute(
            """
            INSERT INTO evidence (id, user_id, session_id, kind, content, occurred_at, recorded_at,
                success_count, reinforcement_count, last_retrieved_at, last_outcome_at)
            VALUES (:id, :user_id, 'session', :kind, :content, :occurred, :recorded, :success,
                :reinforcement, :retrieved, :outcome)
            """,
            id=id_,
            user_id=user_id,
            kind=kind,
            content=content,
            occurred=occurred,
            recorded=recorded_at or occurred or ago(30),
            success=success,
            reinforcement=reinforcement,
            retrieved=None if retrieved is None else ago(retrieved),
            outcome=None if outcome is None else ago(outcome),
        )
        return id_

    def cite(self, user_id: UUID, memory_id: UUID, evidence_id: UUID) -> None:
        """Let a memory cite a piece of evidence."""
        self.execute(
            "INSERT INTO memory_evidence VALUES (:user_id, :memory_id, :evidence_id)",
            user_id=user_id,
            memory_id=memory_id,
            evidence_id=evidence_id,
        )

    def free_rate(self) -> None:
        """Forget which tokens of the rate are taken, for a test whose clock is set back."""
        self.execute("UPDATE forgetting.token_rate SET taken_until = '-infinity'")

    def mark_demo(self) -> None:
        """Mark the database as one of invented memories."""
        self.execute("UPDATE forgetting.deployment SET demo = TRUE")

    def execute(self, statement: str, **parameters: Any) -> int:
        """Run a statement as the superuser, past RLS; the number of rows it changed."""
        with self.owner.begin() as connection:
            return connection.execute(sa.text(statement), parameters).rowcount

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of a query as the superuser, past RLS."""
        with self.owner.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.text(query), parameters)]

    def dump(self, *tables: str) -> dict[str, list[str]]:
        """Every byte of the tables, for before-and-after comparisons."""
        return {
            table: [row["t"] for row in self.rows(f"SELECT t::text AS t FROM {table} t ORDER BY 1")]
            for table in tables
        }


Answer = Callable[[dict[str, Any], list[str]], object]
"""From an item of the state and its offered keys to the raw answer."""


def say(key: str, probability: float = 0.95) -> Answer:
    """Answer every item with the first offered key that is ``key`` or starts with ``key:``.

    An item that does not offer it is kept.
    """

    def answer(_item: dict[str, Any], keys: list[str]) -> object:
        chosen = next((k for k in keys if k == key or k.startswith(f"{key}:")), keys[0])
        return choose(chosen, keys, probability)

    return answer


def choose(chosen: str, keys: Sequence[str], probability: float = 0.95) -> dict[str, object]:
    """A well-formed answer."""
    rest = (1 - probability) / max(1, len(keys) - 1)
    return {
        "type": "choice",
        "choice": chosen,
        "confidence": 0.5,
        "probabilities": {k: probability if k == chosen else rest for k in keys},
    }


class TestJudge(Gateway):
    """A judge that answers as a test tells it and remembers what it was asked."""

    __test__ = False

    _answer: Answer = PrivateAttr(default_factory=lambda: say("keep"))
    _states: list[str] = PrivateAttr(default_factory=list)
    _questions: list[Questions] = PrivateAttr(default_factory=list)
    _before: Callable[[int], None] | None = PrivateAttr(default=None)
    _model: str = PrivateAttr(default=MODEL)

    @classmethod
    def that(cls, answer: Answer, *, before: Callable[[int], None] | None = None) -> TestJudge:
        """A judge that answers with ``answer``; ``before`` runs first, with the call's number."""
        judge = cls()
        judge._answer = answer
        judge._before = before
        return judge

    @property
    def pinned_model(self) -> str:
        return self._model

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self._states)

    @property
    def states(self) -> list[str]:
        """The states it was given."""
        return self._states

    def decide(self, state: str, questions: Questions) -> Decision:
        if self._before:
            self._before(len(self._states) + 1)
        self._states.append(state)
        self._questions.append(questions)
        items = {item["ref"]: item for item in block_of(state)["items"]}
        return Decision(
            model=self._model,
            answers={
                ref: self._answer(items[ref], list(question["criteria"]))  # type: ignore[call-overload]
                if question["type"] == "choice"
                else {"type": "noul", "noul": 0.75}
                for ref, question in questions.items()
            },
            input_tokens=1000,
            output_tokens=10,
            request_id="req-test",
        )


def block_of(state: str) -> Any:
    """The JSON block of a rendered state, as a judge would parse it."""
    lines = state.split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("```") and "json" in line)
    ticks = lines[start].removesuffix("json")
    end = next(n for n in range(start + 1, len(lines)) if lines[n] == ticks)
    return json.loads("\n".join(lines[start + 1 : end]))


@dataclass
class Pass:
    """The five verbs of the pass in their order, without Dagster around them."""

    store: Store
    judge: Gateway = field(default_factory=TestJudge)
    policy: Policy = field(default_factory=lambda: make_policy())
    now: datetime = TODAY
    cap_usd: float = 10.0
    deployment_cap_usd: float = 100.0
    tokens_per_minute: int = 1_000_000
    lines: list[str] = field(default_factory=list)

    @cached_property
    def clock(self) -> Clock:
        """It stands at ``now``, and moves only by what judging waits."""
        return Clock(fixed=self.now.isoformat())

    @property
    def budget(self) -> Budget:
        return Budget(
            database=self.store.database,
            clock=self.clock,
            cap_usd=self.cap_usd,
            deployment_cap_usd=self.deployment_cap_usd,
            prices={MODEL: [1.0, 1.0]},
        )

    def candidates(self, partition: Partition) -> tuple[Any, Any]:
        """Select pairs, then singles."""
        database = self.store.database
        chosen = pairs.select(database, partition, self.policy, self.now)
        return chosen, candidates.select(database, partition, self.policy, self.now)

    @property
    def means(self) -> Means:
        """What judging needs of the outside."""
        database = self.store.database
        rate = TokenRate(
            database=database, clock=self.clock, tokens_per_minute=self.tokens_per_minute
        )
        return Means(database, self.judge, self.budget, rate, self.clock, self.policy)

    def verdicts(self, partition: Partition, *, rejudge: bool = False) -> judging.Judged:
        """Judge what was selected."""
        return judging.judge(self.means, partition, self.lines.append, rejudge=rejudge)

    def proposals(self, partition: Partition) -> proposals.WrittenProposals:
        """Write the proposals of what was judged."""
        return proposals.write(self.store.database, partition, self.policy, self.now)

    def sweep(self, partition: Partition) -> evidence.Sweep:
        """Archive evidence."""
        return evidence.sweep(self.store.database, partition, self.policy, self.now)

    def run(self, partition: Partition) -> proposals.WrittenProposals:
        """Candidates, verdicts and proposals."""
        self.candidates(partition)
        self.verdicts(partition)
        return self.proposals(partition)


def record_verdict(
    store: Store,
    user_id: UUID,
    memory_id: UUID,
    *,
    newer: UUID | None = None,
    verdict: str = "keep",
    related: UUID | None = None,
    judged_at: datetime = TODAY,
    day: date | None = None,
    proposal: str | None = "dismissed",
    probability: float = 0.95,
) -> UUID:
    """A verdict written past the judge, of a pair when ``newer`` is given; its id.

    ``proposal`` is the status of the retention proposal under the same id; None writes none, as a
    run that ended before its proposals.
    """
    verdict_id = uuid4()
    store.execute(
        """
        INSERT INTO forgetting.judged_verdicts (id, run_date, user_id, kind, memory_id, newer_id,
            memory_type, verdict, related_memory_id, answer_key, probability, probabilities, model,
            answer_model, input_digest, memory_content_hash, memory_freshness, judged_at)
        SELECT :id, :day, m.user_id, CASE WHEN CAST(:newer AS uuid) IS NULL THEN 'single'
            ELSE 'pair' END, m.id, :newer, m.memory_type, :verdict, :related, 'key', :probability,
            '{}', :model, :model, CAST(:id AS text), m.content_hash,
            greatest(m.updated_at, m.last_reviewed_at), :judged_at
        FROM memories AS m WHERE m.user_id = :user_id AND m.id = :memory_id
        """,
        id=verdict_id,
        # The last day that had ended when it was judged, and never DAY itself.
        day=day or min((judged_at - timedelta(days=1)).date(), DAY - timedelta(days=1)),
        user_id=user_id,
        memory_id=memory_id,
        newer=newer,
        verdict=verdict,
        related=related,
        model=MODEL,
        judged_at=judged_at,
        probability=probability,
    )
    if proposal is not None:
        store.execute(
            """
            INSERT INTO retention_proposals (id, user_id, memory_id, action, related_memory_id,
                probability, probabilities, model, status, created_at)
            VALUES (:id, :user_id, :memory_id, :verdict, :related, :probability, '{}', :model,
                :status, :judged_at)
            """,
            id=verdict_id,
            user_id=user_id,
            memory_id=memory_id,
            verdict=verdict,
            related=related,
            model=MODEL,
            status=proposal,
            judged_at=judged_at,
            probability=probability,
        )
    return verdict_id


def waiting_of(store: Store, user_id: UUID, now: datetime = TODAY, **filters: Any) -> list[Any]:
    """The open proposals of a tenant that pass some filters, as a reviewer gets them."""
    wanted = review.Filters(**filters)
    return list(review.list_open(store.database, user_id, wanted, now).rows)


def record_edge(
    store: Store, user_id: UUID, from_id: UUID, to_id: UUID, edge_type: str = "supersedes"
) -> None:
    """An edge between two memories, as the store's other write paths leave it."""
    store.execute(
        """
        INSERT INTO memory_edges (user_id, from_id, to_id, edge_type, created_by)
        VALUES (:user_id, :from_id, :to_id, :edge_type, 'test')
        """,
        user_id=user_id,
        from_id=from_id,
        to_id=to_id,
        edge_type=edge_type,
    )


def record_consolidation(
    store: Store, user_id: UUID, from_id: UUID, to_id: UUID, status: str = "proposed"
) -> None:
    """A consolidation proposal between two memories."""
    store.execute(
        """
        INSERT INTO consolidation_proposals (user_id, from_id, to_id, edge_type, memory_type,
            similarity, status)
        VALUES (:user_id, :from_id, :to_id, 'updates', 'fact', 0.9, :status)
        """,
        user_id=user_id,
        from_id=from_id,
        to_id=to_id,
        status=status,
    )


def by_topic(answers: dict[str, Answer], otherwise: Answer | None = None) -> Answer:
    """Answer each item by the topic of its judged memory, in a pair the older one; else keep."""
    fallback = otherwise or say("keep")

    def answer(item: dict[str, Any], keys: list[str]) -> object:
        judged = item["older"] if item["kind"] == "pair" else item["memory"]
        return answers.get(judged["topic"], fallback)(item, keys)

    return answer
