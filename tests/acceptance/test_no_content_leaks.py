"""Memory text is in no log, event, exception or metadata: whole passes, and a grep through it all.

Real Dagster on PostgreSQL, a real and hostile HTTP judge, a store that breaks. After each run a
marked text is searched for in every table of Dagster and of ours, in what was printed and logged,
and in every file that Dagster wrote.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import dagster as dg
import pytest
import sqlalchemy as sa

from forgetting_assets import partitions
from forgetting_assets.definitions import build_defs
from resources import migrations
from resources.addresses import Addresses
from resources.clock import Clock
from resources.database import engine
from resources.flag import Flag
from resources.gateway import JevGateway
from resources.logs import OURS
from resources.policy import Policy
from resources.settings import PROJECT
from tests.fake_jev import MODEL, FakeJev
from tests.http_server import Reply
from tests.support import DAY, TODAY, Store, make_policy, record_verdict, say, vector

# Dagster's own uses of its own deprecated names.
pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

WORD = "Zebulon7Quill"
ACCENTED = "Zébulonœil"
MARKER = f"{WORD} keeps the violet ledger; {ACCENTED}"
"""One word that every escape leaves alone, and one that most of them change."""

TEXT_TABLES = ("memories", "evidence")
HANG = 300
"""Seconds after which a command is taken to hang."""


# --- the grep -------------------------------------------------------------------------------------


def in_base64(word: bytes) -> Iterator[bytes]:
    """What is the same in the base64 of any bytes around the word, wherever it begins."""
    for before in range(3):
        coded = base64.b64encode(bytes(before) + word)
        yield coded[math.ceil(before * 8 / 6) : (before + len(word)) * 8 // 6]


def forms(word: str) -> dict[str, bytes]:
    """The ways in which a word may stand in bytes."""
    written = word.encode()
    return {
        "plain": written,
        "JSON": json.dumps(word)[1:-1].encode(),
        "JSON in JSON": json.dumps(json.dumps(word)[1:-1])[1:-1].encode(),
        "URL": quote(word).encode(),
        "UTF-16 LE": word.encode("utf-16-le"),
        "UTF-16 BE": word.encode("utf-16-be"),
        "hexadecimal": written.hex().encode(),
        **{f"base64 at {n}": each for n, each in enumerate(in_base64(written))},
    }


FORMS = {
    f"{word} as {name}": form for word in (WORD, ACCENTED) for name, form in forms(word).items()
}


def found_in(data: bytes, sought: Mapping[str, bytes] = FORMS) -> list[str]:
    """The forms of the marker that stand in the data, whatever their case."""
    small = data.lower()
    return [name for name, form in sought.items() if form.lower() in small]


@pytest.mark.parametrize("place", ["{}", "a{}", "ab{}", "abc{} z", '"{}"'])
def test_the_grep_finds_each_form_of_the_marker(place: str) -> None:
    text = place.format(MARKER)
    for written in (
        text.encode(),
        text.upper().encode(),
        json.dumps(text).encode(),
        json.dumps(json.dumps(text)).encode(),
        quote(text).encode(),
        text.encode("utf-16"),
        text.encode("utf-16-be"),
        text.encode().hex().encode(),
        base64.b64encode(text.encode()),
    ):
        assert found_in(written), written
    assert found_in(b"keeps the ledger") == []


def every_row(pool: sa.Engine) -> dict[str, bytes]:
    """All that is in every table of a database, by table; compressed values are unpacked too."""
    held: dict[str, bytes] = {}
    with pool.connect() as connection:
        tables = connection.exec_driver_sql(
            "SELECT c.oid::regclass::text FROM pg_class AS c INNER JOIN pg_namespace AS n "
            "ON n.oid = c.relnamespace WHERE c.relkind = 'r' "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_toast'"
        ).scalars()
        for table in list(tables):
            values: list[bytes] = []
            for row in connection.exec_driver_sql(f"SELECT * FROM {table}"):
                for value in row:
                    if isinstance(value, memoryview):
                        raw = bytes(value)
                        values.append(raw)
                        values.append(unpacked(raw))
                    elif isinstance(value, dict | list):
                        values.append(json.dumps(value, ensure_ascii=False, default=str).encode())
                    else:
                        values.append(str(value).encode())
            held[table] = b"\n".join(values)
    return held


def unpacked(raw: bytes) -> bytes:
    try:
        return zlib.decompress(raw)
    except zlib.error:
        return b""


def every_file(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def leaks(places: Mapping[str, bytes], sought: Mapping[str, bytes] = FORMS) -> dict[str, list[str]]:
    """The places where the marker stands, and its forms there."""
    return {place: found for place, data in places.items() if (found := found_in(data, sought))}


# --- a judge that repeats what it was told --------------------------------------------------------

Twist = Callable[[str, Reply], Reply]
"""From a request's body and the good reply to what is sent instead."""


class Parrot(FakeJev):
    """A Jev whose replies go through ``twist``, which is shown what was asked."""

    def __init__(self, twist: Twist | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.twist = twist
        self.reason: str | None = None
        self.raw: bytes | None = None

    def _reply(self, route: str, authorization: str | None, body: bytes) -> Reply:
        reply = super()._reply(route, authorization, body)
        return self.twist(body.decode(), reply) if self.twist else reply

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if self.raw is not None:
            handler.wfile.write(self.raw)
            return
        if self.reason is not None:
            handler.send_response_only(reply.status, self.reason)
            handler.send_header("content-length", str(len(reply.body)))
            handler.end_headers()
            handler.wfile.write(reply.body)
            return
        super()._send(handler, reply)

    @property
    def shown(self) -> bytes:
        """All that it was asked, as text."""
        return json.dumps(list(self.calls), ensure_ascii=False).encode()


def a_line_of(asked: str) -> str:
    """The part of a request around the marker that fits into a header."""
    at = asked.index(WORD)
    return "".join(c for c in asked[max(0, at - 200) : at + 600] if c.isascii() and c.isprintable())


def echo(status: int) -> Twist:
    """The request itself as the body, with that status."""
    return lambda asked, _good: Reply(
        status, json.dumps({"detail": [{"input": asked, "msg": asked}]}).encode()
    )


def header(name: str, status: int | None = None, start: str = "") -> Twist:
    """The request in a header."""

    def twist(asked: str, good: Reply) -> Reply:
        headers = {**good.headers, name: start + a_line_of(asked)}
        return replace(good, status=status or good.status, headers=headers)

    return twist


def changed(change: Callable[[Any, str], object]) -> Twist:
    """The good answer after ``change`` saw it and the judged text."""

    def twist(asked: str, good: Reply) -> Reply:
        answer = json.loads(good.body)
        change(answer, asked)
        return replace(good, body=json.dumps(answer).encode())

    return twist


def each_answer(change: Callable[[Any, str], object]) -> Twist:
    """The same for each of its answers."""

    def every(answer: Any, asked: str) -> None:
        for one in answer["answers"].values():
            change(one, asked)

    return changed(every)


def text_as_probability(one: Any, asked: str) -> None:
    if "probabilities" in one:
        one["probabilities"] = dict.fromkeys(one["probabilities"], asked)


TWISTS: dict[str, Twist | None] = {
    "all is well": None,
    "the text as the chosen key": each_answer(
        lambda one, asked: one.update(choice=asked, probabilities={asked: 1.0})
    ),
    "the text as one more key": each_answer(
        lambda one, asked: one.get("probabilities", {}).update({asked: 0.0})
    ),
    "the text as a probability": each_answer(text_as_probability),
    "the text as the type": each_answer(lambda one, asked: one.update(type=asked)),
    "the text as an answer": changed(
        lambda said, asked: said.update(answers=dict.fromkeys(said["answers"], asked))
    ),
    "the text as a question": changed(lambda said, asked: said["answers"].update({asked: {}})),
    "the text as usage": changed(lambda said, asked: said.update(usage={"input_tokens": asked})),
    "the text as the model": changed(lambda said, asked: said.update(model=asked)),
    "the text and no answers": changed(lambda said, asked: (said.clear(), said.update(x=asked))),
    "not JSON": lambda asked, _good: Reply(200, asked.encode()[1:]),
    "not an object": lambda asked, _good: Reply(200, json.dumps([asked]).encode()),
    **{f"status {status}": echo(status) for status in (400, 401, 413, 422, 429, 500, 503)},
    "status 400, max_tokens_exceeded": lambda asked, _good: Reply(
        400,
        json.dumps({"detail": {"error_type": "max_tokens_exceeded", "message": asked}}).encode(),
    ),
    "a dropped connection": lambda _asked, _good: Reply(manner="drops"),
    "half an answer": lambda asked, _good: Reply(200, asked.encode(), manner="breaks off"),
    "an encoding that it is not": lambda asked, _good: Reply(
        200, asked.encode(), {"content-encoding": "gzip"}
    ),
    "a charset of its own": lambda asked, _good: Reply(
        400, asked.encode(), {"content-type": f"text/plain; charset={WORD}"}
    ),
}
HEADERS: dict[str, Twist] = {
    "a cookie": header("set-cookie", start="a="),
    "status 302, the text as the location": header("location", 302),
    "status 302, a location that is no URL": header("location", 302, "http://["),
    "status 422, the text in a header": header("x-detail", 422),
    "status 429, the text as retry-after": header("retry-after", 429),
    "status 429, the text as retry-after-ms": header("retry-after-ms", 429),
}


# --- the pass -------------------------------------------------------------------------------------


@dataclass
class World:
    """A marked tenant, Dagster on PostgreSQL, and a judge that repeats what it was told."""

    store: Store
    acme: UUID
    instance: dg.DagsterInstance
    dagster: sa.Engine
    folder: Path
    judge: Parrot
    caplog: pytest.LogCaptureFixture
    capfd: pytest.CaptureFixture[str]
    policy: Policy = field(
        default_factory=lambda: make_policy(shadow=True, batch_items=3, retry_seconds=5.0)
    )
    ours: dict[str, bytes] = field(default_factory=dict)
    said: str = ""
    runs: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    def run(self, *assets: str, rejudge: bool = False) -> dg.ExecuteInProcessResult:
        """One whole pass or some assets of it, with all that Dagster prints."""
        self.instance.add_dynamic_partitions("tenants", ["acme"])
        defs = build_defs(
            database=self.store.database,
            clock=Clock(fixed=TODAY.isoformat()),
            gateway=JevGateway(base_url=self.judge.url, model=MODEL, timeout_seconds=30),
            flag=Flag(pass_enabled=True, archive_enabled=True),
            policy=self.policy,
        )
        result = defs.resolve_job_def("forgetting_pass").execute_in_process(
            partition_key=partitions.key(DAY, "acme"),
            instance=self.instance,
            raise_on_error=False,
            asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
            run_config={"ops": {"judged_verdicts": {"config": {"rejudge": rejudge}}}},
        )
        self.runs.append(result)
        return result

    def everywhere(self) -> dict[str, bytes]:
        """All that is to hold no memory's text, by place."""
        self.said += "".join(self.capfd.readouterr())
        self.ours = every_row(self.store.owner)
        return {
            "printed": self.said.encode("utf-8", "surrogatepass"),
            "logged": self.caplog.text.encode("utf-8", "surrogatepass"),
            **{name: rows for name, rows in self.ours.items() if name not in TEXT_TABLES},
            **{f"dagster: {name}": rows for name, rows in every_row(self.dagster).items()},
            **{f"file: {name}": data for name, data in every_file(self.folder).items()},
        }

    def errors(self) -> list[tuple[str, str]]:
        """Class and message of each error that Dagster keeps of the last run, with its causes."""
        found: list[tuple[str, str]] = []
        for entry in self.instance.all_logs(self.runs[-1].run_id):
            event = entry.dagster_event
            waiting = [getattr(event.event_specific_data, "error", None) if event else None]
            while waiting:
                error = waiting.pop()
                if error is not None:
                    found.append((error.cls_name or "", error.message))
                    waiting += [error.cause, error.context]
        return found

    def foreign_errors(self) -> set[str]:
        """The classes of kept errors that are neither ours nor Dagster's own, as a driver's are."""
        kept = {name for name, _ in self.errors()} - OURS
        return {name for name in kept if not name.startswith("Dagster")}

    def require_silence(self, case: str = "", *, asked: bool = True) -> None:
        """Nothing leaked, no driver's error is kept, and each search would have found something."""
        places = self.everywhere()
        assert leaks(places) == {}, case
        assert self.foreign_errors() == set(), case
        # The controls: the text was there to be leaked, and where the search looks are the runs.
        plain = {f"{WORD} as plain", f"{ACCENTED} as plain"}
        if asked:
            assert set(found_in(self.judge.shown)) >= plain, case
            assert "HTTP Request" not in self.caplog.text, case
        for table in TEXT_TABLES:
            assert set(found_in(self.ours[table])) >= plain, case
        for place in ("printed", "dagster: event_logs", "dagster: runs"):
            assert self.runs[-1].run_id.encode() in places[place], (case, place)
        files = b"".join(data for place, data in places.items() if place.startswith("file: "))
        assert self.runs[-1].run_id.encode() in files, case

    def forget(self) -> None:
        """Take back what the last run wrote in our tables and the judge's memory of it."""
        self.store.execute(
            """
            SET LOCAL session_replication_role = replica;
            DROP FUNCTION IF EXISTS forgetting.sabotage CASCADE;
            DELETE FROM retention_proposals;
            DELETE FROM forgetting.shadow_answers;
            DELETE FROM forgetting.judged_verdicts;
            DELETE FROM forgetting.unjudged_items;
            DELETE FROM forgetting.archival_sweep;
            DELETE FROM user_budgets;
            UPDATE evidence SET archived_at = NULL, archived_run_date = NULL;
            """
        )
        self.judge.calls.clear()
        self.caplog.clear()


def furnish(store: Store) -> UUID:
    """A tenant with singles, a neighbour, a pair, an event and evidence, all of them marked."""
    acme = store.tenant()
    marked: dict[str, Any] = {"topic": MARKER, "project": MARKER}
    for number in range(3):
        store.memory(acme, f"{MARKER} {number}", age=60 + number, **marked)
    store.memory(acme, f"{MARKER} old", age=90, embedding=vector(0, 750), **marked)
    store.memory(acme, f"{MARKER} near", age=5, embedding=vector(40, 750), **marked)
    older, newer = store.pair(acme, **marked)
    for name, id_ in (("older", older), ("newer", newer)):
        store.execute("UPDATE memories SET content = :c WHERE id = :i", c=f"{MARKER} {name}", i=id_)
    store.memory(acme, f"{MARKER} event", memory_type="event", **marked)
    store.evidence(acme, content=f"{MARKER} trace", age=90)
    store.evidence(acme, content=f"{MARKER} log", kind="log", age=1)
    store.execute("UPDATE memories SET tags = CAST(:tags AS jsonb)", tags=json.dumps([MARKER]))
    store.execute("UPDATE evidence SET session_id = :marker", marker=MARKER)
    return acme


@pytest.fixture
def run_storage(places: Addresses) -> Iterator[sa.Engine]:
    """The test's own database for Dagster."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    pool = engine(places.admin.set(database=places.dagster.database))
    yield pool
    pool.dispose()


@pytest.fixture
def world(
    store: Store,
    places: Addresses,
    run_storage: sa.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[World]:
    """The marked tenant before its pass, with a judge that archives all it is shown."""
    monkeypatch.setenv("JEV_API_KEY", "key")
    caplog.set_level(logging.DEBUG)
    # At DEBUG it shows headers, as a test below tells. SQLAlchemy's is at WARNING by itself.
    caplog.set_level(logging.INFO, "httpcore")
    url = places.dagster.set(drivername="postgresql+psycopg2")
    overrides: dg._core.instance.types.DagsterInstanceOverrides = {
        "storage": {"postgres": {"postgres_url": url.render_as_string(hide_password=False)}},
        "telemetry": {"enabled": False},
    }
    with (
        Parrot(answer=say("archive")) as judge,
        dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance,
    ):
        yield World(store, furnish(store), instance, run_storage, tmp_path, judge, caplog, capfd)


def bundles(names: Sequence[str], size: int) -> list[Any]:
    """Cases that share a database, since it takes longer to make than they do."""
    return [
        pytest.param(names[n : n + size], id=f"{names[n]} and on")
        for n in range(0, len(names), size)
    ]


ALL_TWISTS = TWISTS | HEADERS


@pytest.mark.parametrize("names", bundles(list(ALL_TWISTS), 11))
def test_whatever_the_judge_repeats_no_text_is_in_any_log_event_error_or_row(
    world: World, names: list[str]
) -> None:
    selected = ("conflict_pairs", "stale_candidates")
    assert world.run(*selected).success
    for name in names:
        world.judge.twist = ALL_TWISTS[name]
        # The last twist goes through a whole pass; the judge's own asset is enough for the rest.
        world.run(*(() if name == names[-1] else ("judged_verdicts",)), rejudge=True)
        world.require_silence(name)
        world.forget()


def test_a_pass_that_goes_well_is_silent_also_when_it_asks_again(world: World) -> None:
    world.store.memory(world.acme, MARKER, topic=f"{MARKER} " + "`" * 70_000, age=99)
    first = world.run()
    assert first.success, world.errors()
    assert world.run(rejudge=True).success
    world.require_silence()
    (large,) = world.store.rows("SELECT DISTINCT reason FROM forgetting.unjudged_items")
    assert large == {"reason": "too_large"}
    for table in ("forgetting.judged_verdicts", "retention_proposals", "forgetting.archival_sweep"):
        assert world.store.rows(f"SELECT 1 FROM {table}")
    assert len(world.store.rows("SELECT DISTINCT asking FROM forgetting.judged_verdicts")) == 2


@pytest.mark.parametrize("manner", ["garbage", "status line"])
def test_an_answer_that_is_no_http_at_all_leaks_nothing(world: World, manner: str) -> None:
    garbage = f"{MARKER}\r\n\r\n".encode()
    world.judge.raw = garbage if manner == "garbage" else b"HTTP/1.1 2x0 " + garbage
    world.run()
    world.require_silence(asked=False)
    assert world.judge.calls


def test_a_request_id_that_repeats_the_text_is_not_kept(world: World) -> None:
    world.judge.twist = header("x-typesafe-request-id")
    assert world.run().success
    world.require_silence()
    assert world.store.rows("SELECT DISTINCT request_id FROM forgetting.judged_verdicts") == [
        {"request_id": None}
    ]


# --- the logs of libraries ------------------------------------------------------------------------


def test_a_reason_phrase_that_repeats_the_text_is_not_logged(world: World) -> None:
    world.judge.reason = MARKER.encode("ascii", "ignore").decode()
    world.run()
    assert leaks(world.everywhere()) == {}


@pytest.mark.parametrize("logger", ["httpcore", "sqlalchemy.engine"])
def test_who_turns_a_librarys_own_logger_to_debug_sees_text_and_is_told_so(
    world: World, logger: str
) -> None:
    """The control of the promise's one limit: nothing is hidden from who asks for it by name."""
    world.caplog.set_level(logging.DEBUG, logger)
    world.judge.twist = header("x-detail", 422)
    world.run()
    assert leaks(world.everywhere()) != {}
    assert f"`{logger}`" in (PROJECT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_statements_are_logged_without_their_parameters(world: World) -> None:
    world.caplog.set_level(logging.INFO, "sqlalchemy.engine")
    world.run()
    assert "SQL parameters hidden" in world.caplog.text
    world.require_silence()


# --- a store that breaks --------------------------------------------------------------------------

TEXT = "(SELECT m.content || m.topic FROM memories AS m WHERE m.user_id = new.user_id LIMIT 1)"


def trigger(table: str, body: str, when: str = "BEFORE INSERT OR UPDATE") -> str:
    """The statements of a trigger on a table, whose body may use the tenant's text as ``said``."""
    return f"""
        CREATE FUNCTION forgetting.sabotage() RETURNS trigger LANGUAGE plpgsql AS $body$
        DECLARE said text := {TEXT};
        BEGIN {body}; RETURN new; END $body$;
        CREATE TRIGGER sabotage {when} ON {table}
        FOR EACH ROW EXECUTE FUNCTION forgetting.sabotage();
    """


def raising(state: str) -> str:
    """An error of that state that quotes the text in every field that a driver reads."""
    return (
        "RAISE EXCEPTION 'cannot store %', said USING "
        f"ERRCODE = '{state}', DETAIL = 'Failing row contains ' || said, HINT = said"
    )


BROKEN = {
    "a check on verdicts": "ALTER TABLE forgetting.judged_verdicts "
    "ADD CONSTRAINT spoilt CHECK (probability < 0)",
    "a check on proposals": "ALTER TABLE retention_proposals "
    "ADD CONSTRAINT spoilt CHECK (probability < 0)",
    "a check on evidence, whose failing row has the text": "ALTER TABLE evidence "
    "ADD CONSTRAINT spoilt CHECK (archived_at IS NULL)",
    **{
        f"a trigger on {table}": trigger(table, raising("P0001"))
        for table in (
            *("forgetting.conflict_pairs", "forgetting.stale_candidates"),
            *("forgetting.judged_verdicts", "retention_proposals", "forgetting.archival_sweep"),
            *("llm_usage", "forgetting.calls_under_way"),
            *("forgetting.invariant_results", "evidence"),
        )
    },
    **{
        f"state {state}": trigger("forgetting.stale_candidates", raising(state))
        for state in ("22P02", "23502", "23503", "23505", "40001", "57014", "XX000")
    },
    "a cast of the text": trigger("forgetting.stale_candidates", "PERFORM said::integer"),
    "a key of the text": trigger(
        "forgetting.stale_candidates",
        "CREATE TEMPORARY TABLE seen (t text PRIMARY KEY) ON COMMIT DROP; "
        "INSERT INTO seen VALUES (said), (said)",
    ),
}
ASKED_NOBODY = (
    *("stale_candidates", "conflict_pairs", "calls_under_way", "invariant_results"),
    *("state ", "of the text"),
)
UNSPOILT = """
    ALTER TABLE forgetting.judged_verdicts DROP CONSTRAINT IF EXISTS spoilt;
    ALTER TABLE retention_proposals DROP CONSTRAINT IF EXISTS spoilt;
    ALTER TABLE evidence DROP CONSTRAINT IF EXISTS spoilt;
"""


@pytest.mark.parametrize("names", bundles(list(BROKEN), 9))
def test_whatever_the_database_quotes_no_text_is_in_any_log_event_error_or_row(
    world: World, names: list[str]
) -> None:
    for name in names:
        world.store.execute(BROKEN[name])
        assert not world.run().success, name
        refusals = [said for cls, said in world.errors() if cls == "StoreRefused"]
        assert any("The database refused a statement" in said for said in refusals), name
        world.require_silence(name, asked=not any(part in name for part in ASKED_NOBODY))
        world.forget()
        world.store.execute(UNSPOILT)


@pytest.mark.parametrize(
    "body",
    [raising("23514"), raising("42000"), "PERFORM to_tsquery('simple', '(' || said)"],
    ids=["a trigger's own check", "class 42", "a query of the text"],
)
def test_a_trigger_of_the_store_that_quotes_the_text_in_a_speaking_state_leaks_nothing(
    world: World, body: str
) -> None:
    world.store.execute(trigger("forgetting.stale_candidates", body))
    assert not world.run().success
    assert any(cls == "StoreRefused" for cls, _ in world.errors())
    assert leaks(world.everywhere()) == {}


def test_a_notice_of_the_store_that_quotes_the_text_is_not_logged(world: World) -> None:
    world.store.execute(trigger("forgetting.stale_candidates", "RAISE WARNING '%', said"))
    assert world.run().success
    assert leaks(world.everywhere()) == {}


def lose_connection(world: World) -> None:
    """Run a pass whose sessions the server ends while the judge is asked."""

    def cut(_number: int) -> None:
        world.store.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND usename = 'forgetting_runtime'"
        )

    world.judge.before = cut
    assert not world.run().success
    assert found_in(world.judge.shown)


def test_a_connection_that_is_lost_while_the_judge_is_asked_leaks_nothing(world: World) -> None:
    lose_connection(world)
    assert leaks(world.everywhere()) == {}


def test_a_connection_that_is_lost_while_the_judge_is_asked_is_an_error_of_ours(
    world: World,
) -> None:
    lose_connection(world)
    assert world.foreign_errors() == set()


# --- the invariant, what is hidden, and other ends of a pass --------------------------------------


def smuggled_event(world: World) -> str:
    """An event that was archived by a proposal, past the triggers."""
    memory = world.store.memory(world.acme, f"{MARKER} smuggled", topic=MARKER, age=70)
    record_verdict(world.store, world.acme, memory, verdict="archive", proposal="applied")
    world.store.execute("UPDATE memories SET memory_type = 'event' WHERE id = :i", i=memory)
    return f"Zero episodic collapse does not hold for acme on {DAY}"


def smuggled_candidate(world: World) -> str:
    """A candidate that becomes a note as it is selected."""
    world.store.execute(
        trigger(
            "forgetting.stale_candidates",
            "UPDATE memories SET memory_type = 'note' WHERE id = new.memory_id",
            "AFTER INSERT",
        )
    )
    return "zero_episodic_collapse"


def lost_bytes(world: World) -> str:
    """Evidence that changes as it is archived."""
    world.store.execute(
        trigger(
            "forgetting.archival_sweep",
            "UPDATE evidence SET content = content || '!' WHERE id = new.evidence_id",
            "AFTER INSERT",
        )
    )
    return "Conservation does not hold for acme"


def hidden_rows(world: World) -> str:
    """A policy that hides what has the text."""
    world.store.execute(
        "CREATE POLICY hide ON memories AS RESTRICTIVE FOR ALL TO forgetting_runtime "
        "USING (content NOT LIKE '%older%')"
    )
    return "The runtime role sees"


def talkative_policy(world: World) -> str:
    """A policy that fails on the text and quotes it."""
    world.store.execute(
        "CREATE POLICY fail ON memories AS RESTRICTIVE FOR ALL TO forgetting_runtime "
        "USING (content::integer > 0)"
    )
    return "The database refused a statement"


def large_radius(world: World) -> str:
    """More to archive in one scope than a run may."""
    for number in range(25):
        world.store.memory(world.acme, f"{MARKER} many {number}", topic=MARKER, project=MARKER)
    return "blast_radius"


def no_floor(world: World) -> str:
    """A vector of a model that has no floor."""
    world.store.memory(world.acme, f"{MARKER} foreign", topic=MARKER, embedding_model="foreign")
    return "no floor"


def no_money(world: World) -> str:
    """A budget of nothing."""
    world.store.execute(
        "INSERT INTO user_budgets (user_id, cap_usd_override) VALUES (:u, 0)", u=world.acme
    )
    return ""


ENDS = (
    *(smuggled_event, smuggled_candidate, lost_bytes, hidden_rows, talkative_policy),
    *(large_radius, no_floor, no_money),
)
ENDS_THAT_ASK = (smuggled_event, lost_bytes, large_radius)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_however_a_pass_ends_no_text_is_in_any_log_event_error_or_row(
    world: World, end: Callable[[World], str]
) -> None:
    expected = end(world)
    assert world.run().success == (not expected)
    said = "\n".join(message for _, message in world.errors())
    assert expected in said or expected in world.everywhere()["dagster: event_logs"].decode()
    world.require_silence(asked=end in ENDS_THAT_ASK)
    if end is no_money:
        assert "Judging stops" in world.said
        assert world.judge.calls == []


def test_an_item_that_cannot_be_judged_is_given_up_in_silence(world: World) -> None:
    world.judge.twist = TWISTS["the text as one more key"]
    world.run("conflict_pairs", "stale_candidates")
    for _ in range(4):
        world.run("judged_verdicts")
    world.require_silence()
    given_up = world.store.rows(
        "SELECT 1 FROM forgetting.unjudged_items GROUP BY memory_id HAVING count(*) >= 3"
    )
    assert given_up


def test_a_scope_is_a_label_that_stands_in_the_reasons_of_a_blast_radius_and_nowhere_else(
    world: World,
) -> None:
    world.store.execute("UPDATE memories SET scope = 'Kingfisher4Scope'")
    for number in range(25):
        world.store.memory(world.acme, f"{MARKER} {number} many", scope="Kingfisher4Scope")
    assert not world.run().success
    places = leaks(world.everywhere(), forms("Kingfisher4Scope"))
    assert set(places) == {
        "forgetting.invariant_results",
        "dagster: event_logs",
        "dagster: asset_check_executions",
    }
    world.require_silence()


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["status 422", "a check on evidence"])
def test_a_run_from_the_command_line_that_fails_prints_and_keeps_no_text(
    world: World, places: Addresses, case: str
) -> None:
    world.judge.twist = TWISTS.get(case)
    if case not in TWISTS:
        world.store.execute(next(text for name, text in BROKEN.items() if name.startswith(case)))
    done = subprocess.run(
        [
            Path(sys.executable).parent / "forgetting",
            *("run", "--tenant", "acme", "--date", DAY.isoformat(), "--rejudge"),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(world.folder),
            "FORGETTING_HOME": str(world.folder / "forgetting"),
            "DATABASE_URL": places.memory.render_as_string(hide_password=False),
            "FORGETTING_PASS_ENABLED": "true",
            "FORGETTING_ARCHIVE_ENABLED": "true",
            "FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}',
            "FORGETTING_BATCH_ITEMS": "2",
            "FORGETTING_JUDGE_SHADOW": "true",
            "JEV_BASE_URL": world.judge.url,
            "JEV_MODEL": MODEL,
            "JEV_API_KEY": "key",
        },
        cwd=world.folder,
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stderr.startswith(b"The pass failed for acme: "), done
    assert len(done.stderr.splitlines()) == 1
    assert leaks({"out": done.stdout, "error": done.stderr, **world.everywhere()}) == {}
    assert set(found_in(world.judge.shown)) >= {f"{WORD} as plain", f"{ACCENTED} as plain"}
    assert found_in(every_row(world.store.owner)["memories"])
    assert b"forgetting_pass" in every_row(world.dagster)["runs"]
