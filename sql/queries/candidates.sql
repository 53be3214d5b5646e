-- Stale singles: live memories that nobody changed or reviewed for the stale window.

-- name: select_stale_singles
-- The stalest unsettled memories up to the cap, each with the exact total beyond it. A verdict that was
-- written down as a proposal, be it a dismissed one, settles a memory until its freshness, or that of
-- the newer memory it names, moves past it, or until there is a newer neighbour at or above the floor
-- that was created after the verdict's day, so that the judge did not see it. This partition's own
-- verdicts and proposals settle nothing.
WITH stale AS (
    SELECT
        m.*,
        coalesce(
            CAST(CAST(:floors AS jsonb) ->> m.embedding_model AS double precision), :default_floor
        ) AS floor
    FROM forgetting.live_memories AS m
    WHERE
        m.user_id = :user_id
        AND m.memory_type IN ('decision', 'preference', 'blocker', 'fact')
        AND m.freshness < :stale_before
        AND m.created_at <= :as_of
        AND NOT EXISTS (
            SELECT 1
            FROM forgetting.waiting_memories AS w
            WHERE
                w.user_id = :user_id AND w.memory_id = m.id
                AND w.run_date IS DISTINCT FROM :run_date
        )
        -- Its verdict names a memory that is itself proposed for something: it waits for that.
        AND NOT EXISTS (
            SELECT 1
            FROM forgetting.judged_verdicts AS v
            INNER JOIN retention_proposals AS p
                ON v.user_id = p.user_id AND v.related_memory_id = p.memory_id
            WHERE
                v.user_id = :user_id AND v.run_date <> :run_date
                AND v.memory_id = m.id AND v.judged_at > m.freshness
                AND p.status = 'proposed'
                AND NOT EXISTS (
                    SELECT 1
                    FROM forgetting.judged_verdicts AS own
                    WHERE own.user_id = :user_id AND own.id = p.id AND own.run_date = :run_date
                )
        )
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
                AND v.memory_id = s.id
                AND v.judged_at > greatest(s.freshness, (
                    SELECT greatest(r.updated_at, r.last_reviewed_at)
                    FROM memories AS r
                    WHERE r.user_id = :user_id AND r.id = v.related_memory_id
                ))
                AND EXISTS (
                    SELECT 1
                    FROM retention_proposals AS p
                    WHERE p.user_id = :user_id AND p.id = v.id
                )
                AND NOT EXISTS (
                    SELECT 1
                    FROM forgetting.live_memories AS n
                    WHERE
                        n.user_id = :user_id
                        AND n.memory_type = s.memory_type AND n.scope = s.scope
                        AND n.created_at > CAST(v.run_date + 1 AS timestamp) AT TIME ZONE 'UTC'
                        AND n.created_at <= :as_of
                        AND (n.created_at, n.id) > (s.created_at, s.id)
                        AND n.embedding_model IS NOT DISTINCT FROM s.embedding_model
                        AND 1 - (n.embedding <=> s.embedding) >= s.floor
                )
        )
        -- A blocker can only be kept or contradicted, so without a newer one there is no question.
        AND (
            s.memory_type <> 'blocker'
            OR EXISTS (
                SELECT 1
                FROM forgetting.live_memories AS n
                WHERE
                    n.user_id = :user_id
                    AND n.memory_type = s.memory_type AND n.scope = s.scope
                    AND n.created_at <= :as_of
                    AND (n.created_at, n.id) > (s.created_at, s.id)
                    AND n.embedding_model IS NOT DISTINCT FROM s.embedding_model
                    AND n.embedding IS NOT NULL AND s.embedding IS NOT NULL
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
            FROM forgetting.live_memories AS n
            WHERE
                n.user_id = :user_id
                AND n.memory_type = t.memory_type AND n.scope = t.scope
                AND n.created_at <= :as_of
                AND (n.created_at, n.id) > (t.created_at, t.id)
                AND n.embedding_model IS NOT DISTINCT FROM t.embedding_model
                AND n.embedding IS NOT NULL AND t.embedding IS NOT NULL
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
