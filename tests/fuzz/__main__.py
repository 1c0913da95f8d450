"""
`python -m tests.fuzz`: send generated requests to every operation of the API of a real service.

Fails on an undocumented 5xx, on a response that does not match the document (status, body, content type,
headers), on a broken link, and on any traceback in the service's log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from tests.fuzz.seeded import bearer_header, run_seeded_service
from tests.fuzz.streams import probe_streams
from tests.isolation import isolate

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
STREAMS: Final = r"/events$"
"""Endless responses, of which only the start is read."""


class _Faults(logging.Handler):
    """Stores log records with a traceback: unexpected errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").strip())
    parser.add_argument("--examples", type=int, default=6, help="cases an operation in the fuzzing phase")
    parser.add_argument("--quick", action="store_true", help="without the coverage phase, most of the time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", metavar="REGEX", help="only paths that match")
    options = parser.parse_args()
    faults = _Faults()
    logging.basicConfig(level=logging.ERROR, handlers=[faults])
    with tempfile.TemporaryDirectory() as folder:
        code = asyncio.run(_fuzz(Path(folder), options))
    for fault in faults.found[:20]:
        print(f"\nThe service logged an error of its own:\n{fault}", file=sys.stderr)
    return 1 if faults.found else code


async def _fuzz(folder: Path, options: argparse.Namespace) -> int:
    start, codes = time.monotonic(), list[int]()
    async with run_seeded_service(folder) as (running, token_text):
        print(f"A service is up at {running.url} after {time.monotonic() - start:.1f} s.", flush=True)
        document = folder / "openapi.json"
        async with httpx.AsyncClient(
            base_url=running.url, headers=bearer_header(token_text), trust_env=False, timeout=20
        ) as http:
            document.write_bytes((await http.get("/openapi.json")).content)
            wrong = await probe_streams(http, json.loads(document.read_bytes()), STREAMS)
        for one in wrong:
            print(one, file=sys.stderr)
        # By cases and not by time: a slow machine must make as many as a fast one.
        for phases, examples in (
            ("stateful", 24 * options.examples),
            ("examples,fuzzing" if options.quick else "examples,coverage,fuzzing", options.examples),
        ):
            command = _command(running.url, document, phases, examples, options)
            child = await asyncio.create_subprocess_exec(*command, env=_environment(folder, token_text))
            codes.append(await child.wait())
    print(f"All in {time.monotonic() - start:.0f} s.")
    return 1 if wrong or any(codes) else 0


def _command(url: str, document: Path, phases: str, examples: int, options: argparse.Namespace) -> list[str]:
    only = ["--include-path-regex", options.only] if options.only else []
    return [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)),
        *("run", str(document), "--url", url, "--phases", phases),
        *("--exclude-path-regex", STREAMS, *only),
        *("--seed", str(options.seed), "--generation-deterministic"),
        *("--max-examples", str(examples)),
        *("--request-timeout", "20", "--continue-on-failure", "--no-shrink", "--no-color"),
        *("--suppress-health-check", "all", "--warnings", "off"),
    ]


def _environment(folder: Path, words: str) -> dict[str, str]:
    """Return the environment of the child: no proxy for this machine, and no files in the current folder."""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return variables | {
        "NO_PROXY": "*",
        "QUEENRIGHT_FUZZ_TOKEN": words,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }


if __name__ == "__main__":
    isolate()
    raise SystemExit(main())
