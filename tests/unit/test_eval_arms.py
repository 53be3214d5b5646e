"""Ways of asking one judge side by side, and the eval's plots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval import arms, calibrate, plots
from eval.answers import Answers
from forgetting_assets.judging.shadow import Shadow
from resources.errors import EvalRefused
from tests.eval_items import item, said

MARKER = "Ottoline keeps the violet ledger"


def answers(*judged: object, **how: object) -> Answers:
    given: dict[str, object] = {
        "model": "jev-1.14.0",
        "answer_model": "jev-1.14.0",
        "source": "endpoint",
        "fixture": "own",
        "fixture_sha256": "0" * 64,
        "batch_items": 12,
        "with_shadow": False,
        "calls": (),
        "judged": judged,
        **how,
    }
    return Answers(**given)  # type: ignore[arg-type]


def test_an_arm_is_compared_with_the_first_item_by_item() -> None:
    a, b, c = (item(name, "archive") for name in "abc")
    twelve = answers(said(a), said(b), said(c, probability=0.8))
    one = answers(
        said(c, probability=0.6), said(a), said(b, "keep"), batch_items=1, rejected={"x": "why"}
    )
    first, second = arms.compare([twelve, one])
    assert (first.agreement, first.moved) == (1.0, 0.0)
    assert (first.right, first.precision, first.proposals) == (1.0, 1.0, 3)
    assert (second.batch_items, second.judged, second.rejected) == (1, 3, 1)
    assert second.agreement == pytest.approx(2 / 3)
    assert second.moved == pytest.approx(0.2 / 3)
    assert (second.right, second.proposals) == (pytest.approx(2 / 3), 2)


def test_another_newer_memory_is_another_verdict() -> None:
    of = item("a", "supersede", newer=2, named=0)
    first, second = answers(said(of, related=0)), answers(said(of, related=1))
    assert arms.compare([first, second])[1].agreement == 0


def test_arms_without_an_item_in_common_say_nothing_of_agreement() -> None:
    found = arms.compare([answers(said(item("a"))), answers(said(item("b")))])[1]
    assert (found.agreement, found.moved) == (None, None)


@pytest.mark.parametrize(
    "change", [{"fixture_sha256": "1" * 64}, {"model": "jev-1.13.0"}, {"source": "scripted"}]
)
def test_arms_of_two_fixtures_or_two_judges_are_refused(change: dict[str, str]) -> None:
    one = answers(said(item("a")))
    with pytest.raises(EvalRefused, match="one fixture and one model"):
        arms.compare([one, replace(one, **change)])  # type: ignore[arg-type]


def test_shadow_answers_are_shown_by_label_and_question() -> None:
    pairs = [item("a", "supersede", kind="pair"), item("b", "keep", kind="pair")]
    shadowed = answers(*map(said, pairs), shadows={"a": Shadow(0.9, 0.8), "b": Shadow(0.3, None)})
    assert [(e.question, e.label, e.pairs, e.yes) for e in arms.shadow_lines(shadowed)] == [
        ("same_matter", "keep", 1, 0.3),
        ("same_matter", "supersede", 1, 0.9),
        ("one_outdated", "supersede", 1, 0.8),
    ]
    assert arms.shadow_lines(answers(*map(said, pairs))) == []


def test_the_plots_are_small_the_same_each_time_and_say_who_judged() -> None:
    judged = [
        said(item(f"i{n}", "archive", text=MARKER), "keep" if n % 7 == 0 else None, 0.5 + n / 100)
        for n in range(45)
    ]
    selection = calibrate.select(judged)
    drawn = [
        (plots.reliability_png(judged, who), plots.precision_png(selection, who))
        for who in ("jev-1.14.0", "jev-1.14.0", "scripted (no model)")
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[2][0]
    for png in drawn[0]:
        assert png.startswith(b"\x89PNG")
        assert len(png) < 60_000
        assert MARKER.encode() not in png
    shown = plots.markdown({"Reliability": drawn[0][0], "Precision": drawn[0][1]})
    assert shown.count("](data:image/png;base64,") == 2


def test_nothing_judged_can_be_drawn() -> None:
    nothing = calibrate.Selection(dict.fromkeys(("archive", "supersede", "conflict")), (), 0)
    assert plots.reliability_png([], "nobody").startswith(b"\x89PNG")
    assert plots.precision_png(nothing, "nobody").startswith(b"\x89PNG")
