-- What is watched of a tenant: counts and times, no text. Alerts ask every few minutes.

-- name: read_state
-- How a tenant stands at this moment, on one row. What is of memories and evidence is of its newest
-- health row, and NULL before the first one.
SELECT
    (
        SELECT u.created_at
        FROM users AS u
        WHERE u.id = :user_id
    ) AS added_at,
    waiting.open_proposals,
    waiting.oldest_open_at,
    h.run_date AS health_day,
    h.live_memories,
    h.stale_memories,
    h.archived_memories,
    h.superseded_memories,
    h.hot_evidence,
    h.idle_evidence,
    h.archived_evidence,
    h.unresolved_conflicts,
    h.regretted,
    (
        SELECT v.run_date
        FROM forgetting.judged_verdicts AS v
        WHERE v.user_id = :user_id
        ORDER BY v.run_date DESC
        LIMIT 1
    ) AS verdict_day,
    failed.steps AS failed_steps,
    failed.newest_day AS failed_day
FROM (
    SELECT
        count(*) AS open_proposals,
        min(p.created_at) AS oldest_open_at
    FROM retention_proposals AS p
    WHERE p.user_id = :user_id AND p.status = 'proposed'
) AS waiting
CROSS JOIN (
    SELECT
        count(*) AS steps,
        max(s.run_date) AS newest_day
    FROM (
        SELECT DISTINCT
            f.run_date,
            f.step
        FROM forgetting.partition_failures AS f
        WHERE f.user_id = :user_id
    ) AS s
) AS failed
LEFT JOIN LATERAL (
    SELECT m.*
    FROM forgetting.memory_health AS m
    WHERE m.user_id = :user_id
    ORDER BY m.run_date DESC
    LIMIT 1
) AS h ON TRUE;

-- name: count_failures
-- Results of the checks that did not pass, by check: since :since, and those that no newer result of the
-- same partition, asset and check has replaced, however old they are.
SELECT
    f.check_name,
    count(*) FILTER (WHERE f.checked_at > :since) AS lately,
    count(*) FILTER (
        WHERE NOT EXISTS (
            SELECT 1
            FROM forgetting.invariant_results AS r
            WHERE
                r.user_id = :user_id AND r.run_date = f.run_date AND r.asset = f.asset
                AND r.check_name = f.check_name AND (r.checked_at, r.id) > (f.checked_at, f.id)
        )
    ) AS still_open
FROM forgetting.invariant_results AS f
WHERE f.user_id = :user_id AND NOT f.passed AND f.check_name = ANY(:checks)
GROUP BY f.check_name
ORDER BY f.check_name;

-- name: count_calls
-- Calls of the judge since a time, and items that were put to it and got no verdict.
SELECT
    spent.calls,
    spent.unpriced_calls,
    (
        SELECT count(*)
        FROM (
            SELECT DISTINCT
                i.memory_id,
                i.newer_id
            FROM forgetting.unjudged_items AS i
            WHERE i.user_id = :user_id AND i.recorded_at >= :since
        ) AS items
    ) AS unjudgeable_items
FROM (
    SELECT
        count(*) AS calls,
        count(*) FILTER (WHERE c.cost_usd IS NULL) AS unpriced_calls
    FROM llm_usage AS c
    WHERE c.user_id = :user_id AND c.created_at >= :since
) AS spent;
