"""Responses of the service, as JSON, as models, or as errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from queenright.client.address import remove_credentials
from queenright.client.errors import RequestRejectedError, UnreachableError

M = TypeVar("M", bound=BaseModel)


def parse_json_object(response: httpx.Response, *, accepted_status: int | None = None) -> dict[str, Any]:
    """
    Return the JSON object of a response; an empty one if it has no body.

    Args:
        response: The response, completely read.
        accepted_status: An error status that is a valid response here.

    Raises:
        RequestRejectedError: The response is an error.
        UnreachableError: The response is not a JSON object, so the server is not Queenright.
    """
    if not response.is_success and response.status_code != accepted_status:
        raise make_refusal_error(response)
    if not response.content:
        return {}
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise make_not_queenright_error(response, "the response is not a JSON object")
    return content


def make_refusal_error(response: httpx.Response) -> RequestRejectedError:
    """Return the error for a response, with the service's own message if there is one."""
    problem: dict[str, Any] = {}
    if response.headers.get("content-type", "").partition(";")[0] == "application/problem+json":
        try:
            content = response.json()
        except ValueError:
            content = None
        problem = content if isinstance(content, dict) else {}
    url = response.request.url
    message = str(
        problem.get("title") or f"{_get_origin(url)} returned {response.status_code} for {url.path}."
    )
    if response.status_code == 404 and not problem:
        message = (
            f"{_get_origin(url)} returned 404 for {url.path}: it is not a Queenright API. "
            "Pass the URL of the API with --url or QUEENRIGHT_URL, by default http://127.0.0.1:8420."
        )
    return RequestRejectedError(message, status=response.status_code, problem=problem)


def parse_model(model: type[M], content: Mapping[str, Any]) -> M:
    """
    Return a response as a model; unknown keys are ignored.

    Raises:
        UnreachableError: The response does not fit the model: not Queenright, or another version of it.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # Imported here: its patterns take longer to compile than a command takes to run.
        from queenright.instrumentation.validation_messages import describe_faults

        faults = describe_faults(error.errors(include_input=False), "the response", limit=1)
        raise UnreachableError(
            f"The response is not a valid {model.__name__}: {faults}. "
            "Check that service and client have the same version."
        ) from None


def make_not_queenright_error(response: httpx.Response, reason: str) -> UnreachableError:
    """Return the error for a server that is not a Queenright service."""
    return UnreachableError(
        f"{_get_origin(response.request.url)} is not Queenright: {reason}. "
        "Start one with `queenright up`, or pass another URL with --url or QUEENRIGHT_URL."
    )


def make_unreachable_error(url: str, error: Exception) -> UnreachableError:
    """Return the error for a request without a complete response."""
    if "WRONG_VERSION_NUMBER" in str(error):
        return UnreachableError(
            f"{remove_credentials(url)} does not use HTTPS. Start the URL with http://, "
            "or use the URL of the proxy that terminates TLS."
        )
    if isinstance(error, httpx.ReadTimeout):
        return UnreachableError(
            f"The service at {remove_credentials(url)} accepted the connection but did not respond in time. "
            "It may be overloaded: try again."
        )
    return UnreachableError(
        f"Queenright does not respond at {remove_credentials(url)} ({type(error).__name__}). "
        "Start one with `queenright up`, or pass another URL with --url or QUEENRIGHT_URL."
    )


def query_params(**params: Any) -> dict[str, Any]:
    """Return query parameters, without those that are None."""
    return {name: _to_param(value) for name, value in params.items() if value is not None}


def parse_json_body(**fields: Any) -> dict[str, Any]:
    """Return a JSON body, without the keys that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def _to_param(value: Any) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _get_origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
