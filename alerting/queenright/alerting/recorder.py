"""
A stand-in for Slack and PagerDuty that validates requests as they do and records the messages.

It is an ASGI application: ``/slack/...`` is an incoming webhook, ``/pagerduty/v2/enqueue`` is the Events API
v2, and ``/deadman`` is the dead man's switch for the Watchdog alert.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from queenright.alerting.lifespan import complete_lifespan
from queenright.runtime.events import Clock

_MAX_MESSAGES: Final = 200
_MAX_BODY_BYTES: Final = 1 << 20
# Slack's limits: https://api.slack.com/legacy/interactive-message-field-guide,
# .../reference/messaging/attachments
_MAX_BUTTONS: Final = 5
_MAX_VALUE_LENGTH: Final = 2000
_MAX_FOOTER_LENGTH: Final = 300
# PagerDuty's limits: https://developer.pagerduty.com/docs/events-api-v2/overview/
_MAX_EVENT_BYTES: Final = 512_000
_MAX_DEDUP_KEY_LENGTH: Final = 255
_ACTIONS: Final = ("trigger", "acknowledge", "resolve")
_SEVERITIES: Final = ("critical", "error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMessage:
    """
    A received message. ``time`` is in seconds since the epoch; ``status`` is ``firing`` or ``resolved``.
    """

    time: float
    channel: str
    status: str
    title: str
    text: str
    path: str
    body: dict[str, Any] = field(repr=False)


class _RejectedError(Exception):
    """Raised for a body that the real service would reject."""


class Recorder:
    """The ASGI application; see the module's docstring."""

    def __init__(
        self, on_message: Callable[[RecordedMessage], None] | None = None, *, clock: Clock = time.time
    ) -> None:
        self.messages: deque[RecordedMessage] = deque(maxlen=_MAX_MESSAGES)
        """The latest messages, oldest first."""
        self.count = 0
        """Number of received messages, of which only the latest are kept."""
        self.rejections: deque[str] = deque(maxlen=_MAX_MESSAGES)
        """The latest rejected requests: their paths and the reasons, oldest first."""
        self._on_message = on_message
        self._clock = clock

    def __repr__(self) -> str:
        return f"Recorder(received={len(self.messages)})"

    def after(self, count: int) -> list[RecordedMessage]:
        """Return the kept messages after the first ``count``, oldest first."""
        new_count = min(self.count - count, len(self.messages))
        return list(self.messages)[len(self.messages) - new_count :]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await complete_lifespan(receive, send)
        elif scope["type"] == "http":
            status, media_type, answer = self._handle_request(scope, await _read_body(receive))
            headers = [(b"content-type", media_type), (b"content-length", str(len(answer)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": answer})

    def _handle_request(self, scope: Scope, raw: bytes | None) -> tuple[int, bytes, bytes]:
        path: str = scope["path"]
        if scope["method"] != "POST":
            return 405, b"text/plain", b"method not allowed"
        if raw is None:
            return 413, b"text/plain", b"too large"
        if path.startswith("/deadman"):
            return 200, b"text/plain", b"ok"
        try:
            body = _parse_json_object(raw)
            if path.startswith("/slack/"):
                self._record_message(path, body, _read_slack(body), "slack")
                return 200, b"text/plain", b"ok"
            if path == "/pagerduty/v2/enqueue":
                self._record_message(path, body, _read_pagerduty(body), "pagerduty")
                return 202, b"application/json", _render_enqueued(body)
        except _RejectedError as error:
            self.rejections.append(f"{path}: {error}")
            return 400, b"text/plain", str(error).encode()
        return 404, b"text/plain", b"no_team"

    def _record_message(
        self, path: str, body: dict[str, Any], read: tuple[str, str, str], channel: str
    ) -> None:
        status, title, text = read
        message = RecordedMessage(
            time=self._clock(), channel=channel, status=status, title=title, text=text, path=path, body=body
        )
        self.messages.append(message)
        self.count += 1
        if self._on_message is not None:
            self._on_message(message)


def _parse_json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        raise _RejectedError("invalid_payload") from None
    if not isinstance(body, dict):
        raise _RejectedError("invalid_payload")
    return body


def _read_slack(body: dict[str, Any]) -> tuple[str, str, str]:
    if not any(body.get(key) for key in ("text", "attachments", "blocks")):
        raise _RejectedError("no_text")
    attachments = body.get("attachments") or []
    if not isinstance(attachments, list) or not all(isinstance(item, dict) for item in attachments):
        raise _RejectedError("invalid_attachments")
    if len(attachments) > 100:
        raise _RejectedError("too_many_attachments")
    for attachment in attachments:
        _check_attachment(attachment)
    first = attachments[0] if attachments else {}
    status = "resolved" if first.get("color") == "good" else "firing"
    title = first.get("title") or first.get("fallback") or body.get("text") or ""
    return status, str(title), str(first.get("text") or "")


def _check_attachment(attachment: dict[str, Any]) -> None:
    """Reject an attachment that Slack would silently truncate or drop."""
    actions = attachment.get("actions") or []
    if len(actions) > _MAX_BUTTONS:
        raise _RejectedError(f"{len(actions)} actions; at most {_MAX_BUTTONS} are shown")
    for action in actions:
        has_url = str(action.get("url") or "").startswith(("http://", "https://"))
        if not action.get("text") or not (has_url or (action.get("name") and attachment.get("callback_id"))):
            raise _RejectedError(f"action {action.get('text')!r} has no text, or neither a url nor a name")
        if len(str(action.get("value") or "")) > _MAX_VALUE_LENGTH:
            raise _RejectedError(
                f"the value of action {action['text']!r} is longer than {_MAX_VALUE_LENGTH} characters"
            )
    if len(str(attachment.get("footer") or "")) > _MAX_FOOTER_LENGTH:
        raise _RejectedError(f"the footer is longer than {_MAX_FOOTER_LENGTH} characters")


def _read_pagerduty(body: dict[str, Any]) -> tuple[str, str, str]:
    key = body.get("routing_key")
    if not isinstance(key, str) or len(key) != 32:
        raise _RejectedError("'routing_key' must be 32 characters long")
    if len(json.dumps(body)) > _MAX_EVENT_BYTES:
        raise _RejectedError(f"the event is larger than {_MAX_EVENT_BYTES} bytes")
    if len(str(body.get("dedup_key") or "")) > _MAX_DEDUP_KEY_LENGTH:
        raise _RejectedError(f"'dedup_key' is longer than {_MAX_DEDUP_KEY_LENGTH} characters")
    for link in body.get("links") or []:
        if not str(link.get("href") or "").startswith(("http://", "https://")):
            raise _RejectedError("'links' needs an address in every 'href'")
    action = body.get("event_action")
    if action not in _ACTIONS:
        raise _RejectedError(f"'event_action' must be one of {', '.join(_ACTIONS)}")
    if action != "trigger":
        if not body.get("dedup_key"):
            raise _RejectedError(f"'dedup_key' is needed to {action}")
        summary = (body.get("payload") or {}).get("summary", "")
        return ("resolved" if action == "resolve" else "firing"), str(summary), ""
    payload = body.get("payload")
    if not isinstance(payload, dict):
        raise _RejectedError("'payload' is missing")
    for name in ("summary", "source", "severity"):
        if not isinstance(payload.get(name), str) or not payload[name]:
            raise _RejectedError(f"'payload.{name}' is missing or blank")
    if len(payload["summary"]) > 1024:
        raise _RejectedError("'payload.summary' is longer than 1024 characters")
    if payload["severity"] not in _SEVERITIES:
        raise _RejectedError(f"'payload.severity' must be one of {', '.join(_SEVERITIES)}")
    details = payload.get("custom_details") or {}
    return "firing", payload["summary"], str(details.get("analysis", "")).strip()


def _render_enqueued(body: dict[str, Any]) -> bytes:
    answer = {"status": "success", "message": "Event processed", "dedup_key": body.get("dedup_key", "")}
    return json.dumps(answer).encode()


async def _read_body(receive: Receive) -> bytes | None:
    """Return the request's body; None if it is larger than ``_MAX_BODY_BYTES``."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        chunk: bytes = message.get("body", b"")
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return body
