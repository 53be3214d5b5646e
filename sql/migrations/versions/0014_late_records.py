from sql.migrations import upgrade_with

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    upgrade_with("0014_late_records.sql")
