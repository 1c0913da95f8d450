"""Worker: what an agent says about itself, in three lines, without ever being troubled by it."""

from __future__ import annotations

import atexit
import inspect
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import REGISTRY, CollectorRegistry

from queenright.instrumentation import names
from queenright.instrumentation.control import ControlChannel, OnNudge, OnTerminate
from queenright.instrumentation.control_client import ControlClient, control_endpoint_of, preload_control
from queenright.instrumentation.harmless import harmless, notice
from queenright.instrumentation.identity import check_session_id, clean_name, new_id
from queenright.instrumentation.instructions import Instruction
from queenright.instrumentation.metrics import WorkerFamilies
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.pulse import PULSE
from queenright.instrumentation.redaction import mask_name
from queenright.instrumentation.run import Run
from queenright.instrumentation.step import Step
from queenright.instrumentation.steplog import STORAGE_ENV, StepLog, step_log_path
from queenright.instrumentation.telemetry import Telemetry, shared_telemetry

HEARTBEAT_SECONDS: Final = 300.0
"""Seconds between heartbeats at most, where nobody says otherwise."""

_current: ContextVar[Worker | None] = ContextVar("queenright_worker", default=None)

# Before the telemetry is closed, which registered earlier: the last spans are still to be sent.
atexit.register(PULSE.close_all)


def current_worker() -> Worker | None:
    """Return the worker that the calling task or thread works for; forked children inherit it."""
    return _current.get()


class Worker:
    """
    One run of a monitored agent.

    Use it as ``with Worker("deep_research_agent") as worker:`` or with ``async with``. Once it is made,
    nothing of it raises into the agent or waits for the network.

    Args:
        agent: The agent's logical name; a label of its metrics, so not an id. Control characters in it
            become blanks, and it is cut at 200 characters, as the service does; ``agent`` tells what it is.
        session_id: The run, made if left out; a restart of the same run passes the same.
        task_id: What the run is about, where that outlives the session; default the session.
        repeatable: Whether the task may be done again from its start by itself, where there is no checkpoint
            to go on from: what it has done by then does no harm if it is done twice.
        graph_id: The graph that the agent runs, if it runs one.
        framework: What the agent is built with.
        version: The agent's version.
        endpoint: Base URL for OTLP over HTTP; default ``OTEL_EXPORTER_OTLP_ENDPOINT``, then
            ``http://127.0.0.1:4318``.
        telemetry: Where spans and start records go instead; it is shared and not closed by the worker.
        registry: Where the metrics live; default prometheus-client's own.
        storage: Folder for ``sessions/{session_id}/logs/tool_logs.jsonl``; default ``QUEENRIGHT_STORAGE``;
            without either no step log is written.
        step_log: The step log's own path, where it does not lie below ``storage`` like that.
        incarnation_id: This life of the process, where several workers share one; made if left out.
        first_step: The number of the first step; above 0 where a run is taken up that had some.
        heartbeat_interval: Seconds between heartbeats at most.
        on_nudge: Is called with each reminder for this run, in a thread of the worker's own.
        on_terminate: Is called with the reason when the run is to stop, in a thread of the worker's own:
            saves what there is, stops, and returns the id of the checkpoint, if there is one.
        control: Whether instructions are fetched that no function takes, for ``instructions()``.
        control_endpoint: Base URL of the service's API, which they are fetched from; default
            ``QUEENRIGHT_ENDPOINT``, then ``http://127.0.0.1:8420``.
        clock: Returns seconds since the epoch.
        ids: Returns a new id.

    Raises:
        InvalidSessionIdError: the session id could not be the name of a directory.
        ValueError: the agent's name is empty or has nothing but control characters and blanks, or the
            heartbeat interval is not above zero.
        TypeError: ``on_nudge`` or ``on_terminate`` is no function, or an async one.
    """

    def __init__(
        self,
        agent: str,
        *,
        session_id: str | None = None,
        task_id: str = "",
        repeatable: bool = False,
        graph_id: str = "",
        framework: str = "queenright",
        version: str = "",
        endpoint: str | None = None,
        telemetry: Telemetry | None = None,
        registry: CollectorRegistry | None = None,
        storage: str | os.PathLike[str] | None = None,
        step_log: Path | None = None,
        incarnation_id: str | None = None,
        first_step: int = 0,
        heartbeat_interval: float = HEARTBEAT_SECONDS,
        on_nudge: OnNudge | None = None,
        on_terminate: OnTerminate | None = None,
        control: bool = False,
        control_endpoint: str | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        agent = clean_name(str(agent)) if agent else ""
        if not agent:
            raise ValueError("Worker needs the agent's name, such as Worker('deep_research_agent').")
        if not heartbeat_interval > 0:
            raise ValueError(f"heartbeat_interval must be above 0 seconds, not {heartbeat_interval!r}.")
        _check_function("on_nudge", on_nudge)
        _check_function("on_terminate", on_terminate)
        self.agent = agent
        self.session_id = check_session_id(session_id) if session_id is not None else ids()
        self.incarnation_id = mask_name(incarnation_id) if incarnation_id else ids()
        self._control: ControlChannel | None = None
        if control or on_nudge is not None or on_terminate is not None:
            self._control = self._channel(control_endpoint, on_nudge, on_terminate, control, clock)
        self._run = Run(
            agent=agent,
            session_id=self.session_id,
            incarnation_id=self.incarnation_id,
            graph_id=mask_name(graph_id),
            framework=mask_name(framework),
            version=mask_name(version),
            telemetry=telemetry or _telemetry(endpoint),
            families=_families(registry or REGISTRY),
            log=_step_log(step_log, storage or os.environ.get(STORAGE_ENV), self.session_id),
            heartbeat_interval=heartbeat_interval,
            clock=clock,
            task_id=task_id,
            repeatable=repeatable,
            control=self._control,
            first_step=first_step,
        )
        self._was: Token[Worker | None] | None = None

    def _channel(
        self,
        endpoint: str | None,
        on_nudge: OnNudge | None,
        on_terminate: OnTerminate | None,
        by_hand: bool,
        clock: Callable[[], float],
    ) -> ControlChannel | None:
        who = (self.agent, self.session_id, self.incarnation_id)
        with harmless:
            preload_control()
            base = control_endpoint_of(endpoint)
            return ControlChannel(
                lambda: ControlClient(base, *who),
                session_id=self.session_id,
                incarnation_id=self.incarnation_id,
                on_nudge=on_nudge,
                on_terminate=on_terminate,
                by_hand=by_hand,
                clock=clock,
            )
        return None

    def __repr__(self) -> str:
        return f"<Worker {self.agent!r} session {self.session_id!r} incarnation {self.incarnation_id!r}>"

    def start(self) -> None:
        """Begin the run, where no ``with`` block does."""
        with harmless:
            self._run.start()

    def make_current(self) -> None:
        """Be ``current_worker()`` of this task, and of those that it begins, for as long as it lasts."""
        _current.set(self)

    def close(self, error: BaseException | None = None, *, paused: bool = False) -> None:
        """
        End the run, as failed if there is an ``error``; a second time does nothing.

        ``paused`` says that it is not over: another incarnation will go on with the session.
        """
        with harmless:
            self._run.close(error, paused=paused)

    def step(self, node: str = "agent") -> Step:
        """Return a block around one step of ``node``."""
        return Step(self._run, node)

    @contextmanager
    def waiting(self, reason: WaitingReason | str) -> Iterator[None]:
        """
        Say that the worker is rightly idle while the block runs.

        Args:
            reason: user_input, paused, children, backoff or done; it stops the stall clock.
        """
        waits = False
        with harmless:
            try:
                known = WaitingReason(str(reason).lower())
            except ValueError:
                notice(
                    "Queenright knows no reason %r to wait; it is one of %s.",
                    reason,
                    ", ".join(WaitingReason),
                )
            else:
                self._run.touch()
                self._run.wait(known)
                waits = True
        try:
            yield
        finally:
            with harmless:
                if waits:
                    self._run.wait_over()

    def checkpoint(self, checkpoint_id: str = "") -> None:
        """Say that the worker's state was saved, which is progress."""
        with harmless:
            self._run.touch()
            self._run.checkpoint(checkpoint_id)

    def heartbeat(self, progress: str = "") -> None:
        """
        Say that the process lives, beyond the beats that are sent by themselves.

        Args:
            progress: How far the work is, in the worker's own words; said with every beat from then on.
        """
        with harmless:
            self._run.touch()
            self._run.heartbeat(progress)

    def output(
        self,
        *,
        files_changed: int | None = None,
        tests_passed: int | None = None,
        tests_failed: int | None = None,
    ) -> None:
        """
        Say what the work has brought so far: whole counts, not what was added since the last time.

        Args:
            files_changed: Files that are not as they were at the beginning.
            tests_passed: Tests that pass now.
            tests_failed: Tests that fail now.
        """
        with harmless:
            told = {
                names.OUTPUT_FILES_CHANGED: files_changed,
                names.OUTPUT_TESTS_PASSED: tests_passed,
                names.OUTPUT_TESTS_FAILED: tests_failed,
            }
            self._run.touch()
            self._run.output({key: _count(value) for key, value in told.items() if value is not None})

    def resource(self, name: str, *, used: float, limit: float) -> None:
        """
        Say how much of a resource the work has used, and how much there is.

        Args:
            name: What it is: ``memory``, ``disk``, or the name of a quota.
            used: How much is used now, in any unit.
            limit: How much there is, in the same unit; more than 0.
        """
        with harmless:
            used, limit = float(used), float(limit)
            if not (0 <= used < math.inf and 0 < limit < math.inf):
                raise ValueError(f"resource {name!r}: used is {used:g} and limit {limit:g}; give amounts")
            self._run.touch()
            self._run.report(
                names.EVENT_RESOURCE,
                {names.RESOURCE_NAME: name, names.RESOURCE_USED: used, names.RESOURCE_LIMIT: limit},
            )

    def circuit_breaker(self, name: str, state: Literal["open", "half_open", "closed"]) -> None:
        """
        Say that a circuit breaker of this process has changed its state.

        Args:
            name: What it stands before.
            state: How it is now.
        """
        with harmless:
            self._run.touch()
            self._run.report(names.EVENT_BREAKER, {names.BREAKER_NAME: name, names.BREAKER_STATE: str(state)})

    def instructions(self) -> list[Instruction]:
        """
        Return what the service has told this run and no function took, oldest first, each once; never waits.

        A nudge counts as delivered with that, a termination once the run has ended.
        """
        with harmless:
            self._run.touch()
            return self._control.take() if self._control is not None else []
        return []

    def facts(self) -> dict[str, Any]:
        """Return what a heartbeat tells of this run, by the keys of ``agent_heartbeat``."""
        with harmless:
            return self._run.facts()
        return {}

    def __enter__(self) -> Self:
        self.start()
        self._was = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)
        if self._was is not None:
            try:
                _current.reset(self._was)
            except ValueError:  # left in another task than it was entered in
                return

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def _check_function(name: str, function: object) -> None:
    if function is None:
        return
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{name} must be a plain function, which is called in a thread of its own, not {function!r}; "
            "from there, loop.call_soon_threadsafe reaches an event loop."
        )


def _count(value: int) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(f"a count of output must be at least 0, not {value!r}")
    return count


def _telemetry(endpoint: str | None) -> Telemetry:
    with harmless:
        return shared_telemetry(endpoint)
    return Telemetry(tracer_provider=NoOpTracerProvider())


def _families(registry: CollectorRegistry) -> WorkerFamilies:
    with harmless:
        return WorkerFamilies.of(registry)
    # The application has metrics of these names itself: the worker keeps its own to itself.
    return WorkerFamilies.of(CollectorRegistry())


def _step_log(path: Path | None, storage: str | os.PathLike[str] | None, session_id: str) -> StepLog | None:
    with harmless:
        if path is None and storage:
            path = step_log_path(Path(storage), session_id)
        return StepLog(path) if path is not None else None
    return None
