"""`queenright agents chat` sends messages to a loaded agent and prints its replies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess

from tests.server.agents.parts import AgentService, run_agent_service, write_guide, write_looper
from tests.warm import queenright


async def run_chat(home: AgentService, *arguments: str) -> CompletedProcess[str]:
    """Run the command, with messages to the guide agent on standard input."""
    url = str(home.http.base_url)
    command = ("agents", "chat", "guide", *arguments, "--url", url)
    return await asyncio.to_thread(queenright, *command, cwd=home.roots)


async def test_chat_prints_the_replies_of_the_agent(tmp_path: Path) -> None:
    """A reply is all output until the agent waits again or its run ends."""
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        text_result = await run_chat(home, "bees")
        json_result = await run_chat(home, "Ada", "--json")

    assert (text_result.returncode, text_result.stdout) == (0, "Who are you?\n"), text_result.stderr
    assert "is started" in text_result.stderr
    answer = json.loads(json_result.stdout)
    assert (answer["status"], answer["node_id"]) == ("injected", "talk")
    assert (answer["reply"], answer["ended"]) == ("Thank you.", "execution_completed")


async def test_chat_with_no_wait_returns_immediately(tmp_path: Path) -> None:
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        result = await run_chat(home, "bees", "--no-wait")

    assert result.returncode == 0
    assert result.stdout.startswith("Run ")
    assert " is started in session " in result.stdout


async def test_chat_with_a_failing_run_exits_with_1(tmp_path: Path) -> None:
    folder = write_guide(tmp_path / "agents" / "guide")
    (folder / "functions.py").write_text("def prepare(topic):\n    return topic[99]\n\n\nfinish = prepare\n")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        result = await run_chat(home, "bees")

    assert result.returncode == 1
    assert result.stdout.startswith("The run failed: ")


async def test_chat_without_a_reply_ends_at_its_timeout(tmp_path: Path) -> None:
    """The run continues in the service."""
    folder = write_looper(tmp_path / "agents" / "looper")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        url = str(home.http.base_url)
        command = ("agents", "chat", "looper", "go", "--timeout", "1.5", "--url", url)
        completed = await asyncio.to_thread(queenright, *command, cwd=home.roots)
        runs = await home.request("GET", "/api/agents/looper/sessions")

    assert (completed.returncode, completed.stdout) == (1, "")
    assert "1.5 s" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert [run["status"] for run in runs["sessions"]] == ["active"]
