"""The project as a user installs it: a wheel, an empty environment, an empty folder, a new home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from resources.settings import PROJECT

UV = Path(sys.executable).with_name("uv")
HANG = 300
PACKAGES = ("eval", "forgetting_assets", "resources", "sql")
SHIPPED = ("dagster.yaml", "workspace.yaml")
NOT_SHIPPED = {".forgetting", ".git", ".venv", "shared"}


def build(kind: str, out: Path) -> Path:
    """Build with the tools of the lock, so that nothing is fetched; the file."""
    subprocess.run(
        [
            *(UV, "build", "--quiet", f"--{kind}", "--no-build-isolation"),
            *("--python", sys.executable, "--out-dir", str(out), str(PROJECT)),
        ],
        check=True,
        timeout=HANG,
    )
    (built,) = (each for each in out.iterdir() if each.suffix in (".whl", ".gz"))
    return built


def tracked(*folders: str) -> set[str]:
    """The files of folders that belong to the project, without what a run leaves there."""
    return {
        path.relative_to(PROJECT).as_posix()
        for folder in folders
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and its dependencies, and nothing of the checkout."""

    folder: Path

    @property
    def site(self) -> Path:
        return next((self.folder / "environment" / "lib").iterdir()) / "site-packages"

    def __call__(self, program: str, *arguments: str) -> str:
        """Run a program of the environment in an empty folder, with a home of its own."""
        done = subprocess.run(
            [self.folder / "environment" / "bin" / program, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / "home"),
                "COLUMNS": "160",
                "NO_COLOR": "1",
            },
            cwd=self.folder / "elsewhere",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    """The wheel in an empty environment, as the image gets it. Its dependencies are those of the
    lock, by their hashes; uv's cache has them after the first time."""
    # Not pytest's folder, which the embedded server's own user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="forgetting-wheel-"))
    folder.chmod(0o755)
    for name in ("home", "elsewhere"):
        (folder / name).mkdir()
    try:
        subprocess.run(
            [PROJECT / "deploy" / "install", folder / "environment"],
            env={**os.environ, "PYTHON": sys.executable},
            check=True,
            timeout=HANG,
        )
        yield Installed(folder)
    finally:
        shutil.rmtree(folder)


def test_an_installed_wheel_runs_the_demo_from_an_empty_folder(installed: Installed) -> None:
    said = installed("forgetting", "demo")
    checks = re.findall(r"^│   (\w+) +│ (\w+) +│ (\w+) +│ (\w+) +│$", said, re.MULTILINE)
    assert len(checks) >= 8
    assert {cell for _, *cells in checks for cell in cells} == {"passed"}
    row = next(line for line in said.splitlines() if line.startswith("│ proposed: archive"))
    assert int(row.split("│")[2]) > 0
    (step,) = re.findall(r"^See the proposals: +(forgetting review list .*)$", said, re.MULTILINE)
    listed = installed(*step.split())
    assert "supersede" in listed

    loaded = installed(
        *("python", "-c"),
        f"import importlib; [print(importlib.import_module(n).__file__) for n in {PACKAGES}]",
    ).split()
    assert [Path(each).is_relative_to(installed.site) for each in loaded] == [True] * len(PACKAGES)
    assert list((installed.folder / "elsewhere").iterdir()) == []
    home = installed.folder / "home" / ".local" / "share" / "forgetting-assets"
    assert {"dagster", "postgres"} <= {each.name for each in home.iterdir()}
    assert not (installed.site / ".forgetting").exists()


def test_an_installed_wheel_replays_the_eval_and_loads_both_code_locations(
    installed: Installed,
) -> None:
    recording = installed.site / "eval" / "recorded" / "scripted.jsonl"
    assert "No model judged anything" in installed("forgetting-eval", "replay", str(recording))
    workspace = installed.site / "forgetting_assets" / "workspace.yaml"
    said = installed("dagster", "definitions", "validate", "-w", str(workspace))
    for location in ("forgetting_assets.definitions", "eval.definitions"):
        assert f"Validation successful for code location {location}" in said


def test_the_wheel_has_every_file_of_the_packages_and_the_top_levels_two(
    tmp_path: Path,
) -> None:
    wheel = build("wheel", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {each for each in archive.namelist() if ".dist-info/" not in each}
        for name in SHIPPED:
            copy = archive.read(f"forgetting_assets/{name}")
            assert copy == (PROJECT / name).read_bytes()
    assert names == tracked(*PACKAGES) | {f"forgetting_assets/{name}" for name in SHIPPED}
    assert any(name.startswith("sql/queries/") for name in names)


def test_a_source_distribution_has_nothing_that_a_run_leaves(tmp_path: Path) -> None:
    left = PROJECT / ".forgetting" / "of-a-test"
    left.parent.mkdir(exist_ok=True)
    left.touch()
    try:
        source = build("sdist", tmp_path)
    finally:
        left.unlink()
    with tarfile.open(source) as archive:
        paths = [Path(*Path(each).parts[1:]) for each in archive.getnames()]
    assert {Path("pyproject.toml"), Path("requirements.lock"), Path("workspace.yaml")} <= set(paths)
    assert [path for path in paths if NOT_SHIPPED & set(path.parts)] == []
