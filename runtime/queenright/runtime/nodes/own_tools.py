"""The tools that every node has of its own: to set its outputs, and to ask its user."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.memory import MemoryAccessError, check_sizes
from queenright.runtime.tooling.tools import Tool, ToolArgumentsRefused

SET_OUTPUT: Final = "set_output"
ASK_USER: Final = "ask_user"

_Value = str | bool | int | float | list[Any] | dict[str, Any] | None


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, description="What the user is to answer.")


def own_tools(spec: NodeSpec) -> list[Tool]:
    """Return the tools that a node has besides those its specification names."""
    tools = []
    if spec.output_keys:
        tools.append(_set_output(spec))
    if spec.client_facing:
        tools.append(
            Tool(
                ASK_USER, "Ask the user something and wait for the answer.", _Question, lambda given: "asked"
            )
        )
    return tools


def missing_keys(spec: NodeSpec, outputs: dict[str, Any]) -> tuple[str, ...]:
    """Return the output keys that must be set and are not."""
    optional = spec.nullable_output_keys
    return tuple(key for key in spec.output_keys if key not in outputs and key not in optional)


def effect(name: str, arguments: str) -> dict[str, Any]:
    """Return what a successful call of a node's own tool did, as data of the entry that answers it."""
    if name == SET_OUTPUT:
        return {"outputs": json.loads(arguments)}
    if name == ASK_USER:
        return {"question": json.loads(arguments)["question"]}
    return {}


@lru_cache(maxsize=256)
def _outputs_of(keys: tuple[str, ...]) -> type[BaseModel]:
    """Return the arguments of the tool that sets these outputs; kept: a node is visited again and again."""
    # Field names of our own, so that an output may be called anything.
    fields: dict[str, Any] = {
        f"k{number}": (_Value, Field(None, alias=key)) for number, key in enumerate(keys)
    }
    return create_model("SetOutput", __config__=ConfigDict(extra="forbid"), **fields)


def _set_output(spec: NodeSpec) -> Tool:
    """Make the tool that sets outputs: some now, others later, until none is missing."""

    def run(given: BaseModel) -> str:
        outputs = given.model_dump(by_alias=True, exclude_unset=True)
        wrong = [
            f"{key}: must not be empty"
            for key, value in outputs.items()
            if value in ("", None) and key not in spec.nullable_output_keys
        ]
        if not outputs:
            wrong = [f"none is set; set at least one of: {', '.join(spec.output_keys)}"]
        if wrong:
            raise ToolArgumentsRefused("; ".join(wrong))
        try:
            check_sizes(outputs)
        except MemoryAccessError as error:
            raise ToolArgumentsRefused(str(error)) from error
        return json.dumps(outputs, ensure_ascii=False)

    wanted = ", ".join(
        f"{key} (may be left out)" if key in spec.nullable_output_keys else key for key in spec.output_keys
    )
    about = f"Say your results. Wanted are: {wanted}. You may set some now and the others later."
    return Tool(SET_OUTPUT, about, _outputs_of(tuple(spec.output_keys)), run)
