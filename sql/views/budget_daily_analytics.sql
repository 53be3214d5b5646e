-- What an analyst reads of spending.
CREATE OR REPLACE VIEW analytics.budget_daily WITH (security_invoker = TRUE) AS
SELECT
    t.slug AS tenant,
    u.user_id,
    u.day,
    u.calls,
    u.unpriced_calls,
    u.input_tokens,
    u.output_tokens,
    u.cost_usd
FROM (
    SELECT
        c.user_id,
        CAST(c.created_at AT TIME ZONE 'UTC' AS date) AS day,
        count(*) AS calls,
        count(*) FILTER (WHERE c.cost_usd IS NULL) AS unpriced_calls,
        coalesce(sum(c.input_tokens), 0) AS input_tokens,
        coalesce(sum(c.output_tokens), 0) AS output_tokens,
        coalesce(sum(c.cost_usd), 0) AS cost_usd
    FROM llm_usage AS c
    GROUP BY c.user_id, CAST(c.created_at AT TIME ZONE 'UTC' AS date)
) AS u
INNER JOIN tenants AS t ON u.user_id = t.user_id;

COMMENT ON VIEW analytics.budget_daily IS
'What a tenant''s calls cost on a UTC day, one row a tenant and day that has calls.';
COMMENT ON COLUMN analytics.budget_daily.tenant IS 'The tenant''s slug.';
COMMENT ON COLUMN analytics.budget_daily.user_id IS 'The tenant (users.id).';
COMMENT ON COLUMN analytics.budget_daily.day IS 'The UTC day on which the calls were booked.';
COMMENT ON COLUMN analytics.budget_daily.calls IS 'Calls that were booked, for any operation.';
COMMENT ON COLUMN analytics.budget_daily.unpriced_calls IS
'Those of them whose cost is not known; the budget counts each at its ceiling.';
COMMENT ON COLUMN analytics.budget_daily.input_tokens IS 'Tokens sent, where the usage is known.';
COMMENT ON COLUMN analytics.budget_daily.output_tokens IS 'Tokens answered, where the usage is known.';
COMMENT ON COLUMN analytics.budget_daily.cost_usd IS
'US dollars of the calls whose cost is known; 0 = of none, or nothing.';

GRANT SELECT ON analytics.budget_daily TO forgetting_runtime, forgetting_analyst;
