"""What a person sees of the pass in the Dagster UI: Debian's chromium before a real `dagster dev`.

With UPDATE_IMAGES=1 the pictures of docs/images are taken anew. A machine without chromium skips
the test, but not where CI is set.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import psutil
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from forgetting_assets import runs
from forgetting_assets.definitions import build_defs
from forgetting_assets.demo import seed
from forgetting_assets.demo.generate import demo_tenants
from forgetting_assets.partition import of_day
from forgetting_assets.store import tenants
from resources import migrations
from resources.addresses import Addresses
from resources.clock import Clock
from resources.settings import PROJECT
from tests.acceptance.test_assets import plant, reclassify
from tests.acceptance.test_dev import KNOWN, LAUNCH, Dev
from tests.graph import ASSETS
from tests.support import Store

# Dagster's own uses of its own deprecated names.
pytestmark = [
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run"),
    pytest.mark.filterwarnings("ignore:Non-compliant tag keys like ..dagster/partition/date"),
]

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
IMAGES = PROJECT / "docs" / "images"
IMAGE_BYTES = 250_000
NIGHTS = (29, 15, 1)
"""Days before today that the first tenant's pass was run for."""
HARBOR, JUNIPER, SOLO = "harbor-logistics", "juniper-clinic", "solo-maya"
SOURCE = "https://github.com/example/forgetting_assets"
GROUP = "/locations/forgetting_assets.definitions/asset-groups/forgetting/lineage"
BACKFILL = """
query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
}
"""
RED_NODE = """
    return [...document.querySelectorAll("foreignObject div")].some((node) => {
        const [red, green] = getComputedStyle(node).borderTopColor.match(/[0-9]+/g).map(Number);
        return red > 150 && green < 100;
    });
"""
"""Whether the graph has loaded what it knows of the last runs, one of which failed."""
REASON = "of type note, and a candidate or its neighbour"


@dataclass
class Night:
    """A demo that was in use: days that were passed over, and one that a violation stopped."""

    dev: Dev
    yesterday: date
    first: date
    """The first tenant's first day, on which there was most to find."""
    spoiled: str
    """The id of the second tenant's memory that became a note under the pass."""
    reference: datetime
    """What the demo's ages are counted from."""


def pass_over(store: Store, slug: str, day: date) -> runs.Run:
    """The pass over a day, as at the beginning of the next one."""
    now = datetime.combine(day + timedelta(days=1), time(), UTC)
    job = build_defs(clock=Clock(fixed=now.isoformat())).resolve_job_def("forgetting_pass")
    partition = of_day(day, tenants.find(store.database, slug), now)
    return runs.run_partition(store.database, job, partition)


@pytest.fixture
def night(
    places: Addresses, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Night]:
    """`forgetting dev --demo` on a demo database, as the demo itself counted from today."""
    assert places.admin is not None
    migrations.create_database(
        places.admin.set(database="postgres"),
        str(places.dagster.database),
        owner=str(places.dagster.username),
    )
    environment = {
        **places.environment(),
        "FORGETTING_HOME": str(tmp_path / "forgetting"),
        "DAGSTER_HOME": str(tmp_path),
        "FORGETTING_GATEWAY": "scripted",
        "FORGETTING_PASS_ENABLED": "true",
        "FORGETTING_ARCHIVE_ENABLED": "true",
        # The script is free of charge; a plot of spend needs a price.
        "FORGETTING_PRICES": '{"scripted": [0.042, 0.0]}',
        "FORGETTING_SOURCE_URL": SOURCE,
    }
    shutil.copyfile(PROJECT / "dagster.yaml", tmp_path / "dagster.yaml")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    now = Clock().now()
    yesterday = now.date() - timedelta(days=1)
    seed.seed(store.database, places.admin, now)
    for days in NIGHTS:
        assert pass_over(store, HARBOR, now.date() - timedelta(days=days)).success
    [spoiled] = store.rows(
        "SELECT m.id FROM memories AS m INNER JOIN tenants AS t ON m.user_id = t.user_id "
        "WHERE t.slug = :slug AND m.memory_type = 'decision' ORDER BY m.updated_at, m.id LIMIT 1",
        slug=JUNIPER,
    )
    plant(
        store,
        "forgetting.stale_candidates",
        f"{reclassify('memory_id')} AND id = '{spoiled['id']}'",
    )
    assert not pass_over(store, JUNIPER, yesterday).success
    started = Dev(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment})
    try:
        first = now.date() - timedelta(days=NIGHTS[0])
        reference = datetime.combine(now.date(), time(), UTC)
        yield Night(started, yesterday, first, str(spoiled["id"]), reference)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in reversed(started.family()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        started.process.wait()


@dataclass
class Browser:
    """A person's browser: it opens pages, reads them and takes pictures."""

    driver: webdriver.Chrome
    home: str
    pictures: Path
    read: list[str] = field(default_factory=list)
    """What was on the pages."""

    def open(self, path: str, *words: str) -> None:
        """Open a page and wait until it shows all of these words."""
        self.driver.get(self.home + path)
        self.shows(*words)

    def shows(self, *words: str) -> None:
        """Wait until the page shows all of these words."""
        for word in words:
            try:
                WebDriverWait(self.driver, 60).until(lambda _driver, word=word: word in self.text)
            except Exception:
                raise AssertionError(f"no {word!r} in what is shown: {self.text}") from None

    @property
    def text(self) -> str:
        """What is to be read on the page, in one line."""
        return " ".join(
            self.driver.execute_script("return document.body.innerText")
            .replace("\xa0", " ")
            .split()
        )

    def waits_for(self, script: str) -> None:
        """Wait until a script of JavaScript returns true."""
        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(script))

    def find(self, xpath: str) -> WebElement:
        """The first element of the page that matches, once it is there."""
        return WebDriverWait(self.driver, 60).until(
            lambda driver: next(iter(driver.find_elements(By.XPATH, xpath)), None)
        )

    def click(self, words: str) -> None:
        """Click what shows exactly these words."""
        found = self.find(f"//*[normalize-space(text())='{words}']")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def top(self, words: str) -> None:
        """Scroll to what shows exactly these words."""
        found = self.find(f"//*[normalize-space(text())='{words}']")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'start'})", found)

    def picture(self, name: str) -> None:
        """Take a picture once two in a row are the same, so that nothing moves any more."""
        taken = b""
        for _ in range(40):
            before, taken = taken, self.driver.get_screenshot_as_png()
            if before == taken:
                break
        assert len(taken) < IMAGE_BYTES, (name, len(taken))
        (self.pictures / f"{name}.png").write_bytes(taken)

    def done(self) -> None:
        """Remember what the page showed; no JavaScript failed on it."""
        self.read.append(self.text)
        logged = self.driver.get_log("browser")
        assert [each["message"] for each in logged if each["level"] == "SEVERE"] == []


@pytest.fixture
def chrome() -> Iterator[webdriver.Chrome]:
    """A headless chromium; without one the test is skipped, in CI it fails."""
    if CHROMIUM is None or DRIVER is None:
        missing = (
            "chromium or chromedriver is not installed: apt-get install chromium chromium-driver"
        )
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--force-prefers-reduced-motion", "--lang=en-US"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    # The page itself, without the frame of a window.
    page = {"width": 1600, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", page)
    yield driver
    driver.quit()


def known_tenants(dev: Dev) -> set[str]:
    """The tenants that Dagster has partitions for."""
    found = dev.ask(KNOWN)["assetNodeOrError"].get("partitionKeysByDimension", [])
    return {key for each in found if each["name"] == "tenant" for key in each["partitionKeys"]}


def test_a_person_reads_in_the_ui_what_the_pass_did_and_why_it_stopped(
    chrome: webdriver.Chrome, night: Night, tmp_path: Path
) -> None:
    dev = night.dev
    pictures = IMAGES if os.environ.get("UPDATE_IMAGES") else tmp_path
    pictures.mkdir(exist_ok=True)
    browser = Browser(chrome, f"http://127.0.0.1:{dev.port}", pictures)
    dev.until("the web server", lambda: dev.get("/server_info").status_code == 200 or None)

    # A backfill first: the daemon takes up to half a minute to begin it.
    dev.until("the third tenant's partition", lambda: SOLO in known_tenants(dev) or None)
    keys = [f"{night.yesterday - timedelta(days=days)}|{SOLO}" for days in (1, 0)]
    launched = dev.ask(
        LAUNCH, of={"assetSelection": [{"path": [a]} for a in ASSETS], "partitionNames": keys}
    )
    backfill = launched["launchPartitionBackfill"]["backfillId"]

    # The check that stopped the second tenant: what it protects, and why it failed.
    browser.open(
        "/assets/stale_candidates?view=checks&checkDetail=zero_episodic_collapse",
        "This is a blocking asset check.",
        "No episodic memory is collapsed.",
        "Failed",
        f"{night.yesterday}|{JUNIPER}",
        f"{night.spoiled}: {REASON}",
    )
    browser.picture("check")
    browser.click("[Show JSON]")
    browser.shows(f'"{night.spoiled}: {REASON}"')
    browser.done()

    # One partition, with its figures.
    browser.open(
        f"/assets/judged_verdicts?view=partitions&partition={night.first}%7C{HARBOR}",
        f"{night.first}|{HARBOR} Materialized",
        "dagster/partition_row_count",
        "spend_usd",
    )
    browser.done()

    # Figures over the days.
    browser.open("/assets/judged_verdicts", "Plots")
    browser.click("Plots")
    browser.shows("dagster/partition_row_count", "spend_usd", "verdicts_keep")
    browser.top("spend_usd")
    browser.picture("plots")
    browser.done()

    browser.open(
        "/assets/memories",
        "What agents remember for the long term",
        "The text of the memory. The pass never changes it.",
        "0001_memory_store.sql",
    )
    browser.done()
    for path, words in {
        "jobs/forgetting_pass": "The whole pass for one day and tenant",
        "schedules/nightly": "At 04:30 UTC, the pass over yesterday",
        "sensors/tenant_registry": "Adds a partition for each new tenant.",
    }.items():
        browser.open(f"/locations/forgetting_assets.definitions/{path}", words)
        browser.done()

    def ended() -> str | None:
        status: str = dev.ask(BACKFILL, id=backfill)["partitionBackfillOrError"]["status"]
        return None if status == "REQUESTED" else status

    assert dev.until("the backfill", ended) == "COMPLETED_SUCCESS"
    browser.open(f"/runs/b/{backfill}", "Succeeded", "100% completed", *keys, *ASSETS)
    browser.picture("backfill")
    browser.done()

    browser.open(GROUP)
    for name in ("memories", "evidence", *ASSETS):
        # A long name is shortened in the middle.
        browser.shows(name if len(name) < 19 else name[:7])
    browser.shows("Materialize all (6)")
    browser.waits_for(RED_NODE)
    browser.picture("lineage")
    browser.done()

    # One asset, whole.
    browser.open(
        "/assets/retention_proposals",
        "Nothing is applied: a human accepts or rejects with forgetting review.",
        *("Owners memory-platform", "Kinds Postgres SQL", "Group forgetting", "layer: proposals"),
        "Storage public.retention_proposals",
        "related_memory_id uuid The newer memory named by supersede or conflict (memories.id).",
        "columns_come_from",
        "judged_verdicts.related_memory_id",
        "Deadline: At 06:30 AM UTC",
        "At 04:30 AM UTC",
        *("retention_proposals.py", "proposals.insert_proposal", "in GitHub"),
    )
    browser.picture("asset")
    links = [each.get_attribute("href") for each in chrome.find_elements(By.TAG_NAME, "a")]
    assert [
        each for each in links if each and f"{SOURCE}/tree/main/sql/queries/proposals.sql" in each
    ]
    browser.top("columns_come_from")
    browser.picture("columns")
    browser.done()

    read = "\n".join(browser.read)
    texts = [
        memory.content for tenant in demo_tenants(night.reference) for memory in tenant.memories
    ]
    assert len(texts) > 100
    assert [text for text in texts if text[:40] in read] == []
