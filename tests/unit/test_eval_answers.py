"""Asking a judge about labelled items, keeping what it said, and reading it again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eval import answers
from eval.answers import SCRIPTED, Answers
from eval.fixture import Fixture, load
from eval.scripted import ScriptedJudge
from forgetting_assets.demo.scripted import items_of
from resources.clock import Clock
from resources.errors import (
    AnswerRejected,
    EvalRefused,
    GatewayRefused,
    GatewayUnavailable,
    WrongModel,
)
from resources.gateway import JevGateway
from tests.fake_jev import MODEL, FakeJev, by_content
from tests.http_server import Reply
from tests.support import choose

MARKER = "Ottoline keeps the violet ledger"
NOW = "2026-11-01T00:00:00Z"
AT = datetime(2026, 11, 29, tzinfo=UTC)
ITEMS = 20


def memory(number: int, what: str, created: str, memory_type: str = "decision") -> dict[str, Any]:
    return {
        "memory_type": memory_type,
        "project": "ledger",
        "topic": f"{MARKER} {number}",
        "content": f"{MARKER}: {what} {number}",
        "created_at": created,
    }


def single(number: int, label: str = "archive") -> dict[str, Any]:
    named = label == "supersede"
    return {
        "id": f"single-{number}",
        "slice": "archive" if label == "archive" else "keep",
        "split": "dev",
        "cluster": f"c{number}",
        "kind": "single",
        "label": label,
        "label_newer": 1 if named else None,
        "memory": memory(number, "older", "2026-01-01T00:00:00Z"),
        "newer": [memory(number, what, "2026-05-01T00:00:00Z") for what in ("near", "far")],
        "similarities": [0.8, 0.7],
    }


def pair(number: int, label: str = "supersede") -> dict[str, Any]:
    return {
        "id": f"pair-{number}",
        "slice": "pair",
        "split": "dev",
        "cluster": f"p{number}",
        "kind": "pair",
        "label": label,
        "memory": memory(number, "old side", "2026-02-01T00:00:00Z"),
        "newer": [memory(number, "new side", "2026-06-01T00:00:00Z")],
        "similarities": [0.9],
    }


def written(folder: Path, items: list[dict[str, Any]], name: str = "items.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"name": "own", "about": "A test.", "now": NOW, "items": items}))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    labels = ["archive", "keep", "supersede", "keep"]
    singles = [single(n, labels[n % 4]) for n in range(ITEMS - 6)]
    return written(
        tmp_path, singles + [pair(n, ["supersede", "conflict"][n % 2]) for n in range(6)]
    )


@pytest.fixture
def fixture(file: Path) -> Fixture:
    return load(file)


@pytest.fixture
def jev() -> Iterator[FakeJev]:
    with FakeJev(answer=by_content) as jev:
        yield jev


@pytest.fixture
def gateway(jev: FakeJev, monkeypatch: pytest.MonkeyPatch) -> Iterator[JevGateway]:
    monkeypatch.setenv("JEV_API_KEY", "key-of-a-test")
    gateway = JevGateway(base_url=jev.url, model=MODEL)
    yield gateway
    gateway.close()


def silent(_line: str) -> None:
    pass


def ask(fixture: Fixture, gateway: Any, **how: Any) -> Answers:
    clock = Clock(fixed=AT.isoformat())
    return answers.run(fixture, gateway, **{"say": silent, "clock": clock, **how})


def kept(path: Path, said: Answers) -> Path:
    answers.record(path, said, recorded_at=AT)
    return path


def test_every_item_is_asked_about_as_the_pass_asks_and_has_its_verdict(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    lines: list[str] = []
    said = ask(fixture, gateway, say=lines.append)
    assert {each.item.id for each in said.judged} == {each.id for each in fixture.items}
    assert (said.model, said.source, said.judged_by) == (MODEL, "endpoint", MODEL)
    assert (said.rejected, said.synthetic) == ({}, False)
    # 12 items a call, pairs first, as forgetting_assets.judging puts them.
    asked = [list(items_of(call["state"])) for call in jev.calls]
    assert [len(each) for each in asked] == [12, 8]
    assert asked[0][:7] == ["p0", "p1", "p2", "p3", "p4", "p5", "s0"]
    now = {
        json.loads(call["state"].split("```json\n")[1].split("\n```")[0])["now"]
        for call in jev.calls
    }
    assert now == {NOW}, "the items' own date, whatever day it is"
    assert lines[-1] == "20 of 20 items answered, 2 calls sent."
    assert MARKER not in "".join(lines)


def test_a_call_does_not_hold_items_of_one_label_though_the_file_does(tmp_path: Path) -> None:
    items = [single(n, "archive" if n < 24 else "keep") for n in range(48)]
    planned = answers.plan(load(written(tmp_path, items)))
    labels = [{planned.item(i.subject.id).label for i in batch.items} for batch in planned.batches]
    assert labels == [{"archive", "keep"}] * 4


def test_a_replay_says_what_the_run_said_without_network_and_key(
    fixture: Fixture,
    gateway: JevGateway,
    jev: FakeJev,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = ask(fixture, gateway, with_shadow=True)
    path = kept(tmp_path / "answers.jsonl", said)
    calls = len(jev.calls)
    monkeypatch.delenv("JEV_API_KEY")
    assert answers.replay(fixture, path) == said
    assert answers.replay(fixture, path) == answers.replay(fixture, path)
    assert len(jev.calls) == calls
    assert said.shadows
    assert MARKER not in path.read_text()
    assert "single-0" not in path.read_text()


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_depends_on_no_order_of_lines_or_keys(
    fixture: Fixture, gateway: JevGateway, tmp_path: Path, seed: int
) -> None:
    said = ask(fixture, gateway, batch_items=5)
    path = kept(tmp_path / "answers.jsonl", said)
    chance = random.Random(seed)

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            chance.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}
        return value

    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    chance.shuffle(lines)
    path.write_text("".join(f"{json.dumps(shuffled(each))}\n" for each in [head, *lines]))
    assert answers.replay(fixture, path).judged == said.judged


def test_a_digest_follows_from_state_and_options_and_from_no_order_of_the_questions(
    fixture: Fixture,
) -> None:
    batch = answers.plan(fixture).batches[0]
    digest = answers.digest_of(batch)
    turned = dict(reversed(batch.questions.items()))
    assert answers.digest_of(type(batch)(batch.items, batch.state, turned)) == digest
    assert answers.digest_of(type(batch)(batch.items, batch.state + " ", turned)) != digest
    first = next(iter(batch.questions))
    asked = dict(batch.questions[first])
    asked["criteria"] = dict(reversed(list(asked["criteria"].items())))  # type: ignore[attr-defined]
    other = batch.questions | {first: asked}
    assert answers.digest_of(type(batch)(batch.items, batch.state, other)) != digest


def test_one_changed_byte_of_the_items_is_refused(
    fixture: Fixture, file: Path, gateway: JevGateway, tmp_path: Path
) -> None:
    path = kept(tmp_path / "answers.jsonl", ask(fixture, gateway))
    file.write_text(file.read_text() + " ")
    with pytest.raises(EvalRefused, match=r"other bytes than own has now: restore .* record again"):
        answers.replay(load(file), path)


def test_answers_of_another_batch_size_or_rendering_are_refused(
    fixture: Fixture, gateway: JevGateway, tmp_path: Path
) -> None:
    path = kept(tmp_path / "answers.jsonl", ask(fixture, gateway))
    head, *lines = path.read_text().splitlines()
    header = json.loads(head) | {"batch_items": 10}
    path.write_text("\n".join([json.dumps(header), *lines]))
    with pytest.raises(EvalRefused, match=r"2 of 2 requests have no recorded answer.*record again"):
        answers.replay(fixture, path)
    path.write_text("\n".join([head, *lines[1:]]))
    with pytest.raises(EvalRefused, match="1 of 2 requests have no recorded answer"):
        answers.replay(fixture, path)
    path.write_text("\n".join([head, *lines, lines[0].replace('"digest": "', '"digest": "0')]))
    with pytest.raises(EvalRefused, match=r"is no recording \(line 4: digest"):
        answers.replay(fixture, path)
    stray = json.loads(lines[0]) | {"digest": "0" * 64}
    path.write_text("\n".join([head, *lines, json.dumps(stray)]))
    with pytest.raises(EvalRefused, match="1 recorded answers belong to no request"):
        answers.replay(fixture, path)
    path.write_text("\n".join([head, *lines, lines[0]]))
    with pytest.raises(EvalRefused, match="answers one request twice"):
        answers.replay(fixture, path)


@pytest.mark.parametrize("content", ["", "no JSON", "{}", "\x00"])
def test_what_is_no_recording_is_refused_in_one_sentence(
    fixture: Fixture, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    with pytest.raises(EvalRefused, match="is no recording"):
        answers.replay(fixture, path)
    with pytest.raises(EvalRefused, match=r"cannot be read.*forgetting-eval record"):
        answers.replay(fixture, tmp_path / "absent.jsonl")


def test_one_item_a_call_asks_the_same_of_each_item_as_twelve_do(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev, tmp_path: Path
) -> None:
    one = ask(fixture, gateway, batch_items=1)
    assert len(jev.calls) == ITEMS
    twelve = ask(fixture, gateway)
    assert len(jev.calls) == ITEMS + 2
    # The fake answers by the judged content alone, so company changes nothing.
    assert {each.item.id: each for each in one.judged} == {
        each.item.id: each for each in twelve.judged
    }
    for name, said in (("one", one), ("twelve", twelve)):
        assert answers.replay(fixture, kept(tmp_path / name, said)) == said


def test_the_shadow_questions_are_asked_of_pairs_alone_and_change_no_verdict(
    fixture: Fixture, gateway: JevGateway
) -> None:
    plain, shadowed = ask(fixture, gateway), ask(fixture, gateway, with_shadow=True)
    assert plain.shadows == {}
    assert set(shadowed.shadows) == {each.id for each in fixture.items if each.kind == "pair"}
    assert {e.item.id: e for e in plain.judged} == {e.item.id: e for e in shadowed.judged}


def test_a_bad_answer_rejects_its_item_alone_and_nothing_the_endpoint_said_is_kept(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev, tmp_path: Path
) -> None:
    def answer(item: dict[str, Any], keys: list[str]) -> object:
        if item["kind"] == "single" and item["memory"]["topic"] == f"{MARKER} 3":
            return {"type": "choice", "choice": MARKER, "probabilities": {MARKER: 1}}
        return choose(keys[0], keys) | {"legend": MARKER}

    jev.answer = answer
    said = ask(fixture, gateway)
    assert len(said.judged) == ITEMS - 1
    assert set(said.rejected) == {"single-3"}
    assert "was not offered" in said.rejected["single-3"]
    path = kept(tmp_path / "answers.jsonl", said)
    assert MARKER not in path.read_text()
    assert answers.replay(fixture, path) == said


def test_a_call_without_a_usable_answer_rejects_its_items_and_the_next_call_goes_on(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev, tmp_path: Path
) -> None:
    jev.faults = [Reply(200, b"no JSON")]
    said = ask(fixture, gateway)
    assert (len(said.judged), len(said.rejected)) == (8, 12)
    assert answers.replay(fixture, kept(tmp_path / "answers.jsonl", said)) == said


def test_a_judge_that_never_gives_a_usable_answer_is_not_paid_for_all_items(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    jev.answer = lambda _item, _keys: {"type": "score"}
    with pytest.raises(AnswerRejected, match=r"no usable answer in its first 3 calls.*JEV_MODEL"):
        ask(fixture, gateway, batch_items=1)
    assert len(jev.calls) == 3


def test_a_request_that_is_too_large_is_asked_in_halves_and_replays(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev, tmp_path: Path
) -> None:
    jev.faults = [Reply(413)]
    said = ask(fixture, gateway)
    assert [len(items_of(call["state"])) for call in jev.calls] == [12, 6, 6, 8]
    assert len(said.judged) == ITEMS
    assert answers.replay(fixture, kept(tmp_path / "answers.jsonl", said)) == said


def test_an_item_that_is_too_large_by_itself_is_rejected_alone_and_replays_so(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev, tmp_path: Path
) -> None:
    jev.faults = [Reply(413)]
    said = ask(fixture, gateway, batch_items=1)
    assert (len(said.judged), len(said.rejected)) == (ITEMS - 1, 1)
    assert answers.replay(fixture, kept(tmp_path / "answers.jsonl", said)) == said


def test_a_judge_that_is_away_for_a_while_is_asked_again(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    jev.faults = [Reply(429), Reply(503), Reply(manner="drops")]
    assert len(ask(fixture, gateway).judged) == ITEMS
    assert len(jev.calls) == 5


def test_a_judge_that_stays_away_ends_the_run_within_its_time(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    def away(_number: int) -> None:
        jev.faults = [Reply(503)]  # of the next call

    jev.before = away
    clock = Clock(fixed=AT.isoformat())
    with pytest.raises(GatewayUnavailable, match="after 1 answered calls: nothing was recorded"):
        ask(fixture, gateway, batch_items=5, clock=clock, retry_seconds=100)
    assert (clock.now() - AT).total_seconds() <= 100


def test_all_calls_together_lose_no_more_than_the_time_there_is(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    away = Reply(503, headers={"retry-after": "40"})

    def before(number: int) -> None:
        jev.faults = [away] if number % 2 == 0 else []  # each call is answered at its second try

    jev.faults, jev.before = [away], before
    clock = Clock(fixed=AT.isoformat())
    with pytest.raises(GatewayUnavailable, match="after 2 answered calls"):
        ask(fixture, gateway, batch_items=5, clock=clock, retry_seconds=100)
    assert 80 <= (clock.now() - AT).total_seconds() <= 100


def test_an_item_that_no_call_can_hold_is_counted_and_not_sent(
    tmp_path: Path, gateway: JevGateway, jev: FakeJev
) -> None:
    large = single(1)
    large["memory"]["topic"] = "long " * 13_000
    fixture = load(written(tmp_path, [large, single(2)]))
    said = ask(fixture, gateway)
    assert (len(said.judged), said.rejected) == (1, {"single-1": "No call can hold it."})
    assert len(items_of(jev.calls[0]["state"])) == 1
    assert answers.replay(fixture, kept(tmp_path / "answers.jsonl", said)) == said


def test_no_more_calls_are_sent_than_allowed_retries_included(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    with pytest.raises(EvalRefused, match="takes 20 calls of 1 items, and --max-calls allows 19"):
        ask(fixture, gateway, batch_items=1, max_calls=19)
    assert jev.calls == []
    jev.faults = [Reply(503)] * 9
    with pytest.raises(EvalRefused, match=r"4 calls were sent.*Raise --max-calls"):
        ask(fixture, gateway, max_calls=4, retry_seconds=9_999)
    assert len(jev.calls) == 4


@pytest.mark.parametrize("batch_items", [0, 101])
def test_a_batch_size_that_no_call_has_is_refused(fixture: Fixture, batch_items: int) -> None:
    with pytest.raises(EvalRefused, match="1 to 100 items"):
        answers.plan(fixture, batch_items=batch_items)


def test_a_wrong_key_and_another_model_end_the_run(
    fixture: Fixture, gateway: JevGateway, jev: FakeJev
) -> None:
    jev.key = "another"
    with pytest.raises(GatewayRefused, match="JEV_API_KEY is wrong"):
        ask(fixture, gateway)
    jev.key = None
    gateway = JevGateway(base_url=jev.url, model=MODEL, answer_model="jev-9.9.9")
    with pytest.raises(WrongModel):
        ask(fixture, gateway)
    gateway.close()


def test_a_recording_is_written_whole_or_not_at_all(
    fixture: Fixture, gateway: JevGateway, tmp_path: Path
) -> None:
    said = ask(fixture, gateway)
    path = kept(tmp_path / "answers.jsonl", said)
    before = path.read_bytes()
    broken = type(said)(**{**said.__dict__, "batch_items": 0})
    with pytest.raises(ValueError, match="batch_items"):
        answers.record(path, broken, recorded_at=AT)
    folder = tmp_path / "answers.jsonl" / "below a file"
    with pytest.raises(EvalRefused, match="cannot be written"):
        answers.record(folder, said, recorded_at=AT)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_two_items_that_render_the_same_request_are_one_question(
    tmp_path: Path, gateway: JevGateway, jev: FakeJev
) -> None:
    twin = single(1) | {"id": "twin"}
    fixture = load(written(tmp_path, [single(1), twin]))
    said = ask(fixture, gateway, batch_items=1)
    assert (len(jev.calls), len(said.judged)) == (1, 2)
    assert answers.replay(fixture, kept(tmp_path / "answers.jsonl", said)) == said


def test_scripted_answers_say_so_and_cannot_pass_for_judged_ones(
    fixture: Fixture, tmp_path: Path
) -> None:
    said = ask(fixture, ScriptedJudge.of(fixture))
    assert (said.source, said.judged_by, said.synthetic) == (
        "scripted",
        "scripted (no model)",
        True,
    )
    path = kept(tmp_path / "answers.jsonl", said)
    head, *lines = path.read_text().splitlines()
    header = json.loads(head)
    assert (header["source"], header["model"]) == ("scripted", "scripted")
    assert "No model judged anything" in header["note"]
    for change in (
        {"source": "endpoint"},
        {"model": "jev-1.14.0", "answer_model": "jev-1.14.0"},
        {"note": "judged"},
    ):
        path.write_text("\n".join([json.dumps(header | change), *lines]))
        with pytest.raises(EvalRefused, match="is no recording"):
            answers.replay(fixture, path)
    assert SCRIPTED in header["note"]


def test_the_scripted_judge_errs_sometimes_and_always_the_same(tmp_path: Path) -> None:
    items = [single(n, ["archive", "keep", "supersede"][n % 3]) for n in range(200)]
    fixture = load(written(tmp_path, items))
    said = ask(fixture, ScriptedJudge.of(fixture))
    assert said == ask(fixture, ScriptedJudge.of(fixture))
    assert said.judged != ask(fixture, ScriptedJudge.of(fixture, seed=1)).judged
    right = [each.correct for each in said.judged]
    assert 0.75 < sum(right) / len(right) < 0.98
    assert len({each.probability for each in said.judged}) > 20
    assert {each.action for each in said.judged if not each.correct} > {"archive"}
    other = load(written(tmp_path, [single(999)], "other.json"))
    with pytest.raises(EvalRefused, match="knows no label"):
        ask(other, ScriptedJudge.of(fixture))
