"""`queenright run`: one agent in the terminal, from start to result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from functools import partial
from typing import Any, TextIO

from queenright.cli.errors import UsageError
from queenright.cli.output.streams import get_write_error, take_stdout
from queenright.cli.terminal.conversation import InputPrompt, RunProgress
from queenright.cli.terminal.run_options import RunOptions, read_input
from queenright.cli.terminal.run_summary import RunSummary
from queenright.cli.terminal.shell import configure_logging, make_agent_loader
from queenright.cli.terminal.signals import PauseOnSignal, wait_unless_stopped
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.inputs import InvalidInputError


def run_agent(options: RunOptions) -> int:
    """
    Run an agent until it completes or is paused; return the exit code: 0 if it completed, otherwise 1.

    Replaces the program's streams: with ``as_json``, stdout is for the result alone, and output of the
    agent's own code goes to stderr.

    Raises:
        UsageError: The options are invalid.
        QueenrightError: The settings are invalid, the agent cannot be loaded or started, there is no such
            session, or the result cannot be written.
    """
    options.check()
    input_data = read_input(options.input_text)
    configure_logging()
    result_stream = take_stdout() if options.as_json else sys.stdout
    load = make_agent_loader(options.config, telemetry=options.telemetry)
    lifecycle = Lifecycle([options.path.resolve().parent], load=load)
    runner = load(options.path, model=options.model, storage=options.storage, offered_tools=lifecycle.tools)
    entry_points = runner.info().entry_points
    if options.entry_point and options.entry_point not in entry_points:
        raise UsageError(
            f"There is no entry point {options.entry_point!r}; choose one of: {', '.join(entry_points)}."
        )
    try:
        result = asyncio.run(_run(runner, lifecycle, options, input_data))
    except OSError as error:
        raise QueenrightError(
            f"cannot use the storage {runner.storage}: {error}; pass another with --storage"
        ) from error
    _print_summary(RunSummary.of(runner, result, options), result_stream)
    return 0 if result.succeeded else 1


def _print_summary(summary: RunSummary, results: TextIO) -> None:
    """
    Print the summary of a run.

    Raises:
        QueenrightError: The output cannot be written, for a reason other than a closed reader.
    """
    if summary.options.as_json:
        print(json.dumps(summary.to_json(), ensure_ascii=False, indent=2), file=results)
    else:
        summary.print_text(results)
    results.flush()
    if next_step := summary.describe_next_step():
        print(next_step, file=sys.stderr)
    if (write_failure := get_write_error(results)) is not None:
        raise QueenrightError(f"cannot write the result to stdout: {write_failure.strerror}")


async def _run(
    runner: AgentRunner, lifecycle: Lifecycle, options: RunOptions, input_data: dict[str, Any]
) -> ExecutionResult:
    """Print progress and pass input; pause on a signal, or when stdin ends and the agent needs input."""
    out = sys.stderr if options.as_json else sys.stdout
    pause = PauseOnSignal(options.resume_command, options.resume or "")
    pause.install()
    stop = pause.stop
    try:
        for warning in (await asyncio.to_thread(runner.validate)).warnings:
            print(f"warning: {warning}", file=sys.stderr)
        runtime = await _start_unless_stopped(runner, stop)
        graph_id = runner.spec.graph.id
        if options.session:
            await runtime.disk.run(partial(runtime.session_store(graph_id).open, options.session))
        has_speaker_names = len(runner.info().client_facing) > 1
        progress = RunProgress(out, graph_id, has_speaker_names=has_speaker_names)
        prompt = InputPrompt(runtime, out)
        if options.approve_tools:
            runtime.set_approval_callback(prompt.approve)
        subscription = runtime.subscribe_to_events(progress.types, progress.handle_event, name="terminal")
        runtime.subscribe_to_events(pause.types, pause.handle_event, name="stopping", filter_graph=graph_id)
        if options.resume:
            execution_id = await runtime.resume(options.resume, graph_id)
        else:
            try:
                execution_id = await runtime.trigger(
                    options.entry_point or runner.default_entry_point,
                    input_data,
                    graph_id=graph_id,
                    session_id=options.session,
                )
            except InvalidInputError as error:
                raise UsageError(f"{error}. Pass the input with --input; no run started.") from error
        pause.execution_id = execution_id
        answer_task = asyncio.create_task(prompt.answer(progress.input_requests, stop))
        try:
            result = await _wait_or_pause(runtime, execution_id, stop)
            await runtime.bus.drain()
            return result
        finally:
            answer_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer_task
            subscription.cancel()
    finally:
        await runner.cleanup_async()
        await lifecycle.close()


async def _wait_or_pause(runtime: AgentRuntime, execution_id: str, stop: asyncio.Event) -> ExecutionResult:
    run_task = asyncio.create_task(runtime.wait(execution_id))
    if not await wait_unless_stopped(run_task, stop):
        await runtime.pause_execution(execution_id)
    return await run_task


async def _start_unless_stopped(runner: AgentRunner, stop: asyncio.Event) -> AgentRuntime:
    """Start the runtime, or raise if ``stop`` is set first."""
    task = asyncio.create_task(runner.start())
    if not await wait_unless_stopped(task, stop):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise QueenrightError("Stopped before the agent started; nothing was run.")
    return await task
