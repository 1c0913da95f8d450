"""What a service answered, read: values, or an error in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from queenright.client.errors import RequestRefusedError, UnreachableError
from queenright.instrumentation.faults import fault_message

M = TypeVar("M", bound=BaseModel)


def values(response: httpx.Response, *, also: int | None = None) -> dict[str, Any]:
    """
    Return the JSON object of an answer; an empty one of an answer without a body.

    Args:
        response: The answer, read.
        also: A status that is no error, either.

    Raises:
        RequestRefusedError: It is an error.
        UnreachableError: It is no JSON object: whoever answered is no Queenright.
    """
    if not response.is_success and response.status_code != also:
        raise refused(response)
    if not response.content:
        return {}
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise no_queenright(response, "it is no JSON object")
    return found


def refused(response: httpx.Response) -> RequestRefusedError:
    """Return what says no, in the service's own words if it has some."""
    problem: dict[str, Any] = {}
    if response.headers.get("content-type", "").partition(";")[0] == "application/problem+json":
        try:
            found = response.json()
        except ValueError:
            found = None
        problem = found if isinstance(found, dict) else {}
    url = response.request.url
    words = str(problem.get("title") or f"{_origin(url)} answered {response.status_code} for {url.path}.")
    return RequestRefusedError(words, status=response.status_code, problem=problem)


def parsed(model: type[M], found: Mapping[str, Any]) -> M:
    """
    Return an answer as its model; what the model does not know is left out.

    Raises:
        UnreachableError: It does not fit: the service is of another version, or none.
    """
    try:
        return model.model_validate(found)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "it"
        raise UnreachableError(
            f"The answer is no {model.__name__}: {where}: {fault_message(fault)}. "
            "Are the service and this client of one version?"
        ) from None


def no_queenright(response: httpx.Response, why: str) -> UnreachableError:
    """Return that whoever answered is no Queenright."""
    return UnreachableError(
        f"No Queenright answers at {_origin(response.request.url)}: {why}. "
        "Start one with `queenright up`, or name another with --url or QUEENRIGHT_URL."
    )


def unanswered(url: str, error: Exception) -> UnreachableError:
    """Return that nobody answered, or nobody to the end."""
    return UnreachableError(
        f"No Queenright answers at {url} ({type(error).__name__}). "
        "Start one with `queenright up`, or name another with --url or QUEENRIGHT_URL."
    )


def query(**given: Any) -> dict[str, Any]:
    """Return what is asked for; what is None is left out, and a yes or no is ``true`` or ``false``."""
    return {name: _word(value) for name, value in given.items() if value is not None}


def body(**given: Any) -> dict[str, Any]:
    """Return what is sent; what is None is left out."""
    return {name: value for name, value in given.items() if value is not None}


def _word(value: Any) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
