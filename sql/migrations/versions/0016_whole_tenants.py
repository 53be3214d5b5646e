from sql.migrations import upgrade_with

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    upgrade_with("0016_whole_tenants.sql")
