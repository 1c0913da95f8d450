"""The agents of the story: one thread with a real `Worker` and one behaviour each."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Nudge, Verdict, Worker

PACE: Final = 0.25
SMALL: Final = "anthropic/claude-haiku-4-5"
LARGE: Final = "anthropic/claude-sonnet-4-5"


class OverloadedError(Exception):
    """Raised by the provider's client."""


class TooManyRequestsError(Exception):
    """A rate limit holds."""


@dataclass
class Fleet:
    """
    State that the agents share.

    Args:
        endpoint: Where their telemetry goes.
        control: Where they fetch instructions.
        registry: Where their metrics are.
    """

    endpoint: str
    control: str
    registry: CollectorRegistry
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set at the end of the story."""
    can_improve: threading.Event = field(default_factory=threading.Event)
    """Set when agents that improve may do so."""
    threads: list[threading.Thread] = field(default_factory=list)

    def worker(self, agent: str, **options: Any) -> Worker:
        """Return a worker for an agent."""
        return Worker(
            agent,
            framework="story",
            version="1.0",
            endpoint=self.endpoint,
            registry=self.registry,
            control_endpoint=self.control,
            **options,
        )

    def begin(self, *habits: Callable[[Fleet], None]) -> None:
        """Start the agents."""
        for habit in habits:
            thread = threading.Thread(target=habit, args=(self,), name=habit.__name__, daemon=True)
            self.threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Stop all agents."""
        self.is_over.set()
        for thread in self.threads:
            thread.join(5)

    def rest(self, seconds: float = PACE) -> bool:
        """Wait; return whether the story goes on."""
        return not self.is_over.wait(seconds)


def librarian(fleet: Fleet) -> None:
    """Run steps and tool calls, mostly successful ones, with two models, and save checkpoints."""
    with fleet.worker("librarian") as worker:
        for number in itertools.count():
            with worker.step("catalogue") as step:
                model, input_tokens, output_tokens = (
                    (LARGE, 4_000, 400) if number % 3 == 0 else (SMALL, 1_200, 150)
                )
                with step.llm(model, "anthropic") as llm:
                    fleet.rest(0.02)
                    llm.usage(input_tokens, output_tokens)
                with step.tool("search", {"page": number}) as tool:
                    if number % 9 == 4:
                        tool.error(TimeoutError("the catalogue does not answer"))
                    elif number % 9 == 7:
                        tool.error(ValueError("no such page"))
                    else:
                        tool.result(f"page {number}")
                step.verdict(Verdict.ACCEPT if number % 4 else Verdict.CONTINUE)
            if number % 8 == 0:
                worker.checkpoint(f"catalogue-{number}")
            if not fleet.rest():
                return


def researcher(fleet: Fleet) -> None:
    """Repeat the same call with the same result, and report progress."""
    with fleet.worker("researcher") as worker:
        while fleet.rest():
            with worker.step("look_up") as step:
                with step.llm(LARGE, "anthropic") as llm:
                    llm.usage(2_000, 60)
                with step.tool("web_search", {"q": "philosopher's stone"}) as tool:
                    tool.result("nothing found")
                step.verdict(Verdict.CONTINUE)


def proofreader(fleet: Fleet) -> None:
    """Retry 24 times, then succeed once ``can_improve`` is set: the ticket resolves by itself."""
    with fleet.worker("proofreader") as worker:
        for number in itertools.count():
            with worker.step("proofread") as step:
                with step.llm(SMALL, "anthropic") as llm:
                    llm.usage(900, 40)
                if fleet.can_improve.is_set():
                    step.verdict(Verdict.ACCEPT)
                else:
                    step.verdict(Verdict.RETRY if number < 24 else Verdict.CONTINUE)
            if not fleet.rest():
                return


def clerk(fleet: Fleet) -> None:
    """Retry eleven times in vain, then continue normally."""
    with fleet.worker("clerk") as worker:
        for number in itertools.count():
            with worker.step("file") as step:
                with step.tool("file_away", {"number": number}) as tool:
                    tool.result("the drawer is full" if number < 11 else f"filed {number}")
                step.verdict(Verdict.RETRY if number < 11 else Verdict.CONTINUE)
            if not fleet.rest(0.05 if number < 11 else PACE):
                return


def surveyor(fleet: Fleet) -> None:
    """Hang in a tool call until a nudge arrives, then continue normally."""
    nudges: queue.SimpleQueue[str] = queue.SimpleQueue()

    def on_nudge(nudge: Nudge) -> None:
        nudges.put(nudge.message)

    with fleet.worker("surveyor", on_nudge=on_nudge) as worker:
        with worker.step("survey") as step:
            with step.tool("index_everything", {"depth": "all"}, timeout=2.0) as tool:
                while nudges.empty() and fleet.rest(0.1):
                    pass
                tool.error(TimeoutError("stopped after a nudge"))
            step.verdict(Verdict.CONTINUE)
        for number in itertools.count():
            with worker.step("survey") as step:
                with step.tool("measure", {"number": number}) as tool:
                    tool.result(f"measured {number}")
                step.verdict(Verdict.ACCEPT)
            if not fleet.rest():
                return


def concierge(fleet: Fleet) -> None:
    """Hit a rate limit, and wait for a user, which is not a stall."""
    with fleet.worker("concierge") as worker:
        with worker.step("ask") as step:
            with step.llm(SMALL, "bedrock") as llm:
                llm.error(TooManyRequestsError("429 rate limit: try again in 2h"))
            step.verdict(Verdict.CONTINUE)
        with worker.waiting("user_input"):
            fleet.is_over.wait()


def archivist(fleet: Fleet) -> None:
    """Save one checkpoint, and keep working without another."""
    with fleet.worker("archivist") as worker:
        worker.checkpoint("first")
        for number in itertools.count():
            with worker.step("archive") as step:
                with step.tool("read", {"shelf": number}) as tool:
                    tool.result(f"shelf {number}")
                step.verdict(Verdict.ACCEPT)
            if not fleet.rest():
                return


def courier(fleet: Fleet) -> None:
    """Call a provider that refuses every request."""
    with fleet.worker("courier") as worker:
        while fleet.rest():
            with worker.step("deliver") as step:
                with step.llm(LARGE, "anthropic") as llm:
                    llm.error(OverloadedError("529 overloaded_error: the provider refuses all requests"))
                step.verdict(Verdict.RETRY)


def typesetter(fleet: Fleet) -> None:
    """Work well, with more error classes than a label may have values."""
    with fleet.worker("typesetter") as worker:
        for number in range(104):
            slip = type(f"Slip{number}", (Exception,), {})
            with worker.step("set") as step:
                with step.tool("set_line", {"line": number}) as tool:
                    tool.error(slip("a letter upside down"))
                for line in range(4):
                    with step.tool("set_line", {"line": f"{number}.{line}"}) as tool:
                        tool.result(f"line {number}.{line}")
                step.verdict(Verdict.ACCEPT)
        while fleet.rest():
            with worker.step("set") as step:
                step.verdict(Verdict.ACCEPT)


TROUBLED_WORKERS: Final = (
    researcher,
    proofreader,
    surveyor,
    concierge,
    archivist,
    courier,
    typesetter,
)
