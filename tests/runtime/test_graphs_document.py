"""docs/graphs.md and docs/models.md agree with the classes that they document."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.graphs import conditions
from queenright.runtime.graphs.goal import Constraint, Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelError, ModelReply, TransientModelError
from queenright.runtime.llm.scripted_provider import ScriptedProvider, ScriptError
from queenright.runtime.tooling.tools import CONTEXT_PARAMETERS

DOCS = Path(__file__).parents[2] / "docs"
GRAPHS = (DOCS / "graphs.md").read_text(encoding="utf-8")
MODELS = (DOCS / "models.md").read_text(encoding="utf-8")
SPECS = (NodeSpec, EdgeSpec, EntryPointSpec, GraphSpec, Goal, SuccessCriterion, Constraint, AgentSpec)

Rows = list[list[str]]


def read_section(page: str, heading: str) -> str:
    """Return the text below a heading."""
    [text] = re.findall(rf"^##+ {heading}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    return str(text)


def read_table(text: str, header: str = "field") -> Rows:
    """Return the name, default and meaning in each row of the table that starts with ``header``."""
    [body] = re.findall(rf"^\| {header} \| default \| meaning \|\n\| -.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body.splitlines()]


def read_defaults(rows: Rows) -> dict[str, Any]:
    """Return the documented default of each field: a JSON value, or ``required``."""
    return {
        name.strip("`"): default if default == "required" else json.loads(default.strip("`"))
        for name, default, _ in rows
    }


def read_blocks(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]


EXAMPLES = read_blocks(GRAPHS)
GRAPH_EXAMPLES = {block["id"]: GraphSpec.model_validate(block) for block in EXAMPLES if "nodes" in block}


@pytest.mark.parametrize("spec", SPECS)
def test_page_lists_exactly_the_fields_in_order_with_defaults(
    spec: type[BaseModel],
) -> None:
    fields = {
        name: "required"
        if (default := field.get_default(call_default_factory=True)) is PydanticUndefined
        else to_jsonable_python(default)
        for name, field in spec.model_fields.items()
    }

    documented = read_defaults(read_table(read_section(GRAPHS, spec.__name__)))

    assert documented == fields
    assert list(documented) == list(fields)


@pytest.mark.parametrize("spec", SPECS)
def test_every_value_of_a_choice_is_named_in_its_row(spec: type[BaseModel]) -> None:
    rows = {name.strip("`"): meaning for name, _, meaning in read_table(read_section(GRAPHS, spec.__name__))}

    for name, field in spec.model_fields.items():
        if typing.get_origin(field.annotation) is typing.Literal:
            assert set(typing.get_args(field.annotation)) <= set(re.findall(r"`(\w+)`", rows[name])), name


def test_every_example_is_a_graph_or_a_goal() -> None:
    goals = [Goal.model_validate(block) for block in EXAMPLES if "nodes" not in block]

    assert len(GRAPH_EXAMPLES) + len(goals) == len(EXAMPLES)
    [goal] = goals
    assert {criterion.weight for criterion in goal.success_criteria} == {1, 3}
    assert {constraint.kind for constraint in goal.constraints} == {"soft"}


def test_examples_cover_common_features() -> None:
    entries = [entry for graph in GRAPH_EXAMPLES.values() for entry in graph.entry_points]
    edges = [edge for graph in GRAPH_EXAMPLES.values() for edge in graph.edges]
    nodes = [node for graph in GRAPH_EXAMPLES.values() for node in graph.nodes]

    assert [entry.id for entry in entries if entry.cron and entry.timezone != "UTC"] == ["daily"]
    assert [entry.id for entry in entries if entry.event_types and entry.filter_agent] == ["on_failure"]
    assert [node.id for node in nodes if len(node.routes) == 2] == ["sort"]
    assert [edge.target for edge in edges if edge.input_mapping] == ["answer"]
    assert [edge.target for edge in edges if edge.expression] == ["answer"]
    assert {edge.route for edge in edges if edge.when == "route"} == {"order", "other"}


def test_documented_router_accepts_a_function_instead_of_a_prompt() -> None:
    [block] = [block for block in EXAMPLES if block["id"] == "desk"]
    del block["nodes"][0]["system_prompt"]
    block["nodes"][0]["function"] = "choose"

    assert GraphSpec.model_validate(block).node("sort").function == "choose"


def test_documented_conditions_are_valid() -> None:
    page = read_section(GRAPHS, "Conditions")
    functions, methods = re.findall(
        r"It may call (.*?),\s+and on a value (.*?);\s+nothing else", page, re.DOTALL
    )[0]

    assert re.findall(r"`(\w+)`", functions) == list(conditions.FUNCTIONS)
    assert set(re.findall(r"`(\w+)`", methods)) == conditions.METHODS
    [guarded_methods] = re.findall(r"ask first: `(.*?)`", page)
    assert not conditions.evaluate(guarded_methods, {})
    assert conditions.evaluate(guarded_methods, {"score": 6})
    assert conditions.evaluate(
        "report.title == 'x' and (1 + 2 - 3 * 4 / 5 // 6 % 7 if [1][0] else ()) is not None",
        {"report": {"title": "x"}},
    )


def test_page_names_the_context_parameters() -> None:
    [parameters] = re.findall(
        r"\*\*Context\*\*: (.*?) \(", read_section(GRAPHS, "How functions are called"), re.DOTALL
    )

    assert set(re.findall(r"`(\w+)`", parameters)) == CONTEXT_PARAMETERS


def test_page_documents_the_fields_of_replies_and_scripts() -> None:
    reply = to_jsonable_python(dataclasses.asdict(ModelReply()))
    script = read_section(MODELS, "Scripts")

    assert read_defaults(read_table(MODELS)) == reply
    assert read_defaults(read_table(script, "key of a reply")) == reply
    assert read_defaults(read_table(script, "key of an error")) == {
        "error": "required",
        "transient": False,
        "retry_after": None,
    }


async def test_documented_script_is_valid_and_described_correctly(tmp_path: Path) -> None:
    script, *_ = read_blocks(MODELS)
    file = tmp_path / "replies.json"
    file.write_text(json.dumps(script), encoding="utf-8")
    model = ScriptedProvider.load(file)

    with pytest.raises(TransientModelError, match="the hive is busy") as error:
        await model.complete([], [])
    replies = [await model.complete([], []) for _ in script["replies"][1:]]
    with pytest.raises(ModelError, match="exhausted"):
        await model.complete([], [])

    assert error.value.retry_after == 0.1
    assert [call.name for reply in replies for call in reply.tool_calls] == ["search", "set_output"]


def test_script_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "replies.json"
    file.write_text('{"replies": [{"txt": "hm"}]}', encoding="utf-8")

    with pytest.raises(ScriptError, match="txt"):
        ScriptedProvider.load(file)
