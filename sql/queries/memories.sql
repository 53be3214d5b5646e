-- Writing memories that a user brings.

-- name: find_clashes
-- Live or known rows that the incoming ones touch, by id or by live content.
SELECT
    m.id,
    m.content_hash,
    m.valid_to IS NULL AS is_current
FROM memories AS m
WHERE m.user_id = :user_id AND m.id = ANY(:ids)
UNION
SELECT
    m.id,
    m.content_hash,
    m.valid_to IS NULL AS is_current
FROM memories AS m
WHERE m.user_id = :user_id AND m.content_hash = ANY(:content_hashes);

-- name: insert_memories
-- A batch of memories given as one JSON array; the columns are those of the import format.
INSERT INTO memories (
    id, user_id, memory_type, topic, content, scope, project, tags, embedding, content_hash,
    valid_from, recorded_at, created_at, updated_at
)
SELECT
    r.id,
    :user_id AS user_id,
    r.memory_type,
    r.topic,
    r.content,
    r.scope,
    r.project,
    r.tags,
    CAST(r.embedding AS vector) AS embedding,
    r.content_hash,
    r.created_at AS valid_from,
    r.created_at AS recorded_at,
    r.created_at,
    r.updated_at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    id uuid, memory_type text, topic text, content text, scope text, project text, tags jsonb,
    embedding text, content_hash text, created_at timestamptz, updated_at timestamptz
);

-- name: insert_embedding_models
-- Which model made each incoming vector.
INSERT INTO forgetting.embedding_models (user_id, memory_id, embedding_model)
SELECT
    :user_id AS user_id,
    r.id AS memory_id,
    r.embedding_model
FROM
    jsonb_to_recordset(CAST(:rows AS jsonb))
        AS r (
            id uuid, embedding text, embedding_model text
        )
WHERE r.embedding IS NOT NULL;

-- name: insert_import_events
-- The audit trail of an import.
INSERT INTO memory_events (user_id, memory_id, event_kind, actor_kind, created_at)
SELECT
    :user_id AS user_id,
    r.id AS memory_id,
    'import' AS event_kind,
    :actor AS actor_kind,
    :now AS created_at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (id uuid);
