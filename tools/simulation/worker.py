"""One simulated worker: its days as generators, that yield the seconds until it does the next thing."""

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

Acts = Iterator[float | None]
"""Seconds until it continues; None if it never continues on its own."""

HEARTBEAT: Final = 300.0
REST: Final = 1_800.0
TURNS: Final = 60
CHECKPOINT_EVERY: Final = 300.0
_WINDOW: Final = 20
_TIMES: Final = {FaultKind.DOOM_LOOP: 3, FaultKind.ERROR_STREAK: 5, FaultKind.RETRY_STORM: 15}


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint: when, how many turns were left, and whether it can be read."""

    checkpoint_id: str
    at: float
    left: int
    whole: bool


class Worker:
    """
    An agent that works through tasks.

    Half of them have a session for each task, half one session in which a user gives the next. Most make
    checkpoints.
    """

    def __init__(self, fleet: Fleet, number: int, random: Random) -> None:
        self.fleet = fleet
        self.random = random
        self.agent_id = f"agent-{number:04d}"
        self.chats = number % 2 == 0
        self.saves = number % 5 != 0
        self.session_id = ""
        self.incarnation_id = ""
        self.alive = False
        """Whether a process runs."""
        self.over = True
        """Whether there is nothing to be done in its session (any more)."""
        self.waits = False
        self.skew = 0.0
        self.saving = True
        self.left = 0
        self.chain: list[Checkpoint] = []
        self.ended: set[str] = set()
        """Sessions that were finished or called off."""
        self.wanted: FaultKind | None = None
        """What is to go wrong next."""
        self.fault: Fault | None = None
        self.doomed = 0
        """So many of its next lives crash soon."""
        self.acts: Acts = self._days()
        self.turn_number = 0
        self.said_at = 0.0
        self.beat_at = 0.0
        self._context = 2_000
        self._inputs: deque[int] = deque(maxlen=5)
        self._failure_bits = 0
        self._known_turns = 0
        self._turns_here = 0
        self._open = ""

    # -- what it says -------------------------------------------------------------------------------

    def say(self, type_: EventType, data: dict[str, Any] | None = None) -> None:
        if type_ is not EventType.AGENT_HEARTBEAT:
            self.said_at = self.fleet.now
        self.fleet.hear(self, type_, data or {})

    def beat(self) -> None:
        """Say that the process lives."""
        self.beat_at = self.fleet.now
        self.say(EventType.AGENT_HEARTBEAT, {"interval": HEARTBEAT})

    def start(self) -> None:
        """Begin another life in the session that there is."""
        self.incarnation_id = self.fleet.new_id("i")
        self.alive, self.waits, self.saving, self._open = True, False, True, ""
        self.skew = 0.0
        self._failure_bits = self._known_turns = self._turns_here = 0
        self.beat_at = self.fleet.now
        self.say(
            EventType.EXECUTION_STARTED,
            {"start_records": True, "heartbeat_interval": HEARTBEAT, "task_id": self.session_id},
        )

    # -- its days -----------------------------------------------------------------------------------

    def _days(self) -> Acts:
        yield self.random.random() * REST
        while True:
            self._new_session()
            yield from self._works()
            yield self.random.expovariate(1 / REST)

    def _new_session(self) -> None:
        self.session_id = self.fleet.new_id("s")
        self.chain = []
        self.over = False
        self._context = 2_000
        self.left = 1 + int(self.random.expovariate(1 / TURNS))
        self.start()

    def _works(self) -> Acts:
        """Work in this session to its end."""
        tasks = 1 + int(self.random.random() * 6) if self.chats else 1
        while True:
            while self.left > 0:
                if self.wanted is not None and self._may(self.wanted):
                    kind, self.wanted = self.wanted, None
                    yield from self._suffers(kind)
                elif self.random.random() < 1 / 120:
                    yield from self._does_something_odd()
                else:
                    yield from self._turn()
                    self.left -= 1
            tasks -= 1
            if tasks <= 0:
                break
            yield from self._waits_for_its_user(self.random.expovariate(1 / REST))
            self.left = 1 + int(self.random.expovariate(1 / TURNS))
        self.finish()

    def finish(self, error: str = "") -> None:
        """End the session: done, or called off."""
        self.over, self.alive = True, False
        self.ended.add(self.session_id)
        if self.fault is not None and self.fault.session_id == self.session_id:
            self.fleet.cure(self)
        if error:
            self.say(EventType.EXECUTION_FAILED, {"error_type": error})
        else:
            self.say(EventType.EXECUTION_COMPLETED)

    def _turn(
        self,
        *,
        tool: str = "bash",
        args: str = "",
        result: str = "",
        error: str = "",
        verdict: str = "",
        lasts: float | None = None,
        declares: float | None = None,
        tokens: int = 0,
        mark: Fault | None = None,
    ) -> Acts:
        """Think, call a tool, come to a verdict. ``mark``: the end of the call is when that must be seen."""
        self.turn_number += 1
        self._turns_here += 1
        number = f"{self.turn_number:x}"
        gap = self.fleet.gaps.draw(self.random)
        self.say(EventType.STEP_STARTED)
        self.say(EventType.LLM_CALL_STARTED)
        yield 0.7 * gap
        self._context = self._context + 500 if self._context < 60_000 else 6_000
        if mark is not None and tokens:
            self._must_be_seen(mark)
        self.say(
            EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens or self._context, "output_tokens": 100}
        )
        self._inputs.append(tokens or self._context)
        self._count(has_failed=False)
        start_data = {"tool": tool, "call_id": number}
        self.say(EventType.TOOL_CALL_STARTED, start_data | ({"timeout": declares} if declares else {}))
        yield 0.3 * gap if lasts is None else lasts
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
        self._count(has_failed=bool(error))
        if mark is not None and (mark.kind is not FaultKind.ERROR_RATE or self._many_fail()):
            self._must_be_seen(mark)
        self.say(EventType.TOOL_CALL_COMPLETED, data)
        if not verdict:
            dice = self.random.random()
            verdict = "ACCEPT" if dice < 0.3 else "RETRY" if dice < 0.36 else "CONTINUE"
        self._count(has_failed=False)
        self.say(EventType.STEP_COMPLETED, {"verdict": verdict, "text": number})
        if mark is not None:
            self.fleet.look_for(mark)
        if (
            self.saves
            and self.saving
            and not (self.chain and self._now < self.chain[-1].at + CHECKPOINT_EVERY)
        ):
            self._save()

    def _save(self) -> None:
        now = self._now
        name = self.fleet.new_id("c")
        self.chain.append(Checkpoint(name, now, self.left, self.random.random() > 0.15))
        del self.chain[:-5]
        self.say(EventType.CHECKPOINT_SAVED, {"checkpoint_id": name})

    @property
    def _now(self) -> float:
        return self.fleet.now

    def _many_fail(self) -> bool:
        return self._known_turns >= 8 and self._failure_bits.bit_count() > 0.25 * self._known_turns

    def _count(self, *, has_failed: bool) -> None:
        """Keep, as anybody could who looks on, which of the last calls and steps failed."""
        self._failure_bits = (self._failure_bits << 1 | has_failed) & ((1 << _WINDOW) - 1)
        self._known_turns = min(_WINDOW, self._known_turns + 1)

    # -- what only looks like trouble ---------------------------------------------------------------

    def _does_something_odd(self) -> Acts:
        odd: tuple[Callable[[], Acts], ...] = (
            self._runs_a_long_tool,
            self._runs_a_slow_tool,
            self._edits_and_tests,
            self._backs_off,
            self._is_paused,
            self._is_restarted,
            self._has_a_wrong_clock,
            self._asks_its_user,
        )
        yield from self.random.choice(odd)()

    def _runs_a_long_tool(self) -> Acts:
        """A build or a test suite that declares its timeout, at times most of an hour."""
        declares = self.random.choice((900.0, 1_800.0, 1_800.0, 3_600.0))
        yield from self._turn(tool="build", declares=declares, lasts=declares * self.random.uniform(0.3, 0.9))

    def _runs_a_slow_tool(self) -> Acts:
        yield from self._turn(tool="search", lasts=self.random.uniform(60, 560))

    def _edits_and_tests(self) -> Acts:
        for _ in range(self.random.randint(4, 9)):
            yield from self._turn(tool="edit", result="edited")
            yield from self._turn(tool="test", args="pytest")

    def _backs_off(self) -> Acts:
        self.say(EventType.LLM_CALL_STARTED)
        yield 2.0
        self._count(has_failed=True)
        self.say(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})
        self.waits = True
        self.say(EventType.WORKER_WAITING, {"reason": "backoff"})
        yield self.random.uniform(30, 1_200)
        self.waits = False
        yield from self._turn()

    def _is_paused(self) -> Acts:
        self.waits = True
        self.say(EventType.EXECUTION_PAUSED)
        yield self.random.uniform(600, 12 * 3600)
        self.waits = False
        self.say(EventType.EXECUTION_RESUMED)

    def _is_restarted(self) -> Acts:
        yield self.random.uniform(1, 60)
        self.start()

    def _has_a_wrong_clock(self) -> Acts:
        self.skew = self.random.choice((-1, 1)) * self.random.choice((30.0, 600.0, 7_200.0))
        for _ in range(200):
            yield from self._turn()
        self.skew = 0.0

    def _asks_its_user(self) -> Acts:
        yield from self._waits_for_its_user(self.random.uniform(600, 10 * 3600))

    def _waits_for_its_user(self, seconds: float) -> Acts:
        self.waits = True
        self.say(EventType.CLIENT_INPUT_REQUESTED)
        yield seconds
        self.waits = False
        self.say(EventType.CLIENT_INPUT_RECEIVED)

    # -- what is trouble ----------------------------------------------------------------------------

    def _may(self, kind: FaultKind) -> bool:
        """Return whether this can go wrong here and now."""
        if self.skew or self.fault is not None or self._turns_here < 10:
            return False
        return self.saves or kind is not FaultKind.CHECKPOINTS_STOP

    def _must_be_seen(self, fault: Fault, at: float | None = None) -> None:
        if fault.threshold is None:
            fault.threshold = self.fleet.now if at is None else at

    def _suffers(self, kind: FaultKind) -> Acts:
        if kind is FaultKind.ZOMBIE:
            self.finish()
            self._new_session()
        fault = self.fleet.begins(self, kind)
        where = kind
        if kind is FaultKind.KILLED:
            where = self.random.choice(
                (FaultKind.HANG_IN_LLM, FaultKind.HANG_BETWEEN_STEPS, FaultKind.HANG_IN_TOOL)
            )
        if kind is FaultKind.SKEWED_HANG:
            self.skew = self.random.choice((-1, 1)) * self.random.uniform(120, 7_200)
        if where in (FaultKind.HANG_BETWEEN_STEPS, FaultKind.SKEWED_HANG, FaultKind.ZOMBIE):
            if kind is not FaultKind.ZOMBIE:
                yield from self._turn()
            yield from self._hangs(fault, 240.0)
        elif where is FaultKind.HANG_IN_LLM:
            self.say(EventType.LLM_CALL_STARTED)
            self._open = "llm"
            yield from self._hangs(fault, 240.0)
        elif where is FaultKind.HANG_IN_TOOL:
            yield from self._hangs_in_tool(fault, None, 600.0)
        elif kind is FaultKind.HANG_IN_DECLARED_TOOL:
            declares = self.random.choice((60.0, 300.0, 900.0, 1_500.0))
            yield from self._hangs_in_tool(fault, declares, max(240.0, declares))
        elif kind is FaultKind.NO_HEARTBEATS:
            yield from self._hangs_in_tool(fault, 7_200.0, 2 * HEARTBEAT)
        elif kind is FaultKind.CRASH:
            self._crashes(fault)
            yield None
        elif kind in _TIMES:
            yield from self._goes_in_circles(fault)
        elif kind is FaultKind.CHECKPOINTS_STOP:
            self._save()
            self.saving = False
            self._must_be_seen(fault, self.chain[-1].at + 1_800)
            while fault.over is None:
                yield from self._turn()
            self.saving = True
        else:
            yield from self._heals_by_itself(fault)

    def _hangs(self, fault: Fault, limit: float) -> Acts:
        if fault.kind is FaultKind.KILLED:
            self.alive = False
        self._must_be_seen(fault, self.fleet.now + limit)
        yield None

    def _hangs_in_tool(self, fault: Fault, declares: float | None, limit: float) -> Acts:
        call = {"tool": "browse", "call_id": "stuck"} | ({"timeout": declares} if declares else {})
        self.say(EventType.TOOL_CALL_STARTED, call)
        self._open = "tool"
        if fault.kind in (FaultKind.NO_HEARTBEATS, FaultKind.KILLED):
            self.alive = False
        self._must_be_seen(fault, self.fleet.now + limit)
        yield None

    def _crashes(self, fault: Fault) -> None:
        self.alive = False
        self._must_be_seen(fault)
        self.say(EventType.EXECUTION_FAILED, {"error_type": "RuntimeError", "error": "out of memory"})
        self.fleet.look_for(fault)

    def _goes_in_circles(self, fault: Fault) -> Acts:
        times = 0
        while fault.over is None:
            times += 1
            mark = fault if times == _TIMES[fault.kind] else None
            if fault.kind is FaultKind.DOOM_LOOP:
                yield from self._turn(tool="read", args="same", result="same", verdict="CONTINUE", mark=mark)
            elif fault.kind is FaultKind.ERROR_STREAK:
                yield from self._turn(tool="deploy", error="PermissionError", verdict="CONTINUE", mark=mark)
            else:
                yield from self._turn(verdict="RETRY", mark=mark)
            if times > 40:
                yield 60.0  # the agent's authors added a delay: it loops more slowly

    def _heals_by_itself(self, fault: Fault) -> Acts:
        if fault.kind is FaultKind.TOKEN_SPIKE:
            yield from self._turn(tokens=max(30_000, 6 * sorted(self._inputs)[2]), mark=fault)
            yield from self._turn()
        elif fault.kind is FaultKind.ERROR_RATE:
            for n in range(20):
                yield from self._turn(tool=f"t{n % 3}", error=f"E{n % 3}", mark=fault)
        elif fault.kind is FaultKind.PROVIDER_FAILURE:
            yield from self._has_no_provider(fault)
        else:
            yield from self._runs_into_a_breaker(fault)
        self.fleet.cure(self)

    def _has_no_provider(self, fault: Fault) -> Acts:
        until = self.fleet.now + self.random.uniform(600, 2_400)
        times = 0
        while self.fleet.now < until or times < 4:
            self.say(EventType.LLM_CALL_STARTED)
            yield self.random.uniform(5, 60)
            times += 1
            self._count(has_failed=True)
            if times == 3:
                self._must_be_seen(fault)
            self.say(EventType.LLM_CALL_COMPLETED, {"error_type": "APIError", "error": "503"})

    def _runs_into_a_breaker(self, fault: Fault) -> Acts:
        name = f"tool_execution:{self.agent_id}:search"
        fleet, until = self.fleet, self.fleet.now + self.random.uniform(60, 1_500)
        self._must_be_seen(fault)
        fleet.breaker(self, name, "open")
        fleet.at(until, lambda: fleet.breaker(self, name, "closed"))
        while fleet.now < until:
            yield from self._turn()

    # -- what others do to it -----------------------------------------------------------------------

    def comes_to(self, after: float) -> Acts:
        """Go on, after so many seconds, from where it hung."""
        yield after
        self.skew = 0.0
        if self._open == "tool":
            self.say(
                EventType.TOOL_CALL_COMPLETED, {"tool": "browse", "call_id": "stuck", "outcome": "timeout"}
            )
        elif self._open == "llm":
            self.say(EventType.LLM_CALL_COMPLETED, {"input_tokens": self._context})
        self._open = ""
        self.say(EventType.STEP_COMPLETED, {"verdict": "ACCEPT"})
        yield from self._goes_on()

    def hands_off(self, after: float) -> Acts:
        """End its run, after so many seconds."""
        yield after
        self.finish()
        yield from self._days()

    def lives_again(self) -> Acts:
        """Continue in a new incarnation."""
        yield 2.0
        if self.doomed and self.fault is not None:
            self.doomed -= 1
            yield from self._turn()
            yield self.random.uniform(10, 120)
            self._crashes(self.fault)
            yield None
        yield from self._turn()
        self.fleet.cure(self)
        yield from self._goes_on()

    def given_up(self) -> Acts:
        """Begin something else: its people have called the task off."""
        self.finish("cancelled")
        yield from self._days()

    def _goes_on(self) -> Acts:
        yield from self._works()
        yield from self._days()
