"""The jobs that a schedule, an operator or the command line runs."""

from __future__ import annotations

import dagster as dg

from forgetting_assets import catalog
from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.assets.memory_health import memory_health

forgetting_pass = dg.define_asset_job(
    "forgetting_pass",
    selection=dg.AssetSelection.groups(catalog.GROUP).materializable(),
    description="The whole pass for one day and tenant: what may be stale or contradict, what the "
    "judge says of it, what a human is asked, which evidence is archived, and how the memory is "
    "doing then. Materialized again it gives the same rows and pays for nothing twice.",
    owners=catalog.OWNERS,
    tags={"judge": "yes"},
)

sweep_alone = dg.define_asset_job(
    "sweep_alone",
    selection=dg.AssetSelection.assets(archival_sweep, memory_health),
    description="Only the archival sweep of one day and tenant, and how its memory is doing then; "
    "it needs no judge.",
    owners=catalog.OWNERS,
    tags={"judge": "no"},
)
