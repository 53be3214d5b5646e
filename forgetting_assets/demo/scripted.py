"""The scripted judge: it answers from the demo's fixture and judges nothing.

It calls itself ``scripted`` in every verdict, costs nothing and runs on demo databases alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from forgetting_assets.demo.script import ScriptedAnswer, answers
from resources.errors import AnswerRejected
from resources.gateway import Decision, Gateway, Questions

MODEL = "scripted"
DEFAULT = ScriptedAnswer(verdict="keep", by_content=None, probability=0.93)

_BLOCK = re.compile(r"^(`{3,})json\n(.*)\n\1$", re.MULTILINE | re.DOTALL)


class ScriptedGateway(Gateway):
    """Answers each item as the fixture says, and keeps what the fixture does not mention."""

    @property
    def pinned_model(self) -> str:
        return MODEL

    @property
    def demo_only(self) -> bool:
        return True

    def decide(self, state: str, questions: Questions) -> Decision:
        items = items_of(state)
        return Decision(
            model=MODEL,
            answers={
                ref: _answer(items[ref], list(_offered(question)))
                for ref, question in questions.items()
                if question["type"] == "choice"  # it has nothing to say to shadow questions
            },
            input_tokens=len(state) // 4,
            output_tokens=2 * len(questions),
            request_id=None,
        )


def items_of(state: str) -> dict[str, dict[str, Any]]:
    """The items of a rendered state by ref, as a judge would read them."""
    block = _BLOCK.search(state)
    if block is None:
        raise AnswerRejected("The state has no fenced block to answer from.")
    return {item["ref"]: item for item in json.loads(block.group(2))["items"]}


def _answer(item: Mapping[str, Any], keys: list[str]) -> dict[str, object]:
    judged = item["older"] if item["kind"] == "pair" else item["memory"]
    script = _script().get(judged["content"], DEFAULT)
    chosen = _key(script, item, keys)
    rest = (1 - script.probability) / (len(keys) - 1)
    probabilities = {key: script.probability if key == chosen else rest for key in keys}
    return {"type": "choice", "choice": chosen, "probabilities": probabilities}


def _key(script: ScriptedAnswer, item: Mapping[str, Any], keys: list[str]) -> str:
    """The offered key that stands for the scripted verdict; the keeping one where none does."""
    if item["kind"] == "pair":
        by_newer = script.by_content in (None, item["newer"]["content"])
        wanted = {"archive": "archive_older"}
        if by_newer:
            wanted |= {"supersede": "supersede_older", "conflict": "conflict"}
        return wanted.get(script.verdict, keys[0])
    if script.verdict == "archive" and "archive" in keys:
        return "archive"
    verb = {"supersede": "supersede_by", "conflict": "conflict_with"}.get(script.verdict)
    for newer in item["newer"]:
        if script.by_content and newer["content"] == script.by_content[: len(newer["content"])]:
            key = f"{verb}:{newer['ref']}"
            return key if key in keys else keys[0]
    return keys[0]


def _offered(question: Mapping[str, object]) -> Mapping[str, object]:
    criteria = question["criteria"]
    if not isinstance(criteria, Mapping):
        raise AnswerRejected("A question has no criteria to choose from.")
    return criteria


@cache
def _script() -> dict[str, ScriptedAnswer]:
    return answers()
