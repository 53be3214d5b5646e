-- The memory store: users, memories and their lineage, the audit trail, proposals, evidence,
-- tenants and the budget. Names and meanings follow 3ngram's store, so that the pass can be
-- pointed at one.

CREATE EXTENSION IF NOT EXISTS vector;

DO $$
BEGIN
    -- PostgreSQL 18 has uuidv7(); 16 and 17 get one of the same shape.
    IF to_regprocedure('uuidv7()') IS NULL THEN
        CREATE FUNCTION public.uuidv7() RETURNS uuid
        LANGUAGE sql VOLATILE PARALLEL SAFE
        AS $body$
            SELECT encode(
                set_bit(set_bit(
                    overlay(
                        uuid_send(gen_random_uuid())
                        PLACING substring(
                            int8send(floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint) FROM 3
                        )
                        FROM 1 FOR 6
                    ),
                    52, 1), 53, 1),
                'hex')::uuid
        $body$;
    END IF;
END
$$;

CREATE TABLE users (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    email text NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tenants (
    slug text PRIMARY KEY CHECK (slug ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    user_id uuid NOT NULL UNIQUE REFERENCES users (id) ON DELETE CASCADE,
    judgment_enabled boolean NOT NULL DEFAULT FALSE,
    archival_enabled boolean NOT NULL DEFAULT FALSE,
    retired_at timestamptz
);

CREATE TABLE memories (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_type text NOT NULL CHECK (
        memory_type IN (
            'decision', 'commitment', 'blocker', 'fact', 'preference', 'pattern', 'note', 'event'
        )
    ),
    topic text NOT NULL,
    content text NOT NULL,
    scope text NOT NULL DEFAULT 'personal',
    project text,
    status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    tags jsonb NOT NULL DEFAULT '[]',
    embedding vector(1536),
    content_hash text NOT NULL,
    valid_from timestamptz NOT NULL DEFAULT now(),
    valid_to timestamptz,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    last_reviewed_at timestamptz,
    search_tsv tsvector GENERATED ALWAYS AS (
        -- A tsvector has a largest size, so a very long memory is searchable by its beginning.
        to_tsvector('simple', left(topic || ' ' || content, 100000))
    ) STORED,
    UNIQUE (user_id, id),
    CHECK (valid_from <= valid_to)
);

CREATE UNIQUE INDEX memories_live_content_idx
ON memories (user_id, content_hash) WHERE valid_to IS NULL;

CREATE INDEX memories_freshness_idx
ON memories (user_id, greatest(updated_at, last_reviewed_at), id)
WHERE status = 'active' AND valid_to IS NULL
AND memory_type IN ('decision', 'preference', 'blocker', 'fact');

CREATE INDEX memories_group_idx
ON memories (user_id, memory_type, scope, project, created_at)
WHERE status = 'active' AND valid_to IS NULL;

CREATE TABLE memory_edges (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    from_id uuid NOT NULL,
    to_id uuid NOT NULL,
    edge_type text NOT NULL CHECK (edge_type IN ('supersedes', 'updates', 'extends', 'derives')),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (user_id, from_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, to_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    UNIQUE (user_id, from_id, to_id, edge_type),
    CHECK (from_id <> to_id)
);

CREATE INDEX memory_edges_to_idx ON memory_edges (user_id, to_id, from_id);

CREATE TABLE memory_events (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_id uuid NOT NULL,
    event_kind text NOT NULL CHECK (
        event_kind IN (
            'create', 'revise', 'supersede', 'resolve', 'unresolve', 'archive', 'import', 'embed_failed'
        )
    ),
    actor_kind text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE INDEX memory_events_memory_idx ON memory_events (user_id, memory_id, created_at);

CREATE TABLE consolidation_proposals (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    from_id uuid NOT NULL,
    to_id uuid NOT NULL,
    edge_type text NOT NULL CHECK (edge_type IN ('supersedes', 'updates', 'extends', 'derives')),
    memory_type text NOT NULL,
    similarity real NOT NULL,
    rationale text,
    status text NOT NULL DEFAULT 'proposed' CHECK (status IN ('proposed', 'applied', 'rejected')),
    decided_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (user_id, from_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, to_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    CHECK (from_id <> to_id)
);

CREATE INDEX consolidation_proposals_pair_idx
ON consolidation_proposals (user_id, from_id, to_id);

CREATE TABLE retention_proposals (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_id uuid NOT NULL,
    action text NOT NULL CHECK (action IN ('keep', 'archive', 'supersede', 'conflict')),
    related_memory_id uuid,
    probability double precision NOT NULL CHECK (probability BETWEEN 0 AND 1),
    probabilities jsonb NOT NULL,
    model text NOT NULL,
    status text NOT NULL DEFAULT 'proposed'
    CHECK (status IN ('proposed', 'applied', 'rejected', 'dismissed')),
    decided_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((action IN ('supersede', 'conflict')) = (related_memory_id IS NOT NULL)),
    CHECK (related_memory_id <> memory_id),
    CHECK (NOT (action = 'keep' AND status IN ('proposed', 'applied'))),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, related_memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

-- The ADR's index is unique by (memory, action); ours allows one open proposal on a memory.
CREATE UNIQUE INDEX retention_proposals_open_idx
ON retention_proposals (user_id, memory_id) WHERE status = 'proposed';

CREATE INDEX retention_proposals_open_related_idx
ON retention_proposals (user_id, related_memory_id) WHERE status = 'proposed';

CREATE INDEX retention_proposals_review_idx
ON retention_proposals (user_id, status, created_at);

CREATE TABLE evidence (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    session_id text NOT NULL,
    kind text NOT NULL CHECK (
        kind IN (
            'trace', 'log', 'tool_input', 'tool_output', 'step_outcome',
            'lesson', 'rule', 'mental_model', 'fact', 'observation', 'handoff', 'archive_block'
        )
    ),
    content text NOT NULL,
    occurred_at timestamptz,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    success_count integer NOT NULL DEFAULT 0 CHECK (success_count >= 0),
    reinforcement_count integer NOT NULL DEFAULT 0 CHECK (reinforcement_count >= 0),
    last_retrieved_at timestamptz,
    last_outcome_at timestamptz,
    archived_at timestamptz,
    archived_run_date date,
    UNIQUE (user_id, id),
    CHECK ((archived_at IS NULL) = (archived_run_date IS NULL)),
    CONSTRAINT evidence_only_episodic_is_archived CHECK (
        archived_at IS NULL
        OR kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome')
    ),
    CONSTRAINT evidence_without_a_time_is_never_archived CHECK (
        archived_at IS NULL OR occurred_at IS NOT NULL
    )
);

-- The sweep's probe: what was never credited, by the last time it was of any use.
CREATE INDEX evidence_due_idx
ON evidence (user_id, greatest(occurred_at, last_retrieved_at, last_outcome_at), id)
WHERE archived_at IS NULL AND occurred_at IS NOT NULL
AND success_count = 0 AND reinforcement_count = 0
AND kind IN ('trace', 'log', 'tool_input', 'tool_output', 'step_outcome');

CREATE INDEX evidence_archived_idx
ON evidence (user_id, archived_run_date) WHERE archived_at IS NOT NULL;

CREATE TABLE memory_evidence (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_id uuid NOT NULL,
    evidence_id uuid NOT NULL,
    PRIMARY KEY (user_id, memory_id, evidence_id),
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, evidence_id) REFERENCES evidence (user_id, id) ON DELETE CASCADE
);

CREATE INDEX memory_evidence_evidence_idx ON memory_evidence (user_id, evidence_id);

CREATE TABLE llm_usage (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    operation text NOT NULL,
    model text NOT NULL,
    input_tokens integer CHECK (input_tokens >= 0),
    output_tokens integer CHECK (output_tokens >= 0),
    cost_usd numeric(20, 12) CHECK (cost_usd >= 0),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX llm_usage_window_idx ON llm_usage (user_id, created_at);

CREATE TABLE user_budgets (
    user_id uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    cap_usd_override numeric(20, 12) CHECK (cap_usd_override >= 0),
    period_start timestamptz,
    period_end timestamptz,
    CHECK (period_start < period_end)
);

CREATE TABLE budget_reservations (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    estimated_cost_usd numeric(20, 12) NOT NULL CHECK (estimated_cost_usd >= 0),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX budget_reservations_user_idx ON budget_reservations (user_id, created_at);
