"""The generated pages of docs/ say what the code and the database are now.

`make docs` (UPDATE_DOCS=1) writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
import typer

from eval.cli import app as evaluation
from forgetting_assets.cli import app
from resources import errors
from resources.addresses import Addresses
from resources.database import engine
from resources.settings import PROJECT
from tests import reference

DOCS = PROJECT / "docs"


@pytest.fixture
def migrated(places: Addresses) -> Iterator[sa.Engine]:
    assert places.admin is not None
    pool = engine(places.admin)
    yield pool
    pool.dispose()


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_generated_page_is_what_the_code_says_now(page: str, migrated: sa.Engine) -> None:
    said = reference.written(page, migrated)
    if os.environ.get("UPDATE_DOCS"):
        (DOCS / page).write_text(said, encoding="utf-8")
    assert (DOCS / page).read_text(encoding="utf-8") == said, "run `make docs` and read the diff"


def leaves(name: str, command: object) -> Iterator[str]:
    """The commands below one, by what a user types."""
    below = getattr(command, "commands", {})
    if not below:
        yield name
    for each, child in below.items():
        yield from leaves(f"{name} {each}", child)


def test_the_page_of_commands_has_every_command_once() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    for name, program in (("forgetting", app), ("forgetting-eval", evaluation)):
        for command in leaves(name, typer.main.get_command(program)):
            assert len(re.findall(rf"^#+ `{command}`$", page, re.MULTILINE)) == 1, command


def test_the_page_of_tables_has_a_meaning_for_every_column() -> None:
    page = (DOCS / "tables.md").read_text(encoding="utf-8")
    schema = (PROJECT / "tests" / "integration" / "schema.txt").read_text(encoding="utf-8")
    for relation in re.findall(r"^(?:table|view) (\S+)$", schema, re.MULTILINE):
        assert f"`{relation.removeprefix('public.')}`\n" in page, relation
    anchors = {each.lower().replace(" ", "-") for each in re.findall(r"^#+ (.+)$", page, re.M)}
    anchors = {re.sub(r"[^\w-]", "", each) for each in anchors}
    assert set(re.findall(r"\]\(#(.+?)\)", page)) <= anchors
    without = re.findall(r"^\| (\w+) \| .* \|  \|$", page, re.MULTILINE)
    assert without == []


def test_every_error_has_something_to_do_about_it() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [. ]*`(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE))
    for _, error in reference.tree(errors.ForgettingError):
        assert rows.get(error.__name__), f"write into docs/errors.md what to do about {error}"
