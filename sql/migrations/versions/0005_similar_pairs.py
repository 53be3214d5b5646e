from sql.migrations import upgrade_with

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    upgrade_with("0005_similar_pairs.sql")
