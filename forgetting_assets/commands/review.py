"""`forgetting review`: decide the proposals that wait for a human."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID, uuid4

import typer

from forgetting_assets import review
from forgetting_assets.commands.console import TenantOption, open_tenant, say
from resources.clock import Clock
from resources.errors import ReviewRefused

app = typer.Typer(help="Decide the proposals that wait for a human.", no_args_is_help=True)

ProposalId = Annotated[UUID, typer.Argument(metavar="ID", help="The proposal's id.")]
ProposalIds = Annotated[list[UUID], typer.Argument(metavar="ID...", help="Ids of proposals.")]


@app.command("list")
def review_list(tenant: TenantOption) -> None:
    """List the open proposals of a tenant: oldest first, of one run the surest first."""
    with open_tenant(tenant) as (database, user_id):
        waiting = review.list_open(database, user_id)
    for row in waiting:
        by = f" by: {row.related_topic}" if row.action == "supersede" else ""
        by = f" with: {row.related_topic}" if row.action == "conflict" else by
        say(
            f"{row.id}  {row.action:<9} {row.probability:.2f}  {row.memory_type}, untouched since "
            f"{row.freshness:%Y-%m-%d}\n    {row.topic}{by}"
        )
    say(f"Open proposals: {len(waiting)}.")


@app.command("show")
def review_show(proposal: ProposalId, tenant: TenantOption) -> None:
    """Show one proposal: both memories, their ages and the judge's whole distribution."""
    with open_tenant(tenant) as (database, user_id):
        row = review.show(database, user_id, proposal)
    age = (Clock().now() - row["freshness"]).days
    project = f"/{row['project']}" if row["project"] else ""
    say(
        f"{row['action']} ({row['status']}), probability {row['probability']:.2f}, "
        f"by {row['model']}\n\n"
        f"Memory {row['memory_id']}: {row['memory_type']}, {row['scope']}{project}, "
        f"untouched for {age} days\n"
        + _memory(row["topic"], row["content"], row["memory_created_at"])
    )
    if row["related_memory_id"]:
        say(
            f"\nNewer memory {row['related_memory_id']}\n"
            + _memory(row["related_topic"], row["related_content"], row["related_created_at"])
        )
    say("\nWhat the judge made of it")
    for key, probability in sorted(row["probabilities"].items(), key=lambda each: -each[1]):
        answer, _, place = key.partition(":n")
        of = f"  {row['newer_topics'][int(place)]}" if place else ""
        say(f"  {answer:<15} {probability:>5.2f} {'█' * round(probability * 30)}{of}")


@app.command("accept")
def review_accept(proposals: ProposalIds, tenant: TenantOption) -> None:
    """Apply proposals: archive, supersede, or record that a conflict was seen."""
    batch = uuid4()
    with open_tenant(tenant) as (database, user_id):
        changed = _each(
            proposals, lambda id_: review.accept(database, user_id, id_, Clock().now(), batch)
        )
    say(f"Applied. Memories changed: {changed}.{_way_back(proposals, batch, tenant)}")


@app.command("reject")
def review_reject(proposals: ProposalIds, tenant: TenantOption) -> None:
    """Say no: final for a memory and action until the memory changes or is reviewed."""
    batch = uuid4()
    with open_tenant(tenant) as (database, user_id):
        _each(proposals, lambda id_: review.reject(database, user_id, id_, Clock().now(), batch))
    say(f"Rejected: no memory changed.{_way_back(proposals, batch, tenant)}")


@app.command("undo")
def review_undo(
    tenant: TenantOption,
    proposals: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID...", help="Ids of decided proposals.")
    ] = None,
    batch: Annotated[
        UUID | None, typer.Option(help="Undo what one accept or reject of many decided.")
    ] = None,
) -> None:
    """Take decisions back: memories are as they were, and the proposals are open again."""
    if bool(proposals) == bool(batch):
        raise ReviewRefused("Name proposals to undo, or a --batch, and not both.")
    with open_tenant(tenant) as (database, user_id):
        ids = review.of_batch(database, user_id, batch) if batch else list(proposals or [])
        changed = _each(ids, lambda id_: review.undo(database, user_id, id_, Clock().now()))
    say(f"Undone. Memories restored: {changed}.")


def _each(ids: Sequence[UUID], decide: Callable[[UUID], int | None]) -> int:
    """Decide each proposal by itself; how many memories changed.

    Those that are refused do not keep the others from being decided. Raises ReviewRefused with
    every reason when some were.
    """
    changed, refused = 0, []
    wanted = list(dict.fromkeys(ids))
    for id_ in wanted:
        try:
            changed += decide(id_) or 0
        except ReviewRefused as reason:
            refused.append(str(reason))
    if refused:
        done = len(wanted) - len(refused)
        raise ReviewRefused(
            " ".join([*refused, *([f"The other {done} are done."] if done else [])])
        )
    return changed


def _way_back(proposals: Sequence[UUID], batch: UUID, tenant: str) -> str:
    if len(proposals) == 1:
        return ""
    return f" All back: forgetting review undo --batch {batch} --tenant {tenant}"


def _memory(topic: str, content: str, created_at: datetime) -> str:
    age = (Clock().now() - created_at).days
    return f"  {topic} (recorded {created_at:%Y-%m-%d}, {age} days ago)\n  {content}"
