-- What analysts read, by a role of their own: the tenants they were granted and no others, and of
-- those no text. The views stand in sql/views.

CREATE SCHEMA analytics;

DO $$
BEGIN
    -- Roles belong to the whole server: another database's migration may have made it already.
    CREATE ROLE forgetting_analyst LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;

CREATE TABLE analytics.tenant_grants (
    -- No role can be referred to: a name is what a policy sees of who asks.
    grantee name NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    granted_at timestamptz NOT NULL,
    PRIMARY KEY (grantee, user_id)
);

-- Not forced: the owner grants and revokes, superuser or not, and nobody else may write here.
ALTER TABLE analytics.tenant_grants ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_grants ON analytics.tenant_grants FOR SELECT TO forgetting_analyst
USING (grantee = current_user);

-- Not forced either: the owner registers what a grant is for. The runtime role sees every tenant, as
-- before.
ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
CREATE POLICY runtime_everything ON tenants TO forgetting_runtime USING (TRUE) WITH CHECK (TRUE);

-- The policy tenant_isolation holds for every role, and anybody may set app.user_id. So a second
-- policy shows an analyst the granted tenants, and a restrictive one nothing beyond them. As an
-- array the grants are read once a statement, and an index on user_id can be used.
DO $$
DECLARE
    read_table regclass;
    kind text;
BEGIN
    FOREACH read_table IN ARRAY ARRAY[
        'tenants', 'retention_proposals', 'evidence', 'llm_usage', 'forgetting.conflict_pairs',
        'forgetting.stale_candidates', 'forgetting.judged_verdicts', 'forgetting.archival_sweep',
        'forgetting.invariant_results', 'forgetting.revivals', 'forgetting.regrets',
        'forgetting.decisions', 'forgetting.closures'
    ]::regclass[]
    LOOP
        FOREACH kind IN ARRAY ARRAY['analyst_reads ON %s AS PERMISSIVE', 'analyst_limit ON %s AS RESTRICTIVE']
        LOOP
            EXECUTE format(
                'CREATE POLICY ' || kind || ' FOR SELECT TO forgetting_analyst '
                'USING (user_id = ANY (ARRAY('
                'SELECT g.user_id FROM analytics.tenant_grants AS g WHERE g.grantee = current_user)))',
                read_table
            );
        END LOOP;
    END LOOP;
END
$$;

-- Columns and not tables: what is not listed here, and each text of a memory or of evidence, stays out
-- of an analyst's reach.
GRANT USAGE ON SCHEMA public, forgetting, analytics TO forgetting_analyst;
GRANT SELECT (grantee, user_id, granted_at) ON analytics.tenant_grants TO forgetting_analyst;
GRANT SELECT (slug, user_id) ON tenants TO forgetting_analyst;
GRANT SELECT (
    id, user_id, memory_id, action, related_memory_id, probability, model, status, decided_at, created_at
) ON retention_proposals TO forgetting_analyst;
GRANT SELECT (
    id, user_id, kind, occurred_at, recorded_at, success_count, reinforcement_count,
    last_retrieved_at, last_outcome_at, archived_at, archived_run_date
) ON evidence TO forgetting_analyst;
GRANT SELECT (user_id, input_tokens, output_tokens, cost_usd, created_at) ON llm_usage
TO forgetting_analyst;
GRANT SELECT (run_date, user_id, older_id, newer_id) ON forgetting.conflict_pairs
TO forgetting_analyst;
GRANT SELECT (run_date, user_id, memory_id) ON forgetting.stale_candidates TO forgetting_analyst;
GRANT SELECT (
    id, run_date, user_id, kind, memory_id, memory_type, verdict, related_memory_id, probability,
    probabilities, model, answer_model, judged_at, reused_from
) ON forgetting.judged_verdicts TO forgetting_analyst;
GRANT SELECT (run_date, user_id, evidence_id, archived_at) ON forgetting.archival_sweep
TO forgetting_analyst;
GRANT SELECT (id, run_date, user_id, asset, check_name, passed, checked_at)
ON forgetting.invariant_results TO forgetting_analyst;
GRANT SELECT (user_id, evidence_id) ON forgetting.revivals TO forgetting_analyst;
GRANT SELECT (user_id, evidence_id) ON forgetting.regrets TO forgetting_analyst;
GRANT SELECT (id, user_id, proposal_id, decision) ON forgetting.decisions TO forgetting_analyst;
GRANT SELECT (id, user_id, proposal_id, reason, closed_at) ON forgetting.closures TO forgetting_analyst;
GRANT USAGE ON SCHEMA analytics TO forgetting_runtime;

-- PUBLIC may execute a function until somebody takes that away. Triggers fire without the right.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA forgetting FROM public;
GRANT EXECUTE ON FUNCTION forgetting.group_key(text, text, text, text) TO forgetting_runtime;

COMMENT ON TABLE tenants IS
'The users the pass knows: the slug of each and what each opted in to. The runtime role sees every row, '
'an analyst the granted tenants alone.';
COMMENT ON TABLE analytics.tenant_grants IS
'Which tenants an analyst may read, one row a grant. `forgetting tenants grant` and `revoke` keep it.';
COMMENT ON COLUMN analytics.tenant_grants.grantee IS
'The role that may read: forgetting_analyst itself, or a login that is a member of it. Each sees its own '
'grants only.';
COMMENT ON COLUMN analytics.tenant_grants.user_id IS 'The tenant it may read (users.id).';
COMMENT ON COLUMN analytics.tenant_grants.granted_at IS 'When it was granted, UTC.';
