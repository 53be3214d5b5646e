"""Importing memories: all of a file or nothing of it, and never a word of it in an error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from forgetting_assets import importing
from forgetting_assets.importing import Imported, import_file
from forgetting_assets.store import tenants
from resources.database import Database
from resources.errors import ImportRefused, InvalidSlug, RetiredTenant
from tests.support import TODAY, Pass, Store, TestJudge, say, vector

MARKER = "Ottoline keeps the violet ledger"
TABLES = ("users", "tenants", "memories", "memory_events", "forgetting.embedding_models")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes records, or raw lines, as a file of JSON lines."""

    def write(*lines: Mapping[str, Any] | bytes, name: str = "memories.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(
            b"".join(
                (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
                for line in lines
            )
        )
        return path

    return write


def record(**changed: Any) -> dict[str, Any]:
    """A good line with some fields changed; ``...`` leaves a field out."""
    id_ = uuid4()
    line = {
        "id": str(id_),
        "memory_type": "fact",
        "topic": "topic",
        "content": f"{MARKER}, entry {id_}",
        "created_at": "2026-03-01T08:00:00+00:00",
        **changed,
    }
    return {name: value for name, value in line.items() if value is not ...}


def refused(database: Database, path: Path, slug: str = "acme") -> list[str]:
    """The lines of the refusal, none of which quotes a memory."""
    with pytest.raises(ImportRefused) as error:
        import_file(database, path, slug, TODAY)
    said = str(error.value)
    assert MARKER not in said
    assert "violet" not in said
    assert error.value.__cause__ is None
    return said.splitlines()


def test_every_field_of_a_line_arrives(database: Database, store: Store, write: Write) -> None:
    full = record(
        memory_type="decision",
        scope="work",
        project="ledger",
        topic="Ünïcödé 🦉",
        content=f'{MARKER}\nwith "quotes", a \\ and \u2028 in it',
        created_at="2026-03-01T08:00:00.123456+02:00",
        updated_at="2026-04-01T00:00:00Z",
        tags=["one", "zwei"],
        embedding=vector(30),
        embedding_model="a-model",
    )
    least = record(memory_type="event")
    assert import_file(database, write(full, least), "acme", TODAY) == Imported(2, 0)

    rows = {str(row["id"]): row for row in store.rows("SELECT * FROM memories")}
    user_id = tenants.find(database, "acme").user_id
    row = rows[full["id"]]
    created = datetime(2026, 3, 1, 6, 0, 0, 123456, UTC)
    embedding = [float(each) for each in json.loads(row.pop("embedding"))]
    assert embedding == pytest.approx(list(np.array(vector(30), np.float32)))
    row.pop("search_tsv")
    assert row == {
        "id": UUID(full["id"]),
        "user_id": user_id,
        "memory_type": "decision",
        "topic": full["topic"],
        "content": full["content"],
        "scope": "work",
        "project": "ledger",
        "status": "active",
        "tags": ["one", "zwei"],
        "content_hash": hashlib.sha256(full["content"].encode()).hexdigest(),
        "valid_from": created,
        "valid_to": None,
        "recorded_at": created,
        "created_at": created,
        "updated_at": datetime(2026, 4, 1, tzinfo=UTC),
        "last_reviewed_at": None,
    }
    bare = rows[least["id"]]
    assert (bare["scope"], bare["project"], bare["tags"]) == ("personal", None, [])
    assert bare["embedding"] is None
    assert bare["updated_at"] == bare["created_at"]
    assert store.rows(
        "SELECT memory_id, embedding_model AS m FROM forgetting.embedding_models"
    ) == [{"memory_id": UUID(full["id"]), "m": "a-model"}]
    events = store.rows(
        "SELECT memory_id, event_kind, actor_kind, created_at FROM memory_events ORDER BY 1"
    )
    assert events == [
        {"memory_id": id_, "event_kind": "import", "actor_kind": "import", "created_at": TODAY}
        for id_ in sorted(UUID(each["id"]) for each in (full, least))
    ]


def test_every_memory_type_of_the_store_may_be_imported(
    database: Database, store: Store, write: Write
) -> None:
    types = ["blocker", "commitment", "decision", "event", "fact", "note", "pattern", "preference"]
    import_file(database, write(*(record(memory_type=each) for each in types)), "acme", TODAY)
    found = store.rows("SELECT memory_type FROM memories ORDER BY 1")
    assert [row["memory_type"] for row in found] == types


def test_an_import_creates_its_tenant_with_both_switches_off(
    database: Database, store: Store, write: Write
) -> None:
    import_file(database, write(record()), "acme", TODAY)
    tenant = tenants.find(database, "acme")
    assert (tenant.judgment_enabled, tenant.archival_enabled) == (False, False)
    assert tenant.retired_at is None

    tenants.consent(database, "acme", judgment=True)
    import_file(database, write(record()), "acme", TODAY)
    assert tenants.find(database, "acme").judgment_enabled, "a later import leaves consent alone"
    assert len(store.rows("SELECT * FROM users")) == 1


def test_what_was_imported_is_judged_and_episodes_are_not(
    database: Database, store: Store, write: Write
) -> None:
    stale = record(scope="work")
    same = {"scope": "work", "embedding": vector(0), "embedding_model": "test-embedding"}
    lines = [stale, *(record(memory_type=kind, **same) for kind in ("event", "note"))]
    import_file(database, write(*lines), "acme", TODAY)
    tenants.consent(database, "acme", judgment=True)
    Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    proposed = store.rows("SELECT memory_id, action, status FROM retention_proposals")
    assert proposed == [{"memory_id": UUID(stale["id"]), "action": "archive", "status": "proposed"}]


LONG = [1.0] * 1537
BAD: Mapping[str, tuple[Mapping[str, Any] | bytes, str]] = {
    "broken JSON": (f'{{"content": "{MARKER}"'.encode(), "Invalid JSON"),
    "no JSON at all": (MARKER.encode(), "Invalid JSON"),
    "bytes that are no UTF-8": (b'{"content": "\xff\xfe' + MARKER.encode() + b'"}', "Invalid JSON"),
    "an array": (f'["{MARKER}"]'.encode(), "object"),
    "a text": (f'"{MARKER}"'.encode(), "object"),
    "an unknown type": (record(memory_type=MARKER), "memory_type: "),
    "a type of evidence": (record(memory_type="trace"), "memory_type: "),
    "a missing id": (record(id=...), "id: Field required"),
    "a missing type": (record(memory_type=...), "memory_type: Field required"),
    "a missing topic": (record(topic=...), "topic: Field required"),
    "a missing content": (record(content=...), "content: Field required"),
    "a missing created_at": (record(created_at=...), "created_at: Field required"),
    "an unknown field": (record(colour=MARKER), "colour: no such field"),
    "a tenant of its own": (record(user_id=str(uuid4())), "user_id: no such field"),
    "no UUID": (record(id=f"{MARKER} 1"), "id: "),
    "a naive time": (record(created_at="2026-03-01T08:00:00"), "created_at: "),
    "a day without a time": (record(created_at="2026-03-01"), "created_at: "),
    "a naive update": (record(updated_at="2026-03-01T08:00:00"), "updated_at: "),
    "no time": (record(created_at=MARKER), "created_at: "),
    "updated before created": (
        record(updated_at="2026-03-01T07:59:59+00:00"),
        "updated_at is before created_at",
    ),
    "a short vector": (record(embedding=[1.0, 2.0], embedding_model="m"), "it has 2 values"),
    "a long vector": (record(embedding=LONG, embedding_model="m"), "it has 1537 values"),
    "an empty vector": (record(embedding=[], embedding_model="m"), "it has 0 values"),
    "a zero vector": (record(embedding=[0.0] * 1536, embedding_model="m"), "zero vector"),
    "a vector too small to have a direction": (
        record(embedding=[1e-30] * 1536, embedding_model="m"),
        "too small",
    ),
    "a value that four bytes do not hold": (
        record(embedding=[1e39, *LONG[2:]], embedding_model="m"),
        "too great",
    ),
    "a vector too long to be measured": (
        record(embedding=[3e38] * 1536, embedding_model="m"),
        "too great",
    ),
    "NaN": (record(embedding=[float("nan"), *LONG[2:]], embedding_model="m"), "embedding: "),
    "Infinity": (record(embedding=[float("inf"), *LONG[2:]], embedding_model="m"), "embedding: "),
    "-Infinity": (record(embedding=[-float("inf"), *LONG[2:]], embedding_model="m"), "embedding: "),
    "words for numbers": (
        record(embedding=[MARKER, *LONG[2:]], embedding_model="m"),
        "embedding: ",
    ),
    "a vector of nobody": (record(embedding=vector(0)), "embedding_model must name the model"),
    "a NUL in the content": (record(content=f"{MARKER}\0"), "content: it has a NUL"),
    "a NUL in the topic": (record(topic=f"{MARKER}\0"), "topic: it has a NUL"),
    "a NUL in a tag": (record(tags=["fine", f"{MARKER}\0"]), "tags: it has a NUL"),
    "half a surrogate pair": (record(content=f"{MARKER}\ud83d"), "line 2: "),
    "half a surrogate pair in a tag": (record(tags=[f"{MARKER}\udc00"]), "line 2: "),
    "an empty content": (record(content=""), "content: "),
    "an empty topic": (record(topic=""), "topic: "),
    "an empty scope": (record(scope=""), "scope: "),
    "an empty project": (record(project=""), "project: "),
    "a number for a content": (record(content=7), "content: "),
    "an object for a content": (record(content={MARKER: MARKER}), "content: "),
    "a text for the tags": (record(tags=MARKER), "tags: "),
    "tags that are no texts": (record(tags=[{MARKER: MARKER}]), "tags: "),
    "no content": (record(content=None), "content: "),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_line_is_named_by_number_and_reason_and_nothing_of_the_file_is_written(
    database: Database, store: Store, write: Write, reason: str
) -> None:
    bad, expected = BAD[reason]
    before = store.dump(*TABLES)
    path = write(record(), bad, record())
    head, *reasons = refused(database, path)
    assert head == f"Nothing of {path} was imported:"
    assert len(reasons) == 1
    assert reasons[0].startswith("  line 2: ")
    assert expected in reasons[0]
    assert store.dump(*TABLES) == before, "neither a tenant nor a memory"

    assert import_file(database, write(record(), record()), "acme", TODAY).added == 2


def test_every_bad_line_is_named_in_the_files_order(database: Database, write: Write) -> None:
    path = write(record(content=""), record(), b"", record(colour=1, topic=...), record(id="x"))
    assert [line.split(":")[0].strip() for line in refused(database, path)[1:]] == [
        "line 1",
        "line 4",
        "line 5",
    ]


def test_a_file_of_many_bad_lines_names_twenty_and_counts_the_rest(
    database: Database, write: Write
) -> None:
    lines = refused(database, write(*(record(content="") for _ in range(33))))
    assert len(lines) == 22
    assert lines[-1].strip() == "and 13 more"


def test_the_same_id_twice_in_a_file_is_refused(
    database: Database, store: Store, write: Write
) -> None:
    id_ = str(uuid4())
    path = write(record(id=id_), record(), record(id=id_.upper()))
    assert refused(database, path)[1:] == ["  line 3: id: the same id as line 1"]
    assert store.rows("SELECT * FROM tenants") == []


def test_the_same_content_twice_in_a_file_is_refused(
    database: Database, store: Store, write: Write
) -> None:
    path = write(record(), record(content=MARKER), record(content=MARKER, topic="other"))
    assert refused(database, path)[1:] == ["  line 3: content: the same content as line 2"]
    assert store.rows("SELECT * FROM tenants") == []


def test_importing_a_file_twice_adds_nothing(
    database: Database, store: Store, write: Write
) -> None:
    path = write(record(), record(embedding=vector(0), embedding_model="m"))
    assert import_file(database, path, "acme", TODAY) == Imported(added=2, known=0)
    before = store.dump(*TABLES)
    later = TODAY + timedelta(days=1)
    assert import_file(database, path, "acme", later) == Imported(added=0, known=2)
    assert store.dump(*TABLES) == before

    path = write(*map(json.loads, path.read_text().splitlines()), record())
    assert import_file(database, path, "acme", later) == Imported(added=1, known=2)


def test_a_known_memory_is_left_as_it_became(
    database: Database, store: Store, write: Write
) -> None:
    path = write(record(), record())
    import_file(database, path, "acme", TODAY)
    store.execute("UPDATE memories SET status = 'archived', topic = 'renamed', updated_at = now()")
    store.execute(
        "UPDATE memories SET valid_to = now() WHERE id = (SELECT id FROM memories LIMIT 1)"
    )
    before = store.dump(*TABLES)
    assert import_file(database, path, "acme", TODAY) == Imported(added=0, known=2)
    assert store.dump(*TABLES) == before


def test_a_known_id_with_other_content_is_refused(
    database: Database, store: Store, write: Write
) -> None:
    first = record()
    import_file(database, write(first), "acme", TODAY)
    before = store.dump(*TABLES)
    said = refused(database, write(record(), {**first, "content": f"{MARKER} no more"}))
    assert said[1:] == [
        f"  id {first['id']}: it is known with other content; nothing is overwritten"
    ]
    assert store.dump(*TABLES) == before


def test_content_that_another_memory_holds_is_refused(
    database: Database, store: Store, write: Write
) -> None:
    first = record()
    import_file(database, write(first), "acme", TODAY)
    before = store.dump(*TABLES)
    again = record(content=first["content"])
    said = refused(database, write(record(), again))
    assert said[1:] == [f"  id {again['id']}: memory {first['id']} has its content"]
    assert store.dump(*TABLES) == before

    store.execute("UPDATE memories SET valid_to = now()")
    assert import_file(database, write(again), "acme", TODAY).added == 1, "it was superseded"


def test_the_id_of_another_tenants_memory_is_refused_and_says_nothing_of_it(
    database: Database, store: Store, write: Write
) -> None:
    theirs = record(topic=f"{MARKER} of globex")
    import_file(database, write(theirs), "globex", TODAY)
    store.tenant("acme")
    before = store.dump(*TABLES)
    said = refused(database, write(record(), record(id=theirs["id"])))
    assert len(said) == 1
    assert "another tenant" in said[0]
    assert "globex" not in said[0]
    assert store.dump(*TABLES) == before


def test_a_refused_import_leaves_no_new_tenant_behind(
    database: Database, store: Store, write: Write
) -> None:
    theirs = record()
    import_file(database, write(theirs), "globex", TODAY)
    before = store.dump(*TABLES)
    refused(database, write(record(id=theirs["id"])), "acme")
    assert store.dump(*TABLES) == before


def test_two_tenants_may_hold_the_same_content(
    database: Database, store: Store, write: Write
) -> None:
    import_file(database, write(record(content=MARKER)), "acme", TODAY)
    import_file(database, write(record(content=MARKER)), "globex", TODAY)
    assert len(store.rows("SELECT DISTINCT user_id FROM memories")) == 2


def test_an_embedding_may_be_null_or_missing_or_named_without_a_vector(
    database: Database, store: Store, write: Write
) -> None:
    lines = [record(embedding=None), record(), record(embedding=None, embedding_model="m")]
    assert import_file(database, write(*lines), "acme", TODAY).added == 3
    assert store.rows("SELECT DISTINCT embedding FROM memories") == [{"embedding": None}]
    assert store.rows("SELECT * FROM forgetting.embedding_models") == []


@pytest.mark.parametrize("what", ["missing", "a folder"])
def test_a_file_that_cannot_be_read_is_named(
    database: Database, store: Store, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "missing.jsonl" if what == "missing" else tmp_path
    said = refused(database, path)
    assert len(said) == 1
    assert said[0].startswith(f"The file {path} cannot be read: ")
    assert store.rows("SELECT * FROM tenants") == []


def test_a_file_of_1200_lines_is_imported_whole_or_not_at_all(
    database: Database, store: Store, write: Write
) -> None:
    lines = [record() for _ in range(1200)]
    path = write(*lines[:1199], {**lines[1199], "memory_type": "rumour"})
    assert refused(database, path)[1].startswith("  line 1200: memory_type: ")
    assert store.rows("SELECT * FROM memories") == []

    assert import_file(database, write(*lines), "acme", TODAY) == Imported(1200, 0)
    found = {str(row["id"]): row["content"] for row in store.rows("SELECT * FROM memories")}
    assert found == {line["id"]: line["content"] for line in lines}
    assert len(store.rows("SELECT * FROM memory_events")) == 1200


def test_a_failure_in_a_later_chunk_takes_the_earlier_ones_back(
    database: Database, store: Store, write: Write
) -> None:
    theirs = record()
    import_file(database, write(theirs), "globex", TODAY)
    store.tenant("acme")
    before = store.dump(*TABLES)
    fill = [record() for _ in range(importing.CHUNK + 1)]
    refused(database, write(*fill, record(id=theirs["id"])))
    assert store.dump(*TABLES) == before
    assert import_file(database, write(*fill), "acme", TODAY).added == len(fill)


def test_windows_files_with_a_byte_order_mark_carriage_returns_and_blank_lines_are_read(
    database: Database, store: Store, write: Write
) -> None:
    lines = [record(content="première"), record(content="deuxième")]
    raw = [json.dumps(line, ensure_ascii=False).encode() + b"\r" for line in lines]
    path = write(b"\xef\xbb\xbf" + raw[0], b"\r", b"", b"   ", raw[1], b"\r")
    assert import_file(database, path, "acme", TODAY) == Imported(2, 0)
    found = store.rows("SELECT content FROM memories ORDER BY content")
    assert [row["content"] for row in found] == ["deuxième", "première"]


def test_blank_lines_are_passed_over_and_still_counted(database: Database, write: Write) -> None:
    path = write(b"", record(), b"  ", record(content=""))
    assert [line.split(":")[0].strip() for line in refused(database, path)[1:]] == ["line 4"]


def test_an_empty_file_adds_nothing(database: Database, write: Write) -> None:
    assert import_file(database, write(), "acme", TODAY) == Imported(0, 0)
    assert import_file(database, write(b""), "acme", TODAY) == Imported(0, 0)


def test_a_slug_that_is_no_partition_key_is_refused_before_anything_is_written(
    database: Database, store: Store, write: Write
) -> None:
    with pytest.raises(InvalidSlug):
        import_file(database, write(record()), "Acme|Corp", TODAY)
    assert store.rows("SELECT * FROM tenants") == []


def test_a_retired_tenant_takes_no_memories(database: Database, store: Store, write: Write) -> None:
    store.tenant("acme")
    store.retire("acme")
    with pytest.raises(RetiredTenant):
        import_file(database, write(record()), "acme", TODAY)
    assert store.rows("SELECT * FROM memories") == []


@pytest.mark.parametrize(
    "times",
    [
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": "2026-09-02T00:00:00Z"},
        {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2099-01-01T00:00:00Z"},
    ],
)
def test_a_time_that_no_memory_can_have_is_refused(
    database: Database, store: Store, write: Write, times: dict[str, str]
) -> None:
    lines = refused(database, write(record(), record(**times)))
    assert lines[1:] == ["  line 2: its times are before 1970 or in the future"]
    assert store.rows("SELECT * FROM memories") == []
    assert import_file(database, write(record(created_at="1970-01-02T00:00:00Z")), "acme", TODAY)
