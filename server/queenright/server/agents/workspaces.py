"""The queen's access to loaded agents. She reads files and logs; for an admin, she edits and restarts."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

from queenright.health.interventions.approval import describe_requester
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.settings import InterventionSettings
from queenright.health.store.store import StoreError
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import MASK, redact
from queenright.judge.agent_workspace import FileChange
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.bus import EventBus
from queenright.runtime.events import Clock
from queenright.runtime.execution import Execution
from queenright.runtime.storage.files import read_newest_lines
from queenright.runtime.tooling.tools import ToolError, ToolUnavailableError
from queenright.server.agents.agent_files import AgentFileError, AgentFiles
from queenright.server.agents.manager import AgentManager, AgentSlot
from queenright.server.agents.operations import Action, make_operation_event

_log = logging.getLogger(__name__)

T = TypeVar("T")

_REQUESTER: Final = "queen"
_MAX_DIFF_LENGTH: Final = 3_500
_MAX_LISTED_RUNS: Final = 5


class LoadedWorkspaces:
    """
    The workspaces of the loaded agents; see ``queenright.judge.agent_workspace.AgentWorkspaces``.

    Args:
        agents: The loaded agents.
        bus: Logs each change before it is made.
        stop: The emergency stop, which also stops changes.
        settings: If terminations are a dry run, changes are only recorded, because a restart stops runs.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        agents: AgentManager,
        *,
        bus: EventBus,
        stop: EmergencyStop,
        settings: InterventionSettings,
        clock: Clock,
    ) -> None:
        self._agents = agents
        self._bus = bus
        self._stop = stop
        self._settings = settings
        self._clock = clock

    async def list_files(self, agent_id: str) -> tuple[Sequence[str], bool]:
        """Return the paths of the files, and whether there are more."""
        return await self._run_on_disk(self._open_files(agent_id).list)

    async def read_file(self, agent_id: str, path: str) -> str:
        """Return a file's text, with secrets masked."""
        files = self._open_files(agent_id)
        return await self._run_on_disk(lambda: _mask_secrets(files.read(path)))

    async def read_log(self, agent_id: str, session_id: str, limit: int) -> Sequence[dict[str, Any]]:
        """Return up to ``limit`` steps of a session, newest first."""
        slot, _, graph_id = self._find_slot(agent_id)

        def read() -> list[dict[str, Any]]:
            _, session, _ = slot.runtime.find_session(session_id, graph_id)
            return list(islice(read_newest_lines(session.logs / "tool_logs.jsonl"), limit))

        return await self._run_on_disk(read)

    async def write_file(
        self, agent_id: str, path: str, new: str, old: str, *, ordered_by: str
    ) -> FileChange:
        """Replace the passage ``old`` of a file, or the whole file if ``old`` is empty."""
        self._reject_if_stopped()
        files = self._open_files(agent_id)

        def plan() -> tuple[str | None, str]:
            current_text = files.read(path) if old or files.exists(path) else None
            return current_text, _replace_text(path, current_text, new, old)

        current_text, text = await self._run_on_disk(plan)
        diff, counts = _build_diff(path, current_text or "", text)
        if self._is_dry_run:
            await self._record("change_file", agent_id, ordered_by, f"dry run: {path}: {counts}")
            return FileChange(diff, f"dry run: {path} was not changed")
        await self._record("change_file", agent_id, ordered_by, f"{path}: {counts}")
        version = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        backup = await self._run_on_disk(
            lambda: files.write(path, text, expected=current_text, version=version)
        )
        summary = f"{path} was changed ({counts})" if backup else f"{path} was created ({counts})"
        backup_note = f"; the earlier version is in {backup}" if backup else ""
        return FileChange(diff, f"{summary}{backup_note}. The agent uses it after a restart")

    async def restart(self, agent_id: str, *, ordered_by: str) -> str:
        """Load the agent again from its folder; its runs are paused."""
        self._reject_if_stopped()
        slot, _, _ = self._find_slot(agent_id)
        if slot.id != agent_id:
            raise ToolError(
                f"{agent_id!r} runs as a graph of agent {slot.id!r}; remove the graph and add it again"
            )
        active_runs = _list_runs(slot)
        if self._is_dry_run:
            await self._record("reload", agent_id, ordered_by, f"dry run: {slot.path}")
            effect = _describe_effect(active_runs, agent_id, "would be")
            return f"dry run: {agent_id} was not restarted. {effect}"
        await self._record("reload", agent_id, ordered_by, str(slot.path))
        try:
            await self._agents.reload(agent_id)
        except QueenrightError as error:
            state = (
                "the running one was left unchanged"
                if self._agents.slots.get(agent_id) is slot
                else f"it is not loaded now; load it with `queenright agents load {slot.path}`"
            )
            raise ToolError(f"{agent_id} could not be reloaded, {state}: {error}") from error
        _log.info("agent %r was reloaded; requested by %s", redact(agent_id, 200), redact(ordered_by, 100))
        return f"{agent_id} was reloaded from {slot.path}. {_describe_effect(active_runs, agent_id, 'were')}"

    # -- private ---------------------------------------------------------------------------------

    def _find_slot(self, agent_id: str) -> tuple[AgentSlot, AgentRunner, str]:
        """Return the slot of an agent, or of the agent that runs it as a graph; its runner; its graph id."""
        if (slot := self._agents.slots.get(agent_id)) is not None:
            return slot, slot.runner, slot.graph_id
        for slot in self._agents.slots.values():
            for graph_id, runner in slot.added_graphs.items():
                if runner.spec.name == agent_id:
                    return slot, runner, graph_id
        raise ToolError(
            f"agent {agent_id!r} is not loaded in this service, so its files and logs are not available "
            "here; look at them where the agent runs"
        )

    def _open_files(self, agent_id: str) -> AgentFiles:
        runner = self._find_slot(agent_id)[1]
        return AgentFiles(runner.path, runner.storage / "versions")

    @property
    def _is_dry_run(self) -> bool:
        return self._settings.is_dry("terminate")

    def _reject_if_stopped(self) -> None:
        if (reason := self._stop.reason) is not None:
            raise ToolError(reason)

    async def _record(self, action: Action, agent_id: str, ordered_by: str, detail: str) -> None:
        """Log a change before it is made; if logging fails, the change is not made."""
        by = describe_requester(_REQUESTER, ordered_by)
        try:
            await self._bus.publish(
                make_operation_event(action, agent_id, at=self._clock(), by=by, detail=detail)
            )
        except StoreError as error:
            raise ToolUnavailableError(
                f"the database is unavailable, so nothing was done: {error}"
            ) from error

    async def _run_on_disk(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except (QueenrightError, OSError) as error:
            raise ToolError(str(error)) from error


def _mask_secrets(text: str) -> str:
    return redact(text, max(1, len(text)))


def _replace_text(path: str, current_text: str | None, new: str, old: str) -> str:
    """Return a file's text after a change. Reject changes that would lose secrets masked for the queen."""
    if MASK in new:
        raise AgentFileError(f"the new text contains {MASK}, which stands for a masked secret; leave it out")
    if not old:
        if current_text is not None and _mask_secrets(current_text) != current_text:
            raise AgentFileError(f"{path} contains masked secrets; replace a passage with `old` and `new`")
        return new
    count = (current_text or "").count(old)
    if count != 1:
        raise AgentFileError(f"`old` occurs {count} times in {path}; it must occur once")
    return (current_text or "").replace(old, new)


def _build_diff(path: str, before: str, after: str) -> tuple[str, str]:
    """Return a diff, masked and truncated, and its size such as ``+3 -1 lines``."""
    old_lines, new_lines = _mask_secrets(before).splitlines(), _mask_secrets(after).splitlines()
    lines = list(difflib.unified_diff(old_lines, new_lines, path, path, lineterm="", n=2))
    added_lines = sum(line.startswith("+") for line in lines[2:])
    removed_lines = sum(line.startswith("-") for line in lines[2:])
    text = "\n".join(lines)
    if len(text) > _MAX_DIFF_LENGTH:
        text = f"{text[:_MAX_DIFF_LENGTH]}\n… (truncated; the file has the whole change)"
    return text, f"+{added_lines} -{removed_lines} lines"


def _list_runs(slot: AgentSlot) -> list[Execution]:
    runtime = slot.runtime
    return [
        run
        for graph_id in runtime.list_graphs()
        for entry in runtime.get_entry_points(graph_id)
        for run in runtime.get_stream(entry.id, graph_id=graph_id).executions
        if not run.done
    ]


def _describe_effect(runs: Sequence[Execution], agent_id: str, verb: str) -> str:
    """Describe the effect of a restart on runs. ``verb`` is "were" or "would be"."""
    if not runs:
        return "Nothing was running."
    paused_sessions = [run.session_id for run in runs if run.has_begun and run.session_id]
    parts = []
    if paused_sessions:
        session_names = ", ".join(paused_sessions[:_MAX_LISTED_RUNS]) + (
            ", ..." if len(paused_sessions) > _MAX_LISTED_RUNS else ""
        )
        parts.append(
            f"Runs that {verb} paused: {len(paused_sessions)} ({session_names}); continue one with "
            f"`queenright agents resume {agent_id} SESSION`."
        )
    if queued_count := len(runs) - len(paused_sessions):
        parts.append(f"Queued runs that {verb} cancelled: {queued_count}.")
    return " ".join(parts)
