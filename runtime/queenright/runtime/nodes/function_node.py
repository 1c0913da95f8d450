"""Function nodes, and routers with a function: one call, one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.deadline import Sleep, run_isolated, within
from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.inputs import convert_arguments
from queenright.runtime.memory import SharedMemory, check_output_sizes
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.nodes.own_tools import find_missing_output_keys
from queenright.runtime.nodes.reporting import Reporter
from queenright.runtime.nodes.routing import ROUTE
from queenright.runtime.tooling.tool_threads import ToolThreads

NodeFunction = Callable[..., Any]
"""The function of a function node; it receives its inputs as keyword arguments."""


class FunctionFailedError(QueenrightError):
    """Wraps an exception of a function that would end more than its node, such as ``SystemExit``."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(f"{type(fault).__name__}: {fault}")


class InvalidOutputError(QueenrightError):
    """Raised when a function does not return its node's outputs."""


async def call_function(
    spec: NodeSpec,
    function: NodeFunction,
    inputs: Mapping[str, Any],
    *,
    visit: int,
    context: Mapping[str, object],
    reporter: Reporter,
    threads: ToolThreads,
    sleep: Sleep,
) -> NodeResult:
    """
    Call a node's function as one step, which is accepted if it returns. An exception becomes a result.

    Args:
        function: A coroutine function, or a plain one, which runs in a thread.
        context: Values of the runtime's context parameters; only those the function declares are passed.
    """
    arguments = {
        **convert_arguments(function, _select_arguments(function, inputs, spec)),
        **_select_arguments(function, context),
    }
    await reporter.emit(EventType.NODE_LOOP_STARTED, {"messages": 0}, node_id=spec.id)
    try:
        async with reporter.step(spec.id, visit) as step:
            if inspect.iscoroutinefunction(function):
                work = function(**arguments)
            else:
                work = threads.run(reporter.origin.session_id, lambda: function(**arguments))
            # `run_isolated` is innermost: otherwise a SystemExit would end the event loop.
            value, fault = await within(spec.function_timeout_seconds, run_isolated(work), sleep)
            if fault is not None:
                raise fault if isinstance(fault, Exception) else FunctionFailedError(fault)
            outputs = _convert_outputs(spec, value)
            step.verdict(Verdict.ACCEPT)
        result = NodeResult(outcome="done", outputs=outputs, turns=1, verdicts=(Verdict.ACCEPT.value,))
    except Exception as error:
        result = NodeResult(
            outcome="failed", turns=1, error=redact(str(error)), error_type=type(error).__name__
        )
    # A visit that was paused or cancelled has not ended.
    data = {"outcome": result.outcome, "turns": result.turns, "error": result.error}
    await reporter.emit(
        EventType.NODE_LOOP_COMPLETED, {**data, "outputs": sorted(result.outputs)}, node_id=spec.id
    )
    return result


def _select_arguments(
    function: Callable[..., Any], values: Mapping[str, Any], spec: NodeSpec | None = None
) -> Mapping[str, Any]:
    """Return the values that a function has parameters for; all of them if its node declares input keys."""
    if spec is not None and spec.input_keys:
        return values
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some builtins have no signature, and take what they are passed
        return values if spec is not None else {}
    if spec is not None and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return values
    return {key: value for key, value in values.items() if key in parameters}


def _convert_outputs(spec: NodeSpec, value: Any) -> dict[str, Any]:
    """
    Convert a function's return value to its node's outputs.

    Raises:
        InvalidOutputError: A key is missing, or a router returned an unknown route.
        MemoryAccessError: A value is not JSON, or too large.
    """
    if spec.node_type == "router":
        if value not in tuple(spec.routes):  # compared, not hashed: a function may return anything
            routes = ", ".join(spec.routes)
            raise InvalidOutputError(
                f"router {spec.id!r} returned {value!r}, which is not a route; routes: {routes}"
            )
        return {ROUTE: value}
    # An object always holds outputs by key, even a single one; otherwise a misspelt key would pass.
    is_single = len(spec.output_keys) == 1 and not isinstance(value, Mapping)
    outputs = {spec.output_keys[0]: value} if is_single else dict(value) if isinstance(value, Mapping) else {}
    if missing := find_missing_output_keys(spec, outputs):
        raise InvalidOutputError(
            f"function {spec.function!r} of node {spec.id!r} did not return {missing[0]!r}; "
            f"it must return an object with: {', '.join(spec.output_keys)}"
        )
    copies = SharedMemory({key: outputs[key] for key in spec.output_keys if key in outputs}).read_all()
    check_output_sizes(copies)
    return copies
