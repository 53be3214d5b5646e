-- How a tenant's memory is doing, one row a partition.

CREATE TABLE forgetting.memory_health (
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    measured_at timestamptz NOT NULL,
    live_memories integer NOT NULL CHECK (live_memories >= 0),
    stale_memories integer NOT NULL CHECK (stale_memories >= 0),
    archived_memories integer NOT NULL CHECK (archived_memories >= 0),
    superseded_memories integer NOT NULL CHECK (superseded_memories >= 0),
    hot_evidence integer NOT NULL CHECK (hot_evidence >= 0),
    idle_evidence integer NOT NULL CHECK (idle_evidence >= 0),
    archived_evidence integer NOT NULL CHECK (archived_evidence >= 0),
    oldest_hot_at timestamptz,
    open_proposals integer NOT NULL CHECK (open_proposals >= 0),
    oldest_open_at timestamptz,
    unresolved_conflicts integer NOT NULL CHECK (unresolved_conflicts >= 0),
    regretted integer NOT NULL CHECK (regretted >= 0),
    counts jsonb NOT NULL,
    PRIMARY KEY (user_id, run_date)
);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.memory_health']::regclass[]
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

GRANT SELECT, INSERT, DELETE ON forgetting.memory_health TO forgetting_runtime;

COMMENT ON TABLE forgetting.memory_health IS
'How a tenant''s memory was doing when a partition was materialized: counts and times, no text.';
COMMENT ON COLUMN forgetting.memory_health.run_date IS 'The UTC day of the partition.';
COMMENT ON COLUMN forgetting.memory_health.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.memory_health.measured_at IS 'When it was counted, UTC.';
COMMENT ON COLUMN forgetting.memory_health.live_memories IS 'Memories neither archived nor superseded.';
COMMENT ON COLUMN forgetting.memory_health.stale_memories IS
'Live decisions, preferences, blockers and facts that nothing touched for the stale window.';
COMMENT ON COLUMN forgetting.memory_health.archived_memories IS 'Memories that were archived.';
COMMENT ON COLUMN forgetting.memory_health.superseded_memories IS 'Memories whose validity ended.';
COMMENT ON COLUMN forgetting.memory_health.hot_evidence IS 'Evidence that retrieval may return.';
COMMENT ON COLUMN forgetting.memory_health.idle_evidence IS
'Hot episodic evidence that was never credited and that nothing used for the stale window.';
COMMENT ON COLUMN forgetting.memory_health.archived_evidence IS 'Evidence in the archive tier.';
COMMENT ON COLUMN forgetting.memory_health.oldest_hot_at IS
'When the oldest hot evidence happened, UTC; NULL = none has a known time.';
COMMENT ON COLUMN forgetting.memory_health.open_proposals IS 'Proposals that wait for a human.';
COMMENT ON COLUMN forgetting.memory_health.oldest_open_at IS
'When the oldest of them was proposed, UTC; NULL = none waits.';
COMMENT ON COLUMN forgetting.memory_health.unresolved_conflicts IS
'Conflicts that are proposed, or were accepted, and of which both memories are still live.';
COMMENT ON COLUMN forgetting.memory_health.regretted IS
'Archivings that a use within 14 days proved wrong, of evidence that is still there.';
COMMENT ON COLUMN forgetting.memory_health.counts IS
'The same counts in full: memories by type and state, evidence by kind and tier, open proposals by '
'action and age.';
