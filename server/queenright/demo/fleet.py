"""The demo fleet: one thread per persona."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from pathlib import Path

from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from queenright.demo.agent import run_task
from queenright.demo.model import LiteLLMModel, Model, ProviderError, ScriptedModel
from queenright.demo.personas import FLEET, Persona
from queenright.demo.tools import Library, Tool
from queenright.instrumentation import Nudge, Worker, names
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.otlp import OtlpSender, preload
from queenright.instrumentation.telemetry import Telemetry

DEMO_FRAMEWORK = "queenright-demo"

DEMO_AGENTS = Path(__file__).with_name("agents")
"""Folder of the demo agents that run inside the service."""

_POLL_SECONDS = 0.2
"""Seconds between checks for nudges while an agent waits."""


class NudgeInbox:
    """
    Nudges for one agent, which arrive on another thread.

    Args:
        stop: Set when the fleet stops.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._nudges: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, nudge: Nudge) -> None:
        """Store a nudge; used as the worker's ``on_nudge``."""
        self._nudges.put(nudge.message)

    def take(self) -> list[str]:
        """Return the nudges since the last call."""
        messages = []
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self._nudges.get_nowait())
        return messages

    def wait(self, seconds: float) -> bool:
        """Wait for a time; return True at once if a nudge arrives or the fleet stops."""
        deadline = time.monotonic() + seconds
        while self._nudges.empty() and not self._stop.is_set():
            time_left = deadline - time.monotonic()
            if time_left <= 0:
                return False
            self._stop.wait(min(time_left, _POLL_SECONDS))
        return True


class Fleet:
    """
    The running demo agents.

    Args:
        root: Folder whose text files they read.
        endpoint: OTLP/HTTP base URL for their telemetry.
        registry: Registry for their metrics.
        storage: Folder for their step logs.
        control: Base URL of the API, from which they fetch nudges; without it, they take none.
        model: A litellm model; None for the scripted models.
        personas: The agents.
        seed: Makes runs reproducible.
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
        self._registry = registry
        self._storage = storage
        self._control = control
        self._model = LiteLLMModel(model) if model else None
        self._seed = seed
        self._stop = threading.Event()
        self._stops = {persona.agent: threading.Event() for persona in personas}
        origins = {(persona.team, persona.repository) for persona in personas}
        self._telemetry = {origin: _create_telemetry(endpoint, *origin) for origin in origins}
        self._threads = [
            threading.Thread(
                target=self._run_persona, args=(persona,), name=f"demo-{persona.agent}", daemon=True
            )
            for persona in personas
        ]

    @property
    def files(self) -> int:
        """Number of files to read."""
        return len(self._library.files)

    def start(self) -> None:
        """Start all agents."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Stop all agents, waiting up to ``timeout`` seconds for each."""
        self._stop.set()
        for stop in self._stops.values():
            stop.set()
        for thread in self._threads:
            thread.join(timeout)
        for telemetry in self._telemetry.values():
            telemetry.flush(timeout)

    def _run_persona(self, persona: Persona) -> None:
        rng = random.Random(f"{self._seed}/{persona.agent}")
        stop = self._stops[persona.agent]
        inbox = NudgeInbox(stop)
        tools = self._library.tools()
        if persona.extra_tools:
            tools |= persona.extra_tools(self._library, inbox.wait)
        pause = persona.starts_after
        while not self._stop.wait(pause):
            self._run_once(persona, rng, tools, inbox, stop)
            stop.clear()
            pause = persona.pause_seconds

    def _run_once(
        self,
        persona: Persona,
        rng: random.Random,
        tools: dict[str, Tool],
        inbox: NudgeInbox,
        stop: threading.Event,
    ) -> None:
        model: Model = self._model or ScriptedModel(
            persona.script(self._library, rng), persona.model, persona.provider
        )

        def on_terminate(_reason: str) -> None:
            stop.set()

        try:
            with Worker(
                persona.agent,
                framework=DEMO_FRAMEWORK,
                telemetry=self._telemetry[persona.team, persona.repository],
                registry=self._registry,
                storage=self._storage,
                on_nudge=inbox.put if self._control else None,
                on_terminate=on_terminate if self._control else None,
                control_endpoint=self._control,
            ) as worker:
                run_task(worker, model, persona.task, tools, stop.wait, inbox.take)
        except (ProviderError, CancelledError):
            # The worker has reported how it ended.
            return


def _create_telemetry(endpoint: str, team: str, repository: str) -> Telemetry:
    """Return the telemetry of a process that works for a team, in a repository."""
    preload()
    resource = Resource.create(
        {
            names.SERVICE_NAME: DEMO_FRAMEWORK,
            names.SERVICE_INSTANCE_ID: new_id(),
            "service.namespace": team,
            "vcs.repository.name": repository,
        }
    )
    return Telemetry(connect=lambda: OtlpSender(endpoint, resource))
