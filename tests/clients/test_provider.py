from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.clients.provider import Provider, read_responses_results
from tests.clients.recording import serve
from tests.clients.scenarios import Call, Delegate, Fail, Say, Turn

SCRIPT: tuple[Turn, ...] = (Call("cat notes.txt"), Call("ls"), Say("Done."))


def build_messages_request(results: int) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": str(number)} for number in range(results)]
    return {"model": "m", "tools": [{"name": "Bash"}], "messages": [{"role": "user", "content": blocks}]}


def build_responses_request(results: int) -> dict[str, Any]:
    outputs = [{"type": "function_call_output", "output": "exit 0"}] * results
    return {"model": "m", "tools": [{"name": "exec_command"}], "input": [{"type": "message"}, *outputs]}


def build_gemini_request(results: int) -> dict[str, Any]:
    parts = [{"functionResponse": {"name": "shell"}}] * results
    tools = [{"functionDeclarations": [{"name": "read_file"}, {"name": "run_shell_command"}]}]
    return {"tools": tools, "contents": [{"role": "user", "parts": [{"text": "Hello"}, *parts]}]}


PROTOCOLS = [
    ("/v1/messages", build_messages_request),
    ("/v1/responses", build_responses_request),
    ("/v1beta/models/m:streamGenerateContent", build_gemini_request),
]


@pytest.mark.parametrize(("path", "request_with"), PROTOCOLS)
async def test_provider_answers_with_the_turn_after_the_results(path: str, request_with: Any) -> None:
    async with serve(Provider(SCRIPT).routes) as url, httpx.AsyncClient(base_url=url) as http:
        first = await http.post(path, json=request_with(0))
        repeated = await http.post(path, json=request_with(0))
        second = await http.post(path, json=request_with(1))
        last = await http.post(path, json=request_with(2))

    assert "cat notes.txt" in first.text
    assert "cat notes.txt" in repeated.text
    assert "ls" in second.text
    assert "cat notes.txt" not in second.text
    assert "Done." in last.text


@pytest.mark.parametrize(("path", "request_with"), PROTOCOLS)
async def test_request_without_a_shell_tool_is_answered_outside_the_script(
    path: str, request_with: Any
) -> None:
    request = {**request_with(0), "tools": [{"name": "set_title"}]}

    async with serve(Provider(SCRIPT).routes) as url, httpx.AsyncClient(base_url=url) as http:
        response = await http.post(path, json=request)

    assert "Notes" in response.text


@pytest.mark.parametrize(("path", "request_with"), PROTOCOLS)
async def test_failing_provider_answers_every_request_with_its_status(path: str, request_with: Any) -> None:
    async with serve(Provider((Fail(529),)).routes) as url, httpx.AsyncClient(base_url=url) as http:
        responses = [await http.post(path, json=request_with(results)) for results in (0, 1)]

    assert [response.status_code for response in responses] == [529, 529]


async def test_sub_agent_follows_its_own_script() -> None:
    script = (Delegate("Count.", (Call("wc -l notes.txt"), Say("3"))), Say("Done."))
    task = build_messages_request(0) | {"messages": [{"role": "user", "content": "Count."}]}

    async with serve(Provider(script).routes) as url, httpx.AsyncClient(base_url=url) as http:
        delegation_response = await http.post("/v1/messages", json=build_messages_request(0))
        sub_agent_response = await http.post("/v1/messages", json=task)
        final_response = await http.post("/v1/messages", json=build_messages_request(1))

    assert '"name": "Agent"' in delegation_response.text
    assert "wc -l notes.txt" in sub_agent_response.text
    assert "Done." in final_response.text


async def test_provider_error_is_not_attributed_to_the_client() -> None:
    async def send_malformed() -> None:
        async with serve(Provider(SCRIPT).routes) as url, httpx.AsyncClient(base_url=url) as http:
            assert (await http.post("/v1/messages", json={"model": "m"})).status_code == 500

    with pytest.raises(KeyError, match="messages"):
        await send_malformed()


def test_running_command_is_not_finished() -> None:
    running_call = {"type": "function_call_output", "output": "Process running with session ID 42\nOutput:"}
    finished_call = {"type": "function_call_output", "output": "Process exited with code 0"}

    assert read_responses_results({"input": [finished_call, running_call]}) == (1, 42)
    assert read_responses_results({"input": [finished_call, running_call, finished_call]}) == (2, None)
    assert read_responses_results({"input": [{"type": "message"}]}) == (0, None)
