"""`queenright token`: its output, the stored tokens and its errors."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queenright.cli.commands.token import token
from queenright.instrumentation.errors import QueenrightError
from queenright.server.access.token_file import read_tokens

DAY = 86_400


def run_token(*arguments: str, file: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(token, [*arguments, "--tokens-file", str(file)])
    if isinstance(result.exception, QueenrightError):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_created_token_is_printed_once_and_accepted(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"

    code, output, err = run_token("create", "ada", "--role", "operator", file=file)

    [token_text] = output.splitlines()
    assert code == 0
    assert token_text not in err
    assert token_text not in file.read_text()
    stored_token = read_tokens(file).find(token_text, time.time())
    assert stored_token is not None
    assert (stored_token.name, stored_token.role.value) == ("ada", "operator")
    assert stored_token.expires_at is not None
    assert abs(stored_token.expires_at - time.time() - 90 * DAY) < 60


@pytest.mark.parametrize(("expires_option", "days"), [("12h", 0.5), ("1y", 365.0), ("never", None)])
def test_token_expires_after_the_given_time(tmp_path: Path, expires_option: str, days: float | None) -> None:
    file = tmp_path / "tokens.json"

    _, output, _ = run_token(
        "create", "ada", "--role", "viewer", "--expires", expires_option, "--json", file=file
    )

    token = json.loads(output)
    assert token["token"].startswith("qrt_")
    assert "sha256" not in token
    if days is None:
        assert token["expires_at"] is None
    else:
        assert token["expires_at"] - token["made_at"] == pytest.approx(days * DAY)


def test_token_list_shows_states_and_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    assert run_token("list", file=file)[0] == 0
    run_token("create", "ada", "--role", "operator", file=file)
    run_token("create", "bob", "--role", "viewer", file=file)
    assert run_token("revoke", "bob", file=file)[:2] == (0, "The token 'bob' is revoked.\n")

    code, output, _ = run_token("list", file=file)
    rows = json.loads(run_token("list", "--json", file=file)[1])

    assert code == 0
    assert [line.split()[:3] for line in output.splitlines()] == [
        ["ada", "operator", "live"],
        ["bob", "viewer", "revoked"],
    ]
    assert [token["state"] for token in rows] == ["live", "revoked"]
    assert all("sha256" not in token for token in rows)


@pytest.mark.parametrize(
    "arguments", [("ada", "--role", "king"), ("ada",), ("ada", "--role", "viewer", "--expires", "0d")]
)
def test_invalid_usage_creates_no_token(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "tokens.json"

    assert run_token("create", *arguments, file=file)[0] == 2
    assert not file.exists()


def test_duplicate_token_name_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    run_token("create", "ada", "--role", "viewer", file=file)

    with pytest.raises(QueenrightError, match="ada-2"):
        run_token("create", "ada", "--role", "admin", file=file)
