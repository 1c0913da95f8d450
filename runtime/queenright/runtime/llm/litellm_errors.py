"""Maps litellm's errors to model errors: whether and when to retry, with keys masked."""

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

_MAX_MESSAGE_LENGTH: Final = 300

_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 that a retry may overcome: timeout, conflict, too early, too many requests."""

# litellm puts its exception names before the provider's message, and further text behind it.
_PREFIXES = re.compile(r"^(?:(?:litellm\.)?[A-Za-z]+ ?(?:Error|Exception)(?: - |: *)|litellm\.[A-Za-z]+: *)+")
_SUFFIX = re.compile(r"\.? (?:Original exception|LiteLLM Retried): ")
# litellm reports a missing key with status 500 for some providers.
_MISSING_KEY = re.compile(r"(?i)missing (?:\w+ )?(?:credentials|api key)")


def to_model_error(model: str, error: Exception, *, now: float) -> ModelError:
    """
    Convert an error of litellm to a ``ModelError``.

    Rate limits (429), timeouts (408), 5xx and errors without a status (refused connections, interrupted
    streams) are transient. Missing or rejected keys, unknown models, rejected content and conversations
    that are too long are permanent.

    Args:
        error: The exception raised by litellm.
        now: Seconds since the epoch, to interpret a ``Retry-After`` date.
    """
    kind = type(getattr(error, "original_exception", None) or error).__name__
    text, status, headers = _get_provider_message(error), get_status(error), _get_headers(error)
    message = f"{model}: {kind}: {text}"
    is_key_missing = not headers and _MISSING_KEY.search(text)
    if not is_key_missing and (status is None or status in _TRANSIENT_STATUSES or status >= 500):
        return TransientModelError(message, retry_after=retry_after(headers, now=now))
    return ModelError(message)


def get_status(error: Exception) -> int | None:
    """Return the HTTP status of ``error``, if it has one."""
    status = getattr(error, "status_code", None)
    return int(status) if isinstance(status, int | str) and str(status).isdecimal() else None


def rejects_streaming(error: Exception) -> bool:
    """Return whether the provider rejects streaming."""
    return get_status(error) in (400, 422, 501) and re.search(r"(?i)\bstream", str(error)) is not None


def rejects_tool_choice(error: Exception) -> bool:
    """Return whether the provider rejects ``tool_choice``."""
    return get_status(error) in (400, 422, 501) and re.search(r"(?i)tool[_ ]?choice", str(error)) is not None


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds of ``Retry-After``, in seconds or as a date; None if there is no usable value."""
    milliseconds = _parse_seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _parse_seconds(value)
    if seconds is not None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _parse_seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _get_headers(error: Exception) -> dict[str, str]:
    """Return the response headers; litellm keeps them in different places for different providers."""
    candidates: list[Any] = [
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "headers", None),
    ]
    original_error = getattr(error, "original_exception", None)
    result = (
        _get_headers(original_error)
        if isinstance(original_error, Exception) and original_error is not error
        else {}
    )
    for headers in reversed(candidates):
        if isinstance(headers, Mapping):
            result |= {str(name).lower(): str(value) for name, value in headers.items()}
    return result


def _get_provider_message(error: Exception) -> str:
    """Return the provider's message in one line, with keys masked."""
    # A key without a recognizable format is masked by its value in the environment.
    hide_named(os.environ)
    text = str(error).strip()
    line = redact(text, len(text)).partition("\n")[0]
    message = _SUFFIX.split(line)[0]
    return (_PREFIXES.sub("", message) or message)[:_MAX_MESSAGE_LENGTH]
