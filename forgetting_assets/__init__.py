"""The nightly forgetting pass: find what is stale or in conflict, ask a judge, propose, archive.

A memory's way: assets/conflict_pairs and assets/stale_candidates select it, assets/judged_verdicts
asks the judge, assets/retention_proposals writes what a human decides, and assets/archival_sweep
moves unused evidence to the archive tier. Nothing is ever deleted by the pass.
"""

from forgetting_assets.client import Client
from forgetting_assets.store.evidence import Entry, Forgotten, Hit
from resources.errors import ForgettingError

__all__ = ["Client", "Entry", "ForgettingError", "Forgotten", "Hit"]
