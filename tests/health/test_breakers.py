"""Circuit breakers: the state machine alone, and around calls of threads and tasks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from queenright.health.breakers import (
    BreakerChange,
    BreakerMachine,
    BreakerState,
    CircuitBreaker,
    CircuitOpenError,
)
from queenright.health.breakers.state_machine import Admission
from queenright.health.settings import BreakerSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.breaker_protocols import CallRefusedError

CLOSED, OPEN, HALF_OPEN = BreakerState
POLICY = BreakerSettings(failure_threshold=3, recovery_timeout_seconds=60, half_open_requests=1)


class Bench:
    """A breaker, its clocks, and the changes that it reported."""

    def __init__(self, policy: BreakerSettings = POLICY, **more: Any) -> None:
        self.now = 0.0
        self.wall = 1_000.0
        self.changes: list[BreakerChange] = []
        self.breaker = CircuitBreaker(
            "tool_execution:bee:search",
            policy,
            clock=lambda: self.wall,
            monotonic=lambda: self.now,
            on_change=lambda _, change: self.changes.append(change),
            **more,
        )

    def fails(self, times: int = 1, error: BaseException | None = None) -> None:
        for _ in range(times):
            self.breaker.admit().record_failure(error or OSError("no route"))

    def path(self) -> list[str]:
        return [f"{change.before}>{change.status.state}" for change in self.changes]


def admissions(machine: BreakerMachine, now: float) -> Iterator[Admission]:
    while (admission := machine.admit(now)) is not None:
        yield admission


def test_consecutive_failures_open_the_breaker_and_a_success_resets_them() -> None:
    bench = Bench()

    bench.fails(2)
    bench.breaker.admit().record_success()
    bench.fails(2)
    assert bench.breaker.state is CLOSED
    bench.fails()

    assert bench.breaker.state is OPEN
    assert bench.path() == ["closed>open"]
    assert bench.changes[0].failures == 3
    assert all(part in bench.changes[0].status.reason for part in ("3 failures", "OSError: no route"))


def test_002_section_11_open_breaker_stops_calls() -> None:
    """002 §11: an open breaker stops every call, and the caller gets the reason immediately."""
    bench = Bench()
    reached = 0

    def broken() -> None:
        nonlocal reached
        reached += 1
        raise OSError("no route")

    for _ in range(100):
        with pytest.raises((OSError, CircuitOpenError)):
            bench.breaker.call(broken)

    assert reached == 3


def test_refusal_names_breaker_reason_and_retry_time() -> None:
    bench = Bench()
    bench.fails(3)
    bench.now += 12

    with pytest.raises(CircuitOpenError) as error:
        bench.breaker.admit()

    assert all(
        part in str(error.value) for part in ("'tool_execution:bee:search'", "OSError: no route", "48 s")
    )
    assert (error.value.name, error.value.retry_in) == ("tool_execution:bee:search", 48)
    assert isinstance(error.value, CallRefusedError)
    assert isinstance(error.value, QueenrightError)


def test_b73_open_breaker_closes_after_its_timeout_and_successful_probes() -> None:
    """B73: after the recovery timeout, the next call is a probe, and its success closes the breaker."""
    bench = Bench()
    bench.fails(3)

    bench.now += 60
    assert bench.breaker.state is OPEN
    bench.breaker.admit().record_success()

    assert bench.path() == ["closed>open", "open>half_open", "half_open>closed"]
    assert bench.breaker.is_untouched
    assert bench.breaker.status.opened_at is None


def test_b73_open_breaker_is_reset_by_hand() -> None:
    """B73: a reset closes the breaker at once, and outcomes of calls that began before it are ignored."""
    bench = Bench()
    late = bench.breaker.admit()
    bench.fails(3)

    assert bench.breaker.reset("anna", "the network is back")
    late.record_failure("too late")

    assert bench.breaker.is_untouched
    assert all(part in bench.changes[-1].status.reason for part in ("anna", "the network is back"))
    assert not bench.breaker.reset("anna")


def test_failed_probe_reopens_the_breaker_for_a_full_timeout() -> None:
    bench = Bench()
    bench.fails(3)
    bench.now += 60

    bench.breaker.admit().record_failure("still no route")

    assert bench.path()[-1] == "half_open>open"
    assert bench.breaker.open_for == 60
    assert bench.breaker.status.reason.endswith("still no route")


@pytest.mark.parametrize("quota", [1, 3])
def test_b73_of_fifty_threads_exactly_the_quota_passes(quota: int) -> None:
    """B73: fifty threads call through a half-open breaker at the same time."""
    bench = Bench(BreakerSettings(half_open_requests=quota))
    bench.fails(3)
    bench.now += 60
    together = threading.Barrier(50)

    def ask() -> bool:
        together.wait(10)
        try:
            bench.breaker.admit()
        except CircuitOpenError:
            return False
        return True

    with ThreadPoolExecutor(50) as threads:
        passed = [task.result() for task in [threads.submit(ask) for _ in range(50)]]

    assert sum(passed) == quota
    assert bench.path() == ["closed>open", "open>half_open"]


@pytest.mark.parametrize("quota", [1, 3])
async def test_b73_of_fifty_tasks_exactly_the_quota_is_called(quota: int) -> None:
    """B73: fifty tasks call through a half-open breaker while the first probe runs."""
    bench = Bench(BreakerSettings(half_open_requests=quota))
    bench.fails(3)
    bench.now += 60
    answer = asyncio.Event()
    called = 0

    async def probe() -> None:
        nonlocal called
        called += 1
        await answer.wait()

    tasks = [asyncio.create_task(bench.breaker.acall(probe)) for _ in range(50)]
    await asyncio.sleep(0)
    answer.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert called == quota
    assert sum(isinstance(error, CircuitOpenError) for error in ended) == 50 - quota
    assert bench.breaker.state is CLOSED


async def test_cancelled_probe_releases_its_permit() -> None:
    bench = Bench()
    bench.fails(3)
    bench.now += 60
    probe = asyncio.create_task(bench.breaker.acall(asyncio.Event().wait))
    await asyncio.sleep(0)
    with pytest.raises(CircuitOpenError, match=r"half open .* Probes are in progress; retry in 60 s"):
        bench.breaker.admit()

    probe.cancel()
    await asyncio.wait([probe])

    assert bench.breaker.state is HALF_OPEN
    bench.breaker.admit().record_success()
    assert bench.breaker.state is CLOSED


async def test_probe_closed_from_another_context_releases_its_permit() -> None:
    bench = Bench()
    bench.fails(3)
    bench.now += 60
    probe = cast(Coroutine[Any, Any, bool], bench.breaker.acall(asyncio.Event().wait))
    contextvars.copy_context().run(probe.send, None)

    probe.close()

    bench.breaker.admit().record_success()
    assert bench.breaker.state is CLOSED


def test_lost_probe_is_replaced_after_one_timeout() -> None:
    bench = Bench()
    bench.fails(3)
    bench.now += 60
    lost = bench.breaker.admit()
    bench.now += 59
    with pytest.raises(CircuitOpenError) as error:
        bench.breaker.admit()
    assert error.value.retry_in == 1
    bench.now += 1

    bench.breaker.admit()
    with pytest.raises(CircuitOpenError):
        bench.breaker.admit()
    lost.record_success()  # slow, but a success

    assert bench.breaker.state is CLOSED


def test_outcome_from_before_opening_is_ignored() -> None:
    bench = Bench()
    slow = [bench.breaker.admit() for _ in range(3)]
    bench.fails(3)
    bench.now += 60
    probe = bench.breaker.admit()

    slow[0].record_failure("old")
    slow[1].record_success()
    assert bench.breaker.state is HALF_OPEN
    probe.record_success()
    slow[2].record_failure("old")

    assert bench.breaker.is_untouched


def test_only_the_first_outcome_of_a_call_counts() -> None:
    bench = Bench()
    permit = bench.breaker.admit()

    for _ in range(5):
        permit.record_failure("again")

    assert bench.breaker.status.failures == 1


@pytest.mark.parametrize("jump", [-1e9, -61.0, -0.5])
def test_clock_set_back_blocks_for_at_most_one_timeout(jump: float) -> None:
    bench = Bench()
    bench.now = 2e9
    bench.fails(3)

    bench.now += jump

    with pytest.raises(CircuitOpenError) as error:
        bench.breaker.admit()
    assert 0 < error.value.retry_in <= 60


def test_wall_clock_moves_nothing() -> None:
    bench = Bench()
    bench.fails(3)

    bench.wall += 1e9

    assert bench.breaker.open_for == 60
    assert (bench.breaker.status.opened_at, bench.breaker.status.half_open_at) == (1_000.0, 1_060.0)


# -- around calls -----------------------------------------------------------------------------------


def raises(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "failure_filter", "failures"),
    [
        (OSError("x"), Exception, 1),
        (asyncio.CancelledError(), Exception, 0),
        (KeyboardInterrupt(), Exception, 0),
        (SystemExit(), Exception, 0),
        (ValueError("x"), OSError, 0),
        (ValueError("x"), (OSError, ValueError), 1),
        (OSError(28, "full"), lambda error: getattr(error, "errno", 0) == 28, 1),
        (OSError(2, "none"), lambda error: getattr(error, "errno", 0) == 28, 0),
        (CircuitOpenError("inner", OPEN, "x", retry_in=1), Exception, 0),
    ],
)
def test_failure_exceptions_are_configurable(
    error: BaseException, failure_filter: Any, failures: int
) -> None:
    bench = Bench(failure_filter=failure_filter)

    with pytest.raises(type(error)):
        bench.breaker.call(raises, error)

    assert bench.breaker.status.failures == failures


async def test_plain_and_async_functions_are_decorated() -> None:
    bench = Bench()

    @bench.breaker
    def plain(n: int) -> int:
        """Say n."""
        return 10 // n

    @bench.breaker
    async def later(n: int, *, more: int = 0) -> int:
        await asyncio.sleep(0)
        return 10 // n + more

    assert (plain(5), await later(5, more=1)) == (2, 3)
    assert (plain.__name__, plain.__doc__) == ("plain", "Say n.")
    assert asyncio.iscoroutinefunction(later)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            plain(0)
    with pytest.raises(ZeroDivisionError):
        await later(0)
    with pytest.raises(CircuitOpenError):
        plain(5)
    with pytest.raises(CircuitOpenError):
        await later(5)


def test_unguardable_function_is_refused() -> None:
    bench = Bench()

    async def later() -> None: ...

    def parts() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="parts is a generator: use `with breaker:` inside it"):
        bench.breaker(parts)
    with pytest.raises(TypeError, match="is async: use acall"):
        bench.breaker.call(later)  # type: ignore[unused-coroutine]


async def test_breaker_is_a_reusable_context_manager() -> None:
    bench = Bench()
    together = asyncio.Barrier(10)

    async def work(n: int) -> None:
        async with bench.breaker:
            with bench.breaker:  # nested
                await together.wait()
            if n % 2:
                raise OSError(n)

    ended = await asyncio.gather(*(work(n) for n in range(10)), return_exceptions=True)

    assert [type(end) for end in ended] == [type(None), OSError] * 5
    assert bench.breaker.state in (CLOSED, OPEN)
    bench.breaker.reset("test")
    for _ in range(3):
        with pytest.raises(OSError, match="x"), bench.breaker:
            raise OSError("x")
    with pytest.raises(CircuitOpenError), bench.breaker:
        pytest.fail("it is open")


def test_breaker_reason_is_masked_and_bounded() -> None:
    class VerboseError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    bench = Bench(BreakerSettings(failure_threshold=1))
    bench.fails(error=OSError("password=hunter2hunter2 " + "x" * 10_000))
    reason = bench.breaker.status.reason
    bench.breaker.reset("test")
    bench.fails(error=VerboseError())

    assert "hunter2" not in reason
    assert len(reason) < 300
    assert bench.breaker.status.reason == "1 failure: VerboseError"


class Machine(RuleBasedStateMachine):
    """Invariants for any sequence of calls, outcomes and times."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = BreakerSettings(failure_threshold=3, recovery_timeout_seconds=60, half_open_requests=2)
        self.machine = BreakerMachine(self.policy)
        self.now = 0.0
        self.out: list[Admission] = []
        self.opened = 0.0

    def step(self, work: Callable[[], object]) -> None:
        before = self.machine.state
        work()
        after = self.machine.state
        assert (before, after) != (CLOSED, HALF_OPEN)
        if before is OPEN and after is HALF_OPEN:
            assert self.now - self.opened >= 60
        if after is OPEN and before is not OPEN:
            self.opened = self.now

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 59.9, 60.0, 3600.0]))
    def time_goes_by(self, seconds: float) -> None:
        before = self.machine.state
        self.now += seconds
        assert self.machine.state is before

    @rule()
    def call(self) -> None:
        admitted = self.machine.retry_in(self.now) is None
        before = self.machine.state

        def work() -> None:
            admission = self.machine.admit(self.now)
            assert (admission is not None) == admitted
            if admission is not None:
                self.out.append(admission)

        self.step(work)
        assert admitted or before is not CLOSED

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(["record_success", "record_failure", "release"]))
    def end(self, data: st.DataObject, how: str) -> None:
        admission = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        more = (self.now, "x") if how == "record_failure" else ()
        was = self.machine.state
        self.step(lambda: getattr(self.machine, how)(admission, *more))
        if how == "release":
            assert self.machine.state is was

    @rule()
    def reset(self) -> None:
        self.step(lambda: self.machine.reset("by hand"))
        assert self.machine.state is CLOSED
        assert self.machine.failures == 0

    @invariant()
    def bounds(self) -> None:
        machine = self.machine
        left = machine.retry_in(self.now)
        assert machine.failures >= 0
        assert 0 <= machine.open_for(self.now) <= 60
        assert left is None or 0 < left <= 60
        assert machine.state is not CLOSED or machine.failures < 3
        # However many probes are lost, a call is admitted one timeout later.
        assert machine.retry_in(self.now + 60) is None


TestMachine = Machine.TestCase
