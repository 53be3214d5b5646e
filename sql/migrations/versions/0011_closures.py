from sql.migrations import upgrade_with

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    upgrade_with("0011_closures.sql")
