"""The environment, typed: defaults that do nothing, errors that name a variable and no value."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from pydantic import SecretStr

from resources import settings
from resources.errors import ConfigurationError
from resources.settings import Settings

FLAGS = [name for name in Settings.model_fields if name.endswith("_enabled")]


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower() in Settings.model_fields:
            monkeypatch.delenv(name)


def test_an_empty_environment_reads_judges_and_archives_nothing() -> None:
    assert FLAGS == ["forgetting_pass_enabled", "forgetting_archive_enabled"]
    read = settings.read()
    assert [getattr(read, flag) for flag in FLAGS] == [False, False]
    assert read.jev_api_key is None
    assert read.database_url is None


def test_the_defaults_are_the_adrs_starting_values() -> None:
    read = settings.read().model_dump(exclude={"forgetting_home"})
    assert read == {
        "database_url": None,
        "database_admin_url": None,
        "dagster_database_url": None,
        "forgetting_start_date": date(2026, 1, 1),
        "forgetting_pass_enabled": False,
        "forgetting_archive_enabled": False,
        "forgetting_unforget": False,
        "forgetting_tenants_per_run": 1,
        "forgetting_gateway": "jev",
        "jev_api_key": None,
        "jev_model": "jev-1.14.0",
        "jev_base_url": "https://api.typesafe.ai",
        "jev_answer_model": None,
        "jev_timeout_seconds": 60.0,
        "forgetting_prices": {"jev-1.13.0": (0.042, 0.0), "scripted": (0.0, 0.0)},
        "forgetting_budget_usd": 10.0,
        "forgetting_deployment_budget_usd": 100.0,
        "forgetting_tokens_per_minute": 1_000_000,
        "forgetting_calls_in_flight": 1,
        "forgetting_retry_seconds": 120.0,
        "forgetting_judge_shadow": False,
        "forgetting_open_proposals": 500,
        "forgetting_proposal_days": 90,
        "forgetting_blast_radius": 0.5,
        "forgetting_blast_radius_least": 20,
        "forgetting_conflict_floors": {"demo-text-hash-1536": 0.72},
        "forgetting_batch_items": 12,
        "forgetting_sweep_batch": 500,
        "forgetting_sweep_window_days": 7,
        "forgetting_source_url": None,
        "forgetting_source_branch": "main",
        "forgetting_golden": None,
        "forgetting_entry_bytes": 10_485_760,
        "forgetting_log_format": "text",
        "forgetting_alert_webhook": None,
        "forgetting_overdue_days": 2,
    }


def test_the_pinned_model_has_no_guessed_price() -> None:
    read = settings.read()
    assert read.jev_model not in read.forgetting_prices


# Every variable, with a value that is not its default and what is read from it.
GIVEN: dict[str, tuple[str, object]] = {
    "DATABASE_URL": ("postgresql+psycopg2://a@h/m", SecretStr("postgresql+psycopg2://a@h/m")),
    "DATABASE_ADMIN_URL": ("postgresql+psycopg2://o@h/m", SecretStr("postgresql+psycopg2://o@h/m")),
    "DAGSTER_DATABASE_URL": (
        "postgresql+psycopg2://a@h/d",
        SecretStr("postgresql+psycopg2://a@h/d"),
    ),
    "FORGETTING_HOME": ("/srv/forgetting", Path("/srv/forgetting")),
    "FORGETTING_START_DATE": ("2026-03-04", date(2026, 3, 4)),
    "FORGETTING_PASS_ENABLED": ("true", True),
    "FORGETTING_ARCHIVE_ENABLED": ("1", True),
    "FORGETTING_UNFORGET": ("1", True),
    "FORGETTING_TENANTS_PER_RUN": ("100", 100),
    "FORGETTING_GATEWAY": ("scripted", "scripted"),
    "JEV_API_KEY": ("a key", SecretStr("a key")),
    "JEV_MODEL": ("jev-1.13.0", "jev-1.13.0"),
    "JEV_BASE_URL": ("http://127.0.0.1:8787", "http://127.0.0.1:8787"),
    "JEV_ANSWER_MODEL": ("jevcompat-mock-0.1", "jevcompat-mock-0.1"),
    "JEV_TIMEOUT_SECONDS": ("5", 5.0),
    "FORGETTING_PRICES": ('{"jev-1.14.0": [0.05, 0]}', {"jev-1.14.0": (0.05, 0.0)}),
    "FORGETTING_BUDGET_USD": ("0", 0.0),
    "FORGETTING_DEPLOYMENT_BUDGET_USD": ("0", 0.0),
    "FORGETTING_TOKENS_PER_MINUTE": ("1", 1),
    "FORGETTING_CALLS_IN_FLIGHT": ("16", 16),
    "FORGETTING_RETRY_SECONDS": ("0", 0.0),
    "FORGETTING_JUDGE_SHADOW": ("true", True),
    "FORGETTING_OPEN_PROPOSALS": ("1", 1),
    "FORGETTING_PROPOSAL_DAYS": ("1", 1),
    "FORGETTING_BLAST_RADIUS": ("1", 1.0),
    "FORGETTING_BLAST_RADIUS_LEAST": ("1", 1),
    "FORGETTING_CONFLICT_FLOORS": ('{"minilm": 0.5}', {"minilm": 0.5}),
    "FORGETTING_BATCH_ITEMS": ("1", 1),
    "FORGETTING_SWEEP_BATCH": ("0", 0),
    "FORGETTING_SWEEP_WINDOW_DAYS": ("1", 1),
    "FORGETTING_SOURCE_URL": ("https://github.com/a/b", "https://github.com/a/b"),
    "FORGETTING_SOURCE_BRANCH": ("v1.2.3", "v1.2.3"),
    "FORGETTING_GOLDEN": ("/golden/items.json", Path("/golden/items.json")),
    "FORGETTING_ENTRY_BYTES": ("1000", 1000),
    "FORGETTING_LOG_FORMAT": ("json", "json"),
    "FORGETTING_ALERT_WEBHOOK": ("https://hooks.example/a", SecretStr("https://hooks.example/a")),
    "FORGETTING_OVERDUE_DAYS": ("7", 7),
}


def test_the_table_above_has_every_setting() -> None:
    assert [name.lower() for name in GIVEN] == list(Settings.model_fields)


@pytest.mark.parametrize("variable", GIVEN)
def test_each_variable_is_read_and_changes_its_setting_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = settings.read()
    text, meant = GIVEN[variable]
    monkeypatch.setenv(variable, text)
    after = settings.read()
    assert getattr(after, variable.lower()) == meant
    changed = [
        name for name in Settings.model_fields if getattr(after, name) != getattr(before, name)
    ]
    assert changed == [variable.lower()]


BAD = {
    "FORGETTING_START_DATE": ["VALUETEXT", "2026-13-01"],
    "FORGETTING_PASS_ENABLED": ["VALUETEXT", "2"],
    "FORGETTING_ARCHIVE_ENABLED": ["VALUETEXT"],
    "FORGETTING_UNFORGET": ["VALUETEXT"],
    "FORGETTING_GATEWAY": ["VALUETEXT", "JEV"],
    "FORGETTING_PRICES": [
        "VALUETEXT",
        "{VALUETEXT}",
        "[]",
        '{"jev-1.14.0": 1}',
        '{"jev-1.14.0": [1]}',
        '{"jev-1.14.0": [1, "VALUETEXT"]}',
        '{"jev-1.14.0": [-1, 0]}',
        '{"jev-1.14.0": [NaN, 0]}',
        '{"jev-1.14.0": [Infinity, 0]}',
    ],
    "JEV_TIMEOUT_SECONDS": ["VALUETEXT", "0", "inf", "nan"],
    "FORGETTING_BUDGET_USD": ["VALUETEXT", "-0.01", "nan", "inf"],
    "FORGETTING_DEPLOYMENT_BUDGET_USD": ["VALUETEXT", "-0.01", "nan", "inf"],
    "FORGETTING_TOKENS_PER_MINUTE": ["VALUETEXT", "0", "0.5"],
    "FORGETTING_CALLS_IN_FLIGHT": ["VALUETEXT", "0", "17"],
    "FORGETTING_RETRY_SECONDS": ["VALUETEXT", "-1", "inf"],
    "FORGETTING_JUDGE_SHADOW": ["VALUETEXT"],
    "FORGETTING_OPEN_PROPOSALS": ["VALUETEXT", "0"],
    "FORGETTING_PROPOSAL_DAYS": ["VALUETEXT", "0", "36501"],
    "FORGETTING_BLAST_RADIUS": ["VALUETEXT", "-0.1", "1.1", "nan"],
    "FORGETTING_BLAST_RADIUS_LEAST": ["VALUETEXT", "0"],
    "FORGETTING_CONFLICT_FLOORS": [
        "VALUETEXT",
        "[]",
        '{"minilm": "VALUETEXT"}',
        '{"minilm": 1.01}',
        '{"minilm": NaN}',
    ],
    "FORGETTING_BATCH_ITEMS": ["VALUETEXT", "0", "101", "1.5"],
    "FORGETTING_SWEEP_BATCH": ["VALUETEXT", "-1"],
    "FORGETTING_SWEEP_WINDOW_DAYS": ["VALUETEXT", "0"],
    "FORGETTING_ENTRY_BYTES": ["VALUETEXT", "0"],
}


@pytest.mark.parametrize(
    ("variable", "text"), [(variable, text) for variable, texts in BAD.items() for text in texts]
)
def test_a_bad_value_is_a_sentence_that_names_the_variable_and_not_the_value(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigurationError) as refused:
        settings.read()
    sentence = str(refused.value)
    assert variable in sentence
    assert sentence.startswith("Settings that cannot be used: ")
    assert sentence.endswith(".")
    assert "VALUETEXT" not in sentence
    # What is printed below an unhandled error holds no value either.
    assert refused.value.__suppress_context__


def test_every_bad_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGETTING_BATCH_ITEMS", "none")
    monkeypatch.setenv("FORGETTING_GATEWAY", "oracle")
    with pytest.raises(ConfigurationError) as refused:
        settings.read()
    assert "FORGETTING_BATCH_ITEMS" in str(refused.value)
    assert "FORGETTING_GATEWAY" in str(refused.value)


@profile(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(GIVEN)), st.text(st.characters(codec="utf-8", exclude_characters="\0"))
)
def test_any_text_in_any_variable_is_a_setting_or_a_configuration_error(
    variable: str, text: str
) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(variable, text)
        try:
            read = settings.read()
        except ConfigurationError as refused:
            said = str(refused)
        else:
            said = variable
            assert hasattr(read, variable.lower())
    assert variable in said


@pytest.mark.parametrize("secret", ["JEV_API_KEY", "DATABASE_URL", "DATABASE_ADMIN_URL"])
def test_a_secret_is_in_no_print_of_the_settings(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(secret, "VALUETEXT")
    read = settings.read()
    for shown in (repr(read), str(read), read.model_dump_json()):
        assert "VALUETEXT" not in shown
    assert getattr(read, secret.lower()).get_secret_value() == "VALUETEXT"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_description(name: str) -> None:
    description = Settings.model_fields[name].description
    assert description
    assert description == description.strip()


def test_settings_cannot_be_changed_after_they_were_read() -> None:
    read = settings.read()
    with pytest.raises(ValueError, match="frozen"):
        read.forgetting_pass_enabled = True  # type: ignore[misc]


def test_a_variable_that_is_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "JEV_API_KEY", "FORGETTING_PASS_ENABLED", "FORGETTING_PRICES"):
        monkeypatch.setenv(name, "")
    assert settings.read() == Settings()
    assert settings.read().database_url is None
