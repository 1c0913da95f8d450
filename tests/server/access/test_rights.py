"""The access level of each route. The table is compared with the routes of the app."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from queenright.server.access.openapi import add_access_requirements
from queenright.server.access.rights import ACCESS_RULES, find_required_level
from queenright.server.access.roles import AccessLevel, Role, is_allowed, list_roles
from queenright.server.app import create_routes

PUBLIC_ROUTES = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/static/{name}"),
    ("POST", "/api/slack/actions"),
    ("POST", "/api/pagerduty/webhook"),
}


@pytest.fixture(scope="module")
def routes() -> list[tuple[str, str]]:
    """Return every method and path of the app."""
    app = create_routes()
    return [
        (method, re.sub(r":\w+\}", "}", route.path or ""))
        for route in iter_route_contexts(app.routes)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ] + [("GET", f"{route.path}/{{name}}") for route in app.routes if isinstance(route, Mount)]


def test_public_routes_are_exactly_these(routes: list[tuple[str, str]]) -> None:
    assert {route for route in routes if find_required_level(*route) is AccessLevel.OPEN} == PUBLIC_ROUTES


def test_viewer_routes_are_read_only(routes: list[tuple[str, str]]) -> None:
    changing_routes = [
        route for route in routes if route[0] in ("POST", "PUT", "DELETE") and route not in PUBLIC_ROUTES
    ]

    allowed_routes = {
        route for route in changing_routes if is_allowed(Role.VIEWER, find_required_level(*route))
    }

    # A replay computes a result, and changes nothing.
    assert allowed_routes == {
        ("POST", "/logout"),
        ("POST", "/api/agents/{agent_id}/evaluation"),
    }


def test_reporter_routes_are_exactly_these(routes: list[tuple[str, str]]) -> None:
    allowed_routes = {
        route
        for route in routes
        if is_allowed(Role.REPORTER, find_required_level(*route)) and route not in PUBLIC_ROUTES
    }

    assert allowed_routes == {
        ("GET", "/metrics"),
        ("POST", "/logout"),
        ("POST", "/api/heartbeats"),
        ("POST", "/api/deadman"),
        ("POST", "/api/alertmanager/webhook"),
        ("POST", "/api/alertmanager/notifications"),
        ("GET", "/api/agents/{agent_id}/instructions"),
        ("POST", "/api/agents/{agent_id}/instructions/{instruction_id}/answer"),
    }


def test_changes_of_loaded_agents_require_an_admin(routes: list[tuple[str, str]]) -> None:
    allowed_routes = {route for route in routes if not is_allowed(Role.OPERATOR, find_required_level(*route))}

    assert allowed_routes >= {("GET", "/api/settings"), ("POST", "/-/reload"), ("POST", "/api/agents")}
    assert all(re.match(r"/api/agents|/api/settings|/-/reload", path) for _, path in allowed_routes)


def test_every_access_rule_matches_a_route(routes: list[tuple[str, str]]) -> None:
    known_routes = {(method, re.sub(r"\{\w+\}", "x", path)) for method, path in routes}
    for expected_rule in ACCESS_RULES:
        if expected_rule.path in ("/v1/{}", "/openapi.json"):
            continue
        example = expected_rule.path.replace("{agent}", "x").replace("{}", "x")
        assert any((method, example) in known_routes for method in expected_rule.methods.split()), (
            expected_rule
        )


@pytest.mark.parametrize(
    ("method", "path", "expected_level"),
    [
        ("GET", "/api/agents/a/b\nc/instructions", AccessLevel.REPORTER),
        ("POST", "/api/agents/a/../../x/instructions/1/answer", AccessLevel.REPORTER),
        ("POST", "/api/agents/a/instructions/1/answer/", AccessLevel.OPERATOR),
        ("POST", "//api/heartbeats", AccessLevel.OPERATOR),
        ("POST", "/api/heartbeats/", AccessLevel.OPERATOR),
        ("POST", "/API/HEARTBEATS", AccessLevel.OPERATOR),
        ("POST", "/static/x", AccessLevel.OPERATOR),
        ("GET", "/static/../api/settings", AccessLevel.VIEWER),
        ("GET", "/static/a/b", AccessLevel.VIEWER),
        ("HEAD", "/api/settings", AccessLevel.ADMIN),
        ("DELETE", "/api/agents/a", AccessLevel.ADMIN),
        ("DELETE", "/api/agents/a/b", AccessLevel.ADMIN),
        ("DELETE", "/api/agents/a/sessions/s", AccessLevel.OPERATOR),
        ("DELETE", "/api/agents/a/graphs/g", AccessLevel.ADMIN),
        ("TRACE", "/api/status", AccessLevel.OPERATOR),
        ("WHATEVER", "/nowhere", AccessLevel.OPERATOR),
    ],
)
def test_alternative_spelling_of_a_path_needs_the_same_access(
    method: str, path: str, expected_level: AccessLevel
) -> None:
    assert find_required_level(method, path) is expected_level


def test_each_role_includes_the_weaker_roles_except_reporter() -> None:
    assert list_roles(AccessLevel.VIEWER) == [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    assert list_roles(AccessLevel.REPORTER) == [Role.REPORTER, Role.OPERATOR, Role.ADMIN]
    assert list_roles(AccessLevel.ADMIN) == [Role.ADMIN]


def test_openapi_document_has_the_access_levels(routes: list[tuple[str, str]]) -> None:
    document: dict[str, Any] = {"paths": {}}
    for method, path in routes:
        document["paths"].setdefault(path, {})[method.lower()] = {}

    add_access_requirements(document)

    for method, path in routes:
        operation = document["paths"][path][method.lower()]
        assert operation["security"] == (
            [] if find_required_level(method, path) is AccessLevel.OPEN else [{"token": []}]
        )
    assert document["paths"]["/api/agents/{agent_id}/terminate"]["post"]["x-role"] == "operator or admin"
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
