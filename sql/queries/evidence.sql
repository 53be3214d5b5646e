-- Evidence: what agents leave behind, recorded, used, credited, reached by its id and, only if a person
-- says so, forgotten for good.

-- name: insert_evidence
-- A batch of entries given as one JSON array; a time that is not known is null.
INSERT INTO evidence (
    id, user_id, session_id, kind, content, occurred_at, recorded_at, success_count,
    reinforcement_count, last_retrieved_at, last_outcome_at, embedding, embedding_model
)
SELECT
    r.id,
    :user_id AS user_id,
    r.session_id,
    r.kind,
    r.content,
    r.occurred_at,
    r.recorded_at,
    coalesce(r.success_count, 0) AS success_count,
    coalesce(r.reinforcement_count, 0) AS reinforcement_count,
    r.last_retrieved_at,
    r.last_outcome_at,
    CAST(r.embedding AS vector) AS embedding,
    r.embedding_model
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    id uuid, session_id text, kind text, content text, occurred_at timestamptz,
    recorded_at timestamptz, success_count integer, reinforcement_count integer,
    last_retrieved_at timestamptz, last_outcome_at timestamptz, embedding text, embedding_model text
);

-- name: insert_citations
-- Which evidence a memory cites, as a JSON array of pairs.
INSERT INTO memory_evidence (user_id, memory_id, evidence_id)
SELECT
    :user_id AS user_id,
    r.memory_id,
    r.evidence_id
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (memory_id uuid, evidence_id uuid);

-- name: find_known
-- Which ids the tenant has already, and what stands under them; of a forgotten one only that it was.
SELECT
    e.id,
    e.session_id,
    e.kind,
    encode(sha256(convert_to(e.content, 'UTF8')), 'hex') AS content_sha256
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = ANY(:ids)
UNION ALL
SELECT
    f.evidence_id AS id,
    NULL AS session_id,
    NULL AS kind,
    NULL AS content_sha256
FROM forgetting.forgotten AS f
WHERE f.user_id = :user_id AND f.evidence_id = ANY(:ids);

-- name: lock_entries
-- Some entries of any tier, locked in the order of their ids.
SELECT
    e.id,
    e.session_id,
    e.kind,
    e.content,
    e.occurred_at,
    e.archived_at
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = ANY(:ids)
ORDER BY e.id
FOR UPDATE;

-- name: mark_used
-- Entries were retrieved, read or asked for now; a use is never dated back.
UPDATE evidence
SET last_retrieved_at = greatest(last_retrieved_at, :now)
WHERE user_id = :user_id AND id = ANY(:ids);

-- name: mark_credited
-- An outcome is attributed to entries. A counter that is full stays full.
UPDATE evidence
SET
    success_count = CASE :outcome
        WHEN 'success' THEN least(success_count, 2147483646) + 1 ELSE success_count
    END,
    reinforcement_count = CASE :outcome
        WHEN 'reinforcement' THEN least(reinforcement_count, 2147483646) + 1
        ELSE reinforcement_count
    END,
    last_outcome_at = greatest(last_outcome_at, :now)
WHERE user_id = :user_id AND id = ANY(:ids);

-- name: log_regrets
-- Keep which of some entries were archived since :archived_since and are of use all the same: the first
-- use after each archiving.
INSERT INTO forgetting.regrets (user_id, evidence_id, archived_at, used_at, use)
SELECT
    e.user_id,
    e.id AS evidence_id,
    e.archived_at,
    :now AS used_at,
    :use AS use
FROM evidence AS e
WHERE
    e.user_id = :user_id AND e.id = ANY(:ids)
    AND e.archived_at >= :archived_since AND e.archived_at <= :now
ON CONFLICT DO NOTHING;

-- name: find_nearest
-- The hot entries whose vectors are nearest to one, nearest first. Exact: it compares with every hot
-- vector of that model, so that no other tenant's entry and no archived one takes a place.
SELECT
    h.id,
    h.session_id,
    h.kind,
    h.content,
    h.occurred_at,
    1 - (h.embedding <=> CAST(:embedding AS vector)) AS similarity
FROM hot_evidence AS h
WHERE
    h.user_id = :user_id AND h.embedding_model = :embedding_model
    AND (CAST(:session_id AS text) IS NULL OR h.session_id = :session_id)
ORDER BY h.embedding <=> CAST(:embedding AS vector), h.id ASC
LIMIT :most;

-- name: count_forgettable
-- How many entries forgetting a lesson or a session would delete.
SELECT count(*) AS entries
FROM evidence AS e
WHERE
    e.user_id = :user_id
    AND (
        (e.id = CAST(:lesson_id AS uuid) AND e.kind = 'lesson')
        OR e.session_id = CAST(:session_id AS text)
    );

-- name: forget
-- Delete a lesson, or all entries of a session, for good; how many.
SELECT
    forgetting.forget(
        CAST(:lesson_id AS uuid), CAST(:session_id AS text), :batch_id, CAST(:now AS timestamptz)
    ) AS entries
FROM tenants AS t
WHERE t.user_id = :user_id;
