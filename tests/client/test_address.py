"""How a client resolves the service URL and its access token."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from queenright.client import (
    AsyncQueenright,
    InvalidAddressError,
    Queenright,
    RequestRejectedError,
    UnreachableError,
)
from queenright.client.address import build_path, resolve_token, resolve_url


def test_argument_precedes_environment_and_default() -> None:
    environment = {"QUEENRIGHT_URL": "https://bees.example/queen/"}

    assert resolve_url("http://here:1/", environment) == "http://here:1"
    assert resolve_url(None, environment) == "https://bees.example/queen"
    assert resolve_url(None, {"QUEENRIGHT_URL": ""}) == "http://127.0.0.1:8420"


@pytest.mark.parametrize("url", ["notaurl", "http://", "ftp://here", "http://127.0.0.1:x", "http://[::1"])
def test_invalid_url_is_rejected_with_an_example(url: str) -> None:
    with pytest.raises(InvalidAddressError, match="is not a URL; pass one such as http://"):
        resolve_url(url, {})


@pytest.mark.parametrize(
    "url", ["http://bee:hunter2@host:99999", "bee:hunter2@host", "http://bee:hun/ter2@host:x"]
)
def test_credentials_of_an_invalid_url_are_not_quoted(url: str) -> None:
    with pytest.raises(InvalidAddressError, match="host") as error:
        resolve_url(url, {})

    assert "bee" not in str(error.value)
    assert "ter2" not in str(error.value)


def test_credentials_of_an_unreachable_url_are_not_quoted() -> None:
    with Queenright("http://bee:hunter2@127.0.0.1:1") as client:
        with pytest.raises(UnreachableError, match=r"at http://127\.0\.0\.1:1 \(") as error:
            client.service.version()

        assert "hunter2" not in str(error.value)
        assert "hunter2" not in repr(client)


def test_other_server_is_reported_as_not_queenright() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404, text="404 page not found"))
    with (
        Queenright("http://here:9090", transport=transport) as client,
        pytest.raises(RequestRejectedError, match=r"it is not a Queenright API\. Pass the URL of the API"),
    ):
        client.service.version()


def test_token_comes_from_argument_file_or_environment(tmp_path: Path) -> None:
    file, environment_file = tmp_path / "token", tmp_path / "other"
    file.write_text("from-file\n")
    environment_file.write_text("from-environment-file")
    environment = {"QUEENRIGHT_TOKEN": "from-variable", "QUEENRIGHT_TOKEN_FILE": str(environment_file)}

    assert resolve_token("from-argument", environment=environment) == "from-argument"
    assert resolve_token(None, file=file, environment=environment) == "from-file"
    assert resolve_token(None, environment=environment) == "from-variable"
    assert resolve_token(None, environment=environment | {"QUEENRIGHT_TOKEN": ""}) == "from-environment-file"
    assert resolve_token(None, environment={}) is None


def test_invalid_token_is_rejected_and_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"s\xc3\xa4cret")
    for arguments in ({"token": "two words-sécret"}, {"token": ""}, {"token": None, "file": file}):
        with pytest.raises(InvalidAddressError) as error:
            resolve_token(**arguments, environment={})
        assert "cret" not in str(error.value)

    with pytest.raises(
        InvalidAddressError, match=r"cannot read the token from /nowhere/token \(No such file"
    ):
        resolve_token(None, file="/nowhere/token", environment={})


def test_token_file_error_names_the_variable_only_if_set() -> None:
    with pytest.raises(InvalidAddressError) as by_argument:
        resolve_token(None, file="/nowhere/token", environment={})
    with pytest.raises(InvalidAddressError) as by_variable:
        resolve_token(None, environment={"QUEENRIGHT_TOKEN_FILE": "/nowhere/token"})

    assert "QUEENRIGHT_TOKEN_FILE" not in str(by_argument.value)
    assert str(by_variable.value).endswith("or unset QUEENRIGHT_TOKEN_FILE.")


def test_repr_does_not_contain_the_token() -> None:
    for client in (Queenright("http://here:1", "qr-secret"), AsyncQueenright("http://here:1", "qr-secret")):
        assert repr(client).endswith("Queenright('http://here:1')")
        assert "secret" not in repr(vars(client))


def test_any_name_is_one_path_segment() -> None:
    assert (
        build_path("api", "agents", "team/ré\nsearcher?x#y")
        == "/api/agents/team%2Fr%C3%A9%0Asearcher%3Fx%23y"
    )
    for name in ("", " ", ".", ".."):
        with pytest.raises(InvalidAddressError):
            build_path("api", "agents", name)


def test_lone_surrogate_in_a_name_is_rejected() -> None:
    with pytest.raises(InvalidAddressError, match="not valid Unicode"):
        build_path("api", "agents", "a\ud800")
