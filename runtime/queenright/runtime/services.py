"""Loaded graphs, and the runtime services that streams and executors share."""

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
from queenright.runtime.breaker_protocols import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec, NodeSpec
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.function_node import NodeFunction
from queenright.runtime.nodes.node_guard import GuardFactory
from queenright.runtime.nodes.node_judge import NodeJudge
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.session_store import SessionStore
from queenright.runtime.tooling.approval import ApprovalGate
from queenright.runtime.tooling.tools import ToolRegistry

_MAX_RESPAWNED_SESSIONS: Final = 10_000
"""Number of respawned sessions whose incarnation is kept, newest first."""


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
    """The graph's worker id; empty for a graph of the service itself, which is not a worker."""
    primary: bool
    store: SessionStore

    def get_model(self, node: NodeSpec) -> LLMProvider:
        """Return the model of ``node``; ``add_graph`` has checked that there is one."""
        model = self.models[node.model] if node.model else self.model
        assert model is not None
        return model


class IncarnationRegistry:
    """
    The incarnation of each session's runs: the process's own, until a run of the session is respawned.

    Interventions for an earlier incarnation must not affect a later one.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self._respawn_ids: dict[Path, str] = {}

    def resolve(self, folder: Path, new_id: str = "") -> str:
        """Return the incarnation id of runs in ``folder``; if ``new_id`` is given, set it first."""
        if new_id:
            self._respawn_ids.pop(folder, None)
            self._respawn_ids[folder] = new_id
            if len(self._respawn_ids) > _MAX_RESPAWNED_SESSIONS:
                del self._respawn_ids[next(iter(self._respawn_ids))]
        return self._respawn_ids.get(folder, self.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeServices:
    """The runtime's services, as executors use them; streams use ``StreamServices``."""

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
    null_telemetry: tuple[Telemetry, CollectorRegistry]
    """For graphs that are not workers: their spans and metrics are discarded."""
    incarnations: IncarnationRegistry
    context: Mapping[str, object]
    """Context parameters that every tool gets: ``runtime``."""
    approvals: ApprovalGate = field(default_factory=ApprovalGate)
    """Approves tool calls of workers."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Locks by folder: runs of one graph in one session take turns."""
