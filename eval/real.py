"""What can be measured on real memories without a judge: candidate recall, and harm to retrieval.

A folder has `golden_memories.jsonl` (as an import reads it), `golden_replaces.json` (which memory
replaced which) and `golden_queries.jsonl` (what should be found, and what should not). They are
imported into a database of the eval's own, for proposals are accepted there. Reports have figures
alone, no text of a memory or a query.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pgvector import Vector
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError

import sql
from forgetting_assets import importing, judge, review
from forgetting_assets.calls import Means
from forgetting_assets.importing import MemoryRecord
from forgetting_assets.judging.rendering import NEIGHBOUR_CONTENT, PREAMBLE
from forgetting_assets.partition import Partition, of_day
from forgetting_assets.records import DIMENSIONS
from forgetting_assets.store import candidates, pairs, proposals, tenants
from forgetting_assets.store.pairs import DuePair
from resources.budget import Budget
from resources.clock import Clock
from resources.database import Database, bind
from resources.errors import BlastRadiusExceeded, EvalRefused, ReviewRefused
from resources.gateway import Decision, Gateway, Questions
from resources.policy import Policy
from resources.rate import TokenRate

QUERIES = sql.load("retrieval")

FLOORS = (0.82, 0.80, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50)
RANKS = (10, 20, 30, 40, 53, 60, 80, 100)
FLOOR = 0.5
"""The floor of a pass over these vectors: at it all labelled replacements are mined."""
TOP = 5
PROBABILITY = 0.99

Replacement = frozenset[UUID]
"""Two memories, of which one replaced the other.

Without an order: of two that were created at the same moment, the store cannot tell the newer.
"""


# The set


class Query(BaseModel):
    """A question by its vector, with the memories that answer it and those that must not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slice: str
    query: str
    expected: tuple[UUID, ...]
    forbidden: tuple[UUID, ...] = ()
    embedding: list[float] = Field(min_length=DIMENSIONS, max_length=DIMENSIONS)


class Replaced(BaseModel):
    """A labelled replacement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    newer: UUID
    older: UUID
    label: Literal["supersede"]


@dataclass(frozen=True)
class Golden:
    """The set as it was read. ``now`` is far enough after it for everything in it to be stale."""

    records: Sequence[MemoryRecord]
    replaced: Sequence[Replaced]
    queries: Sequence[Query]
    model: str
    now: datetime

    def own(self, number: int) -> Golden:
        """The same memories under other ids, for another tenant of one database.

        The last bits change, so memories of one moment stay in the order of their ids.
        """

        def other(id_: UUID) -> UUID:
            return UUID(int=id_.int ^ number)

        return Golden(
            [each.model_copy(update={"id": other(each.id)}) for each in self.records],
            [
                each.model_copy(update={"newer": other(each.newer), "older": other(each.older)})
                for each in self.replaced
            ],
            [
                each.model_copy(
                    update={
                        "expected": tuple(map(other, each.expected)),
                        "forbidden": tuple(map(other, each.forbidden)),
                    }
                )
                for each in self.queries
            ],
            self.model,
            self.now,
        )


def load(folder: Path) -> Golden:
    """Read the three files of a folder. Raises EvalRefused and ImportRefused, without any text."""
    memories = folder / "golden_memories.jsonl"
    try:
        replaced = TypeAdapter(list[Replaced]).validate_json(
            (folder / "golden_replaces.json").read_bytes()
        )
        queries = [
            Query.model_validate_json(line)
            for line in (folder / "golden_queries.jsonl").read_bytes().splitlines()
            if line.strip()
        ]
    except OSError as error:
        raise EvalRefused(
            f"The golden memories in {folder} cannot be read: {error.strerror}. The folder needs "
            "golden_memories.jsonl, golden_replaces.json and golden_queries.jsonl."
        ) from None
    except ValidationError as error:
        where = sorted({str(each["loc"][-1]) for each in error.errors() if each["loc"]})
        raise EvalRefused(
            f"The replacements or queries in {folder} are not of the documented form: look at "
            f"{', '.join(where) or 'the whole file'}."
        ) from None
    records = importing.read(memories, datetime.max.replace(tzinfo=UTC))
    models = {each.embedding_model for each in records if each.embedding}
    known = {each.id for each in records}
    named = {id_ for each in replaced for id_ in (each.newer, each.older)}
    named |= {id_ for each in queries for id_ in (*each.expected, *each.forbidden)}
    if unknown := len(named - known):
        raise EvalRefused(f"{unknown} ids in {folder} are of no memory in golden_memories.jsonl.")
    if len(models) != 1:
        raise EvalRefused(f"The vectors in {memories} are of {len(models)} models; one is needed.")
    latest = max(each.updated_at or each.created_at for each in records)
    return Golden(records, replaced, queries, str(models.pop()), latest + timedelta(days=90))


def _place(database: Database, golden: Golden, slug: str) -> Partition:
    """Import the memories for a tenant of their own, and give its newest partition.

    Raises EvalRefused for a database that has tenants of others.
    """
    there = {each.slug for each in tenants.all_tenants(database)}
    if slug in there or any(not each.startswith("eval-") for each in there):
        raise EvalRefused(
            "This measure imports memories and accepts proposals, so it needs a database of its "
            "own, without tenants: name an empty one in DATABASE_URL."
        )
    with database.registry() as connection:
        tx = bind(connection, tenants.add(connection, slug), exclusive=True)
        importing.insert(tx, golden.records, actor="import", now=golden.now)
    tenants.consent(database, slug, judgment=True)
    yesterday = (golden.now - timedelta(days=1)).date()
    return of_day(yesterday, tenants.find(database, slug), golden.now)


# Candidate recall


def decision_replacements(golden: Golden) -> set[Replacement]:
    """The labelled replacements whose both sides are decisions."""
    decisions = {each.id for each in golden.records if each.memory_type == "decision"}
    return {
        frozenset((each.older, each.newer))
        for each in golden.replaced
        if {each.older, each.newer} <= decisions
    }


def recall_by_rank(due: Sequence[DuePair], wanted: Set[Replacement], rank: int) -> float:
    """The share of ``wanted`` among the first ``rank`` due pairs.

    Raises ValueError when nothing is wanted: a recall of nothing says nothing.
    """
    if not wanted:
        raise ValueError("recall needs at least one labelled replacement")
    offered = {frozenset((pair.older_id, pair.newer_id)) for pair in due[:rank]}
    return len(wanted & offered) / len(wanted)


@dataclass(frozen=True)
class Offered:
    """How many pairs a floor or a rank lets through, and the share of replacements among them."""

    limit: float
    pairs: int
    recall: float


@dataclass(frozen=True)
class Recall:
    """The recall of labelled replacements against pairs judged, by floor and by rank.

    ``first_night``: among the pairs that one run takes, each memory in one at most.
    """

    wanted: int
    by_floor: Sequence[Offered]
    by_rank: Sequence[Offered]
    first_night: Offered

    @property
    def figures(self) -> dict[str, float | int]:
        """The figures by name, for machines."""
        return {
            "replacements": self.wanted,
            **{f"recall_at_floor_{each.limit:.2f}": each.recall for each in self.by_floor},
            **{f"pairs_at_floor_{each.limit:.2f}": each.pairs for each in self.by_floor},
            **{f"recall_in_best_{each.limit:.0f}": each.recall for each in self.by_rank},
            "recall_first_night": self.first_night.recall,
            "pairs_first_night": self.first_night.pairs,
        }

    def text(self) -> str:
        """The report for people, in at most 100 columns."""
        lines = [f"{self.wanted} labelled replacements of decisions by decisions", ""]
        lines.append("floor  pairs  recall")
        lines += [f" {e.limit:.2f}  {e.pairs:5}  {e.recall:6.2f}" for e in self.by_floor]
        lines += ["", f"best pairs at a floor of {FLOOR:.2f}  recall"]
        lines += [f"{e.limit:10.0f}  {e.recall:24.2f}" for e in self.by_rank]
        first = self.first_night
        shown = f"The first night judges {first.pairs} pairs that share no memory"
        lines += ["", f"{shown}: recall {first.recall:.2f}."]
        return "\n".join(lines) + "\n"


def recall(database: Database, folder: Path) -> Recall:
    """Mine the golden memories and see which labelled replacements the judge would be offered.

    To reach: all of them within the best 53 pairs.
    """
    golden = load(folder)
    partition = _place(database, golden, "eval-recall")
    wanted = decision_replacements(golden)
    if not wanted:
        raise EvalRefused(f"{folder} has no labelled replacement of a decision by a decision.")
    policy = Policy(conflict_floors={golden.model: min(FLOORS)})
    chosen = pairs.select(database, partition, policy, golden.now).pairs
    by_floor = []
    with database.tenant(partition.user_id) as tx:
        for floor in FLOORS:
            above = Policy(conflict_floors={golden.model: floor})
            due = list(pairs.due(tx, partition, above))
            by_floor.append(Offered(floor, len(due), recall_by_rank(due, wanted, len(due))))
        best = list(pairs.due(tx, partition, Policy(conflict_floors={golden.model: FLOOR})))
    return Recall(
        len(wanted),
        by_floor,
        [Offered(rank, min(rank, len(best)), recall_by_rank(best, wanted, rank)) for rank in RANKS],
        Offered(len(chosen), len(chosen), recall_by_rank(chosen, wanted, len(chosen))),
    )


# No harm


Choose = Callable[[Mapping[str, Any], Sequence[str]], str]
"""From an item of the state and its offered keys to the chosen one."""


class ToldJudge(Gateway):
    """A script in place of a judge: it answers as it is told, and judges nothing."""

    _name: str = PrivateAttr(default="scripted")
    _choose: Choose = PrivateAttr()

    @classmethod
    def that(cls, name: str, choose: Choose) -> ToldJudge:
        """A script of this name."""
        judge = cls()
        judge._name, judge._choose = f"scripted-{name}", choose
        return judge

    @property
    def pinned_model(self) -> str:
        return self._name

    def decide(self, state: str, questions: Questions) -> Decision:
        block = state.removeprefix(PREAMBLE).strip("`\n").removeprefix("json")
        answers: dict[str, object] = {}
        for item in json.loads(block)["items"]:
            criteria = questions[item["ref"]]["criteria"]
            assert isinstance(criteria, dict)
            keys = list(criteria)
            chosen, rest = self._choose(item, keys), (1 - PROBABILITY) / max(1, len(keys) - 1)
            answers[item["ref"]] = {
                "type": "choice",
                "choice": chosen,
                "probabilities": {key: PROBABILITY if key == chosen else rest for key in keys},
            }
        return Decision(self._name, answers, len(state) // 4, len(answers), None)


def by_labels(golden: Golden) -> Choose:
    """Supersede for the labelled replacements, keep for everything else.

    A pair of one moment that the store orders the other way round is kept: its older side is the
    replacement.
    """
    ids = {_seen(each.topic, each.content): each.id for each in golden.records}
    if len(ids) < len(golden.records):
        raise EvalRefused("Two golden memories start alike, so a script cannot tell them apart.")
    labelled = {(each.older, each.newer) for each in golden.replaced}

    def id_of(side: Mapping[str, str]) -> UUID:
        return ids[_seen(side["topic"], side["content"])]

    def choose(item: Mapping[str, Any], keys: Sequence[str]) -> str:
        if item["kind"] == "pair":
            replaced = (id_of(item["older"]), id_of(item["newer"])) in labelled
            return "supersede_older" if replaced else keys[0]
        judged = id_of(item["memory"])
        for newer in item["newer"]:
            key = f"supersede_by:{newer['ref']}"
            if key in keys and (judged, id_of(newer)) in labelled:
                return key
        return keys[0]

    return choose


def hostile(item: Mapping[str, Any], keys: Sequence[str]) -> str:
    """End whatever may be ended: the older of each pair is superseded, each single is archived."""
    ending = "supersede_older" if item["kind"] == "pair" else "archive"
    return ending if ending in keys else keys[0]  # a blocker is never ended


def _seen(topic: str, content: str) -> tuple[str, str]:
    """A memory by what the judge sees of it wherever it stands."""
    return topic[:NEIGHBOUR_CONTENT], content[:NEIGHBOUR_CONTENT]


@dataclass(frozen=True)
class Retrieval:
    """What a vector search over live memories finds, as means over the queries of a slice.

    ``recall``: the share of expected memories in the best five. ``mrr``: one over the rank of the
    first expected one, 0 without. ``forbidden``: queries with an outdated memory in the best five.
    ``outranked``: queries where an outdated memory stands above every expected one.
    """

    queries: int
    recall: float
    mrr: float
    forbidden: int
    outranked: int


Rankings = Sequence[Sequence[UUID]]


def rank(database: Database, golden: Golden, user_id: UUID) -> Rankings:
    """Every live memory of a tenant in the order of each query, by exact cosine."""
    with database.tenant(user_id) as tx:
        return [
            [
                row.id
                for row in tx.rows(
                    QUERIES["rank_memories"],
                    embedding=Vector(query.embedding).to_text(),
                    model=golden.model,
                )
            ]
            for query in golden.queries
        ]


def retrieval(golden: Golden, rankings: Rankings, slice: str | None = None) -> Retrieval:
    """The measures over the queries that expect something, of one slice or of all.

    Raises ValueError when there is none.
    """
    found, first, forbidden, outranked = [], [], 0, 0
    for query, ranking in zip(golden.queries, rankings, strict=True):
        if not query.expected or slice not in (None, query.slice):
            continue
        top, expected = ranking[:TOP], set(query.expected)
        places = {id_: place for place, id_ in enumerate(ranking, start=1)}
        best = min((places[id_] for id_ in expected if id_ in places), default=None)
        found.append(len(expected & set(top)) / len(expected))
        first.append(0.0 if best is None else 1 / best)
        forbidden += bool(set(query.forbidden) & set(top))
        outdated = min((places[id_] for id_ in query.forbidden if id_ in places), default=None)
        outranked += outdated is not None and (best is None or outdated < best)
    if not found:
        raise ValueError("retrieval is measured on queries that expect something")
    count = len(found)
    return Retrieval(count, sum(found) / count, sum(first) / count, forbidden, outranked)


@dataclass(frozen=True)
class Arm:
    """One full pass with every proposal accepted, by one script.

    ``held_back``: the blast radius refused the proposals of the pass as it ships, and was lifted to
    see what it held back. ``still_found``: queries that return a memory the pass ended.
    ``overtaken``: queries for the successor of a superseded memory that put it below that memory,
    before and after.
    """

    name: str
    about: str
    items: int
    proposed: int
    superseded: int
    archived: int
    refused: int
    held_back: bool
    still_found: int
    overtaken: tuple[int, int]
    before: Mapping[str, Retrieval]
    after: Mapping[str, Retrieval]

    @property
    def harmless(self) -> bool:
        """Neither measure fell, and nothing that was ended is found or outranks its successor."""
        before, after = self.before["all"], self.after["all"]
        fell = after.recall < before.recall or after.mrr < before.mrr
        return not fell and self.still_found == 0 and self.overtaken[1] == 0


@dataclass(frozen=True)
class NoHarm:
    """What accepting every proposal of a pass does to retrieval. No judge was asked."""

    arms: Sequence[Arm]

    @property
    def figures(self) -> dict[str, float | int]:
        """The figures by name, for machines. ``judged`` 0: every answer is a script's."""
        figures: dict[str, float | int] = {"judged": 0}
        for arm in self.arms:
            for name in ("items", "proposed", "superseded", "archived", "refused", "held_back"):
                figures[f"{arm.name}_{name}"] = int(getattr(arm, name))
            figures[f"{arm.name}_still_found"] = arm.still_found
            for when, count in zip(("before", "after"), arm.overtaken, strict=True):
                figures[f"{arm.name}_overtaken_{when}"] = count
            for when, measured in (("before", arm.before), ("after", arm.after)):
                for slice, each in measured.items():
                    for name, value in vars(each).items():
                        figures[f"{arm.name}_{slice}_{name}_{when}"] = value
        return figures

    def text(self) -> str:
        """The report for people, in at most 100 columns."""
        lines = ["No judge was asked: every answer is a script's.", ""]
        for arm in self.arms:
            did = f"{arm.superseded} superseded and {arm.archived} archived a memory"
            lines.append(f"{arm.name}: {arm.about}")
            lines.append(
                f"  {arm.items} items, {arm.proposed} proposals: {did}, {arm.refused} refused"
            )
            if arm.held_back:
                lines.append(
                    "  The pass as it ships proposes none of this: the blast radius stops it. It "
                    "was lifted here."
                )
            lines.append(
                f"  {'queries':20} recall@{TOP}         MRR              outdated in 5  outranks"
            )
            for slice, before in arm.before.items():
                after = arm.after[slice]
                lines.append(
                    f"  {f'{slice} ({before.queries})':20} "
                    f"{before.recall:.3f} -> {after.recall:.3f}  "
                    f"{before.mrr:.3f} -> {after.mrr:.3f}  "
                    f"{before.forbidden:4} -> {after.forbidden:<4}  "
                    f"{before.outranked:4} -> {after.outranked:<4}".rstrip()
                )
            below, still = arm.overtaken
            lines += [
                f"  Queries that find an ended memory: {arm.still_found}",
                f"  Queries that put a successor below what it superseded: {below} -> {still}",
                "",
            ]
        return "\n".join(lines)


def no_harm(database: Database, folder: Path) -> NoHarm:
    """Measure retrieval before and after a pass whose every proposal is accepted.

    Once by the labels, and once by a script that ends whatever it is offered, which shows what a
    bad judge could do when it is believed blindly, within the caps of one night.
    """
    golden = load(folder)
    if not any(query.expected for query in golden.queries):
        raise EvalRefused(f"No query in {folder} expects a memory, so nothing can be measured.")
    labelled, ending = golden.own(1), golden.own(2)
    return NoHarm(
        [
            _arm(
                database,
                labelled,
                "labels",
                "superseded as labelled, everything else kept",
                by_labels(labelled),
            ),
            _arm(
                database,
                ending,
                "hostile",
                "pairs superseded, singles archived, whatever they say",
                hostile,
            ),
        ]
    )


def _arm(database: Database, golden: Golden, name: str, about: str, choose: Choose) -> Arm:
    partition = _place(database, golden, f"eval-{name}")
    user_id, now = partition.user_id, golden.now
    before = rank(database, golden, user_id)
    items, proposed, held_back = _propose(database, partition, golden, name, choose)
    waiting = review.list_open(database, user_id, review.Filters(limit=None), now).rows
    archived: set[UUID] = set()
    superseded: dict[UUID, UUID] = {}
    refused = 0
    for proposal in waiting:
        try:
            if review.accept(database, user_id, proposal.id, now):
                if proposal.action == "archive":
                    archived.add(proposal.memory_id)
                else:
                    superseded[proposal.memory_id] = proposal.related_memory_id
        except ReviewRefused:
            refused += 1
    after = rank(database, golden, user_id)
    gone = archived | superseded.keys()
    return Arm(
        name=name,
        about=about,
        items=items,
        proposed=proposed,
        superseded=len(superseded),
        archived=len(archived),
        refused=refused,
        held_back=held_back,
        still_found=sum(not gone.isdisjoint(ranking) for ranking in after),
        overtaken=(_overtaken(golden, before, superseded), _overtaken(golden, after, superseded)),
        before=_by_slice(golden, before),
        after=_by_slice(golden, after),
    )


def _propose(
    database: Database, partition: Partition, golden: Golden, name: str, choose: Choose
) -> tuple[int, int, bool]:
    """A pass up to its proposals: items judged, proposals, and whether the radius was lifted."""
    clock, script = Clock(fixed=golden.now.isoformat()), ToldJudge.that(name, choose)
    policy = Policy(conflict_floors={golden.model: FLOOR})
    means = Means(
        database,
        script,
        Budget(database=database, clock=clock, prices={script.pinned_model: [0.0, 0.0]}),
        TokenRate(database=database, clock=clock),
        clock,
        policy,
    )
    pairs.select(database, partition, policy, golden.now)
    candidates.select(database, partition, policy, golden.now)
    done = judge.judge(means, partition, lambda _: None)
    if done.stopped or done.left:
        raise EvalRefused(f"The pass left {done.left} items unjudged: {done.stopped}")
    try:
        written, held_back = proposals.write(database, partition, policy, golden.now), False
    except BlastRadiusExceeded:
        lifted = policy.model_copy(update={"blast_radius": 1.0})
        written, held_back = proposals.write(database, partition, lifted, golden.now), True
    return done.items, written.proposed.total(), held_back


def _overtaken(golden: Golden, rankings: Rankings, superseded: Mapping[UUID, UUID]) -> int:
    count = 0
    for query, ranking in zip(golden.queries, rankings, strict=True):
        places = {id_: place for place, id_ in enumerate(ranking)}
        count += any(
            newer in query.expected
            and older in places
            and places[older] < places.get(newer, len(ranking))
            for older, newer in superseded.items()
        )
    return count


def _by_slice(golden: Golden, rankings: Rankings) -> dict[str, Retrieval]:
    slices = sorted({query.slice for query in golden.queries if query.expected})
    return {
        "all": retrieval(golden, rankings),
        **{slice: retrieval(golden, rankings, slice) for slice in slices},
    }
