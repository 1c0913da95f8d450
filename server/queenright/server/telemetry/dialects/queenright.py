"""Attributes that `queenright.instrumentation` adds to the GenAI conventions; see docs/otlp.md."""

from __future__ import annotations

from queenright.instrumentation import names

ATTRIBUTES = {
    "incarnation": (names.INCARNATION_ID,),
    "graph": (names.GRAPH_ID,),
    "node": (names.NODE_ID,),
    "arguments_hash": (names.TOOL_ARGUMENTS_HASH,),
    "result_hash": (names.TOOL_RESULT_HASH,),
    "effect": (names.TOOL_EFFECT,),
    "timeout": (names.TOOL_TIMEOUT,),
    "index": (names.STEP_INDEX,),
    "verdict": (names.STEP_VERDICT,),
    "feedback": (names.STEP_FEEDBACK,),
    "event": ("event.name",),
    "framework": (names.FRAMEWORK,),
    "heartbeat_interval": (names.HEARTBEAT_INTERVAL,),
    "phase": (names.HEARTBEAT_PHASE,),
    "progress": (names.HEARTBEAT_PROGRESS,),
    "last_tool_call": (names.HEARTBEAT_LAST_TOOL_CALL,),
    "token_count": (names.HEARTBEAT_TOKEN_COUNT,),
    "error_count": (names.HEARTBEAT_ERROR_COUNT,),
    "task": (names.TASK_ID,),
    "repeatable": (names.TASK_REPEATABLE,),
    "control": (names.CONTROL,),
    "metrics_served": (names.METRICS_SERVED,),
    "waiting_reason": (names.WAITING_REASON,),
    "checkpoint": (names.CHECKPOINT_ID,),
    "resource": (names.RESOURCE_NAME,),
    "resource_used": (names.RESOURCE_USED,),
    "resource_limit": (names.RESOURCE_LIMIT,),
    "breaker": (names.BREAKER_NAME,),
    "breaker_state": (names.BREAKER_STATE,),
    "files_changed": (names.OUTPUT_FILES_CHANGED,),
    "tests_passed": (names.OUTPUT_TESTS_PASSED,),
    "tests_failed": (names.OUTPUT_TESTS_FAILED,),
}
