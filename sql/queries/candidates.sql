-- Stale singles: live memories that nobody changed or reviewed for the stale window.

-- name: select_stale_singles
-- The stalest unsettled memories up to the cap, each with the exact total beyond it. A verdict that was
-- written down as a proposal, be it a dismissed one, settles a memory until its freshness, or that of
-- the newer memory it names, moves past it, or until there is a newer memory that is similar to it
-- and was created after the verdict's day, so that the judge did not see it. This partition's own
-- verdicts and proposals settle nothing.
WITH unjudgeable AS MATERIALIZED (
    -- What no call can hold, or what was answered against the contract again and again, in other
    -- partitions, until it changes or that is long past.
    SELECT
        u.memory_id,
        max(u.recorded_at) AS recorded_at
    FROM forgetting.unjudged_items AS u
    WHERE
        u.user_id = :user_id AND u.run_date <> :run_date
        AND u.recorded_at > :stale_before
        AND u.newer_id IS NULL
    GROUP BY u.memory_id, u.input_digest, u.model
    HAVING bool_or(u.reason = 'too_large') OR count(*) >= :rejections
),

newest_blockers AS MATERIALIZED (
    SELECT DISTINCT ON (m.scope, m.embedding_model)
        m.scope,
        m.embedding_model,
        m.created_at,
        m.id
    FROM forgetting.live_memories AS m
    -- As mined, to know without reading it that its vector is no zero vector.
    INNER JOIN forgetting.mined_memories AS k
        ON k.user_id = :user_id AND m.id = k.memory_id AND k.code_step > 0
    WHERE m.user_id = :user_id AND m.memory_type = 'blocker' AND m.created_at <= :as_of
    ORDER BY m.scope ASC, m.embedding_model ASC, m.created_at DESC, m.id DESC
),

stale AS (
    SELECT
        m.*,
        f.floor
    FROM forgetting.live_memories AS m
    LEFT JOIN
        unnest(CAST(:models AS text[]), CAST(:floors AS double precision[])) AS f (embedding_model, floor)
        ON m.embedding_model = f.embedding_model
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
                    FROM forgetting.similar_pairs AS near
                    INNER JOIN forgetting.live_memories AS n
                        ON n.user_id = :user_id AND near.newer_id = n.id
                    WHERE
                        near.user_id = :user_id AND near.older_id = s.id
                        AND near.similarity >= s.floor
                        AND n.memory_type = s.memory_type AND n.scope = s.scope
                        AND n.created_at > CAST(v.run_date + 1 AS timestamp) AT TIME ZONE 'UTC'
                        AND n.created_at <= :as_of
                )
        )
        AND NOT EXISTS (
            SELECT 1
            FROM unjudgeable AS u
            WHERE u.memory_id = s.id AND u.recorded_at > s.freshness
        )
        -- A blocker can only be kept or contradicted, so without a newer one there is no question.
        AND (
            s.memory_type <> 'blocker'
            OR EXISTS (
                SELECT 1
                FROM newest_blockers AS n
                INNER JOIN forgetting.mined_memories AS k
                    ON k.user_id = :user_id AND k.memory_id = s.id AND k.code_step > 0
                WHERE
                    n.scope = s.scope AND n.embedding_model = s.embedding_model
                    AND (n.created_at, n.id) > (s.created_at, s.id)
            )
        )
),

-- Here and below a vector is taken out of its storage once, by a cast that changes nothing, and not
-- again for each comparison.
taken AS MATERIALIZED (
    SELECT
        u.id,
        u.memory_type,
        u.scope,
        u.created_at,
        u.freshness,
        u.embedding_model,
        vector(u.embedding, -1, FALSE) AS embedding,
        u.total
    FROM (
        SELECT
            s.*,
            count(*) OVER () AS total
        FROM unsettled AS s
        ORDER BY s.freshness ASC, s.id ASC
        LIMIT :cap
    ) AS u
),

neighbours AS (
    SELECT
        t.id AS memory_id,
        n.id AS newer_id,
        cosine.similarity,
        row_number() OVER (PARTITION BY t.id ORDER BY cosine.similarity DESC, n.id ASC) AS place
    FROM (
        SELECT
            m.id,
            m.memory_type,
            m.scope,
            m.created_at,
            m.embedding_model,
            vector(m.embedding, -1, FALSE) AS embedding
        FROM forgetting.live_memories AS m
        WHERE
            m.user_id = :user_id
            AND m.created_at <= :as_of
            AND m.embedding IS NOT NULL
            AND EXISTS (
                SELECT 1
                FROM taken AS t
                WHERE
                    t.memory_type = m.memory_type AND t.scope = m.scope
                    AND t.embedding_model = m.embedding_model
                    AND (m.created_at, m.id) > (t.created_at, t.id)
            )
        OFFSET 0 -- noqa: AM09
    ) AS n
    INNER JOIN taken AS t
        ON
            n.memory_type = t.memory_type AND n.scope = t.scope
            AND n.embedding_model = t.embedding_model
            AND (n.created_at, n.id) > (t.created_at, t.id)
    CROSS JOIN LATERAL (SELECT 1 - (n.embedding <=> t.embedding) AS similarity) AS cosine
    -- A zero vector has no direction: its cosine is NaN, which sorts above every number.
    WHERE cosine.similarity < 'NaN'
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
LEFT JOIN (
    SELECT
        k.memory_id,
        array_agg(k.newer_id ORDER BY k.place ASC) AS ids,
        array_agg(k.similarity ORDER BY k.place ASC) AS similarities
    FROM neighbours AS k
    WHERE k.place <= 3
    GROUP BY k.memory_id
) AS nearest ON t.id = nearest.memory_id
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
