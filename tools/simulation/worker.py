"""A simulated worker. Its actions are generators that yield the seconds until the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from queenright.runtime.events import EventType
from tools.simulation.faults import Fault, FaultKind

if TYPE_CHECKING:
    from tools.simulation.fleet import Fleet

Actions = Iterator[float | None]
"""Seconds until the next action; None if it never continues on its own."""

HEARTBEAT: Final = 300.0
REST: Final = 1_800.0
TURNS: Final = 60
CHECKPOINT_EVERY: Final = 300.0
_WINDOW: Final = 20
_REPETITIONS: Final = {FaultKind.DOOM_LOOP: 3, FaultKind.ERROR_STREAK: 5, FaultKind.RETRY_STORM: 15}


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint: its time, the remaining turns, and whether it can be read."""

    checkpoint_id: str
    at: float
    remaining_turns: int
    is_valid: bool


class Worker:
    """
    An agent that works through tasks.

    Half of the workers have a session for each task; in the sessions of the other half, a user gives several
    tasks. Most workers save checkpoints.
    """

    def __init__(self, fleet: Fleet, number: int, random: Random) -> None:
        self.fleet = fleet
        self.random = random
        self.agent_id = f"agent-{number:04d}"
        self.is_chat = number % 2 == 0
        self.has_checkpoints = number % 5 != 0
        self.session_id = ""
        self.incarnation_id = ""
        self.is_alive = False
        """Whether a process runs."""
        self.is_finished = True
        """Whether its session has no work left."""
        self.is_waiting = False
        self.skew = 0.0
        self.is_saving = True
        self.remaining_turns = 0
        self.checkpoints: list[Checkpoint] = []
        self.ended_sessions: set[str] = set()
        """Sessions that were finished or cancelled."""
        self.next_fault: FaultKind | None = None
        """The next fault to begin."""
        self.fault: Fault | None = None
        self.crashes_left = 0
        """Number of next incarnations that crash soon."""
        self.actions: Actions = self._run_sessions()
        self.turn_number = 0
        self._context = 2_000
        self._inputs: deque[int] = deque(maxlen=5)
        self._failure_bits = 0
        self._known_turns = 0
        self._turns_here = 0
        self._open_call = ""

    # -- events -------------------------------------------------------------------------------------

    def emit(self, type_: EventType, data: dict[str, Any] | None = None) -> None:
        self.fleet.receive_event(self, type_, data or {})

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self.emit(EventType.AGENT_HEARTBEAT, {"interval": HEARTBEAT})

    def start(self) -> None:
        """Start another incarnation of the current session."""
        self.incarnation_id = self.fleet.new_id("i")
        self.is_alive, self.is_waiting, self.is_saving, self._open_call = True, False, True, ""
        self.skew = 0.0
        self._failure_bits = self._known_turns = self._turns_here = 0
        self.emit(
            EventType.EXECUTION_STARTED,
            {"start_records": True, "heartbeat_interval": HEARTBEAT, "task_id": self.session_id},
        )

    # -- work ---------------------------------------------------------------------------------------

    def _run_sessions(self) -> Actions:
        yield self.random.random() * REST
        while True:
            self._new_session()
            yield from self._run_session()
            yield self.random.expovariate(1 / REST)

    def _new_session(self) -> None:
        self.session_id = self.fleet.new_id("s")
        self.checkpoints = []
        self.is_finished = False
        self._context = 2_000
        self.remaining_turns = 1 + int(self.random.expovariate(1 / TURNS))
        self.start()

    def _run_session(self) -> Actions:
        """Work until the session ends."""
        tasks = 1 + int(self.random.random() * 6) if self.is_chat else 1
        while True:
            while self.remaining_turns > 0:
                if self.next_fault is not None and self._is_possible(self.next_fault):
                    kind, self.next_fault = self.next_fault, None
                    yield from self._run_fault(kind)
                elif self.random.random() < 1 / 120:
                    yield from self._act_unusually()
                else:
                    yield from self._run_turn()
                    self.remaining_turns -= 1
            tasks -= 1
            if tasks <= 0:
                break
            yield from self._wait_for_user(self.random.expovariate(1 / REST))
            self.remaining_turns = 1 + int(self.random.expovariate(1 / TURNS))
        self.finish()

    def finish(self, error: str = "") -> None:
        """End the session, completed or failed with ``error``."""
        self.is_finished, self.is_alive = True, False
        self.ended_sessions.add(self.session_id)
        if self.fault is not None and self.fault.session_id == self.session_id:
            self.fleet.end_fault(self)
        if error:
            self.emit(EventType.EXECUTION_FAILED, {"error_type": error})
        else:
            self.emit(EventType.EXECUTION_COMPLETED)

    def _run_turn(
        self,
        *,
        tool: str = "bash",
        args: str = "",
        result: str = "",
        error: str = "",
        verdict: str = "",
        duration: float | None = None,
        timeout: float | None = None,
        tokens: int = 0,
        fault: Fault | None = None,
    ) -> Actions:
        """Run a turn: a model call, a tool call and a verdict. ``fault`` must be detected at its end."""
        self.turn_number += 1
        self._turns_here += 1
        number = f"{self.turn_number:x}"
        gap = self.fleet.gaps.draw(self.random)
        self.emit(EventType.STEP_STARTED)
        self.emit(EventType.LLM_CALL_STARTED)
        yield 0.7 * gap
        self._context = self._context + 500 if self._context < 60_000 else 6_000
        if fault is not None and tokens:
            self._set_threshold(fault)
        self.emit(
            EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens or self._context, "output_tokens": 100}
        )
        self._inputs.append(tokens or self._context)
        self._record_outcome(has_failed=False)
        start_data = {"tool": tool, "call_id": number}
        self.emit(EventType.TOOL_CALL_STARTED, start_data | ({"timeout": timeout} if timeout else {}))
        yield 0.3 * gap if duration is None else duration
        dice = self.random.random()
        if not error and not result and dice < 0.04:
            error = f"Error{int(dice * 100)}"
        data = {
            "tool": tool,
            "call_id": number,
            "turn": number,
            "args_hash": args or number,
            "result_hash": result or number,
            "outcome": "error" if error else "ok",
        }
        if error:
            data["error_type"] = error
        self._record_outcome(has_failed=bool(error))
        if fault is not None and (fault.kind is not FaultKind.ERROR_RATE or self._has_many_failures()):
            self._set_threshold(fault)
        self.emit(EventType.TOOL_CALL_COMPLETED, data)
        if not verdict:
            dice = self.random.random()
            verdict = "ACCEPT" if dice < 0.3 else "RETRY" if dice < 0.36 else "CONTINUE"
        self._record_outcome(has_failed=False)
        self.emit(EventType.STEP_COMPLETED, {"verdict": verdict, "text": number})
        if fault is not None:
            self.fleet.check_detection(fault)
        if (
            self.has_checkpoints
            and self.is_saving
            and not (self.checkpoints and self._now < self.checkpoints[-1].at + CHECKPOINT_EVERY)
        ):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        now = self._now
        name = self.fleet.new_id("c")
        self.checkpoints.append(Checkpoint(name, now, self.remaining_turns, self.random.random() > 0.15))
        del self.checkpoints[:-5]
        self.emit(EventType.CHECKPOINT_SAVED, {"checkpoint_id": name})

    @property
    def _now(self) -> float:
        return self.fleet.now

    def _has_many_failures(self) -> bool:
        return self._known_turns >= 8 and self._failure_bits.bit_count() > 0.25 * self._known_turns

    def _record_outcome(self, *, has_failed: bool) -> None:
        """Record which of the last calls and steps failed, as an observer could."""
        self._failure_bits = (self._failure_bits << 1 | has_failed) & ((1 << _WINDOW) - 1)
        self._known_turns = min(_WINDOW, self._known_turns + 1)

    # -- unusual, but no fault ----------------------------------------------------------------------

    def _act_unusually(self) -> Actions:
        choices: tuple[Callable[[], Actions], ...] = (
            self._run_long_tool,
            self._run_slow_tool,
            self._edit_and_test,
            self._back_off,
            self._pause,
            self._restart,
            self._skew_clock,
            self._ask_user,
        )
        yield from self.random.choice(choices)()

    def _run_long_tool(self) -> Actions:
        """Run a build or a test suite with a declared timeout, up to an hour."""
        timeout = self.random.choice((900.0, 1_800.0, 1_800.0, 3_600.0))
        yield from self._run_turn(
            tool="build", timeout=timeout, duration=timeout * self.random.uniform(0.3, 0.9)
        )

    def _run_slow_tool(self) -> Actions:
        yield from self._run_turn(tool="search", duration=self.random.uniform(60, 560))

    def _edit_and_test(self) -> Actions:
        for _ in range(self.random.randint(4, 9)):
            yield from self._run_turn(tool="edit", result="edited")
            yield from self._run_turn(tool="test", args="pytest")

    def _back_off(self) -> Actions:
        self.emit(EventType.LLM_CALL_STARTED)
        yield 2.0
        self._record_outcome(has_failed=True)
        self.emit(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
        self.is_waiting = True
        self.emit(EventType.WORKER_WAITING, {"reason": "backoff"})
        yield self.random.uniform(30, 1_200)
        self.is_waiting = False
        yield from self._run_turn()

    def _pause(self) -> Actions:
        self.is_waiting = True
        self.emit(EventType.EXECUTION_PAUSED)
        yield self.random.uniform(600, 12 * 3600)
        self.is_waiting = False
        self.emit(EventType.EXECUTION_RESUMED)

    def _restart(self) -> Actions:
        yield self.random.uniform(1, 60)
        self.start()

    def _skew_clock(self) -> Actions:
        self.skew = self.random.choice((-1, 1)) * self.random.choice((30.0, 600.0, 7_200.0))
        for _ in range(200):
            yield from self._run_turn()
        self.skew = 0.0

    def _ask_user(self) -> Actions:
        yield from self._wait_for_user(self.random.uniform(600, 10 * 3600))

    def _wait_for_user(self, seconds: float) -> Actions:
        self.is_waiting = True
        self.emit(EventType.CLIENT_INPUT_REQUESTED)
        yield seconds
        self.is_waiting = False
        self.emit(EventType.CLIENT_INPUT_RECEIVED)

    # -- faults -------------------------------------------------------------------------------------

    def _is_possible(self, kind: FaultKind) -> bool:
        """Return whether the fault can begin now."""
        if self.skew or self.fault is not None or self._turns_here < 10:
            return False
        return self.has_checkpoints or kind is not FaultKind.CHECKPOINTS_STOP

    def _set_threshold(self, fault: Fault, at: float | None = None) -> None:
        if fault.threshold is None:
            fault.threshold = self.fleet.now if at is None else at

    def _run_fault(self, kind: FaultKind) -> Actions:
        if kind is FaultKind.ZOMBIE:
            self.finish()
            self._new_session()
        fault = self.fleet.begin_fault(self, kind)
        hang_kind = kind
        if kind is FaultKind.KILLED:
            hang_kind = self.random.choice(
                (FaultKind.HANG_IN_LLM, FaultKind.HANG_BETWEEN_STEPS, FaultKind.HANG_IN_TOOL)
            )
        if kind is FaultKind.SKEWED_HANG:
            self.skew = self.random.choice((-1, 1)) * self.random.uniform(120, 7_200)
        if hang_kind in (FaultKind.HANG_BETWEEN_STEPS, FaultKind.SKEWED_HANG, FaultKind.ZOMBIE):
            if kind is not FaultKind.ZOMBIE:
                yield from self._run_turn()
            yield from self._hang(fault, 240.0)
        elif hang_kind is FaultKind.HANG_IN_LLM:
            self.emit(EventType.LLM_CALL_STARTED)
            self._open_call = "llm"
            yield from self._hang(fault, 240.0)
        elif hang_kind is FaultKind.HANG_IN_TOOL:
            yield from self._hang_in_tool(fault, None, 600.0)
        elif kind is FaultKind.HANG_IN_DECLARED_TOOL:
            timeout = self.random.choice((60.0, 300.0, 900.0, 1_500.0))
            yield from self._hang_in_tool(fault, timeout, max(240.0, timeout))
        elif kind is FaultKind.NO_HEARTBEATS:
            yield from self._hang_in_tool(fault, 7_200.0, 2 * HEARTBEAT)
        elif kind is FaultKind.CRASH:
            self._crash(fault)
            yield None
        elif kind in _REPETITIONS:
            yield from self._repeat_calls(fault)
        elif kind is FaultKind.CHECKPOINTS_STOP:
            self._save_checkpoint()
            self.is_saving = False
            self._set_threshold(fault, self.checkpoints[-1].at + 1_800)
            while fault.ended_at is None:
                yield from self._run_turn()
            self.is_saving = True
        else:
            yield from self._run_passing_fault(fault)

    def _hang(self, fault: Fault, limit: float) -> Actions:
        if fault.kind is FaultKind.KILLED:
            self.is_alive = False
        self._set_threshold(fault, self.fleet.now + limit)
        yield None

    def _hang_in_tool(self, fault: Fault, timeout: float | None, limit: float) -> Actions:
        call = {"tool": "browse", "call_id": "stuck"} | ({"timeout": timeout} if timeout else {})
        self.emit(EventType.TOOL_CALL_STARTED, call)
        self._open_call = "tool"
        if fault.kind in (FaultKind.NO_HEARTBEATS, FaultKind.KILLED):
            self.is_alive = False
        self._set_threshold(fault, self.fleet.now + limit)
        yield None

    def _crash(self, fault: Fault) -> None:
        self.is_alive = False
        self._set_threshold(fault)
        self.emit(EventType.EXECUTION_FAILED, {"error_type": "RuntimeError", "error": "out of memory"})
        self.fleet.check_detection(fault)

    def _repeat_calls(self, fault: Fault) -> Actions:
        times = 0
        while fault.ended_at is None:
            times += 1
            due_fault = fault if times == _REPETITIONS[fault.kind] else None
            if fault.kind is FaultKind.DOOM_LOOP:
                yield from self._run_turn(
                    tool="read", args="same", result="same", verdict="CONTINUE", fault=due_fault
                )
            elif fault.kind is FaultKind.ERROR_STREAK:
                yield from self._run_turn(
                    tool="deploy", error="PermissionError", verdict="CONTINUE", fault=due_fault
                )
            else:
                yield from self._run_turn(verdict="RETRY", fault=due_fault)
            if times > 40:
                yield 60.0  # the agent's authors added a delay: it loops more slowly

    def _run_passing_fault(self, fault: Fault) -> Actions:
        if fault.kind is FaultKind.TOKEN_SPIKE:
            yield from self._run_turn(tokens=max(30_000, 6 * sorted(self._inputs)[2]), fault=fault)
            yield from self._run_turn()
        elif fault.kind is FaultKind.ERROR_RATE:
            for n in range(20):
                yield from self._run_turn(tool=f"t{n % 3}", error=f"E{n % 3}", fault=fault)
        elif fault.kind is FaultKind.PROVIDER_FAILURE:
            yield from self._lose_provider(fault)
        else:
            yield from self._hit_breaker(fault)
        self.fleet.end_fault(self)

    def _lose_provider(self, fault: Fault) -> Actions:
        end = self.fleet.now + self.random.uniform(600, 2_400)
        times = 0
        while self.fleet.now < end or times < 4:
            self.emit(EventType.LLM_CALL_STARTED)
            yield self.random.uniform(5, 60)
            times += 1
            self._record_outcome(has_failed=True)
            if times == 3:
                self._set_threshold(fault)
            self.emit(EventType.LLM_CALL_COMPLETED, {"error_type": "APIError", "error": "503"})

    def _hit_breaker(self, fault: Fault) -> Actions:
        name = f"tool_execution:{self.agent_id}:search"
        fleet, end = self.fleet, self.fleet.now + self.random.uniform(60, 1_500)
        self._set_threshold(fault)
        fleet.set_breaker(self, name, "open")
        fleet.call_at(end, lambda: fleet.set_breaker(self, name, "closed"))
        while fleet.now < end:
            yield from self._run_turn()

    # -- effects of actions on the worker -----------------------------------------------------------

    def continue_after(self, after: float) -> Actions:
        """Continue after ``after`` seconds from the point where it hung."""
        yield after
        self.skew = 0.0
        if self._open_call == "tool":
            self.emit(
                EventType.TOOL_CALL_COMPLETED, {"tool": "browse", "call_id": "stuck", "outcome": "timeout"}
            )
        elif self._open_call == "llm":
            self.emit(EventType.LLM_CALL_COMPLETED, {"input_tokens": self._context})
        self._open_call = ""
        self.emit(EventType.STEP_COMPLETED, {"verdict": "ACCEPT"})
        yield from self._continue()

    def hand_off(self, after: float) -> Actions:
        """End the run after ``after`` seconds."""
        yield after
        self.finish()
        yield from self._run_sessions()

    def run_recovered(self) -> Actions:
        """Continue in a new incarnation."""
        yield 2.0
        if self.crashes_left and self.fault is not None:
            self.crashes_left -= 1
            yield from self._run_turn()
            yield self.random.uniform(10, 120)
            self._crash(self.fault)
            yield None
        yield from self._run_turn()
        self.fleet.end_fault(self)
        yield from self._continue()

    def abandon_task(self) -> Actions:
        """Cancel the task, and begin another one."""
        self.finish("cancelled")
        yield from self._run_sessions()

    def _continue(self) -> Actions:
        yield from self._run_session()
        yield from self._run_sessions()
