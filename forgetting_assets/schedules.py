"""When the pass runs by itself."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import dagster as dg

from forgetting_assets import catalog, jobs, partitions
from forgetting_assets.store import tenants
from resources import settings
from resources.database import Database
from resources.flag import Flag


@dg.schedule(
    name="nightly",
    job=jobs.forgetting_pass,
    cron_schedule="30 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="At 04:30 UTC, the pass over yesterday for each tenant that opted in to anything. "
    "Stopped until somebody starts it, and with FORGETTING_PASS_ENABLED off it requests nothing.",
    owners=catalog.OWNERS,
    metadata={"requests": "one run a tenant, or one for FORGETTING_TENANTS_PER_RUN of them"},
)
def nightly(
    context: dg.ScheduleEvaluationContext, database: Database, flag: Flag
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """A run a tenant, or one for FORGETTING_TENANTS_PER_RUN of them; with the flag off, none.

    With the flag off it reads nothing.
    """
    if off := flag.why_pass_is_off():
        yield dg.SkipReason(off)
        return
    yesterday = context.scheduled_execution_time.date() - timedelta(days=1)
    agreed = {
        tenant.slug
        for tenant in tenants.all_tenants(database)
        if tenant.retired_at is None and (tenant.judgment_enabled or tenant.archival_enabled)
    }
    # In Dagster's order, of which a range is a part.
    known = context.instance.get_dynamic_partitions(partitions.tenants.name or "")
    slugs = [slug for slug in known if slug in agreed]
    if not slugs:
        yield dg.SkipReason(
            "No tenant is opted in, or the sensor has not added it yet: see "
            "`forgetting tenants list`."
        )
    yield from requests(yesterday, slugs, settings.read().forgetting_tenants_per_run)


def requests(run_date: date, slugs: Sequence[str], per_run: int) -> Iterator[dg.RunRequest]:
    """The runs of a day: one a tenant, or one for every ``per_run`` neighbours of ``slugs``."""
    for start in range(0, len(slugs), per_run):
        chosen = slugs[start : start + per_run]
        key = partitions.key(run_date, chosen[0])
        if len(chosen) == 1:
            yield dg.RunRequest(run_key=key, partition_key=key)
        else:
            yield dg.RunRequest(
                run_key=f"{key}...{partitions.key(run_date, chosen[-1])}",
                tags=partitions.range_tags(run_date, chosen),
            )
