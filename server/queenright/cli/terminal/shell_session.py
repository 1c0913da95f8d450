"""A shell session: input goes to the node that waits for it, or starts a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Any, Final

from queenright.cli.output.text import strip_control
from queenright.cli.terminal.conversation import RunProgress, StdinLines
from queenright.cli.terminal.slash_commands import SLASH_COMMANDS, SlashCommands, format_output
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.inputs import INPUT_REFUSED
from queenright.runtime.storage.session_state import SessionStatus

_END_TYPES: Final = frozenset(
    {EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.EXECUTION_PAUSED}
)
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class ShellSession:
    """
    A conversation in the terminal with the graphs of a runtime.

    Input goes to the active graph: to its node that waits for input, else to a new run in the session of the
    previous run. Lines that start with a slash are commands (``slash_commands``). Activity of other graphs is
    printed with their names.

    Args:
        runtime: A started runtime with its graphs.
        lifecycle: Loads and unloads agents for ``/load`` and ``/unload``.
        out: Output stream.
        is_interactive: Whether a user types the input. Commands are then also executed while the agent runs.
    """

    def __init__(
        self, runtime: AgentRuntime, lifecycle: Lifecycle, out: IO[str], *, is_interactive: bool
    ) -> None:
        self.runtime = runtime
        self.has_failed = False
        """Whether the newest run did not complete."""
        self._out = out
        self._is_interactive = is_interactive
        self._stdin = StdinLines()
        self._pending_line: asyncio.Task[str | None] | None = None
        self._runs: dict[str, asyncio.Task[ExecutionResult]] = {}
        self._pause_task: asyncio.Task[bool] | None = None
        self._sessions: dict[str, str] = {}
        self._input_requests: dict[tuple[str, str], AgentEvent] = {}
        self._change_event = asyncio.Event()
        self._end_event = asyncio.Event()
        self._commands = SlashCommands(runtime, lifecycle, self._print)
        self._progress = RunProgress(out, runtime.active_graph_id)

    async def run(self, *, resume: str | None = None) -> None:
        """
        Run until ``/quit``, the end of stdin, or a signal. Stopping the runtime pauses active runs.

        Args:
            resume: A session to resume first.

        Raises:
            QueenrightError: That session cannot be resumed.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, self._end)
        types = self._progress.types | _END_TYPES
        subscription = self.runtime.subscribe_to_events(types, self._handle_event, name="terminal")
        try:
            if resume is not None:
                await self._resume(resume)
            while not self._end_event.is_set():
                if self._is_busy:
                    await self._wait_while_busy()
                    continue
                self._print_prompt()
                line = await self._wait_for_line()
                if line is not None:
                    await self._handle_line(line)
            if self._active_graph_id in self._runs and (session := self._sessions.get(self._active_graph_id)):
                self._print(f"{self._active_graph_id} is paused; resume it with --resume {session}")
        finally:
            subscription.cancel()
            for number in (signal.SIGINT, *_END_SIGNALS):
                loop.remove_signal_handler(number)
            for task in (self._pending_line, *self._runs.values()):
                if task is not None:
                    task.cancel()

    # -- input ----------------------------------------------------------------------------------

    async def _handle_line(self, line: str) -> None:
        command, _, argument = line.strip().partition(" ")
        try:
            match command:
                case "":
                    return
                case "/quit":
                    self._end_event.set()
                case "/new":
                    self._sessions.pop(self._active_graph_id, None)
                    self._print("The next run starts a new session.")
                case "/resume":
                    await self._resume(argument.strip())
                case _ if command in SLASH_COMMANDS:
                    await self._commands.execute(command, argument.strip())
                case _ if command.startswith("/"):
                    self._print(f"Unknown command {command}; /help lists the commands.")
                case _:
                    await self._send_text(line)
        except (QueenrightError, OSError, ValueError) as error:
            self._print(f"queenright: {strip_control(str(error))}")

    async def _send_text(self, text: str) -> None:
        """Answer the node that waits for input, or start a run, like `POST /api/agents/{id}/chat`."""
        if (event := self._current_request) is not None:
            self._input_requests.pop((event.graph_id, event.node_id), None)
            await self.runtime.inject_input(
                event.node_id, text, event.graph_id, session_id=event.session_id or None
            )
            return
        graph = self.runtime.get_graph(self._active_graph_id)
        entries = graph.entry_points
        entry = next((e for e in entries if e.trigger_type == "manual"), entries[0])
        input_data = _parse_input(text, graph.node(entry.node_id).input_keys)
        # No node waits for it, but it tells the runtime that a user is present.
        await self.runtime.inject_input(entry.node_id, text, graph.id)
        session = self._sessions.get(graph.id)
        execution_id = await self.runtime.trigger(entry.id, input_data, graph_id=graph.id, session_id=session)
        self._follow_run(graph.id, execution_id)

    async def _resume(self, session_id: str) -> None:
        if not session_id:
            raise ValueError("the session is missing: /resume ID; /sessions lists them")
        self._follow_run(self._active_graph_id, await self.runtime.resume(session_id, self._active_graph_id))

    def _follow_run(self, graph_id: str, execution_id: str) -> None:
        self._runs[graph_id] = asyncio.create_task(self.runtime.wait(execution_id), name=execution_id)

    # -- waiting --------------------------------------------------------------------------------

    @property
    def _active_graph_id(self) -> str:
        return self.runtime.active_graph_id

    @property
    def _current_request(self) -> AgentEvent | None:
        """The input request that the next line answers."""
        return next(
            (event for (graph, _), event in self._input_requests.items() if graph == self._active_graph_id),
            None,
        )

    @property
    def _is_busy(self) -> bool:
        return self._active_graph_id in self._runs and self._current_request is None

    async def _wait_while_busy(self) -> None:
        """Wait until the run of the active graph ends, or something else needs attention."""
        run = self._runs[self._active_graph_id]
        line_tasks = [self._read_line()] if self._is_interactive else []
        await self._wait_for_any(run, *line_tasks)
        if run.done():
            await self.runtime.bus.drain()
            self._runs = {name: task for name, task in self._runs.items() if task is not run}
            self._pause_task = None
            self._print_result(run.result())
        elif line_tasks and line_tasks[0].done() and (line_tasks[0].result() or "").startswith("/"):
            self._pending_line = None
            await self._handle_line(line_tasks[0].result() or "")
        elif line_tasks and line_tasks[0].done():
            # Other input is kept until a node waits for it.
            await self._wait_for_any(run)

    async def _wait_for_line(self) -> str | None:
        task = self._read_line()
        await self._wait_for_any(task)
        if not task.done():
            return None
        self._pending_line = None
        if (line := task.result()) is None:
            self._end_event.set()
            if self._is_interactive:
                print(file=self._out)
        return line

    def _read_line(self) -> asyncio.Task[str | None]:
        self._pending_line = self._pending_line or asyncio.create_task(self._stdin.read_line())
        return self._pending_line

    async def _wait_for_any(self, *tasks: asyncio.Task[Any]) -> None:
        self._change_event.clear()
        event_tasks = [asyncio.create_task(event.wait()) for event in (self._change_event, self._end_event)]
        try:
            await asyncio.wait([*tasks, *event_tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in event_tasks:
                task.cancel()

    def _on_interrupt(self) -> None:
        """On Ctrl-C: pause the active run, or end the session if there is none. Pressed again: exit."""
        if self._end_event.is_set() or self._pause_task is not None:
            os._exit(130)
        if not self._is_busy:
            self._end()
            return
        execution_id = self._runs[self._active_graph_id].get_name()
        self._pause_task = asyncio.create_task(self.runtime.pause_execution(execution_id))

    def _end(self) -> None:
        self._end_event.set()

    # -- output ---------------------------------------------------------------------------------

    def _handle_event(self, event: AgentEvent) -> None:
        if event.type not in _END_TYPES:
            self._progress.handle_event(event)
            self._sessions[event.graph_id] = event.session_id or self._sessions.get(event.graph_id, "")
        if event.type is EventType.CLIENT_INPUT_REQUESTED:
            self._input_requests[(event.graph_id, event.node_id)] = event
            if event.graph_id != self._active_graph_id:
                self._print(f"{event.graph_id} waits for input: /graph {event.graph_id}")
            self._change_event.set()
        elif event.type in _END_TYPES:
            for key in [
                k for k, request in self._input_requests.items() if request.execution_id == event.execution_id
            ]:
                del self._input_requests[key]
            if event.graph_id not in self._runs:
                error = event.data.get("error")
                outcome = event.type.value.removeprefix("execution_")
                self._print(f"{event.graph_id}: {outcome}" + (f": {error}" if error else ""))
            self._change_event.set()

    def _print_result(self, result: ExecutionResult) -> None:
        self.has_failed = not result.succeeded
        if result.status is not SessionStatus.COMPLETED:
            self._print(f"{result.status.value}" + (f": {result.error}" if result.error else ""))
            if result.session_id and result.error_type != INPUT_REFUSED:
                self._print(f"Resume with: /resume {result.session_id}")
        for key, value in result.outputs.items():
            self._print(format_output(value) if key == "text" else f"{key}: {format_output(value)}")

    def _print_prompt(self) -> None:
        if not self._is_interactive:
            return
        name = self._active_graph_id if len(self.runtime.list_graphs()) > 1 else ""
        print(f"{name}> ", end="", file=self._out, flush=True)

    def _print(self, text: str) -> None:
        print(strip_control(text), file=self._out, flush=True)


def _parse_input(text: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """
    Return a line of input as the input of a run: a JSON object unchanged, other text under the only key.

    Raises:
        ValueError: The agent needs several keys, and the line is not a JSON object.
    """
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            value = json.loads(text)
            if isinstance(value, dict):
                return value
    if len(keys) > 1:
        raise ValueError(
            f"the agent needs {', '.join(keys)}; type a JSON object: {{{json.dumps(keys[0])}: ...}}"
        )
    return {keys[0] if keys else "message": text}


def is_interactive() -> bool:
    """Return whether stdin and stdout are a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
