-- Conflict pairs: two live memories of one type, scope and project whose vectors are close.
-- Similarity selects them and decides nothing.

-- name: mine_pairs
-- Every pair at or above its floor that may be judged in this partition, best first. All conditions
-- stand inside the statement, so that a caller's cap is never used up by pairs that are settled.
WITH eligible AS (
    SELECT
        m.*,
        coalesce(
            CAST(CAST(:floors AS jsonb) ->> m.embedding_model AS double precision), :default_floor
        ) AS floor
    FROM forgetting.live_memories AS m
    WHERE
        m.user_id = :user_id
        AND m.memory_type IN ('decision', 'preference', 'fact')
        AND m.created_at <= :as_of
        AND m.embedding IS NOT NULL
        -- A memory of an open proposal waits for the human; this partition's own do not count.
        AND NOT EXISTS (
            SELECT 1
            FROM forgetting.waiting_memories AS w
            WHERE
                w.user_id = :user_id AND w.memory_id = m.id
                AND w.run_date IS DISTINCT FROM :run_date
        )
),

near AS (
    SELECT
        older.id AS older_id,
        newer.id AS newer_id,
        older.memory_type,
        older.embedding_model,
        older.floor,
        older.freshness < :stale_before AS older_is_stale,
        greatest(older.freshness, newer.freshness) AS freshness,
        1 - (older.embedding <=> newer.embedding) AS similarity
    FROM eligible AS older
    INNER JOIN eligible AS newer
        ON
            older.memory_type = newer.memory_type
            AND older.scope = newer.scope
            AND older.project IS NOT DISTINCT FROM newer.project
            AND older.embedding_model IS NOT DISTINCT FROM newer.embedding_model
            AND (older.created_at, older.id) < (newer.created_at, newer.id)
)

SELECT
    n.older_id,
    n.newer_id,
    n.memory_type,
    n.embedding_model,
    n.floor,
    n.older_is_stale,
    n.similarity
FROM near AS n
WHERE
    n.similarity >= n.floor
    AND NOT EXISTS (
        SELECT 1
        FROM memory_edges AS e
        WHERE
            e.user_id = :user_id
            AND (e.from_id, e.to_id) IN ((n.newer_id, n.older_id), (n.older_id, n.newer_id))
    )
    AND NOT EXISTS (
        SELECT 1
        FROM consolidation_proposals AS c
        WHERE
            c.user_id = :user_id
            AND (c.from_id, c.to_id) IN ((n.newer_id, n.older_id), (n.older_id, n.newer_id))
    )
    -- Settled: this very pair has a verdict later than both freshnesses, from another partition, that
    -- was written down as a proposal, be it a dismissed one.
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.judged_verdicts AS v
        WHERE
            v.user_id = :user_id AND v.run_date <> :run_date
            AND v.memory_id = n.older_id
            AND n.newer_id IN (v.newer_id, v.related_memory_id)
            AND v.judged_at > n.freshness
            AND EXISTS (
                SELECT 1
                FROM retention_proposals AS p
                WHERE p.user_id = :user_id AND p.id = v.id
            )
    )
ORDER BY n.older_is_stale DESC, n.similarity DESC, n.older_id ASC, n.newer_id ASC;

-- name: clear_pairs
-- Make room for this partition's rows.
DELETE FROM forgetting.conflict_pairs
WHERE user_id = :user_id AND run_date = :run_date;

-- name: insert_pair
-- One selected pair.
INSERT INTO forgetting.conflict_pairs (
    run_date, user_id, rank, older_id, newer_id, memory_type, similarity, older_is_stale,
    embedding_model, floor
)
VALUES (
    :run_date, :user_id, :rank, :older_id, :newer_id, :memory_type, :similarity, :older_is_stale,
    :embedding_model, :floor
);
