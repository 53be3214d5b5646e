from sql.migrations import upgrade_with

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    upgrade_with("0012_memory_health.sql")
