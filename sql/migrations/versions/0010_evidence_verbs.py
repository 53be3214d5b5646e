from sql.migrations import upgrade_with

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    upgrade_with("0010_evidence_verbs.sql")
