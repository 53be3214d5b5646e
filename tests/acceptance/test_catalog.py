"""What the Dagster UI has to say of everything that it lists, the next asset or check included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import sql
from eval.definitions import build_defs as eval_defs
from forgetting_assets import catalog
from forgetting_assets.assets import (
    archival_sweep,
    conflict_pairs,
    judged_verdicts,
    memory_health,
    retention_proposals,
    stale_candidates,
)
from forgetting_assets.definitions import build_defs
from tests.acceptance.test_assets import statements
from tests.graph import ASSETS, Graph, furnish, materialized
from tests.support import Store, TestJudge, say

pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

LOCATIONS: dict[str, Callable[[], dg.Definitions]] = {"pass": build_defs, "eval": eval_defs}
MODULES = {
    "conflict_pairs": conflict_pairs,
    "stale_candidates": stale_candidates,
    "judged_verdicts": judged_verdicts,
    "retention_proposals": retention_proposals,
    "archival_sweep": archival_sweep,
    "memory_health": memory_health,
}
BORN_HERE = {
    "conflict_pairs": {"run_date", "rank", "embedding_model", "floor"},
    "stale_candidates": {"run_date", "rank"},
    "judged_verdicts": {
        *("id", "kind", "verdict", "answer_key", "probability", "probabilities", "model"),
        *("answer_model", "input_digest", "request_id", "judged_at", "reused_from", "asking"),
    },
    "retention_proposals": {"status", "decided_at", "created_at"},
    "archival_sweep": {"run_date", "due_before", "archived_at", "tracked_since"},
    "memory_health": {"run_date", "measured_at", "regretted"},
}
"""Columns that no upstream asset has: what is ranked, judged, decided, dated, set or on record."""


def shown(defs: dg.Definitions) -> Iterator[tuple[str, Any]]:
    """Everything that a person can open in a code location, as what it is and itself."""
    nodes, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    for key in nodes.get_all_asset_keys():
        yield f"asset {key.to_user_string()}", nodes.get(key)
    for check in nodes.asset_check_keys:
        yield f"check {check.asset_key.to_user_string()}.{check.name}", nodes.get(check)
    for job in repository.get_all_jobs():
        if not job.name.startswith("__"):
            yield f"job {job.name}", job
    for schedule in repository.schedule_defs:
        yield f"schedule {schedule.name}", schedule
    for sensor in repository.sensor_defs:
        yield f"sensor {sensor.name}", sensor


@pytest.mark.parametrize("location", LOCATIONS)
def test_everything_that_the_ui_lists_says_what_it_is_for_and_whose_it_is(location: str) -> None:
    found = dict(shown(LOCATIONS[location]()))
    assert len(found) >= 10
    for name, each in found.items():
        description = " ".join((each.description or "").split())
        assert 60 <= len(description) <= 1000, (name, len(description))
        assert description.endswith("."), name
        kind = name.split()[0]
        if kind != "check":
            assert list(each.owners) == catalog.OWNERS, name
        if kind == "asset":
            assert each.kinds, name
            assert each.group_name in ("forgetting", "eval"), name
            assert each.tags["layer"], name
        if kind == "job":
            assert each.tags["judge"] in ("yes", "no"), name


def test_every_resource_says_what_it_is_for() -> None:
    for name, each in build_defs().get_repository_def().get_top_level_resources().items():
        assert len(each.description or "") >= 30, name


def test_every_asset_of_the_pass_names_its_table_and_is_expected_after_each_night() -> None:
    nodes = build_defs().resolve_asset_graph()
    for key in nodes.get_all_asset_keys():
        node = nodes.get(key)
        assert re.fullmatch(r"(public|forgetting)\.\w+", node.metadata["dagster/table_name"])
        assert node.freshness_policy == (catalog.NIGHTLY if node.is_materializable else None), key
    assert catalog.NIGHTLY.deadline_cron == "30 6 * * *"
    assert catalog.NIGHTLY.timezone == "UTC"


def test_the_tables_that_the_pass_only_reads_show_their_columns_before_any_run() -> None:
    nodes = build_defs().resolve_asset_graph()
    for name in ("memories", "evidence"):
        columns = nodes.get(dg.AssetKey(name)).metadata["dagster/column_schema"].columns
        assert len(columns) > 10
        assert all((column.description or "").endswith(".") for column in columns), name


def references(defs: dg.Definitions) -> dict[str, list[Any]]:
    """The links of each asset."""
    nodes = defs.resolve_asset_graph()
    return {
        key.to_user_string(): nodes.get(key).metadata["dagster/code_references"].code_references
        for key in nodes.get_all_asset_keys()
    }


@pytest.mark.parametrize("location", LOCATIONS)
def test_every_link_to_code_leads_to_a_line_that_names_what_it_is_for(location: str) -> None:
    links = references(LOCATIONS[location]())
    for asset, found in links.items():
        for link in found:
            path = Path(link.file_path)
            rest = path.read_text(encoding="utf-8").splitlines()[link.line_number - 1 :]
            if path.suffix == ".sql":
                assert (
                    rest[0].split()[-1] == link.label.split(".")[-1]
                    or rest[0] == f"CREATE TABLE {asset} ("
                )
            else:
                # The first line is the decorator's.
                assert rest[0].startswith("@")
                assert f"def {asset}(" in "\n".join(rest[:30])
    assert all(found for found in links.values())


def test_links_lead_to_the_repository_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGETTING_SOURCE_URL", "https://github.com/some/where/")
    monkeypatch.setenv("FORGETTING_SOURCE_BRANCH", "v1")
    for build in LOCATIONS.values():
        for asset, found in references(build()).items():
            for link in found:
                home, tree, rest = link.url.partition("/tree/v1/")
                assert (home, bool(tree)) == ("https://github.com/some/where", True), asset
                assert (catalog.ROOT / rest.partition("#L")[0]).is_file(), asset


def test_every_column_is_traced_to_where_it_comes_from_or_is_known_to_begin_here(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    said = materialized(graph.run())
    nodes = build_defs().resolve_asset_graph()
    for asset in ASSETS:
        rows = nodes.get(dg.AssetKey(asset)).metadata["columns_come_from"].records
        columns = {column.name for column in said[asset]["dagster/column_schema"].columns}
        traced = set(said[asset]["dagster/column_lineage"].deps_by_column)
        assert traced | BORN_HERE[asset] == columns, asset
        assert traced & BORN_HERE[asset] == set(), asset
        assert [row.data["column"] for row in rows] == list(MODULES[asset].LINEAGE.deps_by_column)
        assert all(row.data["comes_from"] for row in rows), asset


def test_each_id_of_a_proposal_is_traced_to_a_memory() -> None:
    lineage = {name: module.LINEAGE.deps_by_column for name, module in MODULES.items()}

    def roots(asset: str, column: str) -> set[tuple[str, str]]:
        if asset not in lineage or column not in lineage[asset]:
            return {(asset, column)}
        above = lineage[asset][column]
        return set().union(*(roots(d.asset_key.to_user_string(), d.column_name) for d in above))

    assert roots("retention_proposals", "memory_id") == {("memories", "id")}
    assert roots("retention_proposals", "related_memory_id") == {("memories", "id")}
    assert roots("retention_proposals", "user_id") == {("memories", "user_id")}


def test_the_statements_that_an_asset_shows_run_when_it_is_materialized(
    graph: Graph, store: Store
) -> None:
    furnish(store)
    graph.judge = TestJudge.that(say("archive"))
    nodes = build_defs().resolve_asset_graph()
    for asset in ASSETS:
        markdown = nodes.get(dg.AssetKey(asset)).metadata["sql"].value
        named = set(re.findall(r"^`(\w+\.\w+)`$", markdown, re.MULTILINE))
        with statements() as seen:
            assert graph.run(alone=asset).success
        assert named, asset
        assert named <= seen, asset
        for each in named:
            noun, statement = each.split(".")
            assert sql.load(noun)[statement].text in markdown
