-- What an analyst reads of verdicts: how sure the judge was, and what became of it.
CREATE OR REPLACE VIEW analytics.verdicts WITH (security_invoker = TRUE) AS
SELECT
    t.slug AS tenant,
    v.user_id,
    v.id,
    v.run_date,
    v.kind,
    v.memory_id,
    v.memory_type,
    v.verdict,
    v.related_memory_id,
    v.probability,
    (
        SELECT CAST(e.value AS double precision) AS probability
        FROM jsonb_each_text(v.probabilities) AS e
        ORDER BY CAST(e.value AS double precision) DESC
        LIMIT 1 OFFSET 1
    ) AS runner_up_probability,
    v.answer_model,
    v.model,
    v.judged_at,
    v.reused_from IS NOT NULL AS reused,
    p.status AS proposal_status,
    p.decided_at
FROM forgetting.judged_verdicts AS v
INNER JOIN tenants AS t ON v.user_id = t.user_id
LEFT JOIN retention_proposals AS p ON v.user_id = p.user_id AND v.id = p.id;

COMMENT ON VIEW analytics.verdicts IS
'Each verdict of the judge, one row a verdict, with what became of it. No text.';
COMMENT ON COLUMN analytics.verdicts.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN analytics.verdicts.user_id IS 'The tenant (users.id).';
COMMENT ON COLUMN analytics.verdicts.id IS 'The verdict, and the proposal written from it.';
COMMENT ON COLUMN analytics.verdicts.run_date IS 'The UTC day that the partition judges.';
COMMENT ON COLUMN analytics.verdicts.kind IS 'single or pair.';
COMMENT ON COLUMN analytics.verdicts.memory_id IS 'The judged memory; in a pair the older one.';
COMMENT ON COLUMN analytics.verdicts.memory_type IS 'Its type when it was judged.';
COMMENT ON COLUMN analytics.verdicts.verdict IS 'keep, archive, supersede or conflict.';
COMMENT ON COLUMN analytics.verdicts.related_memory_id IS
'The newer memory that supersede or conflict names; NULL otherwise.';
COMMENT ON COLUMN analytics.verdicts.probability IS 'Probability of the chosen answer, 0 to 1.';
COMMENT ON COLUMN analytics.verdicts.runner_up_probability IS
'Probability of the second likeliest answer, 0 to 1; it may be the same verdict with another newer memory. '
'NULL = one answer was offered.';
COMMENT ON COLUMN analytics.verdicts.answer_model IS 'The model that the endpoint says answered.';
COMMENT ON COLUMN analytics.verdicts.model IS 'The pinned model that was asked.';
COMMENT ON COLUMN analytics.verdicts.judged_at IS
'When the answer was recorded, UTC; of a reused verdict, when the first one was.';
COMMENT ON COLUMN analytics.verdicts.reused IS
'TRUE = taken over from another partition, without a call and without cost.';
COMMENT ON COLUMN analytics.verdicts.proposal_status IS
'proposed, applied, rejected or dismissed; NULL = no proposal was written yet.';
COMMENT ON COLUMN analytics.verdicts.decided_at IS
'When a person decided the proposal, UTC; NULL = nobody did.';

GRANT SELECT ON analytics.verdicts TO forgetting_runtime, forgetting_analyst;
