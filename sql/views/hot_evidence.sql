-- The retrieval pool: evidence that no sweep has archived. Archived entries stay reachable by id.
CREATE OR REPLACE VIEW hot_evidence WITH (security_invoker = TRUE) AS
SELECT
    e.id,
    e.user_id,
    e.session_id,
    e.kind,
    e.content,
    e.occurred_at,
    e.recorded_at,
    e.success_count,
    e.reinforcement_count,
    e.last_retrieved_at,
    e.last_outcome_at,
    e.embedding,
    e.embedding_model
FROM evidence AS e
WHERE e.archived_at IS NULL;

COMMENT ON VIEW hot_evidence IS
'Evidence that retrieval may return: everything that is not in the archive tier.';
COMMENT ON COLUMN hot_evidence.id IS 'The entry.';
COMMENT ON COLUMN hot_evidence.user_id IS 'The tenant.';
COMMENT ON COLUMN hot_evidence.session_id IS 'The session that recorded it.';
COMMENT ON COLUMN hot_evidence.kind IS 'What it is; see evidence.kind.';
COMMENT ON COLUMN hot_evidence.content IS 'The exact text.';
COMMENT ON COLUMN hot_evidence.occurred_at IS 'When it happened, UTC; NULL = not known.';
COMMENT ON COLUMN hot_evidence.recorded_at IS 'When it was written here, UTC.';
COMMENT ON COLUMN hot_evidence.success_count IS 'Good outcomes it contributed to.';
COMMENT ON COLUMN hot_evidence.reinforcement_count IS 'Times it was reinforced.';
COMMENT ON COLUMN hot_evidence.last_retrieved_at IS 'Last retrieval, UTC; NULL = never.';
COMMENT ON COLUMN hot_evidence.last_outcome_at IS 'Last outcome that touched it, UTC; NULL = none.';
COMMENT ON COLUMN hot_evidence.embedding IS 'Its vector; NULL = it cannot be searched for.';
COMMENT ON COLUMN hot_evidence.embedding_model IS 'The model that made the vector.';

GRANT SELECT ON hot_evidence TO forgetting_runtime;
