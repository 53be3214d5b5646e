"""`forgetting review`: decide the proposals that wait for a human."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated
from uuid import UUID, uuid4

import typer

from forgetting_assets import review
from forgetting_assets.commands import proposals, walk
from forgetting_assets.commands.console import TenantOption, confirm, open_tenant, say
from forgetting_assets.review import Action, Filters, MemoryType, Sort
from resources.clock import Clock
from resources.errors import ForgettingError, ReviewRefused, StoreRefused

app = typer.Typer(help="Decide the proposals that wait for a human.", no_args_is_help=True)

ProposalId = Annotated[UUID, typer.Argument(metavar="ID", help="The proposal's id.")]
ProposalIds = Annotated[
    list[UUID] | None, typer.Argument(metavar="ID...", help="Ids of proposals.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask before more than one is decided.")
]
ActionOption = Annotated[Action | None, typer.Option("--action", help="Only proposals of this.")]
TypeOption = Annotated[
    MemoryType | None, typer.Option("--type", help="Only those about memories of this type.")
]
OlderOption = Annotated[
    int | None,
    typer.Option("--older-than", metavar="DAYS", min=0, help="Only proposals older than that."),
]
YoungerOption = Annotated[
    int | None,
    typer.Option("--younger-than", metavar="DAYS", min=0, help="Only those younger than that."),
]
MinOption = Annotated[
    float | None,
    typer.Option("--min-probability", min=0, max=1, help="Only those at least that sure."),
]
MaxOption = Annotated[
    float | None,
    typer.Option("--max-probability", min=0, max=1, help="Only those at most that sure."),
]
SortOption = Annotated[Sort, typer.Option("--sort", help="Which come first.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="How many at most.")]


@app.command("list")
def review_list(
    tenant: TenantOption,
    action: ActionOption = None,
    memory_type: TypeOption = None,
    older_than: OlderOption = None,
    younger_than: YoungerOption = None,
    min_probability: MinOption = None,
    max_probability: MaxOption = None,
    sort: SortOption = "surest",
    limit: LimitOption = 50,
) -> None:
    """List the open proposals of a tenant, and how many of each kind wait in all."""
    filters = Filters(
        action,
        memory_type,
        older_than,
        younger_than,
        min_probability,
        max_probability,
        sort,
        limit,
    )
    now = Clock().now()
    with open_tenant(tenant) as (database, user_id):
        listing = review.list_open(database, user_id, filters, now)
    proposals.show_list(listing, now)


@app.command("show")
def review_show(proposal: ProposalId, tenant: TenantOption) -> None:
    """Show one proposal: both memories, the judge's whole distribution and what came before."""
    with open_tenant(tenant) as (database, user_id):
        row = review.show(database, user_id, proposal)
    proposals.show_whole(row, Clock().now())


@app.command("walk")
def review_walk(
    tenant: TenantOption,
    action: ActionOption = None,
    memory_type: TypeOption = None,
    older_than: OlderOption = None,
    younger_than: YoungerOption = None,
    min_probability: MinOption = None,
    max_probability: MaxOption = None,
    sort: SortOption = "surest",
    limit: LimitOption = 50,
) -> None:
    """Decide one proposal after the other, by a key each: accept, reject, skip, undo, quit."""
    filters = Filters(
        action,
        memory_type,
        older_than,
        younger_than,
        min_probability,
        max_probability,
        sort,
        limit,
    )
    with open_tenant(tenant) as (database, user_id):
        listing = review.list_open(database, user_id, filters, Clock().now())
        walked = walk.Walk(database, user_id, Clock(), [row.id for row in listing.rows])
        try:
            walked.go()
        finally:
            # Whatever ends it, what was decided can be taken back.
            walked.look_again()
            say(f"\n{walked.sum_up()}{_way_back(walked.batch, tenant) if walked.decided else ''}")


@app.command("accept")
def review_accept(tenant: TenantOption, ids: ProposalIds = None, yes: YesOption = False) -> None:
    """Apply proposals: archive, supersede, or record that a conflict was seen."""
    named, batch = _named(ids), uuid4()
    with open_tenant(tenant) as (database, user_id):
        review.require_open(database, user_id, named)
        _confirm("Accept", named, "proposals", yes)
        back = _way_back(batch, tenant) if len(named) > 1 else ""
        changed = _each(
            named, lambda id_: review.accept(database, user_id, id_, Clock().now(), batch), back
        )
    say(f"Applied. Memories changed: {changed}.{back}")


@app.command("reject")
def review_reject(tenant: TenantOption, ids: ProposalIds = None, yes: YesOption = False) -> None:
    """Say no: final for a memory and action until the memory changes or is reviewed."""
    named, batch = _named(ids), uuid4()
    with open_tenant(tenant) as (database, user_id):
        review.require_open(database, user_id, named)
        _confirm("Reject", named, "proposals", yes)
        back = _way_back(batch, tenant) if len(named) > 1 else ""
        _each(named, lambda id_: review.reject(database, user_id, id_, Clock().now(), batch), back)
    say(f"Rejected: no memory changed.{back}")


@app.command("undo")
def review_undo(
    tenant: TenantOption,
    ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID...", help="Ids of decided proposals.")
    ] = None,
    batch: Annotated[
        UUID | None, typer.Option(help="Undo what one accept, reject or walk decided.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Take decisions back: memories are as they were, and the proposals are open again."""
    if bool(ids) == bool(batch):
        raise ReviewRefused("Name proposals to undo, or a --batch, and not both.", "empty")
    with open_tenant(tenant) as (database, user_id):
        named = review.of_batch(database, user_id, batch) if batch else _named(ids)
        review.require_decided(database, user_id, named)
        _confirm("Undo", named, "decisions", yes)
        changed = _each(
            named, lambda id_: review.undo(database, user_id, id_, Clock().now(), batch)
        )
    say(f"Undone. Memories restored: {changed}.")


def _named(ids: Sequence[UUID] | None) -> list[UUID]:
    """Each proposal once. Raises ReviewRefused without any."""
    if not ids:
        raise ReviewRefused(
            "Name at least one proposal: `forgetting review list` shows the open ones.", "empty"
        )
    return list(dict.fromkeys(ids))


def _confirm(verb: str, ids: Sequence[UUID], what: str, yes: bool) -> None:
    if len(ids) > 1:
        confirm(f"{verb} {len(ids)} {what}?", yes)


def _each(ids: Sequence[UUID], decide: Callable[[UUID], int | None], back: str = "") -> int:
    """Decide each proposal by itself; how many memories changed.

    A memory that changed since the verdict does not keep the others from being decided. Raises
    ForgettingError with every reason when some were refused, and with the way ``back`` when others
    were not.
    """
    changed, refused = 0, list[str]()
    for id_ in ids:
        try:
            changed += decide(id_) or 0
        except ReviewRefused as refusal:
            refused.append(str(refusal))
        except StoreRefused as refusal:
            refused.append(f"Proposal {id_} was not decided: {refusal}")
    if refused:
        done = len(ids) - len(refused)
        others = [f"The other {done} are done.{back}"] if done else []
        raise ForgettingError(" ".join([*refused, *others]))
    return changed


def _way_back(batch: UUID, tenant: str) -> str:
    return f" All back: forgetting review undo --batch {batch} --tenant {tenant}"
