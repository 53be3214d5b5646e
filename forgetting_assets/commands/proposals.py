"""How a proposal looks on the terminal: in a list, and with all that a decision needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from rich.table import Table

from forgetting_assets.commands.console import console, harmless, say
from forgetting_assets.review import Listing

BECAME = {
    "proposed": "open",
    "applied": "accepted",
    "rejected": "rejected",
    "dismissed": "not proposed",
}
HISTORY = {
    "accept": "accepted",
    "reject": "rejected",
    "undo": "undone: it was open again",
    "expired": "closed: nobody decided it in time, which is not a rejection",
    "overtaken": "closed: a memory was not what the judge saw any more",
    "replaced": "closed: the judge was asked again",
}


def show_list(listing: Listing, now: datetime) -> None:
    """Two lines a proposal, and what waits in all."""
    for row in listing.rows:
        by = {"supersede": " by: ", "conflict": " with: "}.get(row.action)
        related = f"{by}{row.related_topic}" if by else ""
        say(
            f"{row.id}  {row.action:<9} {row.probability:.2f}  {row.memory_type}, untouched since "
            f"{_day(row.freshness)}, proposed {_days(row.created_at, now)} ago\n"
            f"    {row.topic}{related}"
        )
    total = sum(listing.counts.values())
    kinds = ", ".join(f"{action} {count}" for action, count in listing.counts.items())
    say(f"Open proposals: {total}{f' ({kinds})' if kinds else ''}. Shown: {len(listing.rows)}.")


def show_whole(row: Mapping[str, Any], now: datetime) -> None:
    """Both memories side by side, the judge's whole distribution, and what happened so far."""
    say(
        f"{row['action']} ({row['status']}), probability {row['probability']:.2f}, "
        f"by {row['model']}, proposed on {_day(row['created_at'])}"
    )
    _show_sides(row, now)
    if row["related_memory_id"]:
        say(f"Similarity now: {_similarity(row)}")
    say("\nWhat the judge made of it")
    topics = row["newer_topics"]  # none where another program wrote the proposal
    for key, probability in sorted(row["probabilities"].items(), key=lambda each: -each[1]):
        answer, _, place = key.partition(":n")
        of = f"  {topics[int(place)]}" if place.isdecimal() and int(place) < len(topics) else ""
        say(f"  {answer:<15} {probability:>5.2f} {'█' * round(probability * 30)}{of}")
    if row["earlier"]:
        say("\nWhat it said about the memory before")
        for each in row["earlier"]:
            say(
                f"  {_day(each.judged_at)}  {each.kind:<6}  {each.verdict:<9} "
                f"{each.probability:.2f}  {_became(each)}"
            )
    if row["history"]:
        say("\nWhat became of the proposal")
        for each in row["history"]:
            say(f"  {each.happened_at.astimezone(UTC):%Y-%m-%d %H:%M}  {HISTORY[each.what]}")


def _show_sides(row: Mapping[str, Any], now: datetime) -> None:
    has_related = row["related_memory_id"] is not None
    table = Table(expand=True)
    subject = _side(row, "", "memory_created_at", now)
    table.add_column(harmless(f"{'Older memory' if has_related else 'Memory'} {row['memory_id']}"))
    cells = [harmless(subject)]
    if has_related:
        table.add_column(harmless(f"Newer memory {row['related_memory_id']}"))
        cells.append(harmless(_side(row, "related_", "related_created_at", now)))
    for column in table.columns:
        # Equal halves, and no character of a memory is cut off.
        column.ratio, column.overflow = 1, "fold"
    table.add_row(*cells)
    console.print(table)


def _side(row: Mapping[str, Any], prefix: str, created_at: str, now: datetime) -> str:
    """What a reviewer reads of one memory."""
    project = f"/{row[f'{prefix}project']}" if row[f"{prefix}project"] else ""
    return "\n".join(
        [
            f"{row[f'{prefix}memory_type']}, {row[f'{prefix}scope']}{project}",
            f"recorded {_day(row[created_at])}, {_days(row[created_at], now)} ago",
            f"untouched for {_days(row[f'{prefix}freshness'], now)}",
            *([] if row[f"{prefix}is_live"] else ["no longer live"]),
            "",
            row[f"{prefix}topic"],
            "",
            row[f"{prefix}content"],
        ]
    )


def _similarity(row: Mapping[str, Any]) -> str:
    if row["similarity"] is not None:
        return f"{row['similarity']:.2f}"
    if not (row["has_vector"] and row["related_has_vector"]):
        return "not known, a memory has no vector"
    if row["embedding_model"] != row["related_embedding_model"]:
        return "not known, their vectors are of different models"
    return "not known, a vector is all zeros"


def _became(each: sa.Row[Any]) -> str:
    return str(each.closed or BECAME.get(each.status, "not proposed"))


def _day(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d}"


def _days(since: datetime, now: datetime) -> str:
    days = (now - since).days
    return f"{days} day{'' if days == 1 else 's'}"
