"""The tables that the pass reads and does not own, so that lineage starts where a memory does."""

import dagster as dg

memories = dg.AssetSpec(
    "memories",
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres"},
    description="The agents' long-term memories. The pass reads them and never writes them; a "
    "human's yes to a proposal does.",
    metadata={"dagster/table_name": "public.memories"},
)

evidence = dg.AssetSpec(
    "evidence",
    group_name="forgetting",
    owners=["team:memory-platform"],
    kinds={"postgres"},
    description="Traces, logs and outcomes that agents leave, and the guidance drawn from them. "
    "The sweep sets a marker on what is of no use and changes nothing else.",
    metadata={"dagster/table_name": "public.evidence"},
)
