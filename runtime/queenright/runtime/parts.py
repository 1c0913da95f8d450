"""What streams and executors are made of: the graph as it was added, and the runtime around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry

from queenright.instrumentation.telemetry import Telemetry
from queenright.runtime.breakers import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec, NodeSpec
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.function_node import NodeFunction
from queenright.runtime.nodes.guard import GuardFactory
from queenright.runtime.nodes.node_judge import NodeJudge
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.session_store import SessionStore
from queenright.runtime.tooling.approval import Approvals
from queenright.runtime.tooling.tools import ToolRegistry

_LIVES_KEPT: Final = 10_000
"""So many sessions in which a run was brought back are remembered, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGraph:
    """A graph with everything its nodes need."""

    spec: GraphSpec
    model: LLMProvider | None
    models: Mapping[str, LLMProvider]
    tools: ToolRegistry
    functions: Mapping[str, NodeFunction]
    judges: Mapping[str, NodeJudge]
    goal: Goal | None
    agent_id: str
    """The worker that this graph is; empty for a graph of the service itself, which is none."""
    primary: bool
    store: SessionStore

    def model_of(self, node: NodeSpec) -> LLMProvider:
        """Return who thinks in ``node``; ``add_graph`` saw to it that there is somebody."""
        model = self.models[node.model] if node.model else self.model
        assert model is not None
        return model


class Lives:
    """
    Which life of its worker a run is: the process's own, until a run of the session is brought back.

    Whoever was told something for the life before must not do it to the one after.

    Args:
        process: The incarnation id of this process.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self._later: dict[Path, str] = {}

    def of(self, folder: Path, new: str = "") -> str:
        """Return the incarnation id of runs in ``folder``; ``new`` is that from now on, if it is given."""
        if new:
            self._later.pop(folder, None)
            self._later[folder] = new
            if len(self._later) > _LIVES_KEPT:
                del self._later[next(iter(self._later))]
        return self._later.get(folder, self.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor needs of the runtime that it is on; a stream needs ``StreamSurroundings``."""

    bus: EventBus
    clock: Clock
    monotonic: Clock
    sleep: Sleep
    ids: Callable[[], str]
    disk: Disk
    random: Random
    guards: GuardFactory | None
    breakers: Breakers | None = None
    telemetry: Telemetry
    registry: CollectorRegistry
    muted: tuple[Telemetry, CollectorRegistry]
    """For graphs that are no workers: their steps are logged, and counted nowhere."""
    lives: Lives
    context: Mapping[str, object]
    """Of the context parameters of tools, those that are the same for all: ``runtime``."""
    approvals: Approvals = field(default_factory=Approvals)
    """Are asked before a tool of a worker runs."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """By folder: runs of one graph in one session take turns."""
