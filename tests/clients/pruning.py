"""Omit redundant records from a recording, so that fixtures are small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.clients.fixtures import Record

_SELF_REPORTS: Final = frozenset(
    {
        # Claude Code
        *("hook_registered", "hook_execution_start", "hook_execution_complete", "plugin_loaded"),
        *("managed_settings_resolved", "retention_sweep"),
        # Codex CLI
        *("codex.startup_phase", "codex.turn_ttft"),
        # Gemini CLI
        *("gemini_cli.hook_call", "gemini_cli.startup_stats", "gemini_cli.config"),
        *("gen_ai.client.inference.operation.details", "gemini_cli.ripgrep_fallback"),
    }
)
"""Event names of log records in which clients report on their own hooks, settings and start."""
_STREAM_EVENT: Final = "codex.sse_event"
_STREAM_END: Final = "response.completed"
"""The stream event that has the tokens of an answer."""
_RUN_ID_KEYS: Final = ("conversation.id", "turn.id", "turn_id", "thread_id", "call_id", "session.id")
_UNUSED_SPANS: Final = "gemini-cli"
"""The scope of spans whose information is also in the client's log records."""
_LISTS: Final = (
    *("resourceLogs", "scopeLogs", "logRecords"),
    *("resourceSpans", "scopeSpans", "spans"),
)
_RULE_TEXT: Final = (
    "of log records about the client itself, and of spans that name no conversation, turn or call or that "
    "no dialect uses, only the first of each name is kept"
)


def prune(records: Iterable[Record]) -> tuple[tuple[Record, ...], str | None]:
    """Return the records to keep, and a note about the omitted ones (None if no record is omitted)."""
    pruning = _Pruning()
    kept_records = []
    for record in records:
        body = pruning.prune(record.body, "") if record.path.startswith("/v1/") else record.body
        if body:
            kept_records.append(Record(record.at, record.path, body))
    note = (
        f"{pruning.omitted_count} of {pruning.total} records and spans: {_RULE_TEXT}"
        if pruning.omitted_count
        else None
    )
    return tuple(kept_records), note


class _Pruning:
    """The names of the records so far, their number, and the number of omitted records."""

    def __init__(self) -> None:
        self.total = self.omitted_count = 0
        self._names: set[str] = set()

    def prune(self, value: Mapping[str, Any], scope: str) -> dict[str, Any]:
        """Return a part of an OTLP body without omitted records, and without parts that become empty."""
        scope = value.get("scope", {}).get("name", scope)
        pruned = dict[str, Any]()
        for name, items in value.items():
            if name not in _LISTS:
                pruned[name] = items
            elif name in ("logRecords", "spans"):
                pruned[name] = [item for item in items if self._is_kept(item, scope)]
            else:
                pruned[name] = [part for item in items if (part := self.prune(item, scope))]
        lists = [items for name, items in pruned.items() if name in _LISTS]
        return pruned if any(lists) else {}

    def _is_kept(self, item: Mapping[str, Any], scope: str) -> bool:
        self.total += 1
        attributes = {attribute["key"]: attribute["value"] for attribute in item.get("attributes", ())}
        if "spanId" in item and "name" in item:
            name = f"span {item['name']}"
            is_about_run = scope != _UNUSED_SPANS and any(key in attributes for key in _RUN_ID_KEYS)
        else:
            name = attributes.get("event.name", {}).get("stringValue", "")
            is_about_run = name not in _SELF_REPORTS
            if name == _STREAM_EVENT:
                is_about_run = attributes.get("event.kind", {}).get("stringValue") == _STREAM_END
        if is_about_run or name not in self._names:
            self._names.add(name)
            return True
        self.omitted_count += 1
        return False
