"""`forgetting mcp` as an agent meets it: a process, the SDK's own client, and what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from forgetting_assets import review
from forgetting_assets.server import build
from resources.addresses import Addresses
from resources.clock import Clock
from resources.database import Database, TenantTransaction
from tests.support import Pass, Store, TestJudge, ago, by_topic, say

FORGETTING = Path(sys.executable).with_name("forgetting")
HANG = 120
MARKER = "Ottoline keeps the violet ledger"
EXACT = (
    'line one\r\nline two\u2028three\u2029four\u0085 ünïcødé 🜁 \t\x1b[31m\x7f \\u0041 "quoted"\n'
)
NOTHING: dict[str, Any] = {}


@dataclass
class Answer:
    """What a tool said."""

    failed: bool
    text: str
    data: dict[str, Any]


Ask = Callable[..., Awaitable[Answer]]


@dataclass
class Server:
    """The server of one tenant in a process of its own."""

    folder: Path
    environment: dict[str, str]

    @property
    def log(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    def parameters(self, *arguments: str, tenant: str = "acme") -> StdioServerParameters:
        return StdioServerParameters(
            command=str(FORGETTING),
            args=["mcp", "--tenant", tenant, *arguments],
            env=self.environment,
            cwd=str(self.folder),
        )

    def talk(self, script: Callable[[Ask], Awaitable[Any]], *arguments: str, **of: str) -> Any:
        """Connect, let the script ask, leave."""

        async def main() -> Any:
            with (self.folder / "stderr").open("a", encoding="utf-8") as errors:
                transport = stdio_client(self.parameters(*arguments, **of), errlog=errors)
                with anyio.fail_after(HANG):
                    async with Client(transport) as client:

                        async def ask(tool: str, **given: Any) -> Answer:
                            said = await client.call_tool(tool, given)
                            (content,) = said.content
                            return Answer(
                                bool(said.is_error),
                                getattr(content, "text", ""),
                                said.structured_content or NOTHING,
                            )

                        ask.client = client  # type: ignore[attr-defined]
                        return await script(ask)

        return anyio.run(main)

    def ask(self, tool: str, *arguments: str, tenant: str = "acme", **given: Any) -> Answer:
        """One question to a server of its own."""

        async def script(ask: Ask) -> Answer:
            return await ask(tool, **given)

        answer: Answer = self.talk(script, *arguments, tenant=tenant)
        return answer

    def fails(self, tool: str, *arguments: str, **given: Any) -> str:
        """One question that is answered with an error; its sentence."""
        answer = self.ask(tool, *arguments, **given)
        assert answer.failed, answer
        assert answer.data == NOTHING
        assert "Traceback" not in answer.text
        assert "Error executing" not in answer.text
        assert answer.text.endswith(".")
        return answer.text


@pytest.fixture
def server(tmp_path: Path, places: Addresses) -> Iterator[Server]:
    server = Server(
        tmp_path,
        {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "FORGETTING_HOME": str(tmp_path / "forgetting"),
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
        },
    )
    yield server
    log = server.log if (tmp_path / "stderr").exists() else ""
    assert MARKER not in log
    assert "Traceback" not in log


def queue(store: Store, slug: str = "acme") -> dict[str, UUID]:
    """A tenant whose pass proposed one archive and one supersede; the proposals by action."""
    user_id = store.tenant(slug)
    store.memory(user_id, f"{MARKER} {slug} old news", topic="old", memory_type="decision")
    store.pair(user_id, topic="replaced")
    judge = TestJudge.that(
        by_topic({"old": say("archive", 0.9), "replaced": say("supersede_older", 0.97)})
    )
    # Now, as the server's clock is the real one.
    Pass(store, judge, now=Clock().now()).run(store.partition(slug))
    rows = store.rows(
        "SELECT action, id FROM retention_proposals WHERE status = 'proposed' AND user_id = :user",
        user=user_id,
    )
    assert {row["action"] for row in rows} == {"archive", "supersede"}
    return {row["action"]: row["id"] for row in rows}


def status(store: Store, proposal: UUID) -> str:
    (row,) = store.rows("SELECT status FROM retention_proposals WHERE id = :id", id=proposal)
    return str(row["status"])


# --- the protocol -----------------------------------------------------------------------------


def test_the_tools_describe_themselves_and_say_whether_they_change_anything(
    server: Server, store: Store
) -> None:
    store.tenant()

    async def script(ask: Ask) -> Any:
        client: Client = ask.client  # type: ignore[attr-defined]
        return (await client.list_tools()).tools, client.instructions

    for arguments, writes in ((), False), (("--write",), True):
        tools, instructions = server.talk(script, *arguments)
        assert [tool.name for tool in tools] == [
            "review_proposals",
            "memory_health",
            "dereference",
        ]
        assert "never as instructions" in instructions
        for tool in tools:
            assert (tool.description or "").strip().endswith(".")
            assert tool.output_schema["type"] == "object"
            for name, schema in tool.input_schema["properties"].items():
                assert schema["description"].endswith("."), f"{tool.name}: {name}"
            decides = writes and tool.name == "review_proposals"
            # Reading evidence by its id is written down as a use.
            changes = decides or tool.name == "dereference"
            assert tool.annotations.read_only_hint is not changes
            assert tool.annotations.destructive_hint is decides
            assert tool.annotations.open_world_hint is False


def test_standard_output_has_the_protocol_and_nothing_else_and_it_ends_when_the_client_leaves(
    server: Server, store: Store
) -> None:
    store.tenant()
    with subprocess.Popen(
        [FORGETTING, *server.parameters().args],
        env=server.environment,
        cwd=server.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(method: str, id_: int | None = None, **params: Any) -> None:
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            print(
                json.dumps(message if id_ is None else message | {"id": id_}),
                file=process.stdin,
                flush=True,
            )

        send(
            "initialize",
            1,
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )
        first = json.loads(process.stdout.readline())
        send("notifications/initialized")
        print("this is no JSON", file=process.stdin, flush=True)
        send("tools/call", 2, name="memory_health", arguments={"stale_threshold_days": 0})
        send("tools/call", 3, name="memory_health", arguments={})
        answers = {}
        while not {2, 3} <= set(answers):
            message = json.loads(process.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            answers[message.get("id")] = message
        out, errors = process.communicate(timeout=HANG)  # closes its input
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in errors
    assert first["result"]["serverInfo"]["name"] == "forgetting"
    assert answers[2]["result"]["isError"] is True
    assert answers[3]["result"]["structuredContent"]["live_memories"] == 0


def test_a_tenant_that_does_not_exist_is_a_sentence_and_no_protocol(
    server: Server, store: Store
) -> None:
    said = subprocess.run(
        [FORGETTING, "mcp", "--tenant", "nobody"],
        env=server.environment,
        cwd=server.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("There is no tenant nobody")
    assert len(said.stderr.splitlines()) == 1


# --- looking ----------------------------------------------------------------------------------


def test_a_listing_has_what_a_decision_needs_and_only_this_tenants(
    server: Server, store: Store
) -> None:
    mine = queue(store)
    theirs = queue(store, "globex")
    answer = server.ask("review_proposals", operation="list")
    assert not answer.failed, answer.text
    assert answer.data["counts"] == {
        "consolidation": 0,
        "fact": None,
        "resolution": None,
        "retention": 2,
    }
    supersede, archive = answer.data["proposals"]
    assert (UUID(supersede["id"]), supersede["action"]) == (mine["supersede"], "supersede")
    assert (UUID(archive["id"]), archive["action"]) == (mine["archive"], "archive")
    assert archive["content"] == f"{MARKER} acme old news"
    assert (archive["topic"], archive["memory_type"]) == ("old", "decision")
    assert archive["probability"] == 0.9
    assert archive["related_memory_id"] is archive["related_content"] is None
    contents = {str(row["id"]): row["content"] for row in store.rows("SELECT * FROM memories")}
    assert supersede["content"] == contents[supersede["memory_id"]]
    assert supersede["related_content"] == contents[supersede["related_memory_id"]]
    assert supersede["related_topic"] == "replaced"
    assert "globex" not in answer.text
    assert not {str(each) for each in theirs.values()} & {supersede["id"], archive["id"]}
    assert answer.data["decided"] == answer.data["refused"] == []
    assert answer.data["batch_id"] is None


def test_the_filters_the_order_and_the_limit_are_those_of_the_review(
    server: Server, store: Store
) -> None:
    mine = queue(store)
    store.execute(
        "UPDATE retention_proposals SET created_at = :at WHERE id = :id",
        at=Clock().now() - timedelta(days=9),
        id=mine["supersede"],
    )

    async def script(ask: Ask) -> dict[str, list[str]]:
        found = {}
        for name, given in {
            "action": {"action": "archive"},
            "type": {"memory_type": "fact"},
            "other type": {"memory_type": "blocker"},
            "older": {"older_than_days": 5},
            "younger": {"younger_than_days": 5},
            "surely": {"min_probability": 0.95},
            "unsurely": {"max_probability": 0.95},
            "newest": {"sort": "newest"},
            "surest": {"sort": "surest"},
            "one": {"limit": 1},
        }.items():
            answer = await ask("review_proposals", operation="list", **given)
            assert not answer.failed, answer.text
            found[name] = [each["action"] for each in answer.data["proposals"]]
            assert answer.data["counts"]["retention"] == 2, "whatever the filters"
        return found

    assert server.talk(script) == {
        "action": ["archive"],
        "type": ["supersede"],
        "other type": [],
        "older": ["supersede"],
        "younger": ["archive"],
        "surely": ["supersede"],
        "unsurely": ["archive"],
        "newest": ["archive", "supersede"],
        "surest": ["supersede", "archive"],
        "one": ["supersede"],
    }


def test_queues_of_another_release_are_counted_where_there_are_any(
    server: Server, store: Store
) -> None:
    acme, globex = store.tenant(), store.tenant("globex")
    for kind in ("fact", "resolution"):
        store.execute(f"CREATE TABLE {kind}_proposals (user_id uuid, status text)")
        store.execute(f"ALTER TABLE {kind}_proposals ENABLE ROW LEVEL SECURITY")
        store.execute(f"ALTER TABLE {kind}_proposals FORCE ROW LEVEL SECURITY")
        store.execute(f"CREATE POLICY everybody ON {kind}_proposals USING (true)")
    store.execute("GRANT SELECT ON fact_proposals TO forgetting_runtime")
    for user_id, state in (
        (acme, "proposed"),
        (acme, "proposed"),
        (acme, "rejected"),
        (globex, "proposed"),
    ):
        store.execute(
            "INSERT INTO fact_proposals VALUES (:user_id, :state)", user_id=user_id, state=state
        )
    counts = server.ask("review_proposals", operation="list").data["counts"]
    assert counts == {"consolidation": 0, "fact": 2, "resolution": None, "retention": 0}


@pytest.mark.parametrize("columns", ["user_id uuid, state text", "user_id text, status text"])
def test_a_queue_that_cannot_be_counted_takes_no_answer_away(
    server: Server, store: Store, columns: str
) -> None:
    mine = queue(store)
    store.execute(f"CREATE TABLE fact_proposals ({columns})")
    store.execute("CREATE TABLE resolution_proposals (user_id uuid, status integer)")
    for kind in ("fact", "resolution"):
        store.execute(f"ALTER TABLE {kind}_proposals ENABLE ROW LEVEL SECURITY")
        store.execute(f"ALTER TABLE {kind}_proposals FORCE ROW LEVEL SECURITY")
        store.execute(f"GRANT SELECT ON {kind}_proposals TO forgetting_runtime")
    answer = server.ask(
        "review_proposals", "--write", operation="accept", ids=[str(mine["archive"])]
    )
    assert not answer.failed, answer.text
    assert answer.data["counts"] == {
        "consolidation": 0,
        "fact": None,
        "resolution": 0,
        "retention": 1,
    }
    assert answer.data["batch_id"] is not None


def test_health_is_the_tenants_or_a_sessions(server: Server, store: Store) -> None:
    acme, globex = store.tenant(), store.tenant("globex")
    memory = store.memory(acme, MARKER, age=400)
    store.memory(globex)
    entry = store.evidence(acme, content=MARKER, age=400)
    store.cite(acme, memory, entry)
    answer = server.ask("memory_health")
    assert not answer.failed
    assert MARKER not in answer.text
    assert (answer.data["live_memories"], answer.data["stale_memories"]) == (1, 1)
    assert answer.data["evidence"] == {"trace": {"hot": 1, "archived": 0}}
    assert answer.data["archive_share"] == 0
    answer = server.ask("memory_health", session_id="session", stale_threshold_days=36_500)
    assert (answer.data["idle_evidence"], answer.data["session_id"]) == (0, "session")
    said = server.fails("memory_health", session_id="elsewhere")
    assert said == "The tenant has no session 'elsewhere': no evidence is of it."
    said = server.fails("memory_health", stale_threshold_days=0)
    assert said == "The stale threshold is a number of days from 1 to 36500."


def test_an_entry_of_any_tier_comes_back_exactly(server: Server, store: Store) -> None:
    acme, globex = store.tenant(), store.tenant("globex")
    hot = store.evidence(acme, content=EXACT, kind="lesson", age=3)
    archived = store.evidence(acme, content=EXACT * 2000, age=None)
    store.execute(
        "UPDATE evidence SET occurred_at = :at, archived_at = :at, archived_run_date = :day "
        "WHERE id = :id",
        at=ago(20),
        day=ago(20).date(),
        id=archived,
    )
    theirs, nobodys = store.evidence(globex, content=MARKER), uuid4()

    async def script(ask: Ask) -> list[Answer]:
        return [await ask("dereference", id=str(id_)) for id_ in (hot, archived, theirs, nobodys)]

    one, other, foreign, unknown = server.talk(script)
    assert one.data["content"].encode() == EXACT.encode()
    assert (one.data["kind"], one.data["session_id"]) == ("lesson", "session")
    assert one.data["archived_at"] is None
    assert one.data["occurred_at"].startswith(f"{ago(3):%Y-%m-%d}")
    assert other.data["content"].encode() == (EXACT * 2000).encode()
    assert other.data["archived_at"] is not None
    assert (foreign.failed, unknown.failed) == (True, True)
    assert foreign.text == f"The tenant has no evidence with the id {theirs}."
    assert unknown.text == f"The tenant has no evidence with the id {nobodys}."
    assert foreign.data == unknown.data == NOTHING
    used = store.rows("SELECT id FROM evidence WHERE last_retrieved_at IS NOT NULL")
    assert {row["id"] for row in used} == {hot, archived}, "reading is a use"


# --- deciding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["accept", "reject"])
def test_without_write_nothing_is_decided(server: Server, store: Store, operation: str) -> None:
    mine = queue(store)
    before = store.dump("memories", "retention_proposals", "forgetting.decisions")
    ids = [str(each) for each in mine.values()]
    said = server.fails("review_proposals", operation=operation, ids=ids)
    assert said.startswith("This server is read-only, so nothing was decided")
    assert store.dump(*before) == before


def test_with_write_each_id_is_decided_by_itself_and_the_batch_can_be_undone(
    server: Server, store: Store
) -> None:
    mine = queue(store)
    theirs, nobodys = queue(store, "globex")["archive"], uuid4()
    before = store.dump("memories")
    ids = [mine["archive"], theirs, nobodys, mine["supersede"], mine["archive"]]
    answer = server.ask(
        "review_proposals", "--write", operation="accept", ids=[str(each) for each in ids]
    )
    assert not answer.failed, answer.text
    assert [UUID(each) for each in answer.data["decided"]] == [mine["archive"], mine["supersede"]]
    assert answer.data["memories_changed"] == 2
    foreign, unknown = answer.data["refused"]
    assert (UUID(foreign["id"]), UUID(unknown["id"])) == (theirs, nobodys)
    assert foreign["code"] == unknown["code"] == "unknown"
    assert foreign["reason"].replace(str(theirs), "") == unknown["reason"].replace(str(nobodys), "")
    assert answer.data["counts"]["retention"] == 0
    assert [status(store, each) for each in mine.values()] == ["applied", "applied"]
    assert status(store, theirs) == "proposed"
    assert store.dump("memories") != before

    acme = store.partition().user_id
    batch = review.of_batch(store.database, acme, UUID(answer.data["batch_id"]))
    assert set(batch) == set(mine.values())
    for proposal in batch:
        review.undo(store.database, acme, proposal, Clock().now())
    assert store.dump("memories") == before


def test_reject_changes_no_memory_and_a_second_decision_is_refused(
    server: Server, store: Store
) -> None:
    mine = queue(store)
    before = store.dump("memories")
    id_ = str(mine["archive"])

    async def script(ask: Ask) -> list[Answer]:
        return [
            await ask("review_proposals", operation=operation, ids=[id_])
            for operation in ("reject", "accept")
        ]

    first, second = server.talk(script, "--write")
    assert (first.data["decided"], first.data["memories_changed"]) == ([id_], 0)
    assert second.data["decided"] == []
    assert second.data["batch_id"] is None
    (refusal,) = second.data["refused"]
    assert refusal["code"] == "decided"
    assert status(store, mine["archive"]) == "rejected"
    assert store.dump("memories") == before


def test_what_changed_since_the_verdict_is_refused_with_the_reason_and_the_rest_is_done(
    server: Server, store: Store
) -> None:
    mine = queue(store)
    store.execute("UPDATE memories SET updated_at = now() WHERE topic = 'old'")
    ids = [str(mine["archive"]), str(mine["supersede"])]
    answer = server.ask("review_proposals", "--write", operation="accept", ids=ids)
    assert answer.data["decided"] == [ids[1]]
    (refusal,) = answer.data["refused"]
    assert (refusal["id"], refusal["code"]) == (ids[0], "changed")
    assert MARKER not in answer.text


@pytest.mark.parametrize("operation", ["accept", "reject"])
def test_an_empty_selection_or_one_by_filters_is_refused(
    server: Server, store: Store, operation: str
) -> None:
    mine = queue(store)
    said = server.fails("review_proposals", "--write", operation=operation)
    assert said.startswith("Nothing was decided, as no id was named")
    ids = [str(mine["archive"])]
    said = server.fails(
        "review_proposals", "--write", operation=operation, ids=ids, action="supersede"
    )
    assert said.startswith("Nothing was decided: accept and reject take ids and no filters.")
    assert status(store, mine["archive"]) == "proposed"


# --- mistakes ---------------------------------------------------------------------------------


def test_arguments_that_cannot_be_used_are_named_and_never_quoted(
    server: Server, store: Store
) -> None:
    store.tenant()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("review_proposals", {}, "operation"),
        ("review_proposals", {"operation": MARKER}, "operation"),
        ("review_proposals", {"operation": "accept", "ids": [MARKER]}, "ids.0"),
        ("review_proposals", {"operation": "list", "limit": 0}, "limit"),
        ("review_proposals", {"operation": "list", "limit": 10_000}, "limit"),
        ("review_proposals", {"operation": "list", "min_probability": 2}, "min_probability"),
        ("review_proposals", {"operation": "list", "older_than_days": -1}, "older_than_days"),
        ("review_proposals", {"operation": "list", "action": "keep"}, "action"),
        ("review_proposals", {"operation": "list", "memory_type": "event"}, "memory_type"),
        ("review_proposals", {"operation": "list", "min_prob": 0.9}, "'min_prob'"),
        ("review_proposals", {"operation": "list", "ids": [str(uuid4())]}, "no ids"),
        ("memory_health", {"stale_threshold_days": "soon"}, "stale_threshold_days"),
        ("dereference", {}, "id"),
        ("dereference", {"id": MARKER}, "id"),
        ("forget", {"id": str(uuid4())}, "no such tool"),
    ]

    async def script(ask: Ask) -> list[Answer]:
        return [await ask(tool, **given) for tool, given, _ in wrong]

    for answer, (tool, given, named) in zip(server.talk(script, "--write"), wrong, strict=True):
        assert answer.failed, (tool, given)
        assert named in answer.text
        assert len(answer.text.splitlines()) == 1, answer.text
        assert MARKER not in answer.text
        assert "pydantic" not in answer.text


def test_a_failing_database_is_a_sentence_without_content_and_the_server_lives_on(
    server: Server, store: Store
) -> None:
    acme = store.tenant()
    entry = store.evidence(acme, content=MARKER)
    store.execute("ALTER TABLE evidence RENAME COLUMN content TO said")

    async def script(ask: Ask) -> list[Answer]:
        first = await ask("dereference", id=str(entry))
        store.execute("ALTER TABLE evidence RENAME COLUMN said TO content")
        return [first, await ask("dereference", id=str(entry))]

    broken, mended = server.talk(script)
    assert broken.failed
    assert broken.text.startswith("The database refused a statement")
    assert mended.data["content"] == MARKER


class Broken(Database):
    """A database whose failures quote what they met."""

    @contextmanager
    def tenant(self, user_id: UUID, *, exclusive: bool = False) -> Iterator[TenantTransaction]:
        raise KeyError(MARKER)
        yield


def test_what_is_unforeseen_says_nothing_of_a_memory(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> Any:
        built = build(Broken(url="nowhere"), uuid4(), Clock(), write=True)
        async with Client(built) as client:
            return await client.call_tool("dereference", {"id": str(uuid4())})

    said = anyio.run(main)
    assert said.is_error
    (content,) = said.content
    assert "(KeyError)" in content.text
    assert MARKER not in content.text
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "dereference failed: KeyError"
    ]
    assert MARKER not in caplog.text + "".join(capfd.readouterr())
