"""Tokens and their file: what the file stores, which token is found, and the effect of a damaged file."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.redaction import MASK, redact
from queenright.server.access.roles import Role
from queenright.server.access.token_file import TokenFile, edit_tokens, read_tokens
from queenright.server.access.tokens import InvalidTokensError, Token, Tokens, build_token, parse_tokens

NOW = 1_000_000.0
SECRET = "s" * 43


def make_token(
    name: str = "ada", role: Role = Role.OPERATOR, *, id_: str = "0" * 8, expires_at: float | None = None
) -> tuple[Token, str]:
    return build_token(name, role, id_=id_, secret=SECRET, now=NOW, expires_at=expires_at)


def test_token_is_found_only_by_its_text() -> None:
    token, token_text = make_token()
    tokens = Tokens((token,))

    assert tokens.find(token_text, NOW) == token
    for wrong_text in (
        token_text[:-1],
        token_text + "s",
        token_text[:-1] + "t",
        token_text.replace("0", "1"),
        token_text.upper(),
        "",
        "é\udc80",
    ):
        assert tokens.find(wrong_text, NOW) is None


@given(st.text(max_size=80))
def test_arbitrary_text_is_not_a_token(random_text: str) -> None:
    assert Tokens((make_token()[0],)).find(random_text, NOW) is None


def test_token_is_invalid_from_the_second_it_expires() -> None:
    token, token_text = make_token(expires_at=NOW + 10)

    assert Tokens((token,)).find(token_text, NOW + 9.9) == token
    assert Tokens((token,)).find(token_text, NOW + 10) is None
    assert token.state(NOW + 10) == "expired"


def test_revoked_token_is_invalid_and_its_hash_is_removed() -> None:
    token, token_text = make_token()
    tokens = Tokens((token,)).with_revoked("ada", NOW)

    assert tokens.find(token_text, NOW) is None
    assert token.sha256 not in repr([other_token.model_dump() for other_token in tokens.all])
    with pytest.raises(InvalidTokensError, match="no live token 'ada'; live tokens: none"):
        tokens.with_revoked("ada", NOW)


def test_name_is_unique_among_live_tokens() -> None:
    tokens = Tokens((make_token(expires_at=NOW + 10)[0],))

    with pytest.raises(InvalidTokensError, match="already exists; revoke it first"):
        tokens.with_token(make_token(id_="1" * 8)[0], NOW)
    assert [token.id for token in tokens.with_token(make_token(id_="1" * 8)[0], NOW + 10).all] == ["1" * 8]


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "-a", "ä", "a" * 41, "a;b", "\x1b[2J"])
def test_invalid_token_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidTokensError, match="not a valid token name"):
        make_token(name)


def test_token_and_hash_are_not_in_repr_or_logs() -> None:
    token, token_text = make_token()

    assert token.sha256 not in repr(token)
    assert redact(f"it sent {token_text} twice") == f"it sent {MASK} twice"


# -- the file -------------------------------------------------------------------------------------


def write_tokens(path: Path, *tokens: Token) -> None:
    edit_tokens(path, lambda _: Tokens(tokens))


def test_token_file_is_owner_only_and_contains_no_token(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"
    token, token_text = make_token()

    write_tokens(path, token)

    assert path.stat().st_mode & 0o777 == 0o600
    assert token_text not in path.read_text()
    assert SECRET not in path.read_text()
    assert read_tokens(path).all == (token,)


def test_changed_token_file_takes_effect_immediately(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    file = TokenFile(path)
    assert file.load().all == ()

    write_tokens(path, make_token()[0])
    assert len(file.load().all) == 1
    path.unlink()
    assert file.load().all == ()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"tokens": [{}]}', '{"version": 2}', "\xff", '{"tokens": "x"}', "[" * 100_000]
)
def test_damaged_token_file_refuses_all_tokens_and_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    write_tokens(path, make_token()[0])
    file = TokenFile(path)
    file.load()
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)

    for _ in range(2):
        with pytest.raises(InvalidTokensError, match=r"tokens\.json is damaged"):
            file.load()


def test_error_of_a_damaged_token_file_does_not_quote_its_content() -> None:
    token = json.loads(make_token()[0].model_dump_json()) | {"sha256": "almost-a-secret"}

    with pytest.raises(InvalidTokensError) as error:
        parse_tokens(json.dumps({"tokens": [token]}))

    assert "tokens.0.sha256" in str(error.value)
    assert "almost" not in str(error.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    write_tokens(path, make_token()[0])
    path.chmod(mode)

    with pytest.raises(InvalidTokensError, match="writable by others"):
        read_tokens(path)


def test_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "tokens.json", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "tokens.json.new").symlink_to(victim)

    with pytest.raises(InvalidTokensError, match="cannot be written"):
        write_tokens(path, make_token()[0])
    assert victim.read_text() == "mine"


def test_concurrent_token_changes_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"

    def create_token(number: int) -> None:
        token, _ = make_token(f"name{number}", id_=f"{number:08x}")
        edit_tokens(path, lambda tokens: tokens.with_token(token, NOW))

    threads = [threading.Thread(target=create_token, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {stored_token.name for stored_token in read_tokens(path).all} == {
        f"name{number}" for number in range(20)
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_token_file_created_by_root_is_readable_by_the_service(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    os.chown(tmp_path, 10_001, 10_001)

    write_tokens(path, make_token()[0])

    assert path.stat().st_uid == 10_001
