"""What an analyst may read of the tables, written down once for the tests that hold it."""

from __future__ import annotations

from collections.abc import Mapping

ANALYST_COLUMNS: Mapping[str, str] = {
    "public.tenants": "slug user_id",
    "public.retention_proposals": "id user_id memory_id action related_memory_id probability model "
    "status decided_at created_at",
    "public.evidence": "id user_id kind occurred_at recorded_at success_count reinforcement_count "
    "last_retrieved_at last_outcome_at archived_at archived_run_date",
    "public.llm_usage": "user_id input_tokens output_tokens cost_usd created_at",
    "forgetting.conflict_pairs": "run_date user_id older_id newer_id",
    "forgetting.stale_candidates": "run_date user_id memory_id",
    "forgetting.judged_verdicts": "id run_date user_id kind memory_id memory_type verdict "
    "related_memory_id probability probabilities model answer_model judged_at reused_from",
    "forgetting.archival_sweep": "run_date user_id evidence_id archived_at",
    "forgetting.invariant_results": "id run_date user_id asset check_name passed checked_at",
    "forgetting.revivals": "user_id evidence_id",
    "forgetting.regrets": "user_id evidence_id",
    "forgetting.decisions": "id user_id proposal_id decision",
    "forgetting.closures": "id user_id proposal_id reason closed_at",
    "analytics.tenant_grants": "grantee user_id granted_at",
}
"""Every column of a table that an analyst may read. None holds a text or a digest of one."""
