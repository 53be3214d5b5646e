"""Well-formed answers become typed verdicts; whatever breaks the contract rejects its item."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from forgetting_assets.judging.items import Item, Pair
from forgetting_assets.judging.rendering import choices
from forgetting_assets.judging.thresholds import status_of
from forgetting_assets.judging.verdicts import verdict_of
from resources.errors import AnswerRejected
from resources.policy import Policy
from tests.items import memory, pair, single

thorough = settings(deadline=None, max_examples=100)
REF = "s3"
THRESHOLDS = Policy().thresholds


@st.composite
def askable(draw: st.DrawFn) -> Item:
    """An item with at least two answers: a single, a blocker with a neighbour, or a pair."""
    kind = draw(st.sampled_from(("fact", "blocker", "pair")))
    if kind == "pair":
        return pair()
    return single(draw(st.integers(1 if kind == "blocker" else 0, 3)), memory_type=kind)


@st.composite
def answered(draw: st.DrawFn) -> tuple[Item, dict[str, Any]]:
    """An item and a well-formed answer, in the two decimals of the endpoint."""
    item = draw(askable())
    keys = [choice.key for choice in choices(item, REF)]
    weights = draw(
        st.lists(st.integers(0, 1_000), min_size=len(keys), max_size=len(keys)).filter(any)
    )
    exact = {key: weight / sum(weights) for key, weight in zip(keys, weights, strict=True)}
    shown = draw(st.permutations(keys))
    return item, {
        "type": "choice",
        "choice": max(exact, key=lambda key: exact[key]),
        "confidence": draw(st.floats(0, 1)),
        "probabilities": {key: round(exact[key], 2) for key in shown},
    }


def answer(chosen: str, **probabilities: float) -> dict[str, Any]:
    """A raw answer; ``__`` in a key stands for the colon of ``supersede_by:s3n0``."""
    return {
        "type": "choice",
        "choice": chosen,
        "confidence": 0.123,
        "probabilities": {key.replace("__", ":"): p for key, p in probabilities.items()},
    }


@thorough
@given(answered())
def test_a_well_formed_answer_is_the_verdict_of_the_chosen_key_at_its_own_probability(
    given_answer: tuple[Item, dict[str, Any]],
) -> None:
    item, raw = given_answer
    verdict = verdict_of(item, REF, raw)
    meant = next(choice for choice in choices(item, REF) if choice.key == raw["choice"])
    assert verdict.item is item
    assert (verdict.action, verdict.related) == (meant.verdict, meant.related)
    assert verdict.answer_key == raw["choice"].replace(f":{REF}n", ":n")
    assert verdict.probability == raw["probabilities"][raw["choice"]]
    assert verdict.probabilities == {
        key.replace(f":{REF}n", ":n"): p for key, p in raw["probabilities"].items()
    }


@pytest.mark.parametrize(
    ("item", "chosen", "action", "related"),
    [
        (single(2), "keep", "keep", None),
        (single(2), "archive", "archive", None),
        (single(2), "supersede_by:s3n0", "supersede", 0),
        (single(2), "supersede_by:s3n1", "supersede", 1),
        (single(2, memory_type="blocker"), "keep", "keep", None),
        (single(2, memory_type="blocker"), "conflict_with:s3n0", "conflict", 0),
        (single(2, memory_type="blocker"), "conflict_with:s3n1", "conflict", 1),
        (pair(), "keep_both", "keep", None),
        (pair(), "archive_older", "archive", None),
        (pair(), "supersede_older", "supersede", 0),
        (pair(), "conflict", "conflict", 0),
    ],
)
def test_each_choice_is_the_action_and_the_other_side_that_the_adr_gives_it(
    item: Item, chosen: str, action: str, related: int | None
) -> None:
    keys = [choice.key for choice in choices(item, REF)]
    rest = 0.1 / (len(keys) - 1)
    verdict = verdict_of(
        item,
        REF,
        {
            "type": "choice",
            "choice": chosen,
            "probabilities": {key: 0.9 if key == chosen else rest for key in keys},
        },
    )
    newer = [item.newer] if isinstance(item, Pair) else list(item.newer)
    assert verdict.action == action
    assert verdict.related == (None if related is None else newer[related])
    assert verdict.probability == 0.9


def test_the_probability_is_the_chosen_keys_and_not_the_confidence() -> None:
    raw = answer("archive", keep=0.3, archive=0.7)
    raw["confidence"] = 0.4
    assert verdict_of(single(), REF, raw).probability == 0.7
    # A spread statistic that is missing or nonsense says nothing about the distribution.
    del raw["confidence"]
    assert verdict_of(single(), REF, raw).probability == 0.7


def test_the_whole_map_is_kept_for_calibration() -> None:
    raw = answer("archive", archive=0.6, supersede_by__s3n0=0.0, keep=0.4)
    assert verdict_of(single(1), REF, raw).probabilities == {
        "keep": 0.4,
        "archive": 0.6,
        "supersede_by:n0": 0.0,
    }, "without the item's place in a batch that nobody will know later"


def test_a_tie_is_accepted_for_any_of_the_most_probable_keys() -> None:
    for chosen in ("keep", "archive"):
        raw = answer(chosen, keep=0.5, archive=0.5, supersede_by__s3n0=0.0)
        assert verdict_of(single(1), REF, raw).answer_key == chosen
    with pytest.raises(AnswerRejected):
        verdict_of(
            single(1),
            REF,
            answer("supersede_by:s3n0", keep=0.5, archive=0.5, supersede_by__s3n0=0.0),
        )


@pytest.mark.parametrize(
    ("newer", "total", "accepted"),
    [
        (0, 0.99, True),
        (0, 1.01, True),
        (0, 0.98, True),
        (0, 1.02, True),
        (0, 0.97, False),
        (0, 1.03, False),
        # Five keys may be off by half a hundredth each.
        (3, 0.975, True),
        (3, 1.025, True),
        (3, 0.97, False),
        (3, 1.03, False),
    ],
)
def test_a_sum_may_be_off_by_rounding_and_no_more(newer: int, total: float, accepted: bool) -> None:
    item = single(newer)
    keys = [choice.key for choice in choices(item, REF)]
    probabilities = dict.fromkeys(keys, 0.1) | {"keep": round(total - 0.1 * (len(keys) - 1), 3)}
    raw = {"type": "choice", "choice": "keep", "probabilities": probabilities}
    if accepted:
        assert verdict_of(item, REF, raw).action == "keep"
    else:
        with pytest.raises(AnswerRejected, match="sum"):
            verdict_of(item, REF, raw)


def test_exact_zero_and_one_are_probabilities_and_whole_numbers_are_numbers() -> None:
    raw = answer("archive", keep=0, archive=1)
    verdict = verdict_of(single(), REF, raw)
    assert verdict.probabilities == {"keep": 0.0, "archive": 1.0}
    assert all(type(p) is float for p in verdict.probabilities.values())


@pytest.mark.parametrize(
    "foreign",
    ["s3n1", "supersede_by:s3n1", "supersede_by:s4n0", "supersede_by:s3", "s3n0", "conflict"],
)
def test_br_07_a_key_of_another_list_or_item_rejects_the_item_and_is_never_mapped(
    foreign: str,
) -> None:
    item = single(1)
    fine = answer("supersede_by:s3n0", keep=0.1, archive=0.1, supersede_by__s3n0=0.8)
    assert verdict_of(item, "s3", fine).related == item.newer[0]

    chosen_only = {**fine, "choice": foreign}
    in_place = {
        **fine,
        "choice": foreign,
        "probabilities": {"keep": 0.1, "archive": 0.1, foreign: 0.8},
    }
    beside = {**fine, "probabilities": {**fine["probabilities"], foreign: 0.0}}
    for raw in (chosen_only, in_place, beside):
        with pytest.raises(AnswerRejected):
            verdict_of(item, "s3", raw)


def test_br_07_the_answer_to_another_item_is_rejected() -> None:
    # The same item in another place offers other keys, so a swapped answer cannot be mistaken.
    item = single(1)
    raw = answer("supersede_by:s3n0", keep=0.1, archive=0.1, supersede_by__s3n0=0.8)
    assert verdict_of(item, "s3", raw).action == "supersede"
    for ref in ("s2", "s4", "s30"):
        with pytest.raises(AnswerRejected):
            verdict_of(item, ref, raw)


Mutation = Callable[[dict[str, Any], st.DataObject], object]
"""Breaks one thing of a well-formed answer, in place, or returns what stands for the answer."""


def without(name: str) -> Mutation:
    def mutate(raw: dict[str, Any], _data: st.DataObject) -> object:
        del raw[name]
        return raw

    return mutate


def instead(name: str, *values: object) -> Mutation:
    def mutate(raw: dict[str, Any], data: st.DataObject) -> object:
        raw[name] = data.draw(st.sampled_from(values))
        return raw

    return mutate


def whole(*values: object) -> Mutation:
    return lambda _raw, data: data.draw(st.sampled_from(values))


def value(*values: object) -> Mutation:
    def mutate(raw: dict[str, Any], data: st.DataObject) -> object:
        key = data.draw(st.sampled_from(sorted(raw["probabilities"])))
        raw["probabilities"][key] = data.draw(st.sampled_from(values))
        return raw

    return mutate


def text_of_a_value(raw: dict[str, Any], data: st.DataObject) -> object:
    key = data.draw(st.sampled_from(sorted(raw["probabilities"])))
    raw["probabilities"][key] = str(raw["probabilities"][key])
    return raw


def truth_of_a_value(raw: dict[str, Any], data: st.DataObject) -> object:
    # True and False are 1 and 0 in Python, so only a check of the type finds these.
    chosen = raw["choice"]
    raw["probabilities"] = {key: key == chosen for key in raw["probabilities"]}
    return raw


def a_key_less(raw: dict[str, Any], data: st.DataObject) -> object:
    del raw["probabilities"][data.draw(st.sampled_from(sorted(raw["probabilities"])))]
    return raw


def a_key_more(raw: dict[str, Any], data: st.DataObject) -> object:
    raw["probabilities"][data.draw(st.text().filter(lambda k: k not in raw["probabilities"]))] = 0.0
    return raw


def a_key_of_another_item(raw: dict[str, Any], data: st.DataObject) -> object:
    key = data.draw(st.sampled_from(sorted(raw["probabilities"])))
    raw["probabilities"]["supersede_by:s3n7"] = raw["probabilities"].pop(key)
    return raw


def a_key_in_capitals(raw: dict[str, Any], data: st.DataObject) -> object:
    raw["probabilities"] = {key.upper(): p for key, p in raw["probabilities"].items()}
    return raw


def a_smaller_sum(raw: dict[str, Any], data: st.DataObject) -> object:
    share = data.draw(st.floats(0, 0.94))
    raw["probabilities"] = {key: p * share for key, p in raw["probabilities"].items()}
    return raw


def a_larger_sum(raw: dict[str, Any], data: st.DataObject) -> object:
    top = raw["probabilities"][raw["choice"]]
    # Every value up to the chosen one's: the order stays, only the sum is wrong.
    raw["probabilities"] = {key: max(p, top * 0.9) for key, p in raw["probabilities"].items()}
    assume(math.fsum(raw["probabilities"].values()) > 1.03)
    return raw


def a_less_probable_choice(raw: dict[str, Any], data: st.DataObject) -> object:
    top = max(raw["probabilities"].values())
    lower = sorted(key for key, p in raw["probabilities"].items() if p < top)
    assume(lower)
    raw["choice"] = data.draw(st.sampled_from(lower))
    return raw


MUTATIONS: dict[str, Mutation] = {
    "no answer": whole(None),
    "another type": whole([], "keep", 1, 0.5, True, ["keep", 1.0]),
    "empty": whole({}),
    "no type": without("type"),
    "another answer type": instead("type", "noul", "score", "Choice", None, 1, ["choice"]),
    "no choice": without("choice"),
    "a choice that was not offered": instead("choice", "delete", "merge", "KEEP", "keep ", ""),
    "a choice of another type": instead("choice", None, 0, True, ["keep"], {"keep": 1}),
    "no probabilities": without("probabilities"),
    "probabilities of another type": instead(
        "probabilities", None, [], {}, "keep", 0.9, [["keep", 1.0]], [0.5, 0.5]
    ),
    "a missing key": a_key_less,
    "an extra key": a_key_more,
    "a key of another item": a_key_of_another_item,
    "keys in capitals": a_key_in_capitals,
    "not a number": value(math.nan),
    "infinite": value(math.inf, -math.inf),
    "negative": value(-0.01, -1, -1e-12),
    "above one": value(1.01, 2, 1 + 1e-12, 10**400),
    "null": value(None),
    "a list": value([0.5], {}),
    "text": text_of_a_value,
    "a truth value": truth_of_a_value,
    "a sum too small": a_smaller_sum,
    "a sum too large": a_larger_sum,
    "a choice that is not the most probable": a_less_probable_choice,
}


@pytest.mark.parametrize("name", MUTATIONS)
@thorough
@given(answered(), st.data())
def test_an_answer_with_one_thing_broken_is_rejected(
    name: str, given_answer: tuple[Item, dict[str, Any]], data: st.DataObject
) -> None:
    item, raw = given_answer
    assert verdict_of(item, REF, raw).item is item  # the control: unbroken, it is accepted
    broken = MUTATIONS[name](copy.deepcopy(raw), data)
    with pytest.raises(AnswerRejected):
        verdict_of(item, REF, broken)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@thorough
@example({"type": "choice", "choice": "keep", "probabilities": {"keep": 10**400, "archive": 0}})
@given(
    json_values
    | st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "choice": st.sampled_from(("keep", "archive")) | json_values,
            "probabilities": st.fixed_dictionaries({"keep": json_values, "archive": json_values})
            | json_values,
        }
    )
)
def test_any_json_is_a_sound_verdict_or_a_rejection_and_nothing_else(raw: object) -> None:
    try:
        verdict = verdict_of(single(), REF, raw)
    except AnswerRejected:
        return
    assert verdict.answer_key in ("keep", "archive")
    assert 0 <= verdict.probability <= 1
    assert verdict.probability == max(verdict.probabilities.values())


def test_a_rejection_names_the_ref_and_no_text_of_a_memory_or_of_the_answer() -> None:
    item = pair()
    item = Pair(memory("MEMORYTEXT", topic="MEMORYTOPIC"), item.newer, 0.9)
    fine = answer("conflict", keep_both=0.1, archive_older=0.1, supersede_older=0.1, conflict=0.7)
    broken: list[object] = [
        "ANSWERTEXT",
        {**fine, "choice": "ANSWERTEXT"},
        {**fine, "probabilities": {"ANSWERTEXT": 1.0}},
        {**fine, "probabilities": {**fine["probabilities"], "conflict": "ANSWERTEXT"}},
        {**fine, "choice": "keep_both"},
    ]
    for raw in broken:
        with pytest.raises(AnswerRejected) as rejection:
            verdict_of(item, "p0", raw)
        assert str(rejection.value).startswith("p0: ")
        assert "TEXT" not in str(rejection.value)
        assert "TOPIC" not in str(rejection.value)


@pytest.mark.parametrize("action", sorted(THRESHOLDS))
def test_a_probability_at_its_threshold_is_proposed_and_just_below_is_dismissed(
    action: str,
) -> None:
    threshold = THRESHOLDS[action]
    assert status_of(action, threshold, THRESHOLDS) == "proposed"
    assert status_of(action, math.nextafter(threshold, 0), THRESHOLDS) == "dismissed"
    assert status_of(action, math.nextafter(threshold, 1), THRESHOLDS) == "proposed"


def test_the_thresholds_start_at_the_adrs_values() -> None:
    assert THRESHOLDS == {"archive": 0.85, "supersede": 0.85, "conflict": 0.6}


@pytest.mark.parametrize("action", ["keep", "merge", "delete", ""])
def test_a_keep_or_an_unknown_action_is_dismissed_however_sure_the_judge_is(action: str) -> None:
    assert status_of(action, 1.0, THRESHOLDS) == "dismissed"


@thorough
@given(
    st.sampled_from(("archive", "supersede", "conflict")),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_more_certainty_never_turns_a_proposal_into_a_dismissal(
    action: str, threshold: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    thresholds = {action: threshold}
    statuses = [status_of(action, p, thresholds) for p in (less, more)]
    assert statuses == ["proposed" if p >= threshold else "dismissed" for p in (less, more)]
    assert statuses != ["proposed", "dismissed"]
    assert status_of(action, more, {}) == "dismissed"
