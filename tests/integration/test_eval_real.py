"""Candidate recall and no-harm: on a small invented set, and on the real one where it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from eval import real
from resources.database import Database
from resources.errors import EvalRefused
from tests.support import Store, degrees, vector

MARKER = "Ottoline keeps the violet ledger"
OLD, NEW = UUID(int=16), UUID(int=32)


def write(folder: Path, *, replaced: bool = True, model: str = "minilm") -> Path:
    """Two dozen memories apart from each other and one pair, and a query for each of a few.

    The query of the pair is nearer to the older one, which the newer one replaced.
    """
    start = datetime(2026, 1, 5, 9, tzinfo=UTC)

    def memory(id_: UUID, number: int, embedding: list[float]) -> dict[str, Any]:
        return {
            "id": str(id_),
            "memory_type": "decision" if id_ in (OLD, NEW) else "fact",
            "scope": "work",
            "topic": f"topic {number}",
            "content": f"{MARKER} {number}",
            "created_at": (start + timedelta(days=number)).isoformat(),
            "embedding_model": model,
            "embedding": embedding,
        }

    others = [UUID(int=1000 * n) for n in range(1, 25)]
    memories = [
        memory(OLD, 0, vector(0)),
        memory(NEW, 1, vector(degrees(0.72))),
        *(memory(id_, n, vector(0, n)) for n, id_ in enumerate(others, start=2)),
    ]
    queries = [
        {
            "slice": "supersession",
            "query": MARKER,
            "expected": [str(NEW)],
            "forbidden": [str(OLD)],
            "embedding": vector(10),
        },
        *(
            {
                "slice": "retrieval",
                "query": MARKER,
                "expected": [str(id_)],
                "forbidden": [],
                "embedding": vector(3, n),
            }
            for n, id_ in list(enumerate(others, start=2))[:9]
        ),
        {
            "slice": "abstention",
            "query": MARKER,
            "expected": [],
            "forbidden": [],
            "embedding": vector(0, 300),
        },
    ]
    labels = [{"newer": str(NEW), "older": str(OLD), "label": "supersede"}] if replaced else []
    for name, lines in (("golden_memories", memories), ("golden_queries", queries)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "golden_replaces.json").write_text(json.dumps(labels))
    return folder


def test_recall_counts_the_labelled_pair_at_each_floor_and_rank(
    database: Database, tmp_path: Path
) -> None:
    found = real.recall(database, write(tmp_path))
    assert found.wanted == 1
    assert {e.limit: (e.pairs, e.recall) for e in found.by_floor} == {
        floor: (1, 1.0) if floor <= 0.7 else (0, 0.0) for floor in real.FLOORS
    }
    assert {e.recall for e in found.by_rank} == {1.0}
    assert (found.first_night.pairs, found.first_night.recall) == (1, 1.0)
    assert found.figures["recall_at_floor_0.82"] == 0
    assert found.figures["recall_in_best_53"] == 1
    assert max(map(len, found.text().splitlines())) <= 100


def test_by_the_labels_the_outdated_memory_leaves_and_its_successor_rises(
    database: Database, tmp_path: Path
) -> None:
    labels, hostile = real.no_harm(database, write(tmp_path)).arms
    assert (labels.superseded, labels.archived, labels.refused) == (1, 0, 0)
    assert not labels.held_back
    before, after = labels.before["supersession"], labels.after["supersession"]
    assert (before.recall, before.mrr, before.forbidden, before.outranked) == (1.0, 0.5, 1, 1)
    assert (after.recall, after.mrr, after.forbidden, after.outranked) == (1.0, 1.0, 0, 0)
    assert labels.overtaken == (1, 0)
    assert labels.after["retrieval"] == labels.before["retrieval"]
    assert labels.before["all"].queries == 10  # the one that expects nothing is in no mean
    assert labels.harmless

    # The control: what ends whatever it is offered is held back, and is seen to do harm.
    assert hostile.held_back
    assert hostile.superseded + hostile.archived > 20
    assert hostile.after["all"].recall < 0.5
    assert not hostile.harmless
    assert hostile.still_found == 0


def test_the_figures_say_that_no_judge_was_asked_and_quote_nothing(
    database: Database, tmp_path: Path
) -> None:
    done = real.no_harm(database, write(tmp_path))
    assert done.figures["judged"] == 0
    assert done.figures["labels_all_mrr_after"] == 1.0
    assert done.figures["hostile_held_back"] == 1
    text = done.text()
    assert text.startswith("No judge was asked: every answer is a script's.")
    assert "the blast radius stops it" in text
    assert MARKER not in text
    assert "topic" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_database_with_tenants_is_left_alone(store: Store, tmp_path: Path) -> None:
    folder = write(tmp_path)
    store.tenant()
    before = store.dump("memories", "tenants", "retention_proposals")
    for measure in (real.recall, real.no_harm):
        with pytest.raises(EvalRefused, match="needs a database of its own"):
            measure(store.database, folder)
    assert store.dump("memories", "tenants", "retention_proposals") == before


def test_both_measures_fit_into_one_database_and_neither_twice(
    database: Database, tmp_path: Path
) -> None:
    folder = write(tmp_path)
    real.recall(database, folder)
    real.no_harm(database, folder)
    with pytest.raises(EvalRefused, match="name an empty one"):
        real.recall(database, folder)


def test_a_folder_that_cannot_be_measured_is_refused_without_its_text(
    database: Database, tmp_path: Path
) -> None:
    def refused() -> str:
        with pytest.raises(EvalRefused) as refusal:
            real.recall(database, tmp_path)
        assert MARKER not in str(refusal.value)
        return str(refusal.value)

    assert "cannot be read: No such file or directory" in refused()
    write(tmp_path, replaced=False)
    assert "no labelled replacement of a decision" in refused()
    write(tmp_path)
    labels = tmp_path / "golden_replaces.json"
    kept = labels.read_text()
    labels.write_text(kept.replace(str(OLD), str(UUID(int=5))))
    assert "1 ids in" in refused()
    labels.write_text(kept.replace("supersede", MARKER))
    assert "not of the documented form: look at label" in refused()


# The real set


def test_all_ten_replacements_are_within_the_best_53_pairs(
    database: Database, shared_data: Path
) -> None:
    found = real.recall(database, shared_data)
    assert found.wanted == 10
    assert found.figures["recall_at_floor_0.82"] == 0.0
    assert found.figures["recall_at_floor_0.50"] == 1.0
    assert found.figures["recall_in_best_53"] == 1.0


def test_by_the_labels_retrieval_of_real_memories_does_not_suffer(
    database: Database, shared_data: Path
) -> None:
    done = real.no_harm(database, shared_data)
    labels, hostile = done.arms
    assert labels.superseded > 0
    assert labels.archived == labels.refused == 0
    assert not labels.held_back
    assert labels.after["all"].recall >= labels.before["all"].recall
    assert labels.after["all"].mrr >= labels.before["all"].mrr
    assert labels.after["supersession"].forbidden < labels.before["supersession"].forbidden
    assert labels.still_found == 0
    assert labels.overtaken[1] == 0
    assert labels.harmless
    # The control: the measure sees harm, and the pass as it ships would not have done it.
    assert hostile.held_back
    assert hostile.after["all"].recall < hostile.before["all"].recall
    assert not hostile.harmless
