"""The fleet: one thread a persona, from start until it is told to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.demo.agent import Stopped, work
from queenright.demo.model import LiteLLMModel, Model, ProviderError, ScriptedModel
from queenright.demo.personas import FLEET, Persona
from queenright.demo.tools import Library, Tool
from queenright.instrumentation import Worker, flush

DEMO_FRAMEWORK = "queenright-demo"


class Fleet:
    """
    The demo agents at work.

    Args:
        root: The folder whose text files they read.
        endpoint: Where their telemetry goes, an OTLP/HTTP base URL.
        registry: Where their metrics live.
        storage: Where their step logs are written.
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
        model: str | None = None,
        personas: Sequence[Persona] = FLEET,
        seed: int = 7,
    ) -> None:
        self._library = Library(root)
        self._endpoint = endpoint
        self._registry = registry
        self._storage = storage
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
        tools = self._library.tools()
        if persona.extra_tools:
            tools |= persona.extra_tools(self._library, self._stop)
        pause = persona.starts_after
        while not self._stop.wait(pause):
            self._one_run(persona, rng, tools)
            pause = persona.rests

    def _one_run(self, persona: Persona, rng: random.Random, tools: dict[str, Tool]) -> None:
        model: Model = self._model or ScriptedModel(persona.script(self._library, rng))
        sleep: Callable[[float], bool] = self._stop.wait
        try:
            with Worker(
                persona.agent,
                framework=DEMO_FRAMEWORK,
                endpoint=self._endpoint,
                registry=self._registry,
                storage=self._storage,
            ) as worker:
                work(worker, model, persona.task, tools, sleep)
        except (Stopped, ProviderError):
            # The run is over: told to stop, or its provider is gone. The worker has reported both.
            return
