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
    agent = await home.request("POST", "/api/agents", json={"path": "third"}, status=201)
    conflict = await home.request("POST", "/api/agents", json={"path": "third"}, status=409)
    script = {"path": "more/second", "model": "scripted:../../../secret.json"}
    script_error = await home.request("POST", "/api/agents", json=script, status=422)

    assert (agent["agent_id"], agent["version"], agent["goal"]) == ("third", "3", "Somebody is greeted.")
    assert (agent["client_facing"], agent["default_entry_point"]) == (["talk"], "start")
    assert "`queenright agents unload third`" in conflict["title"]
    assert "secret.json" in script_error["title"], "the model that is named is the one that is used"
    await home.request("DELETE", "/api/agents/third", status=204)


async def test_delete_api_agents__id(home: AgentService) -> None:
    await home.request("POST", "/api/agents", json={"path": str(home.roots / "third")}, status=201)
    _, session = await home.start_waiting_run("third")

    await home.request("DELETE", "/api/agents/third?by=ada", status=204)
    not_found = await home.request("POST", "/api/agents/third/trigger", status=404)
    await home.request("POST", "/api/agents", json={"path": "third"}, status=201)
    body = await home.request("GET", f"/api/agents/third/sessions/{session}")

    assert "`queenright agents load`" in not_found["title"]
    assert body["status"] == "paused"
    response = await home.request(
        "POST", "/api/agents/third/resume", json={"session_id": session}, status=202
    )
    assert await home.wait_for_question("third", response["execution_id"]) == session
    await home.request("DELETE", "/api/agents/third", status=204)


async def test_get_api_agents(home: AgentService) -> None:
    await home.complete_run()

    body = await home.request("GET", "/api/agents")

    assert [loaded_agent["agent_id"] for loaded_agent in body["loaded"]] == ["guide"]
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
    next_page = await home.request("GET", f"/api/agents/guide/entry-points?cursor={body['next']}")
    await home.request("GET", "/api/agents/guide/entry-points?graph_id=none", status=404)

    entry_points = body["entry_points"] + next_page["entry_points"]
    assert [(row["entry_point_id"], row["trigger_type"]) for row in entry_points] == [
        ("nightly", "timer"),
        ("start", "manual"),
    ]
    assert next_page["next"] is None


async def test_get_api_agents__id__graphs(home: AgentService) -> None:
    body = await home.request("GET", "/api/agents/guide/graphs")

    [row] = [graph for graph in body["graphs"] if graph["graph_id"] == "guide"]
    assert row["primary"]
    assert row["nodes"] == ["prepare", "talk", "finish"]


async def test_judge_and_queen_are_listed_as_graphs(home: AgentService) -> None:
    """003: they run as graphs beside each agent, but cannot be chatted with or removed."""
    graphs = (await home.request("GET", "/api/agents/guide/graphs"))["graphs"]
    store = home.service.runtime.session_store("worker_health_judge")
    store.get_or_create("worker_health_judge", "health_check")
    path = "/api/agents/guide/graphs/worker_health_judge"
    nodes = (await home.request("GET", f"{path}/nodes"))["nodes"]
    [session] = (await home.request("GET", f"{path}/sessions"))["sessions"]
    session_detail = await home.request("GET", f"{path}/sessions/{session['session_id']}")
    await home.request("GET", f"{path}/nodes/judge/criteria")
    await home.request("GET", f"{path}/nodes/judge/logs")
    await home.request("DELETE", path, status=404)
    body = {"graph_id": "queen"}
    await home.request("PUT", "/api/agents/guide/active-graph", json=body, status=404)

    rows_by_id = {item["graph_id"]: item for item in graphs}
    assert [name for name, row in rows_by_id.items() if row["of_service"]] == [
        "queen",
        "worker_health_judge",
    ]
    assert not rows_by_id["guide"]["of_service"]
    assert "judge" in [node["node_id"] for node in nodes]
    assert session_detail["graph_id"] == "worker_health_judge"


async def test_get_api_discover(home: AgentService) -> None:
    broken = home.roots / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "agent.json").write_text("{", encoding="utf-8")

    first_page = await home.request("GET", "/api/discover?limit=2")
    next_page = await home.request("GET", f"/api/discover?limit=2&cursor={first_page['next']}")

    rows_by_id = {agent["name"]: agent for agent in first_page["agents"] + next_page["agents"]}
    assert sorted(rows_by_id) == ["broken", "guide", "second", "third"]
    assert [name for name in rows_by_id if rows_by_id[name]["loaded"]] == ["guide"]
    assert "is not JSON" in rows_by_id["broken"]["problem"]
    assert first_page["roots"] == [str(home.roots)]


# -- execution control ------------------------------------------------------------------------------


async def test_post_api_agents__id__trigger(home: AgentService) -> None:
    trigger_body = {"entry_point_id": "start", "input_data": {"topic": "wax"}, "graph_id": "guide"}
    run = await home.request("POST", "/api/agents/guide/trigger", json=trigger_body, status=202)
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

    session = await home.wait_for_question("guide", run["execution_id"])
    assert run["session_id"] == session
    session_detail = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert (run["status"], run["entry_point_id"]) == ("started", "start")
    assert session_detail["memory"]["about"] == "all about wax"


async def test_post_api_agents__id__chat(home: AgentService) -> None:
    """B43: a message goes to the node that waits for the user; otherwise it starts a run."""
    first_response = await home.request(
        "POST", "/api/agents/guide/chat", json={"message": "combs", "graph_id": "guide"}
    )
    while first_response["status"] == "injected":  # End the runs that other tests left waiting.
        await home.wait_until_answered("guide", first_response["session_id"])
        first_response = await home.request("POST", "/api/agents/guide/chat", json={"message": "combs"})
    session = await home.wait_for_question("guide", first_response["execution_id"])
    other_run, other_session = await home.start_waiting_run()
    body = {"message": "Ada", "session_id": session}
    second_response = await home.request("POST", "/api/agents/guide/chat", json=body)

    assert first_response["status"] == "started"
    assert second_response == {
        "status": "injected",
        "node_id": "talk",
        "graph_id": "guide",
        "session_id": session,
    }
    finished_run = await home.wait_for_end("guide", first_response["execution_id"])
    assert finished_run["outputs"] == {"greeting": "Ada: all about combs"}
    assert await home.wait_for_question("guide", other_run) == other_session
    await home.request("POST", "/api/agents/guide/chat", json={"message": " "}, status=422)


async def test_message_to_a_graph_reaches_no_other_graph(home: AgentService) -> None:
    async with add_graph_temporarily(home, "second"):
        _, guide_session = await home.start_waiting_run(graph_id="guide")
        chat = "/api/agents/guide/chat"
        second_response = await home.request("POST", chat, json={"message": "wax", "graph_id": "second"})
        session = await home.wait_for_question("guide", second_response["execution_id"])
        answer_response = await home.request("POST", chat, json={"message": "Ada", "graph_id": "second"})
        finished_run = await home.wait_for_end("guide", second_response["execution_id"])
        await home.request("POST", chat, json={"message": "Ada", "graph_id": "none"}, status=404)

        assert (second_response["status"], second_response["graph_id"]) == ("started", "second")
        assert (answer_response["graph_id"], answer_response["session_id"]) == ("second", session)
        assert finished_run["outputs"] == {"greeting": "Ada: all about wax"}
        waiting_nodes = home.service.agents.get("guide").runtime.list_waiting_nodes()
        assert guide_session in [node.session_id for node in waiting_nodes]


async def test_post_api_agents__id__inject(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    inject = "/api/agents/guide/inject"

    input_body = {"node_id": "talk", "content": "Ada", "session_id": session}
    response = await home.request("POST", inject, json=input_body)
    await home.wait_for_end("guide", run)
    conflict = await home.request("POST", inject, json=input_body, status=409)
    unknown = await home.request("POST", inject, json=input_body | {"node_id": "none"}, status=404)

    assert response == {"status": "injected", "node_id": "talk", "graph_id": "guide", "session_id": session}
    assert "chat" in conflict["title"]
    assert "prepare, talk, finish" in unknown["title"]


async def test_question_accepts_only_one_answer(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    runtime = home.service.agents.get("guide").runtime
    [question] = [node for node in runtime.list_waiting_nodes() if node.session_id == session]
    answer = {"node_id": "talk", "session_id": session, "question_id": question.question_id}
    names = ["Ada", "Bob", "Cy", "Dee", "Eve", "Fay", "Gus", "Hal"]

    responses = await asyncio.gather(
        *(home.http.post("/api/agents/guide/inject", json=answer | {"content": name}) for name in names)
    )

    assert sorted(response.status_code for response in responses) == [200] + 7 * [409]
    [accepted_name] = [
        name for name, response in zip(names, responses, strict=True) if response.status_code == 200
    ]
    rejections = [response.json()["title"] for response in responses if response.status_code == 409]
    assert any(f"answered already: {accepted_name!r}" in title for title in rejections)
    assert (await home.wait_for_end("guide", run))["outputs"] == {
        "greeting": f"{accepted_name}: all about bees"
    }


async def test_chat_with_a_question_id_answers_only_that_question(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    waiting_nodes = home.service.agents.get("guide").runtime.list_waiting_nodes()
    [question] = [node for node in waiting_nodes if node.session_id == session]
    answer = {"message": "Ada", "question_id": question.question_id}
    chat = "/api/agents/guide/chat"

    other_question_error = await home.request(
        "POST", chat, json=answer | {"question_id": "another"}, status=409
    )
    response = await home.request("POST", chat, json=answer)
    finished_run = await home.wait_for_end("guide", run)
    late_error = await home.request("POST", chat, json=answer, status=409)

    assert "no longer open" in other_question_error["title"]
    assert (response["status"], response["session_id"]) == ("injected", session)
    assert finished_run["outputs"] == {"greeting": "Ada: all about bees"}
    assert "this answer was not sent" in late_error["title"]


async def test_post_api_agents__id__inject_with_several_runs_requires_the_session(home: AgentService) -> None:
    """B40: otherwise a caller could get the response to the message of another."""
    [_, first_session], [_, second_session] = await home.start_waiting_run(), await home.start_waiting_run()

    error = await home.request(
        "POST", "/api/agents/guide/inject", json={"node_id": "talk", "content": "Ada"}, status=409
    )

    assert first_session in error["title"]
    assert second_session in error["title"]
    assert "session_id" in error["title"]


async def test_post_api_agents__id__stop(home: AgentService) -> None:
    run, session = await home.start_waiting_run()

    response = await home.request("POST", "/api/agents/guide/stop", json={"execution_id": run})
    finished_run = await home.request(
        "POST", "/api/agents/guide/stop", json={"execution_id": run}, status=409
    )
    await home.request("POST", "/api/agents/guide/stop", json={"execution_id": "none"}, status=404)
    second_stop = await home.request("POST", "/api/agents/guide/stop", json={"session_id": session})
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": "nope"}, status=404)
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": "../x"}, status=422)

    assert response == {"status": "stopped", "executions": [run]}
    assert "paused" in finished_run["title"]
    assert second_stop["executions"] == []
    assert (await home.request("GET", f"/api/agents/guide/sessions/{session}"))["status"] == "paused"


async def test_stopping_a_graph_or_session_does_not_affect_others(home: AgentService) -> None:
    async with add_graph_temporarily(home, "second"):
        [guide_run, session], [other_run, _] = await home.start_waiting_run(), await home.start_waiting_run()
        run, _ = await home.start_waiting_run(graph_id="second")
        stop = "/api/agents/guide/stop"

        graph = await home.request("POST", stop, json={"graph_id": "second"})
        session_stop = await home.request("POST", stop, json={"session_id": session})
        await home.request("POST", stop, json={"graph_id": "none"}, status=404)
        await home.request("POST", "/api/agents/second/stop", status=404)
        other_state = await home.request("GET", f"/api/agents/guide/executions/{other_run}")
        agent_stop = await home.request("POST", stop)

    assert (graph["executions"], session_stop["executions"]) == ([run], [guide_run])
    assert other_state["status"] == "active"
    assert other_run in agent_stop["executions"]


async def test_run_can_start_in_an_existing_session(home: AgentService) -> None:
    run, session = await home.complete_run()

    response = await home.request(
        "POST",
        "/api/agents/guide/trigger",
        json={"input_data": {"topic": "wax"}, "session_id": session},
        status=202,
    )

    assert response["execution_id"] != run
    assert await home.wait_for_question("guide", response["execution_id"]) == session
    body = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert response["execution_id"] in [run["execution_id"] for run in body["runs"]]


async def test_post_api_agents__id__resume(home: AgentService) -> None:
    run, session = await home.start_waiting_run()
    resume = "/api/agents/guide/resume"
    conflict = await home.request("POST", resume, json={"session_id": session}, status=409)
    await home.request("POST", "/api/agents/guide/stop", json={"session_id": session})

    response = await home.request("POST", resume, json={"session_id": session}, status=202)
    await home.request("POST", resume, json={"session_id": "none"}, status=404)
    await home.request("POST", resume, json={"session_id": "../../etc"}, status=422)

    assert "is still running" in conflict["title"]
    assert (response["status"], response["execution_id"], response["session_id"]) == ("resumed", run, session)
    assert await home.wait_for_question("guide", run) == session


async def test_post_api_agents__id__replay(home: AgentService) -> None:
    run, session = await home.complete_run()
    original_session = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    checkpoint_list = await home.request("GET", f"/api/agents/guide/sessions/{session}/checkpoints")
    last_checkpoint, [prepare_checkpoint] = (
        checkpoint_list["checkpoints"][0],
        [checkpoint for checkpoint in checkpoint_list["checkpoints"] if checkpoint["node_id"] == "prepare"],
    )

    replay_body = {"session_id": session, "checkpoint_id": prepare_checkpoint["checkpoint_id"]}
    response = await home.request("POST", "/api/agents/guide/replay", json=replay_body, status=202)
    at_end = replay_body | {"checkpoint_id": last_checkpoint["checkpoint_id"]}
    finished_error = await home.request("POST", "/api/agents/guide/replay", json=at_end, status=409)
    unknown_checkpoint = replay_body | {"checkpoint_id": "0000000099-x"}
    await home.request("POST", "/api/agents/guide/replay", json=unknown_checkpoint, status=404)

    assert response["execution_id"] != run
    assert response["session_id"] != session
    assert await home.wait_for_question("guide", response["execution_id"]) == response["session_id"]
    body = {"message": "Ada", "session_id": response["session_id"]}
    await home.request("POST", "/api/agents/guide/chat", json=body)
    finished_run = await home.wait_for_end("guide", response["execution_id"])
    assert (finished_run["status"], finished_run["outputs"]) == (
        "completed",
        {"greeting": "Ada: all about bees"},
    )
    assert await home.request("GET", f"/api/agents/guide/sessions/{session}") == original_session
    assert "was finished at that point" in finished_error["title"]


async def test_get_api_agents__id__executions__eid(home: AgentService) -> None:
    run, session = await home.start_waiting_run()

    execution = await home.request("GET", f"/api/agents/guide/executions/{run}")
    await home.request("GET", "/api/agents/guide/executions/none", status=404)

    assert (execution["status"], execution["session_id"], execution["path"]) == (
        "active",
        session,
        ["prepare"],
    )


async def test_get_api_agents__id__goal_progress(home: AgentService) -> None:
    await home.complete_run()

    body = await home.request("GET", "/api/agents/guide/goal-progress?graph_id=guide")

    assert (body["goal_id"], body["progress"]["fraction"]) == ("greeted", 1.0)
    assert body["criteria"][0]["state"] == "met"


# -- sessions ---------------------------------------------------------------------------------------


async def test_get_api_agents__id__sessions(home: AgentService) -> None:
    session_ids_created = [(await home.complete_run())[1] for _ in range(2)]
    session_ids: list[str] = []
    cursor = ""
    session_count = len((await home.request("GET", "/api/agents/guide/sessions?limit=1000"))["sessions"])
    for _ in range(session_count + 1):
        page = await home.request("GET", f"/api/agents/guide/sessions?limit=1&status=completed{cursor}")
        session_ids += [session["session_id"] for session in page["sessions"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    else:
        pytest.fail("the list has no last page")

    assert session_ids[:2] == session_ids_created[::-1]
    assert len(session_ids) == len(set(session_ids))


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
    error = await home.request("GET", f"/api/agents/guide/{path}", status=422)

    assert error["title"]


async def test_get_api_agents__id__sessions__sid(home: AgentService) -> None:
    run, session = await home.complete_run()

    body = await home.request("GET", f"/api/agents/guide/sessions/{session}")

    [run_row] = body["runs"]
    assert (run_row["execution_id"], run_row["status"], run_row["pending"]) == (run, "completed", [])
    assert run_row["path"] == ["prepare", "talk", "finish"]
    assert body["memory"]["greeting"] == "Ada: all about bees"


@pytest.mark.parametrize("session", ["%2e%2e", "..%2f..%2fetc", "a%2f..", "a%5c..", "x" * 300, "none"])
async def test_session_id_with_a_path_is_refused(home: AgentService, session: str) -> None:
    """B8: no file outside the sessions folder is read or removed."""
    for method in ("GET", "DELETE"):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}")
        assert response.status_code in (404, 422), response.text
    for method, sub_path in (
        ("GET", "messages"),
        ("GET", "checkpoints"),
        ("POST", "checkpoints/..%2fx/restore"),
    ):
        response = await home.http.request(method, f"/api/agents/guide/sessions/{session}/{sub_path}")
        assert response.status_code in (404, 405, 422), response.text


async def test_delete_api_agents__id__sessions__sid(home: AgentService) -> None:
    _, session = await home.complete_run()
    _, waiting_session = await home.start_waiting_run()

    await home.request("DELETE", f"/api/agents/guide/sessions/{session}", status=204)
    await home.request("GET", f"/api/agents/guide/sessions/{session}", status=404)
    conflict = await home.request("DELETE", f"/api/agents/guide/sessions/{waiting_session}", status=409)

    assert "busy" in conflict["title"]


async def test_get_api_agents__id__sessions__sid__checkpoints(home: AgentService) -> None:
    _, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"

    first_page = await home.request("GET", f"{path}?limit=2")
    next_page = await home.request("GET", f"{path}?limit=2&cursor={first_page['next']}")

    checkpoints = first_page["checkpoints"] + next_page["checkpoints"]
    assert [checkpoint["node_id"] for checkpoint in checkpoints] == ["finish", "talk", "prepare"]
    assert [checkpoint["pending"] for checkpoint in checkpoints] == [[], ["finish"], ["talk"]]
    assert all(checkpoint["valid"] for checkpoint in checkpoints)
    assert next_page["next"] is None


async def test_post_api_agents__id__sessions__sid__checkpoints__cid__restore(home: AgentService) -> None:
    run, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/checkpoints"
    [*_, first_checkpoint] = (await home.request("GET", path))["checkpoints"]

    response = await home.request("POST", f"{path}/{first_checkpoint['checkpoint_id']}/restore", status=202)
    await home.request("POST", f"{path}/0000000077-none/restore", status=404)

    assert (response["status"], response["execution_id"], response["session_id"]) == (
        "restored",
        run,
        session,
    )
    await home.wait_for_question("guide", run)
    session_detail = await home.request("GET", f"/api/agents/guide/sessions/{session}")
    assert "greeting" not in session_detail["memory"]


async def test_get_api_agents__id__sessions__sid__messages(home: AgentService) -> None:
    _, session = await home.complete_run()
    path = f"/api/agents/guide/sessions/{session}/messages"

    newest = await home.request("GET", f"{path}?limit=2")
    older = await home.request("GET", f"{path}?cursor={newest['next']}")

    messages = [(message["kind"], message["text"]) for message in older["messages"] + newest["messages"]]
    assert messages[1:3] == [("assistant", "Who are you?"), ("user", "Ada")]
    assert messages[-1][0] == "tool"
    assert older["next"] is None
    assert (await home.request("GET", f"{path}?conversation=none"))["messages"] == []


# -- graphs -----------------------------------------------------------------------------------------


@asynccontextmanager
async def add_graph_temporarily(home: AgentService, name: str) -> AsyncIterator[dict[str, Any]]:
    """Add another graph to the guide agent, and remove it at the end."""
    graphs = "/api/agents/guide/graphs"
    yield await home.request("POST", graphs, json={"path": "more/second", "graph_id": name}, status=201)
    await home.request("DELETE", f"{graphs}/{name}", status=204)


async def test_post_api_agents__id__graphs(home: AgentService) -> None:
    graphs = "/api/agents/guide/graphs"
    async with add_graph_temporarily(home, "other") as graph_name:
        response = await home.request("POST", graphs, json={"path": "more/second"}, status=201)
        conflict = await home.request("POST", graphs, json={"path": "more/second"}, status=409)
        first_page = await home.request("GET", f"{graphs}?limit=2")
        await home.request("DELETE", f"{graphs}/second", status=204)

    assert (response["graph_id"], response["agent_id"], response["primary"]) == ("second", "second", False)
    assert (graph_name["graph_id"], graph_name["agent_id"]) == ("other", "second")
    assert [graph["graph_id"] for graph in first_page["graphs"] if not graph["of_service"]] == [
        "guide",
        "other",
    ]
    assert first_page["next"]
    assert "already" in conflict["title"]


async def test_delete_api_agents__id__graphs__gid(home: AgentService) -> None:
    graphs = "/api/agents/guide/graphs"
    async with add_graph_temporarily(home, "other"):
        _, session = await home.start_waiting_run(graph_id="other")
    not_found = await home.request("DELETE", f"{graphs}/other", status=404)
    primary_graph_error = await home.request("DELETE", f"{graphs}/guide", status=409)

    assert "other" in not_found["title"]
    assert "primary" in primary_graph_error["title"]
    async with add_graph_temporarily(home, "other"):
        body = await home.request("GET", f"{graphs}/other/sessions/{session}")
        assert body["status"] == "paused"


async def test_get_api_agents__id__active_graph(home: AgentService) -> None:
    assert await home.request("GET", "/api/agents/guide/active-graph") == {"graph_id": "guide"}
    await home.request("GET", "/api/agents/nobody/active-graph", status=404)


async def test_put_api_agents__id__active_graph(home: AgentService) -> None:
    """B61: user input goes to the active graph; the other graphs continue."""
    active = "/api/agents/guide/active-graph"
    async with add_graph_temporarily(home, "second"):
        response = await home.request("PUT", active, json={"graph_id": "second"})
        await home.request("PUT", active, json={"graph_id": "none"}, status=404)
        run, session = await home.start_waiting_run(graph_id="second")
        await home.start_waiting_run(graph_id="guide")
        body = await home.request("POST", "/api/agents/guide/chat", json={"message": "Ada"})

        assert response == await home.request("GET", active) == {"graph_id": "second"}
        assert (body["graph_id"], body["session_id"]) == ("second", session)
        assert (await home.wait_for_end("guide", run))["status"] == "completed"
    assert await home.request("GET", active) == {"graph_id": "guide"}


async def test_get_api_agents__id__graphs__gid__sessions(home: AgentService) -> None:
    async with add_graph_temporarily(home, "second"):
        _, session = await home.start_waiting_run(graph_id="second")
        graph_sessions = await home.request("GET", "/api/agents/guide/graphs/second/sessions")
        guide_sessions = await home.request("GET", "/api/agents/guide/sessions?limit=1000")
        await home.request("GET", "/api/agents/guide/graphs/none/sessions", status=404)

    assert session in [row["session_id"] for row in graph_sessions["sessions"]]
    assert session not in [row["session_id"] for row in guide_sessions["sessions"]]


async def test_get_api_agents__id__graphs__gid__sessions__sid(home: AgentService) -> None:
    async with add_graph_temporarily(home, "second"):
        _, session = await home.start_waiting_run(graph_id="second")
        session_detail = await home.request("GET", f"/api/agents/guide/graphs/second/sessions/{session}")
        await home.request("GET", "/api/agents/guide/graphs/second/sessions/none", status=404)
        await home.request("GET", f"/api/agents/guide/graphs/guide/sessions/{session}", status=404)

    assert (session_detail["graph_id"], session_detail["status"]) == ("second", "active")


async def test_get_api_agents__id__graphs__gid__nodes(home: AgentService) -> None:
    path = "/api/agents/guide/graphs/guide/nodes"
    first_page = await home.request("GET", f"{path}?limit=2")
    next_page = await home.request("GET", f"{path}?limit=2&cursor={first_page['next']}")

    assert [node["node_id"] for node in first_page["nodes"] + next_page["nodes"]] == [
        "prepare",
        "talk",
        "finish",
    ]
    assert next_page["next"] is None


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
    assert [criterion["id"] for criterion in finish["goal_criteria"]] == ["said"]


async def test_node_criteria_count_the_running_visit(home: AgentService) -> None:
    path = "/api/agents/guide/graphs/guide/nodes/talk/criteria"
    criteria_before = await home.request("GET", path)
    run, _ = await home.start_waiting_run()
    criteria_during = await home.request("GET", path)
    await home.request("POST", "/api/agents/guide/stop", json={"execution_id": run})

    assert criteria_during["visits"] == criteria_before["visits"] + 1
    assert criteria_during["outcomes"]["running"] == criteria_before["outcomes"].get("running", 0) + 1
    assert criteria_during["verdicts"]["CONTINUE"] == criteria_before["verdicts"].get("CONTINUE", 0) + 1


# -- logs -------------------------------------------------------------------------------------------


async def test_get_api_agents__id__logs(home: AgentService) -> None:
    runs = [await home.complete_run() for _ in range(2)]
    path = "/api/agents/guide/logs"

    first_page = await home.request("GET", f"{path}?limit=1")
    second_page = await home.request("GET", f"{path}?limit=1&cursor={first_page['next']}")
    own_steps = await home.request("GET", f"{path}?session_id={runs[0][1]}")
    steps = await home.request("GET", f"{path}?level=steps&session_id={runs[0][1]}&limit=2")
    next_steps = await home.request("GET", f"{path}?level=steps&cursor={steps['next']}")

    assert [page["rows"][0]["execution_id"] for page in (first_page, second_page)] == [
        run for run, _ in runs[::-1]
    ]
    assert [row["execution_id"] for row in own_steps["rows"]] == [runs[0][0]]
    step_indexes = [row["step_index"] for row in steps["rows"] + next_steps["rows"]]
    assert step_indexes == sorted(step_indexes, reverse=True)
    assert len(set(step_indexes)) == len(step_indexes) >= 3
    assert next_steps["session_id"] == runs[0][1]
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
    """
    B64: the stream has the events of all graphs of the agent, including earlier ones, and of no other agent.
    """
    assert {event_type.value for event_type in DEFAULT_TYPES} == {
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
    async with add_graph_temporarily(home, "second"):
        async with Follower(url) as stream:
            last_id = stream.last_id
            own_sessions = [
                (await home.start_waiting_run())[1],
                (await home.start_waiting_run(graph_id="second"))[1],
            ]
            _, other_session = await home.start_waiting_run("second")
            own_sessions.append((await home.start_waiting_run())[1])
            await stream.until(
                lambda: own_sessions[-1] in _list_question_sessions(stream),
                "the question of the last run arrives",
            )
        resumed_stream = Follower(url, headers={"Last-Event-ID": str(last_id)})
        async with resumed_stream:
            await resumed_stream.until(
                lambda: own_sessions[-1] in _list_question_sessions(resumed_stream),
                "the same events after reconnecting",
            )
    await home.request("DELETE", "/api/agents/second", status=204)

    for stream_end in (stream, resumed_stream):
        assert _list_question_sessions(stream_end) == own_sessions
        assert other_session not in stream_end.text
        assert {event.data["agent_id"] for event in stream_end.events} == {"guide", "second"}


def _list_question_sessions(stream: Follower) -> list[str]:
    return [event.data["session_id"] for event in stream.events if event.event == "client_input_requested"]


async def test_get_api_agents__id__health(home: AgentService) -> None:
    _, session = await home.start_waiting_run()

    body = await home.request("GET", f"/api/agents/guide/health?session_id={session}")
    await home.request("GET", "/api/agents/nobody/health", status=404)

    assert (body["agent_id"], body["session_id"]) == ("guide", session)
    assert body["state"] == "healthy"


async def test_get_api_agents__id__escalations(home: AgentService) -> None:
    """Only a loop opens a ticket. ``test_watched`` tests the escalations of a looping agent."""
    assert (await home.request("GET", "/api/agents/guide/escalations"))["tickets"] == []


async def test_get_api_agents__id__escalations__tid(home: AgentService) -> None:
    error = await home.request("GET", "/api/agents/guide/escalations/none", status=404)

    assert "none" in error["title"]


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
"""Routes that only loaded agents have."""

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
async def test_every_route_has_a_test_named_after_it(method: str, path: str) -> None:
    name = path.replace("/{", "__").replace("}/", "__").strip("/}").replace("/", "_").replace("-", "_")

    assert callable(globals().get(f"test_{method.lower()}_{name}")), name


async def test_openapi_has_every_route_of_loaded_agents(home: AgentService) -> None:
    document: dict[str, Any] = await home.request("GET", "/openapi.json")
    operations_by_route = {
        (method.upper(), re.sub(r"{(\w+)}", lambda match: f"{{{_SHORT_NAMES[match[1]]}}}", path)): operation
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


async def test_sessions_are_stored_where_the_cli_looks_for_them(home: AgentService) -> None:
    _, session = await home.complete_run()

    storage = home.service.settings.agents.storage
    assert storage is not None
    assert (storage / "guide" / "sessions" / session / "state.json").is_file()


# -- audit ------------------------------------------------------------------------------------------


async def test_audit_log_has_the_actions_on_an_agent_in_order(home: AgentService) -> None:
    await home.request("POST", "/api/agents", json={"path": "third", "by": "ada"}, status=201)
    agent_path = "/api/agents/third"
    run, session = await home.start_waiting_run("third")
    session_body = {"session_id": session}
    await home.request("POST", f"{agent_path}/stop", json=session_body)
    resume_response = await home.request("POST", f"{agent_path}/resume", json=session_body, status=202)
    await home.wait_for_question("third", resume_response["execution_id"])
    body = {"node_id": "talk", "content": "my name is a secret"} | session_body
    await home.request("POST", f"{agent_path}/inject", json=body)
    await home.wait_for_end("third", resume_response["execution_id"])
    [_, checkpoint, *_] = (await home.request("GET", f"{agent_path}/sessions/{session}/checkpoints"))[
        "checkpoints"
    ]
    replay_body = {"checkpoint_id": checkpoint["checkpoint_id"]} | session_body
    replay_response = await home.request("POST", f"{agent_path}/replay", json=replay_body, status=202)
    await home.wait_for_end("third", replay_response["execution_id"])
    restore_response = await home.request(
        "POST",
        f"{agent_path}/sessions/{session}/checkpoints/{checkpoint['checkpoint_id']}/restore",
        status=202,
    )
    await home.wait_for_end("third", restore_response["execution_id"])
    await home.request("POST", f"{agent_path}/graphs", json={"path": "more/second", "by": "bob"}, status=201)
    await home.request("PUT", f"{agent_path}/active-graph", json={"graph_id": "second"})
    await home.request("DELETE", f"{agent_path}/graphs/second", status=204)
    await home.request("DELETE", f"{agent_path}/sessions/{session}", status=204)
    await home.request("DELETE", f"{agent_path}?by=ada", status=204)
    # This action is refused, so it is not in the audit log.
    await home.request("DELETE", f"{agent_path}?by=eve", status=404)

    fields = {"type": "agent_operated", "agent_id": "third", "limit": 12}
    events = (await home.request("GET", "/api/audit", params=fields))["events"]
    audited_actions = [(event["data"]["what"], event["data"]["by"]) for event in reversed(events)]

    assert audited_actions == [
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
    events_by_action = {event["data"]["what"]: event for event in events}
    assert events_by_action["trigger"]["execution_id"] == run in events_by_action["stop"]["data"]["detail"]
    assert (
        events_by_action["inject"]["session_id"]
        == events_by_action["delete_session"]["session_id"]
        == session
    )
    assert events_by_action["add_graph"]["graph_id"] == "second"
    assert "secret" not in str(events)
    feed = [line["text"] for line in (await home.request("GET", "/api/status"))["feed"]]
    assert "third: unloaded, by ada" in feed
