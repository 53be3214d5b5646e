-- Why an open proposal was closed without anybody's decision. A closed proposal is dismissed, which is
-- not a rejection.

-- So that no row about a proposal can be another tenant's.
ALTER TABLE retention_proposals ADD UNIQUE (user_id, id);

ALTER TABLE forgetting.decisions
ADD FOREIGN KEY (user_id, proposal_id) REFERENCES retention_proposals (user_id, id) ON DELETE CASCADE;

CREATE TABLE forgetting.closures (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    proposal_id uuid NOT NULL,
    reason text NOT NULL CHECK (reason IN ('expired', 'overtaken', 'replaced')),
    closed_at timestamptz NOT NULL,
    FOREIGN KEY (user_id, proposal_id) REFERENCES retention_proposals (user_id, id) ON DELETE CASCADE
);

CREATE INDEX closures_proposal_idx ON forgetting.closures (user_id, proposal_id, id);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.closures']::regclass[]
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

GRANT SELECT, INSERT ON forgetting.closures TO forgetting_runtime;

COMMENT ON TABLE forgetting.closures IS
'Open proposals that were closed without a decision, one row a closing. Rows are only ever added.';
COMMENT ON COLUMN forgetting.closures.id IS 'The closing.';
COMMENT ON COLUMN forgetting.closures.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.closures.proposal_id IS 'The proposal (retention_proposals.id).';
COMMENT ON COLUMN forgetting.closures.reason IS
'expired: nobody decided it in time. overtaken: a side changed, was reviewed, ended or became '
'episodic since the verdict. replaced: its item was judged anew.';
COMMENT ON COLUMN forgetting.closures.closed_at IS 'When it was closed, UTC.';
