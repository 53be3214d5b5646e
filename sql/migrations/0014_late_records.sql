-- The sweep's probe also has when an entry was recorded: what was recorded after a partition's end, as
-- by a bulk import, is then passed over in the index, without a look at its row.

DROP INDEX evidence_due_idx;

CREATE INDEX evidence_due_idx
ON evidence (user_id, greatest(occurred_at, last_retrieved_at, last_outcome_at), id, recorded_at)
WHERE archived_at IS NULL AND occurred_at IS NOT NULL
AND success_count = 0 AND reinforcement_count = 0
AND kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome');
