"""The fleet at a glance: how many workers are how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from queenright.health.findings import HealthState
from queenright.health.monitor import WorkerHealth
from queenright.health.vitals import SessionStatus
from queenright.instrumentation.names import WaitingReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """
    Sessions, counted at one moment.

    ``states``, ``waiting`` and ``agents`` are of those that are not over, or were given up. An agent with
    several sessions is as bad as the worst of them.
    """

    sessions: int
    states: Mapping[HealthState, int]
    waiting: Mapping[WaitingReason, int]
    over: Mapping[SessionStatus, int]
    agents: Mapping[str, HealthState]

    def agents_by_state(self) -> dict[HealthState, int]:
        """Return how many agents are how, every state named."""
        counted = Counter(self.agents.values())
        return {state: counted[state] for state in HealthState}


def fleet_of(workers: Iterable[WorkerHealth]) -> Fleet:
    """Count workers, in one pass."""
    healthy, healthy_state = 0, HealthState.HEALTHY  # most are: the loop is short for them
    states: Counter[HealthState] = Counter()
    waiting: Counter[WaitingReason] = Counter()
    over: Counter[SessionStatus] = Counter()
    agents: dict[str, HealthState] = {}
    for worker in workers:
        v, state = worker.vitals, worker.state
        if v.ended_at is not None:
            standing = worker.standing
            if standing is None:
                over[v.status] += 1
                continue
            state = standing
        if state is healthy_state:
            healthy += 1
        else:
            states[state] += 1
        if v.waiting is not None:
            waiting[v.waiting] += 1
        known = agents.setdefault(v.agent_id, state)
        if known is not state and state.rank > known.rank:
            agents[v.agent_id] = state
    states[healthy_state] = healthy
    return Fleet(
        sessions=sum(states.values()),
        states={state: states[state] for state in HealthState},
        waiting=dict(waiting),
        over=dict(over),
        agents=agents,
    )
