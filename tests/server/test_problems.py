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
