"""Work in forks, threads, tasks and pools is reported for the worker that it belongs to."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker, current_step, current_worker, names
from tests.instrumentation.parts import Memory, Otlp, Script, read_attributes


def list_worker_names(memory: Memory) -> set[tuple[str, str]]:
    """Return the tool and agent of each tool call. In these tests, a tool has the name of its agent."""
    return {
        (span.attributes[names.GEN_AI_AGENT_NAME], span.attributes[names.GEN_AI_TOOL_NAME])
        for span in memory.spans
        if names.GEN_AI_TOOL_NAME in span.attributes
    }


async def test_tasks_keep_their_workers_apart(
    telemetry: Telemetry, registry: CollectorRegistry, memory: Memory
) -> None:
    """B82: a hundred workers run in one event loop."""

    async def run_worker(agent: str) -> None:
        async with Worker(agent, telemetry=telemetry, registry=registry) as worker:
            for _ in range(3):
                async with worker.step("forager") as step:
                    await asyncio.sleep(0)
                    assert current_worker() is worker
                    assert current_step() is step
                    async with step.tool(agent):
                        await asyncio.sleep(0)

    await asyncio.gather(*(run_worker(f"bee-{number}") for number in range(100)))

    telemetry.flush()
    assert list_worker_names(memory) == {(f"bee-{number}", f"bee-{number}") for number in range(100)}
    parents = {span.get_span_context().span_id: span for span in memory.spans}
    for span in memory.spans:
        if span.name.startswith("execute_tool"):
            parent_attributes = parents[span.parent.span_id].attributes
            assert parent_attributes[names.GEN_AI_AGENT_NAME] == span.attributes[names.GEN_AI_AGENT_NAME]


def test_threads_keep_their_workers_apart(
    telemetry: Telemetry, registry: CollectorRegistry, memory: Memory
) -> None:
    """B82: each thread has a worker, and the tool calls of a step run in several threads."""
    barrier = threading.Barrier(8)

    def run_worker(agent: str) -> None:
        with Worker(agent, telemetry=telemetry, registry=registry) as worker, worker.step("forager") as step:
            barrier.wait(10)

            def call() -> None:
                with step.tool(agent):
                    pass

            with ThreadPoolExecutor(4) as pool:
                for future in [pool.submit(call) for _ in range(8)]:
                    future.result()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(run_worker, f"bee-{number}") for number in range(8)]:
            future.result()

    telemetry.flush()
    assert list_worker_names(memory) == {(f"bee-{number}", f"bee-{number}") for number in range(8)}
    assert sum(span.name.startswith("execute_tool") for span in memory.spans) == 64


async def test_block_exited_in_another_task_is_still_reported(
    telemetry: Telemetry, registry: CollectorRegistry, memory: Memory
) -> None:
    """B81: a generator that is closed in another task raises nothing."""
    worker = Worker("bee", telemetry=telemetry, registry=registry)
    step = worker.step("forager")
    await asyncio.create_task(worker.__aenter__())
    await asyncio.create_task(step.__aenter__())

    await step.__aexit__(None, None, None)
    await worker.__aexit__(None, None, None)

    telemetry.flush()
    assert [span.name for span in memory.spans] == ["step forager", "invoke_agent bee"]


def test_forked_child_reports_for_the_worker_without_ending_it(run_script: Script, otlp: Otlp) -> None:
    """B82: the steps of a child are reported once, for its parent's run, and the run ends once."""
    result = run_script(
        """
import os
from queenright.instrumentation import Worker, flush
with Worker("bee", session_id="s1") as worker:
    with worker.step("parent"):
        pass
    pid = os.fork()
    if pid == 0:
        with worker.step("child"):
            pass
        flush()
        raise SystemExit(0)
    os.waitpid(pid, 0)
    with worker.step("parent"):
        pass
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(span.name for span in otlp.spans) == [
        "invoke_agent bee",
        "step child",
        "step parent",
        "step parent",
    ]
    assert len({read_attributes(span)[names.INCARNATION_ID] for span in otlp.spans}) == 1
    assert len({span.trace_id for span in otlp.spans}) == 1
    assert len({span.span_id for span in otlp.spans}) == 4


def test_daemon_ends_the_run_after_its_parent_exits(run_script: Script, otlp: Otlp, tmp_path: object) -> None:
    """B82: a process that continues in its child is still the same worker."""
    result = run_script(
        """
import os, time
from queenright.instrumentation import Worker
with Worker("bee") as worker:
    if os.fork():
        os._exit(0)
    deadline = time.monotonic() + 5
    parent = os.getppid()
    with worker.step("daemon"):
        while os.getppid() == worker._run._process and time.monotonic() < deadline:
            time.sleep(0.01)
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(span.name for span in otlp.spans) == ["invoke_agent bee", "step daemon"]


def test_pool_processes_report_for_the_worker_that_created_them(run_script: Script, otlp: Otlp) -> None:
    """B82: work in a pool process is reported before the process ends."""
    result = run_script(
        """
import multiprocessing
from queenright.instrumentation import Worker, current_worker
def act(number):
    with current_worker().step("pool") as step:
        with step.tool("search", {"n": number}) as call:
            call.result(number)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with Worker("bee", session_id="s1"):
        with context.Pool(2) as pool:
            pool.map(act, range(6), chunksize=1)
            pool.close()
            pool.join()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert sum(span.name == "execute_tool search" for span in otlp.spans) == 6
    assert {read_attributes(span)[names.GEN_AI_CONVERSATION_ID] for span in otlp.spans} == {"s1"}
    assert sum(span.name == "invoke_agent bee" for span in otlp.spans) == 1


def test_idle_child_sends_no_heartbeat(run_script: Script, otlp: Otlp) -> None:
    """B82: only a process that works for the worker sends its heartbeats."""
    result = run_script(
        """
import os, time
from queenright.instrumentation import Worker, flush
with Worker("bee", heartbeat_interval=0.05) as worker:
    flush()
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        from queenright.instrumentation.ticker import TICKER
        os._exit(len(TICKER._members))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.stdout.strip(), result.stderr) == ("0", "")
