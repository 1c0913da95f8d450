"""Each endpoint of agents that run inside the service, on a real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from queenright.server.routes.events import DEFAULT_TYPES
from tests.server.agents.parts import House, guide, house
from tests.server.streams import Follower

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("house")
    guide(folder / "agents" / "guide")
    guide(folder / "agents" / "more" / "second", "second")
    guide(folder / "agents" / "third", "third")
    async with house(folder) as found:
        await found.ask("POST", "/api/agents", json={"path": "guide"}, status=201)
        yield found


# -- lifecycle --------------------------------------------------------------------------------------


async def test_post_api_agents(home: House) -> None:
    loaded = await home.ask("POST", "/api/agents", json={"path": "third"}, status=201)
    again = await home.ask("POST", "/api/agents", json={"path": "third"}, status=409)
    script = {"path": "more/second", "model": "scripted:../../../secret.json"}
    refused = await home.ask("POST", "/api/agents", json=script, status=422)

    assert (loaded["agent_id"], loaded["version"], loaded["goal"]) == ("third", "3", "Somebody is greeted.")
    assert (loaded["client_facing"], loaded["default_entry_point"]) == (["talk"], "start")
    assert "`queenright agents unload third`" in again["title"]
    assert "secret.json" in refused["title"], "the model that is named is the one that is used"
    await home.ask("DELETE", "/api/agents/third", status=204)


async def test_delete_api_agents__id(home: House) -> None:
    await home.ask("POST", "/api/agents", json={"path": str(home.roots / "third")}, status=201)
    _, session = await home.begun("third")

    await home.ask("DELETE", "/api/agents/third?by=ada", status=204)
    gone = await home.ask("POST", "/api/agents/third/trigger", status=404)
    await home.ask("POST", "/api/agents", json={"path": "third"}, status=201)
    body = await home.ask("GET", f"/api/agents/third/sessions/{session}")

    assert "`queenright agents load`" in gone["title"]
    assert body["status"] == "paused"
    resumed = await home.ask("POST", "/api/agents/third/resume", json={"session_id": session}, status=202)
    assert await home.waits("third", resumed["execution_id"]) == session
    await home.ask("DELETE", "/api/agents/third", status=204)


async def test_get_api_agents(home: House) -> None:
    await home.done()

    body = await home.ask("GET", "/api/agents")

    assert [one["agent_id"] for one in body["loaded"]] == ["guide"]
    assert {agent["agent_id"] for agent in body["agents"]} >= {"guide"}


async def test_get_api_agents__id(home: House) -> None:
    _, session = await home.done()

    body = await home.ask("GET", "/api/agents/guide")
    nobody = await home.ask("GET", "/api/agents/nobody", status=404)

    assert body["loaded"]["path"] == str(home.roots / "guide")
    assert session in [session["session_id"] for session in body["sessions"]]
    assert "`queenright agents discover`" in nobody["title"]


async def test_get_api_agents__id__stats(home: House) -> None:
    await home.done()
    await home.begun()

    body = await home.ask("GET", "/api/agents/guide/stats")

    assert body["running"] >= 1
    assert body["waiting_for_user"] >= 1
    assert body["sessions"] >= 2
    assert body["totals"]["statuses"]["completed"] >= 1
    assert body["totals"]["input_tokens"] >= 16


async def test_get_api_agents__id__entry_points(home: House) -> None:
    body = await home.ask("GET", "/api/agents/guide/entry-points?limit=1")
    rest = await home.ask("GET", f"/api/agents/guide/entry-points?cursor={body['next']}")
    await home.ask("GET", "/api/agents/guide/entry-points?graph_id=none", status=404)

    rows = body["entry_points"] + rest["entry_points"]
    assert [(row["entry_point_id"], row["trigger_type"]) for row in rows] == [
        ("nightly", "timer"),
        ("start", "manual"),
    ]
    assert rest["next"] is None


async def test_get_api_agents__id__graphs(home: House) -> None:
    body = await home.ask("GET", "/api/agents/guide/graphs")

    [row] = [graph for graph in body["graphs"] if graph["graph_id"] == "guide"]
    assert row["primary"]
    assert row["nodes"] == ["prepare", "talk", "finish"]


async def test_judge_and_queen_are_readable_graphs(home: House) -> None:
    """003: they run as graphs beside each agent, and can be neither chatted with nor removed there."""
    graphs = (await home.ask("GET", "/api/agents/guide/graphs"))["graphs"]
    store = home.service.runtime.session_store("worker_health_judge")
    store.get_or_create("worker_health_judge", "health_check")
    path = "/api/agents/guide/graphs/worker_health_judge"
    nodes = (await home.ask("GET", f"{path}/nodes"))["nodes"]
    [session] = (await home.ask("GET", f"{path}/sessions"))["sessions"]
    one = await home.ask("GET", f"{path}/sessions/{session['session_id']}")
    await home.ask("GET", f"{path}/nodes/judge/criteria")
    await home.ask("GET", f"{path}/nodes/judge/logs")
    await home.ask("DELETE", path, status=404)
    body = {"graph_id": "queen"}
    await home.ask("PUT", "/api/agents/guide/active-graph", json=body, status=404)

    rows = {one["graph_id"]: one for one in graphs}
    assert [name for name, row in rows.items() if row["of_service"]] == ["queen", "worker_health_judge"]
    assert not rows["guide"]["of_service"]
    assert "judge" in [node["node_id"] for node in nodes]
    assert one["graph_id"] == "worker_health_judge"


async def test_get_api_discover(home: House) -> None:
    broken = home.roots / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "agent.json").write_text("{", encoding="utf-8")

    first = await home.ask("GET", "/api/discover?limit=2")
    rest = await home.ask("GET", f"/api/discover?limit=2&cursor={first['next']}")

    rows = {one["name"]: one for one in first["agents"] + rest["agents"]}
    assert sorted(rows) == ["broken", "guide", "second", "third"]
    assert [name for name in rows if rows[name]["loaded"]] == ["guide"]
    assert "is not JSON" in rows["broken"]["problem"]
    assert first["roots"] == [str(home.roots)]


# -- execution control ------------------------------------------------------------------------------


async def test_post_api_agents__id__trigger(home: House) -> None:
    given = {"entry_point_id": "start", "input_data": {"topic": "wax"}, "graph_id": "guide"}
    started = await home.ask("POST", "/api/agents/guide/trigger", json=given, status=202)
    await home.ask("POST", "/api/agents/guide/trigger", json={"entry_point_id": "x"}, status=404)
    await home.ask("POST", "/api/agents/guide/trigger", json={"graph_id": "x"}, status=404)
    await home.ask("POST", "/api/agents/guide/trigger", json={"session_id": "x"}, status=404)
    for number in ("NaN", "-Infinity"):
        response = await home.http.post(
            "/api/agents/guide/trigger",
            content=f'{{"input_data": {{"topic": [{number}]}}}}',
            headers={"Content-Type": "application/json"},
        )
        assert (response.status_code, "NaN" in response.json()["title"]) == (422, True)

    session = await home.waits("guide", started["execution_id"])
    assert started["session_id"] == session
    seen = await home.ask("GET", f"/api/agents/guide/sessions/{session}")
    assert (started["status"], started["entry_point_id"]) == ("started", "start")
    assert seen["memory"]["about"] == "all about wax"


async def test_post_api_agents__id__chat(home: House) -> None:
    """B43: a node that waits is given what the user says, else a run starts with it."""
    first = await home.ask("POST", "/api/agents/guide/chat", json={"message": "combs", "graph_id": "guide"})
    while first["status"] == "injected":  # those that other tests left waiting
        await home.wait_answered("guide", first["session_id"])
        first = await home.ask("POST", "/api/agents/guide/chat", json={"message": "combs"})
    session = await home.waits("guide", first["execution_id"])
    other, elsewhere = await home.begun()
    body = {"message": "Ada", "session_id": session}
    second = await home.ask("POST", "/api/agents/guide/chat", json=body)

    assert first["status"] == "started"
    assert second == {"status": "injected", "node_id": "talk", "graph_id": "guide", "session_id": session}
    ended = await home.over("guide", first["execution_id"])
    assert ended["outputs"] == {"greeting": "Ada: all about combs"}
    assert await home.waits("guide", other) == elsewhere
    await home.ask("POST", "/api/agents/guide/chat", json={"message": " "}, status=422)


async def test_message_to_a_graph_reaches_no_other_graph(home: House) -> None:
    async with added_graph(home, "second"):
        _, own = await home.begun(graph_id="guide")
        chat = "/api/agents/guide/chat"
        started = await home.ask("POST", chat, json={"message": "wax", "graph_id": "second"})
        session = await home.waits("guide", started["execution_id"])
        given = await home.ask("POST", chat, json={"message": "Ada", "graph_id": "second"})
        ended = await home.over("guide", started["execution_id"])
        await home.ask("POST", chat, json={"message": "Ada", "graph_id": "none"}, status=404)

        assert (started["status"], started["graph_id"]) == ("started", "second")
        assert (given["graph_id"], given["session_id"]) == ("second", session)
        assert ended["outputs"] == {"greeting": "Ada: all about wax"}
        left = home.service.agents.get("guide").runtime.waiting_nodes()
        assert own in [one.session_id for one in left]


async def test_post_api_agents__id__inject(home: House) -> None:
    run, session = await home.begun()
    inject = "/api/agents/guide/inject"

    given = {"node_id": "talk", "content": "Ada", "session_id": session}
    accepted = await home.ask("POST", inject, json=given)
    await home.over("guide", run)
    idle = await home.ask("POST", inject, json=given, status=409)
    unknown = await home.ask("POST", inject, json=given | {"node_id": "none"}, status=404)

    assert accepted == {"status": "injected", "node_id": "talk", "graph_id": "guide", "session_id": session}
    assert "chat" in idle["title"]
    assert "prepare, talk, finish" in unknown["title"]


async def test_question_accepts_one_answer(home: House) -> None:
    run, session = await home.begun()
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
    assert (await home.over("guide", run))["outputs"] == {"greeting": f"{first}: all about bees"}


async def test_chat_answers_the_named_question_or_nothing(home: House) -> None:
    run, session = await home.begun()
    waiting = home.service.agents.get("guide").runtime.waiting_nodes()
    [question] = [node for node in waiting if node.session_id == session]
    answer = {"message": "Ada", "question_id": question.question_id}
    chat = "/api/agents/guide/chat"

    other = await home.ask("POST", chat, json=answer | {"question_id": "another"}, status=409)
    given = await home.ask("POST", chat, json=answer)
    ended = await home.over("guide", run)
    late = await home.ask("POST", chat, json=answer, status=409)

    assert "no longer open" in other["title"]
    assert (given["status"], given["session_id"]) == ("injected", session)
    assert ended["outputs"] == {"greeting": "Ada: all about bees"}
    assert "this answer was not sent" in late["title"]


async def test_post_api_agents__id__inject_with_several_runs_requires_the_session(home: House) -> None:
    """B40: no caller gets the response of another."""
    [_, one], [_, two] = await home.begun(), await home.begun()

    refused = await home.ask(
        "POST", "/api/agents/guide/inject", json={"node_id": "talk", "content": "Ada"}, status=409
    )

    assert one in refused["title"]
    assert two in refused["title"]
    assert "session_id" in refused["title"]


async def test_post_api_agents__id__stop(home: House) -> None:
    run, session = await home.begun()

    stopped = await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": run})
    over = await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": run}, status=409)
    await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": "none"}, status=404)
    none = await home.ask("POST", "/api/agents/guide/stop", json={"session_id": session})
    await home.ask("POST", "/api/agents/guide/stop", json={"session_id": "nope"}, status=404)
    await home.ask("POST", "/api/agents/guide/stop", json={"session_id": "../x"}, status=422)

    assert stopped == {"status": "stopped", "executions": [run]}
    assert "paused" in over["title"]
    assert none["executions"] == []
    assert (await home.ask("GET", f"/api/agents/guide/sessions/{session}"))["status"] == "paused"


async def test_stopping_a_graph_or_session_does_not_affect_others(home: House) -> None:
    async with added_graph(home, "second"):
        [own, session], [other, _] = await home.begun(), await home.begun()
        run, _ = await home.begun(graph_id="second")
        stop = "/api/agents/guide/stop"

        graph = await home.ask("POST", stop, json={"graph_id": "second"})
        one = await home.ask("POST", stop, json={"session_id": session})
        await home.ask("POST", stop, json={"graph_id": "none"}, status=404)
        await home.ask("POST", "/api/agents/second/stop", status=404)
        going = await home.ask("GET", f"/api/agents/guide/executions/{other}")
        rest = await home.ask("POST", stop)

    assert (graph["executions"], one["executions"]) == ([run], [own])
    assert going["status"] == "active"
    assert other in rest["executions"]


async def test_run_can_start_in_an_existing_session(home: House) -> None:
    run, session = await home.done()

    started = await home.ask(
        "POST",
        "/api/agents/guide/trigger",
        json={"input_data": {"topic": "wax"}, "session_id": session},
        status=202,
    )

    assert started["execution_id"] != run
    assert await home.waits("guide", started["execution_id"]) == session
    body = await home.ask("GET", f"/api/agents/guide/sessions/{session}")
    assert started["execution_id"] in [run["execution_id"] for run in body["runs"]]


async def test_post_api_agents__id__resume(home: House) -> None:
    run, session = await home.begun()
    resume = "/api/agents/guide/resume"
    busy = await home.ask("POST", resume, json={"session_id": session}, status=409)
    await home.ask("POST", "/api/agents/guide/stop", json={"session_id": session})

    again = await home.ask("POST", resume, json={"session_id": session}, status=202)
    await home.ask("POST", resume, json={"session_id": "none"}, status=404)
    await home.ask("POST", resume, json={"session_id": "../../etc"}, status=422)

    assert "is still running" in busy["title"]
    assert (again["status"], again["execution_id"], again["session_id"]) == ("resumed", run, session)
    assert await home.waits("guide", run) == session


async def test_post_api_agents__id__replay(home: House) -> None:
    run, session = await home.done()
    before = await home.ask("GET", f"/api/agents/guide/sessions/{session}")
    listed = await home.ask("GET", f"/api/agents/guide/sessions/{session}/checkpoints")
    last, [point] = listed["checkpoints"][0], [c for c in listed["checkpoints"] if c["node_id"] == "prepare"]

    given = {"session_id": session, "checkpoint_id": point["checkpoint_id"]}
    started = await home.ask("POST", "/api/agents/guide/replay", json=given, status=202)
    at_end = given | {"checkpoint_id": last["checkpoint_id"]}
    nothing = await home.ask("POST", "/api/agents/guide/replay", json=at_end, status=409)
    none = given | {"checkpoint_id": "0000000099-x"}
    await home.ask("POST", "/api/agents/guide/replay", json=none, status=404)

    assert started["execution_id"] != run
    assert started["session_id"] != session
    assert await home.waits("guide", started["execution_id"]) == started["session_id"]
    body = {"message": "Ada", "session_id": started["session_id"]}
    await home.ask("POST", "/api/agents/guide/chat", json=body)
    ended = await home.over("guide", started["execution_id"])
    assert (ended["status"], ended["outputs"]) == ("completed", {"greeting": "Ada: all about bees"})
    assert await home.ask("GET", f"/api/agents/guide/sessions/{session}") == before
    assert "was finished at that point" in nothing["title"]


async def test_get_api_agents__id__executions__eid(home: House) -> None:
    run, session = await home.begun()

    going = await home.ask("GET", f"/api/agents/guide/executions/{run}")
    await home.ask("GET", "/api/agents/guide/executions/none", status=404)

    assert (going["status"], going["session_id"], going["path"]) == ("active", session, ["prepare"])


async def test_get_api_agents__id__goal_progress(home: House) -> None:
    await home.done()

    body = await home.ask("GET", "/api/agents/guide/goal-progress?graph_id=guide")

    assert (body["goal_id"], body["progress"]["fraction"]) == ("greeted", 1.0)
    assert body["criteria"][0]["state"] == "met"


# -- sessions ---------------------------------------------------------------------------------------


async def test_get_api_agents__id__sessions(home: House) -> None:
    made = [(await home.done())[1] for _ in range(2)]
    found: list[str] = []
    cursor = ""
    there = len((await home.ask("GET", "/api/agents/guide/sessions?limit=1000"))["sessions"])
    for _ in range(there + 1):
        part = await home.ask("GET", f"/api/agents/guide/sessions?limit=1&status=completed{cursor}")
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
async def test_unknown_filter_value_is_refused(home: House, path: str) -> None:
    refused = await home.ask("GET", f"/api/agents/guide/{path}", status=422)

    assert refused["title"]


async def test_get_api_agents__id__sessions__sid(home: House) -> None:
    run, session = await home.done()

    body = await home.ask("GET", f"/api/agents/guide/sessions/{session}")

    [one] = body["runs"]
    assert (one["execution_id"], one["status"], one["pending"]) == (run, "completed", [])
    assert one["path"] == ["prepare", "talk", "finish"]
    assert body["memory"]["greeting"] == "Ada: all about bees"


@pytest.mark.parametrize("session", ["%2e%2e", "..%2f..%2fetc", "a%2f..", "a%5c..", "x" * 300, "none"])
async def test_session_id_with_a_path_is_refused(home: House, session: str) -> None:
    """B8: nothing outside of the sessions is read or removed."""
    for method in ("GET", "DELETE"):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}")
        assert response.status_code in (404, 422), response.text
    for method, rest in (("GET", "messages"), ("GET", "checkpoints"), ("POST", "checkpoints/..%2fx/restore")):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}/{rest}")
        assert response.status_code in (404, 405, 422), response.text


async def test_delete_api_agents__id__sessions__sid(home: House) -> None:
    _, session = await home.done()
    _, other = await home.begun()

    await home.ask("DELETE", f"/api/agents/guide/sessions/{session}", status=204)
    await home.ask("GET", f"/api/agents/guide/sessions/{session}", status=404)
    busy = await home.ask("DELETE", f"/api/agents/guide/sessions/{other}", status=409)

    assert "busy" in busy["title"]


async def test_get_api_agents__id__sessions__sid__checkpoints(home: House) -> None:
    _, session = await home.done()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"

    first = await home.ask("GET", f"{path}?limit=2")
    rest = await home.ask("GET", f"{path}?limit=2&cursor={first['next']}")

    found = first["checkpoints"] + rest["checkpoints"]
    assert [one["node_id"] for one in found] == ["finish", "talk", "prepare"]
    assert [one["pending"] for one in found] == [[], ["finish"], ["talk"]]
    assert all(one["valid"] for one in found)
    assert rest["next"] is None


async def test_post_api_agents__id__sessions__sid__checkpoints__cid__restore(home: House) -> None:
    run, session = await home.done()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"
    [*_, first] = (await home.ask("GET", path))["checkpoints"]

    restored = await home.ask("POST", f"{path}/{first['checkpoint_id']}/restore", status=202)
    await home.ask("POST", f"{path}/0000000077-none/restore", status=404)

    assert (restored["status"], restored["execution_id"], restored["session_id"]) == (
        "restored",
        run,
        session,
    )
    await home.waits("guide", run)
    seen = await home.ask("GET", f"/api/agents/guide/sessions/{session}")
    assert "greeting" not in seen["memory"]


async def test_get_api_agents__id__sessions__sid__messages(home: House) -> None:
    _, session = await home.done()
    path = f"/api/agents/guide/sessions/{session}/messages"

    newest = await home.ask("GET", f"{path}?limit=2")
    older = await home.ask("GET", f"{path}?cursor={newest['next']}")

    messages = [(one["kind"], one["text"]) for one in older["messages"] + newest["messages"]]
    assert messages[1:3] == [("assistant", "Who are you?"), ("user", "Ada")]
    assert messages[-1][0] == "tool"
    assert older["next"] is None
    assert (await home.ask("GET", f"{path}?conversation=none"))["messages"] == []


# -- graphs -----------------------------------------------------------------------------------------


@asynccontextmanager
async def added_graph(home: House, name: str) -> AsyncIterator[dict[str, Any]]:
    """Let one more graph run beside guide's own."""
    graphs = "/api/agents/guide/graphs"
    yield await home.ask("POST", graphs, json={"path": "more/second", "graph_id": name}, status=201)
    await home.ask("DELETE", f"{graphs}/{name}", status=204)


async def test_post_api_agents__id__graphs(home: House) -> None:
    graphs = "/api/agents/guide/graphs"
    async with added_graph(home, "other") as named:
        added = await home.ask("POST", graphs, json={"path": "more/second"}, status=201)
        accepted = await home.ask("POST", graphs, json={"path": "more/second"}, status=409)
        listed = await home.ask("GET", f"{graphs}?limit=2")
        await home.ask("DELETE", f"{graphs}/second", status=204)

    assert (added["graph_id"], added["agent_id"], added["primary"]) == ("second", "second", False)
    assert (named["graph_id"], named["agent_id"]) == ("other", "second")
    assert [graph["graph_id"] for graph in listed["graphs"] if not graph["of_service"]] == ["guide", "other"]
    assert listed["next"]
    assert "already" in accepted["title"]


async def test_delete_api_agents__id__graphs__gid(home: House) -> None:
    graphs = "/api/agents/guide/graphs"
    async with added_graph(home, "other"):
        _, session = await home.begun(graph_id="other")
    gone = await home.ask("DELETE", f"{graphs}/other", status=404)
    stays = await home.ask("DELETE", f"{graphs}/guide", status=409)

    assert "other" in gone["title"]
    assert "primary" in stays["title"]
    async with added_graph(home, "other"):
        body = await home.ask("GET", f"{graphs}/other/sessions/{session}")
        assert body["status"] == "paused"


async def test_get_api_agents__id__active_graph(home: House) -> None:
    assert await home.ask("GET", "/api/agents/guide/active-graph") == {"graph_id": "guide"}
    await home.ask("GET", "/api/agents/nobody/active-graph", status=404)


async def test_put_api_agents__id__active_graph(home: House) -> None:
    """B61: user input goes to the active graph; the others continue."""
    active = "/api/agents/guide/active-graph"
    async with added_graph(home, "second"):
        after = await home.ask("PUT", active, json={"graph_id": "second"})
        await home.ask("PUT", active, json={"graph_id": "none"}, status=404)
        run, session = await home.begun(graph_id="second")
        await home.begun(graph_id="guide")
        body = await home.ask("POST", "/api/agents/guide/chat", json={"message": "Ada"})

        assert after == await home.ask("GET", active) == {"graph_id": "second"}
        assert (body["graph_id"], body["session_id"]) == ("second", session)
        assert (await home.over("guide", run))["status"] == "completed"
    assert await home.ask("GET", active) == {"graph_id": "guide"}


async def test_get_api_agents__id__graphs__gid__sessions(home: House) -> None:
    async with added_graph(home, "second"):
        _, session = await home.begun(graph_id="second")
        listed = await home.ask("GET", "/api/agents/guide/graphs/second/sessions")
        own = await home.ask("GET", "/api/agents/guide/sessions?limit=1000")
        await home.ask("GET", "/api/agents/guide/graphs/none/sessions", status=404)

    assert session in [row["session_id"] for row in listed["sessions"]]
    assert session not in [row["session_id"] for row in own["sessions"]]


async def test_get_api_agents__id__graphs__gid__sessions__sid(home: House) -> None:
    async with added_graph(home, "second"):
        _, session = await home.begun(graph_id="second")
        one = await home.ask("GET", f"/api/agents/guide/graphs/second/sessions/{session}")
        await home.ask("GET", "/api/agents/guide/graphs/second/sessions/none", status=404)
        await home.ask("GET", f"/api/agents/guide/graphs/guide/sessions/{session}", status=404)

    assert (one["graph_id"], one["status"]) == ("second", "active")


async def test_get_api_agents__id__graphs__gid__nodes(home: House) -> None:
    path = "/api/agents/guide/graphs/guide/nodes"
    first = await home.ask("GET", f"{path}?limit=2")
    rest = await home.ask("GET", f"{path}?limit=2&cursor={first['next']}")

    assert [one["node_id"] for one in first["nodes"] + rest["nodes"]] == ["prepare", "talk", "finish"]
    assert rest["next"] is None


async def test_get_api_agents__id__graphs__gid__nodes__nid(home: House) -> None:
    await home.begun()

    body = await home.ask("GET", "/api/agents/guide/graphs/guide/nodes/talk")
    await home.ask("GET", "/api/agents/guide/graphs/guide/nodes/none", status=404)

    assert body["waiting_for_user"] >= 1
    assert body["system_prompt"] == "Talk."
    assert [edge["target"] for edge in body["edges_out"]] == ["finish"]
    assert [edge["source"] for edge in body["edges_in"]] == ["prepare"]


async def test_get_api_agents__id__graphs__gid__nodes__nid__criteria(home: House) -> None:
    await home.done()

    talk = await home.ask("GET", "/api/agents/guide/graphs/guide/nodes/talk/criteria")
    finish = await home.ask("GET", "/api/agents/guide/graphs/guide/nodes/finish/criteria")

    assert (talk["judge"], talk["output_keys"]) == ("outputs", ["name"])
    assert talk["verdicts"]["ACCEPT"] >= 1
    assert talk["outcomes"]["done"] >= 1
    assert [one["id"] for one in finish["goal_criteria"]] == ["said"]


async def test_node_criteria_count_the_running_visit(home: House) -> None:
    path = "/api/agents/guide/graphs/guide/nodes/talk/criteria"
    before = await home.ask("GET", path)
    run, _ = await home.begun()
    during = await home.ask("GET", path)
    await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": run})

    assert during["visits"] == before["visits"] + 1
    assert during["outcomes"]["running"] == before["outcomes"].get("running", 0) + 1
    assert during["verdicts"]["CONTINUE"] == before["verdicts"].get("CONTINUE", 0) + 1


# -- logs -------------------------------------------------------------------------------------------


async def test_get_api_agents__id__logs(home: House) -> None:
    runs = [await home.done() for _ in range(2)]
    path = "/api/agents/guide/logs"

    first = await home.ask("GET", f"{path}?limit=1")
    second = await home.ask("GET", f"{path}?limit=1&cursor={first['next']}")
    mine = await home.ask("GET", f"{path}?session_id={runs[0][1]}")
    steps = await home.ask("GET", f"{path}?level=steps&session_id={runs[0][1]}&limit=2")
    rest = await home.ask("GET", f"{path}?level=steps&cursor={steps['next']}")

    assert [one["rows"][0]["execution_id"] for one in (first, second)] == [run for run, _ in runs[::-1]]
    assert [row["execution_id"] for row in mine["rows"]] == [runs[0][0]]
    seen = [row["step_index"] for row in steps["rows"] + rest["rows"]]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) >= 3
    assert rest["session_id"] == runs[0][1]
    await home.ask("GET", f"{path}?session_id=none", status=404)


async def test_get_api_agents__id__graphs__gid__nodes__nid__logs(home: House) -> None:
    run, session = await home.done()
    path = "/api/agents/guide/graphs/guide/nodes/talk/logs"

    visits = await home.ask("GET", path)
    steps = await home.ask("GET", f"{path}?level=steps&session_id={session}")
    await home.ask("GET", path.replace("talk", "none"), status=404)

    assert [(row["node_id"], row["execution_id"]) for row in visits["rows"]] == [("talk", run)]
    assert {row["node_id"] for row in steps["rows"]} == {"talk"}


# -- events and health ------------------------------------------------------------------------------


async def test_get_api_agents__id__events(home: House) -> None:
    """B64: of all its graphs, and of no agent that only has the name of one; also what was before."""
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
    await home.ask("POST", "/api/agents", json={"path": "more/second"}, status=201)
    async with added_graph(home, "second"):
        async with Follower(url) as stream:
            before = stream.last_id
            mine = [(await home.begun())[1], (await home.begun(graph_id="second"))[1]]
            _, others = await home.begun("second")
            mine.append((await home.begun())[1])
            await stream.until(lambda: mine[-1] in _asked(stream), "the last one's question")
        later = Follower(url, headers={"Last-Event-ID": str(before)})
        async with later:
            await later.until(lambda: mine[-1] in _asked(later), "the same again")
    await home.ask("DELETE", "/api/agents/second", status=204)

    for stream_end in (stream, later):
        assert _asked(stream_end) == mine
        assert others not in stream_end.text
        assert {event.data["agent_id"] for event in stream_end.events} == {"guide", "second"}


def _asked(stream: Follower) -> list[str]:
    return [event.data["session_id"] for event in stream.events if event.event == "client_input_requested"]


async def test_get_api_agents__id__health(home: House) -> None:
    _, session = await home.begun()

    body = await home.ask("GET", f"/api/agents/guide/health?session_id={session}")
    await home.ask("GET", "/api/agents/nobody/health", status=404)

    assert (body["agent_id"], body["session_id"]) == ("guide", session)
    assert body["state"] == "healthy"


async def test_get_api_agents__id__escalations(home: House) -> None:
    """What no loop has opened is not a ticket; ``test_watched`` has one that is."""
    assert (await home.ask("GET", "/api/agents/guide/escalations"))["tickets"] == []


async def test_get_api_agents__id__escalations__tid(home: House) -> None:
    refused = await home.ask("GET", "/api/agents/guide/escalations/none", status=404)

    assert "none" in refused["title"]


# -- all of them ------------------------------------------------------------------------------------

FIRST_RUN_EVENTS = """
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
"""What is asked of agents that are loaded."""

OF_EVERYBODY = """
GET    /api/agents
GET    /api/agents/{id}/events
GET    /api/agents/{id}/health
GET    /api/agents/{id}/escalations
GET    /api/agents/{id}/escalations/{tid}
"""
"""What is asked of them as of any worker."""

_SHORT = {
    "agent_id": "id",
    "session_id": "sid",
    "checkpoint_id": "cid",
    "graph_id": "gid",
    "node_id": "nid",
    "execution_id": "eid",
    "ticket_id": "tid",
}


def rows(table: str) -> set[tuple[str, str]]:
    return {(method, path) for method, path in (line.split() for line in table.strip().splitlines())}


@pytest.mark.parametrize(("method", "path"), sorted(rows(FIRST_RUN_EVENTS) | rows(OF_EVERYBODY)))
async def test_every_row_has_a_test_of_its_name(method: str, path: str) -> None:
    name = path.replace("/{", "__").replace("}/", "__").strip("/}").replace("/", "_").replace("-", "_")

    assert callable(globals().get(f"test_{method.lower()}_{name}")), name


async def test_openapi_has_every_route_of_loaded_agents(home: House) -> None:
    document: dict[str, Any] = await home.ask("GET", "/openapi.json")
    there = {
        (method.upper(), re.sub(r"{(\w+)}", lambda found: f"{{{_SHORT[found[1]]}}}", path)): operation
        for path, operations in document["paths"].items()
        if re.match("/api/(agents|discover)", path)
        for method, operation in operations.items()
        if method in ("get", "post", "put", "delete") and set(re.findall(r"{(\w+)}", path)) <= _SHORT.keys()
    }

    assert {row for row, one in there.items() if "loaded agents" in one["tags"]} == rows(FIRST_RUN_EVENTS)
    assert rows(OF_EVERYBODY) <= there.keys()


async def test_sessions_are_stored_where_the_cli_stores_them(home: House) -> None:
    _, session = await home.done()

    storage = home.service.settings.agents.storage
    assert storage is not None
    assert (storage / "guide" / "sessions" / session / "state.json").is_file()


# -- who did it -------------------------------------------------------------------------------------


async def test_audit_has_the_actions_on_an_agent_in_order(home: House) -> None:
    await home.ask("POST", "/api/agents", json={"path": "third", "by": "ada"}, status=201)
    at = "/api/agents/third"
    run, session = await home.begun("third")
    where = {"session_id": session}
    await home.ask("POST", f"{at}/stop", json=where)
    resumed = await home.ask("POST", f"{at}/resume", json=where, status=202)
    await home.waits("third", resumed["execution_id"])
    body = {"node_id": "talk", "content": "my name is a secret"} | where
    await home.ask("POST", f"{at}/inject", json=body)
    await home.over("third", resumed["execution_id"])
    [_, checkpoint, *_] = (await home.ask("GET", f"{at}/sessions/{session}/checkpoints"))["checkpoints"]
    again = {"checkpoint_id": checkpoint["checkpoint_id"]} | where
    replayed = await home.ask("POST", f"{at}/replay", json=again, status=202)
    await home.over("third", replayed["execution_id"])
    restored = await home.ask(
        "POST", f"{at}/sessions/{session}/checkpoints/{checkpoint['checkpoint_id']}/restore", status=202
    )
    await home.over("third", restored["execution_id"])
    await home.ask("POST", f"{at}/graphs", json={"path": "more/second", "by": "bob"}, status=201)
    await home.ask("PUT", f"{at}/active-graph", json={"graph_id": "second"})
    await home.ask("DELETE", f"{at}/graphs/second", status=204)
    await home.ask("DELETE", f"{at}/sessions/{session}", status=204)
    await home.ask("DELETE", f"{at}?by=ada", status=204)
    # Refused: nothing was done.
    await home.ask("DELETE", f"{at}?by=eve", status=404)

    fields = {"type": "agent_operated", "agent_id": "third", "limit": 12}
    events = (await home.ask("GET", "/api/audit", params=fields))["events"]
    done = [(one["data"]["what"], one["data"]["by"]) for one in reversed(events)]

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
    by_what = {one["data"]["what"]: one for one in events}
    assert by_what["trigger"]["execution_id"] == run in by_what["stop"]["data"]["detail"]
    assert by_what["inject"]["session_id"] == by_what["delete_session"]["session_id"] == session
    assert by_what["add_graph"]["graph_id"] == "second"
    assert "secret" not in str(events)
    feed = [line["text"] for line in (await home.ask("GET", "/api/status"))["feed"]]
    assert "third: unloaded, by ada" in feed
