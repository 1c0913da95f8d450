"""Examples of the models, for the OpenAPI document: generated from field names and types."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from queenright.api.base_model import KnownValues

NOW: Final = 1_769_248_800.0
"""The time of the examples, in seconds since the epoch."""

_EXAMPLE_ID: Final = "018f6f7e-0000-7000-8000-000000000001"
_EVIDENCE: Final = "search was called 12 times with the same arguments and the same result"

_EXAMPLE_VALUES: Final[dict[str, Any]] = {
    "active_kinds": ["doom_loop"],
    "agent_id": "researcher",
    "analysis": "The worker repeats the same search.",
    "arguments": '{"page": 1}',
    "at": NOW,
    "attempts": 1,
    "bad_steps": 12,
    "by": "ada",
    "calls": 40,
    "cause": "The same search is repeated",
    "checked_at": NOW - 120,
    "checkpoint_id": "0000000003-5f2c9a",
    "comment": "being fixed",
    "cost": 0.04,
    "cost_usd": 0.31,
    "counts": {"failing": 0, "stuck": 1, "degraded": 0, "healthy": 11, "terminated": 0},
    "created_at": NOW - 60,
    "deadline": NOW + 840,
    "default_entry_point": "check",
    "description": "Finds broken links in a folder of Markdown.",
    "dialect": "openinference",
    "entry_point_id": "check",
    "entry_points": ["check"],
    "error": "",
    "evidence": _EVIDENCE,
    "evidence_snippet": "search(q='bees') -> 0 results, 12 times",
    "execution_id": "01jh2q3v7d4m9x5c8k6w0t1e2f",
    "expires_at": NOW + 1740,
    "failed": 31,
    "failures": 5,
    "finding_evidence": _EVIDENCE,
    "framework": "queenright",
    "goal": "Every link leads somewhere.",
    "graph_id": "docs_checker",
    "graphs": ["docs_checker"],
    "health": "stuck",
    "input_keys": ["broken_links"],
    "judge_reasoning": "12 calls with the same arguments returned the same result.",
    "kind": "doom_loop",
    "last_activity": NOW - 2,
    "libraries": ["openinference.instrumentation.langchain"],
    "matchers": ['agent="researcher"', 'cause="doom_loop"'],
    "message": "Write down what blocks you.",
    "missing": "tool calls have no arguments, so repeated calls are not detected",
    "model": "claude-sonnet-4-5",
    "models": ["claude-sonnet-4-5"],
    "name": "docs_checker",
    "node_id": "search",
    "nodes": ["list_pages", "write_report"],
    "occurrences": 4,
    "outcome": "",
    "output_keys": ["report"],
    "outputs": {"report": "report.md"},
    "path": "/srv/agents/docs_checker",
    "peer": "http://127.0.0.1:9093",
    "peers": ["http://127.0.0.1:9093"],
    "phase": "llm",
    "provider": "anthropic",
    "python": "3.11.9",
    "reason": _EVIDENCE,
    "receiver": "pagerduty",
    "recent_verdicts": ["ACCEPT", "RETRY", "RETRY"],
    "related_kinds": ["doom_loop"],
    "remedy": "set OPENINFERENCE_HIDE_INPUTS=false and OPENINFERENCE_HIDE_OUTPUTS=false",
    "roots": ["/srv/agents"],
    "session_id": "session-1",
    "severity": "high",
    "silence_id": "b3c5",
    "state": "stuck",
    "status": "open",
    "steps": 20,
    "steps_since_last_accept": 12,
    "storm_id": "",
    "suggested_action": "Nudge it to try another query.",
    "target": "search",
    "task_id": "report-7",
    "text": "It repeats one search. I would nudge it.",
    "threshold": 5,
    "time": NOW - 120,
    "timezone": "UTC",
    "title": "researcher repeats one search",
    "tokens": 41_200,
    "tool": "search",
    "tools": ["read_lines", "write_report"],
    "total_steps_checked": 20,
    "triage_reason": "It does not recover by itself.",
    "type": "health_state_changed",
    "until": NOW + 3600,
    "uptime_seconds": 600.0,
    "version": "0.4.0",
    "waiting": "",
    "worker_excerpt": "I will search once more.",
    "worker_span_id": "00f067aa0ba902b7",
    "worker_trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
}
"""Values of fields by name, used where the type allows it."""

_DEFAULTS: Final[dict[Any, Any]] = {str: "", int: 0, float: NOW - 120, bool: False, dict: {}, list: []}


def make_example(model: type[BaseModel]) -> dict[str, Any]:
    """Return an example of a model, as JSON values."""
    return {
        name: field.examples[0] if field.examples else _make_value(name, field.annotation, field.metadata)
        for name, field in model.model_fields.items()
    }


def _make_value(name: str, kind: Any, metadata: Any = ()) -> Any:
    origin, arguments, example = get_origin(kind), get_args(kind), _EXAMPLE_VALUES.get(name)
    if origin is Annotated:
        return _make_value(name, arguments[0], arguments[1:])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        value = _make_value(
            name, next(argument for argument in arguments if argument is not NoneType), metadata
        )
        is_shown = name in _EXAMPLE_VALUES or isinstance(value, dict) or NoneType not in arguments
        return value if is_shown else None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return make_example(kind)
    if origin is list and arguments[0] is not str and get_origin(arguments[0]) is not dict:
        return [_make_value(name, arguments[0])]
    for mark in metadata:
        if isinstance(mark, KnownValues):
            return example if example in mark.words else next(filter(None, mark.words))
    base = origin or kind
    if isinstance(example, base):
        return example
    return _EXAMPLE_ID if base is str and name.endswith("_id") else _DEFAULTS.get(base)
