-- Dagster's event log, in Dagster's own database: what an operator may take from it.

-- name: has_event_log
-- Whether Dagster ever stored anything here; its tables come with their first use.
SELECT to_regclass('event_logs') IS NOT NULL AND to_regclass('runs') IS NOT NULL AS present;

-- name: count_trimmable
-- How many events, of how many runs, and their bytes: of runs that ended before, and of given types.
-- A line that a run logged has no type. What is not listed stays, such as every event of an asset.
SELECT
    count(*) AS events,
    count(DISTINCT l.run_id) AS runs,
    coalesce(sum(pg_column_size(l.event)), 0) AS bytes
FROM event_logs AS l
INNER JOIN runs AS r ON l.run_id = r.run_id
WHERE
    r.status IN ('SUCCESS', 'FAILURE', 'CANCELED')
    AND r.end_time < :ended_before
    AND (l.dagster_event_type IS NULL OR l.dagster_event_type = ANY(:event_types));

-- name: trim_batch
-- Take the next such events away; how many, and the last one's number, to go on from.
WITH due AS (
    SELECT l.id
    FROM event_logs AS l
    INNER JOIN runs AS r ON l.run_id = r.run_id
    WHERE
        l.id > :after
        AND r.status IN ('SUCCESS', 'FAILURE', 'CANCELED')
        AND r.end_time < :ended_before
        AND (l.dagster_event_type IS NULL OR l.dagster_event_type = ANY(:event_types))
    ORDER BY l.id
    LIMIT :batch
),

gone AS (
    DELETE FROM event_logs AS e
    USING due
    WHERE e.id = due.id
    RETURNING e.id
)

SELECT
    count(*) AS events,
    coalesce(max(g.id), :after) AS last_id
FROM gone AS g;
