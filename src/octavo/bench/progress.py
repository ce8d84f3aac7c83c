"""How a long measurement shows where it is: a bar on a terminal, else one line per cell; on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.bench.serving import Watcher
from octavo.store.progress import draws_bars, shown

REFRESH_S = 1.0


@contextmanager
def watching() -> Iterator[Watcher]:
    """A watcher that is drawn while the context is open."""
    if not draws_bars():
        yield Watcher(cell=lambda label: print(f"octavo: {shown(label)}", file=sys.stderr, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Drawn by the measuring thread, and seldom: drawing takes milliseconds in which no chunk gets its time of arrival.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=None)
        drawn = [0.0]

        def answer() -> None:
            due = time.monotonic() - drawn[0] >= REFRESH_S
            progress.update(task, advance=1, refresh=due)
            if due:
                drawn[0] = time.monotonic()

        yield Watcher(
            begin=lambda label, total: progress.update(task, description=label, total=total, refresh=True),
            cell=lambda label: progress.update(task, description=shown(label), refresh=True),
            answer=answer,
        )
