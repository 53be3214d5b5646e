"""What CONTRIBUTING.md and the files beside it name is there, and the hooks run."""

from __future__ import annotations

import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from resources.settings import PROJECT

PAGE = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence's text as the Apache Software Foundation publishes it."""


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for page in [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *PROJECT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page.name


def test_every_make_target_is_explained_to_who_contributes_or_looks() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"make ([a-z-]+)", PAGE + readme))
    assert {name for name in targets - explained if not name.startswith("bench-")} == {"clean"}


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:\.?[\w-]+/)+[\w.-]*|\w+\.(?:toml|lock))`", PAGE))
    assert len(named) > 15
    ours = {name for name in named if "NNNN" not in name and name != ".hypothesis/"}
    assert [name for name in sorted(ours) if not (PROJECT / name).exists()] == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one file that ruff would write otherwise, with the hooks of ours."""
    if shutil.which("git") is None:
        pytest.skip("pre-commit needs git, which is not here")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    (tmp_path / "some.py").write_text("x = {  'a':1 }\n", encoding="utf-8")
    for arguments in (["init", "-q"], ["add", "some.py", "pyproject.toml"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_the_hooks_run_the_tools_of_the_environment_and_fetch_nothing(repository: Path) -> None:
    def hooks() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "pre-commit", "run", "--all-files", "--color", "never"],
            cwd=repository,
            env={**os.environ, "HOME": str(repository), "SKIP": "mypy,import-linter"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    first = hooks()
    assert first.returncode == 1, first
    assert "files were modified by this hook" in first.stdout
    assert (repository / "some.py").read_text(encoding="utf-8") == 'x = {"a": 1}\n'
    assert hooks().returncode == 0


def test_every_hook_is_local_and_runs_what_make_lint_runs() -> None:
    config = (PROJECT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"repo: (\S+)", config) == ["local"]
    entries = re.findall(r"entry: \.venv/bin/(\S+)", config)
    assert set(re.findall(r"^\t@\$\(BIN\)/(ruff|mypy|lint-imports|sqlfluff)", MAKEFILE, re.M)) == {
        *entries
    }


def test_the_licence_is_the_unmodified_text_and_the_package_names_it() -> None:
    assert hashlib.sha256((PROJECT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    installed = metadata.distribution("forgetting-assets").read_text("METADATA")
    assert installed is not None
    assert email.message_from_string(installed)["License-Expression"] == "Apache-2.0"


def test_the_changelog_has_the_version_of_the_package() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[Unreleased\] (\S+)$", changelog, re.MULTILINE) == [project["version"]]
