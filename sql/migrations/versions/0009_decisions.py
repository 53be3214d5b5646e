from sql.migrations import upgrade_with

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    upgrade_with("0009_decisions.sql")
