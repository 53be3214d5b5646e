from sql.migrations import upgrade_with

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    upgrade_with("0008_revivals.sql")
