"""The Dagster instance behind the command line: run storage on the same server, files in a folder.

Here belongs finding it. What runs are is in runs.py, Dagster's processes are in daemon.py.
"""

from __future__ import annotations

import os
import shutil

import dagster as dg
from sqlalchemy.exc import DBAPIError

from resources.addresses import Addresses
from resources.database import engine, first_line
from resources.errors import DatabaseUnreachable
from resources.settings import IS_CHECKOUT, PROJECT, Settings

SHIPPED = PROJECT if IS_CHECKOUT else PROJECT / "forgetting_assets"
"""Where dagster.yaml and workspace.yaml are: at the top level, and in a wheel in this package."""
WORKSPACE = SHIPPED / "workspace.yaml"


def prepare(places: Addresses, settings: Settings) -> None:
    """Set this process's environment so that Dagster finds its storage. Raises DatabaseUnreachable.

    A DAGSTER_HOME that the user set is left alone; else a folder of FORGETTING_HOME becomes it.
    """
    pool = engine(places.dagster)
    try:
        with pool.connect():
            pass
    except DBAPIError as error:
        raise DatabaseUnreachable(
            f"Dagster's run storage, the database {places.dagster.database}, cannot be opened "
            f"({first_line(error)}): run `forgetting migrate`, or set DAGSTER_DATABASE_URL."
        ) from None
    finally:
        pool.dispose()
    os.environ.update(places.environment())
    if "DAGSTER_HOME" not in os.environ:
        home = settings.forgetting_home / "dagster"
        home.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SHIPPED / "dagster.yaml", home / "dagster.yaml")
        os.environ["DAGSTER_HOME"] = str(home)


def open() -> dg.DagsterInstance:
    """The instance that ``prepare`` made reachable, for a `with`."""
    return dg.DagsterInstance.get()
