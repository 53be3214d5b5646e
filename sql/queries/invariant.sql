-- Zero episodic collapse, and conservation of the archive. Each statement returns one row a
-- violation: the id concerned and the reason. No row means that the invariant holds.

-- name: collapse_in_stale_candidates
-- No single of the partition is an event or a note, nor is any neighbour it would be shown with.
SELECT
    m.id,
    'of type ' || m.memory_type || ', and a candidate or its neighbour' AS reason
FROM forgetting.stale_candidates AS sc
INNER JOIN memories AS m
    ON sc.user_id = m.user_id AND (sc.memory_id = m.id OR m.id = ANY(sc.newer_ids))
WHERE
    sc.user_id = :user_id AND sc.run_date = :run_date
    AND m.memory_type IN ('event', 'note');

-- name: collapse_in_conflict_pairs
-- No side of a pair is an event or a note.
SELECT
    m.id,
    'of type ' || m.memory_type || ', and a side of a pair' AS reason
FROM forgetting.conflict_pairs AS cp
INNER JOIN memories AS m ON cp.user_id = m.user_id AND m.id IN (cp.older_id, cp.newer_id)
WHERE
    cp.user_id = :user_id AND cp.run_date = :run_date
    AND m.memory_type IN ('event', 'note');

-- name: collapse_in_judged_verdicts
-- No verdict that stands for an item of the partition is about, beside or in favour of an event or
-- a note.
SELECT
    m.id,
    'of type ' || m.memory_type || ', and named by a verdict' AS reason
FROM forgetting.standing_verdicts AS s
INNER JOIN memories AS m
    ON s.user_id = m.user_id AND m.id IN (s.memory_id, s.newer_id, s.related_memory_id)
WHERE
    s.user_id = :user_id AND s.run_date = :run_date
    AND m.memory_type IN ('event', 'note');

-- name: collapse_in_retention_proposals
-- No open proposal of the tenant names an event or a note, and no applied one ended one, in any
-- partition. The reason names the way out.
SELECT
    m.id,
    'of type ' || m.memory_type || ', and named by a proposal that is ' || p.status
    || CASE p.status WHEN 'applied' THEN ': undo' ELSE ': reject' END || ' proposal ' || p.id AS reason
FROM retention_proposals AS p
INNER JOIN memories AS m
    ON
        p.user_id = m.user_id
        AND (p.memory_id = m.id OR (p.related_memory_id = m.id AND p.status = 'proposed'))
WHERE
    p.user_id = :user_id
    AND (
        p.status = 'proposed'
        OR (p.status = 'applied' AND p.action IN ('archive', 'supersede'))
    )
    AND m.memory_type IN ('event', 'note');

-- name: collapse_in_archival_sweep
-- Evidence left the hot tier only through a logged sweep, and only for its lack of use: nothing
-- credited, used or without a known time was archived, and nothing while uses were not recorded yet.
SELECT
    e.id,
    CASE
        WHEN s.evidence_id IS NULL THEN 'evidence is archived, but no sweep archived it'
        ELSE 'a sweep archived evidence that was still of use'
    END AS reason
FROM evidence AS e
LEFT JOIN
    LATERAL (
        SELECT l.*
        FROM forgetting.archival_sweep AS l
        WHERE l.user_id = :user_id AND l.run_date = e.archived_run_date AND l.evidence_id = e.id
        OFFSET 0 -- noqa: AM09
    ) AS s
    ON TRUE
WHERE
    e.user_id = :user_id AND e.archived_at IS NOT NULL AND e.archived_run_date = :run_date
    AND (
        s.evidence_id IS NULL
        OR s.kind NOT IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome')
        OR s.occurred_at IS NULL
        OR s.occurred_at >= s.due_before
        OR s.last_used_at >= s.due_before
        OR s.success_count > 0
        OR s.reinforcement_count > 0
        OR s.tracked_since > s.due_before
    );

-- name: losses_of_archive
-- Conservation: each entry that this partition archived is still there by id, with the same bytes,
-- unless a person forgot it for good.
SELECT
    s.evidence_id AS id,
    CASE
        WHEN e.id IS NULL THEN 'an archived entry is not there any more'
        ELSE 'an archived entry does not have the bytes it was archived with'
    END AS reason
FROM forgetting.archival_sweep AS s
LEFT JOIN evidence AS e ON s.user_id = e.user_id AND s.evidence_id = e.id
WHERE
    s.user_id = :user_id AND s.run_date = :run_date
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.forgotten AS f
        WHERE f.user_id = :user_id AND f.evidence_id = s.evidence_id
    )
    AND (
        e.id IS NULL
        OR encode(sha256(convert_to(e.content, 'UTF8')), 'hex') <> s.content_sha256
    );

-- name: scopes_over_blast_radius
-- Scopes in which more than :bound of the partition's verdicts are other than keep. Fewer than :least
-- verdicts are too few for a share to mean anything.
SELECT
    m.scope AS id,
    count(*) FILTER (WHERE s.verdict <> 'keep') || ' of ' || count(*)
    || ' verdicts are other than keep' AS reason
FROM forgetting.standing_verdicts AS s
INNER JOIN memories AS m ON s.user_id = m.user_id AND s.memory_id = m.id
WHERE s.user_id = :user_id AND s.run_date = :run_date
GROUP BY m.scope
HAVING count(*) >= :least AND count(*) FILTER (WHERE s.verdict <> 'keep') > :bound * count(*)
ORDER BY m.scope;

-- name: items_without_verdict
-- Items of the partition that have no verdict: they wait for the next run, or cannot be judged.
SELECT
    i.memory_id AS id,
    'no verdict yet' AS reason
FROM forgetting.items AS i
WHERE
    i.user_id = :user_id AND i.run_date = :run_date
    AND NOT EXISTS (
        SELECT 1
        FROM forgetting.judged_verdicts AS v
        WHERE
            v.user_id = :user_id AND v.run_date = :run_date AND v.memory_id = i.memory_id
            AND v.newer_id IS NOT DISTINCT FROM i.newer_id
    )
ORDER BY i.memory_id;

-- name: insert_result
-- The durable record of one check on one partition, and whether the one before it is of a failure.
INSERT INTO forgetting.invariant_results (
    run_date, user_id, asset, check_name, passed, reasons, run_id, checked_at
)
VALUES (
    :run_date, :user_id, :asset, :check_name, :passed, CAST(:reasons AS jsonb), :run_id,
    :checked_at
)
RETURNING coalesce(
    (
        SELECT NOT r.passed
        FROM forgetting.invariant_results AS r
        WHERE
            r.user_id = :user_id AND r.run_date = :run_date
            AND r.asset = :asset AND r.check_name = :check_name
        ORDER BY r.checked_at DESC, r.id DESC
        LIMIT 1
    ),
    FALSE
) AS had_failed;

-- name: read_results
-- The newest result of each check of one run on a partition.
SELECT DISTINCT ON (r.asset, r.check_name)
    r.asset,
    r.check_name,
    r.passed,
    r.reasons
FROM forgetting.invariant_results AS r
WHERE r.user_id = :user_id AND r.run_date = :run_date AND r.run_id = :run_id
ORDER BY r.asset ASC, r.check_name ASC, r.checked_at DESC, r.id DESC;
