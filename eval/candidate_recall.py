"""How many known replacements the candidate query offers to the judge, by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from uuid import UUID

from forgetting_assets.store.pairs import DuePair

Replacement = frozenset[UUID]
"""Two memories, of which one replaced the other.

Without an order: of two that were created at the same moment, the store cannot tell the newer.
"""


def decision_replacements(
    replacements: Sequence[Mapping[str, str]], types: Mapping[str, str]
) -> set[Replacement]:
    """The labelled replacements whose both sides are decisions."""
    return {
        frozenset((UUID(each["older"]), UUID(each["newer"])))
        for each in replacements
        if types[each["older"]] == types[each["newer"]] == "decision"
    }


def recall_by_rank(due: Sequence[DuePair], wanted: Set[Replacement], rank: int) -> float:
    """The share of ``wanted`` among the first ``rank`` due pairs.

    Raises ValueError when nothing is wanted: a recall of nothing says nothing.
    """
    if not wanted:
        raise ValueError("recall needs at least one labelled replacement")
    offered = {frozenset((pair.older_id, pair.newer_id)) for pair in due[:rank]}
    return len(wanted & offered) / len(wanted)
