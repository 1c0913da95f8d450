"""`queenright shell` and `queenright code`, with input on stdin."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queenright.cli.coder.session import add_graphs
from queenright.cli.coder.workspace import Workspace
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from tests.runtime.agents import adder, chatter, write_agent
from tests.warm import InteractiveCommand, queenright


def run_shell(tmp_path: Path, agent: str, *lines: str, options: tuple[str, ...] = ()) -> Any:
    arguments = ("shell", agent, "--storage", "here", "--no-telemetry", *options)
    return queenright(*arguments, cwd=tmp_path, typed="".join(f"{line}\n" for line in lines))


def test_shell_runs_an_agent_for_each_line(tmp_path: Path) -> None:
    adder(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", '{"a": 1, "b": 2}', '{"a": 3, "b": 4}', "/sessions")

    assert completed.returncode == 0, completed.stderr
    assert [line for line in completed.stdout.splitlines() if line.startswith("sum")] == ["sum: 3", "sum: 7"]
    [session] = {line.split()[-1] for line in completed.stdout.splitlines() if line.startswith("session ")}
    assert f"{session}  completed" in completed.stdout


def test_first_line_of_a_shell_has_single_full_stops(tmp_path: Path) -> None:
    folder = adder(tmp_path / "agent")
    spec = json.loads((folder / "agent.json").read_text("utf-8"))
    spec["description"] = "It adds two numbers."
    (folder / "agent.json").write_text(json.dumps(spec), encoding="utf-8")

    completed = run_shell(tmp_path, "agent", "/quit")

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("adder: ")
    assert "/help" in completed.stdout


def test_typed_line_answers_the_waiting_node(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", "hello", "Ada")

    assert "Hello, who are you?\nThank you." in completed.stdout
    assert "name: Ada\n" in completed.stdout


def test_other_agents_are_loaded_chatted_with_and_unloaded(tmp_path: Path) -> None:
    adder(tmp_path / "agent")
    chatter(tmp_path / "other")
    lines = ("/load other", "/graphs", "/graph chatter", "hello", "Ada", "/graph adder", "/unload chatter")

    completed = run_shell(tmp_path, "agent", *lines, "/graphs", "/new", '{"a": 1, "b": 1}')

    output = completed.stdout
    assert "loaded 'chatter'" in output
    assert "* adder" in output
    assert "name: Ada\n" in output
    assert "unloaded 'chatter'" in output
    assert output.endswith("sum: 2\n")
    assert output[output.index("unloaded") :].count("chatter") == 1


@pytest.mark.parametrize(
    ("line", "expected_error"),
    [
        ("/nope", "Unknown command /nope; /help lists"),
        ("/graph", "the argument is missing: /graph ID"),
        ("/graph x", "there is no graph 'x'"),
        ("/load nowhere", "no agent"),
        ("/unload adder", "was not loaded by load_agent"),
        ("/resume", "the session is missing"),
        ("/resume session_x", "session_x"),
        ("5", "the agent needs a, b"),
        ("/help", "/unload"),
    ],
)
def test_invalid_line_is_reported_and_the_shell_continues(
    tmp_path: Path, line: str, expected_error: str
) -> None:
    adder(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", line, '{"a": 1, "b": 2}', "/quit", "never read")

    assert completed.returncode == 0, completed.stderr
    assert expected_error in completed.stdout
    assert completed.stdout.endswith("sum: 3\n")


def test_rejected_input_starts_no_run(tmp_path: Path) -> None:
    """B99: without a run, there is no session and no failure."""
    adder(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", '{"a": 1, "c": 2}', "/quit")

    assert completed.returncode == 0, completed.stderr
    assert "input 'b' is missing" in completed.stdout
    assert "session_" not in completed.stdout


def test_misspelt_input_is_not_filled_from_session_memory(tmp_path: Path) -> None:
    """B99: the previous run set the field. A misspelt name must not repeat that run with the old value."""
    adder(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", '{"a": 1, "b": 2}', '{"A1": 5}', '{"a": 2}', "/quit")

    assert completed.returncode == 0, completed.stderr
    assert "input 'A1' is unknown" in completed.stdout
    assert [line for line in completed.stdout.splitlines() if line.startswith("sum")] == ["sum: 3", "sum: 4"]


def test_data_command_lists_and_shows_agent_files(tmp_path: Path) -> None:
    """004: `/data escalation_log.jsonl` shows a file that the agent wrote for a person."""
    writes = "def add(a, b, data_dir):\n    data_dir.mkdir(parents=True, exist_ok=True)\n"
    writes += "    (data_dir / 'log.jsonl').write_text(f'{a}\\x1b[2J and {b}\\n')\n    return a + b\n"
    adder(tmp_path / "agent", writes)

    stdin_lines = ("/data", '{"a": 1, "b": 2}', "/data", "/data log.jsonl", "/data ../state.json")
    completed = run_shell(tmp_path, "agent", *stdin_lines)

    assert "No files." in completed.stdout
    assert any(line.split()[:2] == ["log.jsonl", "adder"] for line in completed.stdout.splitlines())
    assert "1[2J and 2" in completed.stdout
    assert "there is no file '../state.json'" in completed.stdout + completed.stderr


def test_failed_run_has_a_reason_and_sets_the_exit_code(tmp_path: Path) -> None:
    adder(tmp_path / "agent")

    completed = run_shell(tmp_path, "agent", '{"a": 1, "b": "x"}')

    assert completed.returncode == 1
    assert "failed: " in completed.stdout
    assert "Resume with: /resume session_" in completed.stdout


def test_ctrl_c_pauses_the_run_and_the_session_can_be_resumed(tmp_path: Path) -> None:
    slow = "import asyncio\n\nasync def add(a, b):\n    await asyncio.sleep(a)\n    return b\n"
    adder(tmp_path / "agent", slow)
    command = ("shell", "agent", "--storage", "here", "--no-telemetry")
    with InteractiveCommand(*command, cwd=tmp_path) as running:
        running.stdin.write(b'{"a": 600, "b": 2}\n')
        while b"session session_" not in (line := running.stdout.readline()):
            assert line
        running.send_signal(signal.SIGINT)
        output = ""
        while "Resume with" not in output:
            line = running.stdout.readline()
            assert line, output
            output += line.decode()
        running.send_signal(signal.SIGINT)
        assert running.wait() == 1

    assert "paused" in output
    assert "Resume with: /resume session_" in output


BROKEN_CODE = "def sort(inbox):\n    return inbox['letters']\n"
SORTER_SPEC = {
    "name": "sorter",
    "graph": {
        "nodes": [
            {
                "id": "sort",
                "node_type": "function",
                "function": "sort",
                "input_keys": ["inbox"],
                "output_keys": ["sorted"],
            }
        ],
        "entry_points": [{"id": "default", "node_id": "sort"}],
    },
}


def make_tool_reply(tool: str, **arguments: object) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


class Builder:
    """
    A model. As the coder, it writes a failing agent and starts it. As the guardian, it repairs the agent, or
    asks the user.
    """

    name = "builder"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        answers = [message.content for message in messages if message.role == "tool"]
        if not messages[0].content.startswith("You are the guardian"):
            return [*BUILD_REPLIES, ModelReply(text="It runs.")][min(len(answers), len(BUILD_REPLIES))]
        if not answers:
            return make_tool_call("get_user_presence")
        if '"user_present": true' in answers[0]:
            return make_tool_call("ask_user", question="sorter fails. Repair it?")
        return REPAIR_REPLIES[len(answers) - 1]


def make_tool_call(name: str, **arguments: object) -> ModelReply:
    return ModelReply(tool_calls=(ToolCall(f"call_{name}", name, json.dumps(arguments)),))


BUILD_REPLIES = [
    make_tool_call("write_file", path="sorter/agent.json", content=json.dumps(SORTER_SPEC)),
    make_tool_call("write_file", path="sorter/functions.py", content=BROKEN_CODE),
    make_tool_call("load_agent", agent_path="sorter"),
    make_tool_call("start_agent", graph_id="sorter", input_data={"inbox": ["b", "a"]}),
]
REPAIR_REPLIES = [
    make_tool_call("edit_file", path="sorter/functions.py", old="inbox['letters']", new="sorted(inbox)"),
    make_tool_call("restart_agent", graph_id="sorter"),
    make_tool_call("start_agent", graph_id="sorter", input_data={"inbox": ["b", "a"]}),
    make_tool_call("set_output", decision="mended it"),
]


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[AgentRuntime]:
    root = tmp_path / "work"
    root.mkdir()
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path / "here")
    lifecycle = Lifecycle([root])
    add_graphs(runtime, lifecycle, Workspace(root), Builder())
    await runtime.start()
    yield runtime
    await runtime.stop()
    await lifecycle.close()


async def test_failing_agent_is_repaired_by_the_guardian_while_the_user_is_absent(
    workshop: AgentRuntime,
) -> None:
    """
    004: the coder builds and starts an agent, which fails while the user is absent. The guardian repairs it.
    """
    with workshop.bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="sorter") as repaired_run:
        await workshop.trigger("talk", {"message": "Sort my letters."}, graph_id="coder")
        event = await repaired_run.within(20)

    result = workshop.get_execution_result(event.execution_id)
    assert result is not None
    assert result.outputs == {"sorted": ["a", "b"]}


async def test_guardian_ends_while_the_user_is_absent_and_handles_the_next_failure(
    workshop: AgentRuntime,
) -> None:
    """004: after a repair the guardian ends, and it starts again for the next failure."""
    bus = workshop.bus
    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="guardian") as first_repair:
        await workshop.trigger("talk", {"message": "Sort my letters."}, graph_id="coder")
        await first_repair.within(20)

    with bus.expect(EventType.EXECUTION_COMPLETED, filter_graph="guardian") as second_repair:
        await workshop.trigger("default", {"inbox": [1, "a"]}, graph_id="sorter")
        event = await second_repair.within(20)

    result = workshop.get_execution_result(event.execution_id)
    assert result is not None
    assert result.outputs == {"decision": "mended it"}
    assert not [node for node in workshop.list_waiting_nodes() if node.graph_id == "guardian"]


async def test_guardian_asks_the_user_who_is_present(workshop: AgentRuntime) -> None:
    """004: the guardian only repairs an agent unasked if the user is absent."""
    await workshop.inject_input("code", "hello")

    with workshop.bus.expect(EventType.CLIENT_INPUT_REQUESTED, filter_graph="guardian") as question:
        await workshop.trigger("talk", {"message": "Sort my letters."}, graph_id="coder")
        event = await question.within(20)

    assert event.data["question"] == "sorter fails. Repair it?"


def test_coder_chats_uses_tools_and_can_be_resumed(tmp_path: Path) -> None:
    replies = [
        make_tool_reply("write_file", path="sorter/agent.json", content=json.dumps(SORTER_SPEC)),
        make_tool_reply("load_agent", agent_path="../elsewhere"),
        {"text": "It is written."},
    ]
    write_agent(tmp_path / "script", {}, replies)
    (tmp_path / "work").mkdir()
    arguments = (
        "code",
        "work",
        "--model",
        "scripted:script/replies.json",
        "--storage",
        "here",
        "--no-telemetry",
    )

    result = queenright(*arguments, cwd=tmp_path, typed="Sort my letters.\n")

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "work" / "sorter" / "agent.json").is_file()
    assert "code: load_agent error" in result.stdout
    assert "It is written.\n" in result.stdout
    assert "coder is paused" in result.stdout
    assert "--resume session_" in result.stdout


@pytest.mark.parametrize(
    "arguments", [["code", "."], ["code", "nowhere", "--model", "x"], ["shell", "nowhere"]]
)
def test_usage_error_exits_with_2_and_a_remedy(tmp_path: Path, arguments: list[str]) -> None:
    result = queenright(*arguments, cwd=tmp_path)

    assert result.returncode == 2
    assert "Error: Invalid value" in result.stderr


@pytest.mark.parametrize(
    "path", ["../out.txt", "/etc/hostname", "link/out.txt", ".env", "a/.git/config", "", "a\0b", "."]
)
async def test_file_tools_refuse_hidden_files_and_paths_outside_the_workspace(
    tmp_path: Path, path: str
) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (tmp_path / "out.txt").write_text("secret")
    (root / ".env").write_text("secret")
    os.symlink(tmp_path, root / "link")
    tools = {tool.name: tool for tool in Workspace(root).tools}

    read_result = await tools["read_file"].call(json.dumps({"path": path}))
    write_result = await tools["write_file"].call(json.dumps({"path": path, "content": "x"}))

    assert read_result.failed
    assert write_result.failed
    assert "secret" not in read_result.content
    assert sorted(os.listdir(tmp_path)) == ["out.txt", "work"]
    assert (tmp_path / "out.txt").read_text() == "secret"


async def test_file_tools_list_read_write_and_change_files(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in Workspace(tmp_path).tools}

    async def call_tool(tool: str, **arguments: object) -> str:
        return (await tools[tool].call(json.dumps(arguments), {"data_dir": tmp_path / "data"})).content

    assert "no files" in await call_tool("list_files")
    await call_tool("write_file", path="a/b.py", content="one\ntwo\n")
    assert await call_tool("list_files", pattern="*.py") == "a/b.py"
    assert await call_tool("read_file", path="a/b.py", first=2) == "two"
    assert "occurs 2 times" in await call_tool("edit_file", path="a/b.py", old="o", new="0")
    assert "occurs 0 times" in await call_tool("edit_file", path="a/b.py", old="x", new="y")
    assert "changed" in await call_tool("edit_file", path="a/b.py", old="two", new="2")
    assert (tmp_path / "a" / "b.py").read_text() == "one\n2\n"
    await call_tool("log_escalation", agent="a", error="e", tried="t", why="w")
    assert json.loads((tmp_path / "data" / "escalation_log.jsonl").read_text())["agent"] == "a"
