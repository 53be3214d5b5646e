-- What a reviewer sees and does. Accepting goes through the store's audited write paths.

-- name: list_open
-- The open proposals of a tenant that pass the filters, with both sides as they are now: the surest
-- first, or the newest.
SELECT
    p.id,
    p.action,
    p.probability,
    p.created_at,
    p.memory_id,
    p.related_memory_id,
    p.model,
    m.memory_type,
    m.topic,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness,
    r.topic AS related_topic
FROM retention_proposals AS p
INNER JOIN memories AS m ON p.user_id = m.user_id AND p.memory_id = m.id
LEFT JOIN memories AS r ON p.user_id = r.user_id AND p.related_memory_id = r.id
WHERE
    p.user_id = :user_id AND p.status = 'proposed'
    AND (CAST(:action AS text) IS NULL OR p.action = CAST(:action AS text))
    AND (CAST(:memory_type AS text) IS NULL OR m.memory_type = CAST(:memory_type AS text))
    AND (
        CAST(:created_before AS timestamptz) IS NULL
        OR p.created_at < CAST(:created_before AS timestamptz)
    )
    AND (
        CAST(:created_after AS timestamptz) IS NULL
        OR p.created_at > CAST(:created_after AS timestamptz)
    )
    AND (
        CAST(:min_probability AS double precision) IS NULL
        OR p.probability >= CAST(:min_probability AS double precision)
    )
    AND (
        CAST(:max_probability AS double precision) IS NULL
        OR p.probability <= CAST(:max_probability AS double precision)
    )
ORDER BY
    CASE WHEN CAST(:sort AS text) = 'surest' THEN p.probability END DESC,
    CASE WHEN CAST(:sort AS text) = 'newest' THEN p.created_at END DESC,
    p.created_at ASC,
    p.id ASC
LIMIT :most;

-- name: count_open
-- The tenant's queue: how many proposals wait, by action.
SELECT
    p.action,
    count(*) AS proposals
FROM retention_proposals AS p
WHERE p.user_id = :user_id AND p.status = 'proposed'
GROUP BY p.action
ORDER BY p.action;

-- name: show_proposal
-- One proposal in any status with both sides as they are now, how similar their vectors are, and the
-- topics of the newer memories that the judge chose from.
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
    m.status = 'active' AND m.valid_to IS NULL AS is_live,
    m.embedding IS NOT NULL AS has_vector,
    coalesce(em.embedding_model, 'unknown') AS embedding_model,
    r.memory_type AS related_memory_type,
    r.scope AS related_scope,
    r.project AS related_project,
    r.topic AS related_topic,
    r.content AS related_content,
    r.created_at AS related_created_at,
    greatest(r.updated_at, r.last_reviewed_at) AS related_freshness,
    r.status = 'active' AND r.valid_to IS NULL AS related_is_live,
    r.embedding IS NOT NULL AS related_has_vector,
    coalesce(er.embedding_model, 'unknown') AS related_embedding_model,
    1 - (m.embedding <=> r.embedding) AS cosine,
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
LEFT JOIN forgetting.embedding_models AS em ON m.user_id = em.user_id AND m.id = em.memory_id
LEFT JOIN memories AS r ON p.user_id = r.user_id AND p.related_memory_id = r.id
LEFT JOIN forgetting.embedding_models AS er ON r.user_id = er.user_id AND r.id = er.memory_id
WHERE p.user_id = :user_id AND p.id = :id;

-- name: read_earlier
-- What the judge said about the memory of a proposal before, and what became of it, newest first.
SELECT
    e.judged_at,
    e.kind,
    e.verdict,
    e.probability,
    q.status,
    (
        SELECT c.reason
        FROM forgetting.closures AS c
        WHERE c.user_id = :user_id AND c.proposal_id = q.id AND q.status = 'dismissed'
        ORDER BY c.id DESC
        LIMIT 1
    ) AS closed
FROM retention_proposals AS p
LEFT JOIN forgetting.judged_verdicts AS v ON v.user_id = :user_id AND p.id = v.id
INNER JOIN forgetting.judged_verdicts AS e ON p.user_id = e.user_id AND p.memory_id = e.memory_id
LEFT JOIN retention_proposals AS q ON e.user_id = q.user_id AND e.id = q.id
WHERE
    p.user_id = :user_id AND e.user_id = :user_id
    AND p.id = :id AND e.id <> p.id AND e.judged_at <= coalesce(v.judged_at, p.created_at)
ORDER BY e.judged_at DESC, e.id DESC
LIMIT 10;

-- name: read_history
-- What became of a proposal, first to last: each decision, and each closing without one.
SELECT
    d.id,
    d.decided_at AS happened_at,
    d.decision AS what
FROM forgetting.decisions AS d
WHERE d.user_id = :user_id AND d.proposal_id = :id
UNION ALL
SELECT
    c.id,
    c.closed_at AS happened_at,
    c.reason AS what
FROM forgetting.closures AS c
WHERE c.user_id = :user_id AND c.proposal_id = :id
ORDER BY happened_at, id;

-- name: lock_proposal
-- A proposal in any status, locked for a decision, with what the judge saw of both sides and why it
-- was closed where it was. Another program may have written it: then there is no verdict.
SELECT
    p.id,
    p.action,
    p.status,
    p.memory_id,
    p.related_memory_id,
    p.created_at,
    coalesce(p.decided_at, c.closed_at) AS ended_at,
    c.reason AS closed,
    v.id AS verdict_id,
    v.memory_type,
    v.memory_content_hash,
    v.memory_freshness,
    v.related_content_hash,
    v.related_freshness
FROM retention_proposals AS p
LEFT JOIN forgetting.judged_verdicts AS v ON v.user_id = :user_id AND p.id = v.id
LEFT JOIN LATERAL (
    SELECT
        x.reason,
        x.closed_at
    FROM forgetting.closures AS x
    WHERE x.user_id = :user_id AND x.proposal_id = p.id
    ORDER BY x.id DESC
    LIMIT 1
) AS c ON TRUE
WHERE p.user_id = :user_id AND p.id = :id
FOR UPDATE OF p;

-- name: find_touching
-- The accepted proposal that changed a memory after another proposal was created.
SELECT q.id
FROM retention_proposals AS q
INNER JOIN forgetting.decisions AS d ON q.user_id = d.user_id AND q.id = d.proposal_id
WHERE
    q.user_id = :user_id AND d.user_id = :user_id
    AND q.memory_id = :memory_id AND q.status = 'applied'
    AND d.memories_changed > 0 AND d.decision = 'accept' AND d.decided_at > :created_at
ORDER BY d.id DESC
LIMIT 1;

-- name: close_overtaken
-- Close a proposal that can never be applied, be it open or just undone.
WITH closed AS (
    UPDATE retention_proposals AS p
    SET status = 'dismissed', decided_at = NULL
    WHERE p.user_id = :user_id AND p.id = :id
    RETURNING p.id
)

INSERT INTO forgetting.closures (user_id, proposal_id, reason, closed_at)
SELECT
    CAST(:user_id AS uuid) AS user_id,
    c.id AS proposal_id,
    'overtaken' AS reason,
    CAST(:now AS timestamptz) AS closed_at
FROM closed AS c;

-- name: lock_sides
-- Both sides of a proposal, locked in the order of their ids.
SELECT
    m.id,
    m.memory_type,
    m.content_hash,
    m.status = 'active' AND m.valid_to IS NULL AS is_live,
    m.embedding IS NOT NULL AS has_vector,
    m.valid_from,
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
    v.memory_type,
    v.memory_content_hash,
    v.memory_freshness,
    d.batch_id,
    d.decision,
    d.memories_changed,
    d.updated_at_before
FROM retention_proposals AS p
LEFT JOIN forgetting.judged_verdicts AS v ON v.user_id = :user_id AND p.id = v.id
LEFT JOIN LATERAL (
    SELECT
        x.batch_id,
        x.decision,
        x.memories_changed,
        x.updated_at_before
    FROM forgetting.decisions AS x
    WHERE x.user_id = :user_id AND x.proposal_id = p.id
    ORDER BY x.id DESC
    LIMIT 1
) AS d ON TRUE
WHERE
    p.user_id = :user_id AND p.id = :id
    AND p.status IN ('applied', 'rejected')
FOR UPDATE OF p;

-- name: find_batch
-- The proposals whose last decision is one of a batch, last first: what was undone since, or decided
-- again, is no longer the batch's.
SELECT d.proposal_id
FROM forgetting.decisions AS d
WHERE
    d.user_id = :user_id AND d.batch_id = :batch_id AND d.decision <> 'undo'
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.decisions AS later
        WHERE later.user_id = :user_id AND later.proposal_id = d.proposal_id AND later.id > d.id
    )
ORDER BY d.id DESC;

-- name: find_contradicting
-- An open proposal that a proposal may not be open beside: one about the same memory, or about what
-- takes its place.
SELECT p.id
FROM retention_proposals AS p
WHERE
    p.user_id = :user_id AND p.status = 'proposed' AND p.id <> :id
    AND (
        CAST(:memory_id AS uuid) IN (p.memory_id, p.related_memory_id)
        OR p.memory_id = CAST(:related_memory_id AS uuid)
    )
ORDER BY p.id
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

-- name: restore_episodic
-- Give a memory that is episodic now back what accepting took of its attention and its time. When it
-- was filed anew, and all that came with it, stays.
UPDATE memories
SET
    status = CASE :action WHEN 'archive' THEN 'active' ELSE status END,
    valid_to = nullif(
        valid_to, CASE :action WHEN 'supersede' THEN CAST(:decided_at AS timestamptz) END
    )
WHERE user_id = :user_id AND id = :id AND content_hash = :content_hash;

-- name: remove_edge
-- Take back the edge that accepting the supersede wrote.
SELECT forgetting.remove_accepted_edge(:id) AS removed
FROM retention_proposals AS p
WHERE p.user_id = :user_id AND p.id = :id;

-- name: reopen_proposal
-- Put a decided proposal back into the queue.
UPDATE retention_proposals
SET status = 'proposed', decided_at = NULL
WHERE user_id = :user_id AND id = :id;
