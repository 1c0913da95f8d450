"""Errors in one shape, and other sites' pages kept out."""

from __future__ import annotations

import httpx
import pytest

from queenright.server.problems import MAX_BODY
from queenright.server.up import Running


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:1", "null", "http://localhost.evil.example", "x", ""]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_another_sites_page_changes_nothing(http: httpx.AsyncClient, origin: str, method: str) -> None:
    response = await http.request(method, "/api/deadman", headers={"Origin": origin})

    assert response.status_code == 403
    assert response.headers["content-type"] == "application/problem+json"
    assert "may not change anything" in response.json()["title"]


async def test_our_own_page_and_programs_may(running: Running, http: httpx.AsyncClient) -> None:
    ours = await http.post("/api/deadman", headers={"Origin": running.url})
    program = await http.post("/api/deadman")
    proxied = await http.post(
        "/api/deadman", headers={"Origin": "https://bees.example", "Host": "bees.example"}
    )

    assert (ours.status_code, program.status_code, proxied.status_code) == (204, 204, 204)


async def test_another_sites_page_may_be_told_what_a_reader_is_told(http: httpx.AsyncClient) -> None:
    response = await http.get("/healthz", headers={"Origin": "https://evil.example"})

    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


async def test_a_body_that_is_too_long_is_refused_unread(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/deadman", content=b" " * (MAX_BODY + 1))

    assert response.status_code == 413
    assert str(MAX_BODY) in response.json()["title"]


async def test_a_bad_argument_is_named_with_its_value(http: httpx.AsyncClient) -> None:
    response = await http.get("/api/tickets", params={"limit": "many"})

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert "query.limit: 'many' is refused" in response.json()["title"]
