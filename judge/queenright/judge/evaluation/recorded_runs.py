"""Read recorded runs from files with one JSON object per line, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO, cast

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent

FORMAT: Final = 'the format is in docs/detection.md, "Recorded runs of other systems"'


_TEXT_FIELDS: Final = frozenset({"error", "message", "progress_indicator", "question", "reason", "text"})
"""The data fields of events that may contain the agent's text."""


class InvalidRunError(QueenrightError, ValueError):
    """Raised when a line is not a recorded run. The message names the file and the line."""


def recorded_run(
    events: Iterable[AgentEvent], *, agent_id: str, session_id: str, until: float
) -> dict[str, Any]:
    """
    Return a session's logged events as a recorded run for ``queenright evaluate``.

    Args:
        events: The events, in the order of the log.
        agent_id: The worker's agent.
        session_id: The worker's session.
        until: The end of the observation, in seconds since the epoch.
    """
    return {
        "dataset": agent_id,
        "run_id": session_id,
        "until": until,
        "steps": [
            {
                "kind": "event",
                "type": event.type.value,
                "t": event.time,
                "incarnation_id": event.incarnation_id,
                "node_id": event.node_id,
                "data": {
                    name: redact(value) if name in _TEXT_FIELDS and isinstance(value, str) else value
                    for name, value in event.data.items()
                },
            }
            for event in events
        ],
    }


def read_runs(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """
    Yield the recorded runs in the files, in order.

    Raises:
        InvalidRunError: A file is empty, or a line is not a recorded run.
        OSError: A file cannot be read.
    """
    for path in paths:
        number = 0
        try:
            with _open(path) as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parse(line, path, number)
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            raise InvalidRunError(f"cannot read {path}: {error}") from error
        if number == 0:
            raise InvalidRunError(f"{path} is empty; {FORMAT}")


def _open(path: Path) -> TextIO:
    # utf-8-sig removes a byte order mark from the first line.
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        run = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRunError(
            f"{path}:{number} is not JSON: {error}; a recorded run is one object per line; {FORMAT}"
        ) from error
    if not isinstance(run, dict) or not isinstance(run.get("steps"), list):
        raise InvalidRunError(
            f"{path}:{number} is not a recorded run: expected an object with a list 'steps'; {FORMAT}"
        )
    return run
