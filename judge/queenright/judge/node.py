"""The limits that every desk shares: the nodes in which judge, queen and orchestrator decide."""

from __future__ import annotations

from collections.abc import Iterable

from queenright.judge.settings import ModelSettings
from queenright.runtime.graphs.graph import NodeSpec


def desk_node(
    node_id: str,
    *,
    system_prompt: str,
    output_key: str,
    decides: Iterable[str],
    looks: Iterable[str],
    model: ModelSettings,
) -> NodeSpec:
    """
    Return a node that decides one thing at a time.

    An answer without a decision is no answer: nobody here asks again, the caller does when its time comes.

    Args:
        node_id: Its name.
        system_prompt: What the model is told it is.
        output_key: What it says in words when it uses no tool that decides.
        decides: Tools that end the visit: one answer of the model is enough.
        looks: Tools that only show something.
        model: The model's limits.
    """
    final = tuple(decides)
    return NodeSpec(
        id=node_id,
        system_prompt=system_prompt,
        tools=(*looks, *final),
        final_tools=final,
        output_keys=(output_key,),
        max_turns=model.max_turns,
        max_retries=0,
        model_attempts=1,
        max_messages=60,
        # Some ten decisions; what must not be forgotten is in the trend and in the tickets.
        max_context_tokens=8_000,
        # The model keeps its own limit; this one is for a model that does not.
        model_timeout_seconds=model.timeout_seconds + 5,
    )
