-- Which memories wait for a human: both sides of every open proposal.
CREATE OR REPLACE VIEW forgetting.waiting_memories WITH (security_invoker = TRUE) AS
SELECT
    p.user_id,
    side.memory_id,
    p.id AS proposal_id,
    v.run_date
FROM retention_proposals AS p
LEFT JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
CROSS JOIN LATERAL (VALUES (p.memory_id), (p.related_memory_id)) AS side (memory_id)
WHERE p.status = 'proposed' AND side.memory_id IS NOT NULL;

COMMENT ON VIEW forgetting.waiting_memories IS
'Both sides of every open proposal: such a memory is asked about in no other partition.';
COMMENT ON COLUMN forgetting.waiting_memories.user_id IS 'The tenant.';
COMMENT ON COLUMN forgetting.waiting_memories.memory_id IS 'A side of the proposal.';
COMMENT ON COLUMN forgetting.waiting_memories.proposal_id IS 'The open proposal.';
COMMENT ON COLUMN forgetting.waiting_memories.run_date IS
'The partition that proposed it; NULL = no verdict of this pass.';

GRANT SELECT ON forgetting.waiting_memories TO forgetting_runtime;
