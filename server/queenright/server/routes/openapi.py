"""
The OpenAPI document: what every route says of itself, and what is the same for all of them.

A route gives ``**says(...)`` to its decorator: by what name it is called, what it answers, and what it may
refuse. What the layers before the routes may answer (the gate, who may do what, the body's checks) is put in
here, once, for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from queenright.api.problem import Problem
from queenright.api.wire import Wire, examples_of
from queenright.server.middleware.etags import is_polled

Describe = Callable[[dict[str, Any]], None]
"""Adds something to the OpenAPI document, in place."""

_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch"})

ERRORS: Final[Mapping[int, str]] = {
    400: "The request cannot be meant: a cursor of another list, a NUL character, a body that is none.",
    401: "A token is needed, or the one that came is wrong, revoked, or too old.",
    403: "The token's role may not do this, or another site's page asks.",
    404: "There is none of this name or id.",
    409: "Refused as things stand; the words say why, and the way out.",
    413: "The body is longer than is allowed.",
    415: "The body is not said to be JSON: send `Content-Type: application/json`.",
    422: "A value is not allowed; it is named with what is.",
    429: "Too many requests; `Retry-After` says when to ask again.",
    502: "Others, such as Alertmanager, did not answer.",
    503: "Nothing was done: the store cannot be written or read, or the service is stopping.",
}
"""By status, when a route answers with a problem."""

_ANYWHERE: Final = (400, 401, 403, 413, 429, 503)
_HEADERS: Final = {
    401: ("WWW-Authenticate", "Always `Bearer`.", "string"),
    429: ("Retry-After", "Seconds until it is worth asking again.", "integer"),
}
_DEFAULT_DESCRIPTION: Final = "Successful Response"
"""FastAPI's."""
_OPEN: Final = ("/healthz",)
"""Routes that nobody needs a token for, and that look nothing up."""

TAGS: Final[Mapping[str, str]] = {
    "health": "How workers are: states, signals with their evidence, history, heartbeats.",
    "interventions": "What is done to workers, and what a person is asked before it is done.",
    "workers": "For workers in other processes: they fetch what they are told.",
    "circuit breakers": "What stands before calls that fail.",
    "recoveries": "Bringing tasks back.",
    "tickets": "Escalation tickets: what people hear of, and what they say about it.",
    "judge": "What the judge did.",
    "silences": "Of which tickets nobody hears for a while.",
    "the way back": "For Alertmanager, Slack and PagerDuty: what they and people say to us.",
    "loaded agents": "Agents that run inside the service: loading, running, talking with them.",
    "events": "What happens, as it happens.",
    "service": "The service itself: its state, its settings, its log.",
}
"""Every tag, in the order of the document, and what it is about."""

_ABOUT: Final = """\
Watches agents, tells people when one is in trouble, and does something about it.

Bodies are JSON in `snake_case`, times are seconds since the epoch unless a field says otherwise, and a name
with a slash in it is written `team%2Fresearcher`. Lists come in pages: `next` of one page is `?cursor=` of
the next. An error is `application/problem+json` and says what is wrong and the way out.
"""


def operation(
    operation_id: str,
    model: Any = None,
    *,
    status: int = 200,
    errors: Mapping[int, str] | tuple[int, ...] = (),
    links: Mapping[str, Mapping[str, Any]] | None = None,
    description: str = "",
    also: Mapping[int, tuple[Any, str]] | None = None,
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Return the keyword arguments of a route's decorator that document the operation.

    Args:
        operation_id: The operation's id and, with spaces, its summary: ``list_agents``.
        model: The model of the response, for a route whose return annotation does not name it.
        status: The status of success.
        errors: The problems that the route itself responds with, by status; the descriptions in ``ERRORS``
            apply unless it brings its own.
        links: Operations that take a value of this response, by name; see ``to``.
        description: Describes the response; by default the first line of the model's docstring.
        also: Other responses that are not problems, by status: model and description.
        content: The content of a response that is not JSON, by media type.
    """
    success: dict[str, Any] = {}
    if content is not None:
        success["content"] = dict(content)
    if links:
        success["links"] = {name: dict(link) for name, link in links.items()}
    descriptions = errors if isinstance(errors, Mapping) else {code: ERRORS[code] for code in errors}
    found = {
        "operation_id": operation_id,
        "summary": operation_id.replace("_", " ").capitalize(),
        "status_code": status,
        "responses": {status: success}
        | {code: _problem(code, words) for code, words in descriptions.items()}
        | {code: {"model": other, "description": words} for code, (other, words) in (also or {}).items()},
    }
    if model is not None:
        found["response_model"] = model
    if words := description or _first_line(getattr(model, "__doc__", None)):
        found["response_description"] = words
    return found


def to(operation: str, **parameters: str) -> dict[str, Any]:
    """
    Return a link to another operation.

    Args:
        operation: Its id.
        parameters: From where in the answer each is taken, as ``tickets/0/ticket_id``; ``path.agent_id`` and
            ``query.seconds`` are those of the request, ``body.task_id`` is in its body.
    """
    return {
        "operationId": operation,
        "parameters": {name: _from(where) for name, where in parameters.items()},
    }


def takes(schema: Mapping[str, Any], *, media: str = "application/json", what: str) -> dict[str, Any]:
    """Return ``openapi_extra`` of a route that reads its body itself; ``schema`` has an example."""
    content = {media: {"schema": dict(schema)}}
    return {"requestBody": {"required": True, "description": what, "content": content}}


def describe(app: FastAPI, *more: Describe) -> None:
    """Let the app's OpenAPI document be complete; ``more`` is called in order, last."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title="Queenright",
                version=_version(),
                summary="Health monitoring for agents",
                description=_ABOUT,
                routes=app.routes,
            )
            _complete(schema)
            for one in more:
                one(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(schema: dict[str, Any]) -> None:
    """Add what all operations have in common: problems, tags, and the description of the response."""
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    components.setdefault("Problem", Problem.model_json_schema(mode="serialization"))
    for model in _kinds_of(Wire):
        # FastAPI drops the nulls of the examples.
        if model.__name__ in components:
            components[model.__name__]["examples"] = examples_of(model)
    used: set[str] = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                used.update(operation.get("tags", ()))
                if method == "get" and is_polled(path):
                    _tagged(operation)
                _describe_success(operation, components)
                _refusals(path, operation)
    schema["tags"] = [
        {"name": name, "description": TAGS.get(name, "")} for name in (*TAGS, *sorted(used - TAGS.keys()))
    ]


def _describe_success(operation: dict[str, Any], components: Mapping[str, Any]) -> None:
    """Describe a response without a description of its own by the first line of its model's."""
    for response in operation.get("responses", {}).values():
        if response["description"] == _DEFAULT_DESCRIPTION:
            model = response["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
            response["description"] = _first_line(components[model].get("description")) or "Done."


def _kinds_of(model: type[Wire]) -> Iterator[type[Wire]]:
    for kind in model.__subclasses__():
        yield kind
        yield from _kinds_of(kind)


def _tagged(operation: dict[str, Any]) -> None:
    """Say of what is polled that who has it already is not answered it again."""
    operation.setdefault("parameters", []).append(
        {
            "name": "If-None-Match",
            "in": "header",
            "required": False,
            "description": "The `ETag` of the answer that you have.",
            "schema": {"type": "string"},
            "examples": {"a tag": {"value": 'W/"5f2c9a0d8e7b4c1a3f6e9d2b"'}},
        }
    )
    tag = {"ETag": {"description": "What this answer is known by.", "schema": {"type": "string"}}}
    responses = operation.setdefault("responses", {})
    responses["304"] = {"description": "It is as you have it.", "headers": dict(tag)}
    responses["200"].setdefault("headers", {}).update(tag)


def _refusals(path: str, operation: dict[str, Any]) -> None:
    responses = operation.setdefault("responses", {})
    asks = "parameters" in operation or "requestBody" in operation
    if _is_fastapis(responses.get("422")):
        del responses["422"]
    codes = [code for code in _ANYWHERE if path not in _OPEN or code not in (401, 503)]
    if "application/json" in operation.get("requestBody", {}).get("content", {}):
        codes.append(415)
    for code in (*codes, *((422,) if asks else ())):
        responses.setdefault(str(code), _problem(code, ERRORS[code]))
    operation["responses"] = dict(sorted(responses.items()))


def _is_fastapis(response: Any) -> bool:
    return response is not None and "application/json" in response.get("content", {})


def _problem(status: int, why: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    found = {"description": why, "content": {"application/problem+json": {"schema": reference}}}
    if status in _HEADERS:
        name, words, kind = _HEADERS[status]
        found["headers"] = {name: {"description": words, "schema": {"type": kind}}}
    return found


def _from(where: str) -> str:
    if where.startswith(("path.", "query.")):
        return f"$request.{where}"
    if where.startswith("body."):
        return f"$request.body#/{where.removeprefix('body.')}"
    return f"$response.body#/{where}"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _version() -> str:
    try:
        return version("queenright")
    except PackageNotFoundError:
        return "0"
