"""
Read a worker's step log: a JSON Lines file that gets a line for each step.

The reader accepts the lines that ``queenright.instrumentation`` writes, and an older form with ``llm_text``,
``tool_input`` and ``verdict_feedback``. It skips and counts other lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import AgentEvent, EventType

CHUNK: Final = 4 * 1024 * 1024
"""The maximum number of bytes per read. Longer lines are skipped."""

_VERDICTS: Final = frozenset(verdict.value for verdict in Verdict)
_OUTCOMES: Final = frozenset(outcome.value for outcome in ToolOutcome)
_HEAD: Final = 64


class StepLogReader:
    """
    Reads new steps of one step log.

    Lines that are blank, incomplete, not JSON, not an object or not a step are skipped and counted in
    ``skipped_lines``. A last line without a line break is left for the next read. A file that was replaced or
    truncated is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.skipped_lines = 0
        self._file_identity: tuple[int, bytes] | None = None
        self._is_overlong = False
        self._last_time = 0.0

    def read(self, limit: int = CHUNK) -> list[AgentEvent]:
        """
        Return the events of the steps that were written since the last call, from at most ``limit`` bytes.

        The list is empty if there is no new step, or no log.

        Raises:
            OSError: The file exists and cannot be read.
        """
        events: list[AgentEvent] = []
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return events
        with file:
            size = self._check_file(file.fileno())
            while not events and self.offset < size:
                file.seek(self.offset)
                lines = self._take_lines(file.read(limit), limit)
                if lines is None:
                    break
                for line in lines:
                    events += self._parse(line)
        return events

    def _check_file(self, file: int) -> int:
        """Return the file's size. If the file was replaced or truncated, restart from its beginning."""
        status = os.fstat(file)
        head = os.pread(file, _HEAD, 0)
        if self._file_identity is not None:
            inode, known_head = self._file_identity
            if inode != status.st_ino or status.st_size < self.offset or not head.startswith(known_head):
                self.offset = 0
                self._is_overlong = False
        self._file_identity = (status.st_ino, head)
        return status.st_size

    def _take_lines(self, chunk: bytes, limit: int) -> list[bytes] | None:
        """Return the complete lines of a chunk and advance past them, or None if it has none yet."""
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            if len(chunk) < limit:
                return None
            self.offset += len(chunk)
            self._is_overlong = True
            return []
        self.offset += end
        lines = chunk[: end - 1].split(b"\n")
        if self._is_overlong:
            self._is_overlong = False
            self.skipped_lines += 1
            del lines[0]
        return lines

    def _parse(self, line: bytes) -> list[AgentEvent]:
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            self.skipped_lines += 1
            return []
        if _is_compaction(row):
            return []
        try:
            return self._make_events(row)
        except (TypeError, ValueError, OverflowError):
            self.skipped_lines += 1
            return []

    def _make_events(self, row: Mapping[str, Any]) -> list[AgentEvent]:
        """Return the events of a row: its tool calls, its model call if it has tokens, and the step."""
        if not _is_step(row):
            raise ValueError("not a step")
        end = _parse_time(row.get("ended_at") or row.get("timestamp"), self._last_time)
        calls = row.get("tool_calls") or ()
        events = [self._make_tool_event(row, call, end) for call in calls if isinstance(call, Mapping)]
        if row.get("input_tokens") or row.get("output_tokens"):
            tokens = {"input_tokens": row.get("input_tokens"), "output_tokens": row.get("output_tokens")}
            events.append(self._make_event(EventType.LLM_CALL_COMPLETED, row, end, tokens))
        verdict = row.get("verdict")
        data = {
            "index": row.get("step_index"),
            "verdict": verdict.upper() if isinstance(verdict, str) and verdict.upper() in _VERDICTS else None,
            "error_type": _clean_field(row, "error_type") or None,
            "error": _redact_text(row.get("error")),
            "text": _redact_text(row.get("feedback") or row.get("verdict_feedback") or row.get("llm_text")),
        }
        events.append(self._make_event(EventType.STEP_COMPLETED, row, end, _drop_none(data.items())))
        self._last_time = max(self._last_time, end)
        return events

    def _make_tool_event(self, row: Mapping[str, Any], call: Mapping[str, Any], end: float) -> AgentEvent:
        outcome = call.get("outcome")
        if outcome not in _OUTCOMES:
            outcome = "error" if call.get("is_error") else "ok"
        data = {
            "tool": _clean_field(call, "tool_name"),
            "call_id": _clean_field(call, "call_id") or _clean_field(call, "tool_use_id") or None,
            "turn": f"{_clean_field(row, 'node_id')}:{row.get('step_index')}",
            "args_hash": _get_fingerprint(call, "args_hash", "tool_input"),
            "result_hash": _get_fingerprint(call, "result_hash", "result"),
            "effect": _clean_field(call, "effect") or _find_effect(call),
            "outcome": outcome,
            "error_type": _clean_field(call, "error_type") or None,
            "error": _redact_text(call.get("error")),
        }
        at = _parse_time(call.get("ended_at"), end)
        event = self._make_event(EventType.TOOL_CALL_COMPLETED, row, at, _drop_none(data.items()))
        event.span_id = _clean_field(call, "span_id") or event.span_id
        return event

    def _make_event(
        self, type_: EventType, row: Mapping[str, Any], at: float, data: Mapping[str, Any]
    ) -> AgentEvent:
        return AgentEvent(
            type=type_,
            time=at,
            agent_id=_clean_field(row, "agent_id"),
            session_id=_clean_field(row, "session_id"),
            incarnation_id=_clean_field(row, "incarnation_id"),
            graph_id=_clean_field(row, "graph_id"),
            node_id=_clean_field(row, "node_id"),
            trace_id=_clean_field(row, "trace_id"),
            span_id=_clean_field(row, "span_id"),
            data=data,
        )


def _is_compaction(row: Mapping[str, Any]) -> bool:
    """Return whether the row records a compaction of the conversation, which is not a step."""
    return "compaction" in (row.get("kind"), row.get("type"), row.get("event")) or bool(
        row.get("is_compaction")
    )


def _is_step(row: Mapping[str, Any]) -> bool:
    return any(key in row for key in ("step_index", "verdict", "tool_calls", "error"))


def _clean_field(row: Mapping[str, Any], key: str) -> str:
    """Return a name or id as one line, with secrets masked."""
    value = row.get(key)
    return clean_name(str(value)) if value else ""


def _drop_none(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in items if value is not None}


def _get_fingerprint(call: Mapping[str, Any], key: str, content: str) -> str | None:
    """Return the fingerprint that the row has, or compute it from the content."""
    value = call.get(key)
    if isinstance(value, str) and value:
        return clean_name(value)
    return fingerprint(call[content]) if call.get(content) is not None else None


def _find_effect(call: Mapping[str, Any]) -> str | None:
    return get_effect_facts(_clean_field(call, "tool_name"), call.get("tool_input")).get("effect")


def _redact_text(value: object) -> str | None:
    return redact(str(value)) if value else None


def _parse_time(value: object, default: float) -> float:
    """Parse an ISO 8601 time or a number of seconds into seconds since the epoch."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return default
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return default
