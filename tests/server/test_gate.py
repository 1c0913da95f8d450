"""Requests from other origins and hosts, and limits of request bodies, on a service with real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from queenright.server.http.json_limits import MAX_DEPTH
from queenright.server.middleware.gate import (
    MAX_BODY,
    MAX_VALUES,
    check_host,
    check_origin,
    list_accepted_hosts,
)
from queenright.server.serving import RunningService, serving
from queenright.server.settings import load_settings
from queenright.server.up_options import DEMO_DEFAULTS

# -- other origins --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:1", "null", "http://localhost.evil.example", "x", ""]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_cross_site_request_is_refused_without_effect(
    idle_http: httpx.AsyncClient, origin: str, method: str
) -> None:
    response = await idle_http.request(method, "/api/deadman", headers={"Origin": origin})

    assert response.status_code == 403
    assert response.headers["content-type"] == "application/problem+json"
    assert "must not change anything" in response.json()["title"]


async def test_same_origin_and_programs_are_allowed(
    idle: RunningService, idle_http: httpx.AsyncClient
) -> None:
    browser_response = await idle_http.post("/api/deadman", headers={"Origin": idle.url})
    program_response = await idle_http.post("/api/deadman")

    assert (browser_response.status_code, program_response.status_code) == (204, 204)


async def test_allowed_origin_has_read_access(idle_http: httpx.AsyncClient) -> None:
    response = await idle_http.get("/healthz", headers={"Origin": "https://evil.example"})

    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origin", ["http://[", "//", "http://x:99999", "http://x:port"])
def test_invalid_origin_is_foreign(origin: str) -> None:
    assert check_origin("POST", Headers({"origin": origin, "host": "127.0.0.1"})) is not None


async def test_every_response_has_nosniff(idle_http: httpx.AsyncClient) -> None:
    good_response = await idle_http.get("/healthz")
    bad_response = await idle_http.get("/healthz", headers={"Host": "evil.example"})

    for response in (good_response, bad_response):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


# -- host names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/status", "/metrics", "/healthz", "/readyz", "/docs"])
async def test_foreign_host_name_gets_no_data(idle_http: httpx.AsyncClient, path: str) -> None:
    """Otherwise a site whose host name resolves to 127.0.0.1 could read data."""
    response = await idle_http.get(path, headers={"Host": "evil.example:8420"})

    assert response.status_code == 403
    assert "'evil.example:8420'" in response.json()["title"]
    assert "alerting.console_url" in response.json()["title"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST.", "[::1]:8420", "127.8.9.1"])
async def test_each_loopback_name_and_port_is_accepted(idle_http: httpx.AsyncClient, host: str) -> None:
    response = await idle_http.get("/metrics", headers={"Host": host})

    assert response.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "10.0.0.1",
        "[::2]",
        "localhost.evil.example",
        "evil-localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#localhost",
        "localhost evil.example",
        "::1",
        "[::1",
        "127.1",
    ],
)
def test_lookalike_of_loopback_is_foreign(host: str) -> None:
    assert check_host([host], frozenset()) is not None
    assert check_host(["localhost", host], frozenset()) is not None


def test_host_names_from_the_settings_are_accepted() -> None:
    names = list_accepted_hosts("queen.internal", "https://Bees.Example/console", bind_address="127.0.0.1")

    assert names == frozenset({"queen.internal", "bees.example"})
    assert check_host(["bees.example:443"], names) is None
    assert check_host(["other.example"], names) is not None


@pytest.mark.parametrize("bind_address", ["0.0.0.0", "::", "192.0.2.7"])
def test_service_on_a_public_address_accepts_any_host_name(bind_address: str) -> None:
    """Containers have host names that are not in any settings."""
    assert list_accepted_hosts(bind_address, bind_address=bind_address) is None
    assert check_host(["queenright:8420"], None) is None


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        alerting={"console_url": "https://bees.example"},
    )
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as client,
    ):
        yield client


async def test_proxied_service_uses_the_forwarded_host_name(proxied: httpx.AsyncClient) -> None:
    same_origin = {"Origin": "https://bees.example", "Host": "bees.example"}
    own_response = await proxied.post("/api/deadman", headers=same_origin)
    foreign_response = await proxied.get("/healthz", headers={"Host": "wasps.example"})

    assert (own_response.status_code, foreign_response.status_code) == (204, 403)


# -- telemetry ------------------------------------------------------------------------------------

OTLP_HEADERS = {"Content-Type": "application/json"}


async def test_telemetry_with_a_foreign_host_or_origin_is_refused(
    idle: RunningService, idle_http: httpx.AsyncClient
) -> None:
    """Otherwise a site whose host name resolves to 127.0.0.1 could create a worker."""
    for path in ("/v1/traces", "/v1/logs", "/nowhere"):
        foreign_host = await idle_http.post(
            idle.otlp_url + path, content="{}", headers=OTLP_HEADERS | {"Host": "evil.example:4318"}
        )
        assert foreign_host.status_code == 403
        assert "'evil.example:4318'" in foreign_host.json()["message"]
        assert "otlp.host" in foreign_host.json()["message"]
    foreign_origin = await idle_http.post(
        f"{idle.otlp_url}/v1/traces", content="{}", headers=OTLP_HEADERS | {"Origin": "http://evil.example"}
    )

    assert (foreign_origin.status_code, foreign_origin.json()["code"]) == (403, 7)


@pytest.mark.parametrize(
    "host", ["localhost:4318", "[::1]", "host.docker.internal:4318", "host.containers.internal"]
)
async def test_telemetry_with_an_own_host_name_is_accepted(
    idle: RunningService, idle_http: httpx.AsyncClient, host: str
) -> None:
    """
    The name that a container engine gives the host machine is accepted too, because no public site can use
    it.
    """
    response = await idle_http.post(
        f"{idle.otlp_url}/v1/traces", content="{}", headers=OTLP_HEADERS | {"Host": host}
    )

    assert response.status_code == 200


# -- body limits ----------------------------------------------------------------------------------


async def stream_chunks(size: int) -> AsyncIterator[bytes]:
    """Yield a body that has no Content-Length."""
    for _ in range(size // 4096):
        yield b" " * 4096
    yield b" " * (size % 4096)


async def test_oversized_body_is_rejected_before_it_is_read(idle_http: httpx.AsyncClient) -> None:
    response = await idle_http.post("/api/deadman", content=b" " * (MAX_BODY + 1))

    assert response.status_code == 413
    assert str(MAX_BODY) in response.json()["title"]


@pytest.mark.parametrize(
    "path", ["/api/heartbeats", "/api/alertmanager/webhook", "/api/recoveries", "/api/agents/a/nudge"]
)
async def test_chunked_body_is_counted_as_it_arrives(idle_http: httpx.AsyncClient, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    too_long = await idle_http.post(path, content=stream_chunks(MAX_BODY + 1), headers=headers)
    short_enough = await idle_http.post(path, content=stream_chunks(MAX_BODY), headers=headers)

    assert too_long.status_code == 413
    assert str(MAX_BODY) in too_long.json()["title"]
    assert short_enough.status_code in (400, 422)


JSON = {"Content-Type": "application/json"}
PATHS = [
    "/api/heartbeats",
    "/api/alertmanager/webhook",
    "/api/alertmanager/notifications",
    "/api/recoveries",
    "/api/agents/a/nudge",
    "/api/agents/a/trigger",
]


async def test_json_with_too_many_values_is_rejected_before_parsing(idle_http: httpx.AsyncClient) -> None:
    """B127: parsing 1 MB of nested lists would block the event loop for at least 44 ms."""
    body = b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]"

    for path in PATHS:
        for kind in ("application/json", "application/x-www-form-urlencoded", ""):
            response = await idle_http.post(path, content=body, headers={"Content-Type": kind})

            assert response.status_code == 413, (path, kind)
            assert response.headers["content-type"] == "application/problem+json"
            assert str(MAX_VALUES) in response.json()["title"]


async def test_json_in_chunks_is_counted_as_a_whole(idle_http: httpx.AsyncClient) -> None:
    async def yield_chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"[]," * (MAX_VALUES // 6)

    for path in PATHS:
        response = await idle_http.post(
            path, content=yield_chunks(), headers=JSON | {"Idempotency-Key": path}
        )

        assert response.status_code == 413, path
        assert "values" in response.json()["title"]


async def test_deeply_nested_json_is_rejected(idle_http: httpx.AsyncClient) -> None:
    """B127: it is rejected before parsing."""
    body = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)

    for path in PATHS:
        response = await idle_http.post(path, content=body, headers=JSON)

        assert response.status_code == 400, path
        assert f"more than {MAX_DEPTH} levels deep" in response.json()["title"]
