-- Which tenants an analyst may read. The owner asks and changes this; no statement reads a tenant's rows.

-- name: find_role
-- A role, and why it cannot be an analyst: RLS does not bind it, or the pass or the owner is it or
-- belongs to it, and would see granted tenants only.
SELECT
    r.rolsuper OR r.rolbypassrls AS is_unbound,
    pg_has_role(r.oid, 'forgetting_runtime', 'MEMBER')
    OR pg_has_role('forgetting_runtime', r.oid, 'MEMBER') AS runs_the_pass,
    pg_has_role(r.oid, c.relowner, 'MEMBER')
    OR (NOT o.rolsuper AND pg_has_role(o.oid, r.oid, 'MEMBER')) AS owns_the_tables,
    r.rolname = 'forgetting_analyst' AS is_the_group
FROM pg_roles AS r
CROSS JOIN pg_class AS c
INNER JOIN pg_roles AS o ON c.relowner = o.oid
WHERE r.rolname = :role AND c.oid = CAST('public.evidence' AS regclass);

-- name: grant_tenant
-- Let an analyst read a tenant; nothing when it may already.
INSERT INTO analytics.tenant_grants (grantee, user_id, granted_at)
SELECT
    CAST(:role AS name) AS grantee,
    t.user_id,
    :now AS granted_at
FROM tenants AS t
WHERE t.slug = :slug
ON CONFLICT (grantee, user_id) DO NOTHING;

-- name: revoke_tenant
-- Take that back; nothing when it may not read it.
DELETE FROM analytics.tenant_grants AS g
USING tenants AS t
WHERE t.slug = :slug AND g.user_id = t.user_id AND g.grantee = :role;
