"""Errors as RFC 9457 problem details."""

from __future__ import annotations

from typing import Final

from fastapi.responses import JSONResponse

from queenright.api.problem import Problem
from queenright.instrumentation.redaction import redact

MAX_TEXT_LENGTH: Final = 4000


def make_problem_response(status: int, title: str, *, reason: str = "", field: str = "") -> JSONResponse:
    """
    Return an error response. Secrets are masked, because a title may repeat a value of the request.

    Args:
        status: The HTTP status.
        title: What is wrong, the value, and what to do.
        reason: The reason why an action was refused, without the rest of the title.
        field: The invalid field of an agent's input.
    """
    return render_problem(Problem(type="about:blank", title=title, status=status, reason=reason, field=field))


def render_problem(body: Problem) -> JSONResponse:
    """Return a problem as a response, with secrets masked."""
    texts = {name: redact(getattr(body, name), MAX_TEXT_LENGTH) for name in ("title", "reason", "field")}
    return JSONResponse(
        body.model_copy(update=texts).model_dump(exclude_defaults=True),
        status_code=body.status,
        media_type="application/problem+json",
    )
