-- Stale singles: live memories that nobody changed or reviewed for the stale window.

-- name: select_stale_singles
-- The stalest unsettled memories up to the cap, each with the exact total beyond it. A verdict
-- settles a memory until its freshness, or that of the newer memory it names, moves past it, or until
-- a newer neighbour at or above the floor is created after it. This partition's own verdicts and
-- proposals settle nothing.
WITH stale AS (
    SELECT
        m.id,
        m.memory_type,
        m.scope,
        m.created_at,
        m.embedding,
        em.embedding_model,
        greatest(m.updated_at, m.last_reviewed_at) AS freshness,
        coalesce(
            CAST(CAST(:floors AS jsonb) ->> em.embedding_model AS double precision), :default_floor
        ) AS floor
    FROM memories AS m
    LEFT JOIN forgetting.embedding_models AS em ON m.user_id = em.user_id AND m.id = em.memory_id
    WHERE
        m.user_id = :user_id
        AND m.status = 'active' AND m.valid_to IS NULL
        AND m.memory_type IN ('decision', 'preference', 'blocker', 'fact')
        AND greatest(m.updated_at, m.last_reviewed_at) < :stale_before
        AND m.created_at <= :as_of
),

unsettled AS (
    SELECT s.*
    FROM stale AS s
    WHERE
        NOT EXISTS (
            SELECT 1
            FROM forgetting.judged_verdicts AS v
            WHERE
                v.user_id = :user_id AND v.run_date <> :run_date
                AND v.memory_id = s.id AND v.judged_at > s.freshness
                AND NOT EXISTS (
                    SELECT 1
                    FROM memories AS r
                    WHERE
                        r.user_id = :user_id AND r.id = v.related_memory_id
                        AND greatest(r.updated_at, r.last_reviewed_at) >= v.judged_at
                )
                AND NOT EXISTS (
                    SELECT 1
                    FROM memories AS n
                    LEFT JOIN forgetting.embedding_models AS nm
                        ON n.user_id = nm.user_id AND n.id = nm.memory_id
                    WHERE
                        n.user_id = :user_id
                        AND n.status = 'active' AND n.valid_to IS NULL
                        AND n.memory_type = s.memory_type AND n.scope = s.scope
                        AND n.created_at > v.judged_at AND n.created_at <= :as_of
                        AND (n.created_at, n.id) > (s.created_at, s.id)
                        AND nm.embedding_model IS NOT DISTINCT FROM s.embedding_model
                        AND vector_norm(n.embedding) > 0 AND vector_norm(s.embedding) > 0
                        AND 1 - (n.embedding <=> s.embedding) >= s.floor
                )
        )
        AND NOT EXISTS (
            SELECT 1
            FROM retention_proposals AS p
            WHERE
                p.user_id = :user_id AND p.status = 'proposed'
                AND s.id IN (p.memory_id, p.related_memory_id)
                AND NOT EXISTS (
                    SELECT 1
                    FROM forgetting.judged_verdicts AS own
                    WHERE own.user_id = :user_id AND own.id = p.id AND own.run_date = :run_date
                )
        )
        -- A blocker can only be kept or contradicted, so without a newer one there is no question.
        AND (
            s.memory_type <> 'blocker'
            OR EXISTS (
                SELECT 1
                FROM memories AS n
                LEFT JOIN forgetting.embedding_models AS nm
                    ON n.user_id = nm.user_id AND n.id = nm.memory_id
                WHERE
                    n.user_id = :user_id
                    AND n.status = 'active' AND n.valid_to IS NULL
                    AND n.memory_type = s.memory_type AND n.scope = s.scope
                    AND n.created_at <= :as_of
                    AND (n.created_at, n.id) > (s.created_at, s.id)
                    AND nm.embedding_model IS NOT DISTINCT FROM s.embedding_model
                    AND vector_norm(n.embedding) > 0 AND vector_norm(s.embedding) > 0
            )
        )
),

taken AS (
    SELECT
        u.*,
        count(*) OVER () AS total
    FROM unsettled AS u
    ORDER BY u.freshness ASC, u.id ASC
    LIMIT :cap
)

SELECT
    t.id AS memory_id,
    t.memory_type,
    t.freshness,
    t.total,
    coalesce(nearest.ids, '{}') AS newer_ids,
    coalesce(nearest.similarities, '{}') AS newer_similarities,
    EXISTS(
        SELECT 1
        FROM forgetting.conflict_pairs AS cp
        WHERE
            cp.user_id = :user_id AND cp.run_date = :run_date
            AND t.id IN (cp.older_id, cp.newer_id)
    ) AS in_pair
FROM taken AS t
CROSS JOIN
    LATERAL (
        SELECT
            array_agg(k.id ORDER BY k.similarity DESC, k.id ASC) AS ids,
            array_agg(k.similarity ORDER BY k.similarity DESC, k.id ASC) AS similarities
        FROM (
            SELECT
                n.id,
                1 - (n.embedding <=> t.embedding) AS similarity
            FROM memories AS n
            LEFT JOIN forgetting.embedding_models AS nm
                ON n.user_id = nm.user_id AND n.id = nm.memory_id
            WHERE
                n.user_id = :user_id
                AND n.status = 'active' AND n.valid_to IS NULL
                AND n.memory_type = t.memory_type AND n.scope = t.scope
                AND n.created_at <= :as_of
                AND (n.created_at, n.id) > (t.created_at, t.id)
                AND nm.embedding_model IS NOT DISTINCT FROM t.embedding_model
                AND vector_norm(n.embedding) > 0 AND vector_norm(t.embedding) > 0
            ORDER BY similarity DESC, n.id ASC
            LIMIT 3
        ) AS k
    ) AS nearest
ORDER BY t.freshness ASC, t.id ASC;

-- name: clear_candidates
-- Make room for this partition's rows.
DELETE FROM forgetting.stale_candidates
WHERE user_id = :user_id AND run_date = :run_date;

-- name: insert_candidate
-- One stale single.
INSERT INTO forgetting.stale_candidates (
    run_date, user_id, rank, memory_id, memory_type, freshness, in_pair, newer_ids,
    newer_similarities
)
VALUES (
    :run_date, :user_id, :rank, :memory_id, :memory_type, :freshness, :in_pair,
    :newer_ids, :newer_similarities
);
