"""How a step goes through the partitions of its run, each tenant for itself.

A run of one partition fails with its error. In a run over many tenants a failure is written down
in forgetting.partition_failures, the later steps leave that tenant alone, the others go on, and the
check every_tenant_finished fails the run in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import dagster as dg

from forgetting_assets import partitions
from forgetting_assets.partition import Partition
from forgetting_assets.store import failures
from resources.clock import Clock
from resources.database import Database
from resources.errors import ConfigurationError, FloorMissing, ForgettingError, StepBroken

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext
T = TypeVar("T")


def materialize(
    context: dg.AssetExecutionContext,
    database: Database,
    clock: Clock,
    work: Callable[[Partition], Mapping[str, Any]],
) -> Iterator[dg.MaterializeResult[None]]:
    """Do an asset's work on each partition of the run, and report what it said of each.

    ``work`` returns the metadata of one partition: ids, types and figures. In a run of one whose
    tenant is retired nothing is yielded, so what follows is skipped. Raises what ``work`` raises in
    a run of one, and PartitionError for a run over several that the schedule did not ask for.
    """
    done = each(context, context.asset_key, database, clock, work)
    if not partitions.is_ranged(context.run):
        for _partition, said in done:
            yield dg.MaterializeResult(metadata=said)
        return
    for partition, said in done:
        # Dagster would mark every partition of the range, also those of tenants that failed.
        yield dg.AssetMaterialization(  # type: ignore[misc]
            context.asset_key,
            partition=partitions.key(partition.run_date, partition.tenant.slug),
            metadata=said,
        )
    yield dg.MaterializeResult()


def each(
    context: Context,
    asset: dg.AssetKey,
    database: Database,
    clock: Clock,
    work: Callable[[Partition], T],
) -> Iterator[tuple[Partition, T]]:
    """Do a step's work on each partition of the run; yields those on which it was done.

    In a run of one partition it raises our errors as they are, and StepBroken for any other.
    """
    step, run_id = context.op_def.name, context.run.run_id
    graph = context.job_def.asset_layer.asset_graph
    ancestors = sorted(key.to_user_string() for key in graph.get_ancestor_asset_keys(asset))
    runs = lineage(context)
    for partition in partitions.selected(context, database, clock):
        found = failures.before(
            database,
            partition,
            step,
            asset=asset.to_user_string(),
            ancestors=ancestors,
            run_ids=runs,
        )
        if found.barrier:
            context.log.warning(
                f"{partition.tenant.slug}: {found.barrier} failed, so {step} is skipped."
            )
            continue
        try:
            done = work(partition)
        except Exception as error:
            reason = failures.reason_of(error)
            # A foreign error's own words may quote a memory, and Dagster would keep them.
            ours = error if isinstance(error, ForgettingError) else StepBroken(f"{step}: {reason}")
            try:
                fail(context, asset, database, clock, partition, reason)
            except ForgettingError:
                raise ours from None  # the database is away: this is about every tenant
            if not partitions.is_ranged(context.run) or about_every_tenant(error):
                raise ours from None
            context.log.error(f"{partition.tenant.slug} failed in {step}: {reason}")
        else:
            if found.had_failed:
                failures.clear(database, partition, step, run_id)
            yield partition, done


def lineage(context: Context) -> list[str]:
    """The run and those that it was executed again from, up to the first."""
    runs = [context.run.run_id]
    parent = context.run.parent_run_id
    while parent and parent not in runs:
        runs.append(parent)
        run = context.instance.get_run_by_id(parent)
        parent = run.parent_run_id if run else None
    return runs


def fail(
    context: Context,
    asset: dg.AssetKey,
    database: Database,
    clock: Clock,
    partition: Partition,
    reason: str,
) -> None:
    """Write down that this step failed for a partition."""
    failures.record(
        database,
        partition,
        failures.Failure(
            step=context.op_def.name,
            asset=asset.to_user_string(),
            reason=reason,
            run_id=context.run.run_id,
            failed_at=clock.now(),
        ),
    )


def report(
    context: dg.AssetCheckExecutionContext,
    check: dg.AssetCheckKey,
    partition: Partition,
    *,
    passed: bool,
    severity: dg.AssetCheckSeverity,
    metadata: Mapping[str, Any],
) -> None:
    """Report a check's result for one partition of a range.

    Dagster itself keeps one result without a partition for all. This is for one that failed, or had
    failed and passes: an event costs more than the check. It blocks nothing, as ``each`` leaves
    alone what failed.
    """
    context.op_execution_context.log_event(
        dg.AssetCheckEvaluation(  # type: ignore[arg-type]
            check.asset_key,
            check.name,
            passed=passed,
            severity=severity,
            metadata=metadata,
            blocking=False,
            partition=partitions.key(partition.run_date, partition.tenant.slug),
        )
    )


def about_every_tenant(error: Exception) -> bool:
    """Whether an error is about the deployment, so that no other tenant would fare better."""
    return isinstance(error, ConfigurationError) and not isinstance(error, FloorMissing)
