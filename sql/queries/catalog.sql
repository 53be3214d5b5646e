-- What the database says of its own tables.

-- name: describe_table
-- The columns of a table with type, nullability and comment, in order.
SELECT
    a.attname AS name,
    format_type(a.atttypid, a.atttypmod) AS type,
    a.attnotnull AS is_required,
    col_description(a.attrelid, a.attnum) AS description
FROM pg_attribute AS a
WHERE a.attrelid = CAST(:table_name AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;

-- name: find_review_queues
-- Which tables of proposals this role can count: it may read them, and they have the columns that
-- counting asks for. Some come with other releases of a store.
SELECT
    q.kind,
    coalesce(has_table_privilege(to_regclass('public.' || q.kind || '_proposals'), 'SELECT'), FALSE)
    AND (
        SELECT count(*) = 2
        FROM pg_attribute AS a
        WHERE
            a.attrelid = to_regclass('public.' || q.kind || '_proposals') AND NOT a.attisdropped
            AND (
                (a.attname = 'user_id' AND a.atttypid = CAST('uuid' AS regtype))
                OR a.attname = 'status'
            )
    ) AS can_be_counted
FROM unnest(ARRAY['consolidation', 'fact', 'resolution', 'retention']) AS q (kind);
