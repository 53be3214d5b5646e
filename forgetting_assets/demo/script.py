"""The scripted judge's answers, written by hand beside the memories.

Belongs here: the lookup from a judged memory to its answer. No model gave these answers, and they
say nothing about how well a model would.
"""

from dataclasses import dataclass

from forgetting_assets.demo import written


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """A verdict, the content of the newer memory it names, and the probability to report."""

    verdict: str
    by_content: str | None
    probability: float


def answers() -> dict[str, ScriptedAnswer]:
    """Every scripted answer by the content of the judged memory; in a pair, of its older side."""
    scripted: dict[str, ScriptedAnswer] = {}
    for tenant in written.tenants():
        contents = {memory["key"]: memory["content"] for memory in tenant["memories"]}
        for memory in tenant["memories"]:
            if "answer" in memory:
                answer = memory["answer"]
                by = answer["by"]
                scripted[memory["content"]] = ScriptedAnswer(
                    verdict=answer["verdict"],
                    by_content=None if by is None else contents[by],
                    probability=answer["probability"],
                )
    return scripted
