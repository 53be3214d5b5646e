"""Shadow questions: asked beside each pair, stored, and used by nothing of the pass."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sql
from forgetting_assets.judging.shadow import Shadow, shadow_of
from resources.gateway import Decision, JevGateway, Questions
from tests.fake_jev import MODEL, FakeJev
from tests.support import Pass, Store, TestJudge, make_policy

ON = make_policy(shadow=True)


def shadows(store: Store) -> list[dict[str, Any]]:
    return store.rows("SELECT same_matter, one_outdated FROM forgetting.shadow_answers ORDER BY 1")


def test_a_pair_is_asked_two_order_neutral_questions_in_the_same_request(store: Store) -> None:
    acme = store.tenant()
    store.pair(acme, scope="pairs")
    store.memory(acme)
    judge = TestJudge()
    work = Pass(store, judge, ON)
    work.candidates(store.partition())
    work.verdicts(store.partition())
    assert judge.calls == 1
    [questions] = judge._questions
    assert list(questions) == ["p0", "p0_same_matter", "p0_one_outdated", "s0"]
    for ref in ("p0_same_matter", "p0_one_outdated"):
        assert questions[ref]["type"] == "noul"
        asked = f"{questions[ref]['instructions']} {questions[ref]['criteria']}"
        assert "items[0], ref p0, alone" in asked
        assert not re.search(r"\b(older|newer|first|second|earlier|later)\b", asked)
    assert shadows(store) == [{"same_matter": 0.75, "one_outdated": 0.75}]


def test_it_is_off_unless_somebody_turns_it_on(store: Store) -> None:
    acme = store.tenant()
    store.pair(acme)
    judge = TestJudge()
    Pass(store, judge).run(store.partition())
    assert [list(questions) for questions in judge._questions] == [["p0"]]
    assert shadows(store) == []


def test_what_is_judged_and_proposed_is_the_same_with_it_and_without(store: Store) -> None:
    for slug, policy in (("off", make_policy()), ("on", ON)):
        user_id = store.tenant(slug)
        store.pair(user_id, topic="pair")
        store.memory(user_id, topic="single", scope="other")
        Pass(store, TestJudge(), policy).run(store.partition(slug))
    rows = store.rows(
        """
        SELECT t.slug, m.topic, p.action, p.status, p.probability
        FROM retention_proposals AS p
        INNER JOIN memories AS m ON m.id = p.memory_id
        INNER JOIN tenants AS t ON t.user_id = p.user_id ORDER BY 2, 3
        """
    )
    found = {
        slug: [{**row, "slug": None} for row in rows if row["slug"] == slug]
        for slug in ("off", "on")
    }
    assert found["off"] == found["on"]
    assert len(found["on"]) == 2


def test_turning_it_on_asks_about_nothing_again(store: Store) -> None:
    acme = store.tenant()
    store.pair(acme)
    judge = TestJudge()
    Pass(store, judge).run(store.partition())
    Pass(store, judge, ON).run(store.partition())
    assert judge.calls == 1


@pytest.mark.parametrize(
    "answer",
    [None, {"type": "choice", "choice": "p0"}, {"type": "noul", "noul": 1.5}, {"type": "noul"}],
    ids=["missing", "another type", "out of range", "no value"],
)
def test_a_bad_shadow_answer_is_no_answer_and_the_verdict_beside_it_stands(
    store: Store, answer: object
) -> None:
    acme = store.tenant()
    store.pair(acme)

    class Odd(TestJudge):
        def decide(self, state: str, questions: Questions) -> Decision:
            decision = super().decide(state, questions)
            answers = dict(decision.answers)
            answers["p0_same_matter"] = answer
            answers["p0_one_outdated"] = answer
            return Decision(decision.model, answers, 1, 1, None)

    done = Pass(store, Odd(), ON)
    done.candidates(store.partition())
    assert done.verdicts(store.partition()).judged == 1
    assert shadows(store) == []


def test_it_works_over_http(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    acme = store.tenant()
    for n in range(3):
        store.pair(acme, scope=f"scope-{n}")
    monkeypatch.setenv("JEV_API_KEY", "key")
    with FakeJev() as server:
        gateway = JevGateway(base_url=server.url, model=MODEL)
        work = Pass(store, gateway, ON)
        work.candidates(store.partition())
        assert work.verdicts(store.partition()).judged == 3
        gateway.close()
        assert len(server.calls) == 1
    assert len(shadows(store)) == 3


def test_no_statement_of_the_pass_reads_the_answers() -> None:
    readers = [
        f"{path.stem}.{name}"
        for path in (sql.ROOT / "queries").glob("*.sql")
        for name, query in sql.load(path.stem).items()
        if "shadow_answers" in query.text
    ]
    assert readers == ["verdicts.insert_shadow"]
    views = [path for path in (sql.ROOT / "views").glob("*.sql") if "shadow" in path.read_text()]
    assert views == []


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
ANSWER = ANY | st.fixed_dictionaries({"type": st.just("noul"), "noul": ANY})


@given(same=ANSWER, outdated=ANSWER)
def test_whatever_is_answered_a_shadow_is_a_probability_or_nothing(
    same: object, outdated: object
) -> None:
    found = shadow_of("p0", {"p0_same_matter": same, "p0_one_outdated": outdated})
    if found is None:
        return
    assert isinstance(found, Shadow)
    given = [each for each in (found.same_matter, found.one_outdated) if each is not None]
    assert given
    assert all(0 <= each <= 1 for each in given)
