"""The summary of a run: as JSON, as text, and with the command to continue."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from queenright.cli.output.text import strip_control
from queenright.cli.terminal.run_options import RunOptions
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.executor import MissingInputError
from queenright.runtime.inputs import INPUT_REFUSED
from queenright.runtime.storage.session_state import ExecutionState, SessionState, SessionStatus
from queenright.runtime.storage.session_store import SessionStore

_ERRNO: Final = re.compile(r"\A\[Errno \d+\] ")
_GRAPH_ERRORS: Final = ("TooManyVisits", "ConditionError")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """
    How a run ended.

    Args:
        runner: The agent.
        result: Result of the run.
        options: Options of the command line.
        state: State of its session on disk; None if it cannot be read.
    """

    runner: AgentRunner
    result: ExecutionResult
    options: RunOptions
    state: SessionState | None

    @classmethod
    def of(cls, runner: AgentRunner, result: ExecutionResult, options: RunOptions) -> RunSummary:
        """Return the summary of a run; reads the state of its session."""
        state = None
        if result.session_id:
            # Such an error has also ended the run, and is reported with its result.
            with contextlib.suppress(QueenrightError, OSError):
                state = SessionStore(runner.storage, clock=time.time).read_state(result.session_id)
        return cls(runner, result, options, state)

    @property
    def error(self) -> str:
        """The error message; empty if the run succeeded."""
        error = self.result.error
        if not _ERRNO.match(error):
            return error
        # An error of the storage: errors of nodes start with the node's name.
        reason = _ERRNO.sub("", error)
        return (
            f"cannot use the storage {self.runner.storage}: {reason}; fix it, or pass another with --storage"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        result, goal = self.result, self.result.goal
        return {
            "agent": self.runner.spec.name,
            "session_id": result.session_id,
            "execution_id": result.execution_id,
            "status": result.status.value,
            "outputs": dict(result.outputs),
            "error": self.error,
            "error_type": result.error_type,
            "path": list(result.path),
            "goal": goal.model_dump(mode="json") if goal is not None else None,
            "folder": str(self._folder) if result.session_id else "",
        }

    def print_text(self, out: IO[str]) -> None:
        """Print the summary as text."""
        result = self.result
        print(result.status.value, file=out)
        if result.error:
            print(f"  {strip_control(self.error)}", file=out)
        for key, value in result.outputs.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"  {strip_control(key)}: {strip_control(text)}", file=out)
        if result.goal is not None and result.succeeded:
            unmet = [name for name, state in result.goal.criteria.items() if state != "met"]
            goal_details = f", not met: {', '.join(unmet)}" if unmet else ""
            goal_details += f", violated: {', '.join(result.goal.violated)}" if result.goal.violated else ""
            print(f"  goal: {result.goal.fraction:.0%}{goal_details}", file=out)
        if self.state is not None:
            print(f"Session {result.session_id} in {self._folder}", file=out)

    def describe_next_step(self) -> str:
        """Return what to do next, with the command; empty if nothing is left to do."""
        run, result = self._run, self.result
        if result.succeeded or run is None:
            # A run that never started cannot be resumed; its error says what to do.
            is_paused = result.status is SessionStatus.PAUSED
            return "Paused before the run started." if is_paused else ""
        if result.error_type == INPUT_REFUSED:
            return f"Start again with another input: {self.options.command()} --input JSON"
        resume = self.options.resume_command(result.session_id)
        if result.status is SessionStatus.PAUSED:
            return f"Paused. Resume with: {resume}"
        if result.error_type == MissingInputError.__name__ and (missing := self._missing_inputs(run)):
            # A resumed run would fail again.
            example = ", ".join(f"{json.dumps(key)}: ..." for key in missing)
            words = ["--session", result.session_id]
            if run.entry_point != self.runner.default_entry_point:
                words += ["--entry-point", run.entry_point]
            return (
                f"Start again with the missing input: {self.options.command(*words)} --input '{{{example}}}'"
            )
        if result.error_type in _GRAPH_ERRORS:
            return f"Fix the agent, then resume with: {resume}"
        return f"Retry from where it stopped with: {resume}"

    @property
    def _folder(self) -> Path:
        return self.runner.storage / "sessions" / self.result.session_id

    @property
    def _run(self) -> ExecutionState | None:
        """State of the run on disk; None if the session holds another run."""
        runs = self.state.executions.values() if self.state is not None else ()
        return next((run for run in runs if run.execution_id == self.result.execution_id), None)

    def _missing_inputs(self, run: ExecutionState) -> list[str]:
        """Return the input keys that pending nodes lack."""
        memory = self.state.memory if self.state is not None else {}
        keys = [
            key
            for pending in run.pending
            for key in self.runner.spec.graph.node(pending.node_id).input_keys
            if key not in memory and key not in pending.input
        ]
        return list(dict.fromkeys(keys))
