"""What routes take in their paths, queries and bodies, and how an error is answered."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from starlette.convertors import Convertor, register_url_convertor

from queenright.api.wire import Words
from queenright.instrumentation.identity import clean_name
from queenright.server.routes.pagination import NO_TEXT
from queenright.server.routes.problems import problem

Text = Annotated[str, Field(max_length=2000)]
Reason = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _printable(name: str) -> str:
    """Return a name without what would move the cursor, or break the line, where it is shown."""
    name = _ESCAPE.sub("", name)
    kept = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    if not kept:
        raise ValueError("it is blank")
    return kept


By = Annotated[
    str,
    Field(min_length=1, max_length=100, description="Who asks; it is kept."),
    AfterValidator(_printable),
]


class AgentName(Convertor[str]):
    """
    A worker's name in a path, as the service knows it.

    Whoever asks may use the raw one, with a line break in it, say, that its telemetry carries.
    """

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the name that telemetry of this worker is kept under."""
        return clean_name(value)

    def to_string(self, value: str) -> str:
        """Return it for a path."""
        return value


register_url_convertor("agent", AgentName())

Open = Annotated[bool, Query(alias="open", description="Only those that are not over.")]
AgentId = Annotated[
    str, Path(description="The worker's name; a slash in it is written `%2F`.", examples=["researcher"])
]
OfAgent = Annotated[
    str | None,
    Query(description="Only of the worker of this name.", examples=["researcher"]),
    AfterValidator(lambda name: None if name is None else clean_name(name)),
]
OfSession = Annotated[str | None, Query(description="Which of its sessions; without, the newest.")]


class Body(BaseModel):
    """
    What is asked: refused are a field that is not known, a value of another type (1 is not true, "60" is not
    60), and text that no database keeps.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_kept(cls, value: Any) -> Any:
        if isinstance(value, str) and NO_TEXT.search(value):
            raise ValueError("it must have no NUL character and no half of a surrogate pair in it")
        return value


def one_of(term: Any) -> AfterValidator:
    """Return what refuses any word but a term's: who asks for it would find nothing, and not know why."""
    [words] = (one.words for one in get_args(term) if isinstance(one, Words))

    def known(value: str | None) -> str | None:
        if value is not None and value not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return value

    return AfterValidator(known)


def answering(status: int) -> Any:
    """Return what answers an error with a status code and its words."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return problem(status, str(error))

    return handle
