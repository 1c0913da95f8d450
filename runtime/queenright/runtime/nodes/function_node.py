"""Function nodes, and routers that choose by a function: one call, one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import Verdict
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import Sleep, alone, within
from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.inputs import convert_arguments
from queenright.runtime.memory import SharedMemory, check_sizes
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.nodes.reporting import Reporter
from queenright.runtime.nodes.routing import ROUTE
from queenright.runtime.tooling.tool_threads import ToolThreads

NodeFunction = Callable[..., Any]
"""What a function node runs: its inputs come as keyword arguments."""


class FunctionFailed(QueenrightError):
    """Stands for what a function raised that would have ended more than its node: a ``SystemExit``, say."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(f"{type(fault).__name__}: {fault}")


class WrongOutput(QueenrightError):
    """Raised for a function that did not return what its node is there to put out."""


async def call_function(
    spec: NodeSpec,
    function: NodeFunction,
    given: Mapping[str, Any],
    *,
    visit: int,
    context: Mapping[str, object],
    reporter: Reporter,
    threads: ToolThreads,
    sleep: Sleep,
) -> NodeResult:
    """
    Call a node's function: a step that is accepted if it returns. What it raises is a result, no error.

    Args:
        spec: The node.
        function: A coroutine function, or a plain one, which runs in a thread.
        given: The node's inputs, by name.
        visit: Which visit of the node it is.
        context: Values for parameters called like them; what the function does not ask for it is not given.
        reporter: Is told.
        threads: Where a plain function runs.
        sleep: The clock of its time limit.
    """
    arguments = {
        **convert_arguments(function, _wanted(function, given, spec)),
        **_wanted(function, context),
    }
    await reporter.emit(EventType.NODE_LOOP_STARTED, {"messages": 0}, node_id=spec.id)
    result = NodeResult(outcome="failed")
    try:
        async with reporter.step(spec.id, visit) as step:
            if inspect.iscoroutinefunction(function):
                work = function(**arguments)
            else:
                work = threads.run(reporter.origin.session_id, lambda: function(**arguments))
            # Innermost, or a SystemExit would end the loop.
            value, fault = await within(spec.function_timeout_seconds, alone(work), sleep)
            if fault is not None:
                raise fault if isinstance(fault, Exception) else FunctionFailed(fault)
            outputs = _outputs(spec, value)
            step.verdict(Verdict.ACCEPT)
        result = NodeResult(outcome="done", outputs=outputs, turns=1, verdicts=(Verdict.ACCEPT.value,))
    except Exception as error:
        result = NodeResult(
            outcome="failed", turns=1, error=redact(str(error)), error_type=type(error).__name__
        )
    finally:
        ended = {"outcome": result.outcome, "turns": result.turns, "error": result.error}
        await reporter.emit(
            EventType.NODE_LOOP_COMPLETED, {**ended, "outputs": sorted(result.outputs)}, node_id=spec.id
        )
    return result


def _wanted(
    function: Callable[..., Any], given: Mapping[str, Any], spec: NodeSpec | None = None
) -> Mapping[str, Any]:
    """Return what a function has parameters for; all of it where its node says what its inputs are."""
    if spec is not None and spec.input_keys:
        return given
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some builtins have none that can be read, and take what they are given
        return given if spec is not None else {}
    if spec is not None and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {key: value for key, value in given.items() if key in parameters}


def _outputs(spec: NodeSpec, value: Any) -> dict[str, Any]:
    """
    Return what a function returned as outputs of its node.

    Raises:
        WrongOutput: A key is missing, or a router chose a route that is not there.
        MemoryAccessError: A value is no JSON, or too large.
    """
    if spec.node_type == "router":
        if value not in spec.routes:
            have = ", ".join(spec.routes)
            raise WrongOutput(f"router {spec.id!r} chose {value!r}, which is no route; there are: {have}")
        return {ROUTE: value}
    # An object is all the outputs, also where there is one: else a misspelt key would become its value.
    one = len(spec.output_keys) == 1 and not isinstance(value, Mapping)
    outputs = {spec.output_keys[0]: value} if one else dict(value) if isinstance(value, Mapping) else {}
    missing = [key for key in spec.output_keys if key not in outputs and key not in spec.nullable_output_keys]
    if missing:
        raise WrongOutput(
            f"function {spec.function!r} of node {spec.id!r} did not return {missing[0]!r}; "
            f"it must return an object with: {', '.join(spec.output_keys)}"
        )
    kept = SharedMemory({key: outputs[key] for key in spec.output_keys if key in outputs}).read_all()
    check_sizes(kept)
    return kept
