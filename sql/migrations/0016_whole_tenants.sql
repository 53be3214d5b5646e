-- What leaving needs: an export reads every row of a tenant as the runtime role, and erasing a tenant
-- finds what refers to each memory by an index.

-- Who may read a tenant belongs to its export. The runtime role sees the grants of the transaction's
-- tenant alone, and writes none.
CREATE POLICY runtime_reads ON analytics.tenant_grants FOR SELECT TO forgetting_runtime
USING (user_id = nullif(current_setting('app.user_id', true), '')::uuid);

GRANT SELECT ON analytics.tenant_grants TO forgetting_runtime;

-- Deleting a memory asks each of these whether a row refers to it.
CREATE INDEX conflict_pairs_older_idx ON forgetting.conflict_pairs (user_id, older_id);
CREATE INDEX conflict_pairs_newer_idx ON forgetting.conflict_pairs (user_id, newer_id);
CREATE INDEX stale_candidates_memory_idx ON forgetting.stale_candidates (user_id, memory_id);
CREATE INDEX judged_verdicts_newer_idx
ON forgetting.judged_verdicts (user_id, newer_id) WHERE newer_id IS NOT null;
CREATE INDEX judged_verdicts_related_idx
ON forgetting.judged_verdicts (user_id, related_memory_id) WHERE related_memory_id IS NOT null;
CREATE INDEX retention_proposals_memory_idx ON retention_proposals (user_id, memory_id);
CREATE INDEX retention_proposals_related_idx
ON retention_proposals (user_id, related_memory_id) WHERE related_memory_id IS NOT null;
CREATE INDEX consolidation_proposals_to_idx ON consolidation_proposals (user_id, to_id);
CREATE INDEX unjudged_items_memory_idx ON forgetting.unjudged_items (user_id, memory_id);
CREATE INDEX unjudged_items_newer_idx
ON forgetting.unjudged_items (user_id, newer_id) WHERE newer_id IS NOT null;

COMMENT ON TABLE analytics.tenant_grants IS
'Which tenants an analyst may read, one row a grant. `forgetting tenants grant` and `revoke` keep it. '
'The runtime role reads those of its transaction''s tenant, for an export.';
