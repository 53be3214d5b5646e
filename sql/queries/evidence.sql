-- Episodic evidence and its archive tier. Archiving writes markers; no row is moved or deleted.

-- name: count_taken
-- How much of its batch a partition has used, revived entries included.
SELECT count(*) AS entries
FROM forgetting.archival_sweep AS s
WHERE s.user_id = :user_id AND s.run_date = :run_date;

-- name: find_due
-- The oldest due entries, at most :room, locked. Due: an episodic kind, a known time, never credited,
-- and neither happened, retrieved, touched by an outcome nor revived since :due_before. Evidence that
-- an open proposal's memory cites stays hot, and what this partition archived and somebody revived
-- since stays revived.
SELECT e.id
FROM evidence AS e
WHERE
    e.user_id = :user_id
    AND e.archived_at IS NULL AND e.occurred_at IS NOT NULL
    AND e.kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome')
    AND e.success_count = 0 AND e.reinforcement_count = 0
    AND greatest(e.occurred_at, e.last_retrieved_at, e.last_outcome_at) < :due_before
    AND e.recorded_at <= :as_of
    AND e.id NOT IN (
        SELECT s.evidence_id
        FROM forgetting.archival_sweep AS s
        WHERE s.user_id = :user_id AND s.run_date = :run_date
    )
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.revivals AS r
        WHERE r.user_id = :user_id AND r.evidence_id = e.id AND r.revived_at >= :due_before
    )
    AND e.id NOT IN (
        SELECT me.evidence_id
        FROM memory_evidence AS me
        INNER JOIN forgetting.waiting_memories AS w
            ON me.user_id = w.user_id AND me.memory_id = w.memory_id
        WHERE me.user_id = :user_id
    )
ORDER BY e.occurred_at ASC, e.id ASC
LIMIT :room
FOR UPDATE OF e;

-- name: log_archived
-- Keep the figures on which each entry is archived, and the digest of its bytes.
INSERT INTO forgetting.archival_sweep (
    run_date, user_id, evidence_id, kind, occurred_at, last_used_at, success_count,
    reinforcement_count, content_sha256, due_before, archived_at
)
SELECT
    :run_date AS run_date,
    e.user_id,
    e.id AS evidence_id,
    e.kind,
    e.occurred_at,
    greatest(e.last_retrieved_at, e.last_outcome_at) AS last_used_at,
    e.success_count,
    e.reinforcement_count,
    encode(sha256(convert_to(e.content, 'UTF8')), 'hex') AS content_sha256,
    :due_before AS due_before,
    :now AS archived_at
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = ANY(:ids);

-- name: mark_archived
-- Set the marker, and nothing else.
UPDATE evidence
SET archived_at = :now, archived_run_date = :run_date
WHERE user_id = :user_id AND id = ANY(:ids);

-- name: lock_archived
-- Which of some entries are in the archive tier, locked.
SELECT e.id
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = ANY(:ids) AND e.archived_at IS NOT NULL
ORDER BY e.id
FOR UPDATE;

-- name: find_archived
-- The entries that were archived last, at most :batch, locked: reviving goes back day by day.
SELECT e.id
FROM evidence AS e
WHERE e.user_id = :user_id AND e.archived_at IS NOT NULL
ORDER BY e.archived_run_date DESC, e.id DESC
LIMIT :batch
FOR UPDATE;

-- name: log_revived
-- Keep that entries come back, and why.
INSERT INTO forgetting.revivals (user_id, evidence_id, revived_at, archived_run_date, reason)
SELECT
    e.user_id,
    e.id AS evidence_id,
    :now AS revived_at,
    e.archived_run_date,
    :reason AS reason
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = ANY(:ids);

-- name: mark_revived
-- Take the marker away, and nothing else.
UPDATE evidence
SET archived_at = NULL, archived_run_date = NULL
WHERE user_id = :user_id AND id = ANY(:ids);

-- name: count_archived
-- How many entries of the tenant are in the archive tier.
SELECT count(*) AS entries
FROM evidence AS e
WHERE e.user_id = :user_id AND e.archived_at IS NOT NULL;

-- name: dereference
-- One entry by its id, from any tier, exactly as it was recorded.
SELECT
    e.id,
    e.session_id,
    e.kind,
    e.content,
    e.occurred_at,
    e.archived_at
FROM evidence AS e
WHERE e.user_id = :user_id AND e.id = :id;

-- name: insert_evidence
-- A batch of entries given as one JSON array.
INSERT INTO evidence (
    id, user_id, session_id, kind, content, occurred_at, recorded_at, success_count,
    reinforcement_count, last_retrieved_at, last_outcome_at
)
SELECT
    r.id,
    :user_id AS user_id,
    r.session_id,
    r.kind,
    r.content,
    r.occurred_at,
    r.recorded_at,
    r.success_count,
    r.reinforcement_count,
    r.last_retrieved_at,
    r.last_outcome_at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    id uuid, session_id text, kind text, content text, occurred_at timestamptz,
    recorded_at timestamptz, success_count integer, reinforcement_count integer,
    last_retrieved_at timestamptz, last_outcome_at timestamptz
);

-- name: insert_citations
-- Which evidence a memory cites, as a JSON array of pairs.
INSERT INTO memory_evidence (user_id, memory_id, evidence_id)
SELECT
    :user_id AS user_id,
    r.memory_id,
    r.evidence_id
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (memory_id uuid, evidence_id uuid);

-- name: preview_archived
-- A few of the entries that the partition archived, for the UI.
SELECT
    s.evidence_id,
    s.kind,
    s.occurred_at
FROM forgetting.archival_sweep AS s
WHERE s.user_id = :user_id AND s.run_date = :run_date
ORDER BY s.occurred_at ASC, s.evidence_id ASC
LIMIT 10;
