"""A process that copies a database and is killed after it has copied some of the rows."""

from __future__ import annotations

import itertools
import os
import signal
import sys

from queenright.health.store.store_copy import copy_database

if __name__ == "__main__":
    source, target, rows = sys.argv[1:]
    copied = itertools.count(1)

    def kill_process() -> None:
        if next(copied) == int(rows):
            os.kill(os.getpid(), signal.SIGKILL)

    copy_database(source, target, on_row=kill_process)
