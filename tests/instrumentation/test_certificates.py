from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queenright.instrumentation.certificates import certificates


@pytest.fixture
def untrusted_server(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a server with an untrusted certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def greet() -> None:
        connection, _ = listener.accept()
        with connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server_thread = threading.Thread(target=greet)
        server_thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}"
        server_thread.join()


@pytest.mark.parametrize("certificate_host", ["http://localhost", "https://localhost", "HTTPS://localhost"])
def test_https_request_is_never_unverified(untrusted_server: str, certificate_host: str) -> None:
    with (
        httpx.Client(trust_env=False, verify=certificates(certificate_host)) as client,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.get(untrusted_server)


def test_one_https_address_requires_certificates_for_all() -> None:
    assert certificates("http://a", "https://b") is True
    assert certificates("http://a", "http://https:1") is not True
