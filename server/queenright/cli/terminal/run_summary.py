"""How a run ended: as JSON, in words, and what can be done about it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from queenright.cli.terminal.progress import plain
from queenright.cli.terminal.run_options import RunOptions
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.executor import MissingInput
from queenright.runtime.inputs import INPUT_REFUSED
from queenright.runtime.storage.session_state import ExecutionState, SessionState
from queenright.runtime.storage.session_store import SessionStatus, SessionStore

_ERRNO: Final = re.compile(r"\A\[Errno \d+\] ")
_OF_THE_GRAPH: Final = ("TooManyVisits", "ConditionError")


@dataclass(frozen=True, slots=True)
class Ending:
    """
    How a run ended, and what is on the disk of it.

    Args:
        runner: The agent.
        result: How it ended.
        options: How it was asked for.
        state: The state of its session; None if it has none that can be read.
    """

    runner: AgentRunner
    result: ExecutionResult
    options: RunOptions
    state: SessionState | None

    @classmethod
    def of(cls, runner: AgentRunner, result: ExecutionResult, options: RunOptions) -> Ending:
        """Return a run's ending; reads the state of its session."""
        state = None
        if result.session_id:
            # What keeps it from being read has ended the run, and is its error.
            with contextlib.suppress(QueenrightError, OSError):
                state = SessionStore(runner.storage, clock=time.time).read_state(result.session_id)
        return cls(runner, result, options, state)

    @property
    def error(self) -> str:
        """What went wrong, in words."""
        error = self.result.error
        if not _ERRNO.match(error):
            return error
        # Of the system, not of a node: those begin with the node's name.
        said = _ERRNO.sub("", error)
        folder = self.runner.storage
        return f"the storage {folder} cannot be used: {said}; mend that, or name another with --storage"

    def row(self) -> dict[str, Any]:
        """Return it as JSON values."""
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

    def say(self, out: IO[str]) -> None:
        """Print it in words."""
        result = self.result
        print(result.status.value, file=out)
        if result.error:
            print(f"  {plain(self.error)}", file=out)
        for key, value in result.outputs.items():
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"  {plain(key)}: {plain(said)}", file=out)
        if result.goal is not None and result.succeeded:
            unmet = [name for name, state in result.goal.criteria.items() if state != "met"]
            rest = f", not met: {', '.join(unmet)}" if unmet else ""
            rest += f", violated: {', '.join(result.goal.violated)}" if result.goal.violated else ""
            print(f"  goal: {result.goal.fraction:.0%}{rest}", file=out)
        if self.state is not None:
            print(f"Session {result.session_id} in {self._folder}", file=out)

    def way_on(self) -> str:
        """Return what can be done now, with the command; nothing if the run is done, or none would help."""
        run, result = self._run, self.result
        if result.succeeded or run is None:
            # Where it never began, there is nothing to take up: its error says what to do.
            never = result.status is SessionStatus.PAUSED
            return "Paused before it had begun; nothing was run." if never else ""
        if result.error_type == INPUT_REFUSED:
            return f"Begin anew with another input: {self.options.command()} --input JSON"
        again = self.options.resume_command(result.session_id)
        if result.status is SessionStatus.PAUSED:
            return f"Paused. Go on with: {again}"
        if result.error_type == MissingInput.__name__ and (missing := self._missing(run)):
            # Taken up again, it would miss it again.
            wanted = ", ".join(f"{json.dumps(key)}: ..." for key in missing)
            where = ["--session", result.session_id]
            if run.entry_point != self.runner.default_entry_point:
                where += ["--entry-point", run.entry_point]
            return f"Begin anew with what it needs: {self.options.command(*where)} --input '{{{wanted}}}'"
        if result.error_type in _OF_THE_GRAPH:
            return f"When the agent is mended, go on from there with: {again}"
        return f"Try again from there with: {again}"

    @property
    def _folder(self) -> Path:
        return self.runner.storage / "sessions" / self.result.session_id

    @property
    def _run(self) -> ExecutionState | None:
        """The run as it is on the disk, if it is: another's may be there in its place."""
        runs = self.state.executions.values() if self.state is not None else ()
        return next((run for run in runs if run.execution_id == self.result.execution_id), None)

    def _missing(self, run: ExecutionState) -> list[str]:
        """Return the keys that nodes of the run were not given."""
        memory = self.state.memory if self.state is not None else {}
        keys = [
            key
            for pending in run.pending
            for key in self.runner.spec.graph.node(pending.node_id).input_keys
            if key not in memory and key not in pending.input
        ]
        return list(dict.fromkeys(keys))
