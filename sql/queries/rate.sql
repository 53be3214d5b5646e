-- One token rate for all runs of the deployment, as a row that says until when it is taken.

-- name: take_tokens
-- Take the time that some tokens need, after all that is taken, and say how long to wait for it. What
-- was not used is saved up for :burst at most. A row further ahead than :horizon was written under
-- other settings, so it counts as now. Nothing is taken and no row comes back when the wait would pass
-- :patience. Without a :now the server's clock counts, the only one that all runs share.
WITH clock AS (
    SELECT coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now
),

free AS (
    SELECT
        c.now,
        CASE
            WHEN r.taken_until > c.now + :horizon THEN c.now
            ELSE greatest(r.taken_until, c.now - :burst)
        END AS begins
    FROM forgetting.token_rate AS r
    CROSS JOIN clock AS c
    FOR UPDATE OF r
)

UPDATE forgetting.token_rate AS r
SET taken_until = f.begins + :duration
FROM free AS f
WHERE f.begins <= f.now + :patience
RETURNING greatest(f.begins - f.now, interval '0 seconds') AS wait;
