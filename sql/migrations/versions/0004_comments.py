from sql.migrations import upgrade_with

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    upgrade_with("0004_comments.sql")
