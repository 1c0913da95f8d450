from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queenright.instrumentation.telemetry import Telemetry
from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.agents.runner import AgentLoadError, AgentRunner, InvalidAgentError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import ModelReply
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.runtime.storage.session_state import SessionStatus
from tests.runtime.agents import CHATTER, MODEL_FREE, TALKER, TALKS, adder, chatter, talker, write_agent

SECRET = "correct-horse-battery"
MCP_SERVER = Path(__file__).with_name("mcp_server.py")

AGENT_PY = """
from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply
import words

agent = AgentSpec(
    name="speaker",
    graph=GraphSpec(
        id="speaker",
        nodes=(NodeSpec(id="say", system_prompt="Say."),),
        entry_points=(EntryPointSpec(id="start", node_id="say"),),
    ),
)

class provider:
    name = "own"

    async def complete(self, messages, tools, on_text=None):
        return ModelReply(text=words.HELLO)
"""


@contextlib.asynccontextmanager
async def load_runner(path: Path, tmp_path: Path, **options: Any) -> AsyncIterator[AgentRunner]:
    runner = AgentRunner.load(path, storage=tmp_path / "storage", **options)
    try:
        yield runner
    finally:
        await runner.cleanup_async()


async def test_agent_of_functions_needs_no_model(tmp_path: Path) -> None:
    async with load_runner(adder(tmp_path / "agent"), tmp_path) as runner:
        result = await runner.run({"a": 1, "b": 2})

    assert result.status is SessionStatus.COMPLETED
    assert result.outputs == {"sum": 3}
    assert (tmp_path / "storage" / "sessions" / result.session_id / "state.json").is_file()


async def test_tools_are_public_functions_of_tools_py_and_the_script_is_in_the_folder(
    tmp_path: Path,
) -> None:
    async with load_runner(talker(tmp_path / "agent"), tmp_path) as runner:
        result = await runner.run()
        info = runner.info()

    assert result.outputs == {"answer": "42"}
    assert info.tools == ("double",)
    assert info.models == ("scripted:replies.json",)


async def test_script_restarts_for_each_run(
    tmp_path: Path,
) -> None:
    entry = {"id": "start", "node_id": "work", "max_concurrent": 2}
    spec = {**TALKER, "graph": {**TALKER["graph"], "entry_points": [entry]}}
    path = talker(tmp_path / "agent")
    async with load_runner(write_agent(path, spec), tmp_path) as runner:
        first_run, second_run = await asyncio.gather(runner.run(), runner.run())
        third_run = await runner.run()

    assert [run.outputs for run in (first_run, second_run, third_run)] == [{"answer": "42"}] * 3


async def test_python_agent_supplies_its_provider_and_imports_neighbouring_files(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT_PY, encoding="utf-8")
    (folder / "words.py").write_text("HELLO = 'good day'\n", encoding="utf-8")
    state_before = list(sys.path), set(sys.modules)

    async with load_runner(folder / "agent.py", tmp_path) as runner:
        result = await runner.run()

    assert result.outputs == {"text": "good day"}
    assert sys.path == state_before[0]
    assert "words" not in sys.modules
    assert not {name for name in set(sys.modules) - state_before[1] if name.startswith("queenright_agent_")}
    assert not (folder / "__pycache__").exists()


async def test_model_argument_overrides_the_agents_model(tmp_path: Path) -> None:
    model = ScriptedProvider([ModelReply(text="", tool_calls=())] * 9, name="mine")
    models: list[str] = []

    def providers(name: str) -> ScriptedProvider:
        models.append(name)
        return model

    path = talker(tmp_path / "agent")
    async with load_runner(path, tmp_path, model="mine/x", providers=providers) as runner:
        assert runner.validate().ok
    async with load_runner(path, tmp_path, model=model) as runner:
        assert runner.info().models == ("mine",)

    assert models == ["mine/x"]


def test_two_agents_with_files_of_one_name_keep_their_own(tmp_path: Path) -> None:
    paths = []
    for word in ("one", "two"):
        path = adder(tmp_path / word, "from shared import WORD\n\ndef add(a, b):\n    return WORD\n")
        (path / "shared.py").write_text(f"WORD = {word!r}\n", encoding="utf-8")
        paths.append(path)

    first_runner, second_runner = (AgentRunner.load(path, storage=tmp_path) for path in paths)

    assert [r._parts.functions["add"](1, 2) for r in (first_runner, second_runner)] == ["one", "two"]


def test_reload_uses_a_change_of_the_same_length_in_the_same_second(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent", "def add(a, b):\n    return 1\n")
    old_runner = AgentRunner.load(path, storage=tmp_path)
    times = (path / "functions.py").stat()
    (path / "functions.py").write_text("def add(a, b):\n    return 2\n", encoding="utf-8")
    os.utime(path / "functions.py", ns=(times.st_atime_ns, times.st_mtime_ns))

    new_runner = AgentRunner.load(path, storage=tmp_path)

    assert (old_runner._parts.functions["add"](0, 0), new_runner._parts.functions["add"](0, 0)) == (1, 2)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("agent.json", "{\n  bad\n}", "agent.json, line 2: is not JSON"),
        ("agent.json", "[]", "it must be an object"),
        ("agent.json", '{"name": "x"}', "graph: it is required"),
        ("agent.json", json.dumps({**MODEL_FREE, "nmae": SECRET}), "nmae: no such field"),
        ("functions.py", "x = 1\ndef broken(:\n", "functions.py, line 2: invalid syntax"),
        ("functions.py", "x = 1\n\nraise RuntimeError('no')\n", "functions.py, line 3: RuntimeError: no"),
        ("functions.py", "import not_there_at_all\n", "line 1: ModuleNotFoundError"),
        ("functions.py", "import sys\nsys.exit(3)\n", "functions.py, line 2: SystemExit"),
        ("functions.py", "import tools\n", "tools.py, line 1: ZeroDivisionError"),
        ("tools.py", "def f(*rest): ...\n", "tools.py"),
        ("tools.py", "tools = [len]\n", "`tools` contains a builtin_function_or_method"),
        ("mcp_servers.json", '{"servers": {"a": {}}}', "servers.a: set either command"),
    ],
)
def test_faulty_file_is_named_with_its_line(tmp_path: Path, file: str, text: str, expected: str) -> None:
    path = adder(tmp_path / "agent")
    (path / "tools.py").write_text("1 / 0\n" if "import tools" in text else "", encoding="utf-8")
    (path / file).write_text(text, encoding="utf-8")

    with pytest.raises(AgentLoadError) as error_info:
        AgentRunner.load(path, storage=tmp_path)

    assert expected in str(error_info.value)
    assert str(path) in str(error_info.value)
    assert SECRET not in str(error_info.value)


def test_unreadable_or_missing_agent_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "agent.json").write_bytes(b'{"name": "\xe9"}')
    (tmp_path / "folder" / "agent.json").mkdir(parents=True)
    ambiguous_agent = adder(tmp_path / "both")
    (ambiguous_agent / "agent.py").write_text("", encoding="utf-8")

    for name, expected_error in (
        ("latin", "is not UTF-8 (byte 10)"),
        ("folder", "has no agent.json or agent.py"),
        ("both", "has both agent.json and agent.py"),
        ("nowhere", "is not a folder"),
    ):
        with pytest.raises(AgentLoadError) as error_info:
            AgentRunner.load(tmp_path / name)
        assert expected_error in str(error_info.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "has no `agent`"),
        ("agent = 3\n", "`agent` is a int"),
        (AGENT_PY.replace("class provider:", "provider = 3\nclass P:"), "`provider` is a int"),
        (AGENT_PY.replace('name="speaker"', f'name="{SECRET} x"'), "it must match the pattern"),
    ],
)
def test_invalid_agent_py_is_explained(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "words.py").write_text("HELLO = 1\n", encoding="utf-8")
    (tmp_path / "agent.py").write_text(text, encoding="utf-8")

    with pytest.raises(AgentLoadError) as error_info:
        AgentRunner.load(tmp_path)

    assert expected in str(error_info.value)
    assert "agent.py" in str(error_info.value)
    assert SECRET not in str(error_info.value)


def test_all_missing_parts_are_reported_before_the_start(tmp_path: Path) -> None:
    spec = {
        "name": "needy",
        "model": "anthropic/claude-sonnet-4-5",
        "credentials": ["NEEDY_TOKEN", "NEEDY_SET"],
        "graph": {
            "nodes": [
                {"id": "f", "node_type": "function", "function": "nope", "output_keys": ["x"]},
                {"id": "w", "system_prompt": "W.", "tools": ["hammer"], "conversation_judge": "strict"},
            ],
            "edges": [{"source": "f", "target": "w"}],
            "entry_points": [{"id": "start", "node_id": "f"}],
        },
    }
    path = write_agent(tmp_path / "agent", spec, functions="def other(): ...\n")

    result = AgentRunner.load(
        path, environment={"NEEDY_SET": SECRET}, providers=lambda _: ScriptedProvider([])
    ).validate()

    assert not result.ok
    assert result.errors == (
        "node 'f': function 'nope' is not in functions.py; defined there: other",
        "node 'w': judge 'strict' is not in judges.py; defined there: none",
        "node 'w': tool 'hammer' is not in tools.py; defined there: none",
        "not set in the environment: NEEDY_TOKEN",
        "not set in the environment: ANTHROPIC_API_KEY",
    )


async def test_unusable_agent_is_not_started(tmp_path: Path) -> None:
    spec = {**TALKER, "model": "", "credentials": ["NOT_SET_ANYWHERE"]}
    async with load_runner(write_agent(tmp_path / "agent", spec), tmp_path, environment={}) as runner:
        with pytest.raises(InvalidAgentError) as error_info:
            await runner.start()

    assert "node 'work' needs a model" in str(error_info.value)
    assert "NOT_SET_ANYWHERE" in str(error_info.value)
    assert not (tmp_path / "storage").exists()


def test_client_facing_node_without_terminal_is_a_warning(tmp_path: Path) -> None:
    path = chatter(tmp_path / "agent")

    assert AgentRunner.load(path).validate().warnings == ()
    [warning] = AgentRunner.load(path, interactive=False).validate().warnings

    assert "'chat'" in warning


async def test_judge_is_a_function_of_judges_py(tmp_path: Path) -> None:
    spec = json.loads(json.dumps(TALKER))
    spec["graph"]["nodes"][0]["conversation_judge"] = "only_43"
    judges = "def only_43(turn):\n    return turn.outputs.get('answer') == '43'\n"
    replies = [*TALKS, {"tool_calls": [{"name": "set_output", "arguments": {"answer": "43"}}]}]
    path = write_agent(
        tmp_path / "agent",
        spec,
        replies,
        judges=judges,
        tools="def double(number: int):\n    return 2 * number\n",
    )
    async with load_runner(path, tmp_path) as runner:
        result = await runner.run()

    assert result.outputs == {"answer": "43"}


async def test_cancelled_run_is_paused_and_resumed_by_another_runner(tmp_path: Path) -> None:
    path = chatter(tmp_path / "agent")
    async with load_runner(path, tmp_path) as runner:
        runtime = await runner.start()
        run_task = asyncio.create_task(runner.run())
        question = await runtime.bus.wait_for(EventType.CLIENT_INPUT_REQUESTED, timeout=None)
        run_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run_task

    model = ScriptedProvider([ModelReply(text="So you are Ada."), *make_chat_replies()])
    async with load_runner(path, tmp_path, model=model) as runner:
        runtime = await runner.start()
        resume_task = asyncio.create_task(runner.resume(question.session_id))
        await runtime.bus.wait_for(EventType.CLIENT_INPUT_REQUESTED, timeout=None)
        assert await runtime.inject_input("chat", "Ada")
        await runtime.bus.wait_for(EventType.CLIENT_INPUT_REQUESTED, timeout=None)
        assert await runtime.inject_input("chat", "Yes")
        result = await resume_task

    assert result.outputs == {"name": "Ada"}
    assert result.session_id == question.session_id


def make_chat_replies() -> list[ModelReply]:
    from queenright.runtime.llm.model import ToolCall

    return [ModelReply(text="Thanks.", tool_calls=(ToolCall("c", "set_output", '{"name": "Ada"}'),))]


async def test_agent_joins_another_runtime_under_a_new_name(tmp_path: Path) -> None:
    bus = EventBus()
    runtime = AgentRuntime(bus=bus, storage=tmp_path / "shared")
    await runtime.start()
    first_runner, second_runner = (AgentRunner.load(adder(tmp_path / "agent")) for _ in range(2))
    try:
        await first_runner.setup_as_secondary(runtime, "one")
        await second_runner.setup_as_secondary(runtime, "two")
        with pytest.raises(GraphError, match="'two' already exists"):
            await first_runner.setup_as_secondary(runtime, "two")
        result = await runtime.wait(await runtime.trigger("start", {"a": 2, "b": 2}, graph_id="two"))
    finally:
        await runtime.stop()
        await first_runner.cleanup_async()
        await second_runner.cleanup_async()

    assert result.outputs == {"sum": 4}
    assert runtime.list_graphs() == ["one", "two"]
    assert runtime.get_stream("start", graph_id="two")._graph.agent_id == "adder"


async def test_mcp_tools_are_ordinary_tools_and_their_server_ends_with_the_agent(
    tmp_path: Path,
) -> None:
    replies = [
        {
            "tool_calls": [
                {"name": "tools__add", "arguments": {"a": 40, "b": 2}},
                {"name": "add", "arguments": {}},
            ]
        },
        {"tool_calls": [{"name": "set_output", "arguments": {"answer": "42"}}]},
    ]
    spec = json.loads(json.dumps(TALKER))
    spec["graph"]["nodes"][0]["tools"] = ["tools__add", "add"]
    path = write_agent(tmp_path / "agent", spec, replies, tools="def add() -> str:\n    return 'mine'\n")
    servers = {"servers": {"tools": {"command": "python", "args": [str(MCP_SERVER)], "env": {"K": "${K}"}}}}
    (path / "mcp_servers.json").write_text(json.dumps(servers), encoding="utf-8")

    validation = AgentRunner.load(path, environment={}).validate()
    async with load_runner(path, tmp_path, environment={"K": SECRET}) as runner:
        completions: list[Mapping[str, Any]] = []
        runtime = await runner.start()
        runtime.subscribe_to_events(
            [EventType.TOOL_CALL_COMPLETED], lambda event: completions.append(event.data)
        )
        result = await runner.run()
        await runtime.bus.drain()

    assert len(validation.errors) == 1
    assert "'tools'" in validation.errors[0]
    assert validation.errors[0].endswith(": K")
    assert result.succeeded
    assert {(d["tool"], d["outcome"]) for d in completions} >= {("tools__add", "ok"), ("add", "ok")}
    assert "a line on stderr" in (tmp_path / "storage" / "logs" / "mcp_tools.log").read_text(encoding="utf-8")


async def test_unoffered_tool_stops_the_start_and_leaves_no_server(
    tmp_path: Path,
) -> None:
    path = write_agent(tmp_path / "agent", TALKER, TALKS)
    servers = {"servers": {"tools": {"command": "python", "args": [str(MCP_SERVER)]}}}
    (path / "mcp_servers.json").write_text(json.dumps(servers), encoding="utf-8")
    async with load_runner(path, tmp_path) as runner:
        with pytest.raises(GraphError, match="uses tool 'double'"):
            await runner.start()

        assert [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("mcp ")] == []


async def test_run_in_existing_session_sees_its_memory(tmp_path: Path) -> None:
    async with load_runner(adder(tmp_path / "agent"), tmp_path) as runner:
        first_run = await runner.run({"a": 1, "b": 2})
        second_run = await runner.run({"b": 40}, entry_point="start", session_id=first_run.session_id)

    assert second_run.session_id == first_run.session_id
    assert second_run.outputs == {"sum": 41}


def test_sessions_folder_is_below_home_with_the_agents_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    runner = AgentRunner.load(write_agent(tmp_path / "agent", CHATTER, []))

    assert runner.storage == tmp_path / ".queenright" / "agents" / "chatter"
    assert runner.default_entry_point == "start"


LEAKING_AGENT: dict[str, Any] = {
    "name": "leaker",
    "credentials": ["HIVE_DOOR"],
    "model": "scripted:replies.json",
    "graph": {
        "nodes": [
            {"id": "work", "system_prompt": "Work.", "tools": ["refuse", "fail"], "output_keys": ["answer"]},
            {"id": "break", "node_type": "function", "function": "fall", "output_keys": ["sum"]},
        ],
        "edges": [{"id": "on", "source": "work", "target": "break"}],
        "entry_points": [{"id": "start", "node_id": "work"}],
    },
}

LEAKING_CODE = """
import os
from queenright.runtime.tooling.tools import ToolError

def refuse() -> str:
    raise ToolError(f"the door {os.environ['HIVE_DOOR']} is shut")

def fail() -> str:
    raise OSError({"door": os.environ["HIVE_DOOR"]})

def fall() -> dict:
    raise ValueError(f"door {os.environ['HIVE_DOOR']!r} and window {os.environ['HIVE_WINDOW']}")
"""


def read_files(folder: Path) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.is_file()]


async def test_credential_in_an_error_is_masked_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    door, window = "open 'sesame' \\ ü", "glass of the hive"
    monkeypatch.setenv("HIVE_DOOR", door)
    monkeypatch.setenv("HIVE_WINDOW", window)
    replies = [
        {"tool_calls": [{"name": "refuse", "arguments": {}}, {"name": "fail", "arguments": {}}]},
        {"tool_calls": [{"name": "set_output", "arguments": {"answer": "42"}}]},
    ]
    path = write_agent(tmp_path / "agent", LEAKING_AGENT, replies, tools=LEAKING_CODE, functions=LEAKING_CODE)
    server = {"command": "python", "args": [str(MCP_SERVER)], "env": {"WINDOW": "${HIVE_WINDOW}"}}
    (path / "mcp_servers.json").write_text(json.dumps({"servers": {"local": server}}), encoding="utf-8")
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(tracer_provider=tracers, records=False)
    lines: list[str] = []

    async def record_line(event: AgentEvent) -> None:
        lines.append(repr(event))

    async with load_runner(path, tmp_path, telemetry=telemetry) as runner:
        (await runner.start()).bus.subscribe(record_line, name="ear")
        result = await runner.run()

    lines += [span.to_json() for span in spans.get_finished_spans()]
    lines += read_files(tmp_path / "storage")
    lines += [caplog.text, repr(result)]
    assert result.status is SessionStatus.FAILED
    assert "door [redacted] is shut" in "".join(lines)
    for secret in ("sesame", window):
        assert [text for text in lines if secret in text] == []


async def test_load_error_contains_no_credential(tmp_path: Path) -> None:
    path = write_agent(tmp_path / "agent", LEAKING_AGENT, [], tools="raise OSError('lock of 7 wards')")

    with pytest.raises(AgentLoadError) as error_info:
        AgentRunner.load(path, environment={"HIVE_DOOR": "lock of 7 wards"})

    assert "wards" not in str(error_info.value)


async def test_session_files_are_private(tmp_path: Path) -> None:
    path = talker(tmp_path / "agent")
    (path / "mcp_servers.json").write_text(
        json.dumps({"servers": {"local": {"command": "python", "args": [str(MCP_SERVER)]}}}), encoding="utf-8"
    )
    old_umask = os.umask(0o002)
    try:
        async with load_runner(path, tmp_path) as runner:
            result = await runner.run()
    finally:
        os.umask(old_umask)

    modes = read_modes(tmp_path / "storage")
    logs = f"sessions/{result.session_id}/logs"
    assert {f"{logs}/tool_logs.jsonl", f"{logs}/details.jsonl", "logs/mcp_local.log"} <= set(modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def read_modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "functions", ["    return 'x' * (1 << 20)\n", "    return {'sum': ['é' * (1 << 19)]}\n"]
)
async def test_oversized_output_fails_its_node_with_a_remedy(tmp_path: Path, functions: str) -> None:
    path = adder(tmp_path / "agent", f"def add(a, b):\n{functions}")
    async with load_runner(path, tmp_path) as runner:
        result = await runner.run({"a": 1, "b": 2})
        [state_file] = (tmp_path / "storage").rglob("state.json")

    assert result.status is SessionStatus.FAILED
    assert all(part in result.error for part in ("'sum'", "1.0 MiB", "1 MiB"))
    assert state_file.stat().st_size < 10_000


async def test_oversized_output_is_rejected_and_model_continues(tmp_path: Path) -> None:
    large_reply = {"tool_calls": [{"name": "set_output", "arguments": {"answer": "x" * (1 << 20)}}]}
    path = talker(tmp_path / "agent")
    async with load_runner(write_agent(path, TALKER, [large_reply, TALKS[1]]), tmp_path) as runner:
        result = await runner.run()

    assert result.outputs == {"answer": "42"}
