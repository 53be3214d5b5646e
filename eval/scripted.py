"""A judge for the harness that judges nothing: it knows the labels, and errs by a seeded script.

NO MODEL JUDGED ANYTHING HERE. It exists so that recording, replaying, calibrating and scoring can
be tried without a judge. Its precision, its calibration and its thresholds follow from the numbers
in this file, so they say nothing about any judge, nor about how good the pass is. Its answers carry
the source ``scripted`` into every recording, report and metadata entry, and never count for a bar.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import PrivateAttr

from eval.fixture import EvalItem, Fixture
from forgetting_assets.demo.scripted import MODEL, items_of
from forgetting_assets.judging.rendering import render
from resources.errors import EvalRefused
from resources.gateway import Decision, Gateway, Questions

SEED = 6
"""With it the rule selects thresholds for two actions and none for the third, so both show."""


class ScriptedJudge(Gateway):
    """Answers a fixture's items by their labels, with noise; refuses items that it does not know.

    ``seed`` changes which items it gets wrong. The same request always has the same answer.
    """

    seed: int = SEED

    _known: dict[str, EvalItem] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, fixture: Fixture, seed: int = SEED) -> ScriptedJudge:
        """The script for one fixture."""
        judge = cls(seed=seed)
        for each in fixture.items:
            item = each.to_item()
            state, _ = render([item], fixture.now)
            judge._known[_looks(next(iter(items_of(state).values())))] = each
        return judge

    @property
    def pinned_model(self) -> str:
        return MODEL

    @property
    def demo_only(self) -> bool:
        return True

    def decide(self, state: str, questions: Questions) -> Decision:
        items = items_of(state)
        company = json.dumps([state, sorted(questions)])
        answers: dict[str, object] = {}
        for name, question in questions.items():
            if question["type"] == "choice":
                answers[name] = self._choose(items[name], question, company)
            else:
                answers[name] = {"type": "noul", "noul": round(self._chance(state, name), 2)}
        sent = len(state) + len(json.dumps(questions))
        return Decision(MODEL, answers, sent // 4, 2 * len(questions), None)

    def _choose(
        self, rendered: dict[str, Any], question: Mapping[str, object], company: str
    ) -> dict[str, object]:
        looks = _looks(rendered)
        item = self._known.get(looks)
        criteria = question["criteria"]
        if item is None or not isinstance(criteria, Mapping):
            raise EvalRefused(
                "The scripted judge knows no label of this item: it is not of its fixture."
            )
        keys = list(criteria)
        right = _key(item, keys)
        # Sure more often than not; what else is in the call moves it a little, as it does a model.
        sure = 0.5 + 0.49 * self._chance("sure", looks) ** 0.6
        probability = 1.0
        if len(keys) > 1:
            moved = sure + 0.04 * (self._chance("call", looks, company) - 0.5)
            probability = round(min(0.99, max(0.5, moved)), 2)
        chosen = right
        # Wrong less often than it says, and now and then when it is sure.
        if self._chance("wrong", looks) < 0.4 * (1 - probability) + 0.005 and len(keys) > 1:
            others = [key for key in keys if key != right]
            chosen = others[int(self._chance("other", looks) * len(others))]
        rest = (1 - probability) / max(1, len(keys) - 1)
        return {
            "type": "choice",
            "choice": chosen,
            "probabilities": {key: probability if key == chosen else rest for key in keys},
        }

    def _chance(self, *what: str) -> float:
        """A number from 0 to 1 that follows from the seed and ``what``."""
        seeded = hashlib.sha256(json.dumps([self.seed, *what]).encode()).digest()
        return int.from_bytes(seeded[:8]) / 2**64


def _looks(rendered: dict[str, Any]) -> str:
    """A rendered item without its place in its call."""
    bare = {name: value for name, value in rendered.items() if name != "ref"}
    if isinstance(newer := bare.get("newer"), list):
        bare["newer"] = [{k: v for k, v in each.items() if k != "ref"} for each in newer]
    return json.dumps(bare, sort_keys=True)


def _key(item: EvalItem, keys: list[str]) -> str:
    """The offered key that stands for an item's label; the keeping one where none does."""
    if item.kind == "pair":
        wanted = {"archive": "archive_older", "supersede": "supersede_older"}
        key = wanted.get(item.label, item.label)
        return key if key in keys else keys[0]
    verb = {"supersede": "supersede_by:", "conflict": "conflict_with:"}.get(item.label, item.label)
    place = "" if item.label_newer is None else f"n{item.label_newer}"
    return next((k for k in keys if k.startswith(verb) and k.endswith(place)), keys[0])
