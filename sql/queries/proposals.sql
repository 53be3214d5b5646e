-- Retention proposals as the pass writes them. What a reviewer does stands in review.sql.

-- name: withdraw_overtaken
-- Close open proposals that can no longer be accepted: a side is gone, is of another type now (an
-- event, a commitment), or was changed or reviewed after the judge saw it.
WITH closed AS (
    UPDATE retention_proposals AS p
    SET status = 'dismissed'
    FROM forgetting.judged_verdicts AS v
    WHERE
        p.user_id = :user_id AND p.status = 'proposed'
        AND v.user_id = :user_id AND v.id = p.id
        AND (
            NOT EXISTS (
                SELECT 1
                FROM forgetting.live_memories AS m
                WHERE
                    m.user_id = :user_id AND m.id = p.memory_id
                    AND m.memory_type = v.memory_type
                    AND m.content_hash = v.memory_content_hash AND m.freshness = v.memory_freshness
            )
            OR (
                p.related_memory_id IS NOT NULL
                AND NOT EXISTS (
                    SELECT 1
                    FROM forgetting.live_memories AS m
                    WHERE
                        m.user_id = :user_id AND m.id = p.related_memory_id
                        AND m.memory_type = v.memory_type
                        AND m.content_hash = v.related_content_hash
                        AND m.freshness = v.related_freshness
                )
            )
        )
    RETURNING p.id
)

INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
SELECT
    CAST(:user_id AS uuid) AS user_id,
    c.id AS proposal_id,
    'overtaken' AS reason,
    CAST(:now AS timestamptz) AS closed_at
FROM closed AS c;

-- name: expire_undecided
-- Close open proposals that nobody decided in time. It is no rejection.
WITH closed AS (
    UPDATE retention_proposals AS p
    SET status = 'dismissed'
    WHERE p.user_id = :user_id AND p.status = 'proposed' AND p.created_at < :expired_before
    RETURNING p.id
)

INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
SELECT
    CAST(:user_id AS uuid) AS user_id,
    c.id AS proposal_id,
    'expired' AS reason,
    CAST(:now AS timestamptz) AS closed_at
FROM closed AS c;

-- name: read_unproposed
-- The standing verdicts of the partition that have no proposal yet, surest first.
SELECT
    s.id,
    s.memory_id,
    s.verdict,
    s.probability
FROM forgetting.standing_verdicts AS s
WHERE
    s.user_id = :user_id AND s.run_date = :run_date
    AND NOT EXISTS (
        SELECT 1
        FROM retention_proposals AS p
        WHERE p.user_id = :user_id AND p.id = s.id
    )
ORDER BY s.probability DESC, s.memory_id ASC;

-- name: withdraw_replaced
-- Close this partition's open proposal on a memory whose item was judged anew.
WITH closed AS (
    UPDATE retention_proposals AS p
    SET status = 'dismissed'
    FROM forgetting.judged_verdicts AS v
    WHERE
        p.user_id = :user_id AND p.status = 'proposed' AND p.memory_id = :memory_id
        AND v.user_id = :user_id AND v.id = p.id AND v.run_date = :run_date
    RETURNING p.id
)

INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
SELECT
    CAST(:user_id AS uuid) AS user_id,
    c.id AS proposal_id,
    'replaced' AS reason,
    CAST(:now AS timestamptz) AS closed_at
FROM closed AS c;

-- name: find_obstacle
-- Why a verdict may not become an open proposal, or no row. changed: a side is not what the judge
-- saw. open: another open proposal says something else about a side. rejected: a human said no to
-- this action since the memory last changed and since the newer memory it names was created.
SELECT o.obstacle
FROM (
    SELECT
        1 AS place,
        'changed' AS obstacle
    FROM forgetting.judged_verdicts AS v
    WHERE
        v.user_id = :user_id AND v.id = :id
        AND NOT EXISTS (
            SELECT 1
            FROM forgetting.live_memories AS m
            WHERE
                m.user_id = :user_id AND m.id = v.memory_id
                AND m.memory_type = v.memory_type
                AND m.content_hash = v.memory_content_hash AND m.freshness = v.memory_freshness
                AND (
                    v.related_memory_id IS NULL
                    OR EXISTS (
                        SELECT 1
                        FROM forgetting.live_memories AS r
                        WHERE
                            r.user_id = :user_id AND r.id = v.related_memory_id
                            AND r.memory_type = v.memory_type
                            AND r.content_hash = v.related_content_hash
                            AND r.freshness = v.related_freshness
                    )
                )
        )
    UNION ALL
    SELECT
        2 AS place,
        'open' AS obstacle
    FROM forgetting.judged_verdicts AS v
    INNER JOIN retention_proposals AS p
        ON
            p.user_id = :user_id AND p.status = 'proposed'
            AND (
                v.memory_id IN (p.memory_id, p.related_memory_id)
                OR v.related_memory_id = p.memory_id
            )
    WHERE v.user_id = :user_id AND v.id = :id
    UNION ALL
    SELECT
        3 AS place,
        'rejected' AS obstacle
    FROM forgetting.judged_verdicts AS v
    INNER JOIN retention_proposals AS p
        ON
            p.user_id = :user_id AND p.status = 'rejected'
            AND v.memory_id = p.memory_id
            AND v.verdict = p.action
            AND v.memory_freshness < p.decided_at
    LEFT JOIN memories AS r ON r.user_id = :user_id AND v.related_memory_id = r.id
    WHERE
        v.user_id = :user_id AND v.id = :id
        -- A newer memory that came after the no is a new question.
        AND (r.created_at IS NULL OR r.created_at < p.decided_at)
) AS o
ORDER BY o.place
LIMIT 1;

-- name: insert_proposal
-- The proposal of one verdict, under the verdict's own id, so that it is written once.
INSERT INTO retention_proposals (
    id, user_id, memory_id, action, related_memory_id, probability, probabilities, model, status,
    created_at
)
SELECT
    v.id,
    v.user_id,
    v.memory_id,
    v.verdict AS action,
    v.related_memory_id,
    v.probability,
    v.probabilities,
    v.answer_model AS model,
    :status AS status,
    :now AS created_at
FROM forgetting.judged_verdicts AS v
WHERE v.user_id = :user_id AND v.id = :id;

-- name: count_partition
-- What this partition's verdicts became, by action and status.
SELECT
    p.action,
    p.status,
    count(*) AS proposals
FROM retention_proposals AS p
INNER JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
WHERE p.user_id = :user_id AND v.user_id = :user_id AND v.run_date = :run_date
GROUP BY p.action, p.status
ORDER BY p.action, p.status;

-- name: count_open
-- The tenant's queue: how many proposals wait.
SELECT count(*) AS proposals
FROM retention_proposals AS p
WHERE p.user_id = :user_id AND p.status = 'proposed';

-- name: preview_proposals
-- A few of the partition's proposals, for the UI.
SELECT
    p.id,
    p.memory_id,
    p.action,
    p.status,
    p.probability
FROM retention_proposals AS p
INNER JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
WHERE p.user_id = :user_id AND v.user_id = :user_id AND v.run_date = :run_date
ORDER BY p.status = 'dismissed' ASC, p.probability DESC, p.id ASC
LIMIT 10;
