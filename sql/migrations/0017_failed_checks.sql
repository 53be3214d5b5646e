-- What did not pass is found without the results that did, which are nearly all: alerts and metrics look
-- for it every few minutes, for every tenant.

CREATE INDEX invariant_results_failed_idx
ON forgetting.invariant_results (user_id, checked_at)
WHERE NOT passed;
