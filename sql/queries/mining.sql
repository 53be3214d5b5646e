-- Mining: which memories the index of similar pairs does not know as they are now, and what enters
-- it. The index has every pair of comparable memories of one group whose cosine is at or above the
-- floor.

-- name: find_last_mining
-- The oldest transaction that has not ended, before which all is there to be read; the floors and
-- lengths of the tenant's last mining, if there was one; and whether its transaction ids can still be
-- compared: on this server, and less than half the circle of 32-bit ids ago.
SELECT
    CAST(oldest.xid AS text) AS written_before,
    coalesce(n.floors, '{}') AS floors,
    coalesce(n.lengths, '{}') AS lengths,
    coalesce(
        n.server_id = server.system_identifier
        AND CAST(CAST(oldest.xid AS text) AS bigint)
        - CAST(CAST(n.written_before AS text) AS bigint) BETWEEN 0 AND 2000000000,
        FALSE
    ) AS is_comparable
FROM pg_snapshot_xmin(pg_current_snapshot()) AS oldest (xid)
CROSS JOIN pg_control_system() AS server
LEFT JOIN forgetting.minings AS n ON n.user_id = :user_id;

-- name: copy_written
-- The memories that were written to since the last mining, or were given another embedding model,
-- by the transaction that each row carries. Reads headers of rows and no vector.
COPY (
    SELECT m.id
    FROM memories AS m
    WHERE
        m.user_id = :user_id
        AND (
            :everything
            OR age(m.xmin) <= (
                SELECT age(CAST(n.written_before AS xid))
                FROM forgetting.minings AS n
                WHERE n.user_id = :user_id
            )
        )
    UNION
    SELECT e.memory_id
    FROM forgetting.embedding_models AS e
    WHERE
        e.user_id = :user_id
        AND (
            :everything
            OR age(e.xmin) <= (
                SELECT age(CAST(n.written_before AS xid))
                FROM forgetting.minings AS n
                WHERE n.user_id = :user_id
            )
        )
) TO STDOUT (FORMAT "binary");

-- name: copy_unmined
-- Of some memories those that must be mined, with the place of their model among those that have a
-- floor, 0 without one. What was mined of any that is not comparable any more, or is of another
-- group, vector or time of creation than it was mined with, is forgotten, its pairs with it.
COPY (
    WITH compared AS MATERIALIZED (
        SELECT
            w.id,
            c.group_key,
            f.place,
            CASE
                WHEN
                    s.group_key = c.group_key
                    AND f.place > 0
                    AND c.embedding_model <> ALL(CAST(:lowered AS text[]))
                    THEN
                        s.fingerprint
                        = sha256(vector_send(c.embedding) || timestamptz_send(c.created_at))
            END AS as_mined
        FROM unnest(CAST(:ids AS uuid[])) AS w (id)
        LEFT JOIN forgetting.comparable_memories AS c ON c.user_id = :user_id AND w.id = c.id
        LEFT JOIN forgetting.mined_memories AS s ON s.user_id = :user_id AND w.id = s.memory_id
        LEFT JOIN unnest(CAST(:models AS text[])) WITH ORDINALITY AS f (embedding_model, place)
            ON c.embedding_model = f.embedding_model
    ),

    forgotten AS (
        DELETE FROM forgetting.mined_memories AS s
        USING compared AS c
        WHERE s.user_id = :user_id AND s.memory_id = c.id AND c.as_mined IS NOT TRUE
    )

    SELECT
        c.id,
        c.group_key,
        coalesce(c.place, 0) AS place
    FROM compared AS c
    WHERE c.group_key IS NOT NULL AND c.as_mined IS NOT TRUE
) TO STDOUT (FORMAT "binary");

-- name: copy_vectors
-- The vectors of some memories of known groups, in the given order. One lookup an id.
COPY (
    SELECT
        c.id,
        w.group_key,
        c.created_at,
        c.embedding
    FROM
        unnest(CAST(:ids AS uuid[]), CAST(:group_keys AS bigint[]))
        WITH ORDINALITY AS w (id, group_key, place)
    CROSS JOIN
        LATERAL (
            SELECT
                m.id,
                m.created_at,
                m.embedding
            FROM forgetting.comparable_memories AS m
            WHERE m.user_id = :user_id AND m.id = w.id
            OFFSET 0 -- noqa: AM09
        ) AS c
    ORDER BY w.place
) TO STDOUT (FORMAT "binary");

-- name: copy_codes
-- The codes of all that is mined in some groups, in no order. One of another length is of a memory that
-- was embedded again since, and is mined again the next time.
COPY (
    SELECT
        s.memory_id,
        s.group_key,
        s.code_step,
        s.code_error,
        s.code
    FROM forgetting.mined_memories AS s
    WHERE
        s.user_id = :user_id
        AND s.group_key = ANY(CAST(:group_keys AS bigint[]))
        AND length(s.code) = :dimensions
) TO STDOUT (FORMAT "binary");

-- name: insert_mined
-- A block of mined memories, without those that left meanwhile; fingerprints and codes stand one after
-- the other in a string each.
INSERT INTO forgetting.mined_memories (
    user_id, memory_id, group_key, fingerprint, code, code_step, code_error
)
SELECT
    :user_id AS user_id,
    r.memory_id,
    r.group_key,
    substr(:fingerprints, CAST((r.place - 1) * 32 + 1 AS integer), 32) AS fingerprint,
    substr(:codes, CAST((r.place - 1) * :dimensions + 1 AS integer), :dimensions) AS code,
    r.code_step,
    r.code_error
FROM
    unnest(
        CAST(:ids AS uuid[]), CAST(:group_keys AS bigint[]),
        CAST(:steps AS real[]), CAST(:errors AS real[])
    ) WITH ORDINALITY AS r (memory_id, group_key, code_step, code_error, place)
CROSS JOIN
    LATERAL (
        SELECT 1 AS present
        FROM forgetting.comparable_memories AS c
        WHERE c.user_id = :user_id AND c.id = r.memory_id
        OFFSET 0 -- noqa: AM09
    ) AS still;

-- name: insert_pairs
-- Those of the proposed pairs whose cosine is at or above the floor: here it is decided, by the
-- database. The cosine of a zero vector is NaN, which sorts above every number. Two lookups a pair: a
-- fresh store has no statistics, and any other plan may compare all with all.
INSERT INTO forgetting.similar_pairs (
    user_id, older_id, newer_id, similarity, embedding_model, mined_at
)
SELECT
    :user_id AS user_id,
    CASE WHEN ordered.one_is_older THEN one.id ELSE other.id END AS older_id,
    CASE WHEN ordered.one_is_older THEN other.id ELSE one.id END AS newer_id,
    cosine.similarity,
    one.embedding_model,
    :now AS mined_at
FROM unnest(CAST(:ones AS uuid[]), CAST(:others AS uuid[])) AS p (one_id, other_id)
CROSS JOIN
    LATERAL (
        SELECT c.*
        FROM forgetting.comparable_memories AS c
        INNER JOIN forgetting.mined_memories AS s ON s.user_id = :user_id AND c.id = s.memory_id
        WHERE c.user_id = :user_id AND c.id = p.one_id
        OFFSET 0 -- noqa: AM09
    ) AS one
CROSS JOIN
    LATERAL (
        SELECT c.*
        FROM forgetting.comparable_memories AS c
        INNER JOIN forgetting.mined_memories AS s ON s.user_id = :user_id AND c.id = s.memory_id
        WHERE c.user_id = :user_id AND c.id = p.other_id
        OFFSET 0 -- noqa: AM09
    ) AS other
CROSS JOIN
    LATERAL (
        SELECT (one.created_at, one.id) < (other.created_at, other.id) AS one_is_older
    ) AS ordered
CROSS JOIN LATERAL (SELECT 1 - (one.embedding <=> other.embedding) AS similarity) AS cosine
WHERE
    one.memory_type = other.memory_type
    AND one.scope = other.scope
    AND one.project IS NOT DISTINCT FROM other.project
    AND one.embedding_model = other.embedding_model
    AND cosine.similarity >= :floor AND cosine.similarity < 'NaN';

-- name: record_mining
-- That all that was written before the horizon is in the index now.
INSERT INTO forgetting.minings (user_id, mined_at, floors, lengths, server_id, written_before)
SELECT
    :user_id AS user_id,
    :now AS mined_at,
    CAST(:floors AS jsonb) AS floors,
    CAST(:lengths AS jsonb) AS lengths,
    server.system_identifier,
    CAST(:written_before AS xid8) AS written_before
FROM pg_control_system() AS server
ON CONFLICT (user_id) DO UPDATE SET
    mined_at = excluded.mined_at,
    floors = excluded.floors,
    lengths = excluded.lengths,
    server_id = excluded.server_id,
    written_before = excluded.written_before;

-- name: find_model_of
-- The embedding model of a memory.
SELECT c.embedding_model
FROM forgetting.comparable_memories AS c
WHERE c.user_id = :user_id AND c.id = :id;

-- name: find_lengths
-- How many vectors of a memory's embedding model have how many values, with an example of each.
SELECT
    c.embedding_model,
    vector_dims(c.embedding) AS dimensions,
    count(*) AS memories,
    min(CAST(c.id AS text)) AS example
FROM forgetting.comparable_memories AS c
WHERE
    c.user_id = :user_id
    AND c.embedding_model = (
        SELECT o.embedding_model
        FROM forgetting.comparable_memories AS o
        WHERE o.user_id = :user_id AND o.id = :id
    )
GROUP BY c.embedding_model, dimensions
ORDER BY memories DESC, dimensions ASC;
