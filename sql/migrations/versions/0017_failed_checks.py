from sql.migrations import upgrade_with

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    upgrade_with("0017_failed_checks.sql")
