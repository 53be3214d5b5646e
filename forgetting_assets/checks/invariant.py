"""Zero episodic collapse on each asset, conservation of the archive, and how a judging went."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import dagster as dg

from forgetting_assets import isolation, metadata, partitions
from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.assets.conflict_pairs import conflict_pairs
from forgetting_assets.assets.judged_verdicts import judged_verdicts
from forgetting_assets.assets.retention_proposals import retention_proposals
from forgetting_assets.assets.stale_candidates import stale_candidates
from forgetting_assets.partition import Partition
from forgetting_assets.partitions import daily_tenant
from forgetting_assets.store import invariant
from resources.clock import Clock
from resources.database import Database
from resources.policy import Policy

COLLAPSE = """No episodic memory is collapsed. An event, a note or a piece of evidence never becomes
archived, superseded, merged or unreachable because it resembles another or a judge said so. {what}
A violation stops the run; its ids and reasons are in forgetting.invariant_results."""

CONSERVED = """Archiving loses nothing: every entry that this partition archived is still there by
its id, with exactly the bytes it was archived with. A violation stops the run."""

RADIUS = """One run does not end too much of a scope at once: at most the share blast_radius of a
scope's verdicts is other than keep. More than that looks like a judge gone wrong, so it stops the
run before anything is proposed; retention_proposals verifies it again for itself."""

COMPLETE = """Every item of the partition has a verdict. It warns when some have none: the judge was
away, the budget was spent, the queue of proposals is full, or they cannot be judged. What can be is
judged by the next run."""


STOPPED = """Each tenant with violations is stopped by itself: the later assets leave it alone, and
every_tenant_finished fails the run in the end."""


def _none(_policy: Policy) -> Mapping[str, float]:
    return {}


def checks() -> Iterator[dg.AssetChecksDefinition]:
    """Every check of the pass; all but the one on completeness block."""
    for asset, what in (
        (conflict_pairs, "Here: no side of a pair is an event or a note."),
        (stale_candidates, "Here: no candidate and no neighbour is an event or a note."),
        (judged_verdicts, "Here: no standing verdict names an event or a note."),
        (retention_proposals, "Here: no open or applied proposal names an event or a note."),
        (archival_sweep, "Here: evidence was archived by a logged sweep, and only for disuse."),
    ):
        yield _check(
            asset,
            invariant.ZERO_EPISODIC_COLLAPSE,
            f"collapse_in_{asset.key.to_user_string()}",
            COLLAPSE.format(what=what),
        )
    yield _check(archival_sweep, invariant.CONSERVATION, "losses_of_archive", CONSERVED)
    yield _check(
        judged_verdicts,
        invariant.BLAST_RADIUS,
        invariant.RADIUS_LOOK,
        RADIUS,
        invariant.radius,
    )
    yield _check(
        judged_verdicts, invariant.COMPLETE, "items_without_verdict", COMPLETE, blocking=False
    )


def _check(
    asset: dg.AssetsDefinition,
    name: str,
    look: str,
    description: str,
    parameters: Callable[[Policy], Mapping[str, float]] = _none,
    *,
    blocking: bool = True,
) -> dg.AssetChecksDefinition:
    # Of a blocking check only an error blocks.
    severity = dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN
    decorate: Callable[..., dg.AssetChecksDefinition] = dg.asset_check(
        asset=asset,
        name=name,
        description=" ".join(description.split()),
        blocking=blocking,
        partitions_def=daily_tenant,
    )

    @decorate
    def check(
        context: dg.AssetCheckExecutionContext, database: Database, policy: Policy, clock: Clock
    ) -> dg.AssetCheckResult:
        def look_at(partition: Partition) -> list[invariant.Violation]:
            with database.tenant(partition.user_id) as tx:
                found = invariant.violations(tx, partition, look, **parameters(policy))
            had_failed = invariant.record(
                database,
                partition,
                asset.key.to_user_string(),
                name,
                found,
                run_id=context.run.run_id,
                checked_at=clock.now(),
            )
            if found and blocking:
                reason = f"{name}: {len(found)} violations, the first: {found[0].reason}."
                isolation.fail(context, asset.key, database, clock, partition, reason)
            if ranged and (found or had_failed):
                isolation.report(
                    context,
                    dg.AssetCheckKey(asset.key, name),
                    partition,
                    passed=not found,
                    severity=severity,
                    metadata=_metadata(found),
                )
            return found

        ranged = partitions.is_ranged(context.run)
        looked = list(isolation.each(context, asset.key, database, clock, look_at))
        found = [violation for _partition, here in looked for violation in here]
        return dg.AssetCheckResult(
            passed=not found,
            # In a range one tenant's error must not stop the others: isolation stops that tenant.
            severity=dg.AssetCheckSeverity.WARN if ranged else severity,
            description=STOPPED if ranged and found and blocking else None,
            metadata={**_metadata(found), "partitions": len(looked)}
            | ({"tenants": _table(looked)} if ranged else {}),
        )

    return check


def _metadata(found: Sequence[invariant.Violation]) -> dict[str, int | str | list[str]]:
    reasons = [f"{each.id}: {each.reason}" for each in found[:20]]
    return {
        "violations": len(found),
        # The UI hides a list behind a click. Not as the result's description, which Dagster logs:
        # the id of a blast radius is a scope.
        **({"first_reason": reasons[0]} if reasons else {}),
        "reasons": reasons,
    }


def _table(
    looked: Sequence[tuple[Partition, Sequence[invariant.Violation]]],
) -> dg.TableMetadataValue:
    """A row a tenant, those with violations first."""
    return metadata.table(
        [
            {
                "tenant": partition.tenant.slug,
                "date": partition.run_date.isoformat(),
                "violations": len(found),
                "first_reason": found[0].reason if found else "",
            }
            for partition, found in sorted(looked, key=lambda each: -len(each[1]))
        ]
    )
