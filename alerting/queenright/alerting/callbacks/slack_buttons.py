"""
Parse button clicks in Slack, and build and post the replies.

Alertmanager's messages have attachment buttons (``interactive_message``). Messages that you send yourself may
have block buttons (``block_actions``).
https://docs.slack.dev/reference/interaction-payloads/block_actions-payload,
https://api.slack.com/legacy/interactive-message-field-guide
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queenright.alerting.callbacks.display_name import display_name
from queenright.instrumentation.validation_messages import describe_faults

_log = logging.getLogger(__name__)

ACKNOWLEDGE: Final = "acknowledge"
MAX_TICKETS: Final = 50
"""Maximum number of tickets per button. Slack limits a button's value to 2,000 characters."""

RESPONSE_BASE_URL: Final = "https://hooks.slack.com/"
"""Base URL of Slack's response URLs."""

_RESPONSE_TIMEOUT_SECONDS: Final = 5.0


class InvalidInteractionError(ValueError):
    """Raised for a body that is not a valid Slack interaction. The message names the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """A button click. ``by`` is safe to display. ``tickets`` are the ticket ids in the button's value."""

    action: str
    by: str
    tickets: tuple[str, ...]
    reply_url: str
    """Slack URL to post the reply to; "" if Slack displays the HTTP response."""


class _PayloadModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _User(_PayloadModel):
    id: Annotated[str, Field(max_length=200)] = ""
    name: Annotated[str, Field(max_length=20_000)] = ""
    username: Annotated[str, Field(max_length=20_000)] = ""


class _Action(_PayloadModel):
    name: Annotated[str, Field(max_length=300)] = ""
    action_id: Annotated[str, Field(max_length=300)] = ""
    value: Annotated[str, Field(max_length=4000)] = ""


class _Payload(_PayloadModel):
    type: Literal["interactive_message", "block_actions"]
    user: _User
    actions: Annotated[list[_Action], Field(min_length=1, max_length=25)]
    response_url: Annotated[str, Field(max_length=2000)] = ""


def read_click(body: bytes) -> Click:
    """
    Parse the form that Slack posts. Its field ``payload`` is JSON.

    Raises:
        InvalidInteractionError: The body is not such a form, its payload is not JSON, or is not a button
            click.
    """
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=20)
    except ValueError:
        raise InvalidInteractionError("the body is not a form in UTF-8") from None
    payload = fields.get("payload", [])
    if len(payload) != 1:
        raise InvalidInteractionError("the form must have one field `payload`")
    try:
        parsed_payload = _Payload.model_validate_json(payload[0])
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise InvalidInteractionError(
            describe_faults([{**first, "loc": ("payload", *first["loc"])}])
        ) from None
    action = parsed_payload.actions[0]
    ticket_ids = dict.fromkeys(part.strip()[:100] for part in action.value.split(","))
    return Click(
        action=action.name or action.action_id,
        by=display_name(
            parsed_payload.user.username or parsed_payload.user.name,
            parsed_payload.user.id,
            fallback="somebody in Slack",
        ),
        tickets=tuple(id_ for id_ in ticket_ids if id_)[:MAX_TICKETS],
        reply_url=parsed_payload.response_url if _needs_posted_reply(parsed_payload) else "",
    )


def _needs_posted_reply(payload: _Payload) -> bool:
    # Slack ignores the HTTP response to a click on a block button. Replies are posted only to Slack's host.
    return payload.type == "block_actions" and payload.response_url.startswith(RESPONSE_BASE_URL)


def build_reply(text: str, *, to_all: bool) -> dict[str, Any]:
    """
    Build the reply that Slack displays below the message.

    Args:
        to_all: Whether everyone in the channel sees the reply, or only the person who clicked.
    """
    return {
        "response_type": "in_channel" if to_all else "ephemeral",
        "replace_original": False,
        "text": escape_markup(text),
    }


async def post_reply(url: str, message: dict[str, Any]) -> None:
    """Post a reply to Slack's response URL. A failure is logged without the URL."""
    import httpx

    try:
        async with (
            httpx.AsyncClient(timeout=_RESPONSE_TIMEOUT_SECONDS) as client,
            client.stream("POST", url, json=message) as response,  # the body is not read
        ):
            response.raise_for_status()
    except httpx.HTTPError as error:
        _log.warning("Cannot post the reply to a button click to Slack (%s)", type(error).__name__)


def escape_markup(text: str) -> str:
    """Escape a text so that Slack renders no link, mention or markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
