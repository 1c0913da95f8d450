"""Login sessions of the console: which cookies are accepted, where, and for how long."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queenright.health.cluster.shared_secrets import LOGIN_KEY, get_secret
from queenright.health.store.store import Store
from queenright.server.access.login_sessions import SESSION_COOKIE, SESSION_SECONDS, ConsoleSessions
from queenright.server.access.roles import Role
from queenright.server.access.tokens import Token, Tokens, build_token
from queenright.server.serving import serving
from tests.server.access.test_service_with_tokens import create_token, make_guarded_settings, revoke_token

KEY = b"k" * 32


@dataclasses.dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_token(name: str, role: Role = Role.VIEWER, *, expires_at: float | None = None) -> Token:
    id_ = hashlib.sha256(name.encode()).hexdigest()[:8]
    return build_token(name, role, id_=id_, secret=f"{name:s<43}", now=0, expires_at=expires_at)[0]


ADA, BOB = make_token("ada"), make_token("bob", Role.ADMIN)
TOKENS = Tokens((ADA, BOB))


def make_sessions(clock: Clock, key: bytes = KEY) -> ConsoleSessions:
    sessions = ConsoleSessions(clock=clock)
    sessions.key = key
    return sessions


def test_cookie_is_accepted_by_each_process_with_the_key() -> None:
    clock = Clock()
    cookie = make_sessions(clock).start(ADA)

    assert make_sessions(clock).find_token(cookie, TOKENS) == ADA
    assert make_sessions(clock, b"l" * 32).find_token(cookie, TOKENS) is None
    assert ConsoleSessions(clock=clock).find_token(cookie, TOKENS) is None


def test_session_ends_after_twelve_hours() -> None:
    clock = Clock()
    sessions = make_sessions(clock)
    cookie = sessions.start(ADA)
    clock.now += SESSION_SECONDS - 1

    assert sessions.find_token(cookie, TOKENS) == ADA
    clock.now += 1
    assert sessions.find_token(cookie, TOKENS) is None


def test_session_ends_with_its_token() -> None:
    clock = Clock()
    sessions = make_sessions(clock)
    brief_token = make_token("brief", expires_at=clock.now + 60)
    tokens = Tokens((ADA, brief_token))
    cookies = {token.name: sessions.start(token) for token in tokens.all}
    clock.now += 60

    assert sessions.find_token(cookies["brief"], tokens) is None
    assert sessions.find_token(cookies["ada"], tokens) == ADA
    assert sessions.find_token(cookies["ada"], tokens.with_revoked("ada", clock.now)) is None
    assert sessions.find_token(cookies["ada"], Tokens()) is None


def test_session_does_not_carry_over_to_a_new_token_with_the_same_id() -> None:
    sessions = make_sessions(Clock())
    cookie = sessions.start(ADA)
    renewed_token = ADA.model_copy(update={"sha256": "f" * 64, "role": Role.ADMIN})

    assert sessions.find_token(cookie, Tokens((renewed_token,))) is None


def test_sign_out_ends_one_session_of_a_token() -> None:
    sessions = make_sessions(Clock())
    first_cookie, second_cookie = sessions.start(ADA), sessions.start(ADA)
    assert first_cookie != second_cookie
    sessions.end(first_cookie)
    sessions.end("no cookie")

    assert sessions.find_token(first_cookie, TOKENS) is None
    assert sessions.find_token(second_cookie, TOKENS) == ADA


@given(st.data())
def test_changed_cookie_is_refused(data: st.DataObject) -> None:
    sessions = make_sessions(Clock())
    cookie = sessions.start(ADA)
    position = data.draw(st.integers(0, len(cookie) - 1))
    character = data.draw(st.characters())
    assume(character != cookie[position])
    changed_cookie = cookie[:position] + character + cookie[position + 1 :]
    assert sessions.find_token(changed_cookie, TOKENS) is None


@given(st.one_of(st.text(max_size=120), st.from_regex(r"[0-9a-f]{8}\.[0-9]{1,14}\.[\w-]{16}\.[\w-]{43}")))
def test_made_up_cookie_is_refused(cookie: str) -> None:
    assert make_sessions(Clock()).find_token(cookie, TOKENS) is None


def test_token_file_or_session_key_alone_cannot_forge_a_cookie() -> None:
    """Others may be able to read the token file, because it contains only hashes."""
    clock = Clock()
    sessions = make_sessions(clock)
    session = f"{BOB.id}.{int(clock.now) + SESSION_SECONDS}.{'n' * 16}"

    def sign(key: bytes, payload: str) -> str:
        mac = hmac.digest(key, payload.encode(), hashlib.sha256)
        return f"{session}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"

    assert sessions.find_token(sign(KEY, f"{session}.{BOB.sha256}"), TOKENS) == BOB
    for key, payload in (
        (BOB.sha256.encode(), session),
        (bytes.fromhex(BOB.sha256), f"{session}.{BOB.sha256}"),
        (bytes(32), f"{session}.{BOB.sha256}"),
        (KEY, session),
        (KEY, f"{session}.{ADA.sha256}"),
    ):
        assert sessions.find_token(sign(key, payload), TOKENS) is None


@pytest.mark.parametrize("changed_part", ["token", "time"])
def test_cookie_is_invalid_for_another_token_or_time(changed_part: str) -> None:
    sessions = make_sessions(Clock())
    token_id, expires_at, nonce, signature = sessions.start(ADA).split(".")
    changed_fields = (BOB.id, expires_at) if changed_part == "token" else (token_id, str(int(expires_at) + 1))

    assert sessions.find_token(".".join((*changed_fields, nonce, signature)), TOKENS) is None


async def test_session_key_is_generated_only_once(database_url: str) -> None:
    store = Store.open(database_url)
    generated_key = [
        await store.transact(partial(get_secret, name=name)) for name in (LOGIN_KEY, LOGIN_KEY, "another")
    ]
    await store.close()
    reread_key = Store.open(database_url)
    generated_key.append(await reread_key.transact(lambda conn: get_secret(conn, LOGIN_KEY)))
    await reread_key.close()

    assert len(generated_key[0]) == 32
    assert generated_key[0] == generated_key[1] == generated_key[3] != generated_key[2]


async def test_session_continues_after_a_restart(tmp_path: Path) -> None:
    settings = make_guarded_settings(tmp_path)
    token = create_token(settings, "ada", Role.VIEWER)
    cookies = httpx.Cookies()
    statuses = []
    for turn in ("sign in", "restarted", "signed out", "restarted again", "revoked"):
        async with serving(settings) as running, httpx.AsyncClient(cookies=cookies, trust_env=False) as http:
            origin = {"Origin": running.url}
            if turn == "sign in":
                await http.post(f"{running.url}/login", data={"token": token}, headers=origin)
                cookies.set(SESSION_COOKIE, http.cookies[SESSION_COOKIE], domain="127.0.0.1")
            elif turn == "signed out":
                await http.post(f"{running.url}/logout", headers=origin)
                assert SESSION_COOKIE not in http.cookies
            elif turn == "revoked":
                revoke_token(settings, "ada")
            statuses.append((await http.get(f"{running.url}/api/status")).status_code)

    assert statuses == [200, 200, 401, 200, 401]
