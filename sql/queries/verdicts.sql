-- The items of a partition and the verdicts on them. A verdict is written once and never changed.

-- name: read_pairs
-- The partition's pairs, by rank.
SELECT
    cp.older_id,
    cp.newer_id,
    cp.memory_type,
    cp.similarity
FROM forgetting.conflict_pairs AS cp
WHERE cp.user_id = :user_id AND cp.run_date = :run_date
ORDER BY cp.rank;

-- name: read_singles
-- The partition's singles that no pair covers, by rank. The pairs are looked at as they are now: they
-- may have been selected again since.
SELECT
    sc.memory_id,
    sc.memory_type,
    sc.newer_ids
FROM forgetting.stale_candidates AS sc
WHERE
    sc.user_id = :user_id AND sc.run_date = :run_date
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.conflict_pairs AS cp
        WHERE
            cp.user_id = :user_id AND cp.run_date = :run_date
            AND sc.memory_id IN (cp.older_id, cp.newer_id)
    )
ORDER BY sc.rank;

-- name: read_memories
-- The text and times of the memories that the items name, as they are now, live and judgeable ones
-- only: an event or a note is never read.
SELECT
    m.id,
    m.memory_type,
    m.scope,
    m.project,
    m.topic,
    m.content,
    m.content_hash,
    m.created_at,
    greatest(m.updated_at, m.last_reviewed_at) AS freshness
FROM memories AS m
WHERE
    m.user_id = :user_id
    AND m.id = ANY(:ids)
    AND m.status = 'active' AND m.valid_to IS NULL
    AND m.memory_type IN ('decision', 'preference', 'blocker', 'fact');

-- name: find_known
-- Earlier verdicts of this model on exactly these inputs, this partition's own first.
SELECT DISTINCT ON (v.memory_id, v.input_digest)
    v.id,
    v.run_date,
    v.memory_id,
    v.input_digest
FROM forgetting.judged_verdicts AS v
WHERE
    v.user_id = :user_id AND v.model = :model
    AND v.input_digest = ANY(:digests)
ORDER BY v.memory_id ASC, v.input_digest ASC, v.run_date = :run_date DESC, v.judged_at DESC;

-- name: reuse_verdict
-- Take over another partition's verdict on the same input, without a call.
INSERT INTO forgetting.judged_verdicts (
    run_date, user_id, kind, memory_id, newer_id, newer_ids, memory_type, verdict, related_memory_id,
    answer_key, probability, probabilities, model, answer_model, input_digest,
    memory_content_hash, memory_freshness, related_content_hash, related_freshness, request_id,
    judged_at, reused_from
)
SELECT
    :run_date AS run_date,
    v.user_id,
    v.kind,
    v.memory_id,
    v.newer_id,
    v.newer_ids,
    v.memory_type,
    v.verdict,
    v.related_memory_id,
    v.answer_key,
    v.probability,
    v.probabilities,
    v.model,
    v.answer_model,
    v.input_digest,
    v.memory_content_hash,
    v.memory_freshness,
    v.related_content_hash,
    v.related_freshness,
    v.request_id,
    v.judged_at,
    v.id AS reused_from
FROM forgetting.judged_verdicts AS v
WHERE v.user_id = :user_id AND v.id = :id
ON CONFLICT (user_id, run_date, memory_id, input_digest, model, asking) DO NOTHING;

-- name: hold_memories
-- Which of some memories are there and may be judged; they stay so until the transaction ends.
SELECT m.id
FROM memories AS m
WHERE
    m.user_id = :user_id
    AND m.id = ANY(:ids)
    AND m.memory_type IN ('decision', 'preference', 'blocker', 'fact')
ORDER BY m.id
FOR SHARE;

-- name: insert_verdict
-- One verdict of the judge, and its id.
INSERT INTO forgetting.judged_verdicts (
    run_date, user_id, kind, memory_id, newer_id, newer_ids, memory_type, verdict, related_memory_id,
    answer_key, probability, probabilities, model, answer_model, input_digest,
    memory_content_hash, memory_freshness, related_content_hash, related_freshness, request_id,
    judged_at, asking
)
VALUES (
    :run_date, :user_id, :kind, :memory_id, :newer_id, :newer_ids, :memory_type, :verdict,
    :related_memory_id, :answer_key, :probability, CAST(:probabilities AS jsonb), :model,
    :answer_model, :input_digest, :memory_content_hash, :memory_freshness,
    :related_content_hash, :related_freshness, :request_id, :judged_at, :asking
)
ON CONFLICT (user_id, run_date, memory_id, input_digest, model, asking) DO NOTHING
RETURNING id;

-- name: insert_shadow
-- What the judge said to the shadow questions beside a verdict.
INSERT INTO forgetting.shadow_answers (user_id, verdict_id, same_matter, one_outdated)
VALUES (:user_id, :verdict_id, :same_matter, :one_outdated);

-- name: next_asking
-- The number under which the partition's items are asked about once more.
SELECT coalesce(max(v.asking), 0) + 1 AS asking
FROM forgetting.judged_verdicts AS v
WHERE v.user_id = :user_id AND v.run_date = :run_date;

-- name: insert_unjudged
-- An item that was put to the judge and got no verdict.
INSERT INTO forgetting.unjudged_items (
    run_date, user_id, memory_id, newer_id, input_digest, model, reason, detail, recorded_at
)
VALUES (
    :run_date, :user_id, :memory_id, :newer_id, :input_digest, :model, :reason, :detail, :recorded_at
);

-- name: find_unjudged
-- What stood against exactly these inputs with this model since a moment.
SELECT
    u.input_digest,
    bool_or(u.reason = 'too_large') AS too_large,
    count(*) FILTER (WHERE u.reason = 'answer_rejected') AS rejections
FROM forgetting.unjudged_items AS u
WHERE
    u.user_id = :user_id AND u.model = :model
    AND u.recorded_at > :since
    AND u.input_digest = ANY(:digests)
GROUP BY u.input_digest;

-- name: count_verdicts
-- The verdicts that stand for the partition's items, by outcome.
SELECT
    s.verdict,
    count(*) AS verdicts
FROM forgetting.standing_verdicts AS s
WHERE s.user_id = :user_id AND s.run_date = :run_date
GROUP BY s.verdict
ORDER BY s.verdict;

-- name: preview_verdicts
-- A few of the partition's verdicts, for the UI.
SELECT
    v.memory_id,
    v.memory_type,
    v.kind,
    v.verdict,
    v.probability
FROM forgetting.judged_verdicts AS v
WHERE v.user_id = :user_id AND v.run_date = :run_date
ORDER BY v.judged_at ASC, v.id ASC
LIMIT 10;
