"""A worker's token: its sources, its only recipient, and the places where it never appears."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from queenright.instrumentation.control_client import ControlClient, ServiceUnreachableError
from queenright.instrumentation.service_token import read_service_token

TOKEN = "qrt_00000000_" + "s" * 43


def test_variable_precedes_the_file_and_both_are_trimmed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    assert read_service_token({}) is None
    assert read_service_token({"QUEENRIGHT_TOKEN_FILE": str(file)}) == TOKEN
    assert read_service_token({"QUEENRIGHT_TOKEN": " other ", "QUEENRIGHT_TOKEN_FILE": str(file)}) == "other"
    assert read_service_token({"QUEENRIGHT_TOKEN": "", "QUEENRIGHT_TOKEN_FILE": str(file)}) == TOKEN


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff\xfe", b"a\r\nX-Evil: 1", b"\x00"])
def test_invalid_token_is_ignored(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    assert read_service_token({"QUEENRIGHT_TOKEN_FILE": str(file)}) is None
    assert read_service_token({"QUEENRIGHT_TOKEN_FILE": str(tmp_path / "nowhere")}) is None
    assert read_service_token({"QUEENRIGHT_TOKEN_FILE": str(tmp_path)}) is None


class Service(HTTPServer):
    """Redirects each request to itself under another host name, and keeps the headers that it received."""

    received_requests: list[tuple[str, str | None]]


class RedirectHandler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.received_requests.append((self.path.partition("?")[0], self.headers["Authorization"]))
        self.send_response(307)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(("127.0.0.1", 0), RedirectHandler) as server:
        server.received_requests = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_token_is_sent_only_to_the_service_and_never_logged(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A redirect or a ``.netrc`` entry does not change the recipient."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("QUEENRIGHT_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    client = ControlClient(f"http://127.0.0.1:{service.server_port}", "ada", "s", "i")

    with pytest.raises(ServiceUnreachableError) as away:
        client.fetch(0)
    # A new token needs no restart.
    monkeypatch.setenv("QUEENRIGHT_TOKEN", "exchanged")
    with pytest.raises(ServiceUnreachableError):
        client.fetch(0)
    client.close()

    assert service.received_requests == [
        ("/api/agents/ada/instructions", f"Bearer {TOKEN}"),
        ("/api/agents/ada/instructions", "Bearer exchanged"),
    ]
    assert TOKEN not in str(away.value)
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(vars(client))
