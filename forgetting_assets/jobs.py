"""The jobs that a schedule, an operator or the command line runs."""

from __future__ import annotations

import dagster as dg

from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.assets.memory_health import memory_health

forgetting_pass = dg.define_asset_job(
    "forgetting_pass",
    selection=dg.AssetSelection.groups("forgetting").materializable(),
    description="The whole pass for one day and tenant: candidates, verdicts, proposals, sweep, "
    "health.",
)

sweep_alone = dg.define_asset_job(
    "sweep_alone",
    selection=dg.AssetSelection.assets(archival_sweep, memory_health),
    description="Only the archival sweep of one day and tenant, and how its memory is doing then; "
    "it needs no judge.",
)
