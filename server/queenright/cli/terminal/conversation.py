"""One agent's run in the terminal: its progress, its messages, and input from stdin."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import IO, Final

from queenright.cli.output.text import strip_control
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.tooling.approval import ApprovalRequest

_MAX_ARGUMENTS_LENGTH: Final = 500
"""Maximum number of characters of a tool call's arguments in an approval prompt."""


class RunProgress:
    """
    Prints the progress of a run, one line per event, and the text of client-facing nodes as it arrives.

    Args:
        out: Output stream.
        graph_id: The agent's graph; events of other graphs are printed with their graph's name.
        has_speaker_names: Print the node's name before its text, because several nodes are client-facing.
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

    def __init__(self, out: IO[str], graph_id: str, *, has_speaker_names: bool = False) -> None:
        self.input_requests: asyncio.Queue[AgentEvent] = asyncio.Queue()
        """An event for each time that a node starts to wait for input."""
        self._out = out
        self._graph_id = graph_id
        self._has_speaker_names = has_speaker_names
        self._speaker = ""
        self._speech = ""
        """Text of the speaker since the last line of anything else."""

    def handle_event(self, event: AgentEvent) -> None:
        """Print one event."""
        name = self._get_speaker_name(event)
        if event.type is EventType.CLIENT_OUTPUT_DELTA:
            self._print_speech(name, strip_control(str(event.data.get("text", ""))))
        elif event.type is EventType.CLIENT_INPUT_REQUESTED:
            question = strip_control(str(event.data.get("question") or ""))
            speech = self._speech if name == self._speaker else ""
            if question.strip() and question.strip() not in speech:
                self._print_line(self._format_label(name) + question)
            self._end_speech()
            self.input_requests.put_nowait(event)
        elif line := _format_event(event, name):
            self._print_line(strip_control(line))

    def _get_speaker_name(self, event: AgentEvent) -> str:
        is_own = event.graph_id == self._graph_id
        return event.node_id if is_own else "/".join(filter(None, (event.graph_id, event.node_id)))

    def _format_label(self, name: str) -> str:
        return f"{strip_control(name)}: " if self._has_speaker_names or "/" in name else ""

    def _print_speech(self, name: str, text: str) -> None:
        if not text:
            return
        if name != self._speaker:
            self._end_speech()
        if not self._speech:
            self._out.write(self._format_label(name))
        self._speaker = name
        self._speech += text
        self._out.write(text)
        self._out.flush()

    def _print_line(self, line: str) -> None:
        self._end_speech()
        print(line, file=self._out, flush=True)

    def _end_speech(self) -> None:
        if self._speech and not self._speech.endswith("\n"):
            print(file=self._out, flush=True)
        self._speech = ""


def _format_event(event: AgentEvent, node: str) -> str:
    """Return an event as a line; empty for an event that is not printed."""
    data = event.data
    # Events of the agent's own runs have no node; those of another graph carry its name.
    prefix = f"{node}: " if node else ""
    error = f": {data['error']}" if data.get("error") else ""
    match event.type:
        case EventType.EXECUTION_STARTED:
            return f"{prefix}session {event.session_id}"
        case EventType.EXECUTION_RESUMED:
            return f"{prefix}resumed"
        case EventType.TOOL_CALL_COMPLETED:
            return f"{node}: {data.get('tool')} {data.get('outcome')}{error}"
        case EventType.LLM_CALL_COMPLETED if data.get("error_type"):
            return f"{node}: {data.get('model')} failed: {data.get('error') or data['error_type']}"
        case EventType.WORKER_WAITING if data.get("reason") == "backoff":
            return f"{node}: backing off before a retry"
        case EventType.STEP_COMPLETED if data.get("verdict") in ("RETRY", "ESCALATE"):
            feedback = f": {data['text']}" if data.get("text") else ""
            return f"{node}: turn {data.get('index')} {str(data['verdict']).lower()}{feedback}"
        case EventType.NODE_LOOP_COMPLETED:
            return f"{node}: {str(data.get('outcome')).replace('_', ' ')}{error}"
    return ""


class InputPrompt:
    """
    Passes lines of stdin to nodes that wait for input, and asks for approval of tool calls.

    Args:
        runtime: Runtime of the nodes.
        out: Output stream for prompts.
    """

    def __init__(self, runtime: AgentRuntime, out: IO[str]) -> None:
        self._runtime = runtime
        self._out = out
        self._stdin = StdinLines()
        self._lock = asyncio.Lock()
        """Held while a question waits for its line."""

    async def approve(self, request: ApprovalRequest) -> bool:
        """Ask whether a tool call is allowed; only `y` or `yes` allows it; the end of stdin denies it."""
        async with self._lock:
            arguments = strip_control(redact(" ".join(request.arguments.split()), _MAX_ARGUMENTS_LENGTH))
            question = f"{request.node_id} wants to call {request.tool} {arguments}"
            print(f"{strip_control(question)}\nAllow it? [y/N] ", end="", file=self._out, flush=True)
            line = await self._stdin.read_line()
        if line is None:
            print("\nDenied: stdin has ended.", file=self._out, flush=True)
        return line is not None and line.strip().lower() in ("y", "yes")

    async def answer(self, requests: asyncio.Queue[AgentEvent], stop: asyncio.Event) -> None:
        """Answer every input request with a line of stdin; set ``stop`` at the end of stdin."""
        while True:
            event = await requests.get()
            async with self._lock:
                print("> ", end="", file=self._out, flush=True)
                line = await self._stdin.read_line()
            if line is None:
                print("\nNo more input: stdin has ended.", file=self._out, flush=True)
                stop.set()
                return
            await self._runtime.inject_input(
                event.node_id, line, event.graph_id, session_id=event.session_id or None
            )


class StdinLines:
    """Lines of stdin. Reading starts with the first call of ``read_line``."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._is_reading = False

    async def read_line(self) -> str | None:
        """Return the next line; None at the end of stdin."""
        if not self._is_reading:
            self._is_reading = True
            self._start_thread()
        return await self._lines.get()

    def _start_thread(self) -> None:
        loop = asyncio.get_running_loop()

        def put(line: str | None) -> None:
            # The program may end while a line is being typed.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._lines.put_nowait, line)

        def read() -> None:
            # Not sys.stdin: a daemon thread that holds its lock blocks the interpreter's exit.
            buffer = b""
            while True:
                try:
                    chunk = os.read(0, 65536)
                except OSError:
                    chunk = b""
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    put(line.decode("utf-8", "replace").rstrip("\r"))
                if not chunk:
                    if buffer:
                        put(buffer.decode("utf-8", "replace"))
                    put(None)
                    return

        threading.Thread(target=read, name="stdin", daemon=True).start()
