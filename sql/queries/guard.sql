-- What the database resource asks before it lets anybody read: is this role bound by RLS, and is
-- the schema current?

-- name: read_role
-- Whether the current role could step around row-level security, or is limited to granted tenants.
SELECT
    current_user AS role,
    r.rolsuper AS is_superuser,
    r.rolbypassrls AS bypasses_rls,
    EXISTS(
        SELECT 1
        FROM pg_roles AS a
        WHERE a.rolname = 'forgetting_analyst' AND pg_has_role(r.oid, a.oid, 'USAGE')
    ) AS is_analyst
FROM pg_roles AS r
WHERE r.rolname = current_user;

-- name: find_unsafe_tables
-- Tenant tables without forced row-level security, or owned by a role the current one belongs to.
SELECT
    c.oid::regclass::text AS table_name,
    c.relforcerowsecurity AND c.relrowsecurity AS is_forced,
    pg_has_role(current_user, c.relowner, 'MEMBER') AS is_owned
FROM pg_class AS c
INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE
    c.relkind IN ('r', 'p')
    AND n.nspname IN ('public', 'forgetting')
    AND a.attname = 'user_id' AND NOT a.attisdropped
    AND c.relname <> 'tenants'
    AND (
        NOT (c.relforcerowsecurity AND c.relrowsecurity)
        OR pg_has_role(current_user, c.relowner, 'MEMBER')
    )
ORDER BY table_name;

-- name: has_schema
-- Whether the migrations ever ran here.
SELECT to_regclass('forgetting.schema_version') IS NOT NULL AS present;

-- name: read_version
-- The newest migration that ran here.
SELECT max(v.version_num) AS version_num FROM forgetting.schema_version AS v;

-- name: is_demo
-- Whether this database holds invented memories only.
SELECT d.demo FROM forgetting.deployment AS d;

-- name: set_tenant
-- Bind the transaction to one tenant; every policy reads this setting.
SELECT set_config('app.user_id', :user_id, TRUE);

-- name: lock_tenant
-- One writer of a tenant's partitions at a time, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('forgetting:' || :user_id, 0));

-- name: lock_judging
-- One judging run of a tenant at a time, until the session ends: two would pay twice.
SELECT pg_advisory_lock(hashtextextended('forgetting-judging:' || :user_id, 0));

-- name: unlock_judging
-- The other half of lock_judging.
SELECT pg_advisory_unlock(hashtextextended('forgetting-judging:' || :user_id, 0));

-- name: notice_a_lost_host
-- Let the server end this session, and its locks, within two minutes of its host's disappearance.
SELECT
    set_config('tcp_keepalives_idle', '60', FALSE) AS idle_seconds,
    set_config('tcp_keepalives_interval', '10', FALSE) AS interval_seconds,
    set_config('tcp_keepalives_count', '5', FALSE) AS probes;

-- name: answer
-- Nothing: whether this connection is still there.
SELECT 1 AS answer;

-- name: lock_run
-- Held by the process of a run as long as it lives.
SELECT pg_advisory_lock(hashtextextended('forgetting-run:' || :run_id, 0));

-- name: is_run_alive
-- Whether some process holds a run's lock.
SELECT NOT pg_try_advisory_xact_lock(hashtextextended('forgetting-run:' || :run_id, 0)) AS alive;

-- name: try_lock_run
-- The same lock, unless another session of the same run has it.
SELECT pg_try_advisory_lock(hashtextextended('forgetting-run:' || :run_id, 0)) AS held;

-- name: try_lock_daemon
-- Held by the one command whose Dagster daemon works on this store; whether it is ours now.
SELECT pg_try_advisory_lock(hashtextextended('forgetting-daemon', 0)) AS held;
