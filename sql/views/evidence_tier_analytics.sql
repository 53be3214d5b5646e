-- What an analyst reads of evidence: where each entry is and how often it went there and came back.
-- Sweeps, revivals and regrets are counted once and joined, not looked up for each entry.
CREATE OR REPLACE VIEW analytics.evidence_tier WITH (security_invoker = TRUE) AS
SELECT
    t.slug AS tenant,
    e.user_id,
    e.id AS evidence_id,
    e.kind,
    CASE WHEN e.archived_at IS NULL THEN 'hot' ELSE 'archived' END AS tier,
    e.occurred_at,
    e.recorded_at,
    greatest(e.last_retrieved_at, e.last_outcome_at) AS last_used_at,
    e.success_count,
    e.reinforcement_count,
    e.archived_at,
    e.archived_run_date,
    coalesce(s.times, 0) AS times_archived,
    coalesce(r.times, 0) AS times_revived,
    g.evidence_id IS NOT NULL AS regretted
FROM evidence AS e
INNER JOIN tenants AS t ON e.user_id = t.user_id
LEFT JOIN (
    SELECT
        a.user_id,
        a.evidence_id,
        count(*) AS times
    FROM forgetting.archival_sweep AS a
    GROUP BY a.user_id, a.evidence_id
) AS s ON e.user_id = s.user_id AND e.id = s.evidence_id
LEFT JOIN (
    SELECT
        a.user_id,
        a.evidence_id,
        count(*) AS times
    FROM forgetting.revivals AS a
    GROUP BY a.user_id, a.evidence_id
) AS r ON e.user_id = r.user_id AND e.id = r.evidence_id
LEFT JOIN (
    SELECT DISTINCT
        a.user_id,
        a.evidence_id
    FROM forgetting.regrets AS a
) AS g ON e.user_id = g.user_id AND e.id = g.evidence_id;

COMMENT ON VIEW analytics.evidence_tier IS
'Each entry of evidence, one row an entry: its tier, its uses, and its way to the archive and back. No text.';
COMMENT ON COLUMN analytics.evidence_tier.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN analytics.evidence_tier.user_id IS 'The tenant (users.id).';
COMMENT ON COLUMN analytics.evidence_tier.evidence_id IS 'The entry (evidence.id).';
COMMENT ON COLUMN analytics.evidence_tier.kind IS 'What it is; see evidence.kind.';
COMMENT ON COLUMN analytics.evidence_tier.tier IS
'hot = retrieval may return it; archived = reachable by its id only.';
COMMENT ON COLUMN analytics.evidence_tier.occurred_at IS 'When it happened, UTC; NULL = not known.';
COMMENT ON COLUMN analytics.evidence_tier.recorded_at IS 'When it was written here, UTC.';
COMMENT ON COLUMN analytics.evidence_tier.last_used_at IS
'The later of its last retrieval and the last outcome that touched it, UTC; NULL = never.';
COMMENT ON COLUMN analytics.evidence_tier.success_count IS 'Good outcomes it contributed to.';
COMMENT ON COLUMN analytics.evidence_tier.reinforcement_count IS 'Times it was reinforced.';
COMMENT ON COLUMN analytics.evidence_tier.archived_at IS 'When it was archived, UTC; NULL = hot.';
COMMENT ON COLUMN analytics.evidence_tier.archived_run_date IS
'The UTC day whose sweep archived it; NULL = hot.';
COMMENT ON COLUMN analytics.evidence_tier.times_archived IS 'How many sweeps archived it.';
COMMENT ON COLUMN analytics.evidence_tier.times_revived IS 'How often it came back.';
COMMENT ON COLUMN analytics.evidence_tier.regretted IS
'TRUE = after an archiving it was used within 14 days all the same, at least once.';

GRANT SELECT ON analytics.evidence_tier TO forgetting_runtime, forgetting_analyst;
