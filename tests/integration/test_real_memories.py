"""The pass over 158 real, anonymised memories, against an independent mock of the judge over HTTP.

The mock hashes the question into an answer: what it says means nothing, so nothing is asserted of
its verdicts but that they are well formed. Skipped where the shared folder is absent.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from forgetting_assets import importing
from forgetting_assets.partition import Partition
from forgetting_assets.store import tenants
from resources.gateway import JevGateway
from resources.policy import Policy
from tests.support import Pass, Store

SLUG = "golden"
NOW = datetime(2026, 9, 15, 12, tzinfo=UTC)
MINILM = "all-MiniLM-L6-v2/384 zero-padded to 1536"
# The mock answers at random, so it ends far more than a judge would.
POLICY = Policy(conflict_floors={MINILM: 0.5}, blast_radius=1.0)
STALE_TYPES = ("decision", "preference", "blocker", "fact")


@pytest.fixture
def memories(shared_data: Path) -> list[dict[str, Any]]:
    lines = (shared_data / "golden_memories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def partition(store: Store, shared_data: Path) -> Partition:
    done = importing.import_file(store.database, shared_data / "golden_memories.jsonl", SLUG, NOW)
    assert (done.added, done.known) == (158, 0)
    tenants.consent(store.database, SLUG, judgment=True)
    return store.partition(SLUG, date(2026, 8, 31), NOW)


@pytest.fixture
def mock_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[JevGateway]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "jevcompat.cli", "mock", "--port", str(port), "--key", "golden"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                httpx.get(f"{base}/v1/models")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        monkeypatch.setenv("JEV_API_KEY", "golden")
        gateway = JevGateway(
            base_url=base, model="jev-1.13.0", answer_model="jevcompat-mock-0.1"
        ).connect()
        yield gateway
        gateway.close()
    finally:
        server.terminate()
        server.wait()


def test_a_whole_pass_over_real_memories_is_exact_capped_and_changes_no_memory(
    store: Store, partition: Partition, memories: list[dict[str, Any]], mock_judge: JevGateway
) -> None:
    night = Pass(store, mock_judge, POLICY, now=NOW)
    before = store.dump("memories", "memory_edges", "memory_events")

    chosen, singles = night.candidates(partition)
    judged = night.verdicts(partition)
    night.proposals(partition)

    of_type = Counter(memory["memory_type"] for memory in memories)
    assert sum(of_type[each] for each in STALE_TYPES) == 102
    assert singles.total == 102 - len(blockers_without_newer(memories))
    assert len(singles.singles) == 60

    types = {memory["id"]: memory["memory_type"] for memory in memories}
    assert 0 < len(chosen.pairs) <= 40
    sides = [side for pair in chosen.pairs for side in (str(pair.older_id), str(pair.newer_id))]
    assert not {types[side] for side in sides} & {"event", "note"}
    assert {types[side] for side in sides} <= {"decision", "preference", "fact"}

    subjects = store.rows("SELECT memory_id, newer_id FROM forgetting.judged_verdicts")
    touched = Counter(id_ for row in subjects for id_ in (row["memory_id"], row["newer_id"]) if id_)
    assert judged.items == judged.judged == len(subjects)
    assert max(touched.values()) == 1
    assert judged.rejected == 0

    assert store.dump("memories", "memory_edges", "memory_events") == before


def test_the_second_run_of_a_real_partition_is_free_and_changes_nothing(
    store: Store, partition: Partition, mock_judge: JevGateway
) -> None:
    night = Pass(store, mock_judge, POLICY, now=NOW)
    night.run(partition)
    tables = (
        "memories",
        "retention_proposals",
        "llm_usage",
        "forgetting.conflict_pairs",
        "forgetting.stale_candidates",
        "forgetting.judged_verdicts",
    )
    before = store.dump(*tables)
    assert before["llm_usage"]

    night.candidates(partition)
    again = night.verdicts(partition)
    night.proposals(partition)

    assert again.calls == 0
    assert store.dump(*tables) == before


def test_importing_the_real_file_twice_adds_nothing(
    store: Store, partition: Partition, shared_data: Path
) -> None:
    before = store.dump("memories", "memory_events", "forgetting.embedding_models")
    done = importing.import_file(
        store.database,
        shared_data / "golden_memories.jsonl",
        SLUG,
        datetime(2026, 9, 16, tzinfo=UTC),
    )
    assert (done.added, done.known) == (0, 158)
    assert store.dump("memories", "memory_events", "forgetting.embedding_models") == before


def blockers_without_newer(memories: list[dict[str, Any]]) -> list[str]:
    """The blockers after which, in the order of (created_at, id), no other of their scope comes."""
    blockers = [memory for memory in memories if memory["memory_type"] == "blocker"]
    order = {memory["id"]: (memory["created_at"], memory["id"]) for memory in blockers}
    return [
        memory["id"]
        for memory in blockers
        if not any(
            other["scope"] == memory["scope"] and order[other["id"]] > order[memory["id"]]
            for other in blockers
        )
    ]
