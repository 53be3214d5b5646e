-- Conflict pairs: two live memories of one type, scope and project whose vectors are close.
-- Similarity selects them and decides nothing.

-- name: find_due_pairs
-- Every similar pair at or above its floor that may be judged in this partition, best first, with how
-- many there are. All conditions stand inside the statement, so that a caller's cap is never used up
-- by pairs that are settled.
WITH live AS MATERIALIZED (
    SELECT
        m.id,
        m.memory_type,
        m.scope,
        m.project,
        m.embedding_model,
        m.freshness
    FROM forgetting.live_memories AS m
    WHERE
        m.user_id = :user_id
        AND m.memory_type IN ('decision', 'preference', 'fact')
        AND m.created_at <= :as_of
        -- A memory of an open proposal waits for the human; this partition's own do not count.
        AND NOT EXISTS (
            SELECT 1
            FROM forgetting.waiting_memories AS w
            WHERE
                w.user_id = :user_id AND w.memory_id = m.id
                AND w.run_date IS DISTINCT FROM :run_date
        )
),

linked AS (
    SELECT
        e.from_id,
        e.to_id
    FROM memory_edges AS e
    WHERE e.user_id = :user_id
    UNION
    SELECT
        c.from_id,
        c.to_id
    FROM consolidation_proposals AS c
    WHERE c.user_id = :user_id
),

-- When a very pair was last judged in another partition and written down as a proposal, be it a
-- dismissed one.
judged AS (
    SELECT
        v.memory_id AS older_id,
        side.newer_id,
        max(v.judged_at) AS judged_at
    FROM forgetting.judged_verdicts AS v
    INNER JOIN retention_proposals AS p ON p.user_id = :user_id AND v.id = p.id
    CROSS JOIN LATERAL (VALUES (v.newer_id), (v.related_memory_id)) AS side (newer_id)
    WHERE v.user_id = :user_id AND v.run_date <> :run_date AND side.newer_id IS NOT NULL
    GROUP BY v.memory_id, side.newer_id
)

SELECT
    s.older_id,
    s.newer_id,
    older.memory_type,
    s.embedding_model,
    f.floor,
    older.freshness < :stale_before AS older_is_stale,
    s.similarity,
    count(*) OVER () AS total
FROM forgetting.similar_pairs AS s
INNER JOIN
    unnest(CAST(:models AS text[]), CAST(:floors AS double precision[])) AS f (embedding_model, floor)
    ON s.embedding_model = f.embedding_model AND s.similarity >= f.floor
INNER JOIN live AS older ON s.older_id = older.id AND s.embedding_model = older.embedding_model
INNER JOIN live AS newer
    ON
        s.newer_id = newer.id
        AND older.memory_type = newer.memory_type
        AND older.scope = newer.scope
        AND older.project IS NOT DISTINCT FROM newer.project
        AND older.embedding_model = newer.embedding_model
LEFT JOIN judged AS j ON s.older_id = j.older_id AND s.newer_id = j.newer_id
WHERE
    s.user_id = :user_id
    -- Settled: judged later than both freshnesses.
    AND (j.judged_at > greatest(older.freshness, newer.freshness)) IS NOT TRUE
    AND NOT EXISTS (
        SELECT 1 FROM linked AS k
        WHERE k.from_id = s.newer_id AND k.to_id = s.older_id
    )
    AND NOT EXISTS (
        SELECT 1 FROM linked AS k
        WHERE k.from_id = s.older_id AND k.to_id = s.newer_id
    )
ORDER BY older_is_stale DESC, s.similarity DESC, s.older_id ASC, s.newer_id ASC;

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
