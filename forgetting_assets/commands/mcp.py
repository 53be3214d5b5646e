"""`forgetting mcp`: a server for agents, over standard input and output."""

from __future__ import annotations

from typing import Annotated

import structlog
import typer

from forgetting_assets.commands.console import TenantOption, open_tenant
from resources.clock import Clock
from resources.logs import json_log, speak_json


def serve(
    tenant: TenantOption,
    write: Annotated[
        bool, typer.Option("--write", help="Let it accept and reject; else it only reads.")
    ] = False,
) -> None:
    """Serve one tenant's proposals, health and evidence to an agent, until the agent leaves.

    It speaks the Model Context Protocol on standard input and output, and logs to standard error.
    """
    from forgetting_assets import server

    with open_tenant(tenant, active=True) as (database, user_id):
        if json_log():
            speak_json()
            structlog.contextvars.bind_contextvars(tenant=tenant)
        server.build(database, user_id, Clock(), write=write).run()
