"""The signature of a webhook also covers its time, so that receivers detect changed and replayed requests."""

from __future__ import annotations

import hashlib
import hmac

from pydantic import SecretStr

from queenright.server.webhooks.post import SIGNATURE, TIMESTAMP, sign_body

SECRET = SecretStr("honey")
BODY = b'{"escalation_id": "one"}'
TOLERANCE = 300


def is_accepted(headers: dict[str, str], body: bytes, received_at: float) -> bool:
    """Verify a request as documented, and return whether it is valid."""
    timestamp = headers[TIMESTAMP]
    mac = hmac.new(b"honey", timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return (
        hmac.compare_digest(f"sha256={mac}", headers[SIGNATURE])
        and abs(received_at - int(timestamp)) <= TOLERANCE
    )


def test_changed_or_replayed_request_is_detected() -> None:
    headers = sign_body(BODY, SECRET, 1_000.9)

    assert is_accepted(headers, BODY, 1_010)
    assert not is_accepted(headers, BODY.replace(b"one", b"two"), 1_010)
    assert not is_accepted(headers, BODY, 1_000 + TOLERANCE + 1)
    assert not is_accepted(headers | {TIMESTAMP: "2000"}, BODY, 2_000)
    assert "honey" not in str(headers)
