-- The pass's own tables, one an asset, and what the invariant and the demo need.

CREATE TABLE forgetting.deployment (
    singleton boolean PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    demo boolean NOT NULL DEFAULT FALSE
);

INSERT INTO forgetting.deployment DEFAULT VALUES;

CREATE TABLE forgetting.embedding_models (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_id uuid NOT NULL,
    embedding_model text NOT NULL,
    PRIMARY KEY (user_id, memory_id),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE TABLE forgetting.conflict_pairs (
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    rank integer NOT NULL CHECK (rank >= 1),
    older_id uuid NOT NULL,
    newer_id uuid NOT NULL,
    memory_type text NOT NULL CHECK (memory_type IN ('decision', 'preference', 'fact')),
    similarity double precision NOT NULL CHECK (similarity BETWEEN -1.000001 AND 1.000001),
    older_is_stale boolean NOT NULL,
    embedding_model text,
    floor double precision NOT NULL,
    PRIMARY KEY (user_id, run_date, rank),
    UNIQUE (user_id, run_date, older_id),
    UNIQUE (user_id, run_date, newer_id),
    CHECK (older_id <> newer_id),
    CHECK (similarity >= floor),
    FOREIGN KEY (user_id, older_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, newer_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE TABLE forgetting.stale_candidates (
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    rank integer NOT NULL CHECK (rank >= 1),
    memory_id uuid NOT NULL,
    memory_type text NOT NULL CHECK (memory_type IN ('decision', 'preference', 'blocker', 'fact')),
    freshness timestamptz NOT NULL,
    in_pair boolean NOT NULL,
    newer_ids uuid[] NOT NULL CHECK (cardinality(newer_ids) <= 3),
    newer_similarities double precision[] NOT NULL,
    PRIMARY KEY (user_id, run_date, rank),
    UNIQUE (user_id, run_date, memory_id),
    CHECK (cardinality(newer_ids) = cardinality(newer_similarities)),
    CHECK (memory_type <> 'blocker' OR cardinality(newer_ids) > 0),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE TABLE forgetting.judged_verdicts (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('single', 'pair')),
    memory_id uuid NOT NULL,
    newer_id uuid,
    newer_ids uuid[] NOT NULL DEFAULT '{}',
    memory_type text NOT NULL CHECK (memory_type IN ('decision', 'preference', 'blocker', 'fact')),
    verdict text NOT NULL CHECK (verdict IN ('keep', 'archive', 'supersede', 'conflict')),
    related_memory_id uuid,
    answer_key text NOT NULL,
    probability double precision NOT NULL CHECK (probability BETWEEN 0 AND 1),
    probabilities jsonb NOT NULL,
    model text NOT NULL,
    answer_model text NOT NULL,
    input_digest text NOT NULL,
    memory_content_hash text NOT NULL,
    memory_freshness timestamptz NOT NULL,
    related_content_hash text,
    related_freshness timestamptz,
    request_id text,
    judged_at timestamptz NOT NULL,
    reused_from uuid,
    CHECK ((kind = 'pair') = (newer_id IS NOT NULL)),
    CHECK ((verdict IN ('supersede', 'conflict')) = (related_memory_id IS NOT NULL)),
    CHECK (related_memory_id <> memory_id),
    CHECK (kind <> 'pair' OR related_memory_id IS NULL OR related_memory_id = newer_id),
    UNIQUE (user_id, run_date, memory_id, input_digest, model),
    UNIQUE (user_id, id),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, newer_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, related_memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE INDEX judged_verdicts_memory_idx
ON forgetting.judged_verdicts (user_id, memory_id, judged_at);

CREATE TABLE forgetting.archival_sweep (
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    evidence_id uuid NOT NULL,
    kind text NOT NULL,
    occurred_at timestamptz,
    last_used_at timestamptz,
    success_count integer NOT NULL,
    reinforcement_count integer NOT NULL,
    content_sha256 text NOT NULL,
    due_before timestamptz NOT NULL,
    archived_at timestamptz NOT NULL,
    -- No foreign key to evidence: a row that outlives its entry is how a loss would be seen.
    PRIMARY KEY (user_id, run_date, evidence_id)
);

CREATE TABLE forgetting.invariant_results (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    asset text NOT NULL,
    check_name text NOT NULL,
    passed boolean NOT NULL,
    reasons jsonb NOT NULL,
    run_id text NOT NULL,
    checked_at timestamptz NOT NULL
);

CREATE INDEX invariant_results_partition_idx
ON forgetting.invariant_results (user_id, run_date, asset, checked_at);

-- Zero episodic collapse, held by the database: no row of the pass, and no proposal, may name an
-- episodic memory. The arguments are the columns that hold memory ids. The row's tenant is the
-- transaction's, so row-level security shows the function every memory it must look at.
CREATE FUNCTION forgetting.refuse_episodic() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public
AS $$
DECLARE
    ids uuid[];
BEGIN
    SELECT array_agg((to_jsonb(new) ->> c.name)::uuid) INTO ids
    FROM unnest(tg_argv) AS c (name)
    WHERE to_jsonb(new) ->> c.name IS NOT NULL;
    PERFORM 1 FROM memories
    WHERE user_id = new.user_id AND id = ANY (ids) AND memory_type IN ('event', 'note');
    IF found THEN
        RAISE EXCEPTION 'zero episodic collapse: an event or a note may not enter %', tg_table_name
            USING ERRCODE = 'check_violation',
                  HINT = 'Episodic memories are never candidates, judged or proposed.';
    END IF;
    RETURN new;
END
$$;

CREATE TRIGGER refuse_episodic BEFORE INSERT OR UPDATE ON forgetting.stale_candidates
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_episodic('memory_id');

CREATE TRIGGER refuse_episodic BEFORE INSERT OR UPDATE ON forgetting.conflict_pairs
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_episodic('older_id', 'newer_id');

CREATE TRIGGER refuse_episodic BEFORE INSERT OR UPDATE ON forgetting.judged_verdicts
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_episodic(
    'memory_id', 'newer_id', 'related_memory_id'
);

CREATE TRIGGER refuse_episodic_insert BEFORE INSERT ON retention_proposals
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_episodic('memory_id', 'related_memory_id');

-- A proposal may still be closed after its memory became episodic, but neither opened nor applied.
CREATE TRIGGER refuse_episodic_update BEFORE UPDATE ON retention_proposals
FOR EACH ROW WHEN (new.status IN ('proposed', 'applied'))
EXECUTE FUNCTION forgetting.refuse_episodic('memory_id', 'related_memory_id');

-- A blocker settles through `resolve`: the judge may only keep it or name a contradiction.
CREATE FUNCTION forgetting.refuse_unjudgeable() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public
AS $$
DECLARE
    subject_type text;
BEGIN
    SELECT memory_type INTO subject_type
    FROM memories WHERE user_id = new.user_id AND id = new.memory_id;
    IF subject_type IN ('commitment', 'pattern')
        OR (subject_type = 'blocker' AND new.action IN ('archive', 'supersede')) THEN
        RAISE EXCEPTION 'a % may not be proposed for %', subject_type, new.action
            USING ERRCODE = 'check_violation',
                  HINT = 'Blockers and commitments settle through resolve.';
    END IF;
    RETURN new;
END
$$;

CREATE TRIGGER refuse_unjudgeable_insert BEFORE INSERT ON retention_proposals
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_unjudgeable();

CREATE TRIGGER refuse_unjudgeable_update BEFORE UPDATE ON retention_proposals
FOR EACH ROW WHEN (new.status IN ('proposed', 'applied'))
EXECUTE FUNCTION forgetting.refuse_unjudgeable();
