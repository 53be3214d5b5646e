"""`forgetting review walk`: one proposal after the other, and a key decides it."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID, uuid4

import typer

from forgetting_assets import review
from forgetting_assets.commands import proposals
from forgetting_assets.commands.console import say
from resources.clock import Clock
from resources.database import Database
from resources.errors import ReviewRefused, StoreRefused

KEYS = "a accept, r reject, s skip, u undo the last one, q quit"
Outcome = Literal["accepted", "rejected"]


@dataclass
class Walk:
    """One walk through some proposals. Its decisions are one batch."""

    database: Database
    user_id: UUID
    clock: Clock
    ids: Sequence[UUID]
    batch: UUID = field(default_factory=uuid4)
    decided: list[tuple[UUID, Outcome]] = field(default_factory=list)
    skipped: int = 0
    refused: int = 0
    """How many were refused and are open all the same."""

    def __post_init__(self) -> None:
        self._waiting = deque(self.ids)

    def go(self) -> None:
        """Show, ask and decide until none is left, or until somebody quits."""
        while self._waiting:
            id_ = self._waiting[0]
            if not self._show(id_):
                self._waiting.popleft()
                continue
            key = self._ask()
            if key == "q":
                break
            if key == "u":
                if last := self._undo():
                    self._waiting.appendleft(last)
                continue
            self._waiting.popleft()
            if key == "s":
                self.skipped += 1
            else:
                self._decide(id_, key)

    def look_again(self) -> None:
        """Forget what somebody else undid or decided again: only what stands is this walk's."""
        try:
            standing = review.of_batch(self.database, self.user_id, self.batch)
        except ReviewRefused:
            standing = []
        except StoreRefused:  # nobody can tell: what was decided is still named
            return
        self.decided = [each for each in self.decided if each[0] in standing]

    def sum_up(self) -> str:
        """What stands of the walk's decisions, and what is left of its proposals."""
        outcomes = Counter(outcome for _, outcome in self.decided)
        return (
            f"Accepted: {outcomes['accepted']}. Rejected: {outcomes['rejected']}. "
            f"Skipped: {self.skipped}. Left: {len(self._waiting) + self.refused}."
        )

    def _show(self, id_: UUID) -> bool:
        """Show a proposal; one that is not open any more is passed over with a line."""
        try:
            row = review.show(self.database, self.user_id, id_)
        except ReviewRefused as refusal:  # a memory was deleted, and the proposal with it
            say(f"\n{refusal}")
            return False
        if row["status"] != "proposed":
            say(f"\nProposal {id_} is not open any more: it was {row['status']} meanwhile.")
            return False
        say(f"\nProposal {id_}, {len(self._waiting)} to go")
        proposals.show_whole(row, self.clock.now())
        return True

    def _ask(self) -> str:
        """The next key that means something; the end of input quits."""
        while True:
            say(f"[{KEYS}]")
            key = read_key()
            if key in ("a", "r", "s", "u", "q"):
                return key

    def _decide(self, id_: UUID, key: str) -> None:
        now = self.clock.now()
        try:
            if key == "a":
                changed = review.accept(self.database, self.user_id, id_, now, self.batch)
                self.decided.append((id_, "accepted"))
                say(f"Accepted. Memories changed: {changed}.")
            else:
                review.reject(self.database, self.user_id, id_, now, self.batch)
                self.decided.append((id_, "rejected"))
                say("Rejected: no memory changed.")
        except ReviewRefused as refusal:
            say(str(refusal))
            if refusal.reason in review.STAYS_OPEN:
                self.refused += 1

    def _undo(self) -> UUID | None:
        """Take the last decision of this walk back; the proposal, which is open again."""
        if not self.decided:
            say("Nothing was decided in this walk yet.")
            return None
        id_, outcome = self.decided[-1]
        try:
            review.undo(self.database, self.user_id, id_, self.clock.now(), self.batch)
        except ReviewRefused as refusal:
            say(str(refusal))
            self.look_again()
            return None
        self.decided.pop()
        say(f"Undone: it is not {outcome} any more.")
        return id_


def read_key() -> str:
    """A key press on a terminal, else a line; the end of input is ``q``."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip().lower() if line else "q"
    try:
        return typer.getchar().lower()
    except (EOFError, KeyboardInterrupt):
        return "q"
