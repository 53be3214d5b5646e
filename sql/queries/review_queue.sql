-- What waits for a human, of every kind of proposal that a store may have, and what it is about. The
-- tables of facts and resolutions are another release's: ask catalog.find_review_queues first.

-- name: count_consolidation
-- Open proposals to link or merge two memories.
SELECT count(*) AS waiting
FROM public.consolidation_proposals AS p
WHERE p.user_id = :user_id AND p.status = 'proposed';

-- name: count_fact
-- Open proposals of facts.
SELECT count(*) AS waiting
FROM public.fact_proposals AS p
WHERE p.user_id = :user_id AND CAST(p.status AS text) = 'proposed';

-- name: count_resolution
-- Open proposals to resolve a blocker or a commitment.
SELECT count(*) AS waiting
FROM public.resolution_proposals AS p
WHERE p.user_id = :user_id AND CAST(p.status AS text) = 'proposed';

-- name: count_retention
-- Open proposals of the forgetting pass.
SELECT count(*) AS waiting
FROM public.retention_proposals AS p
WHERE p.user_id = :user_id AND p.status = 'proposed';

-- name: read_contents
-- What some memories say now.
SELECT
    m.id,
    m.content
FROM memories AS m
WHERE m.user_id = :user_id AND m.id = ANY(:ids);
