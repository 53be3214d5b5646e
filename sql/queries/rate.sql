-- One token rate for all runs of the deployment, as a row that says until when it is taken.

-- name: take_tokens
-- Take the time that some tokens need, after all that is taken, and say how long to wait for it. What
-- was not used is saved up for :burst at most. A row further ahead than :horizon was written by a clock
-- that is wrong, so it counts as now. Nothing is taken and no row comes back when the wait would pass
-- :patience.
WITH current AS (
    SELECT
        CASE
            WHEN r.taken_until > :now + :horizon THEN :now
            ELSE greatest(r.taken_until, :now - :burst)
        END AS begins
    FROM forgetting.token_rate AS r
    FOR UPDATE
)

UPDATE forgetting.token_rate AS r
SET taken_until = c.begins + :duration
FROM current AS c
WHERE c.begins <= :now + :patience
RETURNING greatest(c.begins - :now, interval '0 seconds') AS wait;
