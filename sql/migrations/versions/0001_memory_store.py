from sql.migrations import upgrade_with

revision = "0001"
down_revision = None


def upgrade() -> None:
    upgrade_with("0001_memory_store.sql")
