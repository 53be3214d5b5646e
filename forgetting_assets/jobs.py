"""The jobs that a schedule, an operator or the command line runs."""

from __future__ import annotations

import dagster as dg

from forgetting_assets.assets.archival_sweep import archival_sweep
from forgetting_assets.partitions import daily_tenant

forgetting_pass = dg.define_asset_job(
    "forgetting_pass",
    selection=dg.AssetSelection.groups("forgetting"),
    partitions_def=daily_tenant,
    description="The whole pass for one day and tenant: candidates, verdicts, proposals, sweep.",
)

sweep_alone = dg.define_asset_job(
    "sweep_alone",
    selection=dg.AssetSelection.assets(archival_sweep),
    partitions_def=daily_tenant,
    description="Only the archival sweep of one day and tenant; it needs no judge.",
)
