"""Each endpoint of agents that run inside the service, tested on a running service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from queenright.server.routes.events import DEFAULT_TYPES
from tests.server.agents.parts import AgentService, run_agent_service, write_guide
from tests.server.streams import Follower

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentService]:
    folder = tmp_path_factory.mktemp("house")
    write_guide(folder / "agents" / "guide")
    write_guide(folder / "agents" / "more" / "second", "second")
    write_guide(folder / "agents" / "third", "third")
    async with run_agent_service(folder) as service:
        await service.request("POST", "/api/agents", json={"path": "guide"}, status=201)
        yield service


# -- lifecycle --------------------------------------------------------------------------------------


async def test_post_api_agents(home: AgentService) -> None:
    loaded = await home.request("POST", "/api/agents", json={"path": "third"}, status=201)
    again = await home.request("POST", "/api/agents", json={"path": "third"}, status=409)
    script = {"path": "more/second", "model": "scripted:../../../secret.json"}
    refused = await home.request("POST", "/api/agents", json=script, status=422)

    assert (loaded["agent_id"], loaded["version"], loaded["goal"]) == ("third", "3", "Somebody is greeted.")
    assert (loaded["client_facing"], loaded["default_entry_point"]) == (["talk"], "start")
    assert "`queenright agents unload third`" in again["title"]
    assert "secret.json" in refused["title"], "the model that is named is the one that is used"
    await home.request("DELETE", "/api/agents/third", status=204)


async def test_delete_api_agents__id(home: AgentService) -> None:
    await home.request("POST", "/api/agents", json={"path": str(home.roots / "third")}, status=201)
    _, session = await home.start_waiting_run("third")

    await home.request("DELETE", "/api/agents/third?by=ada", status=204)
    gone = await home.request("POST", "/api/agents/third/trigger", status=404)
    await home.request("POST", "/api/agents", json={"path": "third"}, status=201)
    body = await home.request("GET", f"/api/agents/third/sessions/{session}")

    assert "`queenright agents load`" in gone["title"]
    assert body["status"] == "paused"
    resumed = await home.request("POST", "/api/agents/third/resume", json={"session_id": session}, status=202)
    assert await home.wait_for_question("third", resumed["execution_id"]) == session
    await home.request("DELETE", "/api/agents/third", status=204)


async def test_get_api_agents(home: AgentService) -> None:
    await home.complete_run()

    body = await home.request("GET", "/api/agents")

    assert [one["agent_id"] for one in body["loaded"]] == ["guide"]
    assert {agent["agent_id"] for agent in body["agents"]} >= {"guide"}


async def test_get_api_agents__id(home: AgentService) -> None:
    _, session = await home.complete_run()

    body = await home.request("GET", "/api/agents/guide")
    nobody = await home.request("GET", "/api/agents/nobody", status=404)

    assert body["loaded"]["path"] == str(home.roots / "guide")
    assert session in [session["session_id"] for session in body["sessions"]]
    assert "`queenright agents discover`" in nobody["title"]


async def test_get_api_agents__id__stats(home: AgentService) -> None:
    await home.complete_run()
    await home.start_waiting_run()

    body = await home.request("GET", "/api/agents/guide/stats")

    assert body["running"] >= 1
    assert body["waiting_for_user"] >= 1
    assert body["sessions"] >= 2
    assert body["totals"]["statuses"]["completed"] >= 1
    assert body["totals"]["input_tokens"] >= 16


async def test_get_api_agents__id__entry_points(home: AgentService) -> None:
    body = await home.request("GET", "/api/agents/guide/entry-points?limit=1")
    rest = await home.request("GET", f"/api/agents/guide/entry-points?cursor={body['next']}")
    await home.request("GET", "/api/agents/guide/entry-points?graph_id=none", status=404)

    parse_routes = body["entry_points"] + rest["entry_points"]
    assert [(row["entry_point_id"], row["trigger_type"]) for row in parse_routes] == [
        ("nightly", "timer"),
        ("start", "manual"),
    ]
    assert rest["next"] is None


async def test_get_api_agents__id__graphs(home: AgentService) -> None:
    body = await home.request("GET", "/api/agents/guide/graphs")

    [row] = [graph for graph in body["graphs"] if graph["graph_id"] == "guide"]
    assert row["primary"]
    assert row["nodes"] == ["prepare", "talk", "finish"]


async def test_judge_and_queen_are_readable_graphs(home: AgentService) -> None:
    """003: they run as graphs beside each agent, and have neither chat nor removal there."""
    graphs = (await home.request("GET", "/api/agents/guide/graphs"))["graphs"]
    store = home.service.runtime.session_store("worker_health_judge")
    store.get_or_create("worker_health_judge", "health_check")
    path = "/api/agents/guide/graphs/worker_health_judge"
    nodes = (await home.request("GET", f"{path}/nodes"))["nodes"]
    [session] = (await home.request("GET", f"{path}/sessions"))["sessions"]
    one = await home.request("GET", f"{path}/sessions/{session['session_id']}")
    await home.request("GET", f"{path}/nodes/judge/criteria")
    await home.request("GET", f"{path}/nodes/judge/logs")
    await home.request("DELETE", path, status=404)
    body = {"graph_id": "queen"}
    await home.request("PUT", "/api/agents/guide/active-graph", json=body, status=404)

    parse_routes = {one["graph_id"]: one for one in graphs}
    assert [name for name, row in parse_routes.items() if row["of_service"]] == [
        "queen",
        "worker_health_judge",
    ]
    assert not parse_routes["guide"]["of_service"]
    assert "judge" in [node["node_id"] for node in nodes]
    assert one["graph_id"] == "worker_health_judge"


async def test_get_api_discover(home: AgentService) -> None:
    broken = home.roots / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "agent.json").write_text("{", encoding="utf-8")

    first = await home.request("GET", "/api/discover?limit=2")
    rest = await home.request("GET", f"/api/discover?limit=2&cursor={first['next']}")

    parse_routes = {one["name"]: one for one in first["agents"] + rest["agents"]}
    assert sorted(parse_routes) == ["broken", "guide", "second", "third"]
    assert [name for name in parse_routes if parse_routes[name]["loaded"]] == ["guide"]
    assert "is not JSON" in parse_routes["broken"]["problem"]
    assert first["roots"] == [str(home.roots)]


# -- execution control ------------------------------------------------------------------------------


async def test_post_api_agents__id__trigger(home: AgentService) -> None:
    given = {"entry_point_id": "start", "input_data": {"topic": "wax"}, "graph_id": "guide"}
    started = await home.request("POST", "/api/agents/guide/trigger", json=given, status=202)
    await home.request("POST", "/api/agents/guide/trigger", json={"entry_point_id": "x"}, status=404)
    await home.request("POST", "/api/agents/guide/trigger", json={"graph_id": "x"}, status=404)
    await home.request("POST", "/api/agents/guide/trigger", json={"session_id": "x"}, status=404)
    for number in ("NaN", "-Infinity"):
        response = await home.http.post(
            "/api/agents/guide/trigger",
            content=f'{{"input_data": {{"topic": [{number}]}}}}',
            headers={"Content-Type": "application/json"},
        )
        assert (response.status_code, "NaN" in response.json()["title"]) == (422, True)

    session = await home.wait_for_question("guide", started["execution_id"])
    assert started["session_id"] == session
    seen = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert (started["status"], started["entry_point_id"]) == ("started", "start")
    assert seen["memory"]["about"] == "all about wax"


async def test_post_api_agents__id__chat(home: AgentService) -> None:
    """B43: a waiting node gets the user's message; otherwise a run starts with it."""
    first = await home.request(
        "POST", "/api/agents/guide/chat", json={"message": "combs", "graph_id": "guide"}
    )
    while first["status"] == "injected":  # end the runs that other tests left waiting
        await home.wait_answered("guide", first["session_id"])
        first = await home.request("POST", "/api/agents/guide/chat", json={"message": "combs"})
    session = await home.wait_for_question("guide", first["execution_id"])
    other, elsewhere = await home.start_waiting_run()
    body = {"message": "Ada", "session_id": session}
    second = await home.request("POST", "/api/agents/guide/chat", json=body)

    assert first["status"] == "started"
    assert second == {"status": "injected", "node_id": "talk", "graph_id": "guide", "session_id": session}
    ended = await home.wait_for_end("guide", first["execution_id"])
    assert ended["outputs"] == {"greeting": "Ada: all about combs"}
    assert await home.wait_for_question("guide", other) == elsewhere
    await home.request("POST", "/api/agents/guide/chat", json={"message": " "}, status=422)


async def test_message_to_a_graph_reaches_no_other_graph(home: AgentService) -> None:
    async with added_graph(home, "second"):
        _, own = await home.start_waiting_run(graph_id="guide")
        chat = "/api/agents/guide/chat"
        started = await home.request("POST", chat, json={"message": "wax", "graph_id": "second"})
        session = await home.wait_for_question("guide", started["execution_id"])
        given = await home.request("POST", chat, json={"message": "Ada", "graph_id": "second"})
        ended = await home.wait_for_end("guide", started["execution_id"])
        await home.request("POST", chat, json={"message": "Ada", "graph_id": "none"}, status=404)

        assert (started["status"], started["graph_id"]) == ("started", "second")
        assert (given["graph_id"], given["session_id"]) == ("second", session)
        assert ended["outputs"] == {"greeting": "Ada: all about wax"}
        left = home.service.agents.get("guide").runtime.waiting_nodes()
        assert own in [one.session_id for one in left]


async def test_post_api_agents__id__inject(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    inject = "/api/agents/guide/inject"

    given = {"node_id": "talk", "content": "Ada", "session_id": session}
    accepted = await home.request("POST", inject, json=given)
    await home.wait_for_end("guide", run)
    idle = await home.request("POST", inject, json=given, status=409)
    unknown = await home.request("POST", inject, json=given | {"node_id": "none"}, status=404)

    assert accepted == {"status": "injected", "node_id": "talk", "graph_id": "guide", "session_id": session}
    assert "chat" in idle["title"]
    assert "prepare, talk, finish" in unknown["title"]


async def test_question_accepts_one_answer(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    runtime = home.service.agents.get("guide").runtime
    [question] = [node for node in runtime.waiting_nodes() if node.session_id == session]
    answer = {"node_id": "talk", "session_id": session, "question_id": question.question_id}
    names = ["Ada", "Bob", "Cy", "Dee", "Eve", "Fay", "Gus", "Hal"]

    responses = await asyncio.gather(
        *(home.http.post("/api/agents/guide/inject", json=answer | {"content": name}) for name in names)
    )

    assert sorted(response.status_code for response in responses) == [200] + 7 * [409]
    [first] = [name for name, response in zip(names, responses, strict=True) if response.status_code == 200]
    refused = [response.json()["title"] for response in responses if response.status_code == 409]
    assert any(f"answered already: {first!r}" in title for title in refused)
    assert (await home.wait_for_end("guide", run))["outputs"] == {"greeting": f"{first}: all about bees"}


async def test_chat_answers_the_named_question_or_nothing(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    waiting = home.service.agents.get("guide").runtime.waiting_nodes()
    [question] = [node for node in waiting if node.session_id == session]
    answer = {"message": "Ada", "question_id": question.question_id}
    chat = "/api/agents/guide/chat"

    other = await home.request("POST", chat, json=answer | {"question_id": "another"}, status=409)
    given = await home.request("POST", chat, json=answer)
    ended = await home.wait_for_end("guide", run)
    late = await home.request("POST", chat, json=answer, status=409)

    assert "no longer open" in other["title"]
    assert (given["status"], given["session_id"]) == ("injected", session)
    assert ended["outputs"] == {"greeting": "Ada: all about bees"}
    assert "this answer was not sent" in late["title"]


async def test_post_api_agents__id__inject_with_several_runs_requires_the_session(home: AgentService) -> None:
    """B40: a caller never gets the response to another's message."""
    [_, one], [_, two] = await home.start_waiting_run(), await home.start_waiting_run()

    refused = await home.request(
        "POST", "/api/agents/guide/inject", json={"node_id": "talk", "content": "Ada"}, status=409
    )

    assert one in refused["title"]
    assert two in refused["title"]
    assert "session_id" in refused["title"]


async def test_post_api_agents__id__stop(home: AgentService) -> None:
    run, session = await home.start_waiting_run()

    stopped = await home.request("POST", "/api/agents/guide/stop", json={"execution_id": run})
    over = await home.request("POST", "/api/agents/guide/stop", json={"execution_id": run}, status=409)
    await home.request("POST", "/api/agents/guide/stop", json={"execution_id": "none"}, status=404)
    none = await home.request("POST", "/api/agents/guide/stop", json={"session_id": session})
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": "nope"}, status=404)
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": "../x"}, status=422)

    assert stopped == {"status": "stopped", "executions": [run]}
    assert "paused" in over["title"]
    assert none["executions"] == []
    assert (await home.request("GET", f"/api/agents/guide/sessions/{session}"))["status"] == "paused"


async def test_stopping_a_graph_or_session_does_not_affect_others(home: AgentService) -> None:
    async with added_graph(home, "second"):
        [own, session], [other, _] = await home.start_waiting_run(), await home.start_waiting_run()
        run, _ = await home.start_waiting_run(graph_id="second")
        stop = "/api/agents/guide/stop"

        graph = await home.request("POST", stop, json={"graph_id": "second"})
        one = await home.request("POST", stop, json={"session_id": session})
        await home.request("POST", stop, json={"graph_id": "none"}, status=404)
        await home.request("POST", "/api/agents/second/stop", status=404)
        going = await home.request("GET", f"/api/agents/guide/executions/{other}")
        rest = await home.request("POST", stop)

    assert (graph["executions"], one["executions"]) == ([run], [own])
    assert going["status"] == "active"
    assert other in rest["executions"]


async def test_run_can_start_in_an_existing_session(home: AgentService) -> None:
    run, session = await home.complete_run()

    started = await home.request(
        "POST",
        "/api/agents/guide/trigger",
        json={"input_data": {"topic": "wax"}, "session_id": session},
        status=202,
    )

    assert started["execution_id"] != run
    assert await home.wait_for_question("guide", started["execution_id"]) == session
    body = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert started["execution_id"] in [run["execution_id"] for run in body["runs"]]


async def test_post_api_agents__id__resume(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    resume = "/api/agents/guide/resume"
    busy = await home.request("POST", resume, json={"session_id": session}, status=409)
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": session})

    again = await home.request("POST", resume, json={"session_id": session}, status=202)
    await home.request("POST", resume, json={"session_id": "none"}, status=404)
    await home.request("POST", resume, json={"session_id": "../../etc"}, status=422)

    assert "is still running" in busy["title"]
    assert (again["status"], again["execution_id"], again["session_id"]) == ("resumed", run, session)
    assert await home.wait_for_question("guide", run) == session


async def test_post_api_agents__id__replay(home: AgentService) -> None:
    run, session = await home.complete_run()
    before = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    listed = await home.request("GET", f"/api/agents/guide/sessions/{session}/checkpoints")
    last, [point] = listed["checkpoints"][0], [c for c in listed["checkpoints"] if c["node_id"] == "prepare"]

    given = {"session_id": session, "checkpoint_id": point["checkpoint_id"]}
    started = await home.request("POST", "/api/agents/guide/replay", json=given, status=202)
    at_end = given | {"checkpoint_id": last["checkpoint_id"]}
    nothing = await home.request("POST", "/api/agents/guide/replay", json=at_end, status=409)
    none = given | {"checkpoint_id": "0000000099-x"}
    await home.request("POST", "/api/agents/guide/replay", json=none, status=404)

    assert started["execution_id"] != run
    assert started["session_id"] != session
    assert await home.wait_for_question("guide", started["execution_id"]) == started["session_id"]
    body = {"message": "Ada", "session_id": started["session_id"]}
    await home.request("POST", "/api/agents/guide/chat", json=body)
    ended = await home.wait_for_end("guide", started["execution_id"])
    assert (ended["status"], ended["outputs"]) == ("completed", {"greeting": "Ada: all about bees"})
    assert await home.request("GET", f"/api/agents/guide/sessions/{session}") == before
    assert "was finished at that point" in nothing["title"]


async def test_get_api_agents__id__executions__eid(home: AgentService) -> None:
    run, session = await home.start_waiting_run()

    going = await home.request("GET", f"/api/agents/guide/executions/{run}")
    await home.request("GET", "/api/agents/guide/executions/none", status=404)

    assert (going["status"], going["session_id"], going["path"]) == ("active", session, ["prepare"])


async def test_get_api_agents__id__goal_progress(home: AgentService) -> None:
    await home.complete_run()

    body = await home.request("GET", "/api/agents/guide/goal-progress?graph_id=guide")

    assert (body["goal_id"], body["progress"]["fraction"]) == ("greeted", 1.0)
    assert body["criteria"][0]["state"] == "met"


# -- sessions ---------------------------------------------------------------------------------------


async def test_get_api_agents__id__sessions(home: AgentService) -> None:
    made = [(await home.complete_run())[1] for _ in range(2)]
    found: list[str] = []
    cursor = ""
    there = len((await home.request("GET", "/api/agents/guide/sessions?limit=1000"))["sessions"])
    for _ in range(there + 1):
        part = await home.request("GET", f"/api/agents/guide/sessions?limit=1&status=completed{cursor}")
        found += [session["session_id"] for session in part["sessions"]]
        if part["next"] is None:
            break
        cursor = f"&cursor={part['next']}"
    else:
        pytest.fail("the list does not end")

    assert found[:2] == made[::-1]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    "path",
    [
        "sessions?status=odd",
        "sessions?status=",
        "graphs/guide/sessions?status=odd",
        "logs?level=odd",
        "graphs/guide/nodes/talk/logs?level=odd",
    ],
)
async def test_unknown_filter_value_is_refused(home: AgentService, path: str) -> None:
    refused = await home.request("GET", f"/api/agents/guide/{path}", status=422)

    assert refused["title"]


async def test_get_api_agents__id__sessions__sid(home: AgentService) -> None:
    run, session = await home.complete_run()

    body = await home.request("GET", f"/api/agents/guide/sessions/{session}")

    [one] = body["runs"]
    assert (one["execution_id"], one["status"], one["pending"]) == (run, "completed", [])
    assert one["path"] == ["prepare", "talk", "finish"]
    assert body["memory"]["greeting"] == "Ada: all about bees"


@pytest.mark.parametrize("session", ["%2e%2e", "..%2f..%2fetc", "a%2f..", "a%5c..", "x" * 300, "none"])
async def test_session_id_with_a_path_is_refused(home: AgentService, session: str) -> None:
    """B8: no file outside the sessions is read or removed."""
    for method in ("GET", "DELETE"):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}")
        assert response.status_code in (404, 422), response.text
    for method, rest in (("GET", "messages"), ("GET", "checkpoints"), ("POST", "checkpoints/..%2fx/restore")):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}/{rest}")
        assert response.status_code in (404, 405, 422), response.text


async def test_delete_api_agents__id__sessions__sid(home: AgentService) -> None:
    _, session = await home.complete_run()
    _, other = await home.start_waiting_run()

    await home.request("DELETE", f"/api/agents/guide/sessions/{session}", status=204)
    await home.request("GET", f"/api/agents/guide/sessions/{session}", status=404)
    busy = await home.request("DELETE", f"/api/agents/guide/sessions/{other}", status=409)

    assert "busy" in busy["title"]


async def test_get_api_agents__id__sessions__sid__checkpoints(home: AgentService) -> None:
    _, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"

    first = await home.request("GET", f"{path}?limit=2")
    rest = await home.request("GET", f"{path}?limit=2&cursor={first['next']}")

    found = first["checkpoints"] + rest["checkpoints"]
    assert [one["node_id"] for one in found] == ["finish", "talk", "prepare"]
    assert [one["pending"] for one in found] == [[], ["finish"], ["talk"]]
    assert all(one["valid"] for one in found)
    assert rest["next"] is None


async def test_post_api_agents__id__sessions__sid__checkpoints__cid__restore(home: AgentService) -> None:
    run, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"
    [*_, first] = (await home.request("GET", path))["checkpoints"]

    restored = await home.request("POST", f"{path}/{first['checkpoint_id']}/restore", status=202)
    await home.request("POST", f"{path}/0000000077-none/restore", status=404)

    assert (restored["status"], restored["execution_id"], restored["session_id"]) == (
        "restored",
        run,
        session,
    )
    await home.wait_for_question("guide", run)
    seen = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert "greeting" not in seen["memory"]


async def test_get_api_agents__id__sessions__sid__messages(home: AgentService) -> None:
    _, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/messages"

    newest = await home.request("GET", f"{path}?limit=2")
    older = await home.request("GET", f"{path}?cursor={newest['next']}")

    messages = [(one["kind"], one["text"]) for one in older["messages"] + newest["messages"]]
    assert messages[1:3] == [("assistant", "Who are you?"), ("user", "Ada")]
    assert messages[-1][0] == "tool"
    assert older["next"] is None
    assert (await home.request("GET", f"{path}?conversation=none"))["messages"] == []


# -- graphs -----------------------------------------------------------------------------------------


@asynccontextmanager
async def added_graph(home: AgentService, name: str) -> AsyncIterator[dict[str, Any]]:
    """Add another graph to the guide, and remove it at the end."""
    graphs = "/api/agents/guide/graphs"
    yield await home.request("POST", graphs, json={"path": "more/second", "graph_id": name}, status=201)
    await home.request("DELETE", f"{graphs}/{name}", status=204)


async def test_post_api_agents__id__graphs(home: AgentService) -> None:
    graphs = "/api/agents/guide/graphs"
    async with added_graph(home, "other") as named:
        added = await home.request("POST", graphs, json={"path": "more/second"}, status=201)
        accepted = await home.request("POST", graphs, json={"path": "more/second"}, status=409)
        listed = await home.request("GET", f"{graphs}?limit=2")
        await home.request("DELETE", f"{graphs}/second", status=204)

    assert (added["graph_id"], added["agent_id"], added["primary"]) == ("second", "second", False)
    assert (named["graph_id"], named["agent_id"]) == ("other", "second")
    assert [graph["graph_id"] for graph in listed["graphs"] if not graph["of_service"]] == ["guide", "other"]
    assert listed["next"]
    assert "already" in accepted["title"]


async def test_delete_api_agents__id__graphs__gid(home: AgentService) -> None:
    graphs = "/api/agents/guide/graphs"
    async with added_graph(home, "other"):
        _, session = await home.start_waiting_run(graph_id="other")
    gone = await home.request("DELETE", f"{graphs}/other", status=404)
    stays = await home.request("DELETE", f"{graphs}/guide", status=409)

    assert "other" in gone["title"]
    assert "primary" in stays["title"]
    async with added_graph(home, "other"):
        body = await home.request("GET", f"{graphs}/other/sessions/{session}")
        assert body["status"] == "paused"


async def test_get_api_agents__id__active_graph(home: AgentService) -> None:
    assert await home.request("GET", "/api/agents/guide/active-graph") == {"graph_id": "guide"}
    await home.request("GET", "/api/agents/nobody/active-graph", status=404)


async def test_put_api_agents__id__active_graph(home: AgentService) -> None:
    """B61: user input goes to the active graph; the others continue."""
    active = "/api/agents/guide/active-graph"
    async with added_graph(home, "second"):
        after = await home.request("PUT", active, json={"graph_id": "second"})
        await home.request("PUT", active, json={"graph_id": "none"}, status=404)
        run, session = await home.start_waiting_run(graph_id="second")
        await home.start_waiting_run(graph_id="guide")
        body = await home.request("POST", "/api/agents/guide/chat", json={"message": "Ada"})

        assert after == await home.request("GET", active) == {"graph_id": "second"}
        assert (body["graph_id"], body["session_id"]) == ("second", session)
        assert (await home.wait_for_end("guide", run))["status"] == "completed"
    assert await home.request("GET", active) == {"graph_id": "guide"}


async def test_get_api_agents__id__graphs__gid__sessions(home: AgentService) -> None:
    async with added_graph(home, "second"):
        _, session = await home.start_waiting_run(graph_id="second")
        listed = await home.request("GET", "/api/agents/guide/graphs/second/sessions")
        own = await home.request("GET", "/api/agents/guide/sessions?limit=1000")
        await home.request("GET", "/api/agents/guide/graphs/none/sessions", status=404)

    assert session in [row["session_id"] for row in listed["sessions"]]
    assert session not in [row["session_id"] for row in own["sessions"]]


async def test_get_api_agents__id__graphs__gid__sessions__sid(home: AgentService) -> None:
    async with added_graph(home, "second"):
        _, session = await home.start_waiting_run(graph_id="second")
        one = await home.request("GET", f"/api/agents/guide/graphs/second/sessions/{session}")
        await home.request("GET", "/api/agents/guide/graphs/second/sessions/none", status=404)
        await home.request("GET", f"/api/agents/guide/graphs/guide/sessions/{session}", status=404)

    assert (one["graph_id"], one["status"]) == ("second", "active")


async def test_get_api_agents__id__graphs__gid__nodes(home: AgentService) -> None:
    path = "/api/agents/guide/graphs/guide/nodes"
    first = await home.request("GET", f"{path}?limit=2")
    rest = await home.request("GET", f"{path}?limit=2&cursor={first['next']}")

    assert [one["node_id"] for one in first["nodes"] + rest["nodes"]] == ["prepare", "talk", "finish"]
    assert rest["next"] is None


async def test_get_api_agents__id__graphs__gid__nodes__nid(home: AgentService) -> None:
    await home.start_waiting_run()

    body = await home.request("GET", "/api/agents/guide/graphs/guide/nodes/talk")
    await home.request("GET", "/api/agents/guide/graphs/guide/nodes/none", status=404)

    assert body["waiting_for_user"] >= 1
    assert body["system_prompt"] == "Talk."
    assert [edge["target"] for edge in body["edges_out"]] == ["finish"]
    assert [edge["source"] for edge in body["edges_in"]] == ["prepare"]


async def test_get_api_agents__id__graphs__gid__nodes__nid__criteria(home: AgentService) -> None:
    await home.complete_run()

    talk = await home.request("GET", "/api/agents/guide/graphs/guide/nodes/talk/criteria")
    finish = await home.request("GET", "/api/agents/guide/graphs/guide/nodes/finish/criteria")

    assert (talk["judge"], talk["output_keys"]) == ("outputs", ["name"])
    assert talk["verdicts"]["ACCEPT"] >= 1
    assert talk["outcomes"]["done"] >= 1
    assert [one["id"] for one in finish["goal_criteria"]] == ["said"]


async def test_node_criteria_count_the_running_visit(home: AgentService) -> None:
    path = "/api/agents/guide/graphs/guide/nodes/talk/criteria"
    before = await home.request("GET", path)
    run, _ = await home.start_waiting_run()
    during = await home.request("GET", path)
    await home.request("POST", "/api/agents/guide/stop", json={"execution_id": run})

    assert during["visits"] == before["visits"] + 1
    assert during["outcomes"]["running"] == before["outcomes"].get("running", 0) + 1
    assert during["verdicts"]["CONTINUE"] == before["verdicts"].get("CONTINUE", 0) + 1


# -- logs -------------------------------------------------------------------------------------------


async def test_get_api_agents__id__logs(home: AgentService) -> None:
    runs = [await home.complete_run() for _ in range(2)]
    path = "/api/agents/guide/logs"

    first = await home.request("GET", f"{path}?limit=1")
    second = await home.request("GET", f"{path}?limit=1&cursor={first['next']}")
    mine = await home.request("GET", f"{path}?session_id={runs[0][1]}")
    steps = await home.request("GET", f"{path}?level=steps&session_id={runs[0][1]}&limit=2")
    rest = await home.request("GET", f"{path}?level=steps&cursor={steps['next']}")

    assert [one["rows"][0]["execution_id"] for one in (first, second)] == [run for run, _ in runs[::-1]]
    assert [row["execution_id"] for row in mine["rows"]] == [runs[0][0]]
    seen = [row["step_index"] for row in steps["rows"] + rest["rows"]]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) >= 3
    assert rest["session_id"] == runs[0][1]
    await home.request("GET", f"{path}?session_id=none", status=404)


async def test_get_api_agents__id__graphs__gid__nodes__nid__logs(home: AgentService) -> None:
    run, session = await home.complete_run()
    path = "/api/agents/guide/graphs/guide/nodes/talk/logs"

    visits = await home.request("GET", path)
    steps = await home.request("GET", f"{path}?level=steps&session_id={session}")
    await home.request("GET", path.replace("talk", "none"), status=404)

    assert [(row["node_id"], row["execution_id"]) for row in visits["rows"]] == [("talk", run)]
    assert {row["node_id"] for row in steps["rows"]} == {"talk"}


# -- events and health ------------------------------------------------------------------------------


async def test_get_api_agents__id__events(home: AgentService) -> None:
    """B64: the stream has events of all graphs of the agent, also earlier ones, and of no other agent."""
    assert {one.value for one in DEFAULT_TYPES} == {
        "client_output_delta",
        "client_input_requested",
        "llm_text_delta",
        "tool_call_started",
        "tool_call_completed",
        "execution_started",
        "execution_completed",
        "execution_failed",
        "execution_paused",
        "node_loop_started",
        "node_loop_completed",
        "edge_traversed",
        "goal_progress",
        "worker_escalation_ticket",
        "queen_intervention_requested",
    }
    url = f"{home.http.base_url.join('/api/agents/guide/events')}"
    await home.request("POST", "/api/agents", json={"path": "more/second"}, status=201)
    async with added_graph(home, "second"):
        async with Follower(url) as stream:
            before = stream.last_id
            mine = [(await home.start_waiting_run())[1], (await home.start_waiting_run(graph_id="second"))[1]]
            _, others = await home.start_waiting_run("second")
            mine.append((await home.start_waiting_run())[1])
            await stream.until(lambda: mine[-1] in _question_sessions(stream), "the question of the last run")
        later = Follower(url, headers={"Last-Event-ID": str(before)})
        async with later:
            await later.until(
                lambda: mine[-1] in _question_sessions(later), "the same events after reconnecting"
            )
    await home.request("DELETE", "/api/agents/second", status=204)

    for stream_end in (stream, later):
        assert _question_sessions(stream_end) == mine
        assert others not in stream_end.text
        assert {event.data["agent_id"] for event in stream_end.events} == {"guide", "second"}


def _question_sessions(stream: Follower) -> list[str]:
    return [event.data["session_id"] for event in stream.events if event.event == "client_input_requested"]


async def test_get_api_agents__id__health(home: AgentService) -> None:
    _, session = await home.start_waiting_run()

    body = await home.request("GET", f"/api/agents/guide/health?session_id={session}")
    await home.request("GET", "/api/agents/nobody/health", status=404)

    assert (body["agent_id"], body["session_id"]) == ("guide", session)
    assert body["state"] == "healthy"


async def test_get_api_agents__id__escalations(home: AgentService) -> None:
    """Only a loop opens a ticket; ``test_watched`` tests one that is open."""
    assert (await home.request("GET", "/api/agents/guide/escalations"))["tickets"] == []


async def test_get_api_agents__id__escalations__tid(home: AgentService) -> None:
    refused = await home.request("GET", "/api/agents/guide/escalations/none", status=404)

    assert "none" in refused["title"]


# -- all routes -------------------------------------------------------------------------------------

LOADED_AGENT_ROUTES = """
POST   /api/agents
DELETE /api/agents/{id}
GET    /api/agents/{id}
GET    /api/agents/{id}/stats
GET    /api/agents/{id}/entry-points
GET    /api/agents/{id}/graphs
GET    /api/discover
POST   /api/agents/{id}/trigger
POST   /api/agents/{id}/chat
POST   /api/agents/{id}/inject
POST   /api/agents/{id}/resume
POST   /api/agents/{id}/stop
POST   /api/agents/{id}/replay
GET    /api/agents/{id}/goal-progress
GET    /api/agents/{id}/sessions
GET    /api/agents/{id}/sessions/{sid}
DELETE /api/agents/{id}/sessions/{sid}
GET    /api/agents/{id}/sessions/{sid}/checkpoints
POST   /api/agents/{id}/sessions/{sid}/checkpoints/{cid}/restore
GET    /api/agents/{id}/sessions/{sid}/messages
GET    /api/agents/{id}/graphs/{gid}/nodes
GET    /api/agents/{id}/graphs/{gid}/nodes/{nid}
GET    /api/agents/{id}/graphs/{gid}/nodes/{nid}/criteria
GET    /api/agents/{id}/logs
GET    /api/agents/{id}/graphs/{gid}/nodes/{nid}/logs
POST   /api/agents/{id}/graphs
DELETE /api/agents/{id}/graphs/{gid}
GET    /api/agents/{id}/graphs/{gid}/sessions
GET    /api/agents/{id}/graphs/{gid}/sessions/{sid}
PUT    /api/agents/{id}/active-graph
GET    /api/agents/{id}/active-graph
GET    /api/agents/{id}/executions/{eid}
"""
"""Routes of loaded agents only."""

WORKER_ROUTES = """
GET    /api/agents
GET    /api/agents/{id}/events
GET    /api/agents/{id}/health
GET    /api/agents/{id}/escalations
GET    /api/agents/{id}/escalations/{tid}
"""
"""Routes that loaded agents share with other workers."""

_SHORT_NAMES = {
    "agent_id": "id",
    "session_id": "sid",
    "checkpoint_id": "cid",
    "graph_id": "gid",
    "node_id": "nid",
    "execution_id": "eid",
    "ticket_id": "tid",
}


def parse_routes(table: str) -> set[tuple[str, str]]:
    return {(method, path) for method, path in (line.split() for line in table.strip().splitlines())}


@pytest.mark.parametrize(
    ("method", "path"), sorted(parse_routes(LOADED_AGENT_ROUTES) | parse_routes(WORKER_ROUTES))
)
async def test_every_route_has_a_test_with_its_name(method: str, path: str) -> None:
    name = path.replace("/{", "__").replace("}/", "__").strip("/}").replace("/", "_").replace("-", "_")

    assert callable(globals().get(f"test_{method.lower()}_{name}")), name


async def test_openapi_has_every_route_of_loaded_agents(home: AgentService) -> None:
    document: dict[str, Any] = await home.request("GET", "/openapi.json")
    operations_by_route = {
        (method.upper(), re.sub(r"{(\w+)}", lambda found: f"{{{_SHORT_NAMES[found[1]]}}}", path)): operation
        for path, operations in document["paths"].items()
        if re.match("/api/(agents|discover)", path)
        for method, operation in operations.items()
        if method in ("get", "post", "put", "delete")
        and set(re.findall(r"{(\w+)}", path)) <= _SHORT_NAMES.keys()
    }

    assert {
        row for row, operation in operations_by_route.items() if "loaded agents" in operation["tags"]
    } == parse_routes(LOADED_AGENT_ROUTES)
    assert parse_routes(WORKER_ROUTES) <= operations_by_route.keys()


async def test_sessions_are_stored_where_the_cli_stores_them(home: AgentService) -> None:
    _, session = await home.complete_run()

    storage = home.service.settings.agents.storage
    assert storage is not None
    assert (storage / "guide" / "sessions" / session / "state.json").is_file()


# -- audit ------------------------------------------------------------------------------------------


async def test_audit_has_the_actions_on_an_agent_in_order(home: AgentService) -> None:
    await home.request("POST", "/api/agents", json={"path": "third", "by": "ada"}, status=201)
    agent_path = "/api/agents/third"
    run, session = await home.start_waiting_run("third")
    session_body = {"session_id": session}
    await home.request("POST", f"{agent_path}/stop", json=session_body)
    resumed = await home.request("POST", f"{agent_path}/resume", json=session_body, status=202)
    await home.wait_for_question("third", resumed["execution_id"])
    body = {"node_id": "talk", "content": "my name is a secret"} | session_body
    await home.request("POST", f"{agent_path}/inject", json=body)
    await home.wait_for_end("third", resumed["execution_id"])
    [_, checkpoint, *_] = (await home.request("GET", f"{agent_path}/sessions/{session}/checkpoints"))[
        "checkpoints"
    ]
    replay_body = {"checkpoint_id": checkpoint["checkpoint_id"]} | session_body
    replayed = await home.request("POST", f"{agent_path}/replay", json=replay_body, status=202)
    await home.wait_for_end("third", replayed["execution_id"])
    restored = await home.request(
        "POST",
        f"{agent_path}/sessions/{session}/checkpoints/{checkpoint['checkpoint_id']}/restore",
        status=202,
    )
    await home.wait_for_end("third", restored["execution_id"])
    await home.request("POST", f"{agent_path}/graphs", json={"path": "more/second", "by": "bob"}, status=201)
    await home.request("PUT", f"{agent_path}/active-graph", json={"graph_id": "second"})
    await home.request("DELETE", f"{agent_path}/graphs/second", status=204)
    await home.request("DELETE", f"{agent_path}/sessions/{session}", status=204)
    await home.request("DELETE", f"{agent_path}?by=ada", status=204)
    # refused, so not in the audit
    await home.request("DELETE", f"{agent_path}?by=eve", status=404)

    fields = {"type": "agent_operated", "agent_id": "third", "limit": 12}
    events = (await home.request("GET", "/api/audit", params=fields))["events"]
    done = [(event["data"]["what"], event["data"]["by"]) for event in reversed(events)]

    assert done == [
        ("load", "ada"),
        ("trigger", "operator"),
        ("stop", "operator"),
        ("resume", "operator"),
        ("inject", "operator"),
        ("replay", "operator"),
        ("restore", "operator"),
        ("add_graph", "bob"),
        ("switch_graph", "operator"),
        ("remove_graph", "operator"),
        ("delete_session", "operator"),
        ("unload", "ada"),
    ]
    by_what = {event["data"]["what"]: event for event in events}
    assert by_what["trigger"]["execution_id"] == run in by_what["stop"]["data"]["detail"]
    assert by_what["inject"]["session_id"] == by_what["delete_session"]["session_id"] == session
    assert by_what["add_graph"]["graph_id"] == "second"
    assert "secret" not in str(events)
    feed = [line["text"] for line in (await home.request("GET", "/api/status"))["feed"]]
    assert "third: unloaded, by ada" in feed
