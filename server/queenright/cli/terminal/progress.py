"""An agent in the terminal: what it does, what it says, and what is typed for it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import IO, Final

from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.tooling.approval import ApprovalRequest

# What could move the cursor, or tell the terminal to do things: all control characters but new line and tab.
_CONTROL: Final = {number: None for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


_ARGUMENTS: Final = 500
"""Characters of a tool call's arguments that are shown."""


def plain(text: str) -> str:
    """Return text of a model or a tool as a terminal may be given it."""
    return text.translate(_CONTROL)


class Progress:
    """
    Shows what an agent does, a line each, and what its client-facing nodes say, as it comes.

    Args:
        out: Where to.
        graph_id: The agent's graph; what comes of another says of which.
        names: Whether several of its nodes speak, so that whose words they are must be said.
    """

    types: Final = frozenset(
        {
            EventType.NODE_LOOP_COMPLETED,
            EventType.STEP_COMPLETED,
            EventType.TOOL_CALL_COMPLETED,
            EventType.LLM_CALL_COMPLETED,
            EventType.CLIENT_OUTPUT_DELTA,
            EventType.CLIENT_INPUT_REQUESTED,
            EventType.WORKER_WAITING,
            EventType.EXECUTION_STARTED,
            EventType.EXECUTION_RESUMED,
        }
    )

    def __init__(self, out: IO[str], graph_id: str, *, names: bool = False) -> None:
        self.asked: asyncio.Queue[AgentEvent] = asyncio.Queue()
        """Each time that a node begins to wait for a user."""
        self._out = out
        self._graph_id = graph_id
        self._names = names
        self._speaker = ""
        self._said = ""
        """What the speaker said since the last line that was not their own words."""

    def show(self, event: AgentEvent) -> None:
        """Show one event."""
        name = self._name(event)
        if event.type is EventType.CLIENT_OUTPUT_DELTA:
            self._speech(name, plain(str(event.data.get("text", ""))))
        elif event.type is EventType.CLIENT_INPUT_REQUESTED:
            question = plain(str(event.data.get("question") or ""))
            heard = self._said if name == self._speaker else ""
            if question.strip() and question.strip() not in heard:
                self._line(self._label(name) + question)
            self._end_of_speech()
            self.asked.put_nowait(event)
        else:
            line = _told(event, name)
            if line:
                self._line(plain(line))

    def _name(self, event: AgentEvent) -> str:
        own = event.graph_id == self._graph_id
        return event.node_id if own else "/".join(filter(None, (event.graph_id, event.node_id)))

    def _label(self, name: str) -> str:
        return f"{plain(name)}: " if self._names or "/" in name else ""

    def _speech(self, name: str, text: str) -> None:
        if not text:
            return
        if name != self._speaker:
            self._end_of_speech()
        if not self._said:
            self._out.write(self._label(name))
        self._speaker = name
        self._said += text
        self._out.write(text)
        self._out.flush()

    def _line(self, line: str) -> None:
        self._end_of_speech()
        print(line, file=self._out, flush=True)

    def _end_of_speech(self) -> None:
        if self._said and not self._said.endswith("\n"):
            print(file=self._out, flush=True)
        self._said = ""


def _told(event: AgentEvent, node: str) -> str:
    """Return an event as a line, or nothing."""
    data = event.data
    # The agent's own runs are no node's; those of another graph are told as that graph's.
    whose = f"{node}: " if node else ""
    match event.type:
        case EventType.EXECUTION_STARTED:
            return f"{whose}session {event.session_id}"
        case EventType.EXECUTION_RESUMED:
            return f"{whose}taken up where it was"
        case EventType.TOOL_CALL_COMPLETED:
            error = f": {data['error']}" if data.get("error") else ""
            return f"{node}: {data.get('tool')} {data.get('outcome')}{error}"
        case EventType.LLM_CALL_COMPLETED if data.get("error_type"):
            return f"{node}: {data.get('model')} did not answer: {data.get('error') or data['error_type']}"
        case EventType.WORKER_WAITING if data.get("reason") == "backoff":
            return f"{node}: waits before asking again"
        case EventType.STEP_COMPLETED if data.get("verdict") in ("RETRY", "ESCALATE"):
            why = f": {data['text']}" if data.get("text") else ""
            return f"{node}: turn {data.get('index')} {str(data['verdict']).lower()}{why}"
        case EventType.NODE_LOOP_COMPLETED:
            error = f": {data['error']}" if data.get("error") else ""
            return f"{node}: {str(data.get('outcome')).replace('_', ' ')}{error}"
    return ""


class Answers:
    """
    Hands what is typed to the nodes that wait for it, a line each.

    Args:
        runtime: Where the nodes are.
        out: Where the prompt goes.
    """

    def __init__(self, runtime: AgentRuntime, out: IO[str]) -> None:
        self._runtime = runtime
        self._out = out
        self._typed = Typed()
        self._asking = asyncio.Lock()
        """What is typed next is for one question."""

    async def approve(self, request: ApprovalRequest) -> bool:
        """Ask whether a tool call may be made: `y` allows it; nothing is allowed once stdin is at its end."""
        async with self._asking:
            arguments = plain(redact(" ".join(request.arguments.split()), _ARGUMENTS))
            asked = f"{request.node_id} wants to call {request.tool} {arguments}"
            print(f"{plain(asked)}\nAllow it? [y/N] ", end="", file=self._out, flush=True)
            line = await self._typed.line()
        if line is None:
            print("\nNobody answers, so it is not made: stdin is at its end.", file=self._out, flush=True)
        return line is not None and line.strip().lower() in ("y", "yes")

    async def give(self, asked: asyncio.Queue[AgentEvent], stop: asyncio.Event) -> None:
        """Answer each question in ``asked``; when there is nobody to answer any more, set ``stop``."""
        while True:
            event = await asked.get()
            async with self._asking:
                print("> ", end="", file=self._out, flush=True)
                line = await self._typed.line()
            if line is None:
                print("\nNobody answers: stdin is at its end.", file=self._out, flush=True)
                stop.set()
                return
            await self._runtime.inject_input(
                event.node_id, line, event.graph_id, session_id=event.session_id or None
            )


class Typed:
    """What is typed, a line at a time. Nothing is read before the first is asked for."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._reading = False

    async def line(self) -> str | None:
        """Return the next line; None at the end of stdin."""
        if not self._reading:
            self._reading = True
            self._read()
        return await self._lines.get()

    def _read(self) -> None:
        loop = asyncio.get_running_loop()

        def hand(line: str | None) -> None:
            # The program may have ended while somebody was typing.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._lines.put_nowait, line)

        def read() -> None:
            # Not by sys.stdin: a thread that holds its lock cannot be left behind when the program ends.
            rest = b""
            while True:
                try:
                    piece = os.read(0, 65536)
                except OSError:
                    piece = b""
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    hand(line.decode("utf-8", "replace").rstrip("\r"))
                if not piece:
                    if rest:
                        hand(rest.decode("utf-8", "replace"))
                    hand(None)
                    return

        threading.Thread(target=read, name="stdin", daemon=True).start()
