from sql.migrations import upgrade_with

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    upgrade_with("0013_analytics.sql")
