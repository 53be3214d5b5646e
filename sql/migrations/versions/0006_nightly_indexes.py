from sql.migrations import upgrade_with

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    upgrade_with("0006_nightly_indexes.sql")
