-- What a partition puts to the judge: its pairs, and its singles that no pair covers. The pairs are
-- looked at as they are now: they may have been selected again since the singles were.
CREATE OR REPLACE VIEW forgetting.items WITH (security_invoker = TRUE) AS
SELECT
    cp.user_id,
    cp.run_date,
    cp.older_id AS memory_id,
    cp.newer_id
FROM forgetting.conflict_pairs AS cp
UNION ALL
SELECT
    sc.user_id,
    sc.run_date,
    sc.memory_id,
    CAST(NULL AS uuid) AS newer_id
FROM forgetting.stale_candidates AS sc
WHERE NOT EXISTS (
    SELECT 1
    FROM forgetting.conflict_pairs AS cp
    WHERE
        cp.user_id = sc.user_id AND cp.run_date = sc.run_date
        AND sc.memory_id IN (cp.older_id, cp.newer_id)
);

COMMENT ON VIEW forgetting.items IS
'What a partition puts to the judge: its conflict pairs, and its stale singles that no pair covers.';
COMMENT ON COLUMN forgetting.items.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.items.run_date IS 'The UTC day that the partition judges.';
COMMENT ON COLUMN forgetting.items.memory_id IS 'The single, or the older of a pair.';
COMMENT ON COLUMN forgetting.items.newer_id IS 'The newer of a pair; NULL = a single.';

GRANT SELECT ON forgetting.items TO forgetting_runtime, forgetting_analyst;
