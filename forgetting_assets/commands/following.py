"""Requesting a backfill from the command line, following it, and printing what became of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forgetting_assets.backfill import (
    BACKFILL_TAG,
    Backfills,
    Following,
    Selection,
    State,
    failed_keys,
    select,
)
from forgetting_assets.commands.console import (
    console,
    locate_with_dagster,
    open_database,
    say,
)
from forgetting_assets.daemon import Executor, interrupts
from forgetting_assets.definitions import build_defs
from forgetting_assets.runs import end_killed
from resources.clock import Clock
from resources.database import Database
from resources.errors import ForgettingError
from resources.flag import Flag
from resources.settings import Settings

MANY = 1000
"""Partitions above which the command says how long they will take."""
RUNS_AN_HOUR = 1500
RUNS_CREATED_A_SECOND = 2.5
LOOK_SECONDS = 1.0
BETWEEN_LINES = timedelta(seconds=10)
"""How long a progress that is no bar says nothing, at least."""
REASONS = 20
"""Failed partitions that are named one by one."""
SILENT = timedelta(minutes=1)
"""A run that shows no life that long after it was launched or started was killed."""


def run_backfill(
    read: Settings, slugs: Sequence[str] | None, first: date, last: date, *, every: bool
) -> None:
    """Backfill what is not done of some tenants (None: every active one) and days, to its end.

    ``every`` runs also what is done. Raises what ``select`` raises, and ForgettingError when it was
    interrupted or when partitions are not done in the end.
    """
    flag = Flag(
        pass_enabled=read.forgetting_pass_enabled,
        archive_enabled=read.forgetting_archive_enabled,
        unforget=read.forgetting_unforget,
    )
    clock = Clock()
    with (
        open_database(locate_with_dagster()) as database,
        dg.DagsterInstance.get() as instance,
        interrupts() as stopping,
    ):
        selection = select(database, slugs, first, last, clock.now())
        backfills = Backfills(instance, build_defs().resolve_asset_graph(), flag)
        again = f"`{_command(selection, slugs)}`"
        with Executor(database, instance, clock, _log()) as executor:
            if sentence := executor.settle(stopping):
                say(sentence)
            following = _request(database, backfills, selection, clock, every=every)
            if following is None:
                return
            with _progress(following, clock) as show:
                _follow(database, following, executor, instance, clock, stopping, show)
            own = executor.is_own
        if stopping.is_set():
            # Its own daemon took a moment to end, and runs ended in it.
            following.look(instance, clock.now())
            raise ForgettingError(_interrupted(following, again, own=own))
        _report(database, backfills, selection, following, again)


def _request(
    database: Database,
    backfills: Backfills,
    selection: Selection,
    clock: Clock,
    *,
    every: bool,
) -> Following | None:
    """Request what nobody else will materialize; None when there is nothing to do."""
    keys = selection.keys
    done = set() if every else backfills.done(keys) - failed_keys(database, selection)
    missing = [key for key in keys if key not in done]
    if not missing:
        say(f"Nothing to do: all {len(keys)} partitions are materialized. --all runs them again.")
        return None
    if done:
        say(f"Materialized already: {len(done)} of {len(keys)} partitions.")
    under_way = backfills.under_way(missing, clock.now())
    for backfill_id, covered in under_way.items():
        say(f"The backfill {backfill_id} is under way: {len(covered)} partitions are left of it.")
    covered_in_all = set().union(*under_way.values())
    ids = list(under_way)
    if wanted := [key for key in missing if key not in covered_in_all]:
        if len(wanted) > MANY:
            say(
                f"{len(wanted)} partitions are as many runs: {len(wanted) / RUNS_AN_HOUR:.1f} hours"
                " on two cores, of which creating them takes "
                f"{len(wanted) / RUNS_CREATED_A_SECOND / 3600:.1f}. By tenant or by week is easier "
                "to follow."
            )
        ids.append(backfills.request(selection, wanted, clock.now()))
        say(f"The backfill {ids[-1]} is requested: {len(wanted)} partitions.")
    return Following(missing, ids)


def _follow(
    database: Database,
    following: Following,
    executor: Executor,
    instance: dg.DagsterInstance,
    clock: Clock,
    stopping: threading.Event,
    show: Callable[[], None],
) -> None:
    """Look until every followed backfill has ended, or until it is time to stop."""
    while not stopping.is_set():
        if sentence := executor.ensure():
            say(sentence)
        # Of these backfills alone: other runs, on other machines, may take longer to begin.
        followed = {BACKFILL_TAG: following.backfill_ids}
        end_killed(database, instance, tags=followed, since=clock.now() - SILENT)
        # In this order: what ended before the look is seen by it.
        ended = following.ended(instance)
        following.look(instance, clock.now())
        show()
        if ended:
            return
        clock.sleep(LOOK_SECONDS, until=stopping)


@contextmanager
def _progress(following: Following, clock: Clock) -> Iterator[Callable[[], None]]:
    """What shows how far it is: a bar on a terminal, else a line now and then, and the last one."""
    if not console.is_terminal:
        last, said_at = "", datetime.min.replace(tzinfo=UTC)

        def line(*, whatever_the_time: bool = False) -> None:
            nonlocal last, said_at
            now, text = clock.now(), _line(following)
            if text != last and (whatever_the_time or now - said_at >= BETWEEN_LINES):
                last, said_at = text, now
                say(text)

        yield line
        line(whatever_the_time=True)
        return
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(following.keys))

        def bar() -> None:
            counts = following.count()
            ended = counts[State.DONE] + counts[State.FAILED]
            progress.update(task, completed=ended, description=_line(following))

        yield bar


def _line(following: Following) -> str:
    counts = following.count()
    running = following.running()
    now = f": {', '.join(running)}" if running else ""
    return (
        f"{counts[State.DONE]} done, {counts[State.FAILED]} failed, {len(running)} running of "
        f"{len(following.keys)}{now}"
    )


def _report(
    database: Database,
    backfills: Backfills,
    selection: Selection,
    following: Following,
    again: str,
) -> None:
    """Print what became of each tenant's partitions. Raises when some are not done."""
    done = backfills.done(selection.keys) - failed_keys(database, selection)
    states = {
        key: State.DONE if key in done else _not_done(following, key) for key in selection.keys
    }
    table = Table("tenant", *(State.DONE.value, State.FAILED.value, State.WAITING.value))
    for slug in selection.slugs:
        mine = [state for key, state in states.items() if key.split("|")[1] == slug]
        table.add_row(
            slug, *(str(mine.count(each)) for each in (State.DONE, State.FAILED, State.WAITING))
        )
    console.print(table)
    failed = [key for key, state in states.items() if state is State.FAILED]
    for key in failed[:REASONS]:
        say(f"{key}: {backfills.reason(following.attempts[key])}")
    if len(failed) > REASONS:
        say(f"And {len(failed) - REASONS} more: the UI shows each with its run.")
    for sentence in backfills.given_up(following.backfill_ids):
        say(sentence)
    left = sum(state is not State.DONE for state in states.values())
    if left:
        raise ForgettingError(
            f"{left} of {len(states)} partitions are not done. {again} requests them again."
        )


def _not_done(following: Following, key: str) -> State:
    ended = (State.DONE, State.FAILED)
    return State.FAILED if following.state(key) in ended else State.WAITING


def _interrupted(following: Following, again: str, *, own: bool) -> str:
    counts = following.count()
    left = len(following.keys) - counts[State.DONE] - counts[State.FAILED]
    ids = ", ".join(following.backfill_ids)
    if own:
        return (
            f"Stopped with {left} of {len(following.keys)} partitions to go. The backfill {ids} "
            f"waits for a Dagster daemon; {again} goes on with it."
        )
    return (
        f"No longer followed, with {left} of {len(following.keys)} partitions to go. The daemon "
        f"goes on with the backfill {ids}; {again} follows it again."
    )


def _command(selection: Selection, slugs: Sequence[str] | None) -> str:
    named = f"--tenants {','.join(selection.slugs)} " if slugs is not None else ""
    return f"forgetting backfill {named}--from {selection.first} --to {selection.last}"


def _log() -> Path:
    """Where the command's own daemon writes."""
    return Path(os.environ["DAGSTER_HOME"]) / "backfill-daemon.log"
