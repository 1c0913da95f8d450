"""
The progress of a worker, and the counts that it resets.

Progress is an ACCEPT, a checkpoint, or a tool result that was not seen before. A gain is a change, an ACCEPT,
a checkpoint, or user input. A heartbeat is neither.
"""

from __future__ import annotations

import sys
from typing import Final

from queenright.health.vitals.vital_state import VitalState

TOKENS: Final = "tokens"
"""The key under which the tokens between two gains are learned."""
TOKENS_COUNTED_AS: Final = 1_000
"""The number of tokens per learned unit."""
FASTEST_REPLY_SECONDS: Final = 5.0
"""The minimum seconds that a person needs to read an answer and write the next message."""
SLOWEST_ANSWER_SECONDS: Final = 60.0
"""The assumed duration, in seconds, of a model call that reports none."""


def record_progress(v: VitalState, at: float) -> None:
    """Record progress: a new result, an ACCEPT or a checkpoint."""
    if v.last_progress is None or at > v.last_progress:
        v.last_progress = v.progress_from = at
    v.stale_calls = v.fruitless = v.polls = v.rereads = 0
    end_failed_calls(v)
    if v.breakers.half_open and at > v.breakers_since:
        # No call has probed these half-open breakers, but the worker makes progress without them.
        v.breakers = v.breakers._replace(half_open=())
    if v.recovery_failed and at > (v.recovery_failed_at or 0.0):
        v.recovery_failed = ""


def record_gain(v: VitalState, at: float) -> None:
    """Record a gain: a change, an accepted or saved result, or user input."""
    if v.tokens_since_gain and v.clocks is not None:
        v.clocks.learn(TOKENS, v.tokens_since_gain / TOKENS_COUNTED_AS)
    v.last_gain_at, v.calls_since_gain, v.tokens_since_gain = at, 0, 0
    end_standstill(v)


def record_accepted_work(v: VitalState, at: float) -> None:
    """Record an ACCEPT or a checkpoint."""
    record_progress(v, at)
    record_gain(v, at)
    v.idle_turns = 0
    v.refusals = ()
    v.recorded_results, v.stale_results = 0, 0.0


def record_user_input(v: VitalState, at: float) -> None:
    """Record user input. Repeats before it no longer count."""
    v.has_user = True
    record_gain(v, at)
    v.stale_calls = v.fruitless = v.polls = v.rereads = 0
    v.streak = v.idle_turns = v._idle_before = 0
    v.refusals = ()
    v.recorded_results, v.stale_results = 0, 0.0
    v._has_waited = False
    end_failed_calls(v)
    if v.calls is not None:
        v.calls.clear()


def add_idle_turn(v: VitalState, at: float, *, is_unprompted: bool) -> None:
    """Count a model turn without a tool call. A later tool call resets the count."""
    if v.idle_turns == 0:
        v.idle_turns_since = at
        v.unprompted_turns = 0
    v.idle_turns += 1
    v.unprompted_turns += is_unprompted


def begin_visit(v: VitalState) -> None:
    """Reset the counts of bad steps and results after an ACCEPT or at a new visit of a node."""
    v.steps_since_last_accept = 0
    v.bad_repeats = 0
    v.recorded_results, v.stale_results = 0, 0.0
    end_standstill(v)


def enter_node(v: VitalState, node_id: str, at: float) -> None:
    """Record the worker's node. Another node is a new visit."""
    if node_id and node_id != v.node_id:
        if v.node_id:
            begin_visit(v)
        v.node_id = sys.intern(node_id)


def end_standstill(v: VitalState) -> None:
    """Reset the count of repeats and failures among results."""
    v.results_since_gain, v.stale_results_since_gain = 0, 0.0


def end_failed_calls(v: VitalState) -> None:
    """Reset the count of failed calls."""
    v.failed_calls = 0
    v.failing_since = None
