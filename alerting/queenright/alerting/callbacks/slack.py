"""
A click in Slack: what was clicked by whom, and what is answered.

Alertmanager's messages have buttons of attachments (``interactive_message``); messages of your own may have
those of blocks (``block_actions``). https://docs.slack.dev/reference/interaction-payloads/block_actions-payload,
https://api.slack.com/legacy/interactive-message-field-guide
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queenright.alerting.callbacks.names import person
from queenright.instrumentation.faults import fault_message

_log = logging.getLogger(__name__)

ACKNOWLEDGE: Final = "acknowledge"
MOST_TICKETS: Final = 50
"""Tickets of one button: Slack keeps 2,000 characters of its value."""


RESPONSES: Final = "https://hooks.slack.com/"
"""Where Slack takes answers."""

_RESPONSE_TIMEOUT: Final = 5.0


class InvalidInteractionError(ValueError):
    """Raised when a body is no click on a button that we know; says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """Somebody's click. ``by`` can be shown; ``tickets`` are ids as the button had them."""

    action: str
    by: str
    tickets: tuple[str, ...]
    also_to: str
    """Where the answer must be posted to be seen, at Slack; empty if Slack shows what is answered."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _User(_Read):
    id: Annotated[str, Field(max_length=200)] = ""
    name: Annotated[str, Field(max_length=20_000)] = ""
    username: Annotated[str, Field(max_length=20_000)] = ""


class _Action(_Read):
    name: Annotated[str, Field(max_length=300)] = ""
    action_id: Annotated[str, Field(max_length=300)] = ""
    value: Annotated[str, Field(max_length=4000)] = ""


class _Payload(_Read):
    type: Literal["interactive_message", "block_actions"]
    user: _User
    actions: Annotated[list[_Action], Field(min_length=1, max_length=25)]
    response_url: Annotated[str, Field(max_length=2000)] = ""


def read_click(body: bytes) -> Click:
    """
    Read the form that Slack posts: ``payload`` holds JSON.

    Raises:
        InvalidInteractionError: It is no such form, no JSON, or no click.
    """
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=20)
    except ValueError:
        raise InvalidInteractionError("the body is no form in UTF-8") from None
    payload = fields.get("payload", [])
    if len(payload) != 1:
        raise InvalidInteractionError("the form must have one field `payload`")
    try:
        read = _Payload.model_validate_json(payload[0])
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(["payload", *(str(part) for part in fault["loc"])])
        raise InvalidInteractionError(f"{where}: {fault_message(fault)[:200]}") from None
    action = read.actions[0]
    ids = dict.fromkeys(part.strip()[:100] for part in action.value.split(","))
    return Click(
        action=action.name or action.action_id,
        by=person(read.user.username or read.user.name, read.user.id, otherwise="somebody in Slack"),
        tickets=tuple(one for one in ids if one)[:MOST_TICKETS],
        also_to=read.response_url if _shown_there(read) else "",
    )


def _shown_there(read: _Payload) -> bool:
    # Slack shows nothing of what a button of a block is answered. We post to nobody else, whoever signed.
    return read.type == "block_actions" and read.response_url.startswith(RESPONSES)


def reply(words: str, *, to_all: bool) -> dict[str, Any]:
    """
    Return what Slack shows below the message, which stays.

    Args:
        words: What is said.
        to_all: Everybody in the channel reads it; else only who clicked.
    """
    return {
        "response_type": "in_channel" if to_all else "ephemeral",
        "replace_original": False,
        "text": escaped(words),
    }


async def post_reply(url: str, said: dict[str, Any]) -> None:
    """Post an answer to where Slack shows it; that it cannot be is logged, without the address."""
    import httpx

    try:
        async with (
            httpx.AsyncClient(timeout=_RESPONSE_TIMEOUT) as client,
            client.stream("POST", url, json=said) as response,  # what it says is not read
        ):
            response.raise_for_status()
    except httpx.HTTPError as error:
        _log.warning("an answer to a click could not be shown in Slack (%s)", type(error).__name__)


def escaped(text: str) -> str:
    """Return a text in which nothing is a link, a mention or markup to Slack."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
