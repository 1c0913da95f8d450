"""A service that requires tokens, on real sockets: authorization, audit, telemetry, sign-in and start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.store.event_log import read_events
from queenright.runtime.events import EventType
from queenright.server.access.access import Access
from queenright.server.access.login_sessions import SESSION_COOKIE
from queenright.server.access.roles import Role
from queenright.server.access.token_file import edit_tokens
from queenright.server.access.tokens import InvalidTokensError, build_token
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.conftest import looping
from tests.waiting import until

TRACES_PATH = "/v1/traces"
OTLP_HEADERS = {"Content-Type": "application/json"}
PAGE_HEADERS = {"Accept": "text/html"}


def make_guarded_settings(storage: Path, **auth: Any) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        auth={"required": True} | auth,
    )


def create_token(settings: Settings, name: str, role: Role, *, seconds: float | None = None) -> str:
    """Add a token to the token file, and return the token's text."""
    created_at = time.time()
    token, token_text = build_token(
        name,
        role,
        id_=f"{abs(hash(name)) % 16**8:08x}",
        secret=f"{name:s<43}".replace("-", "_"),
        now=created_at,
        expires_at=None if seconds is None else created_at + seconds,
    )
    edit_tokens(Access(settings).file.path, lambda tokens: tokens.with_token(token, created_at))
    return token_text


def revoke_token(settings: Settings, name: str) -> None:
    edit_tokens(Access(settings).file.path, lambda tokens: tokens.with_revoked(name, time.time()))


@dataclass
class GuardedService:
    """A service in its own thread, and a token for each role."""

    settings: Settings
    tokens: dict[str, str]
    running: RunningService = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine on the service's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def make_client(self, role: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} if role else {}
        return httpx.Client(
            base_url=self.running.url, headers=headers, trust_env=False, verify=False, **options
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedService]:
    settings = make_guarded_settings(tmp_path_factory.mktemp("guarded") / "storage")
    guarded_service = GuardedService(
        settings, {role.value: create_token(settings, role.value, role) for role in Role}
    )
    is_started, should_stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        guarded_service.loop = asyncio.get_running_loop()
        async with serving(settings) as guarded_service.running:
            clock_time = guarded_service.running.service.clock()
            await guarded_service.running.service.ingest(list(looping(clock_time, times=3)))
            is_started.set()
            await should_stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queenright.server.access.access.FAILED_LOGINS_PER_MINUTE", 100_000)
        thread.start()
        assert is_started.wait(60)
        yield guarded_service
        guarded_service.loop.call_soon_threadsafe(should_stop.set)
        thread.join(30)


# -- authorization --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/api/status", "/metrics", "/docs", "/openapi.json", "/console/", "/nowhere"]
)
def test_request_without_a_token_is_denied(service: GuardedService, path: str) -> None:
    with service.make_client() as http:
        response = http.get(path)

    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert "queenright token create" in response.json()["title"]


def test_probes_are_public_and_their_details_need_a_viewer(
    service: GuardedService,
) -> None:
    with service.make_client() as anonymous, service.make_client("viewer") as viewer:
        assert anonymous.get("/healthz").text == "ok\n"
        service.running.service.faults.append("the disk is full")
        anonymous_result, viewer_result = anonymous.get("/readyz"), viewer.get("/readyz")
        service.running.service.faults.clear()

    assert (anonymous_result.status_code, anonymous_result.json()) == (503, {"ready": False, "missing": []})
    assert "the disk is full" in viewer_result.json()["missing"]


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer x",
        "Bearer qrt_00000000_" + "s" * 43,
        "Basic YWRhOmFkYQ==",
        "Token {viewer}",
        "{viewer}",
        "Bearer {viewer}x",
        "Bearer {viewer} {viewer}",
        "Bearer \xff",
    ],
)
def test_invalid_tokens_are_denied(service: GuardedService, header: str) -> None:
    header_value = header.replace("{viewer}", service.tokens["viewer"])
    with service.make_client() as http:
        response = http.get("/api/status", headers=[(b"Authorization", header_value.encode("latin-1"))])

    assert response.status_code == 401
    assert service.tokens["viewer"] not in response.text


def test_two_tokens_are_refused(service: GuardedService) -> None:
    token_text = service.tokens["viewer"]
    with service.make_client() as http:
        response = http.get(
            "/api/status", headers=[("Authorization", f"Bearer {token_text}"), ("authorization", "Bearer x")]
        )

    assert response.status_code == 400


def test_token_in_the_url_or_in_another_cookie_is_ignored(service: GuardedService) -> None:
    token_text = service.tokens["admin"]
    with service.make_client() as http:
        statuses = [
            http.get(f"/api/status?token={token_text}&access_token={token_text}").status_code,
            http.get("/api/status", headers={"Cookie": f"{SESSION_COOKIE}={token_text}"}).status_code,
        ]

    assert statuses == [401, 401]


@pytest.mark.parametrize(
    ("method", "path", "weakest_roles"),
    [
        ("GET", "/api/status", {"viewer", "operator", "admin"}),
        ("GET", "/metrics", {"viewer", "reporter", "operator", "admin"}),
        ("POST", "/api/deadman", {"reporter", "operator", "admin"}),
        ("POST", "/api/agents/nobody/nudge", {"operator", "admin"}),
        ("POST", "/api/agents/nobody/terminate", {"operator", "admin"}),
        ("PUT", "/api/emergency-stop", {"operator", "admin"}),
        ("POST", "/-/reload", {"admin"}),
        ("POST", "/api/agents", {"admin"}),
        ("DELETE", "/api/agents/nobody", {"admin"}),
    ],
)
def test_role_has_its_access_levels(
    service: GuardedService, method: str, path: str, weakest_roles: set[str]
) -> None:
    refusals: dict[str, httpx.Response] = {}
    for role in service.tokens:
        with service.make_client(role) as http:
            response = http.request(method, path, headers={"Content-Type": "application/json"})
        if response.status_code == 403:
            refusals[role] = response

    assert set(refusals) == set(service.tokens) - weakest_roles
    for role, response in refusals.items():
        assert f"role {role};" in response.json()["title"]
        assert "insufficient_scope" in response.headers["www-authenticate"]


def test_expired_or_revoked_token_is_denied_immediately(service: GuardedService) -> None:
    expired_token = create_token(service.settings, "short", Role.VIEWER, seconds=-1)
    revoked_token = create_token(service.settings, "lost", Role.VIEWER)

    def request_version(token_text: str) -> int:
        with service.make_client() as http:
            return http.get("/api/version", headers={"Authorization": f"Bearer {token_text}"}).status_code

    assert request_version(expired_token) == 401
    assert request_version(revoked_token) != 401
    revoke_token(service.settings, "lost")
    assert request_version(revoked_token) == 401


def test_stream_ends_when_its_token_is_revoked(
    service: GuardedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While events are sent, the token is checked again at intervals; in this test, at each event."""
    monkeypatch.setattr("queenright.server.access.api_guard.RECHECK_SECONDS", 0.0)
    token_text = create_token(service.settings, "watcher", Role.VIEWER)
    headers = {"Authorization": f"Bearer {token_text}"}
    with (
        service.make_client(timeout=30) as http,
        http.stream("GET", "/api/events?types=all", headers=headers) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("retry: ")
        revoke_token(service.settings, "watcher")
        service.call(service.running.service.ingest(list(looping(time.time(), agent="news", times=1))))
        assert len(list(lines)) < 50  # The stream ends.


def test_foreign_origin_gets_no_cors_permission(service: GuardedService) -> None:
    headers = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    with service.make_client() as http, service.make_client("viewer") as viewer:
        answers = [http.options("/api/status", headers=headers), viewer.get("/api/status", headers=headers)]

    assert answers[0].status_code in (401, 405)
    for answer in answers:
        assert [name for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize("path", ["/api/status", "/metrics", "/healthz", "/login", "/docs", "/", "/nowhere"])
def test_every_response_has_security_headers(service: GuardedService, path: str) -> None:
    with service.make_client("viewer") as http:
        headers = http.get(path).headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] in ("no-store", "private, no-cache")


# -- audit ----------------------------------------------------------------------------------------


def test_actions_are_audited_under_the_name_of_the_token(service: GuardedService) -> None:
    with service.make_client("operator") as http:
        http.post("/api/agents/looper/nudge", json={"message": "go on", "by": "bob"})
        http.post("/api/agents/looper/nudge", json={"message": "go on"})
        rows = http.get("/api/interventions?agent_id=looper").json()["interventions"]

    assert {row["by"] for row in rows if row["kind"] == "nudge"} >= {"operator (as bob)", "operator"}


def test_termination_is_audited_with_role_and_address(service: GuardedService) -> None:
    service.call(service.running.service.ingest(list(looping(time.time(), agent="doomed", times=3))))
    with service.make_client("admin") as http:
        response = http.post(
            "/api/agents/doomed/terminate", json={"reason": "enough", "by": "root"}, timeout=60
        )
    assert response.status_code == 202

    async def audit() -> list[dict[str, Any]]:
        rows = await service.running.service.store.read(
            lambda conn: read_events(conn, types={EventType.AGENT_TERMINATED}, agent_id="doomed")
        )
        return [dict(event.data) for _, event in rows]

    events = service.call(audit())
    with service.make_client("admin") as http:
        rows = http.get("/api/interventions?agent_id=doomed").json()["interventions"]

    assert rows[0]["by"] == "admin (as root; admin, 127.0.0.1)"
    assert all(event["by"] == rows[0]["by"] for event in events if "by" in event)


# -- telemetry ------------------------------------------------------------------------------------


def test_reporter_may_send_telemetry_but_not_read(service: GuardedService) -> None:
    url = service.running.otlp_url + TRACES_PATH
    statuses = {}
    for role, token_text in [*service.tokens.items(), ("nobody", ""), ("stranger", "x")]:
        headers = OTLP_HEADERS | ({"Authorization": f"Bearer {token_text}"} if token_text else {})
        response = httpx.post(url, headers=headers, content="{}", trust_env=False)
        statuses[role] = response.status_code
        assert "json" in response.headers["content-type"]

    assert statuses == {
        "viewer": 403,
        "reporter": 200,
        "operator": 200,
        "admin": 200,
        "nobody": 401,
        "stranger": 401,
    }


def test_denied_telemetry_gets_an_otlp_status(service: GuardedService) -> None:
    response = httpx.post(
        service.running.otlp_url + TRACES_PATH,
        headers={"Content-Type": "application/x-protobuf"},
        content=b"",
        trust_env=False,
    )

    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    assert response.headers["content-type"] == "application/x-protobuf"
    assert Status.FromString(response.content).code == 16
    assert response.headers["www-authenticate"].startswith("Bearer")


# -- the console ----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_logged_in_client(service: GuardedService, role: str) -> Iterator[httpx.Client]:
    with service.make_client(follow_redirects=False) as http:
        log_in(service, role, http)
        yield http


def log_in(service: GuardedService, role: str, http: httpx.Client) -> None:
    response = http.post(
        "/login",
        data={"token": service.tokens[role], "next": "/docs"},
        headers={"Origin": service.running.url},
    )
    assert (response.status_code, response.headers["location"]) == (303, "/docs")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert service.tokens[role] not in cookie


def test_sign_in_redirects_to_the_requested_page(service: GuardedService) -> None:
    with service.make_client() as http:
        redirect = http.get("/docs?name=a%20b", headers=PAGE_HEADERS)
        response = http.get(redirect.headers["location"], headers=PAGE_HEADERS)

    assert redirect.status_code == 303
    assert 'name="next" value="/docs?name=a%20b"' in response.text
    assert 'type="password"' in response.text


def test_cross_site_link_is_reloaded_so_that_the_cookie_is_sent(service: GuardedService) -> None:
    with service.make_client() as http:
        response = http.get("/", headers=PAGE_HEADERS | {"Sec-Fetch-Site": "cross-site"})

    assert response.status_code == 200
    assert 'http-equiv="refresh"' in response.text


def test_session_has_the_permissions_of_its_token_until_sign_out(service: GuardedService) -> None:
    origin = {"Origin": service.running.url}
    with open_logged_in_client(service, "operator") as http:
        assert http.get("/runbooks/QueenrightWatchdog", headers=PAGE_HEADERS).status_code == 200
        nudge_body = {"session_id": "looper-session", "message": "by hand"}
        response = http.post("/api/agents/looper/nudge", json=nudge_body, headers=origin)
        assert response.status_code == 202
        rows = http.get("/api/interventions?agent_id=looper").json()["interventions"]
        assert rows[0]["by"] == "operator"

        cookie = http.cookies[SESSION_COOKIE]
        assert http.post("/logout", headers=origin).status_code == 303
    with service.make_client() as http:
        response_after_sign_out = http.get("/api/status", headers={"Cookie": f"{SESSION_COOKIE}={cookie}"})
    assert response_after_sign_out.status_code == 401


def test_cookie_alone_does_not_authorize_changes(service: GuardedService) -> None:
    with open_logged_in_client(service, "admin") as http:
        no_origin = http.post("/api/deadman")
        foreign_origin = http.post("/api/deadman", headers={"Origin": "https://evil.example"})
        same_origin = http.post("/api/deadman", headers={"Origin": service.running.url})

    assert (no_origin.status_code, foreign_origin.status_code, same_origin.status_code) == (403, 403, 204)
    assert "cookie" in no_origin.json()["title"]


def test_denied_page_names_the_required_role(service: GuardedService) -> None:
    with open_logged_in_client(service, "viewer") as http:
        response = http.post("/docs", headers=PAGE_HEADERS | {"Origin": service.running.url})

    assert response.status_code == 403
    assert response.headers["content-type"].startswith("text/html")
    assert "operator or admin" in response.text


def test_invalid_token_at_sign_in_is_reported_without_its_text(service: GuardedService) -> None:
    with service.make_client() as http:
        response = http.post(
            "/login", data={"token": "<b>qrt_wrong"}, headers=PAGE_HEADERS | {"Origin": service.running.url}
        )

    assert response.status_code == 401
    assert "This token is unknown" in response.text
    assert "qrt_wrong" not in response.text


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/x\r\nSet-Cookie: a=b",
        "",
        "/login",
    ],
)
def test_sign_in_redirects_only_to_pages_of_this_service(service: GuardedService, target: str) -> None:
    with service.make_client() as http:
        response = http.post(
            "/login",
            data={"token": service.tokens["viewer"], "next": target},
            headers={"Origin": service.running.url},
        )

    assert response.headers["location"] == "/"


# -- start ----------------------------------------------------------------------------------------


async def test_service_without_a_live_token_does_not_start(tmp_path: Path) -> None:
    settings = make_guarded_settings(tmp_path)

    with pytest.raises(InvalidTokensError, match=r"tokens\.json has no live token"):
        async with serving(settings):
            pass
    assert not (tmp_path / "queenright.db").exists()


@pytest.mark.parametrize(
    ("host", "expected", "needed"),
    [
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("192.0.2.7", False, True),
        ("127.0.0.1", True, True),
    ],
)
def test_token_is_required_on_reachable_addresses(
    tmp_path: Path, host: str, expected: bool, needed: bool
) -> None:
    assert Access(make_guarded_settings(tmp_path, required=expected)).is_token_required(host) is needed


async def test_loopback_needs_no_token_but_checks_one_that_is_sent(tmp_path: Path) -> None:
    settings = make_guarded_settings(tmp_path, required=False)
    token_text = create_token(settings, "ada", Role.VIEWER)
    async with serving(settings) as running:
        await running.service.ingest(list(looping(time.time(), times=3)))
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, verify=False) as http:

            async def nudge(**headers: str) -> int:
                response = await http.post("/api/agents/looper/nudge", json={"by": "bob"}, headers=headers)
                return response.status_code

            assert await nudge() == 202
            assert await nudge(Authorization=f"Bearer {token_text}") == 403
            assert await nudge(Authorization="Bearer wrong") == 401
            rows = (await http.get("/api/interventions?agent_id=looper")).json()["interventions"]
            # The collector to which telemetry is forwarded has its own token.
            wrong_token = await http.post(
                running.otlp_url + TRACES_PATH,
                headers=OTLP_HEADERS | {"Authorization": "Bearer other"},
                content="{}",
            )
    assert [row["by"] for row in rows] == ["bob"]
    assert wrong_token.status_code == 200


async def test_tokens_are_not_forwarded_with_telemetry(tmp_path: Path) -> None:
    """A collector that received the token could act with it."""
    received_headers: list[dict[str, str]] = []

    async def collector(scope: Any, receive: Any, send: Any) -> None:
        received_headers.append({name.decode().lower(): value.decode() for name, value in scope["headers"]})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    from queenright.server.ops.sockets import listen, make_socket_url, serve_app

    with listen("127.0.0.1", 0, what="a collector", option="-") as sock:
        async with serve_app(collector, sock):
            settings = make_guarded_settings(tmp_path)
            settings = settings.model_copy(
                update={"otlp": settings.otlp.model_copy(update={"forward": make_socket_url(sock)})}
            )
            token_text = create_token(settings, "machine", Role.REPORTER)
            async with serving(settings) as running, httpx.AsyncClient(trust_env=False) as http:
                await http.post(
                    running.otlp_url + TRACES_PATH,
                    headers=OTLP_HEADERS | {"Authorization": f"Bearer {token_text}"},
                    content=json.dumps({"resourceSpans": []}),
                )
                await until(lambda: bool(received_headers), "the collector has the request")
    assert all("authorization" not in headers for headers in received_headers)


@pytest.mark.parametrize(
    ("required", "host", "expected_reason"),
    [
        (True, "127.0.0.1", "auth.required is true"),
        (False, "0.0.0.0", "other machines can reach it"),
    ],
)
def test_missing_tokens_error_names_the_reason(
    tmp_path: Path, *, required: bool, host: str, expected_reason: str
) -> None:
    with pytest.raises(InvalidTokensError, match=expected_reason):
        Access(make_guarded_settings(tmp_path, required=required)).require_live_token(host)
