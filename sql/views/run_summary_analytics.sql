-- What an analyst reads of partitions. Each table is counted once and the counts are added up: joined
-- with each other, the rows of a day would multiply.
CREATE OR REPLACE VIEW analytics.run_summary WITH (security_invoker = TRUE) AS
SELECT
    t.slug AS tenant,
    n.user_id,
    n.run_date,
    n.stale_candidates,
    n.pairs,
    n.items,
    n.verdicts,
    n.keeps,
    n.archives,
    n.supersedes,
    n.conflicts,
    n.proposed,
    n.dismissed,
    n.applied,
    n.rejected,
    n.evidence_archived,
    n.failed_checks,
    n.first_at,
    n.last_at
FROM (
    SELECT
        c.user_id,
        c.run_date,
        count(*) FILTER (WHERE c.what = 'stale candidate') AS stale_candidates,
        count(*) FILTER (WHERE c.what = 'pair') AS pairs,
        count(*) FILTER (WHERE c.what = 'item') AS items,
        count(*) FILTER (WHERE c.what = 'verdict') AS verdicts,
        count(*) FILTER (WHERE c.what = 'verdict' AND c.which = 'keep') AS keeps,
        count(*) FILTER (WHERE c.what = 'verdict' AND c.which = 'archive') AS archives,
        count(*) FILTER (WHERE c.what = 'verdict' AND c.which = 'supersede') AS supersedes,
        count(*) FILTER (WHERE c.what = 'verdict' AND c.which = 'conflict') AS conflicts,
        count(*) FILTER (WHERE c.what = 'proposal' AND c.which = 'proposed') AS proposed,
        count(*) FILTER (WHERE c.what = 'proposal' AND c.which = 'dismissed') AS dismissed,
        count(*) FILTER (WHERE c.what = 'proposal' AND c.which = 'applied') AS applied,
        count(*) FILTER (WHERE c.what = 'proposal' AND c.which = 'rejected') AS rejected,
        count(*) FILTER (WHERE c.what = 'archived') AS evidence_archived,
        count(*) FILTER (WHERE c.what = 'check' AND c.which = 'failed') AS failed_checks,
        min(c.at) AS first_at,
        max(c.at) AS last_at
    FROM (
        SELECT
            sc.user_id,
            sc.run_date,
            'stale candidate' AS what,
            CAST(NULL AS text) AS which,
            CAST(NULL AS timestamptz) AS at
        FROM forgetting.stale_candidates AS sc
        UNION ALL
        SELECT
            cp.user_id,
            cp.run_date,
            'pair' AS what,
            NULL AS which,
            NULL AS at
        FROM forgetting.conflict_pairs AS cp
        UNION ALL
        SELECT
            i.user_id,
            i.run_date,
            'item' AS what,
            NULL AS which,
            NULL AS at
        FROM forgetting.items AS i
        UNION ALL
        SELECT
            v.user_id,
            v.run_date,
            'verdict' AS what,
            v.verdict AS which,
            -- A reused verdict has the time of the first one, which another partition recorded.
            CASE WHEN v.reused_from IS NULL THEN v.judged_at END AS at
        FROM forgetting.judged_verdicts AS v
        UNION ALL
        SELECT
            p.user_id,
            v.run_date,
            'proposal' AS what,
            p.status AS which,
            p.created_at AS at
        FROM retention_proposals AS p
        INNER JOIN forgetting.judged_verdicts AS v ON p.user_id = v.user_id AND p.id = v.id
        UNION ALL
        SELECT
            s.user_id,
            s.run_date,
            'archived' AS what,
            NULL AS which,
            s.archived_at AS at
        FROM forgetting.archival_sweep AS s
        UNION ALL
        SELECT
            newest.user_id,
            newest.run_date,
            'check' AS what,
            CASE WHEN newest.passed THEN 'passed' ELSE 'failed' END AS which,
            newest.checked_at AS at
        FROM (
            SELECT DISTINCT ON (r.user_id, r.run_date, r.asset, r.check_name)
                r.user_id,
                r.run_date,
                r.passed,
                r.checked_at
            FROM forgetting.invariant_results AS r
            ORDER BY
                r.user_id ASC, r.run_date ASC, r.asset ASC, r.check_name ASC, r.checked_at DESC,
                r.id DESC
        ) AS newest
    ) AS c
    GROUP BY c.user_id, c.run_date
) AS n
INNER JOIN tenants AS t ON n.user_id = t.user_id;

COMMENT ON VIEW analytics.run_summary IS
'What a partition found, judged, proposed and archived, one row a tenant and day. Counts and times, no text.';
COMMENT ON COLUMN analytics.run_summary.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN analytics.run_summary.user_id IS 'The tenant (users.id).';
COMMENT ON COLUMN analytics.run_summary.run_date IS 'The UTC day of the partition.';
COMMENT ON COLUMN analytics.run_summary.stale_candidates IS 'Singles that it selected.';
COMMENT ON COLUMN analytics.run_summary.pairs IS 'Pairs that it selected.';
COMMENT ON COLUMN analytics.run_summary.items IS
'What it puts to the judge: its pairs, and its singles that no pair covers.';
COMMENT ON COLUMN analytics.run_summary.verdicts IS
'Its verdicts, reused ones and those asked for again included: the rows of analytics.verdicts.';
COMMENT ON COLUMN analytics.run_summary.keeps IS 'Verdicts that keep.';
COMMENT ON COLUMN analytics.run_summary.archives IS 'Verdicts that archive.';
COMMENT ON COLUMN analytics.run_summary.supersedes IS 'Verdicts that supersede.';
COMMENT ON COLUMN analytics.run_summary.conflicts IS 'Verdicts that name a conflict.';
COMMENT ON COLUMN analytics.run_summary.proposed IS 'Its proposals that wait for a human now.';
COMMENT ON COLUMN analytics.run_summary.dismissed IS
'Its proposals that were never opened, keeps among them, or closed without a decision.';
COMMENT ON COLUMN analytics.run_summary.applied IS 'Its proposals that a human accepted.';
COMMENT ON COLUMN analytics.run_summary.rejected IS 'Its proposals that a human declined.';
COMMENT ON COLUMN analytics.run_summary.evidence_archived IS
'Entries that its sweep archived, those that came back since included.';
COMMENT ON COLUMN analytics.run_summary.failed_checks IS
'Checks whose newest result did not pass, warnings included.';
COMMENT ON COLUMN analytics.run_summary.first_at IS
'When the first verdict, proposal, archiving or newest result of a check was recorded, UTC; NULL = none.';
COMMENT ON COLUMN analytics.run_summary.last_at IS 'When the last of them was recorded, UTC; NULL = none.';

GRANT SELECT ON analytics.run_summary TO forgetting_runtime, forgetting_analyst;
