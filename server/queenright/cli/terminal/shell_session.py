"""Talking with agents in the terminal: what is typed goes to a node that waits for it, or starts a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Any, Final

from queenright.cli.terminal.progress import Progress, Typed, plain
from queenright.cli.terminal.slash_commands import COMMANDS, Commands, said
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.inputs import INPUT_REFUSED
from queenright.runtime.storage.session_store import SessionStatus

_ENDS: Final = frozenset(
    {EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.EXECUTION_PAUSED}
)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Talk:
    """
    One conversation in the terminal, with all the graphs of a runtime.

    Words go to the active graph: to its node that waits for a user, else into a new run of it, in the session
    of the run before. Lines that begin with a slash are commands (``talk_commands``). What other graphs do in
    the background is shown with their names.

    Args:
        runtime: Started, with its graphs.
        lifecycle: Loads and unloads agents for ``/load`` and ``/unload``.
        out: Where everything is shown.
        terminal: Whether a person types: then a command is obeyed while the agent is at work, too.
    """

    def __init__(self, runtime: AgentRuntime, lifecycle: Lifecycle, out: IO[str], *, terminal: bool) -> None:
        self.runtime = runtime
        self.failed = False
        """Whether the newest run did not get to its end."""
        self._out = out
        self._terminal = terminal
        self._typed = Typed()
        self._next: asyncio.Task[str | None] | None = None
        self._runs: dict[str, asyncio.Task[ExecutionResult]] = {}
        self._pausing: asyncio.Task[bool] | None = None
        self._sessions: dict[str, str] = {}
        self._asked: dict[tuple[str, str], AgentEvent] = {}
        self._stirred = asyncio.Event()
        self._over = asyncio.Event()
        self._commands = Commands(runtime, lifecycle, self._say)
        self._progress = Progress(out, runtime.active_graph_id, names=False)

    async def go(self, *, resume: str | None = None) -> None:
        """
        Talk until ``/quit``, the end of stdin, or a signal. Runs that go on are paused by the runtime's stop.

        Args:
            resume: A session to go on with at once.

        Raises:
            QueenrightError: That session cannot be resumed.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)
        types = self._progress.types | _ENDS
        subscription = self.runtime.subscribe_to_events(types, self._show, name="terminal")
        try:
            if resume is not None:
                await self._resume(resume)
            while not self._over.is_set():
                if self._busy:
                    await self._while_busy()
                    continue
                self._prompt()
                line = await self._line_or_stir()
                if line is not None:
                    await self._take(line)
            if self._active in self._runs and (session := self._sessions.get(self._active)):
                self._say(f"{self._active} is paused; go on with --resume {session}")
        finally:
            subscription.cancel()
            for number in (signal.SIGINT, *_SIGNALS):
                loop.remove_signal_handler(number)
            for task in (self._next, *self._runs.values()):
                if task is not None:
                    task.cancel()

    # -- what is typed --------------------------------------------------------------------------

    async def _take(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "":
                    return
                case "/quit":
                    self._over.set()
                case "/new":
                    self._sessions.pop(self._active, None)
                    self._say("The next run begins a session of its own.")
                case "/resume":
                    await self._resume(rest.strip())
                case _ if word in COMMANDS:
                    await self._commands.obey(word, rest.strip())
                case _ if word.startswith("/"):
                    self._say(f"There is no {word}; /help lists what there is.")
                case _:
                    await self._hear(line)
        except (QueenrightError, OSError, ValueError) as error:
            self._say(f"queenright: {plain(str(error))}")

    async def _hear(self, text: str) -> None:
        """Answer the node that waits, or start a run: what `POST /api/agents/{id}/chat` does."""
        if (event := self._waiting) is not None:
            self._asked.pop((event.graph_id, event.node_id), None)
            await self.runtime.inject_input(
                event.node_id, text, event.graph_id, session_id=event.session_id or None
            )
            return
        graph = self.runtime.get_graph(self._active)
        entries = graph.entry_points
        entry = next((e for e in entries if e.trigger_type == "manual"), entries[0])
        given = _input(text, graph.node(entry.node_id).input_keys)
        # Nobody hears it, and that somebody is there is known by it.
        await self.runtime.inject_input(entry.node_id, text, graph.id)
        session = self._sessions.get(graph.id)
        started = await self.runtime.trigger(entry.id, given, graph_id=graph.id, session_id=session)
        self._follow(graph.id, started)

    async def _resume(self, session_id: str) -> None:
        if not session_id:
            raise ValueError("say which session: /resume ID, as /sessions shows it")
        self._follow(self._active, await self.runtime.resume(session_id, self._active))

    def _follow(self, graph_id: str, execution_id: str) -> None:
        self._runs[graph_id] = asyncio.create_task(self.runtime.wait(execution_id), name=execution_id)

    # -- waiting --------------------------------------------------------------------------------

    @property
    def _active(self) -> str:
        return self.runtime.active_graph_id

    @property
    def _waiting(self) -> AgentEvent | None:
        """The question that what is typed next answers."""
        return next((event for (graph, _), event in self._asked.items() if graph == self._active), None)

    @property
    def _busy(self) -> bool:
        return self._active in self._runs and self._waiting is None

    async def _while_busy(self) -> None:
        """Wait until the run of the active graph is over, or something else is to be seen to."""
        run = self._runs[self._active]
        typed = [self._reading()] if self._terminal else []
        await self._any(run, *typed)
        if run.done():
            await self.runtime.bus.drain()
            self._runs = {name: task for name, task in self._runs.items() if task is not run}
            self._pausing = None
            self._tell(run.result())
        elif typed and typed[0].done() and (typed[0].result() or "").startswith("/"):
            self._next = None
            await self._take(typed[0].result() or "")
        elif typed and typed[0].done():
            # Words are kept for when somebody hears them.
            await self._any(run)

    async def _line_or_stir(self) -> str | None:
        reading = self._reading()
        await self._any(reading)
        if not reading.done():
            return None
        self._next = None
        if (line := reading.result()) is None:
            self._over.set()
            if self._terminal:
                print(file=self._out)
        return line

    def _reading(self) -> asyncio.Task[str | None]:
        self._next = self._next or asyncio.create_task(self._typed.line())
        return self._next

    async def _any(self, *tasks: asyncio.Task[Any]) -> None:
        self._stirred.clear()
        more = [asyncio.create_task(event.wait()) for event in (self._stirred, self._over)]
        try:
            await asyncio.wait([*tasks, *more], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in more:
                task.cancel()

    def _interrupted(self) -> None:
        """Ctrl-C: put by what is going on; end, if nothing is. Once more meanwhile: end at once."""
        if self._over.is_set() or self._pausing is not None:
            os._exit(130)
        if not self._busy:
            self._end()
            return
        execution_id = self._runs[self._active].get_name()
        self._pausing = asyncio.create_task(self.runtime.pause_execution(execution_id))

    def _end(self) -> None:
        self._over.set()

    # -- what is shown --------------------------------------------------------------------------

    def _show(self, event: AgentEvent) -> None:
        if event.type not in _ENDS:
            self._progress.show(event)
            self._sessions[event.graph_id] = event.session_id or self._sessions.get(event.graph_id, "")
        if event.type is EventType.CLIENT_INPUT_REQUESTED:
            self._asked[(event.graph_id, event.node_id)] = event
            if event.graph_id != self._active:
                self._say(f"{event.graph_id} waits for you: /graph {event.graph_id}")
            self._stirred.set()
        elif event.type in _ENDS:
            for key in [k for k, asked in self._asked.items() if asked.execution_id == event.execution_id]:
                del self._asked[key]
            if event.graph_id not in self._runs:
                error = event.data.get("error")
                word = event.type.value.removeprefix("execution_")
                self._say(f"{event.graph_id}: {word}" + (f": {error}" if error else ""))
            self._stirred.set()

    def _tell(self, result: ExecutionResult) -> None:
        self.failed = not result.succeeded
        if result.status is not SessionStatus.COMPLETED:
            self._say(f"{result.status.value}" + (f": {result.error}" if result.error else ""))
            if result.session_id and result.error_type != INPUT_REFUSED:
                self._say(f"Go on with: /resume {result.session_id}")
        for key, value in result.outputs.items():
            self._say(said(value) if key == "text" else f"{key}: {said(value)}")

    def _prompt(self) -> None:
        if not self._terminal:
            return
        name = self._active if len(self.runtime.list_graphs()) > 1 else ""
        print(f"{name}> ", end="", file=self._out, flush=True)

    def _say(self, text: str) -> None:
        print(plain(text), file=self._out, flush=True)


def _input(text: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """
    Return what a run is given for what was typed.

    Raises:
        ValueError: The agent needs several things, and they were not typed as an object.
    """
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
    if len(keys) > 1:
        raise ValueError(f"it needs {', '.join(keys)}; type an object: {{{json.dumps(keys[0])}: ...}}")
    return {keys[0] if keys else "message": text}


def at_terminal() -> bool:
    """Whether a person types: stdin and stdout are a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
