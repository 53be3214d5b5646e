-- Every row of a tenant, whichever table it is in. The tables come from the catalog, so that a new one
-- is exported, restored and erased without a word here.

-- name: list_tables
-- The tables that hold rows of tenants, those that are referred to first, and a statement for each thing
-- that is done with all of them. %(user_id)s and %(rows)s are the driver's parameters. A jsonb column
-- that takes no NULL holds the JSON null where a row has null.
WITH RECURSIVE tenant_tables AS (
    SELECT
        c.oid,
        format('%I.%I', n.nspname, c.relname) AS name,
        CASE WHEN c.oid = CAST('public.users' AS regclass) THEN 'id' ELSE 'user_id' END AS tenant
    FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE
        c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND n.nspname IN ('public', 'forgetting', 'analytics')
        AND (
            c.oid = CAST('public.users' AS regclass)
            OR EXISTS (
                SELECT 1
                FROM pg_attribute AS a
                WHERE a.attrelid = c.oid AND a.attname = 'user_id' AND NOT a.attisdropped
            )
        )
),

depths AS (
    SELECT
        t.oid,
        0 AS depth
    FROM tenant_tables AS t
    UNION
    SELECT
        k.conrelid AS oid,
        d.depth + 1 AS depth
    FROM depths AS d
    INNER JOIN pg_constraint AS k ON d.oid = k.confrelid
    INNER JOIN tenant_tables AS t ON k.conrelid = t.oid
    WHERE k.contype = 'f' AND k.conrelid <> k.confrelid AND d.depth < 100
),

columns AS (
    SELECT
        a.attrelid AS oid,
        string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) AS names,
        string_agg(
            CASE
                WHEN a.atttypid = CAST('jsonb' AS regtype) AND a.attnotnull
                    THEN format('coalesce(r.%I, ''null'')', a.attname)
                ELSE format('r.%I', a.attname)
            END, ', '
            ORDER BY a.attnum
        ) AS given
    FROM pg_attribute AS a
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY a.attrelid
),

keys AS (
    SELECT
        i.indrelid AS oid,
        string_agg(format('%I', a.attname), ', ' ORDER BY k.place) AS names
    FROM pg_index AS i
    CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    INNER JOIN pg_attribute AS a ON i.indrelid = a.attrelid AND k.attnum = a.attnum
    WHERE i.indisprimary
    GROUP BY i.indrelid
)

SELECT
    t.name,
    format(
        'SELECT count(*) FROM %s WHERE %I = CAST(%%(user_id)s AS uuid)', t.name, t.tenant
    ) AS counting,
    format(
        'SELECT CAST(row_to_json(r) AS text) FROM ('
        'SELECT %s FROM %s WHERE %I = CAST(%%(user_id)s AS uuid) ORDER BY %s) AS r',
        c.names, t.name, t.tenant, k.names
    ) AS reading,
    format(
        'INSERT INTO %s (%s) SELECT %s FROM json_array_elements(CAST(%%(rows)s AS json)) AS l (line) '
        'CROSS JOIN LATERAL json_populate_record(CAST(NULL AS %s), l.line -> ''row'') AS r',
        t.name, c.names, c.given, t.name
    ) AS adding,
    format('DELETE FROM %s WHERE %I = CAST(%%(user_id)s AS uuid)', t.name, t.tenant) AS removing,
    -- What the planner keeps of columns are values of rows. Before PostgreSQL 18 it cannot be cleared.
    CASE
        WHEN to_regproc('pg_clear_attribute_stats') IS NOT NULL
            THEN
                format(
                    'SELECT pg_clear_attribute_stats(n.nspname, c.relname, a.attname, FALSE) '
                    'FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid '
                    'INNER JOIN pg_attribute AS a ON c.oid = a.attrelid '
                    'WHERE c.oid = CAST(%L AS regclass) AND a.attnum > 0 AND NOT a.attisdropped',
                    t.name
                )
    END AS clearing,
    format('ANALYZE %s', t.name) AS analyzing
FROM tenant_tables AS t
INNER JOIN columns AS c ON t.oid = c.oid
INNER JOIN keys AS k ON t.oid = k.oid
INNER JOIN (
    SELECT
        d.oid,
        max(d.depth) AS depth
    FROM depths AS d
    GROUP BY d.oid
) AS o ON t.oid = o.oid
ORDER BY o.depth, t.name;

-- name: write_exactly
-- Let this transaction write each value so that reading it gives the same value.
SELECT
    set_config('extra_float_digits', '1', TRUE) AS digits,
    set_config('bytea_output', 'hex', TRUE) AS bytes;

-- name: find_taken
-- Whether the slug or the user of a tenant to be restored is there.
SELECT
    EXISTS(
        SELECT 1 FROM tenants AS t
        WHERE t.slug = :slug
    ) AS slug_taken,
    EXISTS(
        SELECT 1 FROM users AS u
        WHERE u.id = :user_id
    ) AS user_taken;

-- name: read_slug
-- The slug under which a user's rows stand.
SELECT t.slug
FROM tenants AS t
WHERE t.user_id = :user_id;

-- name: drop_foreign_grants
-- Grants to logins that are no analysts on this server: a later login of that name would have them.
DELETE FROM analytics.tenant_grants AS g
WHERE
    g.user_id = :user_id
    AND NOT EXISTS (
        SELECT 1
        FROM pg_roles AS r
        WHERE
            r.rolname = g.grantee AND NOT r.rolsuper AND NOT r.rolbypassrls
            AND pg_has_role(r.oid, 'forgetting_analyst', 'MEMBER')
    )
RETURNING g.grantee;

-- name: list_days
-- The partitions that a tenant's rows belong to.
SELECT s.run_date
FROM forgetting.stale_candidates AS s
WHERE s.user_id = :user_id
UNION
SELECT p.run_date
FROM forgetting.conflict_pairs AS p
WHERE p.user_id = :user_id
UNION
SELECT v.run_date
FROM forgetting.judged_verdicts AS v
WHERE v.user_id = :user_id
UNION
SELECT w.run_date
FROM forgetting.archival_sweep AS w
WHERE w.user_id = :user_id
UNION
SELECT e.archived_run_date AS run_date
FROM evidence AS e
WHERE e.user_id = :user_id AND e.archived_run_date IS NOT NULL
ORDER BY run_date;

-- name: find_unrestorable
-- Rows of the pass that its triggers would not let in again, because their memory changed its type since:
-- the memory and the table.
WITH named AS (
    SELECT
        s.memory_id,
        'stale_candidates' AS place
    FROM forgetting.stale_candidates AS s
    WHERE s.user_id = :user_id
    UNION ALL
    SELECT
        side.id AS memory_id,
        'conflict_pairs' AS place
    FROM forgetting.conflict_pairs AS p
    CROSS JOIN LATERAL (VALUES (p.older_id), (p.newer_id)) AS side (id)
    WHERE p.user_id = :user_id
    UNION ALL
    SELECT
        side.id AS memory_id,
        'judged_verdicts' AS place
    FROM forgetting.judged_verdicts AS v
    CROSS JOIN LATERAL (VALUES (v.memory_id), (v.newer_id), (v.related_memory_id)) AS side (id)
    WHERE v.user_id = :user_id
    UNION ALL
    SELECT
        side.id AS memory_id,
        'retention_proposals' AS place
    FROM retention_proposals AS p
    CROSS JOIN LATERAL (VALUES (p.memory_id), (p.related_memory_id)) AS side (id)
    WHERE p.user_id = :user_id
    UNION ALL
    SELECT
        side.id AS memory_id,
        'unjudged_items' AS place
    FROM forgetting.unjudged_items AS i
    CROSS JOIN LATERAL (VALUES (i.memory_id), (i.newer_id)) AS side (id)
    WHERE i.user_id = :user_id
    UNION ALL
    SELECT
        x.memory_id,
        'mined_memories' AS place
    FROM forgetting.mined_memories AS x
    WHERE x.user_id = :user_id
)

SELECT DISTINCT
    n.place,
    m.id AS memory_id
FROM named AS n
INNER JOIN memories AS m ON n.memory_id = m.id
WHERE m.user_id = :user_id AND m.memory_type IN ('event', 'note')
UNION
SELECT
    'retention_proposals' AS place,
    m.id AS memory_id
FROM retention_proposals AS p
INNER JOIN memories AS m ON p.user_id = m.user_id AND p.memory_id = m.id
WHERE
    p.user_id = :user_id
    AND (
        m.memory_type IN ('commitment', 'pattern')
        OR (m.memory_type = 'blocker' AND p.action IN ('archive', 'supersede'))
    )
ORDER BY place, memory_id;

-- name: can_clear_statistics
-- Whether this server has a function for it: PostgreSQL 18 and newer.
SELECT to_regproc('pg_clear_attribute_stats') IS NOT NULL AS can;

-- name: clear_statistics
-- Forget what the planner keeps of a table's columns, which are values of rows. ANALYZE alone leaves those
-- of a table that is empty now.
SELECT
    pg_clear_attribute_stats(
        CAST(s.schemaname AS text), CAST(s.tablename AS text), CAST(s.attname AS text), s.inherited
    )
FROM pg_stats AS s
WHERE s.schemaname = current_schema() AND s.tablename = :table_name;
