"""The eval in Dagster, a code location of its own beside the pass."""

from __future__ import annotations

from typing import Any

import dagster as dg

from eval import assets, checks, sensors
from forgetting_assets import catalog
from forgetting_assets.definitions import gateway_of
from resources import settings
from resources.clock import Clock
from resources.database import Database


def build_defs(**resource_overrides: Any) -> dg.Definitions:
    """Everything that Dagster shows of the eval, with the environment's resources or others."""
    return dg.Definitions(
        assets=catalog.linked(
            [
                assets.calibration_fixture,
                assets.judge_evaluation,
                assets.judge_thresholds,
                assets.judge_drift,
            ]
        ),
        asset_checks=list(checks.checks()),
        jobs=[sensors.evaluate_judge, sensors.watch_drift],
        sensors=[sensors.new_judge_model],
        resources={
            "files": assets.Files(),
            "gateway": gateway_of(settings.read()),
            "clock": Clock(),
            "database": Database(),
            **resource_overrides,
        },
        executor=dg.in_process_executor,
    )


defs = build_defs()
