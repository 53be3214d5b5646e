"""Zero episodic collapse over 300 recurring episodes, through the real candidate queries.

None of 300 entered: by the exact bound of Clopper and Pearson at most 1 % of such entries would
(eval/recurring.py). The same texts as decisions do enter, so the queries would have found them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from scipy.stats import beta

from eval.recurring import Episode, episodes
from forgetting_assets import importing
from forgetting_assets.store import candidates, pairs, tenants
from tests.support import TODAY, Pass, Store, TestJudge, make_policy, say, vector

COUNT = 300
SLUG = "acme"
CONTROL = "The release is announced by e-mail"


@pytest.fixture(scope="module")
def recurring() -> list[Episode]:
    return episodes(seed=7, count=COUNT)


def test_three_hundred_episodes_over_weeks_are_alike_and_each_bears_its_own_day(
    recurring: list[Episode],
) -> None:
    assert recurring == episodes(seed=7, count=COUNT) != episodes(seed=8, count=COUNT)
    assert len({each.content for each in recurring}) == COUNT
    assert {each.memory_type for each in recurring} == {"event", "note"}
    assert (recurring[-1].created_at - recurring[0].created_at).days > 90
    assert sum(each.reads_as_correction for each in recurring) > COUNT / 6
    assert all(
        f"{each.created_at.day} {each.created_at:%B %Y}" in each.content for each in recurring
    )
    series: dict[str, int] = {}
    for each in recurring:
        series[each.series] = series.get(each.series, 0) + 1
    assert min(series.values()) >= 20


def test_none_of_three_hundred_bounds_the_rate_at_one_percent() -> None:
    assert beta.ppf(0.95, 1, COUNT) < 0.01


@pytest.mark.parametrize("step", [0.0, 1.0], ids=["identical vectors", "nearly identical vectors"])
def test_br_14_no_recurring_episode_enters_as_single_side_or_neighbour(
    store: Store, tmp_path: Path, recurring: list[Episode], step: float
) -> None:
    ids = imported(store, tmp_path, recurring, step, as_decisions=False)
    before = store.dump("memories", "memory_events")
    seen = selected(store)
    control = {uuid5(NAMESPACE_URL, f"control {n}") for n in range(2)}
    assert ids.isdisjoint(seen["mined"] | seen["similar"] | seen["pairs"] | seen["singles"])
    assert ids.isdisjoint(seen["neighbours"])
    # The control, decisions amid the episodes with the very same vectors, is all that is found.
    assert seen["pairs"] == seen["similar"] == seen["mined"] == control
    assert seen["singles"] == control
    assert store.dump("memories", "memory_events") == before


def test_br_14_the_same_texts_as_decisions_do_enter(
    store: Store, tmp_path: Path, recurring: list[Episode]
) -> None:
    ids = imported(store, tmp_path, recurring, 1.0, as_decisions=True)
    seen = selected(store)
    assert ids <= seen["mined"]
    assert ids <= seen["similar"]
    # Pairs of one partition share no memory, so that some find no partner left.
    assert len(ids & seen["pairs"]) > COUNT * 2 / 3
    # The latest are not stale yet; the others enter as singles, with newer neighbours.
    assert len(ids & seen["singles"]) > COUNT / 2
    assert len(ids & seen["neighbours"]) > 1


def test_br_14_after_a_whole_pass_every_dated_entry_is_there_and_can_be_told_apart(
    store: Store, tmp_path: Path, recurring: list[Episode]
) -> None:
    ids = imported(store, tmp_path, recurring, 0.0, as_decisions=False)
    judge = TestJudge.that(say("archive_older"))
    done = Pass(store, judge).run(store.partition(SLUG))
    assert dict(done.proposed) == {"archive": 1}, "the control alone"
    judged = "".join(judge.states)
    assert CONTROL in judged
    assert not any(each.content in judged for each in recurring)
    kept = store.rows(
        """
        SELECT m.id, m.memory_type, m.content, m.created_at FROM memories AS m
        WHERE m.memory_type IN ('event', 'note') AND m.status = 'active' AND m.valid_to IS NULL
            AND NOT EXISTS (
                SELECT 1 FROM memory_edges AS e WHERE m.id IN (e.from_id, e.to_id)
            )
        """
    )
    assert {row["id"] for row in kept} == ids
    # Told apart: by its series, its day and its text; each is one entry and no two are one.
    identity = {(row["memory_type"], row["content"], row["created_at"]) for row in kept}
    assert identity == {(each.memory_type, each.content, each.created_at) for each in recurring}
    assert len({(each.series, each.created_at.date()) for each in recurring}) == COUNT


def imported(
    store: Store,
    tmp_path: Path,
    recurring: list[Episode],
    step: float,
    *,
    as_decisions: bool,
) -> set[UUID]:
    """Import the episodes, and two decisions as a control; the ids of the episodes.

    Each vector lies ``step`` degrees from the next, so that each is like dozens of others.
    """
    lines: list[dict[str, Any]] = [
        {
            "id": str(uuid5(NAMESPACE_URL, f"episode {place}")),
            "memory_type": "decision" if as_decisions else each.memory_type,
            "topic": each.topic,
            "content": each.content,
            "created_at": each.created_at.isoformat(),
            "embedding": vector(step * place),
        }
        for place, each in enumerate(recurring)
    ]
    ids = {UUID(line["id"]) for line in lines}
    for n, text in enumerate((f"{CONTROL}.", f"{CONTROL} on Fridays.")):
        lines.append(
            {
                "id": str(uuid5(NAMESPACE_URL, f"control {n}")),
                "memory_type": "decision",
                "topic": "release",
                "content": text,
                "created_at": recurring[n].created_at.isoformat(),
                "embedding": vector(step * n),
            }
        )
    path = tmp_path / "episodes.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"scope": "work", "embedding_model": "test-embedding", **line})
            for line in lines
        )
    )
    done = importing.import_file(store.database, path, SLUG, TODAY)
    assert (done.added, done.known) == (len(lines), 0)
    tenants.consent(store.database, SLUG, judgment=True)
    return ids


def selected(store: Store) -> dict[str, set[UUID]]:
    """Every memory that the candidate queries of a partition take, by the way it enters."""
    policy = make_policy(single_cap=1_000, pair_cap=1_000)
    partition = store.partition(SLUG)
    chosen = pairs.select(store.database, partition, policy, TODAY)
    stale = candidates.select(store.database, partition, policy, TODAY)
    similar = store.rows("SELECT older_id, newer_id FROM forgetting.similar_pairs")
    return {
        "mined": {
            row["memory_id"]
            for row in store.rows("SELECT memory_id FROM forgetting.mined_memories")
        },
        "similar": {side for row in similar for side in (row["older_id"], row["newer_id"])},
        "pairs": {side for pair in chosen.pairs for side in (pair.older_id, pair.newer_id)},
        "singles": {single.memory_id for single in stale.singles},
        "neighbours": {newer for single in stale.singles for newer in single.newer_ids},
    }
