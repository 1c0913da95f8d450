"""Path, query and body parameters that several routes share."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from starlette.convertors import Convertor, register_url_convertor

from queenright.api.terms import list_values
from queenright.instrumentation.identity import clean_name
from queenright.server.routes.pagination import UNSTORABLE_CHARACTERS

Text = Annotated[str, Field(max_length=2000)]
Reason = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _make_printable(name: str) -> str:
    """Remove terminal escape sequences and line breaks from a name."""
    name = _ESCAPE_SEQUENCE.sub("", name)
    printable = " ".join("".join(character if character.isprintable() else " " for character in name).split())
    if not printable:
        raise ValueError("it is blank")
    return printable


By = Annotated[
    str,
    Field(min_length=1, max_length=100, description="Name of the caller, for the audit trail."),
    AfterValidator(_make_printable),
]


class AgentName(Convertor[str]):
    """
    Converts a worker's name in a path to the stored name.

    A client may send the raw name of its telemetry, which may contain a line break.
    """

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the name under which telemetry of this worker is stored."""
        return clean_name(value)

    def to_string(self, value: str) -> str:
        """Return the name for a path."""
        return value


register_url_convertor("agent", AgentName())

OnlyOpenQuery = Annotated[bool, Query(alias="open", description="Only open items.")]
AgentId = Annotated[
    str, Path(description="The worker's name; a slash in it is written `%2F`.", examples=["researcher"])
]
AgentQuery = Annotated[
    str | None,
    Query(description="Only items of this worker.", examples=["researcher"]),
    AfterValidator(lambda name: None if name is None else clean_name(name)),
]
TicketId = Annotated[str, Path(description="The ticket's id.")]
SessionQuery = Annotated[str | None, Query(description="The worker's session; by default the newest.")]


class Body(BaseModel):
    """
    Base of request bodies.

    Rejects unknown fields, values of another type (1 is not true, "60" is not 60), and text that a database
    cannot store.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_unstorable_text(cls, value: Any) -> Any:
        if isinstance(value, str) and UNSTORABLE_CHARACTERS.search(value):
            raise ValueError("NUL characters and lone surrogates are not allowed")
        return value


Incarnation = Annotated[
    str | None,
    Field(max_length=256, description="The worker's incarnation, as the caller saw it; empty if unknown."),
    AfterValidator(lambda seen: seen or None),
]


class ExpectedWorker(Body):
    """The worker as the caller saw it. The action is refused if another worker has replaced it."""

    session_id: Annotated[
        str | None, Field(max_length=256, description="The worker's session, as the caller saw it.")
    ] = None
    incarnation_id: Incarnation = None


def split_words(text: str) -> list[str]:
    """Return the words of a comma-separated list."""
    return [word for part in text.split(",") if (word := part.strip())]


def allow_words(term: Any) -> AfterValidator:
    """Return a validator that allows a comma-separated list of an API term's values."""
    words = list_values(term)

    def check(text: str) -> str:
        if not set(split_words(text)) <= set(words):
            raise ValueError(f"it must be a comma-separated list of {', '.join(words)}")
        return text

    return AfterValidator(check)


def allow_word(term: Any) -> AfterValidator:
    """Return a validator that allows only the values of an API term."""
    words = list_values(term)

    def check(value: str | None) -> str | None:
        if value is not None and value not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return value

    return AfterValidator(check)
