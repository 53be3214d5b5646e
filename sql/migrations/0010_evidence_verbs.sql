-- What the verbs of evidence need: since when uses are recorded, vectors to retrieve by, early uses of
-- what was archived, and what was forgotten for good.

ALTER TABLE tenants ADD COLUMN tracked_since timestamptz;

-- Nothing says since when uses were recorded, so a tenant whose archival is on warms up anew.
UPDATE tenants SET tracked_since = now()
WHERE archival_enabled;

ALTER TABLE evidence
ADD COLUMN embedding vector(1536),
ADD COLUMN embedding_model text,
ADD CONSTRAINT evidence_embedding_names_its_model CHECK (
    (embedding IS NULL) = (embedding_model IS NULL)
);

CREATE INDEX evidence_session_idx ON evidence (user_id, session_id);

ALTER TABLE forgetting.archival_sweep ADD COLUMN tracked_since timestamptz;

ALTER TABLE forgetting.revivals
DROP CONSTRAINT revivals_reason_check,
ADD CONSTRAINT revivals_reason_check CHECK (reason IN ('asked', 'credited', 'unforget'));

CREATE TABLE forgetting.regrets (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    evidence_id uuid NOT NULL,
    archived_at timestamptz NOT NULL,
    used_at timestamptz NOT NULL,
    use text NOT NULL CHECK (use IN ('dereference', 'touch', 'credit')),
    PRIMARY KEY (user_id, evidence_id, archived_at),
    FOREIGN KEY (user_id, evidence_id) REFERENCES evidence (user_id, id) ON DELETE CASCADE,
    CHECK (used_at >= archived_at)
);

CREATE TABLE forgetting.forgotten (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    -- No foreign key: the entry is gone.
    evidence_id uuid NOT NULL,
    batch_id uuid NOT NULL,
    what text NOT NULL CHECK (what IN ('lesson', 'session')),
    kind text NOT NULL,
    forgotten_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, evidence_id)
);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY['forgetting.regrets', 'forgetting.forgotten']::regclass[]
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

-- The one way in which evidence is deleted: a person forgets a lesson or a session. The runtime role
-- may delete no evidence by itself. What the sweep logged of an entry loses the digest of its text.
CREATE FUNCTION forgetting.forget(lesson uuid, session text, batch uuid, at timestamptz)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    tenant uuid := nullif(current_setting('app.user_id', true), '')::uuid;
    gone integer;
BEGIN
    IF (lesson IS NULL) = (session IS NULL) THEN
        RAISE EXCEPTION 'forget takes a lesson or a session, exactly one of the two'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- In the order of the ids, as every use locks them: neither waits for the other for ever.
    PERFORM 1 FROM evidence AS e
    WHERE e.user_id = tenant
        AND ((e.id = lesson AND e.kind = 'lesson') OR e.session_id = session)
    ORDER BY e.id
    FOR UPDATE;
    WITH deleted AS (
        DELETE FROM evidence AS e
        WHERE e.user_id = tenant
            AND ((e.id = lesson AND e.kind = 'lesson') OR e.session_id = session)
        RETURNING e.id, e.kind
    )
    INSERT INTO forgetting.forgotten (user_id, evidence_id, batch_id, what, kind, forgotten_at)
    SELECT tenant, d.id, batch, CASE WHEN session IS NULL THEN 'lesson' ELSE 'session' END, d.kind, at
    FROM deleted AS d;
    GET DIAGNOSTICS gone = ROW_COUNT;
    UPDATE forgetting.archival_sweep AS s
    SET content_sha256 = ''
    FROM forgetting.forgotten AS f
    WHERE f.user_id = tenant AND f.batch_id = batch
        AND s.user_id = tenant AND s.evidence_id = f.evidence_id;
    RETURN gone;
END
$$;

REVOKE ALL ON FUNCTION forgetting.forget(uuid, text, uuid, timestamptz) FROM public;
GRANT EXECUTE ON FUNCTION forgetting.forget(uuid, text, uuid, timestamptz) TO forgetting_runtime;
GRANT SELECT, INSERT ON forgetting.regrets TO forgetting_runtime;
GRANT SELECT ON forgetting.forgotten TO forgetting_runtime;

COMMENT ON COLUMN tenants.tracked_since IS
'Since when every use of the tenant''s evidence is recorded, UTC; NULL = it is not. Before a window '
'has passed since, no record of use does not mean unused, and nothing is archived.';
COMMENT ON COLUMN evidence.embedding IS 'Its vector, for retrieval; NULL = it cannot be searched for.';
COMMENT ON COLUMN evidence.embedding_model IS 'The model that made the vector; NULL = no vector.';
COMMENT ON COLUMN forgetting.archival_sweep.tracked_since IS
'Since when its uses had been recorded, UTC; NULL = archived by a release that did not ask.';
COMMENT ON COLUMN forgetting.archival_sweep.content_sha256 IS
'SHA-256 of its bytes in hex when it was archived; empty once the entry was forgotten for good.';
COMMENT ON COLUMN forgetting.revivals.reason IS
'asked: somebody named it. credited: an outcome was attributed to it. unforget: a sweep revived it '
'under FORGETTING_UNFORGET.';
COMMENT ON TABLE forgetting.regrets IS
'Archived evidence that was used within 14 days all the same, one row an archiving: the sweep was wrong.';
COMMENT ON COLUMN forgetting.regrets.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.regrets.evidence_id IS 'The entry (evidence.id).';
COMMENT ON COLUMN forgetting.regrets.archived_at IS 'When it had been archived, UTC.';
COMMENT ON COLUMN forgetting.regrets.used_at IS 'When it was first used since, UTC.';
COMMENT ON COLUMN forgetting.regrets.use IS
'dereference: read by its id. touch: reported as retrieved. credit: an outcome was attributed to it.';
COMMENT ON TABLE forgetting.forgotten IS
'Evidence that a person deleted for good, one row an entry, without anything that it said. Rows are '
'only ever added.';
COMMENT ON COLUMN forgetting.forgotten.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.forgotten.evidence_id IS 'The entry that is gone.';
COMMENT ON COLUMN forgetting.forgotten.batch_id IS 'One for all entries of one forget.';
COMMENT ON COLUMN forgetting.forgotten.what IS 'lesson: it was named itself. session: its session was.';
COMMENT ON COLUMN forgetting.forgotten.kind IS 'What it was; see evidence.kind.';
COMMENT ON COLUMN forgetting.forgotten.forgotten_at IS 'When it was deleted, UTC.';
