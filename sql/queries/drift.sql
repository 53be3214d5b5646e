-- What reviewers made of a tenant's proposals: the deployment's own labels.

-- name: count_decisions
-- Accepted, rejected and undone proposals by action and memory type: the last decision of each by :now
-- is the one that counts.
SELECT
    v.verdict AS action,
    v.memory_type,
    count(*) FILTER (WHERE d.decision = 'accept') AS accepted,
    count(*) FILTER (WHERE d.decision = 'reject') AS rejected,
    count(*) FILTER (WHERE d.decision = 'undo') AS undone
FROM (
    SELECT DISTINCT ON (e.proposal_id)
        e.user_id,
        e.proposal_id,
        e.decision
    FROM forgetting.decisions AS e
    WHERE e.user_id = :user_id AND e.decided_at <= :now
    ORDER BY e.proposal_id ASC, e.id DESC
) AS d
INNER JOIN forgetting.judged_verdicts AS v ON d.user_id = v.user_id AND d.proposal_id = v.id
WHERE v.user_id = :user_id
GROUP BY v.verdict, v.memory_type
ORDER BY v.verdict ASC, v.memory_type ASC;
