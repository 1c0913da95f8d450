"""`queenright code`: a conversation with the coder and its guardian on one runtime."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final

from queenright.cli.coder.workspace import Workspace
from queenright.cli.options import ShellOptions
from queenright.cli.terminal.shell import configure_logging, make_agent_loader
from queenright.cli.terminal.shell_session import ShellSession, is_interactive
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.litellm_provider import LiteLlmProvider, load_provider
from queenright.runtime.llm.model import LLMProvider

CODER: Final = "coder"
GUARDIAN: Final = "guardian"

# Files are long, and a file must still be in the context when it is edited.
_CONTEXT_TOKENS: Final = 60_000


def run_coder(folder: Path, options: ShellOptions, *, model: str) -> int:
    """
    Run a conversation with the coder until the user quits.

    Return 1 if the last run did not complete, otherwise 0.

    Raises:
        QueenrightError: The settings are invalid, or the model is unavailable.
    """
    configure_logging()
    load = make_agent_loader(options.config, telemetry=options.telemetry)
    provider = load_provider(model)
    if isinstance(provider, LiteLlmProvider):
        provider.check()
    runtime = AgentRuntime(
        bus=EventBus(),
        storage=options.storage or Path.home() / ".queenright" / "agents" / CODER,
        **load.keywords,
    )
    lifecycle = Lifecycle([folder], load=load)
    add_graphs(runtime, lifecycle, Workspace(folder), provider)
    print(f"Workspace: {folder.resolve()}. Describe the agent to build; /help lists the commands.")
    return asyncio.run(_converse(runtime, lifecycle, options.resume))


def add_graphs(runtime: AgentRuntime, lifecycle: Lifecycle, workspace: Workspace, model: LLMProvider) -> None:
    """Add the coder as the primary graph, and its guardian."""
    tools = [*lifecycle.tools, *workspace.tools]
    names = [tool.name for tool in tools]
    coder, guardian = make_coder_graph(names), make_guardian_graph(names)
    runtime.add_graph(coder, model=model, tools=tools, agent_id=coder.id, primary=True)
    runtime.add_graph(guardian, model=model, tools=tools, agent_id=guardian.id)


async def _converse(runtime: AgentRuntime, lifecycle: Lifecycle, resume: str | None) -> int:
    try:
        await runtime.start()
        session = ShellSession(runtime, lifecycle, sys.stdout, is_interactive=is_interactive())
        await session.run(resume=resume)
        return 1 if session.has_failed else 0
    finally:
        await runtime.stop()
        await lifecycle.close()


def make_coder_graph(tools: Iterable[str]) -> GraphSpec:
    """Return the coder's graph. All its runs share one session with the user."""
    node = NodeSpec(
        id="code",
        description="Builds agents with the user.",
        system_prompt=_read_prompt("code.md"),
        tools=tuple(tools),
        input_keys=("message",),
        client_facing=True,
        max_turns=1000,
        max_context_tokens=_CONTEXT_TOKENS,
        model_timeout_seconds=300,
    )
    return GraphSpec(id=CODER, nodes=(node,), entry_points=(EntryPointSpec(id="talk", node_id=node.id),))


def make_guardian_graph(tools: Iterable[str]) -> GraphSpec:
    """Return the guardian's graph, which starts when a run of another graph fails."""
    node = NodeSpec(
        id="guard",
        description="Handles failed runs.",
        system_prompt=_read_prompt("guard.md"),
        tools=tuple(tools),
        input_keys=("event",),
        output_keys=("decision",),
        client_facing=True,
        max_context_tokens=_CONTEXT_TOKENS,
        model_timeout_seconds=300,
    )
    on_failure = EntryPointSpec(
        id="failed",
        node_id=node.id,
        trigger_type="event",
        event_types=frozenset({EventType.EXECUTION_FAILED}),
        isolation_level="shared",
        conversation_mode="fresh",
    )
    return GraphSpec(id=GUARDIAN, nodes=(node,), entry_points=(on_failure,))


def _read_prompt(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
