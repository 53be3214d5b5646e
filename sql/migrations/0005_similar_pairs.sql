-- The index of similar pairs: a pair is mined once and read every night. Nothing of it changes the
-- table memories, which may belong to another store.

-- Its vectors have a length now, and a view's column cannot change its type: it is laid anew.
DROP VIEW IF EXISTS forgetting.live_memories;

-- Memories are compared with each other when these four are equal, NULL projects too. The key is a
-- hash. A collision would cost a comparison and make no pair: what writes or selects a pair compares
-- the columns themselves.
CREATE FUNCTION forgetting.group_key(
    memory_type text, scope text, project text, embedding_model text
) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hash_record_extended(ROW($1, $2, $3, $4), 0) $$;

CREATE TABLE forgetting.minings (
    user_id uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    mined_at timestamptz NOT NULL,
    floors jsonb NOT NULL,
    lengths jsonb NOT NULL,
    server_id bigint NOT NULL,
    written_before xid8 NOT NULL
);

CREATE TABLE forgetting.mined_memories (
    user_id uuid NOT NULL,
    memory_id uuid NOT NULL,
    group_key bigint NOT NULL,
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
    code bytea NOT NULL,
    code_step real NOT NULL CHECK (code_step >= 0),
    code_error real NOT NULL CHECK (code_error >= 0),
    PRIMARY KEY (user_id, memory_id),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE INDEX mined_memories_group_idx ON forgetting.mined_memories (user_id, group_key);

CREATE TABLE forgetting.similar_pairs (
    user_id uuid NOT NULL,
    older_id uuid NOT NULL,
    newer_id uuid NOT NULL,
    similarity double precision NOT NULL CHECK (similarity BETWEEN -1 AND 1),
    embedding_model text NOT NULL,
    mined_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, older_id, newer_id),
    CHECK (older_id <> newer_id),
    -- A pair lasts as long as what was mined of both its sides.
    FOREIGN KEY (user_id, older_id)
    REFERENCES forgetting.mined_memories (user_id, memory_id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, newer_id)
    REFERENCES forgetting.mined_memories (user_id, memory_id) ON DELETE CASCADE
);

CREATE INDEX similar_pairs_newer_idx ON forgetting.similar_pairs (user_id, newer_id);

-- No side of a pair is episodic, here too. Once a statement: a first mining adds many thousands.
CREATE FUNCTION forgetting.refuse_episodic_mining() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public
AS $$
BEGIN
    PERFORM 1
    FROM added AS a
    INNER JOIN memories AS m ON a.user_id = m.user_id AND a.memory_id = m.id
    WHERE m.memory_type IN ('event', 'note');
    IF found THEN
        RAISE EXCEPTION 'zero episodic collapse: an event or a note may not enter %', tg_table_name
            USING ERRCODE = 'check_violation',
                  HINT = 'Episodic memories are never candidates, judged or proposed.';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER refuse_episodic_insert AFTER INSERT ON forgetting.mined_memories
REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION forgetting.refuse_episodic_mining();

CREATE TRIGGER refuse_episodic_update AFTER UPDATE ON forgetting.mined_memories
REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION forgetting.refuse_episodic_mining();

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY[
        'forgetting.minings', 'forgetting.mined_memories', 'forgetting.similar_pairs'
    ]::regclass[]
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

-- Pairs go with what was mined of their sides, and by no other way.
GRANT SELECT, INSERT, UPDATE ON forgetting.minings TO forgetting_runtime;
GRANT SELECT, INSERT, DELETE ON forgetting.mined_memories TO forgetting_runtime;
GRANT SELECT, INSERT ON forgetting.similar_pairs TO forgetting_runtime;

COMMENT ON FUNCTION forgetting.group_key IS
'A key of the memories that are compared with each other: one type, scope, project and embedding model.';

COMMENT ON TABLE forgetting.minings IS
'When similar pairs were last mined, at most one row a tenant. Without it everything is mined again.';
COMMENT ON COLUMN forgetting.minings.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.minings.mined_at IS 'When the last mining was, UTC.';
COMMENT ON COLUMN forgetting.minings.floors IS
'The least cosine similarity the index has whole, -1 to 1: a JSON object of embedding model and number. '
'Below it a pair may be missing.';
COMMENT ON COLUMN forgetting.minings.lengths IS
'How many values a vector has, a JSON object of embedding model and number.';
COMMENT ON COLUMN forgetting.minings.server_id IS
'The system identifier of the PostgreSQL server that mined: transaction ids of another say nothing here.';
COMMENT ON COLUMN forgetting.minings.written_before IS
'What transactions before this one wrote is in the index. Rows of later ones are looked at again.';

COMMENT ON TABLE forgetting.mined_memories IS
'What was mined of each memory, one row a memory. A memory that is embedded again, superseded, or changes '
'its type, scope or project is mined again. An archived one stays.';
COMMENT ON COLUMN forgetting.mined_memories.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.mined_memories.memory_id IS 'The memory (memories.id).';
COMMENT ON COLUMN forgetting.mined_memories.group_key IS
'The key of its type, scope, project and embedding model; only memories of one group are compared.';
COMMENT ON COLUMN forgetting.mined_memories.fingerprint IS
'SHA-256 of its vector and its time of creation: what its pairs depend on within the group.';
COMMENT ON COLUMN forgetting.mined_memories.code IS
'Its vector at length 1, rounded to one signed byte a value, in units of code_step.';
COMMENT ON COLUMN forgetting.mined_memories.code_step IS
'What one unit of code is worth. 0 = a zero vector, which is like no other.';
COMMENT ON COLUMN forgetting.mined_memories.code_error IS
'How far code is from the vector at length 1, at most; a cosine taken with it is off by no more.';

COMMENT ON TABLE forgetting.similar_pairs IS
'Memories of one group whose vectors are close, one row a pair: the index that conflict pairs are selected '
'from. A row says nothing of whether the pair is live, judged or due.';
COMMENT ON COLUMN forgetting.similar_pairs.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.similar_pairs.older_id IS 'The older side (memories.id).';
COMMENT ON COLUMN forgetting.similar_pairs.newer_id IS
'The newer side (memories.id): the one with the greater (created_at, id).';
COMMENT ON COLUMN forgetting.similar_pairs.similarity IS
'Cosine similarity of the two sides, -1 to 1, at or above the floor of the model when it was mined.';
COMMENT ON COLUMN forgetting.similar_pairs.embedding_model IS
'The model that made both vectors; unknown = not recorded.';
COMMENT ON COLUMN forgetting.similar_pairs.mined_at IS 'When the pair was mined, UTC.';
COMMENT ON COLUMN forgetting.embedding_models.embedding_model IS
'The model that made memories.embedding. The similarity floor is set for each model. A memory without a row '
'counts as of the model unknown.';
COMMENT ON COLUMN forgetting.conflict_pairs.embedding_model IS
'The model that made the vectors compared; unknown, before 2026-12 NULL = not recorded.';
