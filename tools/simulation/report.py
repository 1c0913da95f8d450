"""The results of a simulated week, in numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from queenright.health.recovery.recovery import RecoveryState
from tools.simulation.fleet import DAY, Fleet, Tally

_LIMIT_WORDS = "within the hour"


def build_report(fleet: Fleet, tally: Tally, days: float) -> dict[str, Any]:
    """
    Return all results as JSON values. Times are in seconds.

    ``false_alarm_rate`` is the share of worker-days on which a worker without a fault was stuck or failing,
    got a ticket, or was acted on. ``recovered_share`` is the share of recovered tasks that progressed or
    finished afterwards; tasks that no recovery can save and those still being verified do not count.
    """
    latencies: dict[str, list[float]] = defaultdict(list)
    misses, excluded_count = [], 0
    for fault in tally.faults:
        if fault.is_excluded:
            excluded_count += 1
        elif fault.threshold is not None and fault.detected_at is not None:
            latencies[fault.kind.value].append(max(0.0, fault.detected_at - fault.threshold))
        elif fault.threshold is not None and fault.threshold + 5.0 < (fault.ended_at or fleet.now):
            misses.append(f"{fault.kind.value} of {fault.agent_id}")
    all_latencies = [latency for values in latencies.values() for latency in values]
    action_delays = [
        fault.first_action_at - fault.began_at for fault in tally.faults if fault.first_action_at is not None
    ]
    alarm_days = {
        (agent_id, int((time - fleet.began_at) // DAY)) for time, agent_id, _, _ in tally.false_alarms
    }
    return {
        "workers": len(fleet.workers),
        "days": days,
        "events": tally.events,
        "gaps_from": fleet.gaps.origin,
        "faults": len(tally.faults),
        "faults_per_worker_day": fleet.odds.faults_per_worker_day,
        "host_slept": tally.host_sleeps,
        "detection": {kind: _summarize(values) for kind, values in sorted(latencies.items())},
        "detection_all": _summarize(all_latencies),
        "missed": misses,
        "set_aside": excluded_count,
        "false_alarms": [
            f"{agent_id}: {alarm} ({reason})" for _, agent_id, alarm, reason in tally.false_alarms
        ],
        "false_alarm_rate": len(alarm_days) / (len(fleet.workers) * days),
        "to_first_intervention": {
            "count": len(action_delays),
            "mean": sum(action_delays) / len(action_delays) if action_delays else 0.0,
            "p95": _quantile(action_delays, 0.95),
        },
        "interventions": dict(sorted(tally.interventions.items())),
        "tickets": dict(sorted(tally.tickets.items())),
        **_count_recoveries(tally),
        "finished_work_restarted": tally.finished_restarts,
        "acted_on_waiting_finished_or_other": tally.wrong_actions,
        "llm_calls": 0,
    }


def _count_recoveries(tally: Tally) -> dict[str, Any]:
    """Count tasks by the result of their last attempt."""
    attempts_by_task: dict[str, list[Any]] = defaultdict(list)
    for attempt in tally.recoveries:  # newest first
        attempts_by_task[attempt.task_id].append(attempt)
    savings = losses = watch_count = unrecoverable_count = refused_count = tries = 0
    for attempts in attempts_by_task.values():
        started_attempts = [attempt for attempt in attempts if attempt.started_at is not None]
        tries += len(started_attempts)
        if not started_attempts:
            refused_count += any(_LIMIT_WORDS in attempt.outcome for attempt in attempts)
        elif attempts[0].session_id in tally.unrecoverable:
            unrecoverable_count += 1
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
            "beyond_help": unrecoverable_count,
            "watched_still": watch_count,
            "refused_by_the_hours_limit": refused_count,
        },
        "recovered_share": savings / (savings + losses) if savings + losses else math.nan,
    }


def _summarize(values: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "p50": _quantile(values, 0.5),
        "p99": _quantile(values, 0.99),
        "max": max(values, default=0.0),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    ranking = sorted(values)
    return ranking[min(len(ranking) - 1, math.ceil(share * len(ranking)) - 1)] if ranking else 0.0
