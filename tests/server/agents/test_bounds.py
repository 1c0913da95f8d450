"""What an agent that is loaded may take of the service, and what it hears beyond that."""

from __future__ import annotations

from pathlib import Path

from tests.server.agents.parts import guide, house


async def test_runs_that_wait_are_called_queued_and_beyond_their_bound_the_answer_is_429(
    tmp_path: Path,
) -> None:
    file = guide(tmp_path / "agents" / "guide") / "agent.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"max_concurrent": 100', '"max_waiting": 1'), encoding="utf-8")
    given, key = {"input_data": {"topic": "bees"}}, {"Idempotency-Key": "once"}
    async with house(tmp_path, agents={"load": [str(file.parent)]}) as home:

        async def trigger(status: int = 202) -> str:
            answer = await home.ask("POST", "/api/agents/guide/trigger", json=given, status=status)
            return str(answer["status"])

        first, session = await home.begun()
        assert await trigger() == "queued"
        refused = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)
        said = {"message": "Ada", "session_id": session}
        await home.ask("POST", "/api/agents/guide/chat", json=said)
        await home.over("guide", first)
        again = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)

        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert "1 runs of entry point 'start' of graph 'guide' wait" in refused.json()["title"]
        assert (again.status_code, again.json()["status"]) == (202, "queued")
