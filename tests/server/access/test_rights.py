"""What each route asks of its caller: the table, against the routes that there are."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from queenright.server.access.openapi import add_access
from queenright.server.access.rights import RIGHTS, need_of
from queenright.server.access.roles import Need, Role, enough_for, may
from queenright.server.app import create_app
from queenright.server.up import serving
from tests.server.conftest import demo_settings

OPEN = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/static/{name}"),
    ("POST", "/api/slack/actions"),
    ("POST", "/api/pagerduty/webhook"),
}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Every method and path of the app."""

    async def look() -> list[tuple[str, str]]:
        async with serving(demo_settings(tmp_path_factory.mktemp("storage"))) as running:
            app = create_app(running.service, bound="127.0.0.1")
            return [
                (method, re.sub(r":\w+\}", "}", route.path or ""))
                for route in iter_route_contexts(app.routes)
                for method in sorted((route.methods or set()) - {"HEAD"})
            ] + [("GET", f"{route.path}/{{name}}") for route in app.routes if isinstance(route, Mount)]

    return asyncio.run(look())


def test_what_is_open_to_everybody_is_this_and_nothing_else(routes: list[tuple[str, str]]) -> None:
    assert {one for one in routes if need_of(*one) is Need.OPEN} == OPEN


def test_whoever_only_looks_changes_nothing(routes: list[tuple[str, str]]) -> None:
    changing = [one for one in routes if one[0] in ("POST", "PUT", "DELETE") and one not in OPEN]

    allowed = {one for one in changing if may(Role.VIEWER, need_of(*one))}

    # One's own name on one's own browser, and leaving.
    assert allowed == {("POST", "/you"), ("POST", "/logout")}


def test_machines_may_report_and_nothing_else(routes: list[tuple[str, str]]) -> None:
    allowed = {one for one in routes if may(Role.REPORTER, need_of(*one)) and one not in OPEN}

    assert allowed == {
        ("GET", "/metrics"),
        ("POST", "/logout"),
        ("POST", "/api/heartbeats"),
        ("POST", "/api/deadman"),
        ("POST", "/api/alertmanager/webhook"),
        ("POST", "/api/alertmanager/told"),
        ("GET", "/api/agents/{agent_id}/instructions"),
        ("POST", "/api/agents/{agent_id}/instructions/{instruction_id}/answer"),
    }


def test_whose_code_runs_here_is_an_admins_matter(routes: list[tuple[str, str]]) -> None:
    allowed = {one for one in routes if not may(Role.OPERATOR, need_of(*one))}

    assert allowed >= {("GET", "/api/settings"), ("POST", "/-/reload"), ("POST", "/api/agents")}
    assert all(re.match(r"/api/agents|/api/settings|/-/reload", path) for _, path in allowed)


def test_no_line_of_the_table_is_for_a_route_that_is_gone(routes: list[tuple[str, str]]) -> None:
    there = {(method, re.sub(r"\{\w+\}", "x", path)) for method, path in routes}
    for right in RIGHTS:
        if right.path in ("/v1/{}", "/openapi.json"):
            continue
        example = right.path.replace("{agent}", "x").replace("{}", "x")
        assert any((method, example) in there for method in right.methods.split()), right


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/api/agents/a/b\nc/instructions", Need.REPORTER),
        ("POST", "/api/agents/a/../../x/instructions/1/answer", Need.REPORTER),
        ("POST", "/api/agents/a/instructions/1/answer/", Need.OPERATOR),
        ("POST", "//api/heartbeats", Need.OPERATOR),
        ("POST", "/api/heartbeats/", Need.OPERATOR),
        ("POST", "/API/HEARTBEATS", Need.OPERATOR),
        ("POST", "/static/x", Need.OPERATOR),
        ("GET", "/static/../api/settings", Need.VIEWER),
        ("GET", "/static/a/b", Need.VIEWER),
        ("HEAD", "/api/settings", Need.ADMIN),
        ("DELETE", "/api/agents/a", Need.ADMIN),
        ("DELETE", "/api/agents/a/b", Need.ADMIN),
        ("DELETE", "/api/agents/a/sessions/s", Need.OPERATOR),
        ("DELETE", "/api/agents/a/graphs/g", Need.ADMIN),
        ("TRACE", "/api/status", Need.OPERATOR),
        ("WHATEVER", "/nowhere", Need.OPERATOR),
    ],
)
def test_a_path_written_another_way_asks_no_less(method: str, path: str, need: Need) -> None:
    assert need_of(method, path) is need


def test_roles_contain_one_another_and_a_reporter_stands_beside() -> None:
    assert enough_for(Need.VIEWER) == [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    assert enough_for(Need.REPORTER) == [Role.REPORTER, Role.OPERATOR, Role.ADMIN]
    assert enough_for(Need.ADMIN) == [Role.ADMIN]


def test_the_document_says_what_the_guard_asks(routes: list[tuple[str, str]]) -> None:
    document: dict[str, Any] = {"paths": {}}
    for method, path in routes:
        document["paths"].setdefault(path, {})[method.lower()] = {}

    add_access(document)

    for method, path in routes:
        operation = document["paths"][path][method.lower()]
        assert operation["security"] == ([] if need_of(method, path) is Need.OPEN else [{"token": []}])
    assert document["paths"]["/api/agents/{agent_id}/terminate"]["post"]["x-role"] == "operator or admin"
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
