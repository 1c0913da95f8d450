"""
Wrappers that put a circuit breaker around calls: a method, a decorator and a ``with`` block.

`state_machine` decides when a breaker opens and closes.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from queenright.health.breakers.state_machine import Admission, BreakerMachine, BreakerState
from queenright.health.settings import BreakerSettings
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.worker import current_worker
from queenright.runtime.breaker_protocols import CallRefusedError
from queenright.runtime.events import Clock

P = ParamSpec("P")
T = TypeVar("T")

FailureFilter = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
"""The exceptions that are failures: classes, or a predicate."""

_TEXT_LIMIT: Final = 200


class CircuitOpenError(CallRefusedError):
    """
    Raised instead of a call while a breaker is open.

    ``name`` is the breaker's name, ``reason`` says why it opened, and ``retry_in`` is the number of seconds
    until a retry makes sense.
    """

    def __init__(self, name: str, state: BreakerState, reason: str, *, retry_in: float) -> None:
        if state is BreakerState.OPEN:
            when = f"Retry in {retry_in:.0f} s, or reset it."
        else:
            when = f"Probes are in progress; retry in {retry_in:.0f} s at the latest."
        super().__init__(
            f"circuit breaker {name!r} is {state.replace('_', ' ')} ({reason}). {when}", retry_in=retry_in
        )
        self.name = name
        self.state = state
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatus:
    """The state of a breaker. Times are in seconds since the epoch."""

    name: str
    kind: str
    agent_id: str
    target: str
    state: BreakerState
    failures: int
    """Consecutive failures."""
    threshold: int
    """The number of consecutive failures that opens it."""
    reason: str
    """Why it is in this state; empty if nothing has happened yet."""
    opened_at: float | None
    """When it opened; None while it is closed."""
    half_open_at: float | None
    """When it becomes, or became, half open; None while it is closed."""
    session_id: str = ""
    """The session whose process holds the breaker; empty for the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChange:
    """A change of state at ``at``, in seconds since the epoch, after ``failures`` consecutive failures."""

    at: float
    before: BreakerState
    failures: int
    status: BreakerStatus


def report_change(change: BreakerChange) -> None:
    """
    Report a change of state in the telemetry of the worker whose call caused it, if there is one.

    Pass it as ``on_change`` in processes that Queenright does not run.
    """
    worker = current_worker()
    if worker is not None:
        worker.circuit_breaker(change.status.name, change.status.state.value)


class CircuitBreaker:
    """
    A breaker around calls, for any number of threads and tasks.

    Args:
        policy: When it opens and for how long.
        agent_id: The worker that calls; empty for any.
        parents: Shared breakers. A call needs the permission of each, and each gets its outcome. They must
            have the same ``lock``; a registry ensures that.
        failure_filter: The exceptions that are failures. Others, such as cancellation, are neither success
            nor failure.
        lock: Held for microseconds around every change.
        on_change: Called with each change of state, in order, from any thread and with the lock held. It
            must be quick and must not raise.
    """

    def __init__(
        self,
        name: str,
        policy: BreakerSettings | None = None,
        *,
        kind: str = "",
        agent_id: str = "",
        target: str = "",
        parents: Sequence[CircuitBreaker] = (),
        failure_filter: FailureFilter = Exception,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
        lock: AbstractContextManager[Any] | None = None,
        on_change: Callable[[CircuitBreaker, BreakerChange], None] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.agent_id = agent_id
        self.target = target
        self.parents = tuple(parents)
        self._machine = BreakerMachine(policy or BreakerSettings())
        self._failure_filter = failure_filter
        self._clock = clock
        self._monotonic = monotonic
        if lock is None:
            lock = threading.RLock()
        self._lock: AbstractContextManager[Any] = lock
        self._on_change = on_change
        self._opened_at: float | None = None
        self._half_open_at: float | None = None

    def __repr__(self) -> str:
        return f"CircuitBreaker({self.name!r}, {self._machine.state.value})"

    # -- state ----------------------------------------------------------------------------------

    @property
    def state(self) -> BreakerState:
        """The current state."""
        return self._machine.state

    @property
    def status(self) -> BreakerStatus:
        """A snapshot of the breaker."""
        with self._lock:
            return self._status()

    @property
    def open_for(self) -> float | None:
        """The remaining seconds until it becomes half-open, or None if it is not open."""
        with self._lock:
            machine = self._machine
            return machine.open_for(self._monotonic()) if machine.state is BreakerState.OPEN else None

    @property
    def is_untouched(self) -> bool:
        """Whether it is closed and has no recent failures."""
        return self._machine.state is BreakerState.CLOSED and not self._machine.failures

    # -- permission and outcome -------------------------------------------------------------------

    def admit(self) -> CallPermit:
        """
        Return a permit for one call.

        Raises:
            CircuitOpenError: The breaker or one of its parents refuses.
        """
        with self._lock:
            breakers = (self, *self.parents)
            now = self._monotonic()
            for breaker in breakers:
                # Check all before changing any, so that a refused call takes no probe slot of another
                # breaker.
                if (remaining := breaker._machine.retry_in(now)) is not None:
                    machine = breaker._machine
                    raise CircuitOpenError(breaker.name, machine.state, machine.reason, retry_in=remaining)
            admissions = []
            for breaker in breakers:
                before, failures = breaker._machine.state, breaker._machine.failures
                admission = breaker._machine.admit(now)
                assert admission is not None  # checked above
                admissions.append((breaker, admission))
                breaker._notify_change(before, failures)
        return CallPermit(self._lock, admissions)

    def half_open_if_due(self) -> bool:
        """Become half-open if the timeout has passed, and return whether it did."""
        with self._lock:
            before, failures = self._machine.state, self._machine.failures
            has_changed = self._machine.half_open_if_due(self._monotonic())
            self._notify_change(before, failures)
        return has_changed

    def reset(self, by: str, reason: str = "") -> bool:
        """Close the breaker manually. Return False if it was closed already. Its parents are unchanged."""
        cause = f"reset by {by}" + (f": {redact(reason, _TEXT_LIMIT)}" if reason else "")
        with self._lock:
            before, failures = self._machine.state, self._machine.failures
            has_changed = self._machine.reset(cause)
            self._notify_change(before, failures)
        return has_changed

    def restore(self, status: BreakerStatus) -> None:
        """
        Restore the state that a former process saved. An open breaker stays open for the rest of its timeout.
        """
        with self._lock:
            remaining = (status.half_open_at or 0.0) - self._clock()
            self._machine.restore(
                status.state,
                failures=status.failures,
                reason=status.reason,
                open_for=remaining,
                now=self._monotonic(),
            )
            self._opened_at, self._half_open_at = status.opened_at, status.half_open_at
            if status.state is BreakerState.OPEN:
                self._half_open_at = self._clock() + self._machine.open_for(self._monotonic())

    def _record(self, admission: Admission, error: BaseException | str | None) -> None:
        before, failures = self._machine.state, self._machine.failures
        if error is None:
            self._machine.record_success(admission)
        else:
            self._machine.record_failure(admission, self._monotonic(), _describe(error))
        self._notify_change(before, max(failures, self._machine.failures))

    def _notify_change(self, before: BreakerState, failures: int) -> None:
        """Call ``on_change`` if the state has changed."""
        state = self._machine.state
        if state is before:
            return
        now = self._clock()
        if state is BreakerState.OPEN:
            self._opened_at = now
            self._half_open_at = now + self._machine.policy.recovery_timeout_seconds
        elif state is BreakerState.CLOSED:
            self._opened_at = self._half_open_at = None
        if self._on_change is not None:
            self._on_change(
                self, BreakerChange(at=now, before=before, failures=failures, status=self._status())
            )

    def _status(self) -> BreakerStatus:
        machine = self._machine
        return BreakerStatus(
            name=self.name,
            kind=self.kind,
            agent_id=self.agent_id,
            target=self.target,
            state=machine.state,
            failures=machine.failures,
            threshold=machine.policy.failure_threshold,
            reason=machine.reason,
            opened_at=self._opened_at,
            half_open_at=self._half_open_at,
        )

    # -- calls ------------------------------------------------------------------------------------

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call ``function`` and return its result.

        Raises:
            CircuitOpenError: The breaker refuses; the function was not called.
            TypeError: The function is async; use ``acall``.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{getattr(function, '__qualname__', function)!r} is async: use acall()")
        with self._guard_call():
            return function(*args, **kwargs)

    async def acall(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call an async ``function`` and return its result.

        Raises:
            CircuitOpenError: The breaker refuses; the function was not called.
        """
        with self._guard_call():
            return await function(*args, **kwargs)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """
        Decorate a sync or async ``function`` with this breaker.

        Raises:
            TypeError: The function is a generator, whose body has not run when the call returns.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__qualname__", repr(function))
            raise TypeError(f"{name} is a generator: use `with breaker:` inside it instead")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.acall(function, *args, **kwargs)

            return cast(Callable[P, T], call_async)

        @functools.wraps(function)
        def call_sync(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.call(function, *args, **kwargs)

        return call_sync

    @contextmanager
    def _guard_call(self) -> Iterator[None]:
        """
        Guard one call. Unlike ``with self``, it may be exited in another context than it was entered in.
        """
        permit = self.admit()
        try:
            yield
        except BaseException as error:
            self._settle(permit, error)
            raise
        self._settle(permit, None)

    def __enter__(self) -> CircuitBreaker:
        """Enter if the breaker allows it, otherwise raise ``CircuitOpenError``."""
        _ACTIVE_BLOCKS.set((*_ACTIVE_BLOCKS.get(), (self, self.admit())))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the outcome of the block."""
        blocks = _ACTIVE_BLOCKS.get()
        for index in range(len(blocks) - 1, -1, -1):
            breaker, permit = blocks[index]
            if breaker is self:
                _ACTIVE_BLOCKS.set((*blocks[:index], *blocks[index + 1 :]))
                self._settle(permit, error)
                return

    async def __aenter__(self) -> CircuitBreaker:
        """Enter if the breaker allows it, otherwise raise ``CircuitOpenError``."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the outcome of the block."""
        self.__exit__(kind, error, trace)

    def _settle(self, permit: CallPermit, error: BaseException | None) -> None:
        if error is None:
            permit.record_success()
        elif self._is_failure(error):
            permit.record_failure(error)
        else:
            permit.release()

    def _is_failure(self, error: BaseException) -> bool:
        if isinstance(error, CallRefusedError):
            return False  # refused by an inner breaker: nothing was called
        if isinstance(self._failure_filter, type | tuple):
            return isinstance(error, self._failure_filter)
        return self._failure_filter(error)


class CallPermit:
    """The permission for one call. Only the first report of its outcome counts."""

    __slots__ = ("_admissions", "_lock")

    def __init__(
        self, lock: AbstractContextManager[Any], admissions: Sequence[tuple[CircuitBreaker, Admission]]
    ) -> None:
        self._lock = lock
        self._admissions = admissions

    def record_success(self) -> None:
        """Report a success."""
        self._report(None)

    def record_failure(self, error: BaseException | str) -> None:
        """Report a failure."""
        self._report(error)

    def release(self) -> None:
        """Report an outcome that counts as neither success nor failure."""
        with self._lock:
            for breaker, admission in self._admissions:
                breaker._machine.release(admission)
            self._admissions = ()

    def _report(self, error: BaseException | str | None) -> None:
        with self._lock:
            admissions, self._admissions = self._admissions, ()
            for breaker, admission in admissions:
                breaker._record(admission, error)


# The `with` blocks that this task or thread is in. It may enter the same breaker several times.
_ACTIVE_BLOCKS: ContextVar[tuple[tuple[CircuitBreaker, CallPermit], ...]] = ContextVar(
    "active breaker blocks", default=()
)


def _describe(error: BaseException | str) -> str:
    """Return an error as one line, with secrets masked."""
    if isinstance(error, str):
        return redact(error, _TEXT_LIMIT) or "the call failed"
    try:
        message = redact(str(error), _TEXT_LIMIT)
    except Exception:  # the exception's own ``__str__`` may fail
        message = ""
    name = type(error).__name__
    return " ".join(f"{name}: {message}".split()) if message else name
