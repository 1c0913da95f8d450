"""Agents in folders, for tests of agents that run inside the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from queenright.server.service import Service
from queenright.server.serving import serving
from queenright.server.settings import load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.waiting import until

GUIDE = '''
from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.llm.model import ModelReply, ToolCall


class Asking:
    """Asks who is there, and is content with the answer."""

    name = "asking"

    async def complete(self, messages, tools, on_text=None):
        said = [message for message in messages if message.role == "user"]
        if len(said) < 2:
            return ModelReply(text="Who are you?", input_tokens=7, output_tokens=3)
        call = ToolCall(f"c{len(messages)}", "set_output", '{"name": "Ada"}')
        return ModelReply(text="Thank you.", tool_calls=(call,), input_tokens=9, output_tokens=4)


provider = Asking
agent = AgentSpec.model_validate(
    {
        "name": "NAME",
        "version": "3",
        "description": "Shows people around.",
        "goal": {
            "id": "greeted",
            "description": "Somebody is greeted.",
            "success_criteria": [{"id": "said", "expression": "greeting != ''"}],
        },
        "graph": {
            "nodes": [
                {
                    "id": "prepare",
                    "node_type": "function",
                    "function": "prepare",
                    "input_keys": ["topic"],
                    "output_keys": ["about"],
                },
                {
                    "id": "talk",
                    "system_prompt": "Talk.",
                    "client_facing": True,
                    "input_keys": ["about"],
                    "output_keys": ["name"],
                },
                {
                    "id": "finish",
                    "node_type": "function",
                    "function": "finish",
                    "input_keys": ["name", "about"],
                    "output_keys": ["greeting"],
                },
            ],
            "edges": [{"source": "prepare", "target": "talk"}, {"source": "talk", "target": "finish"}],
            "entry_points": [
                {"id": "start", "node_id": "prepare", "max_concurrent": 100},
                {"id": "nightly", "node_id": "prepare", "trigger_type": "timer", "cron": "0 3 * * *"},
            ],
        },
    }
)
'''
GUIDES = """
def prepare(topic):
    return f"all about {topic}"


def finish(name, about):
    return f"{name}: {about}"
"""
LOOPER = '''
import asyncio

from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.llm.model import ModelReply, ToolCall


class Circling:
    """Makes one call five times, and then thinks for ever."""

    name = "circling"

    def __init__(self):
        self.asked = 0

    async def complete(self, messages, tools, on_text=None):
        self.asked += 1
        if self.asked > 5:
            await asyncio.Event().wait()
        return ModelReply(tool_calls=(ToolCall(f"c{self.asked}", "search", '{"q": "honey"}'),))


provider = Circling
agent = AgentSpec.model_validate(
    {
        "name": "looper",
        "graph": {
            "nodes": [
                {"id": "seek", "system_prompt": "Seek.", "tools": ["search"], "model_timeout_seconds": 600}
            ],
            "entry_points": [{"id": "start", "node_id": "seek"}],
        },
    }
)
'''
SEARCH = '''
def search(q: str) -> str:
    """Search."""
    return f"nothing about {q}"
'''


def write_guide(folder: Path, name: str = "guide") -> Path:
    """Write an agent that prepares, asks its user for a name, and greets."""
    return write_files(folder, agent=GUIDE.replace("NAME", name), functions=GUIDES)


def write_looper(folder: Path) -> Path:
    """Write an agent that repeats one tool call."""
    return write_files(folder, agent=LOOPER, tools=SEARCH)


def write_files(folder: Path, **files: str) -> Path:
    """Write files into a folder, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content, encoding="utf-8")
    return folder


@dataclass(slots=True)
class AgentService:
    """A running service with a folder of agents, and an HTTP client."""

    service: Service
    http: httpx.AsyncClient
    roots: Path

    async def request(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """Send a request, check the status, and return the JSON body (None if the body is empty)."""
        response = await self.http.request(method, path, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def wait_for_end(self, agent: str, execution_id: str) -> dict[str, Any]:
        """Wait until a run has ended, and return the run as the API shows it."""
        result = await self.service.agents.get(agent).runtime.wait(execution_id)
        row: dict[str, Any] = await self.request("GET", f"/api/agents/{agent}/executions/{execution_id}")
        assert row["status"] == result.status.value
        return row

    async def wait_for_question(self, agent: str, execution_id: str) -> str:
        """Wait until a run waits for its user, and return the id of its session."""
        runtime = self.service.agents.get(agent).runtime

        def list_sessions() -> list[str]:
            return [
                node.session_id for node in runtime.list_waiting_nodes() if node.execution_id == execution_id
            ]

        await until(list_sessions, "the run waits for its user")
        return list_sessions()[0]

    async def wait_until_answered(self, agent: str, session_id: str) -> None:
        """Wait until no node of a session waits for its user."""
        runtime = self.service.agents.get(agent).runtime
        await until(
            lambda: all(node.session_id != session_id for node in runtime.list_waiting_nodes()),
            "no node of the session waits",
        )

    async def start_waiting_run(self, agent: str = "guide", **trigger_fields: Any) -> tuple[str, str]:
        """Start a run that waits for its user, and return its id and the id of its session."""
        body = {"input_data": {"topic": "bees"}} | trigger_fields
        response = await self.request("POST", f"/api/agents/{agent}/trigger", json=body, status=202)
        return response["execution_id"], await self.wait_for_question(agent, response["execution_id"])

    async def complete_run(self, agent: str = "guide") -> tuple[str, str]:
        """Start a run, let it complete, and return its id and the id of its session."""
        run, session = await self.start_waiting_run(agent)
        body = {"message": "Ada", "session_id": session}
        await self.request("POST", f"/api/agents/{agent}/chat", json=body)
        assert (await self.wait_for_end(agent, run))["status"] == "completed"
        return run, session


@asynccontextmanager
async def run_agent_service(folder: Path, **settings: Any) -> AsyncIterator[AgentService]:
    """Run a service with agents in ``folder / "agents"``."""
    roots = folder / "agents"
    roots.mkdir(parents=True, exist_ok=True)
    agent_settings = {"roots": [roots], "storage": folder / "kept"} | settings.pop("agents", {})
    service_settings = {"http": {"port": 0}, "otlp": {"port": 0}, "agents": agent_settings} | settings
    loaded_settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": folder / "storage"}, **service_settings
    )
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(loaded_settings))
        http = httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60)
        yield AgentService(running.service, await stack.enter_async_context(http), roots)
