"""What the Dagster UI shows of an asset before it ever ran: its owner, its table, where to read on.

Here belong the arguments that every asset of the pass shares, and links to code and to SQL. What a
materialization says of itself is in metadata.py.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_shared.utils.warnings import BetaWarning, PreviewWarning

import sql
from forgetting_assets import metadata
from forgetting_assets.partitions import daily_tenant
from resources import settings

# Links to code and owners of jobs are beta features, and partition-aware checks a preview one:
# without them one tenant's pass hides another's fail.
for category in (BetaWarning, PreviewWarning):
    warnings.filterwarnings("ignore", category=category)

GROUP = "forgetting"
OWNERS = ["team:memory-platform"]
ROOT = sql.ROOT.parent
"""The folder that holds forgetting_assets/ and sql/, in a checkout as in an installed wheel."""

# The schedule starts at 04:30; two hours are for a night with many tenants. Any tenant counts: that
# one was left behind is what every_tenant_finished says.
NIGHTLY = dg.FreshnessPolicy.cron(
    deadline_cron="30 6 * * *", lower_bound_delta=timedelta(hours=2), timezone="UTC"
)

Decorator = Callable[[Callable[..., Any]], dg.AssetsDefinition]


def asset_of_the_pass(
    table: str,
    *,
    layer: str,
    deps: Sequence[dg.AssetsDefinition | dg.AssetSpec],
    statements: Sequence[str],
    lineage: dg.TableColumnLineage,
    kinds: Iterable[str] = ("postgres", "sql"),
    pool: str | None = None,
    op_tags: dict[str, str] | None = None,
) -> Decorator:
    """``dg.asset`` with what all assets of the pass have in common.

    ``table``: where the rows are, with its schema. ``statements``: what to read to understand the
    asset, as ``<noun>.<name>`` of sql/queries. Raises ValueError when a statement does not exist.
    ``lineage`` is shown as a table: Dagster's own UI keeps what it knows of columns to itself.
    """
    return dg.asset(
        deps=deps,
        partitions_def=daily_tenant,
        group_name=GROUP,
        owners=OWNERS,
        kinds=set(kinds),
        tags={"layer": layer},
        code_version="1",
        pool=pool,
        op_tags=op_tags,
        freshness_policy=NIGHTLY,
        metadata={
            "dagster/table_name": table,
            "dagster/code_references": dg.CodeReferencesMetadataValue(
                code_references=[_of_statement(each) for each in statements]
            ),
            "columns_come_from": metadata.table(_come_from(lineage)),
            "sql": dg.MetadataValue.md("\n\n".join(_shown(each) for each in statements)),
        },
        # With its flag off an asset reads nothing and is skipped.
        output_required=False,
    )


def linked(assets: Sequence[dg.AssetsDefinition | dg.AssetSpec]) -> Sequence[Any]:
    """The assets with links to their functions, beside those to their SQL.

    With FORGETTING_SOURCE_URL all links lead to that repository, else to files of this machine.
    """
    with_code = dg.with_source_code_references(assets)
    read = settings.read()
    if read.forgetting_source_url is None:
        return with_code
    return dg.link_code_references_to_git(
        # Of a bare spec Dagster would leave the links as they are.
        [dg.AssetsDefinition(specs=[a]) if isinstance(a, dg.AssetSpec) else a for a in with_code],
        git_url=read.forgetting_source_url.rstrip("/"),
        git_branch=read.forgetting_source_branch,
        file_path_mapping=dg.AnchorBasedFilePathMapping(
            local_file_anchor=ROOT, file_anchor_path_in_repository=""
        ),
    )


def source_schema(table: str) -> dg.TableSchema:
    """The columns of a table that the pass only reads, as sql/source_tables.json has them.

    Nothing materializes such a table, and loading definitions needs no database, so the database's
    comments are kept in a file; a test holds it to them.
    """
    columns = json.loads((sql.ROOT / "source_tables.json").read_text(encoding="utf-8"))[table]
    return dg.TableSchema(
        [
            dg.TableColumn(
                each["name"],
                each["type"],
                description=each["description"],
                constraints=dg.TableColumnConstraints(nullable=not each["is_required"]),
            )
            for each in columns
        ]
    )


def _come_from(lineage: dg.TableColumnLineage) -> Sequence[dict[str, str]]:
    """A row a column, with the upstream columns that it is made of."""
    return [
        {
            "column": column,
            "comes_from": ", ".join(
                f"{each.asset_key.to_user_string()}.{each.column_name}" for each in sources
            ),
        }
        for column, sources in lineage.deps_by_column.items()
    ]


def reference(path: Path, heading: str, label: str) -> dg.LocalFileCodeReference:
    """A link to the first line of a file that is ``heading``. Raises ValueError without one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dg.LocalFileCodeReference(
        file_path=str(path), line_number=lines.index(heading) + 1, label=label
    )


def _of_statement(name: str) -> dg.LocalFileCodeReference:
    noun, statement = name.split(".")
    path = sql.ROOT / "queries" / f"{noun}.sql"
    return reference(path, f"-- name: {statement}", name)


def _shown(name: str) -> str:
    """A statement as Markdown, its name above it."""
    noun, statement = name.split(".")
    return f"`{name}`\n\n```sql\n{sql.load(noun)[statement].text}\n```"
