-- What the nightly queries look up in tables that only grow.

CREATE INDEX judged_verdicts_input_idx
ON forgetting.judged_verdicts (user_id, input_digest, model);

CREATE INDEX retention_proposals_rejected_idx
ON retention_proposals (user_id, memory_id) WHERE status = 'rejected';
