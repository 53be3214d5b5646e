"""The documents say what the code does: commands, settings, fields and the graph."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from eval.cli import app as evaluation
from eval.fixture import EvalItem
from forgetting_assets.cli import app
from forgetting_assets.definitions import build_defs
from forgetting_assets.importing import MemoryRecord
from resources.settings import PROJECT

DOCS = PROJECT / "docs"
ROOT_PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = sorted([*ROOT_PAGES, *DOCS.rglob("*.md")])
KINDS = ["Tutorial", "How-to guides", "Reference", "Explanation"]


def commands(of: typer.Typer = app) -> set[str]:
    root = typer.main.get_command(of)
    found = set()
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        found.add(name)
        found |= {f"{name} {below}" for below in getattr(command, "commands", {})}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_documents_exists(page: Path) -> None:
    known = commands()
    text = page.read_text(encoding="utf-8")
    # "The forgetting pass" is no command.
    a_command = r"(?:^|[\s`/])forgetting (?!pass\b)([a-z-]+)(?: ([a-z-]+))?"
    named = re.findall(a_command, text, re.MULTILINE)
    for first, second in named:
        assert first in known, f"{page.name} names `forgetting {first}`"
        if any(command.startswith(f"{first} ") for command in known) and second:
            assert f"{first} {second}" in known, f"{page.name}: `forgetting {first} {second}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_eval_in_the_documents_exists(page: Path) -> None:
    known = commands(evaluation)
    named = re.findall(
        r"forgetting-eval ([a-z-]+)(?: (freeze|check))?", page.read_text(encoding="utf-8")
    )
    for first, second in named:
        assert " ".join(filter(None, (first, second))) in known, f"{page.name}: {first} {second}"


def test_every_page_is_in_the_index_once_under_one_of_the_four_kinds() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    head, *sections = re.split(r"^## (.+)$", index, flags=re.MULTILINE)
    assert sections[::2] == KINDS
    assert "](" not in head
    listed = [
        target
        for section in sections[1::2]
        for target in re.findall(r"^- \[\S+\]\((\S+)\): .+\.$", section, re.MULTILINE)
    ]
    assert index.count("](") == len(listed), "one line a page, and nothing else"
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)


def test_the_evals_pages_list_every_command_and_every_field_of_an_item() -> None:
    how_to = (DOCS / "evaluate.md").read_text(encoding="utf-8")
    for command in commands(evaluation) - {"golden"}:
        assert f"`{command}" in how_to, command
    page = (DOCS / "eval-files.md").read_text(encoding="utf-8")
    section = page.split("## A private golden set")[1].split("\n## ")[0]
    fields = set(re.findall(r"^\| ([a-z_]+) \| ", section, re.MULTILINE))
    assert fields - {"field"} == {*EvalItem.model_fields, "now"} - {"memory", "newer"}
    example = json.loads(page.split("```json\n")[1].split("\n```")[0])
    (item,) = example["items"]
    assert EvalItem.model_validate(item).label == "supersede"


def test_the_documents_name_commands_at_all() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert "forgetting review list" in readme
    assert {"demo", "dev", "run", "import", "migrate", "review accept"} <= commands()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_documents_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_import_page_lists_every_field_and_its_example_is_a_valid_line() -> None:
    page = (DOCS / "import.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z_]+) \| .* \| (yes|no|with embedding) \|", page, re.MULTILINE)
    fields = MemoryRecord.model_fields
    assert {name for name, _ in rows} == set(fields)
    assert {name for name, needed in rows if needed == "yes"} == {
        name for name, field in fields.items() if field.is_required()
    }
    example = page.split("```json\n")[1].split("\n```")[0]
    assert MemoryRecord.model_validate_json(example).memory_type == "decision"


def test_the_readme_draws_the_graph_that_dagster_has() -> None:
    graph = build_defs().resolve_asset_graph()
    upstream = {
        key.to_user_string(): {each.to_user_string() for each in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert upstream == {
        "memories": set(),
        "evidence": set(),
        "conflict_pairs": {"memories"},
        "stale_candidates": {"conflict_pairs", "memories"},
        "judged_verdicts": {"conflict_pairs", "stale_candidates", "memories"},
        "retention_proposals": {"judged_verdicts"},
        "archival_sweep": {"retention_proposals", "evidence"},
        "memory_health": {"retention_proposals", "memories", "evidence"},
    }
    drawing = (PROJECT / "README.md").read_text(encoding="utf-8").split("```text\n")[2]
    for asset in upstream:
        assert asset in drawing


def test_every_promise_names_a_test_that_exists() -> None:
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    promises = page.split("## What is not proven")[0].split("\n- ")[1:]
    assert len(promises) >= 20
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", promise)
        assert named, f"no test holds: {promise[:60]}"
        for path, name in named:
            assert f"def {name}(" in (PROJECT / path).read_text(encoding="utf-8"), name
