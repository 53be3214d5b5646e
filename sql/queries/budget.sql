-- The metered call: reserve, send, record, release. The tenant's lock makes reserving atomic.

-- name: lock_budget
-- One reservation of a tenant at a time.
SELECT pg_advisory_xact_lock(hashtextextended('forgetting-budget:' || :user_id, 0));

-- name: read_spend
-- What counts against the cap now: priced calls, unpriced calls at the ceiling, and reservations
-- that are not older than their life.
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
        WHERE r.user_id = :user_id AND r.created_at >= :reserved_since
    ), 0) AS reserved_usd
FROM period AS p;

-- name: insert_reservation
-- Hold the estimated cost of one call.
INSERT INTO budget_reservations (user_id, estimated_cost_usd, created_at)
VALUES (:user_id, :estimate, :now)
RETURNING id;

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
