-- The archive tier: what leaves the hot tier for its lack of use, and the way back. Archiving writes
-- markers; no row is moved or deleted.

-- name: count_taken
-- How much of its batch a partition has used, revived entries included.
SELECT count(*) AS entries
FROM forgetting.archival_sweep AS s
WHERE s.user_id = :user_id AND s.run_date = :run_date;

-- name: find_due
-- The entries that were of no use for longest, at most :room, locked. Due: an episodic kind, a known
-- time, never credited, and neither happened, retrieved, touched by an outcome nor revived since
-- :due_before, while every use was recorded, of a tenant that agrees at this moment. Evidence that an
-- open proposal's memory cites stays hot, and so does what somebody uses just now, and what this
-- partition archived and somebody revived since. The order is the index's, so that a sweep reads about
-- as many entries as it archives. The planner is not told :room: it takes a backlog for small, and
-- would sort all of it for so many rows.
SELECT e.id
FROM evidence AS e
WHERE
    e.user_id = :user_id
    AND EXISTS (
        SELECT 1
        FROM tenants AS t
        WHERE
            t.user_id = :user_id AND t.archival_enabled AND t.retired_at IS NULL
            AND t.tracked_since <= :due_before
    )
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
        OFFSET 0 -- noqa: AM09
    )
    AND e.id NOT IN (
        SELECT me.evidence_id
        FROM memory_evidence AS me
        INNER JOIN forgetting.waiting_memories AS w
            ON me.user_id = w.user_id AND me.memory_id = w.memory_id
        WHERE me.user_id = :user_id
    )
ORDER BY greatest(e.occurred_at, e.last_retrieved_at, e.last_outcome_at) ASC, e.id ASC
LIMIT (SELECT :room)
FOR UPDATE OF e SKIP LOCKED;

-- name: log_archived
-- Keep the figures on which each entry is archived, and the digest of its bytes.
INSERT INTO forgetting.archival_sweep (
    run_date, user_id, evidence_id, kind, occurred_at, last_used_at, success_count,
    reinforcement_count, content_sha256, due_before, archived_at,
    tracked_since
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
    :now AS archived_at,
    t.tracked_since
FROM evidence AS e
INNER JOIN tenants AS t ON e.user_id = t.user_id
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
-- The entries that were archived last, at most :batch, locked: reviving goes back day by day. What
-- somebody uses at this moment waits for the next batch.
SELECT e.id
FROM evidence AS e
WHERE e.user_id = :user_id AND e.archived_at IS NOT NULL
ORDER BY e.archived_run_date DESC, e.id DESC
LIMIT :batch
FOR UPDATE SKIP LOCKED;

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

-- name: count_regrets
-- How much the sweeps of the days since :first_day archived by kind, how much of that was used within
-- 14 days all the same, and how much of the rest is still archived, and so lately that it may be yet.
SELECT
    s.kind,
    count(*) AS archived,
    count(r.evidence_id) AS regretted,
    count(*) FILTER (
        WHERE s.archived_at > :matured_by AND r.evidence_id IS NULL AND e.id IS NOT NULL
    ) AS recent
FROM forgetting.archival_sweep AS s
LEFT JOIN evidence AS e
    ON s.user_id = e.user_id AND s.evidence_id = e.id AND s.archived_at = e.archived_at
LEFT JOIN forgetting.regrets AS r
    ON s.user_id = r.user_id AND s.evidence_id = r.evidence_id AND s.archived_at = r.archived_at
WHERE s.user_id = :user_id AND s.run_date >= :first_day
GROUP BY s.kind
ORDER BY s.kind;
