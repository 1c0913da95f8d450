"""
`python -m tests.fuzz`: send generated requests to every operation of the API of a real service.

The exit code is 1 after an undocumented 5xx, a response that does not match the document (status, body,
content type, headers), a broken link, or a traceback in the service's log.
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

CONFIG_FILE: Final = Path(__file__).with_name("schemathesis.toml")
STREAM_PATHS: Final = r"/events$"
"""A pattern for the paths of endless responses, of which only the start is read."""


class _TracebackHandler(logging.Handler):
    """Stores the log records of unexpected errors, which have a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(logging.Formatter().format(record))


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").strip())
    parser.add_argument(
        "--examples", type=int, default=6, help="cases for each operation in the fuzzing phase"
    )
    parser.add_argument(
        "--quick", action="store_true", help="skip the coverage phase, which takes most of the time"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", metavar="REGEX", help="only test paths that match")
    options = parser.parse_args()
    traceback_handler = _TracebackHandler()
    logging.basicConfig(level=logging.ERROR, handlers=[traceback_handler])
    with tempfile.TemporaryDirectory() as folder:
        code = asyncio.run(_fuzz(Path(folder), options))
    for fault in traceback_handler.tracebacks[:20]:
        print(f"\nThe service logged an error of its own:\n{fault}", file=sys.stderr)
    return 1 if traceback_handler.tracebacks else code


async def _fuzz(folder: Path, options: argparse.Namespace) -> int:
    start, codes = time.monotonic(), list[int]()
    async with run_seeded_service(folder) as (running_service, token_text):
        print(
            f"The service is ready at {running_service.url} after {time.monotonic() - start:.1f} s.",
            flush=True,
        )
        document = folder / "openapi.json"
        async with httpx.AsyncClient(
            base_url=running_service.url, headers=bearer_header(token_text), trust_env=False, timeout=20
        ) as http:
            document.write_bytes((await http.get("/openapi.json")).content)
            stream_faults = await probe_streams(http, json.loads(document.read_bytes()), STREAM_PATHS)
        for fault in stream_faults:
            print(fault, file=sys.stderr)
        # Limit the cases and not the time, so that a slow machine tests as much as a fast one.
        for phases, examples in (
            ("stateful", 24 * options.examples),
            ("examples,fuzzing" if options.quick else "examples,coverage,fuzzing", options.examples),
        ):
            command = _build_command(running_service.url, document, phases, examples, options)
            child = await asyncio.create_subprocess_exec(*command, env=_build_environment(folder, token_text))
            codes.append(await child.wait())
    print(f"Finished in {time.monotonic() - start:.0f} s.")
    return 1 if stream_faults or any(codes) else 0


def _build_command(
    url: str, document: Path, phases: str, examples: int, options: argparse.Namespace
) -> list[str]:
    path_options = ["--include-path-regex", options.only] if options.only else []
    return [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG_FILE)),
        *("run", str(document), "--url", url, "--phases", phases),
        *("--exclude-path-regex", STREAM_PATHS, *path_options),
        *("--seed", str(options.seed), "--generation-deterministic"),
        *("--max-examples", str(examples)),
        *("--request-timeout", "20", "--continue-on-failure", "--no-shrink", "--no-color"),
        *("--suppress-health-check", "all", "--warnings", "off"),
    ]


def _build_environment(folder: Path, token_text: str) -> dict[str, str]:
    """Return an environment in which the child uses no proxy and writes no files to the current folder."""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return variables | {
        "NO_PROXY": "*",
        "QUEENRIGHT_FUZZ_TOKEN": token_text,
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }


if __name__ == "__main__":
    isolate()
    raise SystemExit(main())
