"""
Whether a callback comes from whom it says: HMAC-SHA256 over the very bytes that came. Pure.

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

SLACK_TOLERANCE: Final = 300.0
"""Seconds that a request of Slack may be away from our clock: an older one may be a recording."""

_MOST_SIGNATURES: Final = 16


class InvalidSignatureError(QueenrightError):
    """Raised when a callback is not signed as it should be; says why, and nothing that helps to forge one."""


def check_slack(body: bytes, *, timestamp: str, signature: str, secret: SecretStr, now: float) -> None:
    """
    Check Slack's signature, version 0.

    Args:
        body: As it came.
        timestamp: The header ``X-Slack-Request-Timestamp``, seconds since the epoch.
        signature: The header ``X-Slack-Signature``.
        secret: The app's signing secret.
        now: Seconds since the epoch.

    Raises:
        InvalidSignatureError: It is missing or wrong, or the request is too old or from the future.
    """
    if not (timestamp and signature):
        raise InvalidSignatureError(
            "X-Slack-Signature or X-Slack-Request-Timestamp is missing: Slack sends both"
        )
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise InvalidSignatureError("X-Slack-Request-Timestamp is no time in seconds since 1970")
    if not _equal(f"v0={_digest(f'v0:{timestamp}:'.encode() + body, secret)}", signature):
        raise InvalidSignatureError(
            "X-Slack-Signature is wrong; is alerting.slack_signing_secret_file this app's?"
        )
    # After the signature: only Slack is told how our clock goes.
    away = int(timestamp) - now
    if abs(away) > SLACK_TOLERANCE:
        raise InvalidSignatureError(
            f"the request is {abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} this machine's clock; "
            f"{SLACK_TOLERANCE:.0f} are allowed. Set the clock, if the request is new"
        )


def check_pagerduty(body: bytes, *, signatures: str, secrets: Sequence[SecretStr]) -> None:
    """
    Check that one of PagerDuty's signatures, version 1, was made with one of the secrets.

    Args:
        body: As it came.
        signatures: The header ``X-PagerDuty-Signature``: one for each secret in force, joined by commas.
        secrets: Those of the webhook subscriptions.

    Raises:
        InvalidSignatureError: There is none, or none is right.
    """
    given = [part.strip() for part in signatures.split(",", _MOST_SIGNATURES)[:_MOST_SIGNATURES]]
    given = [part for part in given if part.startswith("v1=")]
    if not given:
        raise InvalidSignatureError("X-PagerDuty-Signature holds no signature of version 1 (v1=…)")
    right = [f"v1={_digest(body, secret)}" for secret in secrets]
    if not any(_equal(one, other) for one in right for other in given):
        raise InvalidSignatureError(
            "X-PagerDuty-Signature is wrong; is the secret of this webhook subscription in one of "
            "alerting.pagerduty_webhook_secret_files?"
        )


def _digest(signed: bytes, secret: SecretStr) -> str:
    return hmac.new(secret.get_secret_value().encode(), signed, hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "surrogateescape"))
