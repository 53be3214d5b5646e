"""Selecting thresholds by the rule that was fixed beforehand, and what the pass loads of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import calibrate
from eval.judged import Judged
from resources import thresholds
from resources.errors import ConfigurationError, EvalRefused
from resources.policy import Policy
from tests.eval_items import fixture, item, said, several, verdicts

NONE = {"archive": None, "supersede": None, "conflict": None}
MODEL = "jev-1.14.0"


def chosen(judged: list[Judged], action: str = "archive") -> float | None:
    return calibrate.select(judged).thresholds[action]


def test_the_swept_thresholds_are_the_decimals_of_the_rule() -> None:
    assert list(thresholds.SWEEP) == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert calibrate.BARS == {"archive": 0.97, "supersede": 0.97, "conflict": 0.80}
    assert calibrate.LEAST_PROPOSALS == 10


@pytest.mark.parametrize("threshold", thresholds.SWEEP)
def test_a_probability_that_is_a_swept_decimal_counts_at_it(threshold: float) -> None:
    # Below it stand wrong proposals, so that no lower threshold qualifies.
    judged = [
        *several(10, "archive", right=10, probability=threshold),
        *several(5, "archive", right=0, probability=threshold - 0.001, start=100),
    ]
    assert chosen(judged) == threshold


@pytest.mark.parametrize(
    ("action", "count", "right", "expected"),
    [
        ("archive", 100, 97, 0.5),
        ("archive", 100, 96, None),
        ("archive", 33, 32, None),
        ("archive", 34, 33, 0.5),
        ("supersede", 100, 97, 0.5),
        ("supersede", 100, 96, None),
        ("conflict", 10, 8, 0.5),
        ("conflict", 100, 79, None),
        ("archive", 10, 10, 0.5),
        ("archive", 9, 9, None),
        ("conflict", 9, 9, None),
    ],
)
def test_a_threshold_qualifies_at_its_bar_over_ten_proposals(
    action: str, count: int, right: int, expected: float | None
) -> None:
    assert chosen(several(count, action, right=right, newer=1), action) == expected


def test_the_lowest_that_qualifies_is_taken_though_a_lower_one_and_a_higher_one_do_not() -> None:
    judged = [
        *several(1, "archive", right=0, probability=0.97),
        *several(40, "archive", right=40, probability=0.75, start=10),
        *several(10, "archive", right=5, probability=0.6, start=60),
    ]
    assert chosen(judged) == 0.65
    rows = {row.threshold: row for row in calibrate.select(judged).table if row.action == "archive"}
    assert [each for each in rows if rows[each].qualifies] == [0.65, 0.7, 0.75]
    assert (rows[0.5].proposed, rows[0.5].correct) == (51, 45)


def test_only_the_dev_split_selects() -> None:
    dev = several(10, "archive", right=10)
    worse = several(40, "archive", right=0, split="test", start=100)
    assert calibrate.select([*dev, *worse]) == calibrate.select(dev)
    with pytest.raises(EvalRefused, match="no verdict on an item of the dev split"):
        calibrate.select(worse)


def test_a_collapse_of_a_recurring_episode_is_a_wrong_proposal() -> None:
    judged = several(33, "archive", right=33)
    assert chosen(judged) == 0.5
    collapse = said(item("standup", slice="recurring"), "archive", 0.9)
    also = said(item("digest", slice="recurring"), "archive", 0.9)
    assert chosen([*judged, collapse, also]) is None


def test_a_supersede_counts_as_right_only_when_it_names_the_right_newer_memory() -> None:
    of = [item(str(n), "supersede", newer=2, named=1) for n in range(10)]
    assert chosen([said(each, related=1) for each in of], "supersede") == 0.5
    assert chosen([said(each, related=0) for each in of], "supersede") is None


def test_an_item_with_two_verdicts_is_refused() -> None:
    with pytest.raises(EvalRefused, match="two verdicts"):
        calibrate.select([said(item("one")), said(item("one"), "archive")])


def test_what_gets_no_threshold_is_told_why_and_it_proposes_nothing() -> None:
    judged = [
        *several(10, "archive", right=10),
        *several(9, "supersede", right=9),
        *several(20, "conflict", right=10),
    ]
    archive, supersede, conflict = calibrate.select(judged).text().splitlines()
    assert archive == "archive: 0.50 (10 of 10 proposals right)."
    none = "no threshold, so it proposes nothing"
    few = "the judge makes 9 proposals at most where 10 are needed"
    assert supersede == f"supersede: {none}: {few}."
    assert conflict == f"conflict: {none}: none has a precision of 0.80 over 10 proposals."


ACTION = st.sampled_from(("archive", "supersede", "conflict"))


def least(judged: list[Judged], action: str, bar: float, needed: int = 3) -> float:
    found = calibrate.lowest(calibrate.sweep(judged, action, bar, needed))
    return 2.0 if found is None else found


@given(verdicts(), ACTION, st.floats(0, 1), st.floats(0, 1))
def test_raising_the_bar_never_lowers_a_threshold(
    judged: list[Judged], action: str, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert least(judged, action, low) <= least(judged, action, high)


@given(verdicts(), ACTION, st.floats(0, 1), st.integers(1, 20))
def test_asking_for_more_proposals_never_lowers_a_threshold(
    judged: list[Judged], action: str, bar: float, needed: int
) -> None:
    assert least(judged, action, bar, needed) <= least(judged, action, bar, needed + 1)


@given(verdicts(), ACTION, st.floats(0, 1))
def test_a_selected_threshold_meets_its_bar_and_none_below_it_does(
    judged: list[Judged], action: str, bar: float
) -> None:
    found = least(judged, action, bar)
    for threshold in thresholds.SWEEP:
        made = [e for e in judged if e.action == action and e.probability >= threshold]
        meets = len(made) >= 3 and sum(e.correct for e in made) >= bar * len(made)
        if threshold < found:
            assert not meets
        if threshold == found:
            assert meets


@given(verdicts(least=1), st.randoms())
def test_a_selection_does_not_depend_on_the_order_of_the_items(
    judged: list[Judged], chance: random.Random
) -> None:
    judged.append(said(item("dev")))
    assert calibrate.select(chance.sample(judged, len(judged))) == calibrate.select(judged)


# What the pass loads


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of eval/thresholds, and a calibration fixture of the test's own."""
    monkeypatch.setattr(thresholds, "FOLDER", tmp_path / "thresholds")
    monkeypatch.setattr(thresholds, "CALIBRATION", tmp_path / "calibration.json")
    return tmp_path


def write(here: Path, model: str = MODEL, /, **changed: Any) -> Path:
    """Thresholds of a model as selection writes them, with some fields changed afterwards."""
    bound = fixture(here, [item("one")], "calibration")
    selection = calibrate.select(several(10, "archive", right=10))
    path = thresholds.path_of(model)
    calibrate.write(path, selection, model=model, fixture=bound, source="endpoint")
    if changed:
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    return path


def test_what_is_written_is_what_the_pass_reads_and_twice_the_same_bytes(here: Path) -> None:
    path = write(here)
    first = path.read_bytes()
    found = thresholds.of_model(MODEL)
    assert found == thresholds.read(path)
    assert found is not None
    assert (found.model, found.source) == (MODEL, "endpoint")
    assert found.thresholds == NONE | {"archive": 0.5}
    assert write(here).read_bytes() == first
    assert [each.name for each in path.parent.iterdir()] == ["jev-1.14.0.json"]


def test_the_policy_takes_the_selected_thresholds_and_without_a_file_the_starting_values(
    here: Path,
) -> None:
    policy = Policy(thresholds_of=MODEL)
    assert policy.thresholds == {"archive": 0.85, "supersede": 0.85, "conflict": 0.6}
    assert policy.thresholds_from == "starting values"
    write(here)
    assert policy.thresholds == NONE | {"archive": 0.5}
    assert policy.thresholds_from == "eval/thresholds/jev-1.14.0.json"
    assert Policy(thresholds_of="jev-1.15.0").thresholds_from == "starting values"
    assert Policy(archive_threshold=0.9).thresholds_from == "set in code"


@pytest.mark.parametrize(
    ("changed", "said_"),
    [
        ({"model": "jev-1.13.0"}, "are of the model jev-1.13.0, not of jev-1.14.0"),
        ({"fixture_sha256": "0" * 64}, "were selected on another fixture than"),
        ({"source": "scripted"}, "follow from scripted answers, which say nothing of jev-1.14.0"),
        ({"source": "taste"}, "is no file of thresholds (source: "),
        ({"fixture_sha256": "short"}, "is no file of thresholds (fixture_sha256: "),
        ({"thresholds": NONE | {"archive": 0.97}}, "a threshold is one of 0.50, 0.55"),
        ({"thresholds": {"archive": 0.9}}, "it has archive, supersede and conflict and no other"),
        ({"thresholds": NONE | {"keep": 0.5}}, "it has archive, supersede and conflict and no"),
        ({"more": 1}, "is no file of thresholds (more: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_thresholds_that_are_not_this_models_on_this_fixture_are_refused(
    here: Path, changed: dict[str, Any], said_: str
) -> None:
    write(here, **changed)
    policy = Policy(thresholds_of=MODEL)  # which nothing is read for
    with pytest.raises(ConfigurationError) as refused:
        _ = policy.thresholds
    assert said_ in str(refused.value)
    assert "Run `forgetting-eval calibrate`" in str(refused.value)


def test_a_changed_or_missing_fixture_and_a_broken_file_are_refused(here: Path) -> None:
    path = write(here)
    with (here / "calibration.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ConfigurationError, match="were selected on another fixture"):
        thresholds.of_model(MODEL)
    (here / "calibration.json").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be checked, for .* cannot be read"):
        thresholds.of_model(MODEL)
    path.write_text("{")
    with pytest.raises(ConfigurationError, match="is no file of thresholds"):
        thresholds.of_model(MODEL)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        thresholds.of_model(MODEL)


def test_a_models_name_stays_inside_the_folder(here: Path) -> None:
    path = thresholds.path_of("../org/judge:7b")
    assert path.parent == thresholds.FOLDER
    write(here, "org/judge-1.0")
    assert thresholds.of_model("org/judge-1.0") is not None
    with pytest.raises(ConfigurationError, match=r"are of the model org/judge-1\.0"):
        thresholds.of_model("org_judge-1.0")


def test_no_scripted_thresholds_are_where_the_demo_would_take_them_from() -> None:
    assert thresholds.of_model("scripted") is None
