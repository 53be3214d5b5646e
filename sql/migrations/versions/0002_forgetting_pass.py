from sql.migrations import upgrade_with

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    upgrade_with("0002_forgetting_pass.sql")
