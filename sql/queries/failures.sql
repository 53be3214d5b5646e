-- What failed of a partition. A row stands until its step succeeds for the partition.

-- name: write_failure
-- A step's failure, in place of an earlier one.
INSERT INTO forgetting.partition_failures (user_id, run_date, step, asset, reason, run_id, failed_at)
VALUES (:user_id, :run_date, :step, :asset, :reason, :run_id, :failed_at)
ON CONFLICT (user_id, run_date, step) DO UPDATE SET
    asset = excluded.asset,
    reason = excluded.reason,
    run_id = excluded.run_id,
    failed_at = excluded.failed_at;

-- name: clear_failure
-- The step starts again.
DELETE FROM forgetting.partition_failures AS f
WHERE f.user_id = :user_id AND f.run_date = :run_date AND f.step = :step;

-- name: find_failure_upstream
-- The step that leaves nothing to build on for an asset of this run, if one failed: one of an asset
-- upstream of it, or the asset itself.
SELECT f.step
FROM forgetting.partition_failures AS f
WHERE
    f.user_id = :user_id AND f.run_date = :run_date AND f.run_id = :run_id
    AND (f.asset = ANY(:upstream) OR f.step = :asset)
ORDER BY f.failed_at, f.step
LIMIT 1;

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
