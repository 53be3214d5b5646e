from sql.migrations import upgrade_with

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    upgrade_with("0003_tenant_isolation.sql")
