"""What asks for an evaluation when the pinned judge is one that has none."""

import dagster as dg

from eval.assets import Files, judge_drift, judge_evaluation, judge_thresholds, models
from forgetting_assets import catalog
from resources import settings
from resources.gateway import Gateway

evaluate_judge = dg.define_asset_job(
    "evaluate_judge",
    selection=dg.AssetSelection.assets(judge_evaluation, judge_thresholds),
    description="How one model judged the labelled items, its bars, and the thresholds that the "
    "rule selects. Writes no thresholds unless its config says so.",
    owners=catalog.OWNERS,
    tags={"judge": "yes"},
)

watch_drift = dg.define_asset_job(
    "watch_drift",
    selection=dg.AssetSelection.assets(judge_drift),
    description="What reviewers made of the proposals so far, and whether that is still above the "
    "bars.",
    owners=catalog.OWNERS,
    tags={"judge": "no"},
)


@dg.sensor(
    name="new_judge_model",
    job=evaluate_judge,
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Requests an evaluation when JEV_MODEL is a model without one: from its recorded "
    "answers, and where there are none by asking the judge, which costs money. It asks once a "
    "model; after a failed run, start evaluate_judge by hand. Stopped by default.",
    owners=catalog.OWNERS,
)
def new_judge_model(
    context: dg.SensorEvaluationContext, files: Files, gateway: dg.ResourceParam[Gateway]
) -> dg.SensorResult | dg.SkipReason:
    """One run for a model that was never evaluated."""
    model = gateway.pinned_model
    if model in context.instance.get_materialized_partitions(judge_evaluation.key):
        return dg.SkipReason(f"{model} has an evaluation.")
    recorded = files.recording(model).exists()
    if not recorded and settings.read().jev_api_key is None:
        return dg.SkipReason(
            f"{model} has no recorded answers, and JEV_API_KEY is not set to ask it."
        )
    return dg.SensorResult(
        run_requests=[
            dg.RunRequest(
                run_key=f"judge-{model}",
                partition_key=model,
                run_config={"ops": {"judge_evaluation": {"config": {"ask": not recorded}}}},
            )
        ],
        dynamic_partitions_requests=[models.build_add_request([model])],
    )
