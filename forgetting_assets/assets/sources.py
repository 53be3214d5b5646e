"""The tables that the pass reads and does not own, so that lineage starts where a memory does."""

import dagster as dg

from forgetting_assets import catalog


def _source(name: str, description: str) -> dg.AssetSpec:
    table = f"public.{name}"
    link = catalog.reference(
        catalog.ROOT / "sql" / "migrations" / "0001_memory_store.sql",
        f"CREATE TABLE {name} (",
        "0001_memory_store.sql",
    )
    return dg.AssetSpec(
        name,
        group_name=catalog.GROUP,
        owners=catalog.OWNERS,
        kinds={"postgres"},
        tags={"layer": "store"},
        description=" ".join(description.split()),
        metadata={
            "dagster/table_name": table,
            "dagster/column_schema": catalog.source_schema(table),
            "dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[link]),
        },
    )


memories = _source(
    "memories",
    """What agents remember for the long term, a row a memory: decisions, preferences, facts,
    blockers, commitments and patterns, and the events and notes that are never judged. The pass
    reads the table and never writes it; a human's yes to a proposal does.""",
)

evidence = _source(
    "evidence",
    """Traces, logs, tool calls and outcomes that agents leave behind while they work, and the
    guidance drawn from them. The sweep sets a marker on what nobody used and changes nothing
    else.""",
)
