-- How an agent would find memories by a vector, exactly: for the eval of what forgetting does to it.

-- name: rank_memories
-- The live memories whose vectors are of the query's model, most similar first. The order is by an
-- expression that no vector index serves, so that none is passed over.
SELECT
    m.id,
    1 - (m.embedding <=> CAST(:embedding AS vector)) AS similarity
FROM forgetting.live_memories AS m
WHERE m.user_id = :user_id AND m.embedding IS NOT NULL AND m.embedding_model = :model
ORDER BY similarity DESC, m.id ASC;
