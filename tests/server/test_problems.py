"""All errors are problem documents of the same form."""

from __future__ import annotations

import ast
import re

import httpx
import pytest
from fastapi import FastAPI

from queenright.server.console.templates import render_error
from queenright.server.routes.errors import add_exception_handlers
from tests.isolation import ROOT


@pytest.mark.parametrize("package", ["server", "health", "judge", "runtime", "alerting"])
def test_error_titles_name_commands_instead_of_http_requests(package: str) -> None:
    """The command line prints the title too, so the remedy must be a command."""
    raised_titles = [
        (path, node)
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Raise)
    ]
    texts = [
        (path, str(string_node.value))
        for path, node in raised_titles
        for string_node in ast.walk(node)
        if isinstance(string_node, ast.Constant)
    ]

    commands = [(path, text) for path, text in texts if re.search(r"\b(?:GET|POST|PUT|PATCH|DELETE) /", text)]

    assert texts
    assert commands == []


async def test_invalid_parameter_is_named_with_its_value(http: httpx.AsyncClient) -> None:
    response = await http.get("/api/tickets", params={"limit": "many"})

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert "query.limit: 'many' is refused" in response.json()["title"]


async def test_unknown_paths_and_methods_are_problems(http: httpx.AsyncClient) -> None:
    path = await http.get("/api/nothing")
    method = await http.post("/api/status")

    assert (path.status_code, method.status_code) == (404, 405)
    assert {path.headers["content-type"], method.headers["content-type"]} == {"application/problem+json"}
    assert method.headers["allow"] == "GET"


async def test_long_value_is_shortened_and_text_shown_by_length(
    http: httpx.AsyncClient,
) -> None:
    by_response = await http.post("/api/agents/a/nudge", json={"by": "x" * 101})
    field_response = await http.post("/api/agents/a/nudge", json={"by": ["y" * 200]})
    message_response = await http.post("/api/agents/a/nudge", json={"by": ["y" * 9000]})

    assert all(phrase in by_response.json()["title"] for phrase in ("by", "100", "101"))
    assert field_response.json()["title"].startswith("by: ['yyyy")
    assert "by" in message_response.json()["title"]
    assert "9,004 characters" in message_response.json()["title"]


async def test_internal_error_is_a_problem_document() -> None:
    app = FastAPI()
    add_exception_handlers(app, render_error)

    @app.get("/fault")
    async def raise_error() -> None:
        raise RuntimeError("token=hunter2hunter2")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        response = await http.get("/fault")

    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "its log" in response.json()["title"]
    assert "hunter2" not in response.text


async def test_invalid_json_body_is_400(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/api/agents/a/nudge", content=b"x", headers={"Content-Type": "application/json"}
    )

    assert response.status_code == 422
    assert "character 0" in response.json()["title"]


async def test_wrong_content_type_is_415_with_a_remedy(http: httpx.AsyncClient) -> None:
    body = '{"by": "ada"}'
    for kind in ("application/x-www-form-urlencoded", "text/plain; charset=utf-8"):
        refused_response = await http.post(
            "/api/agents/a/nudge", content=body, headers={"Content-Type": kind}
        )
        assert refused_response.status_code == 415
        assert refused_response.headers["content-type"] == "application/problem+json"
        assert kind.partition(";")[0] in refused_response.json()["title"]
        assert "Content-Type: application/json" in refused_response.json()["title"]
    for kind in ("application/json", "application/json; charset=utf-8", "application/merge-patch+json"):
        response = await http.post("/api/agents/a/nudge", content=body, headers={"Content-Type": kind})
        assert response.status_code == 404
    document = (await http.get("/openapi.json")).json()
    assert "415" in document["paths"]["/api/agents/{agent_id}/nudge"]["post"]["responses"]


async def test_path_with_an_extra_slash_is_404_without_a_redirect(http: httpx.AsyncClient) -> None:
    for path in ("/api/settings/", "/api/tickets/", "/docs/"):
        response = await http.get(path)
        assert (path, response.status_code) == (path, 404)
        assert response.headers["content-type"] == "application/problem+json"


async def test_head_equals_get_without_the_body(
    http: httpx.AsyncClient,
) -> None:
    for path in ("/console/", "/api/status", "/healthz", "/metrics", "/nowhere"):
        get_response, head_response = await http.get(path), await http.head(path)
        assert (path, head_response.status_code, head_response.content) == (
            path,
            get_response.status_code,
            b"",
        )
        assert head_response.headers["content-type"] == get_response.headers["content-type"]
    stream = await http.head("/api/events")
    assert (stream.status_code, stream.headers["allow"]) == (405, "GET")


async def test_unknown_url_is_html_for_browsers_and_a_problem_for_programs(
    http: httpx.AsyncClient,
) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    for path in ("/nowhere", "/runbooks/None", "/static/none.css"):
        page, problem = await http.get(path, headers=browser), await http.get(path)
        assert (page.status_code, problem.status_code) == (404, 404)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "Page not found" in page.text
        assert problem.headers["content-type"] == "application/problem+json"
    api = await http.get("/api/nothing", headers=browser)
    assert api.headers["content-type"] == "application/problem+json"
