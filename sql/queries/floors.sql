-- Choosing a floor: what is compared, and how close known replacements are.

-- name: find_models
-- The embedding models of the tenant's comparable memories, the most used first.
SELECT
    c.embedding_model,
    count(*) AS memories
FROM forgetting.comparable_memories AS c
WHERE c.user_id = :user_id
GROUP BY c.embedding_model
ORDER BY memories DESC, c.embedding_model ASC;

-- name: copy_comparable
-- The comparable memories of one embedding model, group by group.
COPY (
    SELECT
        c.id,
        c.group_key
    FROM forgetting.comparable_memories AS c
    WHERE c.user_id = :user_id AND c.embedding_model = :embedding_model
    ORDER BY c.group_key, c.id
) TO STDOUT (FORMAT "binary");

-- name: find_labelled
-- Of each labelled pair the embedding model, and the cosine if its sides are compared at all: NULL
-- when they are of two groups, or one of them is not comparable. Both unknown = no row.
SELECT
    coalesce(older.embedding_model, newer.embedding_model) AS embedding_model,
    cosine.similarity
FROM unnest(CAST(:older_ids AS uuid[]), CAST(:newer_ids AS uuid[])) AS p (older_id, newer_id)
LEFT JOIN forgetting.comparable_memories AS older
    ON older.user_id = :user_id AND p.older_id = older.id
LEFT JOIN forgetting.comparable_memories AS newer
    ON newer.user_id = :user_id AND p.newer_id = newer.id
LEFT JOIN LATERAL (
    SELECT nullif(1 - (older.embedding <=> newer.embedding), 'NaN') AS similarity
    WHERE
        older.memory_type = newer.memory_type
        AND older.scope = newer.scope
        AND older.project IS NOT DISTINCT FROM newer.project
        AND older.embedding_model = newer.embedding_model
) AS cosine ON TRUE
WHERE older.id IS NOT NULL OR newer.id IS NOT NULL;
