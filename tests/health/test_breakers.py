"""Circuit breakers: the state machine, and its use around calls of threads and tasks."""

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


class BreakerBench:
    """A circuit breaker, its two clocks, and the changes that it reported."""

    def __init__(self, policy: BreakerSettings = POLICY, **options: Any) -> None:
        self.now = 0.0
        self.wall = 1_000.0
        self.changes: list[BreakerChange] = []
        self.breaker = CircuitBreaker(
            "tool_execution:bee:search",
            policy,
            clock=lambda: self.wall,
            monotonic=lambda: self.now,
            on_change=lambda _, change: self.changes.append(change),
            **options,
        )

    def record_failures(self, times: int = 1, error: BaseException | None = None) -> None:
        for _ in range(times):
            self.breaker.admit().record_failure(error or OSError("no route"))

    def list_transitions(self) -> list[str]:
        return [f"{change.before}>{change.status.state}" for change in self.changes]


def iterate_admissions(machine: BreakerMachine, now: float) -> Iterator[Admission]:
    while (admission := machine.admit(now)) is not None:
        yield admission


def test_consecutive_failures_open_the_breaker_and_a_success_resets_them() -> None:
    bench = BreakerBench()

    bench.record_failures(2)
    bench.breaker.admit().record_success()
    bench.record_failures(2)
    assert bench.breaker.state is CLOSED
    bench.record_failures()

    assert bench.breaker.state is OPEN
    assert bench.list_transitions() == ["closed>open"]
    assert bench.changes[0].failures == 3
    assert all(part in bench.changes[0].status.reason for part in ("3 failures", "OSError: no route"))


def test_002_section_11_open_breaker_stops_calls() -> None:
    """002 §11: an open breaker stops every call, and the caller gets the reason immediately."""
    bench = BreakerBench()
    call_count = 0

    def fail_call() -> None:
        nonlocal call_count
        call_count += 1
        raise OSError("no route")

    for _ in range(100):
        with pytest.raises((OSError, CircuitOpenError)):
            bench.breaker.call(fail_call)

    assert call_count == 3


def test_refusal_names_breaker_reason_and_retry_time() -> None:
    bench = BreakerBench()
    bench.record_failures(3)
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
    bench = BreakerBench()
    bench.record_failures(3)

    bench.now += 60
    assert bench.breaker.state is OPEN
    bench.breaker.admit().record_success()

    assert bench.list_transitions() == ["closed>open", "open>half_open", "half_open>closed"]
    assert bench.breaker.is_untouched
    assert bench.breaker.status.opened_at is None


def test_b73_open_breaker_is_reset_by_hand() -> None:
    """B73: a reset closes the breaker at once, and outcomes of calls that began before it are ignored."""
    bench = BreakerBench()
    late_permit = bench.breaker.admit()
    bench.record_failures(3)

    assert bench.breaker.reset("anna", "the network is back")
    late_permit.record_failure("too late")

    assert bench.breaker.is_untouched
    assert all(part in bench.changes[-1].status.reason for part in ("anna", "the network is back"))
    assert not bench.breaker.reset("anna")


def test_failed_probe_reopens_the_breaker_for_a_full_timeout() -> None:
    bench = BreakerBench()
    bench.record_failures(3)
    bench.now += 60

    bench.breaker.admit().record_failure("still no route")

    assert bench.list_transitions()[-1] == "half_open>open"
    assert bench.breaker.open_for == 60
    assert bench.breaker.status.reason.endswith("still no route")


@pytest.mark.parametrize("quota", [1, 3])
def test_b73_half_open_breaker_admits_exactly_its_quota_of_fifty_threads(quota: int) -> None:
    """B73: fifty threads call through a half-open breaker at the same time."""
    bench = BreakerBench(BreakerSettings(half_open_requests=quota))
    bench.record_failures(3)
    bench.now += 60
    barrier = threading.Barrier(50)

    def is_admitted() -> bool:
        barrier.wait(10)
        try:
            bench.breaker.admit()
        except CircuitOpenError:
            return False
        return True

    with ThreadPoolExecutor(50) as threads:
        admitted_calls = [task.result() for task in [threads.submit(is_admitted) for _ in range(50)]]

    assert sum(admitted_calls) == quota
    assert bench.list_transitions() == ["closed>open", "open>half_open"]


@pytest.mark.parametrize("quota", [1, 3])
async def test_b73_half_open_breaker_calls_exactly_its_quota_of_fifty_tasks(quota: int) -> None:
    """B73: fifty tasks call through a half-open breaker while the first probe runs."""
    bench = BreakerBench(BreakerSettings(half_open_requests=quota))
    bench.record_failures(3)
    bench.now += 60
    answer = asyncio.Event()
    probe_count = 0

    async def probe() -> None:
        nonlocal probe_count
        probe_count += 1
        await answer.wait()

    tasks = [asyncio.create_task(bench.breaker.acall(probe)) for _ in range(50)]
    await asyncio.sleep(0)
    answer.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert probe_count == quota
    assert sum(isinstance(error, CircuitOpenError) for error in outcomes) == 50 - quota
    assert bench.breaker.state is CLOSED


async def test_cancelled_probe_releases_its_permit() -> None:
    bench = BreakerBench()
    bench.record_failures(3)
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
    bench = BreakerBench()
    bench.record_failures(3)
    bench.now += 60
    probe = cast(Coroutine[Any, Any, bool], bench.breaker.acall(asyncio.Event().wait))
    contextvars.copy_context().run(probe.send, None)

    probe.close()

    bench.breaker.admit().record_success()
    assert bench.breaker.state is CLOSED


def test_lost_probe_is_replaced_after_one_timeout() -> None:
    bench = BreakerBench()
    bench.record_failures(3)
    bench.now += 60
    lost_permit = bench.breaker.admit()
    bench.now += 59
    with pytest.raises(CircuitOpenError) as error:
        bench.breaker.admit()
    assert error.value.retry_in == 1
    bench.now += 1

    bench.breaker.admit()
    with pytest.raises(CircuitOpenError):
        bench.breaker.admit()
    lost_permit.record_success()  # late, but a success

    assert bench.breaker.state is CLOSED


def test_outcome_from_before_opening_is_ignored() -> None:
    bench = BreakerBench()
    old_permits = [bench.breaker.admit() for _ in range(3)]
    bench.record_failures(3)
    bench.now += 60
    probe = bench.breaker.admit()

    old_permits[0].record_failure("old")
    old_permits[1].record_success()
    assert bench.breaker.state is HALF_OPEN
    probe.record_success()
    old_permits[2].record_failure("old")

    assert bench.breaker.is_untouched


def test_only_the_first_outcome_of_a_call_counts() -> None:
    bench = BreakerBench()
    permit = bench.breaker.admit()

    for _ in range(5):
        permit.record_failure("again")

    assert bench.breaker.status.failures == 1


@pytest.mark.parametrize("jump", [-1e9, -61.0, -0.5])
def test_clock_set_back_blocks_for_at_most_one_timeout(jump: float) -> None:
    bench = BreakerBench()
    bench.now = 2e9
    bench.record_failures(3)

    bench.now += jump

    with pytest.raises(CircuitOpenError) as error:
        bench.breaker.admit()
    assert 0 < error.value.retry_in <= 60


def test_wall_clock_changes_have_no_effect_on_a_breaker() -> None:
    bench = BreakerBench()
    bench.record_failures(3)

    bench.wall += 1e9

    assert bench.breaker.open_for == 60
    assert (bench.breaker.status.opened_at, bench.breaker.status.half_open_at) == (1_000.0, 1_060.0)


# -- around calls -----------------------------------------------------------------------------------


def raise_error(error: BaseException) -> Any:
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
    bench = BreakerBench(failure_filter=failure_filter)

    with pytest.raises(type(error)):
        bench.breaker.call(raise_error, error)

    assert bench.breaker.status.failures == failures


async def test_plain_and_async_functions_are_decorated() -> None:
    bench = BreakerBench()

    @bench.breaker
    def divide(n: int) -> int:
        """Divide ten."""
        return 10 // n

    @bench.breaker
    async def divide_later(n: int, *, addend: int = 0) -> int:
        await asyncio.sleep(0)
        return 10 // n + addend

    assert (divide(5), await divide_later(5, addend=1)) == (2, 3)
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide ten.")
    assert asyncio.iscoroutinefunction(divide_later)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            divide(0)
    with pytest.raises(ZeroDivisionError):
        await divide_later(0)
    with pytest.raises(CircuitOpenError):
        divide(5)
    with pytest.raises(CircuitOpenError):
        await divide_later(5)


def test_unguardable_function_is_refused() -> None:
    bench = BreakerBench()

    async def run_async() -> None: ...

    def yield_parts() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="yield_parts is a generator: use `with breaker:` inside it"):
        bench.breaker(yield_parts)
    with pytest.raises(TypeError, match="is async: use acall"):
        bench.breaker.call(run_async)  # type: ignore[unused-coroutine]


async def test_breaker_is_a_reusable_context_manager() -> None:
    bench = BreakerBench()
    barrier = asyncio.Barrier(10)

    async def fail_if_odd(n: int) -> None:
        async with bench.breaker:
            with bench.breaker:  # nested
                await barrier.wait()
            if n % 2:
                raise OSError(n)

    outcomes = await asyncio.gather(*(fail_if_odd(n) for n in range(10)), return_exceptions=True)

    assert [type(end) for end in outcomes] == [type(None), OSError] * 5
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

    bench = BreakerBench(BreakerSettings(failure_threshold=1))
    bench.record_failures(error=OSError("password=hunter2hunter2 " + "x" * 10_000))
    reason = bench.breaker.status.reason
    bench.breaker.reset("test")
    bench.record_failures(error=VerboseError())

    assert "hunter2" not in reason
    assert len(reason) < 300
    assert bench.breaker.status.reason == "1 failure: VerboseError"


class BreakerInvariants(RuleBasedStateMachine):
    """Invariants for any sequence of calls, outcomes and times."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = BreakerSettings(failure_threshold=3, recovery_timeout_seconds=60, half_open_requests=2)
        self.machine = BreakerMachine(self.policy)
        self.now = 0.0
        self.open_admissions: list[Admission] = []
        self.opened_at = 0.0

    def step(self, action: Callable[[], object]) -> None:
        before = self.machine.state
        action()
        after = self.machine.state
        assert (before, after) != (CLOSED, HALF_OPEN)
        if before is OPEN and after is HALF_OPEN:
            assert self.now - self.opened_at >= 60
        if after is OPEN and before is not OPEN:
            self.opened_at = self.now

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 59.9, 60.0, 3600.0]))
    def advance_clock(self, seconds: float) -> None:
        before = self.machine.state
        self.now += seconds
        assert self.machine.state is before

    @rule()
    def call(self) -> None:
        is_admitted = self.machine.retry_in(self.now) is None
        before = self.machine.state

        def admit_call() -> None:
            admission = self.machine.admit(self.now)
            assert (admission is not None) == is_admitted
            if admission is not None:
                self.open_admissions.append(admission)

        self.step(admit_call)
        assert is_admitted or before is not CLOSED

    @precondition(lambda self: self.open_admissions)
    @rule(data=st.data(), outcome=st.sampled_from(["record_success", "record_failure", "release"]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        admission = self.open_admissions.pop(data.draw(st.integers(0, len(self.open_admissions) - 1)))
        arguments = (self.now, "x") if outcome == "record_failure" else ()
        state_before = self.machine.state
        self.step(lambda: getattr(self.machine, outcome)(admission, *arguments))
        if outcome == "release":
            assert self.machine.state is state_before

    @rule()
    def reset(self) -> None:
        self.step(lambda: self.machine.reset("by hand"))
        assert self.machine.state is CLOSED
        assert self.machine.failures == 0

    @invariant()
    def check_bounds(self) -> None:
        machine = self.machine
        retry_in = machine.retry_in(self.now)
        assert machine.failures >= 0
        assert 0 <= machine.open_for(self.now) <= 60
        assert retry_in is None or 0 < retry_in <= 60
        assert machine.state is not CLOSED or machine.failures < 3
        # Even if all probes are lost, a call is admitted one timeout later.
        assert machine.retry_in(self.now + 60) is None


TestMachine = BreakerInvariants.TestCase
