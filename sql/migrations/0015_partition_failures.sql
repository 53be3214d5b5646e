-- What failed of a partition, so that a run over many tenants can go on with the others and name it in
-- the end.

CREATE TABLE forgetting.partition_failures (
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    step text NOT NULL,
    asset text NOT NULL,
    reason text NOT NULL,
    run_id text NOT NULL,
    failed_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, run_date, step, run_id)
);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.partition_failures']::regclass[]
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

GRANT SELECT, INSERT, UPDATE, DELETE ON forgetting.partition_failures TO forgetting_runtime;

COMMENT ON TABLE forgetting.partition_failures IS
'A step of a partition that failed in a run and has not succeeded since, in any run.';
COMMENT ON COLUMN forgetting.partition_failures.run_date IS 'The UTC day of the partition.';
COMMENT ON COLUMN forgetting.partition_failures.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.partition_failures.step IS
'The Dagster step that failed: an asset, or a blocking check of one.';
COMMENT ON COLUMN forgetting.partition_failures.asset IS 'The asset of that step.';
COMMENT ON COLUMN forgetting.partition_failures.reason IS
'Why, in a sentence that names ids and figures and no text; of a foreign error its class and place.';
COMMENT ON COLUMN forgetting.partition_failures.run_id IS 'The Dagster run it failed in.';
COMMENT ON COLUMN forgetting.partition_failures.failed_at IS 'When it failed, UTC.';
