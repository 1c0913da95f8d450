"""What went wrong when litellm was asked: whether asking again may help, when, and without the key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from queenright.instrumentation.redaction import hide_named, redact
from queenright.runtime.llm.model import ModelError, TransientModelError

_LIMIT: Final = 300

_TRANSIENT: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 that a later request need not meet: too late, in conflict, too early, too many."""

# litellm puts the names of its exceptions before what the provider said, and its own again behind it.
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?[A-Za-z]+ ?(?:Error|Exception)(?: - |: *)|litellm\.[A-Za-z]+: *)+")
_SUFFIX = re.compile(r"\.? (?:Original exception|LiteLLM Retried): ")
# Where no key is set, litellm says so with the status 500 for some providers.
_NO_KEY = re.compile(r"(?i)missing (?:\w+ )?(?:credentials|api key)")


def failure(model: str, error: Exception, *, now: float) -> ModelError:
    """
    Return what to raise for ``error``.

    Rate limits (429), time-outs (408), 5xx and everything without a status (refused connections, cut
    streams) are transient. Missing and refused keys, unknown models, refused content and conversations
    that are too long are not: they would be refused again.

    Args:
        model: Who was asked, for the message.
        error: What litellm raised.
        now: Seconds since the epoch, to read a ``Retry-After`` that is a date.
    """
    kind = type(getattr(error, "original_exception", None) or error).__name__
    said, status, headers = _said(error), status_of(error), _headers(error)
    message = f"{model}: {kind}: {said}"
    keyless = not headers and _NO_KEY.search(said)
    if not keyless and (status is None or status in _TRANSIENT or status >= 500):
        return TransientModelError(message, retry_after=retry_after(headers, now=now))
    return ModelError(message)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that ``error`` stands for, if it has one."""
    status = getattr(error, "status_code", None)
    return int(status) if isinstance(status, int | str) and str(status).isdecimal() else None


def refuses_streams(error: Exception) -> bool:
    """Say whether the provider answers, but not in pieces."""
    return status_of(error) in (400, 422, 501) and re.search(r"(?i)\bstream", str(error)) is not None


def refuses_tool_choice(error: Exception) -> bool:
    """Say whether the provider answers, but does not let itself be told to call a tool."""
    return status_of(error) in (400, 422, 501) and re.search(r"(?i)tool[_ ]?choice", str(error)) is not None


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """
    Return how many seconds to wait: ``Retry-After`` in seconds or as a date; None if it says nothing usable.

    Args:
        headers: Of the answer, names in lower case.
        now: Seconds since the epoch.
    """
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    said = headers.get("retry-after", "")
    seconds = _seconds(said)
    if seconds is not None:
        return seconds
    try:
        at = parsedate_to_datetime(said)
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _headers(error: Exception) -> dict[str, str]:
    """Return the answer's headers, wherever litellm left them for this provider."""
    places: list[Any] = [
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "headers", None),
    ]
    inner = getattr(error, "original_exception", None)
    found = _headers(inner) if isinstance(inner, Exception) and inner is not error else {}
    for headers in reversed(places):
        if isinstance(headers, Mapping):
            found |= {str(name).lower(): str(value) for name, value in headers.items()}
    return found


def _said(error: Exception) -> str:
    """Return the provider's words in one line, without a key that it may have repeated."""
    # A key of no usual shape is known by being in the environment.
    hide_named(os.environ)
    text = str(error).strip()
    line = redact(text, len(text)).partition("\n")[0]
    said = _SUFFIX.split(line)[0]
    return (_PREFIXES.sub("", said) or said)[:_LIMIT]
