"""`queenright run`: one agent in the terminal, from its start to its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from functools import partial
from typing import Any, TextIO

from queenright.cli.terminal.progress import Answers, Progress
from queenright.cli.terminal.run_summary import Ending
from queenright.cli.terminal.run_options import RunOptions, read_input
from queenright.cli.terminal.signals import Stopping
from queenright.cli.output.streams import guard_streams, lost, take_stdout
from queenright.cli.errors import UsageError
from queenright.health.breakers import BreakerRegistry, report_change
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.otlp import ENDPOINT_ENV
from queenright.instrumentation.telemetry import shared_telemetry
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.inputs import InputRefused
from queenright.server.guards import health_guard
from queenright.server.settings import load_settings


def run_agent(options: RunOptions) -> int:
    """
    Run an agent to its end, or until it is paused; return the exit code: 0 if it got to its end, else 1.

    The program's streams are changed for good: with ``as_json`` stdout is for the result alone, and what
    the agent's own code prints goes to stderr.

    Raises:
        UsageError: The command line makes no sense.
        QueenrightError: The settings are refused, the agent cannot be loaded or started, there is no such
            session, or the result cannot be written.
    """
    if sys.platform == "win32":
        raise QueenrightError("Windows is not supported; run it in WSL or in a container.")
    options.check()
    given = read_input(options.input_text)
    guard_streams()
    results = take_stdout() if options.as_json else sys.stdout
    _log_to_stderr()
    health = load_settings(options.config).health_monitoring
    load = partial(
        AgentRunner.load,
        telemetry=shared_telemetry() if options.telemetry else None,
        guards=health_guard(health),
        breakers=BreakerRegistry(health.circuit_breaker, on_change=report_change),
    )
    lifecycle = Lifecycle([options.path.resolve().parent], load=load)
    runner = load(options.path, model=options.model, storage=options.storage, offered_tools=lifecycle.tools)
    entries = runner.info().entry_points
    if options.entry_point and options.entry_point not in entries:
        raise UsageError(f"There is no entry point {options.entry_point!r}; there are: {', '.join(entries)}.")
    try:
        result = asyncio.run(_run(runner, lifecycle, options, given))
    except OSError as error:
        raise QueenrightError(f"The storage {runner.storage} cannot be used: {error}") from error
    ending = Ending.of(runner, result, options)
    _tell(ending, results)
    return 0 if result.succeeded else 1


def _tell(ending: Ending, results: TextIO) -> None:
    """
    Print how a run ended.

    Raises:
        QueenrightError: It cannot be written where it should be, and not because nobody reads it.
    """
    if ending.options.as_json:
        print(json.dumps(ending.row(), ensure_ascii=False, indent=2), file=results)
    else:
        ending.say(results)
    results.flush()
    if way_on := ending.way_on():
        print(way_on, file=sys.stderr)
    if (why := lost(results)) is not None:
        raise QueenrightError(f"The result could not be written to stdout: {why.strerror}.")


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if ENDPOINT_ENV not in os.environ:
        # Nobody said that there is a service: that there is none is no news.
        logging.getLogger("queenright.instrumentation").setLevel(logging.ERROR)


async def _run(
    runner: AgentRunner, lifecycle: Lifecycle, options: RunOptions, given: dict[str, Any]
) -> ExecutionResult:
    """Show what the agent does and hand it what is typed; pause it on a signal, or when nobody answers."""
    out = sys.stderr if options.as_json else sys.stdout
    stopping = Stopping(options.resume_command, options.resume or "")
    stopping.listen()
    stop = stopping.stop
    try:
        for warning in (await asyncio.to_thread(runner.validate)).warnings:
            print(f"warning: {warning}", file=sys.stderr)
        runtime = await _unless_stopped(runner.start(), stop)
        graph_id = runner.spec.graph.id
        if options.session:
            await runtime.disk.run(partial(runtime.session_store(graph_id).open, options.session))
        progress = Progress(out, graph_id, names=len(runner.info().client_facing) > 1)
        answers = Answers(runtime, out)
        if options.approve_tools:
            runtime.set_approval_callback(answers.approve)
        subscription = runtime.subscribe_to_events(progress.types, progress.show, name="terminal")
        runtime.subscribe_to_events(stopping.types, stopping.show, name="stopping", filter_graph=graph_id)
        if options.resume:
            execution_id = await runtime.resume(options.resume, graph_id)
        else:
            try:
                execution_id = await runtime.trigger(
                    options.entry_point or runner.default_entry_point,
                    given,
                    graph_id=graph_id,
                    session_id=options.session,
                )
            except InputRefused as refused:
                raise UsageError(f"{refused}. Nothing was run; say it with --input.") from refused
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
        await lifecycle.close()


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
