"""The loader of named queries, and rules that every query file keeps."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import TextClause

import sql

QUERIES = sql.ROOT / "queries"
NOUNS = sorted(path.stem for path in QUERIES.glob("*.sql"))
MIGRATIONS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((sql.ROOT / "migrations").glob("*.sql"))
)

NEVER_DELETED = (
    "memories",
    "memory_edges",
    "memory_events",
    "retention_proposals",
    "consolidation_proposals",
    "evidence",
    "memory_evidence",
    "forgetting.judged_verdicts",
    "forgetting.archival_sweep",
    "forgetting.invariant_results",
    "forgetting.unjudged_items",
    "forgetting.shadow_answers",
    "forgetting.revivals",
    "forgetting.decisions",
    "forgetting.closures",
    "forgetting.regrets",
    "forgetting.forgotten",
    "llm_usage",
    "users",
    "tenants",
)


def blocks() -> dict[str, str]:
    """The text of every named block, by ``noun.name``, as it stands in the file."""
    found = {}
    for noun in NOUNS:
        text = (QUERIES / f"{noun}.sql").read_text(encoding="utf-8")
        _, *parts = re.split(r"^-- name: (.+)$", text, flags=re.MULTILINE)
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            found[f"{noun}.{name}"] = body.strip()
    return found


def code(block: str) -> str:
    """A block without its comments and with one space for any run of space."""
    return " ".join(re.sub(r"--[^\n]*", "", block).split())


def tenant_tables() -> list[str]:
    """The tables that the migrations put behind row-level security."""
    listed = re.findall(r"FOREACH tenant_table IN ARRAY ARRAY\[(.*?)\]", MIGRATIONS, re.DOTALL)
    assert listed
    return re.findall(r"'([\w.]+)'", "".join(listed))


VIEWS = {path.stem: path.read_text(encoding="utf-8") for path in (sql.ROOT / "views").glob("*.sql")}
CREATE_VIEW = re.compile(r"CREATE OR REPLACE VIEW ([\w.]+)( WITH \(security_invoker = TRUE\))?")


def tenant_relations() -> list[str]:
    """The tenant tables, and the views of them."""
    return tenant_tables() + [CREATE_VIEW.findall(text)[0][0] for text in VIEWS.values()]


BLOCKS = blocks()


def write(folder: Path, noun: str, text: str) -> None:
    (folder / "queries").mkdir(exist_ok=True)
    (folder / "queries" / f"{noun}.sql").write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own that the loader reads. Each test uses nouns of its own: a noun is
    read once a process."""
    monkeypatch.setattr(sql, "ROOT", tmp_path)
    return tmp_path


def test_a_file_is_its_named_blocks_in_order_with_their_parameters(root: Path) -> None:
    write(
        root,
        "ordered",
        "-- What is ordered.\n\n-- name: second_first\n-- Why.\nSELECT :b AS b;\n\n"
        "-- name: first_second\n-- Why.\nSELECT CAST(:a AS jsonb) ->> 'x' AS a,\n:b AS b;\n",
    )
    loaded = sql.load("ordered")
    assert list(loaded) == ["second_first", "first_second"]
    assert all(isinstance(query, TextClause) for query in loaded.values())
    assert str(loaded["second_first"]) == "-- Why.\nSELECT :b AS b;"
    assert set(loaded["first_second"].compile().params) == {"a", "b"}


def test_two_blocks_of_one_name_are_refused(root: Path) -> None:
    write(root, "twice", "-- name: read_it\nSELECT 1;\n-- name: read_it\nSELECT 2;\n")
    with pytest.raises(ValueError, match=r"twice\.sql names a query twice"):
        sql.load("twice")


@pytest.mark.parametrize(
    ("noun", "head"),
    [("lost_statement", "SELECT 1;\n"), ("lost_indented", "-- About.\n\n  SELECT 1;\n")],
)
def test_a_statement_before_the_first_name_is_refused(root: Path, noun: str, head: str) -> None:
    write(root, noun, f"{head}-- name: read_it\nSELECT 2;\n")
    with pytest.raises(ValueError, match=f"{noun}.sql has a statement before its first"):
        sql.load(noun)


def test_comments_before_the_first_name_are_the_files_own(root: Path) -> None:
    write(root, "commented", "-- About.\n\n-- More.\n\n-- name: read_it\nSELECT 2;\n")
    assert list(sql.load("commented")) == ["read_it"]


def test_a_noun_without_a_file_is_an_error_that_names_the_file(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.sql"):
        sql.load("absent")


def test_what_is_loaded_cannot_be_changed_and_is_read_once(root: Path) -> None:
    write(root, "fixed", "-- name: read_it\nSELECT 2;\n")
    loaded = sql.load("fixed")
    with pytest.raises(TypeError):
        loaded["read_it"] = loaded["read_it"]  # type: ignore[index]
    assert sql.load("fixed") is loaded


@pytest.mark.parametrize("noun", NOUNS)
def test_every_query_file_loads_under_the_names_that_stand_in_it(noun: str) -> None:
    names = [name.split(".")[1] for name in BLOCKS if name.startswith(f"{noun}.")]
    assert list(sql.load(noun)) == names
    assert names


@pytest.mark.parametrize("noun", NOUNS)
def test_every_query_file_says_first_what_it_is_about(noun: str) -> None:
    assert (QUERIES / f"{noun}.sql").read_text(encoding="utf-8").startswith("-- ")


@pytest.mark.parametrize("name", BLOCKS)
def test_every_query_has_a_purpose_and_is_one_statement(name: str) -> None:
    first, *_ = BLOCKS[name].splitlines()
    assert re.fullmatch(r"-- \S.*", first)
    statement = code(BLOCKS[name])
    # A semicolon inside would start a second statement; each ends with one.
    assert statement.count(";") == 1
    assert statement.endswith(";")


def test_the_tenant_tables_are_those_that_the_migration_isolates() -> None:
    assert tenant_tables() == [
        "memories",
        "memory_edges",
        "memory_events",
        "consolidation_proposals",
        "retention_proposals",
        "evidence",
        "memory_evidence",
        "llm_usage",
        "user_budgets",
        "budget_reservations",
        "forgetting.embedding_models",
        "forgetting.conflict_pairs",
        "forgetting.stale_candidates",
        "forgetting.judged_verdicts",
        "forgetting.archival_sweep",
        "forgetting.invariant_results",
        "forgetting.minings",
        "forgetting.mined_memories",
        "forgetting.similar_pairs",
        "forgetting.calls_under_way",
        "forgetting.unjudged_items",
        "forgetting.shadow_answers",
        "forgetting.revivals",
        "forgetting.decisions",
        "forgetting.regrets",
        "forgetting.forgotten",
        "forgetting.closures",
        "forgetting.memory_health",
        "forgetting.partition_failures",
    ]


@pytest.mark.parametrize("name", VIEWS)
def test_br_42_every_view_reads_with_the_rights_of_who_asks_it(name: str) -> None:
    # A view without security_invoker reads as its owner, past the policies of who asks.
    assert [invoker != "" for _, invoker in CREATE_VIEW.findall(VIEWS[name])] == [True]
    assert re.search(r"\buser_id\b", code(VIEWS[name]))


def uses(block: str) -> list[tuple[str, str | None]]:
    """Each reading or changing use of a tenant table or view in a block, with its alias."""
    tables = "|".join(map(re.escape, sorted(tenant_relations(), key=len, reverse=True)))
    found = re.findall(
        rf"(?:FROM|JOIN|UPDATE|USING) ({tables})\b(?! \()(?: AS (\w+))?", code(block), re.IGNORECASE
    )
    return [(table, alias or None) for table, alias in found]


def unscoped(block: str) -> list[str]:
    """The tables of a block that no ``user_id = :user_id`` binds, at once or through a join.

    An alias that stands several times in a block must be bound as often.
    """
    text = code(block)
    found = uses(block)
    bound = {match[1] for match in re.finditer(r"\b(\w+)\.user_id = :user_id\b", text)}
    joins = re.findall(r"\b(\w+)\.user_id = (\w+)\.user_id\b", text)
    for _ in joins:
        for one, other in joins:
            if one in bound or other in bound:
                bound |= {one, other}
    mentions = Counter(re.findall(r"\b(\w+)\.user_id = ", text))
    mentions.update(re.findall(r"= (\w+)\.user_id\b", text))
    declared = Counter(alias for _, alias in found if alias)
    loose = [
        f"{table} AS {alias}"
        for table, alias in found
        if alias and (alias not in bound or mentions[alias] < declared[alias])
    ]
    plain = [table for table, alias in found if alias is None]
    if plain and len(re.findall(r"(?<![.\w])user_id = :user_id\b", text)) < len(plain):
        loose += plain
    return loose


@pytest.mark.parametrize("name", [name for name in BLOCKS if uses(BLOCKS[name])])
def test_br_42_every_query_of_a_tenant_table_carries_the_tenant_beside_rls(name: str) -> None:
    assert "user_id = :user_id" in code(BLOCKS[name])
    assert unscoped(BLOCKS[name]) == []


@pytest.mark.parametrize(
    "name",
    [name for name in BLOCKS if re.search(r"INSERT INTO", code(BLOCKS[name]))],
)
def test_br_42_every_row_that_is_written_to_a_tenant_table_is_given_its_tenant(name: str) -> None:
    text = code(BLOCKS[name])
    for table, columns in re.findall(r"INSERT INTO ([\w.]+) \(([^)]*)\)", text):
        if table in tenant_tables():
            assert "user_id" in columns.replace(" ", "").split(",")
            assert ":user_id" in text


def test_br_42_the_rule_finds_a_query_without_its_tenant() -> None:
    # The control of the rules above, on the holes that users of other systems met.
    scoped = "SELECT m.id FROM memories AS m WHERE m.user_id = :user_id;"
    joined = (
        "SELECT 1 FROM memories AS m INNER JOIN memory_edges AS e ON m.user_id = e.user_id "
        "WHERE m.user_id = :user_id;"
    )
    assert unscoped(scoped) == unscoped(joined) == []
    assert unscoped("UPDATE memories SET x = 1 WHERE user_id = :user_id AND id = :id;") == []
    assert unscoped("SELECT m.id FROM memories AS m WHERE m.id = :id;") == ["memories AS m"]
    assert unscoped("UPDATE memories SET x = 1 WHERE id = :id;") == ["memories"]
    assert unscoped(
        "SELECT 1 FROM memories AS m WHERE m.user_id = :user_id AND EXISTS "
        "(SELECT 1 FROM memory_edges AS e WHERE e.to_id = m.id);"
    ) == ["memory_edges AS e"]
    assert (
        unscoped(
            "SELECT 1 FROM evidence AS e WHERE e.user_id = :user_id UNION ALL "
            "SELECT 1 FROM evidence AS e WHERE e.id = :id;"
        )
        == ["evidence AS e"] * 2
    )


def test_queries_that_name_no_tenant_are_those_that_concern_no_tenant() -> None:
    without = {name for name, block in BLOCKS.items() if ":user_id" not in block}
    of_the_deployment = {
        "budget.lock_deployment_budget",
        "budget.read_deployment_spend",
        "budget.commit_deployment_spend",
        "rate.take_tokens",
    }
    assert of_the_deployment <= without
    registry = {name.split(".")[0] for name in without - of_the_deployment}
    assert registry <= {"analysts", "catalog", "events", "guard", "tenant_rows", "tenants"}


def deleted(text: str) -> set[str]:
    """The tables that a statement may take rows from."""
    return {
        table.lower()
        for table in re.findall(
            r"(?:DELETE FROM|TRUNCATE(?: TABLE)?|MERGE INTO|DROP TABLE)(?: ONLY)? ([\w.]+)",
            code(text),
            re.IGNORECASE,
        )
    }


@pytest.mark.parametrize("name", BLOCKS)
def test_br_01_no_query_deletes_what_is_remembered_or_decided(name: str) -> None:
    assert deleted(BLOCKS[name]).isdisjoint(NEVER_DELETED)


def test_br_01_the_only_deletes_are_of_what_can_be_made_again_reservations_grants_and_logs() -> (
    None
):
    # The control: what may be deleted is found.
    assert set().union(*(deleted(block) for block in BLOCKS.values())) == {
        "analytics.tenant_grants",
        "budget_reservations",
        "event_logs",  # Dagster's, in its own database
        "forgetting.calls_under_way",
        "forgetting.conflict_pairs",
        "forgetting.memory_health",
        "forgetting.mined_memories",
        "forgetting.partition_failures",
        "forgetting.stale_candidates",
    }
    assert deleted("DELETE\n  FROM memories\nWHERE TRUE;") == {"memories"}


def test_br_01_the_runtime_role_is_granted_no_delete_on_what_is_remembered_or_decided() -> None:
    grants = re.findall(r"GRANT ([A-Z, ]+) ON\s+([^;]+?)\s+TO forgetting_runtime;", MIGRATIONS)
    may_delete = {
        table
        for rights, tables in grants
        if "DELETE" in rights or "TRUNCATE" in rights
        for table in re.split(r",\s*", tables)
    }
    assert may_delete == {
        "budget_reservations",
        "forgetting.calls_under_way",
        "forgetting.conflict_pairs",
        "forgetting.memory_health",
        "forgetting.mined_memories",
        "forgetting.partition_failures",
        "forgetting.stale_candidates",
    }


def test_br_15_no_query_rewrites_what_a_memory_or_evidence_says() -> None:
    rewritten = re.compile(r"UPDATE (?:memories|evidence)\b.*?\bSET\b(.*?)\b(?:WHERE|FROM)\b")
    changes = [set_ for block in BLOCKS.values() for set_ in rewritten.findall(code(block))]
    assert changes  # the control: the statements that archive and close are found
    for change in changes:
        columns = set(re.findall(r"(\w+) = ", change))
        assert columns <= {
            *("status", "valid_to", "updated_at"),
            *("archived_at", "archived_run_date", "last_retrieved_at", "last_outcome_at"),
            *("success_count", "reinforcement_count"),
        }
