"""
``make bench``: run every benchmark and print one table.

``python -m tools.benchmarks NAME ...`` runs only those modules.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.isolation import isolate
from tools.benchmarks.row import Row


def main(names: list[str]) -> int:
    folder = Path(__file__).parent
    all_names = sorted(p.stem for p in folder.glob("*.py") if p.stem not in ("__main__", "row", "__init__"))
    if unknown := [name for name in names if name not in all_names]:
        print(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(all_names)}", file=sys.stderr)
        return 2
    console = Console()
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.platform(terse=True)}"
    )
    table = Table("what", "measured", "budget", "")
    for name in names or all_names:
        console.print(f"{name} ...", style="bright_black")
        rows: list[Row] = importlib.import_module(f"tools.benchmarks.{name}").run()
        for row in rows:
            table.add_row(row.name, row.measured, row.budget, "ok" if row.ok else "OVER")
    console.print(table)
    return 0


if __name__ == "__main__":
    isolate()
    # Installed packages are compiled; without that, a command takes twice the CPU time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main(sys.argv[1:]))
