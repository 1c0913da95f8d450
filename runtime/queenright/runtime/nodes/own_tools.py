"""The built-in tools of a node: set its outputs, and ask its user."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.memory import MemoryAccessError, check_output_sizes
from queenright.runtime.tooling.tools import InvalidToolArgumentsError, Tool

SET_OUTPUT: Final = "set_output"
ASK_USER: Final = "ask_user"

_OutputValue = str | bool | int | float | list[Any] | dict[str, Any] | None


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, description="The question to the user.")


def make_builtin_tools(spec: NodeSpec) -> list[Tool]:
    """Return the built-in tools of a node."""
    tools = []
    if spec.output_keys:
        tools.append(_make_output_tool(spec))
    if spec.client_facing:
        tools.append(
            Tool(ASK_USER, "Ask the user a question and wait for the answer.", _Question, lambda _: "asked")
        )
    return tools


def find_missing_output_keys(spec: NodeSpec, outputs: dict[str, Any]) -> tuple[str, ...]:
    """Return the required output keys that are not set."""
    optional = spec.nullable_output_keys
    return tuple(key for key in spec.output_keys if key not in outputs and key not in optional)


def call_effect(name: str, arguments: str) -> dict[str, Any]:
    """Return the effect of a successful call of a built-in tool, as data of the answer's entry."""
    if name == SET_OUTPUT:
        return {"outputs": json.loads(arguments)}
    if name == ASK_USER:
        return {"question": json.loads(arguments)["question"]}
    return {}


@lru_cache(maxsize=256)
def _build_outputs_model(keys: tuple[str, ...]) -> type[BaseModel]:
    """Return the argument model of ``set_output`` for these keys; cached because nodes are visited often."""
    # Generated field names, so that an output may have any name.
    fields: dict[str, Any] = {
        f"k{number}": (_OutputValue, Field(None, alias=key)) for number, key in enumerate(keys)
    }
    return create_model("SetOutput", __config__=ConfigDict(extra="forbid"), **fields)


def _make_output_tool(spec: NodeSpec) -> Tool:
    """Make the tool that sets outputs, all at once or in several calls."""

    def run(arguments: BaseModel) -> str:
        outputs = arguments.model_dump(by_alias=True, exclude_unset=True)
        problems = [
            f"{key}: must not be empty"
            for key, value in outputs.items()
            if value in ("", None) and key not in spec.nullable_output_keys
        ]
        if not outputs:
            problems = [f"no output is set; set at least one of: {', '.join(spec.output_keys)}"]
        if problems:
            raise InvalidToolArgumentsError("; ".join(problems))
        try:
            check_output_sizes(outputs)
        except MemoryAccessError as error:
            raise InvalidToolArgumentsError(str(error)) from error
        return json.dumps(outputs, ensure_ascii=False)

    keys = ", ".join(
        f"{key} (optional)" if key in spec.nullable_output_keys else key for key in spec.output_keys
    )
    description = f"Set your results: {keys}. You may set some now and the others later."
    return Tool(SET_OUTPUT, description, _build_outputs_model(tuple(spec.output_keys)), run)
