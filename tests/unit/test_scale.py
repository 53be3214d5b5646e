"""The table of docs/scale.md is arithmetic on docs/benchmarks/tenants.md.

After the benchmark was run again:

    UPDATE_DOCS=1 .venv/bin/python -m pytest tests/unit/test_scale.py
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import pytest
from ruamel.yaml import YAML

from resources.settings import PROJECT, Settings

PAGE = PROJECT / "docs" / "scale.md"
BENCH = PROJECT / "docs" / "benchmarks" / "tenants.md"
START = "<!-- night: written by tests/unit/test_scale.py -->\n"
END = "<!-- end of night -->"
SIZES = (10, 1_000, 100_000)
RUNS_A_SECOND = 2.5


@dataclass(frozen=True)
class Measured:
    """A row of the benchmark: a tenant's cost with so many tenants a run."""

    per_run: int
    cpu: float
    kb: float


def measured() -> list[Measured]:
    """Both rows: a run a tenant, and many tenants a run."""
    if not BENCH.exists():
        pytest.skip("make bench-tenants has not written its page")
    header, *rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in BENCH.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    found = []
    for row in rows:
        if not re.match(r"a run a tenant$|\d[\d,]* tenants a run$", row[0]):
            continue
        by_name = dict(zip(header, row, strict=True))
        first = row[0].split()[0]
        per_run = 1 if first == "a" else int(first.replace(",", ""))
        found.append(Measured(per_run, float(by_name["CPU s"]), float(by_name["kB"])))
    assert len(found) == 2, BENCH.name
    return found


def lasting(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def table() -> str:
    """Each size with each way of running it."""
    lines = [
        "| tenants | a run | runs | daemon | CPU hours | on 2 cores | database a night | a year |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for size in SIZES:
        for each in measured():
            runs = -(-size // each.per_run)
            cpu = size * each.cpu
            mb = size * each.kb / 1000
            lines.append(
                f"| {size:,} | {each.per_run:,} | {runs:,} | {lasting(runs / RUNS_A_SECOND)} "
                f"| {cpu / 3600:.2f} | {lasting(cpu / 2)} | {mb:,.0f} MB "
                f"| {mb * 365 / 1000:,.0f} GB |"
            )
    return "\n".join(lines) + "\n"


def test_the_table_follows_from_the_benchmark() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    stands, after = rest.split(END)
    expected = f"\n{table()}\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(before + START + expected + END + after, encoding="utf-8")
        return
    assert stands == expected, "UPDATE_DOCS=1 pytest tests/unit/test_scale.py writes it anew"


def test_the_arithmetic_beside_the_table_is_right_and_uses_the_real_defaults() -> None:
    page = PAGE.read_text(encoding="utf-8")
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    tokens = 60_269 / 16
    assert f"{tokens:,.0f} tokens" in page
    rate = defaults["forgetting_tokens_per_minute"]
    assert f"So {rate / tokens:.0f} calls a minute" in page
    minutes = [size * 4 * 3767 / rate for size in (1_000, 100_000)]
    assert f"1,000 tenants {minutes[0]:.0f}, 100,000 {minutes[1]:,.0f}" in page
    budget = defaults["forgetting_deployment_budget_usd"]
    assert f"{budget:.0f} US dollars in 30 days" in page
    assert f"calls = {budget:.0f} / 0.01 = {budget / 0.01:,.0f} " in page
    assert f"1,000 tenants with 4 calls: {budget / 0.01 / 4000:.1f} nights" in page
    price = defaults["forgetting_prices"]["jev-1.13.0"][0]
    calls = budget / (3767 * price / 1_000_000)
    assert f"= {calls:,.0f} " in page
    assert f"1,000 tenants with 4 calls: {calls / 4000:.0f} nights" in page
    instance = YAML(typ="safe").load(PROJECT / "dagster.yaml")
    assert f"**The queue: {instance['concurrency']['runs']['max_concurrent_runs']} runs" in page
    assert f"**The judge's pool: {instance['concurrency']['pools']['default_limit']} step" in page
    hours = instance["run_monitoring"]["max_runtime_seconds"] / 3600
    assert f"**A run's time: {hours:.0f} hours**" in page
    assert f"needs {1000 * 4 * 3 / 60:.0f} minutes" in page
    days = [100_000 / size for size in SIZES]
    assert f"{days[0] / 365:.0f} years     1,000: {days[1]:.0f} days     100,000: 1 day" in page
    assert f"{100_000 / RUNS_A_SECOND / 3600:.0f} hours only to request" in page


def test_the_token_count_is_what_the_command_prints(capfd: pytest.CaptureFixture[str]) -> None:
    from eval.answers import RECORDED, replay
    from eval.fixture import load

    said = replay(load(), RECORDED / "scripted.jsonl")
    assert len(said.calls) == 16
    assert sum(call.input_tokens or 0 for call in said.calls) == 60_269
