-- Retention proposals as the pass writes them. What a reviewer does stands in review.sql.

-- name: withdraw_overtaken
-- Close open proposals that can no longer be accepted: a side is gone, became episodic, or was
-- changed or reviewed after the judge saw it.
UPDATE retention_proposals AS p
SET status = 'dismissed'
FROM forgetting.judged_verdicts AS v
WHERE
    p.user_id = :user_id AND p.status = 'proposed'
    AND v.user_id = :user_id AND v.id = p.id
    AND (
        NOT EXISTS (
            SELECT 1
            FROM memories AS m
            WHERE
                m.user_id = :user_id AND m.id = p.memory_id
                AND m.status = 'active' AND m.valid_to IS NULL
                AND m.memory_type NOT IN ('event', 'note')
                AND m.content_hash = v.memory_content_hash
                AND greatest(m.updated_at, m.last_reviewed_at) = v.memory_freshness
        )
        OR (
            p.related_memory_id IS NOT NULL
            AND NOT EXISTS (
                SELECT 1
                FROM memories AS m
                WHERE
                    m.user_id = :user_id AND m.id = p.related_memory_id
                    AND m.status = 'active' AND m.valid_to IS NULL
                    AND m.memory_type NOT IN ('event', 'note')
                    AND m.content_hash = v.related_content_hash
                    AND greatest(m.updated_at, m.last_reviewed_at) = v.related_freshness
            )
        )
    );

-- name: read_unproposed
-- The newest verdict on each item of the partition that has no proposal yet, surest first.
WITH items AS (
    SELECT
        cp.older_id AS memory_id,
        cp.newer_id
    FROM forgetting.conflict_pairs AS cp
    WHERE cp.user_id = :user_id AND cp.run_date = :run_date
    UNION ALL
    SELECT
        sc.memory_id,
        CAST(NULL AS uuid) AS newer_id
    FROM forgetting.stale_candidates AS sc
    WHERE sc.user_id = :user_id AND sc.run_date = :run_date AND NOT sc.in_pair
),

newest AS (
    SELECT DISTINCT ON (v.memory_id)
        v.id,
        v.memory_id,
        v.verdict,
        v.related_memory_id,
        v.probability,
        v.probabilities,
        v.model
    FROM forgetting.judged_verdicts AS v
    INNER JOIN items AS i
        ON v.memory_id = i.memory_id AND v.newer_id IS NOT DISTINCT FROM i.newer_id
    WHERE v.user_id = :user_id AND v.run_date = :run_date AND v.model = :model
    ORDER BY v.memory_id ASC, v.judged_at DESC, v.id DESC
)

SELECT
    n.id,
    n.memory_id,
    n.verdict,
    n.related_memory_id,
    n.probability
FROM newest AS n
WHERE
    NOT EXISTS (
        SELECT 1
        FROM retention_proposals AS p
        WHERE p.user_id = :user_id AND p.id = n.id
    )
ORDER BY n.probability DESC, n.memory_id ASC;

-- name: withdraw_replaced
-- Close this partition's open proposal on a memory whose item was judged anew.
UPDATE retention_proposals AS p
SET status = 'dismissed'
FROM forgetting.judged_verdicts AS v
WHERE
    p.user_id = :user_id AND p.status = 'proposed' AND p.memory_id = :memory_id
    AND v.user_id = :user_id AND v.id = p.id AND v.run_date = :run_date;

-- name: find_obstacle
-- Why a verdict may not become an open proposal, or no row. changed: a side is not what the judge
-- saw. open: another open proposal says something else about a side. rejected: a human said no to
-- this very action since the memory last changed.
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
            FROM memories AS m
            WHERE
                m.user_id = :user_id AND m.id = v.memory_id
                AND m.status = 'active' AND m.valid_to IS NULL
                AND m.content_hash = v.memory_content_hash
                AND greatest(m.updated_at, m.last_reviewed_at) = v.memory_freshness
                AND (
                    v.related_memory_id IS NULL
                    OR EXISTS (
                        SELECT 1
                        FROM memories AS r
                        WHERE
                            r.user_id = :user_id AND r.id = v.related_memory_id
                            AND r.status = 'active' AND r.valid_to IS NULL
                            AND r.content_hash = v.related_content_hash
                            AND greatest(r.updated_at, r.last_reviewed_at) = v.related_freshness
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
            AND p.related_memory_id IS NOT DISTINCT FROM v.related_memory_id
            AND v.memory_freshness < p.decided_at
    WHERE v.user_id = :user_id AND v.id = :id
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
-- The tenant's queue: how many proposals wait and since when.
SELECT
    count(*) AS proposals,
    min(p.created_at) AS oldest
FROM retention_proposals AS p
WHERE p.user_id = :user_id AND p.status = 'proposed';
