"""
`python -m tests.fuzz`: every operation of the API is asked what nobody thought of, on a real service.

Fails on a 5xx that is not in the document, an answer that is not as the document says (status, body, content
type, headers), a link that leads nowhere, and on anything that the service logs with a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.fuzz.seeded import seeded
from tests.fuzz.streams import probe_streams

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
STREAMS: Final = r"/events$"
"""Paths that never end; they are asked for their beginnings."""


class _Faults(logging.Handler):
    """Keeps what was logged with a traceback: what nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").strip())
    parser.add_argument("--examples", type=int, default=12, help="cases an operation in the fuzzing phase")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=100, help="time limit of fuzzing and the links")
    parser.add_argument("--only", metavar="REGEX", help="only paths that match")
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    options = parser.parse_args()
    faults = _Faults()
    logging.basicConfig(level=logging.ERROR, handlers=[faults])
    with tempfile.TemporaryDirectory() as folder:
        code = asyncio.run(_fuzz(Path(folder), options))
    for fault in faults.found[:20]:
        print(f"\nThe service logged an error of its own:\n{fault}", file=sys.stderr)
    return 1 if faults.found else code


async def _fuzz(folder: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    async with seeded(folder) as running:
        print(f"A service is up at {running.url} after {time.monotonic() - began:.1f} s.", flush=True)
        wrong = await probe_streams(running.url, STREAMS)
        for one in wrong:
            print(one, file=sys.stderr)
        child = await asyncio.create_subprocess_exec(
            *_command(running.url, options), env=_environment(folder)
        )
        code = await child.wait()
    print(f"All in {time.monotonic() - began:.0f} s.")
    return 1 if wrong else code


def _command(url: str, options: argparse.Namespace) -> list[str]:
    only = ["--include-path-regex", options.only] if options.only else []
    return [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)),
        *("run", f"{url}/openapi.json", "--phases", options.phases),
        *("--exclude-path-regex", STREAMS, *only),
        *("--seed", str(options.seed), "--generation-deterministic"),
        *("--max-examples", str(options.examples), "--max-time", str(options.seconds)),
        *("--request-timeout", "20", "--continue-on-failure", "--no-shrink", "--no-color"),
        *("--suppress-health-check", "all", "--warnings", "off"),
    ]


def _environment(folder: Path) -> dict[str, str]:
    """The child's: no proxy stands before our own machine, and nothing is left in the current folder."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"NO_PROXY": "*", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}


if __name__ == "__main__":
    raise SystemExit(main())
