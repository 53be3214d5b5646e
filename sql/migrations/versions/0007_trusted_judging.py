from sql.migrations import upgrade_with

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    upgrade_with("0007_trusted_judging.sql")
