"""`queenright run`: one agent in the terminal, from its start to its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from queenright.cli.conversation import Answers, Progress, plain
from queenright.cli.stopping import Stopping
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.otlp import ENDPOINT_ENV
from queenright.instrumentation.telemetry import shared_telemetry
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.executor import MissingInput
from queenright.runtime.storage.session_store import SessionStatus
from queenright.server.guards import health_guard
from queenright.server.settings import load_settings


class Misuse(QueenrightError):
    """Raised when the command line asks for something that makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says."""

    path: Path
    input_text: str | None = None
    entry_point: str | None = None
    model: str | None = None
    storage: Path | None = None
    session: str | None = None
    resume: str | None = None
    as_json: bool = False
    config: Path | None = None
    telemetry: bool = True


def run_agent(options: RunOptions) -> int:
    """
    Run an agent to its end, or until it is paused; return the exit code: 0 if it got to its end, else 1.

    Raises:
        Misuse: The command line makes no sense.
        QueenrightError: The settings are refused, or the agent cannot be loaded or started.
    """
    if sys.platform == "win32":
        raise QueenrightError("Windows is not supported; run it in WSL or in a container.")
    if options.session and options.resume:
        raise Misuse("--session begins a new run in a session, --resume goes on with its last; say one.")
    if options.resume and (options.input_text is not None or options.entry_point):
        raise Misuse("--resume goes on where the run was; --input and --entry-point are for a new run.")
    given = _input(options.input_text)
    if not options.path.exists():
        raise Misuse(f"There is no agent at {options.path}.")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if ENDPOINT_ENV not in os.environ:
        # Nobody said that there is a service: that there is none is no news.
        logging.getLogger("queenright.instrumentation").setLevel(logging.ERROR)
    health = load_settings(options.config).health_monitoring
    runner = AgentRunner.load(
        options.path,
        model=options.model,
        storage=options.storage,
        telemetry=shared_telemetry() if options.telemetry else None,
        guards=health_guard(health),
    )
    entries = runner.info().entry_points
    if options.entry_point and options.entry_point not in entries:
        raise Misuse(f"There is no entry point {options.entry_point!r}; there are: {', '.join(entries)}.")
    result = asyncio.run(_run(runner, options, given))
    if options.as_json:
        print(json.dumps(_row(runner, result), ensure_ascii=False, indent=2))
    else:
        _say_result(runner, result, options, sys.stdout)
    if result.status is SessionStatus.PAUSED:
        print(f"Paused. Go on with: {_resume_command(result.session_id, options)}", file=sys.stderr)
    return 0 if result.succeeded else 1


async def _run(runner: AgentRunner, options: RunOptions, given: dict[str, Any]) -> ExecutionResult:
    """Show what the agent does and hand it what is typed; pause it on a signal, or when nobody answers."""
    out = sys.stderr if options.as_json else sys.stdout
    stopping = Stopping(lambda session_id: _resume_command(session_id, options), options.resume or "")
    stopping.listen()
    stop = stopping.stop
    try:
        for warning in (await asyncio.to_thread(runner.validate)).warnings:
            print(f"warning: {warning}", file=sys.stderr)
        runtime = await _unless_stopped(runner.start(), stop)
        graph_id = runner.spec.graph.id
        progress = Progress(out)
        answers = Answers(runtime, out)
        subscription = runtime.subscribe_to_events(
            progress.types, progress.show, name="terminal", filter_graph=graph_id
        )
        runtime.subscribe_to_events(stopping.types, stopping.show, name="stopping", filter_graph=graph_id)
        if options.resume:
            execution_id = await runtime.resume(options.resume, graph_id)
        else:
            execution_id = await runtime.trigger(
                options.entry_point or runner.default_entry_point,
                given,
                graph_id=graph_id,
                session_id=options.session,
            )
        stopping.execution_id = execution_id
        answering = asyncio.create_task(answers.give(progress.asked, stop))
        try:
            result = await _until_over(runtime, execution_id, stop)
            await runtime.bus.drain()
            return result
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
            subscription.cancel()
    finally:
        await runner.cleanup_async()


async def _until_over(runtime: AgentRuntime, execution_id: str, stop: asyncio.Event) -> ExecutionResult:
    over = asyncio.ensure_future(runtime.wait(execution_id))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            await runtime.pause_execution(execution_id)
        return await over
    finally:
        stopped.cancel()


async def _unless_stopped(starting: Any, stop: asyncio.Event) -> AgentRuntime:
    """Start, unless somebody has had enough before that is done."""
    task: asyncio.Task[AgentRuntime] = asyncio.ensure_future(starting)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise QueenrightError("Stopped before the agent had started; nothing was run.")
        return await task
    finally:
        stopped.cancel()


def _input(text: str | None) -> dict[str, Any]:
    """
    Return what --input says: a JSON object, or ``@file`` with one.

    Raises:
        Misuse: It is none.
    """
    if text is None:
        return {}
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise Misuse(f"--input is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Misuse('--input must be a JSON object, such as \'{"question": "..."}\'.')
    return value


def _row(runner: AgentRunner, result: ExecutionResult) -> dict[str, Any]:
    goal = result.goal
    return {
        "agent": runner.spec.name,
        "session_id": result.session_id,
        "execution_id": result.execution_id,
        "status": result.status.value,
        "outputs": dict(result.outputs),
        "error": result.error,
        "error_type": result.error_type,
        "path": list(result.path),
        "goal": goal.model_dump(mode="json") if goal is not None else None,
        "folder": str(_folder(runner, result)),
    }


def _say_result(runner: AgentRunner, result: ExecutionResult, options: RunOptions, out: IO[str]) -> None:
    print(result.status.value, file=out)
    if result.error:
        print(f"  {plain(result.error)}", file=out)
    for key, value in result.outputs.items():
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"  {key}: {plain(said)}", file=out)
    if result.goal is not None and result.succeeded:
        unmet = [name for name, state in result.goal.criteria.items() if state != "met"]
        rest = f", not met: {', '.join(unmet)}" if unmet else ""
        print(f"  goal: {result.goal.fraction:.0%}{rest}", file=out)
    if result.session_id:
        print(f"Session {result.session_id} in {_folder(runner, result)}", file=out)
        if result.status is SessionStatus.FAILED:
            print(_way_out(runner, result, options), file=sys.stderr)


def _folder(runner: AgentRunner, result: ExecutionResult) -> Path:
    return runner.storage / "sessions" / result.session_id


def _way_out(runner: AgentRunner, result: ExecutionResult, options: RunOptions) -> str:
    """Return what can be done about a run that failed."""
    if result.error_type == MissingInput.__name__ and len(result.path) < 2 and not options.resume:
        # Taken up again, it would miss it again.
        entry = options.entry_point or runner.default_entry_point
        graph = runner.spec.graph
        first = next(e.node_id for e in graph.entry_points if e.id == entry)
        keys = next(node.input_keys for node in graph.nodes if node.id == first)
        wanted = ", ".join(f'"{key}": ...' for key in keys)
        return f"Begin anew with what it needs: {_command(options)} --input '{{{wanted}}}'"
    return f"Try again from there with: {_resume_command(result.session_id, options)}"


def _resume_command(session_id: str, options: RunOptions) -> str:
    return _command(options, "--resume", session_id)


def _command(options: RunOptions, *more: str) -> str:
    words = ["queenright", "run", str(options.path), *more]
    words += ["--model", options.model] if options.model else []
    words += ["--storage", str(options.storage)] if options.storage else []
    words += ["--config", str(options.config)] if options.config else []
    return shlex.join(words)
