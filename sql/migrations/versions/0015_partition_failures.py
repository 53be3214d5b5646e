from sql.migrations import upgrade_with

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    upgrade_with("0015_partition_failures.sql")
