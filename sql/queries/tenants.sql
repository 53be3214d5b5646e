-- The registry of tenants. It holds no memory, so these statements need no tenant of their own.

-- name: list_tenants
-- Every tenant, retired ones too.
SELECT
    t.slug,
    t.user_id,
    t.judgment_enabled,
    t.archival_enabled,
    t.tracked_since,
    t.retired_at
FROM tenants AS t
ORDER BY t.slug;

-- name: find_tenant
-- One tenant by its slug.
SELECT
    t.slug,
    t.user_id,
    t.judgment_enabled,
    t.archival_enabled,
    t.tracked_since,
    t.retired_at
FROM tenants AS t
WHERE t.slug = :slug;

-- name: add_user
-- The user behind a new tenant; the address only has to be unique.
INSERT INTO users (email) VALUES (:email)
ON CONFLICT (email) DO NOTHING;

-- name: add_tenant
-- A new tenant with everything off; nothing when the slug is taken.
INSERT INTO tenants (slug, user_id)
SELECT
    CAST(:slug AS text) AS slug,
    u.id AS user_id
FROM users AS u
WHERE u.email = :email
ON CONFLICT (slug) DO NOTHING;

-- name: set_consent
-- What the tenant agrees to, and since when its evidence's uses are recorded; NULL leaves each as it is.
-- Who opts out of archival need not record uses any more, so the next opt-in starts anew.
UPDATE tenants
SET
    judgment_enabled = coalesce(:judgment, judgment_enabled),
    archival_enabled = coalesce(:archival, archival_enabled),
    tracked_since = coalesce(
        CAST(:tracked_since AS timestamptz),
        CASE WHEN CAST(:archival AS boolean) IS FALSE THEN NULL ELSE tracked_since END
    )
WHERE slug = :slug;

-- name: set_retired
-- Retire a tenant at a moment; NULL brings it back.
UPDATE tenants
SET retired_at = CAST(:retired_at AS timestamptz)
WHERE slug = :slug;

-- name: read_retirement
-- Whether the tenant is retired at this moment; one that is gone counts as retired.
SELECT
    NOT EXISTS (
        SELECT 1
        FROM tenants AS t
        WHERE t.user_id = :user_id AND t.retired_at IS NULL
    ) AS is_retired;

-- name: read_judgment_consent
-- Whether the tenant is opted in to judgment at this moment; retired counts as no.
SELECT t.judgment_enabled AND t.retired_at IS NULL AS enabled
FROM tenants AS t
WHERE t.user_id = :user_id;

-- name: count_memories
-- How many of the tenant's memories this role sees, and how many its owner counts, at one moment.
SELECT
    (
        SELECT count(*)
        FROM memories AS m
        WHERE m.user_id = :user_id
    ) AS seen,
    forgetting.count_as_owner(:user_id) AS present;
