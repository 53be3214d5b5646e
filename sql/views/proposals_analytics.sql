-- What an analyst reads of proposals: how long they waited, and how they ended. Decisions and closings
-- are gathered once and joined, not looked up for each proposal.
CREATE OR REPLACE VIEW analytics.proposals WITH (security_invoker = TRUE) AS
SELECT
    t.slug AS tenant,
    p.user_id,
    p.id,
    v.run_date,
    p.memory_id,
    v.memory_type,
    p.action,
    p.related_memory_id,
    p.probability,
    p.model,
    p.status,
    p.created_at,
    p.decided_at,
    CASE
        WHEN p.status <> 'proposed'
            THEN round(
                extract(EPOCH FROM coalesce(p.decided_at, c.closed_at) - p.created_at) / 86400, 3
            )
    END AS days_open,
    d.last_decision,
    CASE WHEN p.status = 'dismissed' THEN c.reason END AS closed_because,
    coalesce(d.ever_undone, FALSE) AS ever_undone
FROM retention_proposals AS p
INNER JOIN tenants AS t ON p.user_id = t.user_id
LEFT JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
LEFT JOIN (
    SELECT
        e.user_id,
        e.proposal_id,
        (array_agg(e.decision ORDER BY e.id DESC))[1] AS last_decision,
        bool_or(e.decision = 'undo') AS ever_undone
    FROM forgetting.decisions AS e
    GROUP BY e.user_id, e.proposal_id
) AS d ON p.user_id = d.user_id AND p.id = d.proposal_id
LEFT JOIN (
    SELECT DISTINCT ON (e.user_id, e.proposal_id)
        e.user_id,
        e.proposal_id,
        e.reason,
        e.closed_at
    FROM forgetting.closures AS e
    ORDER BY e.user_id ASC, e.proposal_id ASC, e.id DESC
) AS c ON p.user_id = c.user_id AND p.id = c.proposal_id;

COMMENT ON VIEW analytics.proposals IS
'Each retention proposal, one row a proposal, with how long it waited and how it ended. No text.';
COMMENT ON COLUMN analytics.proposals.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN analytics.proposals.user_id IS 'The tenant (users.id).';
COMMENT ON COLUMN analytics.proposals.id IS 'The proposal, and the verdict it came from.';
COMMENT ON COLUMN analytics.proposals.run_date IS
'The UTC day that the partition judges; NULL = no verdict of this pass.';
COMMENT ON COLUMN analytics.proposals.memory_id IS 'The memory; of a pair the older one.';
COMMENT ON COLUMN analytics.proposals.memory_type IS
'Its type when it was judged; NULL = no verdict of this pass.';
COMMENT ON COLUMN analytics.proposals.action IS 'keep, archive, supersede or conflict.';
COMMENT ON COLUMN analytics.proposals.related_memory_id IS
'The newer memory that supersede or conflict names; NULL otherwise.';
COMMENT ON COLUMN analytics.proposals.probability IS 'Probability of the chosen answer, 0 to 1.';
COMMENT ON COLUMN analytics.proposals.model IS 'The model that answered.';
COMMENT ON COLUMN analytics.proposals.status IS
'proposed = open, applied = accepted, rejected = declined, dismissed = never opened, or closed without a '
'decision.';
COMMENT ON COLUMN analytics.proposals.created_at IS 'When it was proposed, UTC.';
COMMENT ON COLUMN analytics.proposals.decided_at IS 'When a person decided it, UTC; NULL = nobody did.';
COMMENT ON COLUMN analytics.proposals.days_open IS
'Days from its proposing until it was decided or closed. NULL = open, never opened, or closed by a release '
'that did not record when.';
COMMENT ON COLUMN analytics.proposals.last_decision IS
'The last thing that a person did with it: accept, reject or undo; NULL = nothing.';
COMMENT ON COLUMN analytics.proposals.closed_because IS
'Why it was closed without a decision: expired, overtaken or replaced; NULL = it was not, or no reason was '
'recorded.';
COMMENT ON COLUMN analytics.proposals.ever_undone IS 'TRUE = a decision on it was taken back at least once.';

GRANT SELECT ON analytics.proposals TO forgetting_runtime, forgetting_analyst;
