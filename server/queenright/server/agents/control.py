"""Control and recovery of loaded agents: each request goes to the agent's own runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from queenright.health.interventions.control import Delivery, Stopped, WorkerUnreachableError
from queenright.health.interventions.runtime_control import RuntimeControl
from queenright.health.interventions.target import Target
from queenright.health.recovery.respawner import CheckpointRef, Respawned, RespawnRefusedError
from queenright.health.recovery.runtime_respawner import RuntimeRespawner
from queenright.runtime.agent_runtime import AgentRuntime

Runtimes = Callable[[], Iterable[AgentRuntime]]
"""Returns the runtimes of the agents that are loaded now."""


class LoadedControl:
    """
    The ``WorkerControl`` of all loaded agents.

    Args:
        runtimes: Returns their runtimes.
    """

    def __init__(self, runtimes: Runtimes) -> None:
        self._runtimes = runtimes

    def reaches(self, target: Target) -> bool:
        """Return whether a loaded agent is this worker, or was in this session."""
        return self._of(target) is not None

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> Delivery:
        """Leave a message for the nodes that talk with a model; raises ``WorkerUnreachableError``."""
        return await self._control(target).nudge(
            target, message, instruction_id=instruction_id, expires_at=expires_at
        )

    async def terminate(self, target: Target, reason: str, *, instruction_id: str, within: float) -> Stopped:
        """Stop the run and save its state; raises ``WorkerUnreachableError``."""
        return await self._control(target).terminate(
            target, reason, instruction_id=instruction_id, within=within
        )

    def _of(self, target: Target) -> RuntimeControl | None:
        controls = (RuntimeControl(runtime) for runtime in self._runtimes())
        return next((one for one in controls if one.reaches(target)), None)

    def _control(self, target: Target) -> RuntimeControl:
        found = self._of(target)
        if found is None:
            raise WorkerUnreachableError(_gone(target))
        return found


class LoadedRespawner:
    """
    The ``Respawner`` of all loaded agents.

    Args:
        runtimes: Returns their runtimes.
    """

    def __init__(self, runtimes: Runtimes) -> None:
        self._runtimes = runtimes

    def reaches(self, target: Target) -> bool:
        """Return whether a loaded agent is this worker and has its session on disk."""
        return self._of(target) is not None

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """Return the checkpoints of the interrupted run; raises ``RespawnRefusedError``."""
        return await self._respawner(target).chain(target)

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Respawned:
        """Resume the run in its session; raises ``RespawnRefusedError``."""
        return await self._respawner(target).respawn(
            target,
            checkpoint,
            task_id=task_id,
            attempt=attempt,
            note=note,
            repeatable=repeatable,
            may_start_over=may_start_over,
        )

    def _of(self, target: Target) -> RuntimeRespawner | None:
        respawners = (RuntimeRespawner(runtime) for runtime in self._runtimes())
        return next((one for one in respawners if one.reaches(target)), None)

    def _respawner(self, target: Target) -> RuntimeRespawner:
        found = self._of(target)
        if found is None:
            raise RespawnRefusedError(_gone(target))
        return found


def _gone(target: Target) -> str:
    return f"worker {target} is not loaded here any more; load it with `queenright agents load`"
