"""Two machines: one has the code and the key, the other Dagster's daemon. They share PostgreSQL.

The host runs what compose's daemon runs, and then what the chart's daemon runs, with the instance
files of deploy/. It cannot import a line of ours. The other machine is a code server with a home
and folders of its own. In the chart's case the test stands in for the Kubernetes API: it takes the
Job that Dagster's launcher posts and starts the pod's command, with the pod's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import sqlalchemy as sa
from ruamel.yaml import YAML

from resources import migrations
from resources.addresses import Addresses
from resources.database import engine
from resources.settings import PROJECT
from tests.deployed import HELM, chart_instance, container_context
from tests.support import DAY, Store

BIN = Path(sys.executable).parent
HANG = 240
IMAGE = "registry.internal/forgetting-assets:0.1.0"
PACKAGES = ("eval", "forgetting_assets", "resources", "sql")
NO_CODE = f"""
import sys

class NoCode:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {PACKAGES}:
            raise ModuleNotFoundError(f"this machine has no {{name}}")

sys.meta_path.insert(0, NoCode())
"""
"""The host's sitecustomize: what an image without the code would say."""

T = TypeVar("T")


def until(what: str, ask: Callable[[], T | None], alive: Callable[[], str | None]) -> T:
    """Ask until there is an answer; ``alive`` says what is wrong once nothing can come any more."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        answer = ask()
        if answer is not None:
            return answer
        if wrong := alive():
            raise AssertionError(f"while waiting for {what}: {wrong}")
        time.sleep(0.2)
    raise AssertionError(f"waited {HANG} s for {what}")


@dataclass
class Machine:
    """A machine: a folder that is its home and its working folder, an environment, processes."""

    folder: Path
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "work").mkdir()

    def start(self, *command: str, **more: str) -> subprocess.Popen[bytes]:
        """Start a program of the environment; what it says goes to a file beside the folder."""
        log = self.folder.with_suffix(".log").open("ab")
        with log:
            process = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                env={
                    "PATH": f"{BIN}:{os.environ['PATH']}",
                    "HOME": str(self.folder / "home"),
                    **self.environment,
                    **more,
                },
                cwd=self.folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def run(self, *command: str) -> None:
        """Run a program to its end."""
        assert self.start(*command).wait(timeout=HANG) == 0, self.said()

    def said(self) -> str:
        return self.folder.with_suffix(".log").read_text(errors="replace")[-5000:]

    def trouble(self) -> str | None:
        """What a process that should go on said, when it ended."""
        ended = [each for each in self.processes if each.poll() not in (None, 0)]
        return self.said() if ended else None

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def stop(self) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [*psutil.Process(process.pid).children(recursive=True)]
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
                for each in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            process.kill()
            process.wait()
        self.processes.clear()


class Cluster:
    """The part of the Kubernetes API that a run needs; a pod's process runs on ``node``.

    ``sources``: the secrets and config maps of the namespace, by name.
    """

    def __init__(self, node: Machine, sources: dict[str, dict[str, str]]) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, subprocess.Popen[bytes]] = {}
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                job = json.loads(self.rfile.read(int(self.headers["content-length"])))
                name = job["metadata"]["name"]
                cluster.jobs[name] = job
                container = job["spec"]["template"]["spec"]["containers"][0]
                given: dict[str, str] = {}
                for source in container["envFrom"]:
                    ((_, reference),) = source.items()
                    given |= sources[reference["name"]]
                for each in container["env"]:
                    secret = each.get("valueFrom", {}).get("secretKeyRef")
                    given[each["name"]] = (
                        sources[secret["name"]][secret["key"]] if secret else each["value"]
                    )
                cluster.pods[name] = node.start(*container["args"], **given)
                self.say(201, job)

            def do_GET(self) -> None:
                name = self.path.split("/jobs/")[1].split("/")[0]
                ended = cluster.pods[name].poll()
                outcome = "active" if ended is None else "failed" if ended else "succeeded"
                self.say(200, {**cluster.jobs[name], "status": {outcome: 1}})

            def say(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def kubeconfig(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {}}],
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass
class World:
    """Both machines, and what PostgreSQL has of them."""

    places: Addresses
    store: Store
    host: Machine
    other: Machine
    port: int
    dagster: sa.Engine

    def rows(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        with self.dagster.connect() as connection:
            found = connection.execute(sa.text(statement), parameters).mappings()
            return [dict(each) for each in found]

    def knows(self, slug: str) -> bool | None:
        """Whether Dagster has a partition of the tenant; its tables come with their first use."""
        with contextlib.suppress(sa.exc.ProgrammingError):
            known = self.rows("SELECT partition FROM dynamic_partitions")
            return slug in {row["partition"] for row in known} or None
        return None

    def home(self, instance: dict[str, Any] | Path) -> dict[str, str]:
        """Lay an instance and deploy/'s workspace into the host's DAGSTER_HOME."""
        folder = self.host.folder / "dagster_home"
        folder.mkdir(exist_ok=True)
        yaml = YAML(typ="safe")
        if isinstance(instance, Path):
            instance = yaml.load(instance)
        # Compose's daemon is of our image and has this handler; this host is kept without our code.
        instance.pop("python_logs", None)
        yaml.dump(instance, folder / "dagster.yaml")
        workspace = yaml.load(PROJECT / "deploy" / "workspace.yaml")
        (ours, _) = workspace["load_from"]
        ours["grpc_server"]["port"] = self.port
        yaml.dump({"load_from": [ours]}, folder / "workspace.yaml")
        return {"DAGSTER_HOME": str(folder), "FORGETTING_CODE_HOST": "127.0.0.1"}

    def trouble(self) -> str | None:
        return self.host.trouble() or self.other.trouble()

    def materialize(self, slug: str) -> str:
        """Let the host request a partition, and wait for its run to end; the run's id."""
        until("the sensor, over gRPC, to add the tenants", lambda: self.knows(slug), self.trouble)
        date = DAY.isoformat()
        tags = {
            "dagster/partition": f"{date}|{slug}",
            "dagster/partition/date": date,
            "dagster/partition/tenant": slug,
        }
        workspace = str(self.host.folder / "dagster_home" / "workspace.yaml")
        self.host.run(
            *("dagster", "job", "launch", "-w", workspace, "-j", "forgetting_pass"),
            *("--tags", json.dumps(tags)),
        )

        def ended() -> dict[str, Any] | None:
            found = self.rows(
                "SELECT r.run_id, r.status FROM runs AS r JOIN run_tags AS t USING (run_id) "
                "WHERE t.key = 'dagster/partition/tenant' AND t.value = :slug",
                slug=slug,
            )
            assert len(found) == 1
            return found[0] if found[0]["status"] in ("SUCCESS", "FAILURE", "CANCELED") else None

        run = until("the run", ended, self.trouble)
        assert run["status"] == "SUCCESS", self.host.said() + self.other.said()
        return str(run["run_id"])

    def worker_of(self, run_id: str) -> int:
        """The process that executed a run's steps, as its events say."""
        events = self.rows("SELECT event FROM event_logs WHERE run_id = :id", id=run_id)
        said = re.findall(r"Executing steps in process \(pid: (\d+)\)", str(events))
        (pid,) = set(said)
        return int(pid)

    def check_tables(self, slug: str, run_id: str) -> None:
        """The partition is in the tables, complete."""
        (tenant,) = self.store.rows("SELECT user_id FROM tenants WHERE slug = :slug", slug=slug)
        of_tenant = {"user_id": tenant["user_id"]}
        for table, least in {
            "forgetting.judged_verdicts": 2,
            "forgetting.archival_sweep": 1,
            "forgetting.memory_health": 1,
        }.items():
            found = self.store.rows(
                f"SELECT run_date FROM {table} WHERE user_id = :user_id", **of_tenant
            )
            assert len(found) >= least, table
            assert {row["run_date"] for row in found} == {DAY}
        results = self.store.rows(
            "SELECT run_id, passed FROM forgetting.invariant_results WHERE user_id = :user_id",
            **of_tenant,
        )
        assert {(row["run_id"], row["passed"]) for row in results} == {(run_id, True)}
        checks = self.rows(
            "SELECT partition, execution_status FROM asset_check_executions WHERE run_id = :id",
            id=run_id,
        )
        assert {(row["partition"], row["execution_status"]) for row in checks} == {
            (f"{DAY}|{slug}", "SUCCEEDED")
        }


@pytest.fixture
def world(places: Addresses, store: Store, tmp_path: Path) -> Iterator[World]:
    """The other machine's code server runs; two tenants have something to forget."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    store.mark_demo()
    for slug in ("composed", "charted"):
        user_id = store.tenant(slug)
        store.memory(user_id)
        store.pair(user_id)
        store.evidence(user_id, age=90)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    urls = places.environment()
    (no_code := tmp_path / "image").mkdir()
    (no_code / "sitecustomize.py").write_text(NO_CODE)
    host = Machine(
        tmp_path / "host",
        {"DAGSTER_DATABASE_URL": urls["DAGSTER_DATABASE_URL"], "PYTHONPATH": str(no_code)},
    )
    other = Machine(tmp_path / "other", {})
    world = World(places, store, host, other, port, engine(places.dagster))
    settings = {
        **urls,
        "FORGETTING_GATEWAY": "scripted",
        "FORGETTING_PASS_ENABLED": "true",
        "FORGETTING_ARCHIVE_ENABLED": "true",
        "FORGETTING_CONFLICT_FLOORS": '{"test-embedding": 0.82}',
    }
    try:
        other.start(
            *("dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(port)),
            *HELM["deployments"][0]["dagsterApiGrpcArgs"],
            DAGSTER_HOME=str(other.folder / "home"),
            DAGSTER_CURRENT_IMAGE=IMAGE,
            DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT=json.dumps(
                container_context(HELM["deployments"][0])
            ),
            **settings,
        )

        def answers() -> bool | None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return None

        until("the code server", answers, world.trouble)
        other.environment |= {"PODS": json.dumps(settings)}
        yield world
    finally:
        host.stop()
        other.stop()
        world.dagster.dispose()


def test_a_partition_runs_on_another_machine_with_nothing_shared_but_postgresql(
    world: World,
) -> None:
    host, other = world.host, world.other
    # As compose has it: the run is a process beside the code server.
    host.environment |= world.home(PROJECT / "deploy" / "dagster.yaml")
    workspace = str(host.folder / "dagster_home" / "workspace.yaml")
    laid = host.files()
    host.start("dagster-daemon", "run", "-w", workspace)
    run_id = world.materialize("composed")
    world.check_tables("composed", run_id)
    server, daemon = other.processes[0].pid, host.processes[0].pid
    assert world.worker_of(run_id) not in (server, daemon)
    (address,) = world.rows(
        "SELECT value FROM run_tags WHERE run_id = :id AND key = '.dagster/grpc_info'", id=run_id
    )
    assert json.loads(address["value"])["port"] == world.port
    assert host.files() == laid
    host.stop()

    # As the chart has it: the run is a pod, here a process with the pod's command and environment.
    settings = json.loads(other.environment.pop("PODS"))
    cluster = Cluster(
        other,
        {
            "nightly-dagster-pipeline-env": {},
            "nightly-dagster-forgetting-user-env": HELM["deployments"][0]["env"],
            "forgetting-settings": settings,
            "forgetting-dagster-postgresql": {"postgresql-password": "of-a-test"},
        },
    )
    try:
        kubeconfig = host.folder / "kubeconfig"
        YAML(typ="safe").dump(cluster.kubeconfig(), kubeconfig)
        instance = chart_instance(load_incluster_config=False, kubeconfig_file=str(kubeconfig))
        address = world.places.dagster
        for part in ("run_storage", "event_log_storage", "schedule_storage"):
            server_of = instance[part]["config"]["postgres_db"]
            # The test's server listens on a socket.
            server_of |= {"hostname": "", "db_name": address.database}
            server_of["params"] = dict(address.query)
        host.environment |= world.home(instance) | {"DAGSTER_PG_PASSWORD": "of-a-test"}
        host.environment.pop("DAGSTER_DATABASE_URL")
        laid = host.files()
        host.start("dagster-daemon", "run", "-w", workspace)
        run_id = world.materialize("charted")
        world.check_tables("charted", run_id)
        (job,) = cluster.jobs.values()
        (pod,) = cluster.pods.values()
        assert world.worker_of(run_id) == pod.pid
        assert pod.wait(timeout=HANG) == 0
        assert host.files() == laid
    finally:
        host.stop()
        cluster.close()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["args"][:3] == ["dagster", "api", "execute_run"]
    assert container["resources"] == HELM["deployments"][0]["resources"]
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400
    assert "of-a-test" not in json.dumps(job)
