"""B99: invalid input of a run is the caller's error. It causes no run, no failure and no ticket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenright.api.problem import Problem
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from tests.server.agents.parts import run_agent_service, write_files, write_guide
from tests.waiting import until

EAGER = {"judge": {"start_grace_seconds": 0}, "intervention": {"quiet_seconds": 0}}
AGENT = """
from queenright.runtime.agents.agent_spec import AgentSpec

agent = AgentSpec.model_validate(
    {
        "name": "clerk",
        "graph": {
            "nodes": [{"id": "file", "node_type": "function", "function": "file"}],
            "entry_points": [{"id": "start", "node_id": "file"}],
        },
    }
)
"""
FUNCTIONS = """
from queenright.runtime.inputs import InvalidInputError


def file(folder: str, copies: int = 1, *, session_id: str):
    if folder == "nowhere":
        raise InvalidInputError(f"there is no folder {folder!r}; name one that is there", field="folder")
"""


@pytest.mark.parametrize(
    ("input_data", "field", "expected_words"),
    [
        (
            {"foldr": "docs"},
            "folder",
            ["'folder' is missing", "is 'foldr' a typo?", "node 'file'"],
        ),
        ({}, "folder", ["'folder' is missing", "but got nothing"]),
        ({"folder": ["docs"]}, "folder", ["input 'folder': ['docs'] is not valid", "must be text"]),
        ({"folder": "docs", "copies": "many"}, "copies", ["input 'copies': 'many' is not valid"]),
        ({"folder": "docs", "copies": "3"}, "copies", ["input 'copies': '3' is not valid", "a whole number"]),
        ({"folder": "docs", "copies": 3.0}, "copies", ["input 'copies': 3.0 is not valid", "a whole number"]),
        (
            {"folder": "docs", "copies": True},
            "copies",
            ["input 'copies': True is not valid", "a whole number"],
        ),
        (
            {"folder": "docs", "copeis": 3},
            "copeis",
            ["input 'copeis' is unknown", "did you mean 'copies'?", "takes folder, copies"],
        ),
        ({"folder": "docs", "session_id": "s"}, "session_id", ["input 'session_id' is unknown"]),
    ],
)
async def test_trigger_rejects_input_that_the_first_node_does_not_accept(
    tmp_path: Path, input_data: dict[str, Any], field: str, expected_words: list[str]
) -> None:
    write_files(tmp_path / "agents" / "clerk", agent=AGENT, functions=FUNCTIONS)
    async with run_agent_service(tmp_path, agents={"load": ["clerk"]}, health_monitoring=EAGER) as home:
        events: list[AgentEvent] = []
        home.service.bus.subscribe(events.append, name="test", filter_agent="clerk")
        for _ in range(5):
            response = await home.http.post("/api/agents/clerk/trigger", json={"input_data": input_data})
            assert response.status_code == 422, response.text
        await home.service.bus.drain()

        problem = response.json()
        assert response.headers["content-type"] == "application/problem+json"
        assert problem["field"] == field
        assert set(problem) <= set(Problem.model_fields), "an answer that the API's document does not have"
        assert all(word in problem["title"] for word in expected_words), problem["title"]
        assert [event.type for event in events if event.type is not EventType.AGENT_OPERATED] == []
        assert (await home.request("GET", "/api/agents/clerk/sessions"))["sessions"] == []
        assert home.service.tickets.open_tickets() == []
        assert await home.service.health.recoveries(10) == []


async def test_input_in_the_session_memory_is_not_missing(tmp_path: Path) -> None:
    write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": ["guide"]}) as home:
        _, session = await home.complete_run()
        body = {"session_id": session}
        response = await home.request("POST", "/api/agents/guide/trigger", json=body, status=202)

        assert await home.wait_for_question("guide", response["execution_id"]) == session
        await home.request("POST", "/api/agents/guide/trigger", status=422)


async def test_run_with_refused_input_is_cancelled(tmp_path: Path) -> None:
    """
    Only the function can check this input. The run is not a failure, is not recovered, and opens no ticket.
    """
    write_files(tmp_path / "agents" / "clerk", agent=AGENT, functions=FUNCTIONS)
    async with run_agent_service(tmp_path, agents={"load": ["clerk"]}, health_monitoring=EAGER) as home:
        body = {"input_data": {"folder": "nowhere"}}
        response = await home.request("POST", "/api/agents/clerk/trigger", json=body, status=202)
        row = await home.wait_for_end("clerk", response["execution_id"])
        monitor = home.service.monitor

        def is_run_over() -> bool:
            worker = monitor.get("clerk")
            return worker is not None and worker.vitals.has_ended

        await until(is_run_over, "the run has ended")
        worker = monitor.get("clerk")
        assert worker is not None

        assert (row["status"], "'nowhere'" in row["error"]) == ("cancelled", True)
        assert worker.vitals.status is WorkerStatus.CANCELLED
        assert not worker.state.is_in_trouble
        assert not worker.findings
        assert await home.service.health.recoveries(10) == []
