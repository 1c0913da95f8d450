"""The names that inputs of runs may have, and their conversion for functions (B99)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.inputs import InvalidInputError, input_schema
from queenright.runtime.storage.session_state import SessionStatus
from tests.runtime.conftest import ScriptedModel


class Colour(StrEnum):
    AMBER = "amber"


@dataclass
class Hive:
    number: int


async def run_function(
    tmp_path: Path, function: Callable[..., Any], input_data: dict[str, Any], **node: Any
) -> ExecutionResult:
    graph = GraphSpec(
        id="g",
        nodes=(NodeSpec(id="n", node_type="function", function="f", **node),),
        entry_points=(EntryPointSpec(id="e", node_id="n"),),
    )
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path)
    runtime.add_graph(graph, functions={"f": function})
    await runtime.start()
    try:
        return await runtime.wait(await runtime.trigger("e", input_data))
    finally:
        await runtime.stop()


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (set[str], ["a", "b"], {"a", "b"}),
        (datetime, "2026-11-22T18:00:00Z", datetime(2026, 11, 22, 18, tzinfo=UTC)),
        (list[Path], ["docs"], [Path("docs")]),
        (tuple[int, int], [1, 2], (1, 2)),
        (Hive, {"number": 3}, Hive(3)),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Iterable[str], ["a"], ["a"]),
        (dict[str, Any], {"a": [1]}, {"a": [1]}),
        (str | None, None, None),
        (EventBus, "not JSON's business", "not JSON's business"),
    ],
)
async def test_input_is_converted_to_the_annotated_type(
    tmp_path: Path, annotation: Any, value: Any, expected: Any
) -> None:
    values: list[Any] = []

    def take_input(value: Any, other: int = 0) -> None:
        values.append(value)

    take_input.__annotations__["value"] = annotation
    for node in ({}, {"input_keys": ("value",)}):
        result = await run_function(tmp_path, take_input, {"value": value}, **node)
        assert result.status is SessionStatus.COMPLETED, result.error

    assert values == [expected, expected]
    assert {type(value) for value in values} == {type(expected)}


async def test_function_gets_a_member_of_its_enum(tmp_path: Path) -> None:
    names: list[Any] = []

    def take(colour: Colour) -> None:
        names.append(colour.name)

    await run_function(tmp_path, take, {"colour": "amber"})

    assert names == ["AMBER"]


def make_cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize(
    ("value", "reason"), [(make_cyclic(), "Circular"), (object(), "object"), (float("nan"), "Out of range")]
)
async def test_non_json_input_is_refused(tmp_path: Path, value: Any, reason: str) -> None:
    def take(value: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidInputError, match=f"'value' is not a JSON value.*{reason}") as error:
        await run_function(tmp_path, take, {"value": value})

    assert error.value.field == "value"


async def test_unknown_name_is_refused_unless_the_function_takes_any(tmp_path: Path) -> None:
    def take_nothing() -> None: ...

    def take_any(**inputs: Any) -> None: ...

    with pytest.raises(InvalidInputError, match="input 'x' is unknown: graph 'g' takes no input"):
        await run_function(tmp_path, take_nothing, {"x": 1})
    assert (await run_function(tmp_path, take_any, {"x": 1})).succeeded
    assert (await run_function(tmp_path, take_nothing, {"message": "go", "tick": 1, "event": {}})).succeeded


async def test_inputs_used_by_other_parts_of_the_graph_are_accepted(tmp_path: Path) -> None:
    """Later nodes, edges and the goal read them from the session's memory."""

    def count(a: int) -> None: ...

    def later(*, b: int = 0) -> dict[str, int]:
        return {"made": b}

    graph = GraphSpec(
        id="g",
        nodes=(
            NodeSpec(id="first", node_type="function", function="first"),
            NodeSpec(
                id="later",
                node_type="function",
                function="later",
                input_keys=("b",),
                output_keys=("made",),
            ),
            NodeSpec(id="talk", system_prompt="Talk.", input_keys=("tone",)),
        ),
        edges=(
            EdgeSpec(
                source="first",
                target="later",
                when="expression",
                expression='memory["skip"] != limits.most',
                input_mapping={"b": "stock"},
                priority=1,
            ),
            EdgeSpec(source="first", target="talk"),
        ),
        entry_points=(EntryPointSpec(id="e", node_id="first"),),
    )
    goal = Goal(id="done", success_criteria=(SuccessCriterion(id="c", expression="made >= wanted"),))
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path)
    runtime.add_graph(graph, functions={"first": count, "later": later}, goal=goal, model=ScriptedModel())
    await runtime.start()
    input_data = {
        "a": 1, "b": 2, "made": 0, "tone": "kind", "skip": 1, "limits": {"most": 2}, "stock": 3, "wanted": 2,
    }  # fmt: skip

    result = await runtime.wait(await runtime.trigger("e", input_data))
    with pytest.raises(InvalidInputError, match=r"input 'stok' is unknown .did you mean 'stock'"):
        await runtime.trigger("e", {**input_data, "stok": 3})
    await runtime.stop()

    assert (result.succeeded, result.outputs) == (True, {"made": 3})


async def test_inputs_used_by_a_graph_in_the_same_session_are_accepted(tmp_path: Path) -> None:
    def take(a: int) -> None: ...

    def make_graph(name: str, isolation: Any) -> GraphSpec:
        return GraphSpec(
            id=name,
            nodes=(NodeSpec(id="n", node_type="function", function="f", input_keys=(f"of_{name}",)),),
            entry_points=(EntryPointSpec(id="e", node_id="n", isolation_level=isolation),),
        )

    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path)
    for name, isolation in (("main", "per_run"), ("side", "shared"), ("other", "per_run")):
        runtime.add_graph(
            make_graph(name, isolation), functions={"f": lambda **input_data: None}, primary=name == "main"
        )
    await runtime.start()
    await runtime.trigger("e", {"of_main": 1, "of_side": 2}, graph_id="main")
    await runtime.trigger("e", {"of_main": 1, "of_side": 2}, graph_id="side")
    with pytest.raises(InvalidInputError, match="input 'of_other' is unknown"):
        await runtime.trigger("e", {"of_main": 1, "of_other": 2}, graph_id="main")
    await runtime.stop()


def test_input_schema_follows_the_annotations_of_the_function() -> None:
    def paint(  # type: ignore[no-untyped-def]
        folder: Annotated[str, Field(description="Where the frames are.")],
        speed: Literal["fast", "slow"],
        hive: Hive,
        untyped,
        times: int = 3,
        dry: bool = False,
    ) -> None: ...

    schema = input_schema(NodeSpec(id="n", node_type="function", function="paint"), paint)

    fields = schema["properties"]
    assert schema["required"] == ["folder", "speed", "hive", "untyped"]
    assert fields["folder"] == {"type": "string", "description": "Where the frames are."}
    assert fields["speed"] == {"type": "string", "enum": ["fast", "slow"]}
    assert fields["hive"]["type"] == "object"
    assert fields["untyped"] == {}
    assert fields["times"] == {"type": "integer", "default": 3}
    assert fields["dry"] == {"type": "boolean", "default": False}


def test_input_schema_of_a_node_with_a_model_names_its_keys() -> None:
    schema = input_schema(NodeSpec(id="n", input_keys=("topic",)), None)

    assert schema == {"type": "object", "properties": {"topic": {}}, "required": ["topic"]}
