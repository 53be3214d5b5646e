-- Each verdict beside what became of it: the table to ask about the judge's confidence.
CREATE OR REPLACE VIEW forgetting.verdicts WITH (security_invoker = TRUE) AS
SELECT
    v.id,
    t.slug AS tenant,
    v.user_id,
    v.run_date,
    v.kind,
    v.memory_id,
    v.memory_type,
    v.verdict,
    v.related_memory_id,
    v.probability,
    v.probabilities,
    v.answer_model,
    v.judged_at,
    p.status AS proposal_status,
    p.decided_at
FROM forgetting.judged_verdicts AS v
INNER JOIN tenants AS t ON v.user_id = t.user_id
LEFT JOIN retention_proposals AS p ON v.user_id = p.user_id AND v.id = p.id;

COMMENT ON VIEW forgetting.verdicts IS
'Each verdict of the judge, with the proposal it became and what a human decided.';
COMMENT ON COLUMN forgetting.verdicts.id IS 'The verdict, and the proposal written from it.';
COMMENT ON COLUMN forgetting.verdicts.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN forgetting.verdicts.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.verdicts.run_date IS 'The UTC day that the partition judges.';
COMMENT ON COLUMN forgetting.verdicts.kind IS 'single or pair.';
COMMENT ON COLUMN forgetting.verdicts.memory_id IS 'The judged memory; in a pair the older one.';
COMMENT ON COLUMN forgetting.verdicts.memory_type IS 'Its type when it was judged.';
COMMENT ON COLUMN forgetting.verdicts.verdict IS 'keep, archive, supersede or conflict.';
COMMENT ON COLUMN forgetting.verdicts.related_memory_id IS
'The newer memory that supersede or conflict names; NULL otherwise.';
COMMENT ON COLUMN forgetting.verdicts.probability IS 'Probability of the chosen answer, 0 to 1.';
COMMENT ON COLUMN forgetting.verdicts.probabilities IS 'Probability of every answer offered.';
COMMENT ON COLUMN forgetting.verdicts.answer_model IS 'The model that the endpoint says answered.';
COMMENT ON COLUMN forgetting.verdicts.judged_at IS 'When the answer was recorded, UTC.';
COMMENT ON COLUMN forgetting.verdicts.proposal_status IS
'proposed, applied, rejected or dismissed; NULL = no proposal was written yet.';
COMMENT ON COLUMN forgetting.verdicts.decided_at IS 'When the proposal was decided, UTC; NULL = open.';

GRANT SELECT ON forgetting.verdicts TO forgetting_runtime;
