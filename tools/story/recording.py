"""Play the story in a subprocess and keep its services open for queries."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class Story:
    """
    Addresses of the story's running programs, and its time range.

    ``since`` and ``until`` are in seconds since the epoch: the story ends at ``until``.
    """

    prometheus: httpx.Client
    """Its base URL ends in ``/api/v1``."""
    prometheus_url: str
    service_url: str
    alertmanager_url: str
    since: float
    until: float

    def query(self, expr: str, *, at: float | None = None) -> list[dict[str, Any]]:
        """Return the series of an instant query, by default at the end of the story."""
        parameters = {"query": expr, "time": str(self.until if at is None else at)}
        answer = self.prometheus.get("/query", params=parameters).json()
        if answer["status"] != "success":
            raise AssertionError(f"{expr}: {answer['error']}")
        series = answer["data"]["result"]
        return series if isinstance(series, list) and answer["data"]["resultType"] == "vector" else [series]

    def range(self, expr: str, *, step: float = 1) -> list[dict[str, Any]]:
        """Return the series of a range query over the whole story, ``step`` seconds apart."""
        parameters = {"query": expr, "start": str(self.since), "end": str(self.until), "step": str(step)}
        answer = self.prometheus.get("/query_range", params=parameters).json()
        if answer["status"] != "success":
            raise AssertionError(f"{expr}: {answer['error']}")
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def exemplars(self, selector: str) -> list[dict[str, Any]]:
        """Return the series with exemplars that a selector matches."""
        parameters = {"query": selector, "start": str(self.since), "end": str(self.until)}
        result: list[dict[str, Any]] = self.prometheus.get("/query_exemplars", params=parameters).json()[
            "data"
        ]
        return result


@contextlib.contextmanager
def running_story(folder: Path) -> Iterator[Story]:
    """
    Play the story in ``folder`` (about 30 s) and keep its services open until the block ends.

    Raises:
        AssertionError: It did not finish; contains the process's output.
    """
    log = folder / "story.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tools.story", str(folder)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            process.wait(30)
            raise AssertionError(f"the story did not finish:\n{log.read_text('utf-8')[-6000:]}")
        addresses = json.loads(line)
        with httpx.Client(base_url=addresses["prometheus"], trust_env=False, timeout=30) as client:
            yield Story(
                prometheus=client,
                prometheus_url=addresses["prometheus"].removesuffix("/api/v1"),
                service_url=addresses["service_url"],
                alertmanager_url=addresses["alertmanager"],
                since=addresses["since"],
                until=addresses["until"],
            )
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
