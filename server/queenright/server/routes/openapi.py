"""
The OpenAPI document.

An operation's id is the name of its route's function. The route documents the rest through
``**operation(...)`` in its decorator. This module adds the responses that all operations share: those of the
gate, authentication and body validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from queenright.api.base_model import ApiModel
from queenright.api.examples import make_example
from queenright.api.problem import Problem
from queenright.server.routes.params import Body

SchemaChange = Callable[[dict[str, Any]], None]
"""Changes the OpenAPI document in place."""

_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch"})

ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed, such as a cursor of another list or a NUL character.",
    401: "The token is missing, invalid, revoked or expired.",
    403: "The role of the token does not allow this, or the request comes from a page of another site.",
    404: "There is no item with this name or id.",
    409: "Not possible in the current state; `title` states why, and what to do.",
    413: "The body is too large.",
    415: "The body is not JSON; send `Content-Type: application/json`.",
    422: "A value is not allowed; `title` states it and what is allowed.",
    429: "Too many requests; retry after the seconds in `Retry-After`.",
    502: "An upstream, such as Alertmanager, did not respond.",
    503: "Nothing was done: the store cannot be written or read, or the service is stopping.",
}
"""Descriptions of problem responses by status."""

_COMMON_ERRORS: Final = (400, 401, 403, 413, 429, 503)
_ERROR_HEADERS: Final = {
    401: ("WWW-Authenticate", "Always `Bearer`.", "string"),
    429: ("Retry-After", "Seconds until a retry is worthwhile.", "integer"),
}
_DEFAULT_DESCRIPTION: Final = "Successful Response"
"""The description that FastAPI gives to a response without one."""
_OPEN_PATHS: Final = ("/healthz",)
"""Paths without authentication and without access to the store."""

TAGS: Final[Mapping[str, str]] = {
    "health": "Health of workers: states, signals with evidence, history, heartbeats.",
    "interventions": "Nudges, escalations, terminations, and requests for approval.",
    "workers": "Instructions that workers in other processes fetch.",
    "circuit breakers": "Circuit breakers of tools and model providers.",
    "recoveries": "Recoveries of tasks.",
    "tickets": "Escalation tickets, incidents and notifications.",
    "judge": "Checks of the judge.",
    "silences": "Silences of tickets in Alertmanager.",
    "callbacks": "Callbacks of Alertmanager, Slack and PagerDuty.",
    "loaded agents": "Agents that run inside the service: loading, running, chat.",
    "events": "Streams of events.",
    "service": "Status, settings and event log of the service.",
}
"""Descriptions of the tags, in the order of the document."""

_ABOUT: Final = """\
Monitors the health of AI agents, notifies operators, and intervenes.

Bodies are JSON in `snake_case`. Times are seconds since the epoch unless a field says otherwise. A slash in a
name is written `%2F`, as in `team%2Fresearcher`. Lists are paginated: send `next` of a page as `?cursor=`.
An error is `application/problem+json` and states what is wrong and what to do.
"""


def operation(
    *,
    status: int = 200,
    errors: Mapping[int, str] | tuple[int, ...] = (),
    description: str = "",
    other_responses: Mapping[int, tuple[Any, str]] | None = None,
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Return the keyword arguments of a route's decorator that document the operation.

    Args:
        status: Status code of success.
        errors: The route's own problem responses: descriptions by status, or only the statuses, which
            ``ERRORS`` describes.
        description: Description of the response; by default the first line of the model's docstring.
        other_responses: Responses that are neither success nor problems, by status: model and description.
        content: The content of a response that is not JSON, by media type.
    """
    success: dict[str, Any] = {}
    if content is not None:
        success["content"] = dict(content)
    descriptions = errors if isinstance(errors, Mapping) else {code: ERRORS[code] for code in errors}
    arguments: dict[str, Any] = {
        "status_code": status,
        "responses": {status: success}
        | {code: _make_problem_schema(code, text) for code, text in descriptions.items()}
        | {
            code: {"model": model, "description": text}
            for code, (model, text) in (other_responses or {}).items()
        },
    }
    if description:
        arguments["response_description"] = description
    return arguments


def make_request_body(
    schema: Mapping[str, Any], *, media: str = "application/json", description: str
) -> dict[str, Any]:
    """Return ``openapi_extra`` for a route that parses its own body; ``schema`` contains an example."""
    content = {media: {"schema": dict(schema)}}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def make_body_schema(model: type[BaseModel], example: Any) -> dict[str, Any]:
    """Return the schema of a model for ``make_request_body``: without references, and with an example."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if reference := node.get("$ref"):
            return inline(definitions[reference.rpartition("/")[2]])
        return {key: inline(value) for key, value in node.items()}

    return {**inline(schema), "examples": [example]}


def set_openapi(app: FastAPI, *changes: SchemaChange) -> None:
    """Set the app's OpenAPI document: add the parts that all operations share, then apply ``changes``."""

    def build_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title="Queenright",
                version=_get_version(),
                summary="Health monitoring for agents",
                description=_ABOUT,
                routes=app.routes,
            )
            _add_shared_parts(schema)
            for change in changes:
                change(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = build_document  # type: ignore[method-assign]  # as FastAPI documents it


def _add_shared_parts(schema: dict[str, Any]) -> None:
    """Add the parts that all operations share: problems, tags, and descriptions of responses."""
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for schema_name in ("HTTPValidationError", "ValidationError"):
        components.pop(schema_name, None)
    components.setdefault("Problem", Problem.model_json_schema(mode="serialization"))
    # FastAPI adds these suffixes if a request body and a response have the same name.
    for base, suffix in ((ApiModel, "-Output"), (Body, "-Input")):
        for model in _iter_subclasses(base):
            for name in (model.__name__, f"{model.__name__}{suffix}"):
                if name in components:
                    components[name]["examples"] = [make_example(model)]
    used_names: set[str] = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                used_names.update(operation.get("tags", ()))
                operation["summary"] = operation["operationId"].replace("_", " ").capitalize()
                _describe_success(operation, components)
                _describe_problems(path, operation)
    _add_links(schema)
    schema["tags"] = [
        {"name": name, "description": TAGS.get(name, "")}
        for name in (*TAGS, *sorted(used_names - TAGS.keys()))
    ]


def _add_links(schema: dict[str, Any]) -> None:
    """Link each operation to those with the same tag whose other path parameters are in its response."""
    operations = [
        operation
        for path in schema["paths"].values()
        for method, operation in path.items()
        if method in _METHODS
    ]
    for operation in operations:
        path_links = {name: f"$request.path.{name}" for name in _list_path_parameters(operation)}
        all_links = path_links | dict(_iter_values(operation, schema["components"]["schemas"]))
        links = {
            other["operationId"]: {
                "operationId": other["operationId"],
                "parameters": {name: all_links[name] for name in sorted(_list_path_parameters(other))},
            }
            for other in operations
            if other["tags"] == operation["tags"]
            and path_links.keys() < path_links.keys() | _list_path_parameters(other) <= all_links.keys()
        }
        if links:
            _find_success(operation)["links"] = links


def _find_success(operation: Mapping[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = next(
        response for code, response in operation["responses"].items() if code.startswith("2")
    )
    return success


def _list_path_parameters(operation: Mapping[str, Any]) -> set[str]:
    return {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}


def _iter_values(operation: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield fields of a response, and of the first items of its lists, with their runtime expressions."""
    schema = _find_success(operation).get("content", {}).get("application/json", {}).get("schema", {})
    fields = _find_properties(schema, components)
    for name, field in fields.items():
        for inner in _find_properties(field.get("items", {}), components):
            yield inner, f"$response.body#/{name}/0/{inner}"
    for name in fields:
        yield name, f"$response.body#/{name}"


def _find_properties(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Mapping[str, Any]:
    model = components.get(schema.get("$ref", "").rpartition("/")[2], {})
    fields: Mapping[str, Any] = model.get("properties", {})
    return fields


def _describe_success(operation: dict[str, Any], components: Mapping[str, Any]) -> None:
    """Use the first line of a model's docstring for a response without a description."""
    for response in operation.get("responses", {}).values():
        if response["description"] == _DEFAULT_DESCRIPTION:
            model = response["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
            response["description"] = _get_first_line(components[model].get("description")) or "Done."


def _iter_subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in model.__subclasses__():
        yield kind
        yield from _iter_subclasses(kind)


def _describe_problems(path: str, operation: dict[str, Any]) -> None:
    responses = operation.setdefault("responses", {})
    has_input = "parameters" in operation or "requestBody" in operation
    if _is_default_validation_response(responses.get("422")):
        del responses["422"]
    codes = [code for code in _COMMON_ERRORS if path not in _OPEN_PATHS or code not in (401, 503)]
    if "application/json" in operation.get("requestBody", {}).get("content", {}):
        codes.append(415)
    for code in (*codes, *((422,) if has_input else ())):
        responses.setdefault(str(code), _make_problem_schema(code, ERRORS[code]))
    operation["responses"] = dict(sorted(responses.items()))


def _is_default_validation_response(response: Any) -> bool:
    return response is not None and "application/json" in response.get("content", {})


def _make_problem_schema(status: int, description: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    response = {"description": description, "content": {"application/problem+json": {"schema": reference}}}
    if status in _ERROR_HEADERS:
        name, text, kind = _ERROR_HEADERS[status]
        response["headers"] = {name: {"description": text, "schema": {"type": kind}}}
    return response


def _get_first_line(docstring: str | None) -> str:
    return (docstring or "").strip().partition("\n")[0]


def _get_version() -> str:
    try:
        return version("queenright")
    except PackageNotFoundError:
        return "0"
