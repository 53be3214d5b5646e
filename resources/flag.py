"""The switches that keep everything off until an operator turns it on."""

import dagster as dg


class Flag(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Whether the pass and the sweep may run at all. Both are off by default (ADR, Flag).

    ``unforget`` turns the sweep round: it archives nothing, and brings back what was archived.
    """

    pass_enabled: bool = False
    archive_enabled: bool = False
    unforget: bool = False

    def why_pass_is_off(self) -> str | None:
        """The sentence to skip with, or None when the pass may run."""
        return None if self.pass_enabled else "FORGETTING_PASS_ENABLED is off: nothing was read."

    def why_archive_is_off(self) -> str | None:
        """The sentence to skip with, or None when the sweep may run."""
        if self.archive_enabled or self.unforget:
            return None
        return "FORGETTING_ARCHIVE_ENABLED is off: no evidence was read."

    def why_everything_is_off(self) -> str | None:
        """The sentence to skip with, or None when the pass or the sweep may run."""
        if self.why_pass_is_off() and self.why_archive_is_off():
            return (
                "FORGETTING_PASS_ENABLED and FORGETTING_ARCHIVE_ENABLED are off: nothing was read."
            )
        return None
