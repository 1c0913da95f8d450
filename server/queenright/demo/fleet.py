"""The fleet: one thread a persona, from start until it is told to stop."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.demo.agent import FleetStoppedError, work
from queenright.demo.model import LiteLLMModel, Model, ProviderError, ScriptedModel
from queenright.demo.personas import FLEET, Persona
from queenright.demo.tools import Library, Tool
from queenright.instrumentation import Nudge, Worker, flush

DEMO_FRAMEWORK = "queenright-demo"

_LOOK_SECONDS = 0.2
"""So often one who waits looks whether there is news."""


class Inbox:
    """
    What one agent is told while it works. Nudges arrive in a thread of their own.

    Args:
        stop: Is set when the fleet is to stop.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._nudges: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, nudge: Nudge) -> None:
        """Take in a nudge, as the worker's ``on_nudge``."""
        self._nudges.put(nudge.message)

    def take(self) -> list[str]:
        """Return what has come since the last time."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._nudges.get_nowait())
        return found

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the agent is told something or is to stop; return whether that was first."""
        until = time.monotonic() + seconds
        while self._nudges.empty() and not self._stop.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._stop.wait(min(left, _LOOK_SECONDS))
        return True


class Fleet:
    """
    The demo agents at work.

    Args:
        root: The folder whose text files they read.
        endpoint: Where their telemetry goes, an OTLP/HTTP base URL.
        registry: Where their metrics live.
        storage: Where their step logs are written.
        control: Base URL of the API, where those who listen fetch what they are told.
        model: A litellm model string; None for the scripted models.
        personas: Who takes part.
        seed: Makes two runs alike.
    """

    def __init__(
        self,
        root: Path,
        *,
        endpoint: str,
        registry: CollectorRegistry,
        storage: Path,
        control: str | None = None,
        model: str | None = None,
        personas: Sequence[Persona] = FLEET,
        seed: int = 7,
    ) -> None:
        self._library = Library(root)
        self._endpoint = endpoint
        self._registry = registry
        self._storage = storage
        self._control = control
        self._model = LiteLLMModel(model) if model else None
        self._seed = seed
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._live, args=(persona,), name=f"demo-{persona.agent}", daemon=True)
            for persona in personas
        ]

    @property
    def files(self) -> int:
        """How many files there are to read."""
        return len(self._library.files)

    def start(self) -> None:
        """Set everybody to work."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Tell everybody to stop and wait for it, ``timeout`` seconds each at the most."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout)
        flush(timeout)

    def _live(self, persona: Persona) -> None:
        rng = random.Random(f"{self._seed}/{persona.agent}")
        inbox = Inbox(self._stop)
        tools = self._library.tools()
        if persona.extra_tools:
            tools |= persona.extra_tools(self._library, inbox.wait)
        pause = persona.starts_after
        while not self._stop.wait(pause):
            self._one_run(persona, rng, tools, inbox)
            pause = persona.rests

    def _one_run(self, persona: Persona, rng: random.Random, tools: dict[str, Tool], inbox: Inbox) -> None:
        model: Model = self._model or ScriptedModel(persona.script(self._library, rng))
        try:
            # Told to stop, it ends well: a worker that is left by an error has failed, and is recovered.
            with (
                Worker(
                    persona.agent,
                    framework=DEMO_FRAMEWORK,
                    endpoint=self._endpoint,
                    registry=self._registry,
                    storage=self._storage,
                    on_nudge=inbox.put if persona.listens else None,
                    control_endpoint=self._control,
                ) as worker,
                contextlib.suppress(FleetStoppedError),
            ):
                work(worker, model, persona.task, tools, self._stop.wait, inbox.take)
        except ProviderError:
            # The run is over, and the worker has reported why.
            return
