-- Row-level security on every table that holds a tenant's rows, and what the runtime role may do.
-- The runtime role never deletes a memory, an edge, a proposal, a verdict or evidence.

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY[
        'memories', 'memory_edges', 'memory_events', 'consolidation_proposals',
        'retention_proposals', 'evidence', 'memory_evidence', 'llm_usage', 'user_budgets',
        'budget_reservations', 'forgetting.embedding_models', 'forgetting.conflict_pairs',
        'forgetting.stale_candidates', 'forgetting.judged_verdicts', 'forgetting.archival_sweep',
        'forgetting.invariant_results'
    ]::regclass[]
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', tenant_table);
        -- NULLIF: a pooled backend reads '' after a reset.
        EXECUTE format(
            'CREATE POLICY tenant_isolation ON %s '
            'USING (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid) '
            'WITH CHECK (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid)',
            tenant_table
        );
    END LOOP;
END
$$;

DO $$
BEGIN
    -- Roles belong to the whole server: another database's migration may have made it already.
    CREATE ROLE forgetting_runtime LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;

DO $$
BEGIN
    -- An owner that is no superuser must be able to give the runtime role Dagster's database.
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        EXECUTE format('GRANT forgetting_runtime TO %I WITH INHERIT FALSE, SET TRUE', current_user);
    END IF;
EXCEPTION
    -- Somebody else made the role; the owner then makes that database by hand.
    WHEN insufficient_privilege THEN NULL;
END
$$;

GRANT USAGE ON SCHEMA public, forgetting TO forgetting_runtime;
GRANT SELECT, INSERT, UPDATE ON
users, tenants, memories, memory_edges, consolidation_proposals, retention_proposals,
evidence, memory_evidence, user_budgets, forgetting.embedding_models
TO forgetting_runtime;
GRANT SELECT, INSERT ON
memory_events, llm_usage, forgetting.judged_verdicts, forgetting.archival_sweep,
forgetting.invariant_results
TO forgetting_runtime;
GRANT SELECT, INSERT, DELETE ON
budget_reservations, forgetting.conflict_pairs, forgetting.stale_candidates
TO forgetting_runtime;
GRANT SELECT ON forgetting.deployment, forgetting.schema_version TO forgetting_runtime;
