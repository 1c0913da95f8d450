"""Errors in one shape."""

from __future__ import annotations

import httpx


async def test_a_bad_argument_is_named_with_its_value(http: httpx.AsyncClient) -> None:
    response = await http.get("/api/tickets", params={"limit": "many"})

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert "query.limit: 'many' is refused" in response.json()["title"]


async def test_paths_and_methods_that_are_not_there_are_problems_too(http: httpx.AsyncClient) -> None:
    path = await http.get("/api/nothing")
    method = await http.post("/api/status")

    assert (path.status_code, method.status_code) == (404, 405)
    assert {path.headers["content-type"], method.headers["content-type"]} == {"application/problem+json"}
    assert method.headers["allow"] == "GET"


async def test_of_a_long_value_the_beginning_is_said_and_of_a_text_its_length(
    http: httpx.AsyncClient,
) -> None:
    by = await http.post("/api/agents/a/nudge", json={"by": "x" * 101})
    field = await http.post("/api/agents/a/nudge", json={"by": ["y" * 200]})
    longer = await http.post("/api/agents/a/nudge", json={"by": ["y" * 9000]})

    assert by.json()["title"] == "by: String should have at most 100 characters, not 101"
    assert field.json()["title"].startswith("by: ['yyyy")
    assert "yyy… is refused: " in field.json()["title"]
    assert longer.json()["title"].startswith("by: a value of 9004 characters is refused: ")
