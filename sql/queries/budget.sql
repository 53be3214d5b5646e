-- The metered call: reserve, send, settle. Locks make reserving atomic; a call is written down before
-- it is sent, so that one whose process dies is known to have been sent.

-- name: lock_budget
-- One reservation of a tenant at a time.
SELECT pg_advisory_xact_lock(hashtextextended('forgetting-budget:' || :user_id, 0));

-- name: lock_deployment_budget
-- One reservation of the deployment at a time; always taken after the tenant's lock.
SELECT pg_advisory_xact_lock(hashtextextended('forgetting-deployment-budget', 0));

-- name: read_spend
-- What counts against the cap now: priced calls, unpriced calls at the ceiling, and reservations
-- that are not older than their life or whose call never came back.
WITH period AS MATERIALIZED (
    SELECT
        b.cap_usd_override,
        CASE
            WHEN b.period_start <= :now AND :now < b.period_end THEN b.period_start
            ELSE :window_start
        END AS counted_since
    FROM (VALUES (1)) AS one (row_number)
    LEFT JOIN user_budgets AS b ON b.user_id = :user_id
)

SELECT
    coalesce(p.cap_usd_override, :default_cap) AS cap_usd,
    coalesce((
        SELECT sum(coalesce(u.cost_usd, :ceiling))
        FROM llm_usage AS u
        WHERE
            u.user_id = :user_id
            AND u.created_at >= p.counted_since
    ), 0) AS spent_usd,
    coalesce((
        SELECT sum(r.estimated_cost_usd)
        FROM budget_reservations AS r
        WHERE
            r.user_id = :user_id
            AND (
                r.created_at >= :reserved_since
                OR EXISTS (
                    SELECT 1
                    FROM forgetting.calls_under_way AS c
                    WHERE c.user_id = :user_id AND c.id = r.id
                )
            )
    ), 0) AS reserved_usd
FROM period AS p;

-- name: read_deployment_spend
-- What all tenants together spent on judging since a day, with what is under way at its ceiling.
SELECT coalesce(sum(d.committed_usd), 0) AS committed_usd
FROM forgetting.deployment_spend AS d
WHERE d.day >= :first_day;

-- name: commit_deployment_spend
-- Add to a day's spend of the deployment, or take back what a call did not cost after all.
INSERT INTO forgetting.deployment_spend AS d (day, committed_usd)
VALUES (:day, greatest(:usd, 0))
ON CONFLICT (day) DO UPDATE SET committed_usd = greatest(d.committed_usd + :usd, 0);

-- name: insert_reservation
-- Hold the estimated cost of one call.
INSERT INTO budget_reservations (user_id, estimated_cost_usd, created_at)
VALUES (:user_id, :estimate, :now)
RETURNING id;

-- name: announce_call
-- Write a call down before it is sent.
INSERT INTO forgetting.calls_under_way (user_id, id, operation, model, announced_at)
VALUES (:user_id, :id, :operation, :model, :now);

-- name: end_call
-- The call came back, or was not sent.
DELETE FROM forgetting.calls_under_way
WHERE user_id = :user_id AND id = :id;

-- name: delete_reservation
-- Let the held amount go.
DELETE FROM budget_reservations
WHERE user_id = :user_id AND id = :id;

-- name: insert_usage
-- One call that was sent. A cost of NULL is unpriced.
INSERT INTO llm_usage (
    user_id, operation, model, input_tokens, output_tokens, cost_usd, created_at
)
VALUES (:user_id, :operation, :model, :input_tokens, :output_tokens, :cost_usd, :now);

-- name: book_lost_calls
-- Calls that were announced and never came back, as usage of unknown cost: they may have been charged.
WITH lost AS (
    DELETE FROM forgetting.calls_under_way AS c
    WHERE c.user_id = :user_id AND c.operation = :operation
    RETURNING c.id, c.operation, c.model, c.announced_at
),

freed AS (
    DELETE FROM budget_reservations AS r
    USING lost AS l
    WHERE r.user_id = :user_id AND r.id = l.id
)

INSERT INTO llm_usage (user_id, operation, model, created_at)
SELECT
    :user_id AS user_id,
    l.operation,
    l.model,
    l.announced_at AS created_at
FROM lost AS l;
