"""What Dagster's chart makes of deploy/helm-values.yaml, as far as the tests need it.

The chart's templates were read for it; nothing here ran in a cluster.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML

from resources.settings import PROJECT

VALUES: dict[str, Any] = YAML(typ="safe").load(PROJECT / "deploy" / "helm-values.yaml")
HELM: dict[str, Any] = VALUES["dagster-user-deployments"]


def chart_instance(**launcher: Any) -> dict[str, Any]:
    """The dagster.yaml that the chart lays into DAGSTER_HOME; ``launcher`` overrides its config."""
    server = VALUES["postgresql"]
    storage = {
        "postgres_db": {
            "username": server["postgresqlUsername"],
            "password": {"env": "DAGSTER_PG_PASSWORD"},
            "hostname": server["postgresqlHost"],
            "db_name": server["postgresqlDatabase"],
            "port": server["service"]["port"],
            "params": server.get("postgresqlParams", {}),
            "scheme": server["postgresqlScheme"],
        }
    }
    given = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
    run = given["runK8sConfig"]
    daemon = VALUES["dagsterDaemon"]
    assert not any(daemon[part]["enabled"] for part in ("runCoordinator", "runMonitoring"))
    return {
        "scheduler": {
            "module": "dagster.core.scheduler",
            "class": "DagsterDaemonScheduler",
        },
        "run_storage": {
            "module": "dagster_postgres.run_storage",
            "class": "PostgresRunStorage",
            "config": storage,
        },
        "event_log_storage": {
            "module": "dagster_postgres.event_log",
            "class": "PostgresEventLogStorage",
            "config": storage,
        },
        "schedule_storage": {
            "module": "dagster_postgres.schedule_storage",
            "class": "PostgresScheduleStorage",
            "config": storage,
        },
        "run_launcher": {
            "module": "dagster_k8s",
            "class": "K8sRunLauncher",
            "config": {
                "load_incluster_config": True,
                "job_namespace": "forgetting",
                "image_pull_policy": given["imagePullPolicy"],
                "service_account_name": "nightly-dagster",
                "dagster_home": "/opt/dagster/dagster_home",
                "instance_config_map": "nightly-dagster-instance",
                "postgres_password_secret": VALUES["global"]["postgresqlSecretName"],
                "env_config_maps": ["nightly-dagster-pipeline-env"],
                "fail_pod_on_run_failure": given["failPodOnRunFailure"],
                "run_k8s_config": {"job_spec_config": run["jobSpecConfig"]},
                **launcher,
            },
        },
        "compute_logs": {
            "module": "dagster.core.storage.noop_compute_log_manager",
            "class": VALUES["computeLogManager"]["type"],
        },
        "telemetry": VALUES["telemetry"],
        **VALUES["additionalInstanceConfig"],
    }


def container_context(deployment: dict[str, Any]) -> dict[str, Any]:
    """What a code server of the chart says of the pods of its runs."""
    assert deployment["includeConfigInLaunchedRuns"]["enabled"]
    return {
        "k8s": {
            "image_pull_policy": deployment["image"]["pullPolicy"],
            "env_config_maps": [f"nightly-dagster-{deployment['name']}-user-env"],
            "env_secrets": [each["name"] for each in deployment["envSecrets"]],
            "resources": deployment["resources"],
            "namespace": "forgetting",
            "service_account_name": "nightly-dagster-user-deployments",
        }
    }
