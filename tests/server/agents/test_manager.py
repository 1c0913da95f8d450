"""Loading agents with faulty code, and loading several agents concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agents.agent_spec import AgentLoadError
from queenright.runtime.agents.mcp_tools import McpUnavailableError
from queenright.runtime.bus import EventBus
from queenright.server.agents.companion_sessions import MAX_SESSIONS
from queenright.server.agents.manager import (
    AgentAlreadyLoadedError,
    AgentManager,
    AgentNotLoadedError,
    LoadTimeoutError,
    ManagerClosingError,
    ReloadRefusedError,
)
from queenright.server.agents.roots import PathNotAllowedError
from queenright.server.settings import load_settings
from queenright.server.up_options import get_example_roots
from tests.runtime.agents import MODEL_FREE, adder, talker, write_agent
from tests.server.agents.parts import run_agent_service, write_files, write_guide
from tests.waiting import until


async def fail_if_called(_: float) -> None:
    await asyncio.Event().wait()


def make_manager(
    folder: Path, *, sleep: object = fail_if_called, bus: Callable[..., EventBus] = lambda _: EventBus()
) -> AgentManager:
    (folder / "agents").mkdir(exist_ok=True)
    return AgentManager(
        [folder / "agents"],
        bus=bus,
        storage=folder / "kept",
        clock=lambda: 7.0,
        sleep=sleep,  # type: ignore[arg-type]
    )


async def test_concurrent_loads_and_unloads_end_in_the_last_requested_state(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    names = [f"agent{number}" for number in range(5)]
    for name in names:
        write_guide(tmp_path / "agents" / name, name)

    async def load_and_unload(name: str) -> int:
        try:
            await agents.load(name)
        except AgentAlreadyLoadedError:
            return 0
        return 1

    async def find_outcome(name: str) -> int:
        try:
            await agents.unload(name)
        except AgentNotLoadedError:
            return 0
        return -1

    results = await asyncio.gather(
        *(
            action(name)
            for name in names
            for action in (load_and_unload, find_outcome, load_and_unload, load_and_unload)
        )
    )

    assert len(results) == 20
    assert sum(results) == len(agents.slots)
    await asyncio.gather(*(load_and_unload(name) for name in names))
    assert sorted(agents.slots) == names
    await agents.shutdown_all()
    assert not agents.slots
    with pytest.raises(ManagerClosingError):
        await agents.load("agent1")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('no honey')", "ValueError: no honey"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("honey = 1\nraise KeyboardInterrupt", "agent.py, line 2: KeyboardInterrupt"),
        ("def broken(:", "line 1"),
        ("agent = 3", "`agent` is a int"),
    ],
)
async def test_failing_import_is_reported_and_other_agents_keep_running(
    tmp_path: Path, code: str, expected: str
) -> None:
    agents = make_manager(tmp_path)
    adder(tmp_path / "agents" / "adder")
    write_files(tmp_path / "agents" / "bad", agent=code)
    slot = await agents.load("adder")

    with pytest.raises(AgentLoadError, match=expected.replace("(", r"\(")):
        await agents.load("bad")

    run = await slot.runtime.trigger("start", {"a": 1, "b": 2})
    assert (await slot.runtime.wait(run)).outputs == {"sum": 3}
    await agents.shutdown_all()


async def test_hanging_code_times_out_and_other_agents_keep_running(tmp_path: Path) -> None:
    is_time_up = asyncio.Event()

    async def sleep(_: float) -> None:
        await is_time_up.wait()

    agents = make_manager(tmp_path, sleep=sleep)
    adder(tmp_path / "agents" / "adder")
    continue_file, started_file = tmp_path / "go", tmp_path / "began"
    write_files(
        tmp_path / "agents" / "slow",
        agent=f"import pathlib, time\npathlib.Path({str(started_file)!r}).touch()\n"
        f"while not pathlib.Path({str(continue_file)!r}).exists():\n    time.sleep(0.01)\nagent = 3\n",
    )
    write_agent(tmp_path / "agents" / "other", {"name": "other", "graph": {"nodes": []}})
    slot = await agents.load("adder")
    load_task = asyncio.create_task(agents.load("slow"))
    await until(started_file.exists, "the agent's code runs")
    is_time_up.set()

    with pytest.raises(LoadTimeoutError, match="has not been loaded within 60 s"):
        await load_task
    with pytest.raises(LoadTimeoutError, match="slow is still running"):
        await agents.load("other")
    run = await slot.runtime.trigger("start", {"a": 1, "b": 2})
    assert (await slot.runtime.wait(run)).outputs == {"sum": 3}
    await agents.unload("adder")

    is_time_up.clear()
    continue_file.touch()
    await until(lambda: not agents.is_blocked, "the agent's code has ended")
    assert (await agents.load("adder")).id == "adder"
    await agents.shutdown_all()


def write_agent_with_silent_server(folder: Path) -> Path:
    """Write an agent whose MCP server never responds."""
    node = {"id": "n", "node_type": "function", "function": "f"}
    graph = {"nodes": [node], "entry_points": [{"id": "start", "node_id": "n"}]}
    write_agent(folder, {"name": folder.name, "graph": graph})
    write_files(folder, functions="def f():\n    return 1\n")
    (folder / "mcp_servers.json").write_text(
        '{"servers": {"x": {"command": "sleep", "args": ["1000"], "connect_timeout_seconds": 600}}}',
        encoding="utf-8",
    )
    return folder


async def test_silent_mcp_server_blocks_no_other_agent(tmp_path: Path) -> None:
    is_time_up = asyncio.Event()

    async def sleep(_: float) -> None:
        await is_time_up.wait()

    agents = make_manager(tmp_path, sleep=sleep)
    write_agent_with_silent_server(tmp_path / "agents" / "slow")
    adder(tmp_path / "agents" / "adder")
    write_guide(tmp_path / "agents" / "guide")
    await agents.load("guide")
    load_task = asyncio.create_task(agents.load("slow"))
    add_task = asyncio.create_task(agents.add_graph("guide", "slow"))
    logs = [tmp_path / "kept" / "slow" / "logs" / "mcp_x.log", tmp_path / "kept" / "guide" / "logs"]
    await until(lambda: all(log.exists() for log in logs), "the MCP server has been started twice")

    assert (await agents.load("adder")).id == "adder"
    await agents.unload("adder")
    with pytest.raises(AgentNotLoadedError):
        await agents.unload("slow")
    with pytest.raises(AgentAlreadyLoadedError, match="is loading it"):
        await agents.add_graph("guide", "adder", graph_id="slow")
    assert not load_task.done()
    assert not add_task.done()

    is_time_up.set()
    with pytest.raises(LoadTimeoutError, match=r"'slow' has not started within 60 s; .* MCP servers \(x\)"):
        await load_task
    with pytest.raises(LoadTimeoutError, match="has not started"):
        await add_task
    assert agents.get("guide").runtime.list_graphs() == ["guide"]
    await agents.shutdown_all()


def write_blocking_agent(folder: Path, continue_file: Path, started_file: Path) -> Path:
    """Write an agent whose code records each start, and continues once the file ``continue_file`` exists."""
    graph = "{'nodes': [{'id': 'n', 'node_type': 'function', 'function': 'f'}],"
    graph += " 'entry_points': [{'id': 'start', 'node_id': 'n'}]}"
    return write_files(
        folder,
        agent=f"import pathlib, time\nbegan = pathlib.Path({str(started_file)!r})\n"
        "began.write_text((began.read_text() if began.exists() else '') + 'x')\n"
        f"while not pathlib.Path({str(continue_file)!r}).exists():\n    time.sleep(0.01)\n"
        "from queenright.runtime.agents.agent_spec import AgentSpec\n"
        f"agent = AgentSpec.model_validate({{'name': {folder.name!r}, 'graph': {graph}}})\n",
        functions="def f():\n    return 1\n",
    )


async def test_time_spent_waiting_for_code_of_another_agent_is_not_load_time(tmp_path: Path) -> None:
    limits = 0

    async def sleep(_: float) -> None:
        nonlocal limits
        limits += 1
        await fail_if_called(0)

    agents = make_manager(tmp_path, sleep=sleep)
    continue_file, started_file = tmp_path / "go", tmp_path / "began"
    write_blocking_agent(tmp_path / "agents" / "slow", continue_file, started_file)
    adder(tmp_path / "agents" / "adder")
    first_load = asyncio.create_task(agents.load("slow"))
    await until(started_file.exists, "the agent's code runs")
    other_load = asyncio.create_task(agents.load("adder"))

    with pytest.raises(AgentAlreadyLoadedError, match="is being loaded already"):
        await agents.load("slow")
    assert limits == 1
    continue_file.touch()
    assert [slot.id for slot in await asyncio.gather(first_load, other_load)] == ["slow", "adder"]
    with pytest.raises(AgentAlreadyLoadedError, match="queenright agents unload slow"):
        await agents.load("slow")
    assert started_file.read_text() == "x", "the code was run once"
    await agents.shutdown_all()


async def test_loading_while_the_service_stops_is_refused(tmp_path: Path) -> None:
    continue_file, started_file = tmp_path / "go", tmp_path / "began"
    write_blocking_agent(tmp_path / "agents" / "slow", continue_file, started_file)
    write_agent_with_silent_server(tmp_path / "agents" / "mute")
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        async with run_agent_service(tmp_path) as home:
            url = str(home.http.base_url.join("/api/agents"))
            tasks = [asyncio.create_task(http.post(url, json={"path": "mute"}))]
            await until((tmp_path / "kept" / "mute" / "logs").exists, "the MCP server has been started")
            tasks.append(asyncio.create_task(http.post(url, json={"path": "slow"})))
            await until(started_file.exists, "the agent's code runs")
        for response in await asyncio.gather(*tasks):
            assert response.status_code == 503
            assert response.headers["content-type"] == "application/problem+json"
            assert "the service is stopping" in response.json()["title"]
    continue_file.touch()


async def test_agents_are_loaded_only_from_below_the_roots(tmp_path: Path) -> None:
    """B8: this applies to every path and every link."""
    agents = make_manager(tmp_path)
    outside_folder = adder(tmp_path / "outside")
    root = tmp_path / "agents"
    (root / "link").symlink_to(outside_folder, target_is_directory=True)
    adder(root / "half")
    (root / "half" / "tools.py").symlink_to(outside_folder / "functions.py")
    outside_paths = ["../outside", "link", "half", "agents/../../outside", "a" * 5000, "\0", "none", "/"]

    for path in (str(outside_folder), *outside_paths):
        with pytest.raises(PathNotAllowedError):
            await agents.load(path)

    assert not agents.slots
    (root / "half" / "tools.py").unlink()
    for path in ("half", str(root / "half"), "half/agent.json", str(root / "half" / "agent.json")):
        assert (await agents.load(path)).path == root / "half"
        await agents.unload("adder")


async def test_model_script_is_read_only_from_below_the_roots(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    talker(tmp_path / "agents" / "talker")
    (tmp_path / "secret.json").write_text('{"replies": []}', encoding="utf-8")

    for name in (f"scripted:{tmp_path}/secret.json", "scripted:../../secret.json", "scripted:/etc/passwd"):
        with pytest.raises(PathNotAllowedError):
            await agents.load("talker", model=name)

    slot = await agents.load("talker", model="scripted:replies.json")
    run = await slot.runtime.trigger("start", {"message": "go"})
    assert (await slot.runtime.wait(run)).outputs == {"answer": "42"}
    await agents.shutdown_all()


async def test_graph_that_cannot_be_added_leaves_the_agent_unchanged(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    write_guide(tmp_path / "agents" / "guide")
    write_agent(
        tmp_path / "agents" / "lacking",
        {
            "name": "lacking",
            "graph": {
                "nodes": [{"id": "n", "node_type": "function", "function": "absent"}],
                "entry_points": [{"id": "start", "node_id": "n"}],
            },
        },
    )
    slot = await agents.load("guide")

    with pytest.raises(QueenrightError, match="absent"):
        await agents.add_graph("guide", "lacking")
    with pytest.raises(AgentAlreadyLoadedError):
        await agents.add_graph("guide", "guide")

    assert slot.runtime.list_graphs() == ["guide"]
    await agents.shutdown_all()


async def test_reload_uses_the_changed_code_and_keeps_the_model(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    folder = adder(tmp_path / "agents" / "adder")
    (folder / "replies.json").write_text('{"replies": []}', encoding="utf-8")
    old_slot = await agents.load("adder", model="scripted:replies.json")
    adder(folder, "def add(a, b):\n    return a * b\n")

    slot = await agents.reload("adder")

    run = await slot.runtime.trigger("start", {"a": 2, "b": 5})
    assert (await slot.runtime.wait(run)).outputs == {"sum": 10}
    assert slot.model == old_slot.model == "scripted:replies.json"
    assert list(agents.slots.values()) == [slot]
    with pytest.raises(RuntimeError, match="closed"):
        old_slot.runtime.bus.subscribe(print, name="late")
    await agents.shutdown_all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: adder(folder, "def add(a, b)\n"), "functions.py"),
        (lambda folder: adder(folder, "def other(a, b):\n    return a\n"), "add"),
        (lambda folder: write_agent(folder, MODEL_FREE | {"name": "other"}), "is named 'other' now"),
        (lambda folder: (folder / "agent.json").unlink(), "has no agent.json"),
        (lambda folder: folder.rename(folder.with_name("moved")), "there is no agent"),
    ],
)
async def test_reload_of_a_faulty_agent_leaves_the_running_one(
    tmp_path: Path, change: Callable[[Path], object], reason: str
) -> None:
    agents = make_manager(tmp_path)
    folder = adder(tmp_path / "agents" / "adder")
    slot = await agents.load("adder")
    change(folder)

    with pytest.raises(QueenrightError, match=reason):
        await agents.reload("adder")

    assert agents.get("adder") is slot
    run = await slot.runtime.trigger("start", {"a": 1, "b": 2})
    assert (await slot.runtime.wait(run)).outputs == {"sum": 3}
    await agents.shutdown_all()


async def test_failed_reload_of_an_agent_that_does_not_start_leaves_no_agent(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    folder = adder(tmp_path / "agents" / "adder")
    await agents.load("adder")
    servers = folder / "mcp_servers.json"
    servers.write_text('{"servers": {"x": {"command": "false"}}}', encoding="utf-8")

    with pytest.raises(McpUnavailableError):
        await agents.reload("adder")

    assert not agents.slots
    servers.unlink()
    assert (await agents.load("adder")).id == "adder"
    await agents.shutdown_all()


async def test_agent_with_other_agents_as_graphs_is_not_reloaded(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    adder(tmp_path / "agents" / "adder")
    write_guide(tmp_path / "agents" / "guide")
    slot = await agents.load("guide")
    await agents.add_graph("guide", "adder")

    with pytest.raises(ReloadRefusedError, match="adder"):
        await agents.reload("guide")
    with pytest.raises(AgentNotLoadedError):
        await agents.reload("adder")

    assert agents.get("guide") is slot
    await agents.shutdown_all()


async def test_concurrent_reloads_load_an_agent_once(tmp_path: Path) -> None:
    agents = make_manager(tmp_path)
    adder(tmp_path / "agents" / "adder")
    await agents.load("adder")

    reload_results = await asyncio.gather(
        agents.reload("adder"), agents.reload("adder"), return_exceptions=True
    )
    unload_results = await asyncio.gather(
        agents.reload("adder"), agents.unload("adder"), return_exceptions=True
    )

    assert sorted(type(result).__name__ for result in reload_results) == [
        "AgentAlreadyLoadedError",
        "AgentSlot",
    ]
    assert [type(result) for result in unload_results] == [AgentNotLoadedError, type(None)]
    assert not agents.slots
    await agents.shutdown_all()


async def test_bus_of_an_unloaded_agent_is_closed(tmp_path: Path) -> None:
    buses: list[EventBus] = []

    def bus(_: object) -> EventBus:
        buses.append(EventBus())
        return buses[-1]

    agents = make_manager(tmp_path, bus=bus)
    adder(tmp_path / "agents" / "adder")
    write_files(tmp_path / "agents" / "bad", agent="agent = 3")
    await agents.load("adder")
    with pytest.raises(AgentLoadError):
        await agents.load("bad")
    await agents.unload("adder")

    assert len(buses) == 2
    for closed_bus in buses:
        with pytest.raises(RuntimeError, match="closed"):
            closed_bus.subscribe(print, name="late")


async def test_companion_sessions_are_restored_from_disk(tmp_path: Path) -> None:
    for name in ("sessions/own", "graphs/a/sessions/s1", "graphs/b/sessions/s2", "graphs/c"):
        (tmp_path / "kept" / "guide" / name).mkdir(parents=True)
    agents = make_manager(tmp_path)
    write_guide(tmp_path / "agents" / "guide")

    await agents.load("guide")

    assert list(agents.companions.list_sessions("guide")) == ["s1", "s2"]
    agents.companions.add("guide", (str(n) for n in range(MAX_SESSIONS)))
    assert len(agents.companions.list_sessions("guide")) == MAX_SESSIONS
    assert "s1" not in agents.companions.list_sessions("guide")
    await agents.shutdown_all()


def test_up_can_load_the_examples_from_a_checkout(tmp_path: Path) -> None:
    assert get_example_roots(tmp_path) == {}
    (tmp_path / "examples").mkdir()

    settings = load_settings(defaults=get_example_roots(tmp_path))

    checkout = (Path("agents").absolute(), Path("exports").absolute())
    assert settings.agents.roots == (*checkout, tmp_path / "examples")
