"""Every environment variable the project reads, in one place.

docs/settings.md is the same list for people. Secrets stay here: they are never a field of a Dagster
resource, whose configuration the UI shows.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from resources.errors import ConfigurationError

PROJECT = Path(__file__).parent.parent
"""The checkout. In an installed wheel, the folder that holds the four packages."""
IS_CHECKOUT = (PROJECT / "pyproject.toml").exists()
HOME = PROJECT / ".forgetting" if IS_CHECKOUT else user_data_path("forgetting-assets", False)

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1, le=1)]


class Settings(BaseSettings):
    """The environment, typed. Build it with ``read()``, whose errors are sentences."""

    model_config = SettingsConfigDict(
        populate_by_name=True, extra="ignore", frozen=True, env_ignore_empty=True
    )

    database_url: SecretStr | None = Field(
        None, description="the runtime role's PostgreSQL URL; without it an embedded server runs"
    )
    database_admin_url: SecretStr | None = Field(
        None,
        description="the owner's URL, for `migrate`, `demo`, and `tenants` restore, erase, grant, "
        "revoke",
    )
    dagster_database_url: SecretStr | None = Field(
        None, description="Dagster's run storage; without it `<database>_dagster`, same server"
    )
    forgetting_home: Path = Field(
        HOME,
        description="folder of the embedded server and of Dagster's files; an installed wheel uses "
        "`forgetting-assets` in the user's data folder, on Linux `~/.local/share`",
    )
    forgetting_start_date: date = Field(
        date(2026, 1, 1), description="first day that has a partition"
    )
    forgetting_pass_enabled: bool = Field(False, description="the pass may read, judge and propose")
    forgetting_archive_enabled: bool = Field(False, description="the sweep may archive evidence")
    forgetting_unforget: bool = Field(
        False, description="sweeps archive nothing and bring back a batch each, until none is left"
    )
    forgetting_tenants_per_run: int = Field(
        1,
        ge=1,
        le=1000,
        description="tenants that one run of the schedule goes through; above 1 a tenant costs far "
        "less, and a failed one is left alone while the others go on",
    )
    forgetting_gateway: Literal["jev", "scripted"] = Field(
        "jev", description="who judges; `scripted` answers from the demo's fixture, demo only"
    )
    jev_api_key: SecretStr | None = Field(None, description="the judge's key")
    jev_model: str = Field("jev-1.14.0", description="the pinned judge; an alias is refused")
    jev_base_url: str = Field(
        "https://api.typesafe.ai", description="any server of `POST /v1/systemone`"
    )
    jev_answer_model: str | None = Field(
        None, description="the model an answer must name; without it JEV_MODEL"
    )
    jev_timeout_seconds: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="seconds that one answer may take"
    )
    forgetting_prices: dict[str, tuple[Price, Price]] = Field(
        {"jev-1.13.0": (0.042, 0.0), "scripted": (0.0, 0.0)},
        description="US dollars per million input and output tokens, by exact answer model; "
        "a call of a model that is not here counts as 0.01",
    )
    forgetting_budget_usd: float = Field(
        10.0, ge=0, allow_inf_nan=False, description="US dollars a tenant may spend in 30 days"
    )
    forgetting_deployment_budget_usd: float = Field(
        100.0,
        ge=0,
        allow_inf_nan=False,
        description="US dollars that judging may cost in 30 days for all tenants together",
    )
    forgetting_tokens_per_minute: int = Field(
        1_000_000, ge=1, description="tokens a minute that all runs together send to the judge"
    )
    forgetting_calls_in_flight: int = Field(
        1,
        ge=1,
        le=16,
        description="judge calls that one run has under way at once; a killed run may pay for as "
        "many twice",
    )
    forgetting_retry_seconds: float = Field(
        120.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that one tenant's pass may lose to a judge that is away, in all; then "
        "the rest waits for the next run",
    )
    forgetting_judge_shadow: bool = Field(
        False, description="ask two more yes/no questions beside each pair, for the eval alone"
    )
    forgetting_open_proposals: int = Field(
        500, ge=1, description="open proposals of a tenant at which judging, and spending, stops"
    )
    forgetting_proposal_days: int = Field(
        90,
        ge=1,
        le=36_500,
        description="days after which an undecided proposal expires, which is not a rejection",
    )
    forgetting_blast_radius: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a scope's verdicts in one run that may be other than keep; above it "
        "nothing is proposed",
    )
    forgetting_blast_radius_least: int = Field(
        20, ge=1, description="verdicts that a scope needs before its share counts"
    )
    forgetting_conflict_floors: dict[str, Cosine] = Field(
        {"demo-text-hash-1536": 0.72},
        description="least cosine of a pair, by embedding model; a tenant's vectors of another "
        "model are refused, and `unknown` stands for a model that is not recorded",
    )
    forgetting_batch_items: int = Field(12, ge=1, le=100, description="items in one judge call")
    forgetting_sweep_batch: int = Field(
        500, ge=0, description="evidence entries that one partition may archive"
    )
    forgetting_sweep_window_days: int = Field(
        7, ge=1, description="days without use before evidence may be archived"
    )
    forgetting_source_url: str | None = Field(
        None,
        pattern=r"^https?://\S*(github|gitlab)\S*$",
        description="GitHub or GitLab repository that the UI's links to code lead to; without it "
        "they name files of the machine",
    )
    forgetting_source_branch: str = Field(
        "main", min_length=1, description="branch, tag or commit of FORGETTING_SOURCE_URL"
    )
    forgetting_golden: Path | None = Field(
        None,
        description="a private golden set for the bars that the UI shows; it and `recorded` beside "
        "it stay outside the project",
    )
    forgetting_entry_bytes: int = Field(
        10_485_760,
        ge=1,
        le=100_000_000,
        description="bytes that one recorded piece of evidence may have",
    )
    forgetting_log_format: Literal["text", "json"] = Field(
        "text", description="`json` writes logs as one JSON object a line on standard error"
    )
    forgetting_alert_webhook: SecretStr | None = Field(
        None, description="the URL that alerts are posted to; without it they only show in the UI"
    )
    forgetting_overdue_days: int = Field(
        2,
        ge=1,
        le=36_500,
        description="days since the end of the newest day that a tenant's pass went through, after "
        "which an alert calls it overdue",
    )


def read() -> Settings:
    """The settings of this process. Raises ConfigurationError that names each bad variable."""
    try:
        return Settings()  # type: ignore[call-arg,unused-ignore]
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join([str(e['loc'][0]).upper(), *map(str, e['loc'][1:])])}: {e['msg']}"
            for e in error.errors(include_input=False)
        )
        raise ConfigurationError(f"Settings that cannot be used: {wrong}.") from None
    except SettingsError as error:
        # Its own words name the field and no value: error parsing value for field "…".
        named = re.search(r'field "(\w+)"', str(error))
        raise ConfigurationError(
            f"Settings that cannot be used: {named[1].upper() if named else error}: not JSON."
        ) from None
