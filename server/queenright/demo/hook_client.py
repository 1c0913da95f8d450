"""A demo session of a coding agent: it calls the service's hooks, and asks whether it may run a command."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from typing import Any, Final
from urllib.parse import urlsplit

from queenright.instrumentation.identity import new_id

_USER, _HOST, _REPOSITORY = "ada", "demo", "website"
HOOK_AGENT: Final = f"claude-code/{_USER}@{_HOST}/{_REPOSITORY}"
"""The agent name that the service derives from the query."""
_PATH: Final = f"/hooks/claude-code?user={_USER}&host={_HOST}&repository={_REPOSITORY}"
_COMMAND: Final = "git push origin release-2.4"
_FILES: Final = ("package.json", "CHANGELOG.md", "src/index.html")


class HookClient:
    """
    A thread that does what Claude Code does with its hooks.

    Args:
        endpoint: Base URL of the telemetry port.
        token: Access token for the telemetry port, if required.
        tool_seconds: Seconds that a tool call takes.
        pause_seconds: Seconds between two sessions.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str | None = None,
        tool_seconds: float = 1.5,
        pause_seconds: float = 60.0,
    ) -> None:
        self._address = urlsplit(endpoint).netloc
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._tool_seconds = tool_seconds
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="demo-hooks", daemon=True)

    def start(self) -> None:
        """Begin the first session."""
        self._thread.start()

    def stop(self, timeout: float = 3.0) -> None:
        """End the session, even while it waits for an answer."""
        self._stop.set()
        if (connection := self._connection) and connection.sock:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            session = new_id()
            # The service may be stopping. A failed hook must not fail the agent.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._run_session(session)
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._post_hook(session, "SessionEnd", reason="other")
            self._stop.wait(self._pause_seconds)

    def _run_session(self, session: str) -> None:
        self._post_hook(session, "SessionStart", source="startup")
        self._post_hook(session, "UserPromptSubmit", prompt="Publish release 2.4 of the website.")
        for number, file in enumerate(_FILES):
            self._use_tool(session, f"call-{number}", "Read", {"file_path": file}, f"read {file}")
        push = {"command": _COMMAND, "description": "Push the release branch."}
        self._post_hook(session, "PreToolUse", tool_name="Bash", tool_input=push, tool_use_id="push")
        answer = self._post_hook(session, "PermissionRequest", tool_name="Bash", tool_input=push)
        decision = answer.get("hookSpecificOutput", {}).get("decision", {}).get("behavior")
        message = "The push was not allowed."
        if decision == "allow":
            self._end_tool(session, "push", "Bash", push, "pushed")
            message = "Release 2.4 is done."
        self._post_hook(session, "Stop", stop_hook_active=False, last_assistant_message=message)

    def _use_tool(self, session: str, call: str, tool: str, arguments: dict[str, str], result: str) -> None:
        self._post_hook(session, "PreToolUse", tool_name=tool, tool_input=arguments, tool_use_id=call)
        self._stop.wait(self._tool_seconds)
        self._end_tool(session, call, tool, arguments, result)

    def _end_tool(self, session: str, call: str, tool: str, arguments: dict[str, str], result: str) -> None:
        self._post_hook(
            session,
            "PostToolUse",
            tool_name=tool,
            tool_input=arguments,
            tool_response={"stdout": result},
            tool_use_id=call,
        )

    def _post_hook(self, session: str, event: str, **fields: Any) -> dict[str, Any]:
        call = {
            "session_id": session,
            "cwd": f"/home/{_USER}/{_REPOSITORY}",
            "prompt_id": f"{session}-1",
            "hook_event_name": event,
        } | fields
        self._connection = connection = http.client.HTTPConnection(self._address)
        with contextlib.closing(connection):
            connection.request("POST", _PATH, json.dumps(call), self._headers)
            answer = json.loads(connection.getresponse().read())
        return answer if isinstance(answer, dict) else {}
