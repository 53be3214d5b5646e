-- What came back from the archive tier, and when: a revived entry stays hot for a window of its own.

CREATE TABLE forgetting.revivals (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    evidence_id uuid NOT NULL,
    revived_at timestamptz NOT NULL,
    archived_run_date date NOT NULL,
    reason text NOT NULL CHECK (reason IN ('asked', 'unforget')),
    FOREIGN KEY (user_id, evidence_id) REFERENCES evidence (user_id, id) ON DELETE CASCADE
);

CREATE INDEX revivals_evidence_idx ON forgetting.revivals (user_id, evidence_id, revived_at);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.revivals']::regclass[]
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format(
            'CREATE POLICY tenant_isolation ON %s '
            'USING (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid) '
            'WITH CHECK (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid)',
            tenant_table
        );
    END LOOP;
END
$$;

GRANT SELECT, INSERT ON forgetting.revivals TO forgetting_runtime;

COMMENT ON TABLE forgetting.revivals IS
'Evidence that came back from the archive tier, one row a time. Rows are only ever added.';
COMMENT ON COLUMN forgetting.revivals.id IS 'The record.';
COMMENT ON COLUMN forgetting.revivals.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.revivals.evidence_id IS 'The entry (evidence.id).';
COMMENT ON COLUMN forgetting.revivals.revived_at IS
'When it came back, UTC. No sweep archives it again before the window has passed since.';
COMMENT ON COLUMN forgetting.revivals.archived_run_date IS 'The UTC day whose sweep had archived it.';
COMMENT ON COLUMN forgetting.revivals.reason IS
'asked: somebody named it. unforget: a sweep revived it under FORGETTING_UNFORGET.';
