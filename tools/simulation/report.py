"""What a simulated week comes to, in numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from queenright.health.recovery.recovery import RecoveryState
from tools.simulation.fleet import DAY, Fleet, Tally

_LIMIT_WORDS = "within the hour"


def report(fleet: Fleet, tally: Tally, days: float) -> dict[str, Any]:
    """
    Return every number, ready for JSON. Times are in seconds.

    ``false_alarm_rate`` is the share of worker-days on which a worker without a fault was called stuck or
    failing, got a ticket, or had anything done to it. ``recovered_share`` is of the tasks that a recovery
    was begun for, but for those that no recovery could have saved and those that are being watched still,
    the share that got further or was finished afterwards.
    """
    latencies: dict[str, list[float]] = defaultdict(list)
    misses, aside = [], 0
    for fault in tally.faults:
        if fault.set_aside:
            aside += 1
        elif fault.threshold is not None and fault.seen_at is not None:
            latencies[fault.kind.value].append(max(0.0, fault.seen_at - fault.threshold))
        elif fault.threshold is not None and fault.threshold + 5.0 < (fault.over or fleet.now):
            misses.append(f"{fault.kind.value} of {fault.agent_id}")
    every = [latency for found in latencies.values() for latency in found]
    action_delays = [fault.acted_at - fault.began for fault in tally.faults if fault.acted_at is not None]
    alarm_days = {(who, int((when - fleet.began) // DAY)) for when, who, _, _ in tally.false_alarms}
    return {
        "workers": len(fleet.workers),
        "days": days,
        "events": tally.events,
        "gaps_from": fleet.gaps.origin,
        "faults": len(tally.faults),
        "faults_per_worker_day": fleet.odds.faults_per_worker_day,
        "host_slept": tally.host_slept,
        "detection": {kind: _spread(found) for kind, found in sorted(latencies.items())},
        "detection_all": _spread(every),
        "missed": misses,
        "set_aside": aside,
        "false_alarms": [f"{who}: {what} ({why})" for _, who, what, why in tally.false_alarms],
        "false_alarm_rate": len(alarm_days) / (len(fleet.workers) * days),
        "to_first_intervention": {
            "count": len(action_delays),
            "mean": sum(action_delays) / len(action_delays) if action_delays else 0.0,
            "p95": _quantile(action_delays, 0.95),
        },
        "interventions": dict(sorted(tally.interventions.items())),
        "tickets": dict(sorted(tally.tickets.items())),
        **_recoveries(tally),
        "finished_work_restarted": tally.restarted_finished,
        "acted_on_waiting_finished_or_other": tally.acted_wrongly,
        "llm_calls": 0,
    }


def _recoveries(tally: Tally) -> dict[str, Any]:
    """Count tasks, by how their last try ended."""
    of_task: dict[str, list[Any]] = defaultdict(list)
    for attempt in tally.recoveries:  # newest first
        of_task[attempt.task_id].append(attempt)
    savings = losses = watch_count = beyond = never = tries = 0
    for attempts in of_task.values():
        started_attempts = [each for each in attempts if each.started_at is not None]
        tries += len(started_attempts)
        if not started_attempts:
            never += any(_LIMIT_WORDS in each.outcome for each in attempts)
        elif attempts[0].session_id in tally.beyond_help:
            beyond += 1
        elif attempts[0].is_under_way:
            watch_count += 1
        elif attempts[0].state is RecoveryState.FAILED:
            losses += 1
        else:
            savings += 1
    return {
        "recoveries": {
            "tasks": savings + losses,
            "saved": savings,
            "lost": losses,
            "tries": tries,
            "beyond_help": beyond,
            "watched_still": watch_count,
            "refused_by_the_hours_limit": never,
        },
        "recovered_share": savings / (savings + losses) if savings + losses else math.nan,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "p50": _quantile(values, 0.5),
        "p99": _quantile(values, 0.99),
        "max": max(values, default=0.0),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    ranking = sorted(values)
    return ranking[min(len(ranking) - 1, math.ceil(share * len(ranking)) - 1)] if ranking else 0.0
