"""What is posted to others is signed with its time: what was changed, or kept and sent again, can be told."""

from __future__ import annotations

import hashlib
import hmac

from pydantic import SecretStr

from queenright.server.webhooks.post import SIGNATURE, TIMESTAMP, signature_headers

SECRET = SecretStr("honey")
BODY = b'{"escalation_id": "one"}'
TOLERANCE = 300


def takes(headers: dict[str, str], body: bytes, now: float) -> bool:
    """What the documents tell a receiver to do."""
    timestamp = headers[TIMESTAMP]
    mac = hmac.new(b"honey", timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={mac}", headers[SIGNATURE]) and abs(now - int(timestamp)) <= TOLERANCE


def test_changed_or_replayed_post_is_detected() -> None:
    headers = signature_headers(BODY, SECRET, 1_000.9)

    assert takes(headers, BODY, 1_010)
    assert not takes(headers, BODY.replace(b"one", b"two"), 1_010)
    assert not takes(headers, BODY, 1_000 + TOLERANCE + 1)
    assert not takes(headers | {TIMESTAMP: "2000"}, BODY, 2_000)
    assert "honey" not in str(headers)
