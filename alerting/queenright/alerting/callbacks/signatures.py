"""
Verify the signatures of callbacks: HMAC-SHA256 of the raw body. Pure.

Slack: https://docs.slack.dev/authentication/verifying-requests-from-slack
PagerDuty: https://github.com/PagerDuty/developer-docs, docs/webhooks/04-Signatures.md
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from pydantic import SecretStr

from queenright.instrumentation.errors import QueenrightError

SLACK_TOLERANCE_SECONDS: Final = 300.0
"""Maximum difference in seconds between Slack's timestamp and the local clock, to prevent replay attacks."""

_MAX_SIGNATURES: Final = 16


class InvalidSignatureError(QueenrightError):
    """Raised for a missing or wrong signature. The message does not help to forge a signature."""


def check_slack(body: bytes, *, timestamp: str, signature: str, secret: SecretStr, now: float) -> None:
    """
    Check Slack's signature, version 0.

    Args:
        timestamp: The header ``X-Slack-Request-Timestamp``, in seconds since the epoch.
        signature: The header ``X-Slack-Signature``.

    Raises:
        InvalidSignatureError: The signature is missing or wrong, or the timestamp is too far from ``now``.
    """
    if not (timestamp and signature):
        raise InvalidSignatureError(
            "X-Slack-Signature or X-Slack-Request-Timestamp is missing; Slack sends both"
        )
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise InvalidSignatureError("X-Slack-Request-Timestamp must be a whole number of seconds since 1970")
    if not _are_equal(f"v0={_digest(f'v0:{timestamp}:'.encode() + body, secret)}", signature):
        raise InvalidSignatureError(
            "X-Slack-Signature is wrong; does alerting.slack_signing_secret_file contain this app's secret?"
        )
    # Checked after the signature, so that only Slack learns how far the local clock is off.
    seconds_ahead = int(timestamp) - now
    if abs(seconds_ahead) > SLACK_TOLERANCE_SECONDS:
        raise InvalidSignatureError(
            f"the request is {abs(seconds_ahead):.0f} s {'ahead of' if seconds_ahead > 0 else 'behind'} this "
            f"machine's clock, but at most {SLACK_TOLERANCE_SECONDS:.0f} s are allowed; synchronize the clock"
        )


def check_pagerduty(body: bytes, *, signatures: str, secrets: Sequence[SecretStr]) -> None:
    """
    Check that one of PagerDuty's signatures, version 1, was made with one of the secrets.

    Args:
        signatures: The header ``X-PagerDuty-Signature``: one signature per active secret, comma-separated.

    Raises:
        InvalidSignatureError: There is no signature of version 1, or none is valid.
    """
    signature_values = [part.strip() for part in signatures.split(",", _MAX_SIGNATURES)[:_MAX_SIGNATURES]]
    signature_values = [part for part in signature_values if part.startswith("v1=")]
    if not signature_values:
        raise InvalidSignatureError("X-PagerDuty-Signature has no signature of version 1 (v1=…)")
    digests = [f"v1={_digest(body, secret)}" for secret in secrets]
    if not any(_are_equal(signature, other) for signature in digests for other in signature_values):
        raise InvalidSignatureError(
            "X-PagerDuty-Signature is wrong; is the secret of this webhook subscription in one of "
            "alerting.pagerduty_webhook_secret_files?"
        )


def _digest(message: bytes, secret: SecretStr) -> str:
    return hmac.new(secret.get_secret_value().encode(), message, hashlib.sha256).hexdigest()


def _are_equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode(), second.encode("utf-8", "surrogateescape"))
