"""Items of a partition and the verdicts on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sql
from forgetting_assets.judging.items import Item, Memory, Pair, Single
from forgetting_assets.judging.rendering import digest
from forgetting_assets.judging.shadow import Shadow
from forgetting_assets.judging.verdicts import Verdict
from forgetting_assets.partition import Partition
from resources.database import Database, TenantTransaction
from resources.gateway import Decision

QUERIES = sql.load("verdicts")

Cell = str | float
"""What a preview shows in one place: an id, a type or a figure."""


def read_items(database: Database, partition: Partition) -> list[Item]:
    """The partition's pairs, then its singles that no pair covers, with their text as it is now.

    An item whose judged side is no longer live, or is of another type than when it was selected, is
    left out, and so is a blocker without a live newer neighbour.
    """
    with database.tenant(partition.user_id) as tx:
        pairs = tx.rows(QUERIES["read_pairs"], run_date=partition.run_date)
        singles = tx.rows(QUERIES["read_singles"], run_date=partition.run_date)
        ids = [id_ for row in pairs for id_ in (row.older_id, row.newer_id)]
        ids += [id_ for row in singles for id_ in (row.memory_id, *row.newer_ids)]
        live = {
            row.id: Memory(**row._mapping) for row in tx.rows(QUERIES["read_memories"], ids=ids)
        }

    def of_type(memory_type: str, id_: UUID) -> Memory | None:
        memory = live.get(id_)
        return memory if memory and memory.memory_type == memory_type else None

    items: list[Item] = []
    for row in pairs:
        older, newer = (of_type(row.memory_type, id_) for id_ in (row.older_id, row.newer_id))
        if older and newer:
            items.append(Pair(older, newer, row.similarity))
    for row in singles:
        memory = of_type(row.memory_type, row.memory_id)
        newer_ones = (of_type(row.memory_type, id_) for id_ in row.newer_ids)
        neighbours = tuple(each for each in newer_ones if each)
        if memory and (neighbours or memory.memory_type != "blocker"):
            items.append(Single(memory, neighbours))
    return items


def reuse(
    database: Database, partition: Partition, model: str, items: Sequence[Item]
) -> tuple[list[Item], int]:
    """The items that still need a verdict, and how many another partition's verdict was taken for.

    A verdict serves again when model and rendered input are the same; it is never asked for twice.
    """
    digests = {digest(item): item for item in items}
    with database.tenant(partition.user_id) as tx:
        known = tx.rows(
            QUERIES["find_known"],
            model=model,
            digests=list(digests),
            run_date=partition.run_date,
        )
        elsewhere = [row for row in known if row.run_date != partition.run_date]
        for row in elsewhere:
            tx.run(QUERIES["reuse_verdict"], run_date=partition.run_date, id=row.id)
    settled = {row.input_digest for row in known}
    open_items = [item for key, item in digests.items() if key not in settled]
    return open_items, len(elsewhere)


@dataclass(frozen=True)
class Unjudged:
    """An item that was put to the judge and got no verdict: ``too_large`` or ``answer_rejected``.

    ``detail`` says what was wrong, without content.
    """

    item: Item
    reason: str
    detail: str


@dataclass(frozen=True)
class Record:
    """Where the results of one judging are written down: its partition, model and time.

    ``asking`` numbers the times that the partition's items were asked about on purpose.
    """

    database: Database
    partition: Partition
    model: str
    judged_at: datetime
    asking: int = 1

    def verdicts(
        self, decision: Decision, given: Sequence[Verdict], shadows: Mapping[UUID, Shadow]
    ) -> int:
        """Commit the verdicts of one call; how many. ``shadows`` are by a pair's older memory.

        A verdict on a memory that was deleted, or became an event or a note, while the judge was
        asked is left out, and takes none of its neighbours with it.
        """
        written = 0
        with self.database.tenant(self.partition.user_id) as tx:
            named = [_named(verdict.item, verdict.related) for verdict in given]
            there = _judgeable(tx, named)
            for verdict, ids in zip(given, named, strict=True):
                if not ids <= there:
                    continue
                written += 1
                id_ = self._insert(tx, decision, verdict)
                shadow = shadows.get(verdict.item.subject.id)
                if id_ and shadow:
                    tx.run(QUERIES["insert_shadow"], verdict_id=id_, **vars(shadow))
        return written

    def unjudged(self, items: Sequence[Unjudged]) -> None:
        """Commit what got no verdict, of memories that are still there."""
        with self.database.tenant(self.partition.user_id) as tx:
            named = [_named(each.item, None) for each in items]
            there = _judgeable(tx, named)
            for each, ids in zip(items, named, strict=True):
                if not ids <= there:
                    continue
                tx.run(
                    QUERIES["insert_unjudged"],
                    run_date=self.partition.run_date,
                    memory_id=each.item.subject.id,
                    newer_id=each.item.newer.id if isinstance(each.item, Pair) else None,
                    input_digest=digest(each.item),
                    model=self.model,
                    reason=each.reason,
                    detail=each.detail,
                    recorded_at=self.judged_at,
                )

    def _insert(self, tx: TenantTransaction, decision: Decision, verdict: Verdict) -> UUID | None:
        item, subject, related = verdict.item, verdict.item.subject, verdict.related
        newer: UUID | None = item.newer.id if isinstance(item, Pair) else None
        inserted = tx.first(
            QUERIES["insert_verdict"],
            run_date=self.partition.run_date,
            kind="pair" if isinstance(item, Pair) else "single",
            memory_id=subject.id,
            newer_id=newer,
            newer_ids=[] if isinstance(item, Pair) else [each.id for each in item.newer],
            memory_type=subject.memory_type,
            verdict=verdict.action,
            related_memory_id=related.id if related else None,
            answer_key=verdict.answer_key,
            probability=verdict.probability,
            probabilities=json.dumps(verdict.probabilities),
            model=self.model,
            answer_model=decision.model,
            input_digest=digest(item),
            memory_content_hash=subject.content_hash,
            memory_freshness=subject.freshness,
            related_content_hash=related.content_hash if related else None,
            related_freshness=related.freshness if related else None,
            request_id=decision.request_id,
            judged_at=self.judged_at,
            asking=self.asking,
        )
        return inserted.id if inserted else None


def _named(item: Item, related: Memory | None) -> set[UUID]:
    """The memories that a row about an item names."""
    sides = [item.older, item.newer] if isinstance(item, Pair) else [item.memory]
    return {memory.id for memory in (*sides, *([related] if related else []))}


def _judgeable(tx: TenantTransaction, named: Sequence[set[UUID]]) -> set[UUID]:
    """Which memories are there and of a type that is judged; they stay so until the end."""
    ids = list(set().union(*named))
    return {row.id for row in tx.rows(QUERIES["hold_memories"], ids=ids)}


def next_asking(database: Database, partition: Partition) -> int:
    """The number under which the partition's items are asked about once more, 1 at first."""
    with database.tenant(partition.user_id) as tx:
        return int(tx.one(QUERIES["next_asking"], run_date=partition.run_date).asking)


@dataclass(frozen=True)
class Docket:
    """The items that a judging asks about, by how: together, alone, or not at all.

    ``suspects`` had an answer rejected before, so that none takes its neighbours with it;
    ``unjudgeable`` ones are left alone.
    """

    together: list[Item]
    suspects: list[Item]
    unjudgeable: list[Item]


def sort(
    database: Database,
    partition: Partition,
    model: str,
    items: Sequence[Item],
    *,
    since: datetime,
    rejections: int,
) -> Docket:
    """Sort items by what stood against exactly them, with this model, ``since`` a moment."""
    digests = {digest(item): item for item in items}
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["find_unjudged"], model=model, since=since, digests=list(digests))
    against = {row.input_digest: row for row in rows}
    docket = Docket([], [], [])
    for key, item in digests.items():
        before = against.get(key)
        if before is None:
            docket.together.append(item)
        elif before.too_large or before.rejections >= rejections:
            docket.unjudgeable.append(item)
        else:
            docket.suspects.append(item)
    return docket


def count(database: Database, partition: Partition) -> Mapping[str, int]:
    """The verdicts that stand for the partition's items, by outcome."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["count_verdicts"], run_date=partition.run_date)
        return {row.verdict: row.verdicts for row in rows}


def preview(database: Database, partition: Partition) -> list[dict[str, Cell]]:
    """A few of the partition's verdicts: ids, types and figures."""
    with database.tenant(partition.user_id) as tx:
        rows = tx.rows(QUERIES["preview_verdicts"], run_date=partition.run_date)
    return [
        {
            "memory_id": str(row.memory_id),
            "memory_type": row.memory_type,
            "kind": row.kind,
            "verdict": row.verdict,
            "probability": row.probability,
        }
        for row in rows
    ]
