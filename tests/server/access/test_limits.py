"""Rate limits of API callers and of wrong tokens, with an injected clock."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.server.access.access import Access, Denial, RateLimit, format_retry_after
from queenright.server.access.addresses import get_rate_limit_network
from queenright.server.access.api_guard import ApiGuard
from queenright.server.access.caller import Caller, get_audit_name, get_person_name
from queenright.server.access.roles import Role
from queenright.server.console.templates import render_error
from queenright.server.settings import load_settings


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_burst_is_allowed_and_then_the_rate_applies() -> None:
    clock = Clock()
    limit = RateLimit(2, 3, monotonic=clock)

    assert [limit.take("ada") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.take("bob") == 0
    clock.now += 0.5
    assert [limit.take("ada"), limit.take("ada")] == [0, 0.5]
    clock.now += 100
    assert [limit.take("ada") for _ in range(4)] == [0, 0, 0, 0.5]


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_no_more_than_burst_and_rate_is_allowed(pauses: list[float], rate: float, burst: int) -> None:
    clock = Clock()
    limit = RateLimit(rate, burst, monotonic=clock)
    allowed_requests = 0
    for pause in pauses:
        clock.now += pause
        allowed_requests += limit.take("ada") == 0

    assert allowed_requests <= burst + clock.now * rate + 1e-6


def test_number_of_tracked_callers_is_bounded() -> None:
    limit = RateLimit(1, 1, monotonic=Clock(), limit=100)
    for number in range(1000):
        limit.take(number)

    assert len(limit) == 100


def test_addresses_of_one_ipv6_network_count_as_one_caller() -> None:
    network = get_rate_limit_network("2001:db8:1:2::7")
    assert network == get_rate_limit_network("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert get_rate_limit_network("2001:db8:1:3::7") != get_rate_limit_network("2001:db8:1:2::7")
    assert get_rate_limit_network("192.0.2.7") == "192.0.2.7"
    assert get_rate_limit_network("") == ""


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, "1"), (1.0, "1"), (1.1, "2")])
def test_retry_after_is_a_whole_number_of_seconds(seconds: float, expected: str) -> None:
    assert format_retry_after(seconds) == expected


def test_wrong_tokens_only_slow_down_their_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenright.server.access.access.FAILED_LOGINS_PER_MINUTE", 3)
    clock = Clock()
    access = Access(load_settings(storage=tmp_path, auth={"required": True}), monotonic=clock)

    def try_wrong_token(address: str) -> int:
        denial = access.identify(address, token_text="wrong", session=None, is_token_required=True)
        assert isinstance(denial, Denial)
        return denial.status

    assert [try_wrong_token("192.0.2.7") for _ in range(4)] == [401, 401, 401, 429]
    assert try_wrong_token("192.0.2.8") == 401
    clock.now += 20
    assert [try_wrong_token("192.0.2.7") for _ in range(2)] == [401, 429]


async def test_rate_limited_caller_receives_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenright.server.access.access.REQUESTS_PER_SECOND", 2)
    monkeypatch.setattr("queenright.server.access.access.REQUEST_BURST", 2)
    clock = Clock()
    settings = load_settings(storage=tmp_path)

    async def app(scope: object, receive: object, send: object) -> None:
        await send_ok(send)

    guard = ApiGuard(
        app, access=Access(settings, monotonic=clock), bind_address="127.0.0.1", page=render_error
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as http:
        responses = [await http.get("/api/status") for _ in range(3)]
        clock.now += 0.5
        later_response = await http.get("/api/status")

    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[2].headers["retry-after"] == "1"
    assert "2 requests per second" in responses[2].json()["title"]
    assert later_response.status_code == 200


async def send_ok(send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


def test_audit_name_combines_token_name_and_given_name() -> None:
    from starlette.requests import Request

    from queenright.server.access.caller import MAX_NAME_LENGTH, SCOPE_KEY

    def make_request(name: str, address: str = "192.0.2.7") -> Request:
        return Request(
            {"type": "http", SCOPE_KEY: Caller(Role.OPERATOR, address, name, "id" if name else "")}
        )

    assert get_person_name(make_request(""), "bob") == "bob"
    assert [get_person_name(make_request("ada"), result) for result in ("operator", "ada", "bob")] == [
        "ada",
        "ada",
        "ada (as bob)",
    ]
    assert get_audit_name(make_request("ada")) == "ada (operator, 192.0.2.7)"
    assert get_audit_name(make_request("ada"), "bob") == "ada (as bob; operator, 192.0.2.7)"
    longest = get_audit_name(
        make_request("a" * 40, "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%eth0"), "b" * 100
    )
    assert len(longest) <= MAX_NAME_LENGTH
    assert longest.startswith("a" * 40 + " (")
    assert longest.endswith("operator, ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255)")
    assert len(get_person_name(make_request("ada"), "b" * 100)) == MAX_NAME_LENGTH
