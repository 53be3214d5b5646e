-- What a reviewer sees and does. Accepting goes through the store's audited write paths.

-- name: list_open
-- The open proposals of a tenant, oldest first, with both sides as they are now.
SELECT
    p.id,
    p.action,
    p.probability,
    p.created_at,
    m.memory_type,
    m.topic,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness,
    r.topic AS related_topic
FROM retention_proposals AS p
INNER JOIN memories AS m ON p.user_id = m.user_id AND p.memory_id = m.id
LEFT JOIN memories AS r ON p.user_id = r.user_id AND p.related_memory_id = r.id
WHERE p.user_id = :user_id AND p.status = 'proposed'
ORDER BY p.created_at ASC, p.probability DESC, p.id ASC;

-- name: show_proposal
-- One proposal in any status with the text and times of both sides, and the topics of the newer
-- memories that the judge chose from.
SELECT
    p.id,
    p.action,
    p.status,
    p.probability,
    p.probabilities,
    p.model,
    p.created_at,
    p.decided_at,
    p.memory_id,
    p.related_memory_id,
    m.memory_type,
    m.scope,
    m.project,
    m.topic,
    m.content,
    m.created_at AS memory_created_at,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness,
    r.topic AS related_topic,
    r.content AS related_content,
    r.created_at AS related_created_at,
    ARRAY(
        SELECT coalesce(n.topic, '(gone)')
        FROM forgetting.judged_verdicts AS v
        CROSS JOIN LATERAL unnest(v.newer_ids) WITH ORDINALITY AS shown (id, place)
        LEFT JOIN memories AS n ON n.user_id = :user_id AND shown.id = n.id
        WHERE v.user_id = :user_id AND v.id = p.id
        ORDER BY shown.place
    ) AS newer_topics
FROM retention_proposals AS p
INNER JOIN memories AS m ON p.user_id = m.user_id AND p.memory_id = m.id
LEFT JOIN memories AS r ON p.user_id = r.user_id AND p.related_memory_id = r.id
WHERE p.user_id = :user_id AND p.id = :id;

-- name: lock_open
-- An open proposal, locked for a decision, with what the judge saw of both sides.
SELECT
    p.id,
    p.action,
    p.memory_id,
    p.related_memory_id,
    p.probability,
    v.memory_type,
    v.memory_content_hash,
    v.memory_freshness,
    v.related_content_hash,
    v.related_freshness
FROM retention_proposals AS p
INNER JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
WHERE p.user_id = :user_id AND v.user_id = :user_id AND p.id = :id AND p.status = 'proposed'
FOR UPDATE OF p;

-- name: lock_sides
-- Both sides of a proposal, locked in the order of their ids.
SELECT
    m.id,
    m.memory_type,
    m.content_hash,
    m.status = 'active' AND m.valid_to IS NULL AS is_live,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness
FROM memories AS m
WHERE m.user_id = :user_id AND m.id = ANY(:ids)
ORDER BY m.id
FOR UPDATE;

-- name: has_edge
-- Whether the newer memory supersedes the older one already.
SELECT EXISTS(
    SELECT 1
    FROM memory_edges AS e
    WHERE
        e.user_id = :user_id AND e.edge_type = 'supersedes'
        AND e.from_id = :newer_id AND e.to_id = :older_id
) AS present;

-- name: archive_memory
-- Archive one live memory.
UPDATE memories
SET status = 'archived', updated_at = :now
WHERE user_id = :user_id AND id = :id AND status = 'active' AND valid_to IS NULL;

-- name: close_memory
-- End the validity of one live memory that was superseded.
UPDATE memories
SET valid_to = :now, updated_at = :now
WHERE user_id = :user_id AND id = :id AND status = 'active' AND valid_to IS NULL;

-- name: insert_supersedes_edge
-- The lineage of an accepted supersede, newer to older.
INSERT INTO memory_edges (user_id, from_id, to_id, edge_type, created_by, created_at)
VALUES (:user_id, :newer_id, :older_id, 'supersedes', :actor, :now);

-- name: insert_event
-- The audit trail of a decision.
INSERT INTO memory_events (user_id, memory_id, event_kind, actor_kind, payload, created_at)
VALUES (:user_id, :memory_id, :event_kind, :actor, CAST(:payload AS jsonb), :now);

-- name: decide_proposal
-- Close an open proposal.
UPDATE retention_proposals
SET status = :status, decided_at = :now
WHERE user_id = :user_id AND id = :id AND status = 'proposed';
