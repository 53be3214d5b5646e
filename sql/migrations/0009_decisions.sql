-- What people decided, each decision with what undoing it needs.

CREATE TABLE forgetting.decisions (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    batch_id uuid NOT NULL,
    proposal_id uuid NOT NULL REFERENCES retention_proposals (id) ON DELETE CASCADE,
    decision text NOT NULL CHECK (decision IN ('accept', 'reject', 'undo')),
    memories_changed integer NOT NULL CHECK (memories_changed >= 0),
    updated_at_before timestamptz,
    decided_at timestamptz NOT NULL
);

CREATE INDEX decisions_proposal_idx ON forgetting.decisions (user_id, proposal_id, id);
CREATE INDEX decisions_batch_idx ON forgetting.decisions (user_id, batch_id);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.decisions']::regclass[]
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

-- The one edge that may go: what accepting a supersede wrote, when that is undone. The runtime role
-- may delete no edge by itself.
CREATE FUNCTION forgetting.remove_accepted_edge(proposal uuid) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM memory_edges AS e
    USING retention_proposals AS p
    WHERE
        p.id = proposal
        AND p.user_id = nullif(current_setting('app.user_id', true), '')::uuid
        AND p.status = 'applied' AND p.action = 'supersede'
        AND e.user_id = p.user_id AND e.edge_type = 'supersedes'
        AND e.from_id = p.related_memory_id AND e.to_id = p.memory_id
        AND e.created_by = 'forgetting_review' AND e.created_at = p.decided_at;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

REVOKE ALL ON FUNCTION forgetting.remove_accepted_edge(uuid) FROM public;
GRANT EXECUTE ON FUNCTION forgetting.remove_accepted_edge(uuid) TO forgetting_runtime;
GRANT SELECT, INSERT ON forgetting.decisions TO forgetting_runtime;

COMMENT ON TABLE forgetting.decisions IS
'What people decided about proposals, one row a decision, an undoing included. Rows are only ever added.';
COMMENT ON COLUMN forgetting.decisions.id IS 'The decision.';
COMMENT ON COLUMN forgetting.decisions.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.decisions.batch_id IS 'One for all decisions of one command.';
COMMENT ON COLUMN forgetting.decisions.proposal_id IS 'The proposal (retention_proposals.id).';
COMMENT ON COLUMN forgetting.decisions.decision IS
'accept, reject, or undo: the decision before it was taken back and the proposal is open again.';
COMMENT ON COLUMN forgetting.decisions.memories_changed IS 'How many memories it changed, 0 or 1.';
COMMENT ON COLUMN forgetting.decisions.updated_at_before IS
'updated_at of the memory before an accept changed it, UTC. NULL = no memory was changed.';
COMMENT ON COLUMN forgetting.decisions.decided_at IS 'When it was decided, UTC.';
