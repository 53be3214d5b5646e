-- Memories whose vectors are compared with each other: of a type that the pass judges, and not
-- superseded. Archived ones are among them, so that one that is revived needs no mining.
CREATE OR REPLACE VIEW forgetting.comparable_memories WITH (security_invoker = TRUE) AS
SELECT
    m.id,
    m.user_id,
    m.memory_type,
    m.scope,
    m.project,
    m.created_at,
    m.embedding,
    coalesce(em.embedding_model, 'unknown') AS embedding_model,
    forgetting.group_key(
        m.memory_type, m.scope, m.project, coalesce(em.embedding_model, 'unknown')
    ) AS group_key
FROM memories AS m
LEFT JOIN forgetting.embedding_models AS em ON m.user_id = em.user_id AND m.id = em.memory_id
WHERE
    m.valid_to IS NULL
    AND m.memory_type IN ('decision', 'preference', 'fact', 'blocker')
    AND m.embedding IS NOT NULL;

COMMENT ON VIEW forgetting.comparable_memories IS
'Memories whose vectors are compared with each other. Never an event or a note.';
COMMENT ON COLUMN forgetting.comparable_memories.id IS 'The memory.';
COMMENT ON COLUMN forgetting.comparable_memories.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.comparable_memories.memory_type IS 'decision, preference, fact or blocker.';
COMMENT ON COLUMN forgetting.comparable_memories.scope IS 'Its scope.';
COMMENT ON COLUMN forgetting.comparable_memories.project IS 'Its project; NULL = none.';
COMMENT ON COLUMN forgetting.comparable_memories.created_at IS 'When it was created, UTC.';
COMMENT ON COLUMN forgetting.comparable_memories.embedding IS 'Its vector, which may be a zero vector.';
COMMENT ON COLUMN forgetting.comparable_memories.embedding_model IS
'The model that made the vector; unknown = not recorded.';
COMMENT ON COLUMN forgetting.comparable_memories.group_key IS
'The key of those it is compared with: one type, scope, project and embedding model.';

GRANT SELECT ON forgetting.comparable_memories TO forgetting_runtime;
