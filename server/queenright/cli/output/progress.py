"""Progress bars on stderr, if that is a terminal; stdout carries the result only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

_REFRESH_SECONDS: Final = 0.1

T = TypeVar("T")


@contextlib.contextmanager
def progress_bar(
    title: str, total: int | None = None, *, uses_stdout: bool = False, is_counted: bool = True
) -> Iterator[Callable[[], None]]:
    """
    Show a progress bar; yield a function to call once per completed item.

    Args:
        title: The activity, such as `Checking runs`.
        total: Number of items; None shows a bar without an end.
        uses_stdout: Output is also written to stdout: no bar if that is a terminal.
        is_counted: Show the number of items, and not only that work continues.
    """
    if not sys.stderr.isatty() or (uses_stdout and sys.stdout.isatty()):
        yield lambda: None
        return
    # Takes a tenth of a second to import.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = [MofNCompleteColumn()] if is_counted else []
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn())
    item_count, shown_at = 0, 0.0
    progress = Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with progress:
        task = progress.add_task(title, total=total)

        def step() -> None:
            nonlocal item_count, shown_at
            item_count += 1
            # A refresh per item would slow down millions of items.
            if (now := time.monotonic()) - shown_at >= _REFRESH_SECONDS or item_count == total:
                shown_at = now
                progress.update(task, completed=item_count)

        yield step


def track(items: Iterable[T], title: str, *, uses_stdout: bool = False) -> Iterator[T]:
    """Yield the items behind a progress bar; see ``progress_bar``."""
    with progress_bar(title, None, uses_stdout=uses_stdout) as step:
        for item in items:
            yield item
            step()
