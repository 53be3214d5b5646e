-- What failed of a partition. A row stands until its step succeeds for the partition, in any run.

-- name: write_failure
-- A step's failure in a run.
INSERT INTO forgetting.partition_failures (user_id, run_date, step, asset, reason, run_id, failed_at)
VALUES (:user_id, :run_date, :step, :asset, :reason, :run_id, :failed_at)
ON CONFLICT (user_id, run_date, step, run_id) DO UPDATE SET
    asset = excluded.asset,
    reason = excluded.reason,
    failed_at = excluded.failed_at;

-- name: look_before
-- Before a step starts: the step of these runs whose failure leaves it nothing to build on, if there is
-- one (of an asset upstream, or for a check the asset itself), and whether the step itself stands failed.
SELECT
    (
        SELECT f.step
        FROM forgetting.partition_failures AS f
        WHERE
            f.user_id = :user_id AND f.run_date = :run_date AND f.run_id = ANY(:run_ids)
            AND (f.asset = ANY(:upstream) OR f.step = :asset) AND f.step <> :step
        ORDER BY f.failed_at, f.step
        LIMIT 1
    ) AS barrier,
    (
        SELECT count(*) > 0
        FROM forgetting.partition_failures AS f
        WHERE f.user_id = :user_id AND f.run_date = :run_date AND f.step = :step
    ) AS had_failed;

-- name: clear_failure
-- The step succeeded in a run, unless that very run wrote down its failure.
DELETE FROM forgetting.partition_failures AS f
WHERE
    f.user_id = :user_id AND f.run_date = :run_date AND f.step = :step
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.partition_failures AS own
        WHERE
            own.user_id = :user_id AND own.run_date = :run_date AND own.step = :step
            AND own.run_id = :run_id
    );

-- name: list_failures
-- What failed of the partition in any of these runs, the first first.
SELECT
    f.step,
    f.asset,
    f.reason,
    f.run_id,
    f.failed_at
FROM forgetting.partition_failures AS f
WHERE f.user_id = :user_id AND f.run_date = :run_date AND f.run_id = ANY(:run_ids)
ORDER BY f.failed_at, f.step;

-- name: list_failed_days
-- The days of the tenant of which a step stands failed.
SELECT DISTINCT f.run_date
FROM forgetting.partition_failures AS f
WHERE f.user_id = :user_id
ORDER BY f.run_date;
