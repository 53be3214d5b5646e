-- How a tenant's memory is doing: counts and times, no text. With a session, evidence is that session's
-- and memories are those that cite it.

-- name: count_memories
-- Memories by type and state.
SELECT
    m.memory_type,
    CASE
        WHEN m.valid_to IS NOT NULL THEN 'superseded'
        WHEN m.status = 'archived' THEN 'archived'
        ELSE 'live'
    END AS state,
    count(*) AS memories
FROM memories AS m
WHERE
    m.user_id = :user_id
    AND (CAST(:session_id AS text) IS NULL OR m.id IN (
        SELECT me.memory_id
        FROM memory_evidence AS me
        INNER JOIN evidence AS e ON me.user_id = e.user_id AND me.evidence_id = e.id
        WHERE me.user_id = :user_id AND e.session_id = :session_id
    ))
GROUP BY m.memory_type, state
ORDER BY m.memory_type, state;

-- name: count_stale
-- Stale memories by type, as the pass finds them (candidates.sql), and without its cap.
SELECT
    m.memory_type,
    count(*) AS memories
FROM forgetting.live_memories AS m
WHERE
    m.user_id = :user_id
    AND m.memory_type IN ('decision', 'preference', 'blocker', 'fact')
    AND m.freshness < :stale_before
    AND m.created_at <= :now
    AND (CAST(:session_id AS text) IS NULL OR m.id IN (
        SELECT me.memory_id
        FROM memory_evidence AS me
        INNER JOIN evidence AS e ON me.user_id = e.user_id AND me.evidence_id = e.id
        WHERE me.user_id = :user_id AND e.session_id = :session_id
    ))
GROUP BY m.memory_type
ORDER BY m.memory_type;

-- name: count_evidence
-- Evidence by kind and tier, with what is idle of it and the oldest that is hot.
SELECT
    e.kind,
    e.archived_at IS NOT NULL AS is_archived,
    count(*) AS entries,
    count(*) FILTER (
        WHERE e.archived_at IS NULL
        AND e.kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome')
        AND e.success_count = 0 AND e.reinforcement_count = 0
        AND greatest(e.occurred_at, e.last_retrieved_at, e.last_outcome_at) < :stale_before
    ) AS idle,
    min(e.occurred_at) FILTER (WHERE e.archived_at IS NULL) AS oldest_hot_at
FROM evidence AS e
WHERE
    e.user_id = :user_id
    AND (CAST(:session_id AS text) IS NULL OR e.session_id = :session_id)
GROUP BY e.kind, is_archived
ORDER BY e.kind, is_archived;

-- name: count_open
-- Open proposals by action and age. Of a session are those of which a side cites it.
SELECT
    p.action,
    CASE
        WHEN p.created_at > :a_week_ago THEN 'under_7_days'
        WHEN p.created_at >= :a_month_ago THEN '7_to_30_days'
        ELSE 'over_30_days'
    END AS age,
    count(*) AS proposals,
    min(p.created_at) AS oldest_at
FROM retention_proposals AS p
WHERE
    p.user_id = :user_id AND p.status = 'proposed'
    AND (CAST(:session_id AS text) IS NULL OR EXISTS (
        SELECT 1
        FROM memory_evidence AS me
        INNER JOIN evidence AS e ON me.user_id = e.user_id AND me.evidence_id = e.id
        WHERE
            me.user_id = :user_id AND me.memory_id IN (p.memory_id, p.related_memory_id)
            AND e.session_id = :session_id
    ))
GROUP BY p.action, age
ORDER BY p.action, age;

-- name: count_conflicts
-- Pairs whose conflict is proposed or was accepted, while both memories are still live.
SELECT count(*) AS conflicts
FROM (
    SELECT DISTINCT
        p.memory_id,
        p.related_memory_id
    FROM retention_proposals AS p
    INNER JOIN forgetting.live_memories AS m ON p.user_id = m.user_id AND p.memory_id = m.id
    INNER JOIN forgetting.live_memories AS r ON p.user_id = r.user_id AND p.related_memory_id = r.id
    WHERE
        p.user_id = :user_id AND p.action = 'conflict' AND p.status IN ('proposed', 'applied')
        AND (CAST(:session_id AS text) IS NULL OR EXISTS (
            SELECT 1
            FROM memory_evidence AS me
            INNER JOIN evidence AS e ON me.user_id = e.user_id AND me.evidence_id = e.id
            WHERE
                me.user_id = :user_id AND me.memory_id IN (p.memory_id, p.related_memory_id)
                AND e.session_id = :session_id
        ))
) AS pairs;

-- name: count_regrets
-- Archivings that a use soon after proved wrong.
SELECT count(*) AS regretted
FROM forgetting.regrets AS r
WHERE
    r.user_id = :user_id
    AND (CAST(:session_id AS text) IS NULL OR r.evidence_id IN (
        SELECT e.id
        FROM evidence AS e
        WHERE e.user_id = :user_id AND e.session_id = :session_id
    ));

-- name: clear_health
-- Make room for this partition's row.
DELETE FROM forgetting.memory_health
WHERE user_id = :user_id AND run_date = :run_date;

-- name: insert_health
-- One partition's figures.
INSERT INTO forgetting.memory_health (
    run_date, user_id, measured_at, live_memories, stale_memories, archived_memories,
    superseded_memories, hot_evidence, idle_evidence, archived_evidence, oldest_hot_at, open_proposals,
    oldest_open_at, unresolved_conflicts, regretted, counts
)
VALUES (
    :run_date, :user_id, :measured_at, :live_memories, :stale_memories, :archived_memories,
    :superseded_memories, :hot_evidence, :idle_evidence, :archived_evidence, :oldest_hot_at,
    :open_proposals, :oldest_open_at, :unresolved_conflicts, :regretted, CAST(:counts AS jsonb)
);
