-- The one definition of a live memory, with what the pass asks of it. An allow-list: a status that
-- does not exist yet is not live.
CREATE OR REPLACE VIEW forgetting.live_memories WITH (security_invoker = TRUE) AS
SELECT
    m.id,
    m.user_id,
    m.memory_type,
    m.scope,
    m.project,
    m.content_hash,
    m.created_at,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness,
    m.embedding,
    coalesce(em.embedding_model, 'unknown') AS embedding_model
FROM memories AS m
LEFT JOIN forgetting.embedding_models AS em ON m.user_id = em.user_id AND m.id = em.memory_id
WHERE m.status = 'active' AND m.valid_to IS NULL;

COMMENT ON VIEW forgetting.live_memories IS
'Memories that are neither archived nor superseded, with their freshness and vector.';
COMMENT ON COLUMN forgetting.live_memories.id IS 'The memory.';
COMMENT ON COLUMN forgetting.live_memories.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.live_memories.memory_type IS 'Its type; see memories.memory_type.';
COMMENT ON COLUMN forgetting.live_memories.scope IS 'Its scope.';
COMMENT ON COLUMN forgetting.live_memories.project IS 'Its project; NULL = none.';
COMMENT ON COLUMN forgetting.live_memories.content_hash IS 'SHA-256 of its content, in hex.';
COMMENT ON COLUMN forgetting.live_memories.created_at IS 'When it was created, UTC.';
COMMENT ON COLUMN forgetting.live_memories.freshness IS
'The later of its last change and its last review, UTC.';
COMMENT ON COLUMN forgetting.live_memories.embedding IS
'Its vector; NULL = none. A zero vector is like no other: its cosine is NaN.';
COMMENT ON COLUMN forgetting.live_memories.embedding_model IS
'The model that made the vector; unknown = not recorded.';

GRANT SELECT ON forgetting.live_memories TO forgetting_runtime;
