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
    m.updated_at,
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

-- name: insert_decision
-- What somebody decided, with what undoing it needs.
INSERT INTO forgetting.decisions (
    user_id, batch_id, proposal_id, decision, memories_changed, updated_at_before, decided_at
)
VALUES (
    :user_id, :batch_id, :proposal_id, :decision, :memories_changed, :updated_at_before, :now
);

-- name: lock_decided
-- A decided proposal, locked, with its last decision and what the judge had seen of its memory.
SELECT
    p.id,
    p.status,
    p.action,
    p.memory_id,
    p.related_memory_id,
    p.decided_at,
    v.memory_content_hash,
    v.memory_freshness,
    d.decision,
    d.memories_changed,
    d.updated_at_before
FROM retention_proposals AS p
INNER JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
LEFT JOIN LATERAL (
    SELECT
        x.decision,
        x.memories_changed,
        x.updated_at_before
    FROM forgetting.decisions AS x
    WHERE x.user_id = :user_id AND x.proposal_id = p.id
    ORDER BY x.id DESC
    LIMIT 1
) AS d ON TRUE
WHERE
    p.user_id = :user_id AND v.user_id = :user_id AND p.id = :id
    AND p.status IN ('applied', 'rejected')
FOR UPDATE OF p;

-- name: find_batch
-- The proposals that one command decided, last first.
SELECT d.proposal_id
FROM forgetting.decisions AS d
WHERE d.user_id = :user_id AND d.batch_id = :batch_id AND d.decision <> 'undo'
ORDER BY d.id DESC;

-- name: find_waiting
-- An open proposal that names one of some memories.
SELECT w.proposal_id
FROM forgetting.waiting_memories AS w
WHERE w.user_id = :user_id AND w.memory_id = ANY(:ids)
ORDER BY w.proposal_id
LIMIT 1;

-- name: find_twin
-- Another memory that stands for the same content, beside which this one cannot be live.
SELECT m.id
FROM memories AS m
WHERE
    m.user_id = :user_id AND m.id <> :id
    AND m.content_hash = :content_hash AND m.valid_to IS NULL
ORDER BY m.id
LIMIT 1;

-- name: restore_memory
-- Give an archived or superseded memory back its attention and its time, if it is exactly what
-- accepting left.
UPDATE memories
SET status = 'active', valid_to = NULL, updated_at = :updated_at_before
WHERE
    user_id = :user_id AND id = :id
    AND updated_at = :decided_at AND content_hash = :content_hash
    AND greatest(CAST(:updated_at_before AS timestamptz), last_reviewed_at) = :freshness
    AND (
        (:action = 'archive' AND status = 'archived' AND valid_to IS NULL)
        OR (:action = 'supersede' AND status = 'active' AND valid_to = :decided_at)
    );

-- name: remove_edge
-- Take back the edge that accepting the supersede wrote.
SELECT forgetting.remove_accepted_edge(:id) AS removed
FROM retention_proposals AS p
WHERE p.user_id = :user_id AND p.id = :id;

-- name: reopen_proposal
-- Put a decided proposal back into the queue.
UPDATE retention_proposals
SET status = :status, decided_at = NULL
WHERE user_id = :user_id AND id = :id;
