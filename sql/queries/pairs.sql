-- Conflict pairs: two live memories of one type, scope and project whose vectors are close.
-- Similarity selects them and decides nothing.

-- name: find_due_pairs
-- Every similar pair at or above its floor that may be judged in this partition, best first, with how
-- many there are. All conditions stand inside the statement, so that a caller's cap is never used up
-- by pairs that are settled.
WITH unjudgeable AS MATERIALIZED (
    -- What no call can hold, or what was answered against the contract again and again, in other
    -- partitions, until it changes or that is long past.
    SELECT
        u.memory_id,
        u.newer_id,
        max(u.recorded_at) AS recorded_at
    FROM forgetting.unjudged_items AS u
    WHERE
        u.user_id = :user_id AND u.run_date <> :run_date
        AND u.recorded_at > :stale_before
        AND u.newer_id IS NOT NULL
    GROUP BY u.memory_id, u.newer_id, u.input_digest, u.model
    HAVING bool_or(u.reason = 'too_large') OR count(*) >= :rejections
),

waiting AS (
    -- A memory of an open proposal waits for the human; this partition's own do not count.
    SELECT w.memory_id
    FROM forgetting.waiting_memories AS w
    WHERE w.user_id = :user_id AND w.run_date IS DISTINCT FROM :run_date
),

-- The mined pairs with both sides as they are now, found by their ids. What the sides must have in
-- common stands outside, and OFFSET keeps it there: joined by that first, every memory of a group
-- would meet every other. NOT IN and what has an OFFSET are looked up, in a hash and by an index,
-- however few rows the statistics expect.
sides AS (
    SELECT
        s.older_id,
        s.newer_id,
        s.similarity,
        s.embedding_model,
        older.memory_type,
        older.scope,
        older.project,
        older.embedding_model AS older_model,
        older.freshness AS older_freshness,
        newer.memory_type AS newer_type,
        newer.scope AS newer_scope,
        newer.project AS newer_project,
        newer.embedding_model AS newer_model,
        newer.freshness AS newer_freshness
    FROM forgetting.similar_pairs AS s
    INNER JOIN forgetting.live_memories AS older
        ON older.user_id = :user_id AND s.older_id = older.id
    INNER JOIN forgetting.live_memories AS newer
        ON newer.user_id = :user_id AND s.newer_id = newer.id
    WHERE
        s.user_id = :user_id
        AND older.memory_type IN ('decision', 'preference', 'fact')
        AND older.created_at <= :as_of AND newer.created_at <= :as_of
        AND s.older_id NOT IN (SELECT w.memory_id FROM waiting AS w)
        AND s.newer_id NOT IN (SELECT w.memory_id FROM waiting AS w)
    OFFSET 0 -- noqa: AM09
)

SELECT
    p.older_id,
    p.newer_id,
    p.memory_type,
    p.embedding_model,
    f.floor,
    p.older_freshness < :stale_before AS older_is_stale,
    p.similarity,
    count(*) OVER () AS total
FROM sides AS p
INNER JOIN
    unnest(CAST(:models AS text[]), CAST(:floors AS double precision[])) AS f (embedding_model, floor)
    ON p.embedding_model = f.embedding_model AND p.similarity >= f.floor
WHERE
    p.memory_type = p.newer_type AND p.scope = p.newer_scope
    AND p.project IS NOT DISTINCT FROM p.newer_project
    AND p.embedding_model = p.older_model AND p.embedding_model = p.newer_model
    AND NOT EXISTS (
        SELECT 1
        FROM (VALUES (p.older_id, p.newer_id), (p.newer_id, p.older_id)) AS way (from_id, to_id)
        INNER JOIN memory_edges AS e
            ON e.user_id = :user_id AND way.from_id = e.from_id AND way.to_id = e.to_id
        OFFSET 0 -- noqa: AM09
    )
    AND NOT EXISTS (
        SELECT 1
        FROM (VALUES (p.older_id, p.newer_id), (p.newer_id, p.older_id)) AS way (from_id, to_id)
        INNER JOIN consolidation_proposals AS c
            ON c.user_id = :user_id AND way.from_id = c.from_id AND way.to_id = c.to_id
        OFFSET 0 -- noqa: AM09
    )
    AND NOT EXISTS (
        SELECT 1
        FROM unjudgeable AS u
        WHERE
            u.memory_id = p.older_id AND u.newer_id = p.newer_id
            AND u.recorded_at > greatest(p.older_freshness, p.newer_freshness)
    )
    -- Settled: this very pair was judged in another partition, later than both freshnesses, and
    -- written down as a proposal, be it a dismissed one.
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.judged_verdicts AS v
        INNER JOIN retention_proposals AS r ON r.user_id = :user_id AND v.id = r.id
        WHERE
            v.user_id = :user_id AND v.run_date <> :run_date
            AND v.memory_id = p.older_id
            AND p.newer_id IN (v.newer_id, v.related_memory_id)
            AND v.judged_at > greatest(p.older_freshness, p.newer_freshness)
        OFFSET 0 -- noqa: AM09
    )
ORDER BY older_is_stale DESC, p.similarity DESC, p.older_id ASC, p.newer_id ASC;

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
