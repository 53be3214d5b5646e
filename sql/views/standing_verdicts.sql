-- The verdict that stands for each item of a partition: the newest one on that single or pair. It is
-- looked up item by item: a day is unknown to the statistics while it runs, and joined the other way
-- round the items would be gathered anew for each verdict.
CREATE OR REPLACE VIEW forgetting.standing_verdicts WITH (security_invoker = TRUE) AS
SELECT
    i.user_id,
    i.run_date,
    i.memory_id,
    i.newer_id,
    newest.id,
    newest.verdict,
    newest.related_memory_id,
    newest.probability
FROM forgetting.items AS i
CROSS JOIN
    LATERAL (
        SELECT
            v.id,
            v.verdict,
            v.related_memory_id,
            v.probability
        FROM forgetting.judged_verdicts AS v
        WHERE
            v.user_id = i.user_id AND v.run_date = i.run_date AND v.memory_id = i.memory_id
            AND v.newer_id IS NOT DISTINCT FROM i.newer_id
        ORDER BY v.judged_at DESC, v.id DESC
        LIMIT 1
    ) AS newest;

COMMENT ON VIEW forgetting.standing_verdicts IS
'The newest verdict on each item that a partition selected; what proposals are written from.';
COMMENT ON COLUMN forgetting.standing_verdicts.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.standing_verdicts.run_date IS 'The UTC day that the partition judges.';
COMMENT ON COLUMN forgetting.standing_verdicts.memory_id IS 'The single, or the older of a pair.';
COMMENT ON COLUMN forgetting.standing_verdicts.newer_id IS 'The newer of a pair; NULL = a single.';
COMMENT ON COLUMN forgetting.standing_verdicts.id IS 'The verdict.';
COMMENT ON COLUMN forgetting.standing_verdicts.verdict IS 'keep, archive, supersede or conflict.';
COMMENT ON COLUMN forgetting.standing_verdicts.related_memory_id IS
'The newer memory that supersede or conflict names; NULL otherwise.';
COMMENT ON COLUMN forgetting.standing_verdicts.probability IS
'Probability of the chosen answer, 0 to 1.';

GRANT SELECT ON forgetting.standing_verdicts TO forgetting_runtime;
