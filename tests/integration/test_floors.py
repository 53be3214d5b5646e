"""Choosing a floor: what `forgetting floor` says each would find, against what mining finds."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from forgetting_assets import floors, vectors
from forgetting_assets.floors import FLOORS, Label, Model
from forgetting_assets.store import mining, tenants
from resources.errors import ImportRefused
from tests.support import TODAY, Store, ago, vector

ZERO = [0.0] * 1536


def measured(store: Store, *labels: Label, slug: str = "acme") -> list[Model]:
    """What the command prints."""
    return floors.measure(store.database, tenants.find(store.database, slug), labels)


def mined(store: Store, user_id: UUID, floor: float, model: str) -> list[dict[str, Any]]:
    """What a first mining finds at a floor."""
    store.execute("DELETE FROM forgetting.minings")
    store.execute("DELETE FROM forgetting.mined_memories")
    every = {row["embedding_model"] for row in store.rows(MODELS)} | {"unknown"}
    with store.database.tenant(user_id, exclusive=True) as tx:
        mining.update(tx, "acme", dict.fromkeys(every, floor), TODAY)
    return store.rows(
        "SELECT older_id, newer_id FROM forgetting.similar_pairs WHERE embedding_model = :model",
        model=model,
    )


MODELS = "SELECT DISTINCT embedding_model FROM forgetting.embedding_models"


def at(floor: float, model: Model) -> tuple[int, int, int]:
    """Pairs, memories in one, and labelled pairs found at a candidate floor."""
    (found,) = (each for each in model.candidates if each.floor == floor)
    return found.pairs, found.memories, found.labelled


def scatter(store: Store, user_id: UUID, number: int, seed: int, **common: Any) -> list[UUID]:
    """Memories around a few directions, so that their cosines lie all over the candidates."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((4, 1536))
    return [
        store.memory(
            user_id,
            age=60 - place / 10,
            embedding=(
                centres[place % 4] + random.uniform(0.1, 1.2) * random.standard_normal(1536)
            ).tolist(),
            **common,
        )
        for place in range(number)
    ]


@pytest.mark.parametrize("block", [None, 7])
def test_each_candidate_counts_what_a_mining_at_that_floor_finds(
    store: Store, monkeypatch: pytest.MonkeyPatch, block: int | None
) -> None:
    acme = store.tenant()
    scatter(store, acme, 25, 1)
    scatter(store, acme, 17, 2, project="atlas")
    scatter(store, acme, 9, 3, memory_type="decision", embedding_model="minilm")
    scatter(store, acme, 6, 4, memory_type="event")
    for embedding in (ZERO, None):
        store.memory(acme, embedding=embedding)
    if block:  # groups of several blocks, and blocks of several groups
        monkeypatch.setattr(mining, "BLOCK", block)
        monkeypatch.setattr(floors, "STRIP", 3)
    plain, minilm = measured(store)
    assert [plain.name, minilm.name] == ["test-embedding", "minilm"]
    assert (plain.memories, minilm.memories) == (43, 9)
    assert (plain.compared, minilm.compared) == (math.comb(25, 2) + math.comb(17, 2), 36)
    for model in (plain, minilm):
        counts = [each.pairs for each in model.candidates]
        assert counts == sorted(counts)
        assert counts[-1] > counts[0], "the candidates differ, else this shows nothing"
        for floor in FLOORS:
            pairs = mined(store, acme, floor, model.name)
            sides = {id_ for row in pairs for id_ in row.values()}
            assert at(floor, model)[:2] == (len(pairs), len(sides))


def test_nothing_is_written(store: Store) -> None:
    acme = store.tenant()
    store.pair(acme, 0.9)
    tables = ("memories", "forgetting.minings", "forgetting.mined_memories")
    before = store.dump(*tables, "forgetting.similar_pairs")
    assert at(0.9, measured(store)[0])[0] == 1
    assert store.dump(*tables, "forgetting.similar_pairs") == before


def test_a_model_without_a_floor_is_measured_too_and_one_never_recorded_is_unknown(
    store: Store,
) -> None:
    acme = store.tenant()
    store.pair(acme, 0.72, embedding_model="never-heard-of")
    store.pair(acme, 0.62, embedding_model=None)
    models = {model.name: model for model in measured(store)}
    assert set(models) == {"never-heard-of", "unknown"}
    assert [at(floor, models["never-heard-of"])[0] for floor in (0.75, 0.7)] == [0, 1]
    assert [at(floor, models["unknown"])[0] for floor in (0.65, 0.6)] == [0, 1]


def test_labelled_pairs_are_found_at_their_cosine_whichever_way_round(store: Store) -> None:
    acme = store.tenant()
    close, far = store.pair(acme, 0.88), store.pair(acme, 0.57)
    labels = [Label(older=close[0], newer=close[1]), Label(older=far[1], newer=far[0])]
    (model,) = measured(store, *labels)
    assert (model.labelled, model.apart) == (2, 0)
    assert [at(floor, model)[2] for floor in (0.9, 0.85, 0.6, 0.55)] == [0, 1, 1, 2]


def test_a_labelled_pair_that_is_not_compared_is_found_at_no_floor_and_counted(
    store: Store,
) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    one = store.memory(acme, age=60, embedding=vector(0))
    apart = [
        store.memory(acme, embedding=vector(0), project="atlas"),
        store.memory(acme, embedding=vector(0), memory_type="decision"),
        store.memory(acme, embedding=vector(0), memory_type="event"),
        store.memory(acme, embedding=vector(0), valid_to=ago(1)),
        store.memory(acme, embedding=None),
        store.memory(acme, embedding=ZERO),
        store.memory(borea, embedding=vector(0)),
        uuid4(),
    ]
    labels = [Label(older=one, newer=other) for other in apart]
    nowhere = Label(older=uuid4(), newer=uuid4())
    (model,) = measured(store, *labels, nowhere)
    assert (model.labelled, model.apart) == (len(apart), len(apart))
    assert {at(floor, model)[2] for floor in FLOORS} == {0}


def test_of_two_models_each_has_its_own_labels(store: Store) -> None:
    acme = store.tenant()
    plain, minilm = store.pair(acme, 0.9), store.pair(acme, 0.9, embedding_model="minilm")
    labels = [Label(older=older, newer=newer) for older, newer in (plain, minilm)]
    for model in measured(store, *labels):
        assert (model.labelled, at(0.85, model)[2]) == (1, 1)


def test_br_42_another_tenant_s_memories_are_neither_compared_nor_counted(store: Store) -> None:
    acme, borea = store.tenant(), store.tenant("borea")
    for tenant, age in itertools.product((acme, borea), (60, 50)):
        store.memory(tenant, age=age, embedding=vector(0))
    for slug in ("acme", "borea"):
        (model,) = measured(store, slug=slug)
        assert (model.memories, model.compared, at(0.95, model)) == (2, 1, (1, 2, 0))


def test_a_memory_that_went_while_it_was_measured_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant()
    scatter(store, acme, 9, 5)
    gone = store.rows("SELECT id FROM memories ORDER BY id")[4]["id"]
    read = mining.read

    def after_it_went(*arguments: Any) -> vectors.Block | None:
        store.execute("DELETE FROM memories WHERE id = :id", id=gone)
        return read(*arguments)

    monkeypatch.setattr(mining, "read", after_it_went)
    (model,) = measured(store)
    monkeypatch.undo()
    (again,) = measured(store)
    assert (model.memories, again.memories) == (9, 8)
    assert model.compared == again.compared == math.comb(8, 2)
    assert model.candidates == again.candidates


def test_labels_are_an_array_of_objects_with_two_ids(tmp_path: Path) -> None:
    one, other = uuid4(), uuid4()
    path = tmp_path / "labels.json"
    path.write_text(json.dumps([{"older": str(one), "newer": str(other), "label": "supersede"}]))
    assert floors.read_labels(path) == [Label(older=one, newer=other)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Invalid JSON"),
        ('{"older": 1}', "Input should be a valid array"),
        ("[{}]", "pair 1: Field required"),
        (
            f'[{{"older": "{UUID(int=1)}", "newer": "SECRET"}}]',
            "pair 1: Input should be a valid UUID",
        ),
    ],
)
def test_bad_labels_are_refused_with_a_sentence_that_quotes_nothing(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(ImportRefused, match="is no JSON array of objects") as refused:
        floors.read_labels(path)
    assert reason in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_a_labels_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="cannot be read: No such file"):
        floors.read_labels(tmp_path / "none.json")


def test_the_real_replacements_need_a_floor_of_one_half(store: Store, shared_data: Path) -> None:
    from forgetting_assets import importing

    importing.import_file(store.database, shared_data / "golden_memories.jsonl", "golden", TODAY)
    labels = floors.read_labels(shared_data / "golden_replaces.json")
    (model,) = measured(store, *labels, slug="golden")
    assert (model.labelled, model.apart) == (12, 2)
    assert at(0.8, model)[2] == 1
    assert at(0.5, model) == (53, 40, 10)
