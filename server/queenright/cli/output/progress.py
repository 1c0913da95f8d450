"""How far long work has got: a bar on stderr, on a terminal only; stdout is left to what was asked for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

_SHOWN_EVERY: Final = 0.1

T = TypeVar("T")


@contextlib.contextmanager
def bar(
    what: str, total: int | None = None, *, prints: bool = False, counts: bool = True
) -> Iterator[Callable[[], None]]:
    """
    Show a bar for as long as this lasts; what it gives is called once for each thing that is done.

    Args:
        what: What is being done, as `Checking runs`.
        total: How many there are; a bar without an end if nobody knows.
        prints: Whether stdout is written to meanwhile: then there is a bar only if that is no terminal.
        counts: Whether there is something to count; else it only shows that work goes on.
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield lambda: None
        return
    # A tenth of a second, for those who see it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = [MofNCompleteColumn()] if counts else []
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn())
    done, shown = 0, 0.0
    shows = Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with shows:
        task = shows.add_task(what, total=total)

        def step() -> None:
            nonlocal done, shown
            done += 1
            # Not at each of a million.
            if (now := time.monotonic()) - shown >= _SHOWN_EVERY or done == total:
                shown = now
                shows.update(task, completed=done)

        yield step


def counted(things: Iterable[T], what: str, total: int | None = None, *, prints: bool = False) -> Iterator[T]:
    """Yield the things, and show how many there were; see ``bar``."""
    with bar(what, total, prints=prints) as step:
        for thing in things:
            yield thing
            step()
