"""The OpenAPI document is complete, matches the responses, and agrees with the documentation."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import jsonschema_rs
import pytest
import pytest_asyncio
from pydantic import TypeAdapter, ValidationError

from queenright import api
from queenright.api import base_model, terms
from queenright.api.examples import make_example
from queenright.cli.completion_names import CLOSED_STATUSES
from queenright.health.action_kind import ActionKind
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.detection.assessment import SignalStatus
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.approval import ApprovalStatus
from queenright.health.interventions.escalation import Decision, EscalationStatus
from queenright.health.interventions.instructions import AnswerOutcome, Kind
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.ladder import Level
from queenright.health.recovery.recovery import RecoveryState
from queenright.health.tickets.ticket import OPEN_STATUSES, AckChannel, TicketStatus
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.server.console.api_page import split_code_spans
from queenright.server.routes.openapi import ERRORS, TAGS
from queenright.server.serving import RunningService, serving
from tests.server.conftest import demo_settings, looping
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT: Final = Path(__file__).parents[2]
HTTP_METHODS: Final = {"get", "post", "put", "delete", "patch"}
INTERFACE_ROUTES: Final = {
    "getAgentHealth": "GET /api/agents/{agent_id}/health",
    "getAllAgentHealth": "GET /api/agents/health",
    "getHealthHistory": "GET /api/agents/{agent_id}/history",
    "recordHeartbeat": "POST /api/heartbeats",
    "getLastHeartbeat": "GET /api/agents/{agent_id}/heartbeat",
    "sendNudge": "POST /api/agents/{agent_id}/nudge",
    "escalateToOrchestrator": "POST /api/agents/{agent_id}/escalate",
    "terminateAgent": "POST /api/agents/{agent_id}/terminate",
    "getCircuitBreakerStatus": "GET /api/breakers/{name}",
    "getAllCircuitBreakers": "GET /api/breakers",
    "resetCircuitBreaker": "POST /api/breakers/{name}/reset",
    "initiateRecovery": "POST /api/recoveries",
    "getRecoveryStatus": "GET /api/recoveries/{task_id}",
}
"""Each method of the health monitoring service's interface, and its route."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    """Yield a service with an unhealthy worker, a healthy worker, and a worker whose run has ended."""
    settings = demo_settings(tmp_path_factory.mktemp("openapi"), orchestrator="none")
    async with serving(settings) as running_service:
        service = running_service.service
        clock_time = service.clock()
        await service.ingest(list(looping(clock_time)))
        await service.ingest(list(looping(clock_time, agent="team/walker", times=1)))
        await service.ingest(list(looping(clock_time, agent="ended", times=1, ended=True)))
        yield running_service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(running: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    body: dict[str, Any] = (await http.get("/openapi.json")).json()
    return body


def list_operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each operation, by method and path."""
    for path, path_item in document["paths"].items():
        for method in HTTP_METHODS & path_item.keys():
            yield f"{method.upper()} {path}", path_item[method]


def get_success_response(operation: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    [(status, answer)] = [entry for entry in operation["responses"].items() if entry[0].startswith("2")]
    return status, answer


def resolve_schema(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema together with the definitions that it refers to."""
    return schema | {"components": document["components"]}


# -- completeness -------------------------------------------------------------------------------


async def test_each_operation_has_a_name_description_model_example_and_errors(
    document: dict[str, Any],
) -> None:
    faults = []
    for name, operation in list_operations(document):
        _, answer = get_success_response(operation)
        content = answer.get("content", {})
        model = content.get("application/json", {}).get("schema", {})
        if reference := model.get("$ref"):
            model = document["components"]["schemas"][reference.rpartition("/")[2]]
        bodies = operation.get("requestBody", {}).get("content", {}).values()
        required_parts = {
            "an operation id": operation.get("operationId"),
            "a summary": operation.get("summary"),
            "a description": operation.get("description"),
            "a known tag": operation.get("tags") and set(operation["tags"]) <= TAGS.keys(),
            "a description of its response": answer.get("description"),
            "a response model with an example": "application/json" not in content
            or (("$ref" in str(model) or model.get("type") == "object") and _has_example(document, model)),
            "an example of its body": all(_has_example(document, body["schema"]) for body in bodies),
            "its refusals": {"400", "403", "413", "429"} <= operation["responses"].keys(),
            "descriptions of its parameters": all(
                parameter.get("description") for parameter in operation.get("parameters", ())
            ),
        }
        faults += [
            f"{name} lacks {missing_part}"
            for missing_part, components in required_parts.items()
            if not components
        ]
    assert not faults, "\n".join(faults)


def _has_example(document: dict[str, Any], schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_has_example(document, variant) for variant in schema["anyOf"])
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if schema.get("examples"):
        return True
    return all("examples" in schema["properties"][name] for name in schema.get("required", ()))


async def test_each_error_response_is_a_problem_document(document: dict[str, Any]) -> None:
    for name, operation in list_operations(document):
        for status, answer in operation["responses"].items():
            if status.startswith(("4", "5")) and name != "GET /readyz":
                assert list(answer["content"]) == ["application/problem+json"], f"{name} {status}"
                assert answer["description"], f"{name} {status}"
    assert {429: "Retry-After", 401: "WWW-Authenticate"}[429] in str(document["paths"]["/api/status"])
    assert set(TAGS) >= {tag["name"] for tag in document["tags"]}
    assert all(ERRORS.values())


async def test_operation_ids_are_unique_and_links_refer_to_them(document: dict[str, Any]) -> None:
    operations_by_id = {operation["operationId"]: operation for _, operation in list_operations(document)}
    assert len(operations_by_id) == len(list(list_operations(document)))
    linked_ids: set[str] = set()
    for name, operation in list_operations(document):
        for link in get_success_response(operation)[1].get("links", {}).values():
            target = operations_by_id[link["operationId"]]
            parameter_names = {parameter["name"] for parameter in target["parameters"]}
            path_parameters = {
                parameter["name"] for parameter in target["parameters"] if parameter["in"] == "path"
            }
            assert path_parameters <= link["parameters"].keys() <= parameter_names, (
                f"{name} → {link['operationId']}"
            )
            linked_ids.add(link["operationId"])
    assert {
        "get_agent_health",
        "get_ticket",
        "acknowledge_ticket",
        "reset_breaker",
        "get_recovery",
    } <= linked_ids


async def test_every_example_matches_its_model(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            faults = list(jsonschema_rs.validator_for(resolve_schema(document, schema)).iter_errors(example))
            assert not faults, f"{name}: {faults[0].message}"


async def test_pages_and_metrics_are_not_in_the_document(document: dict[str, Any]) -> None:
    other_paths = [path for path in document["paths"] if not path.startswith(("/api/", "/-/"))]
    assert sorted(other_paths) == ["/healthz", "/readyz"]


async def test_each_response_with_a_body_has_an_example(document: dict[str, Any]) -> None:
    missing_names = []
    for name, operation in list_operations(document):
        for media, result in get_success_response(operation)[1].get("content", {}).items():
            reference = result.get("schema", {}).get("$ref", "").rpartition("/")[2]
            model = document["components"]["schemas"].get(reference)
            example_keys = {"example", "examples"} & result.keys() or (
                model and _has_example(document, model)
            )
            if not example_keys:
                missing_names.append(f"{name}: {media}")
    assert not missing_names, "\n".join(missing_names)


# -- responses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "kind"),
    [
        (terms.State, HealthState),
        (terms.Severity, Severity),
        (terms.FindingKind, FindingKind),
        (terms.Reading, SignalStatus),
        (terms.Phase, Phase),
        (terms.LadderLevel, Level),
        (terms.ActionKind, ActionKind),
        (terms.Outcome, InterventionOutcome),
        (terms.EscalationStatus, EscalationStatus),
        (terms.ApprovalStatus, ApprovalStatus),
        (terms.BreakerState, BreakerState),
        (terms.RecoveryState, RecoveryState),
        (terms.TicketStatus, TicketStatus),
        (terms.AckChannel, AckChannel),
    ],
)
async def test_api_enums_have_the_values_of_the_service(term: Any, kind: type[StrEnum]) -> None:
    assert list_values(term) == tuple(member.value for member in kind)
    assert list_values(terms.Waiting) == ("", *(member.value for member in WaitingReason))
    assert list_values(terms.Decision) == get_args(Decision)
    assert list_values(terms.InstructionKind) == get_args(Kind)
    assert list_values(terms.AnswerOutcome) == get_args(AnswerOutcome)
    assert terms.OPEN_TICKET_STATUSES == OPEN_STATUSES == {*TicketStatus}.difference(CLOSED_STATUSES)


def list_values(term: Any) -> tuple[str, ...]:
    """Return the values of an annotated type, as the document lists them."""
    enum: list[str] = TypeAdapter(term).json_schema()["enum"]
    return tuple(enum)


async def test_unknown_enum_value_is_accepted_by_the_client() -> None:
    row = make_example(api.AgentRow)
    assert api.AgentRow.model_validate(row | {"state": "asleep"}).state == "asleep"
    health = make_example(api.AgentHealth)
    newer_response = [finding | {"kind": "daydreaming"} for finding in health["findings"]]
    findings = api.AgentHealth.model_validate(health | {"findings": newer_response}).findings
    assert [finding.kind for finding in findings] == ["daydreaming"] * len(newer_response) != []
    # The value is still text. From the service itself, such a value would be an error.
    with pytest.raises(ValidationError, match="state"):
        api.AgentRow.model_validate(row | {"state": 7})
    schema = api.AgentRow.model_json_schema(mode="serialization")
    assert "asleep" not in schema["properties"]["state"]["enum"]


async def test_responses_match_the_document(
    running: RunningService, http: httpx.AsyncClient, document: dict[str, Any]
) -> None:
    """This includes responses that have no example, such as those about a real ticket, ladder and history."""
    await until(
        lambda: running.service.tickets.open_for("looper", "looper-session"),
        "the looping worker has a ticket",
    )
    ticket = running.service.tickets.open_for("looper", "looper-session")
    assert ticket is not None
    await http.post("/api/agents/team%2Fwalker/nudge", json={})
    await http.post("/api/heartbeats", json={"agent_id": "beating", "task_id": "report-7"})
    names = {
        "agent_id": "looper",
        "ticket_id": ticket.ticket_id,
        "name": "tool:none",
        "task_id": "looper-session",
    }
    incarnation = {"session_id": "looper-session", "incarnation_id": "one"}
    success_count, faults = 0, list[str]()
    for name, operation in list_operations(document):
        method, path = name.split()
        if method != "GET" or path.endswith("/events") or "loaded agents" in operation["tags"]:
            continue
        url = re.sub(r"{(\w+)}", lambda match: names.get(match[1], "none"), path)
        response = await http.get(url, params=incarnation if path.endswith("/instructions") else {})
        documented_response = operation["responses"].get(str(response.status_code), {})
        kind = response.headers["content-type"].partition(";")[0]
        schema = documented_response.get("content", {}).get(kind, {}).get("schema")
        if schema is None:
            faults.append(f"{name}: {response.status_code} {kind} is not documented: {response.text[:200]}")
        elif kind != "text/plain":
            success_count += response.status_code == 200
            for error in jsonschema_rs.validator_for(resolve_schema(document, schema)).iter_errors(
                response.json()
            ):
                faults.append(f"{name}: {error.instance_path}: {error.message}")
    assert not faults, "\n".join(faults)
    assert success_count > 20


async def test_client_models_accept_new_fields() -> None:
    for name in vars(api)["__all__"]:
        model = getattr(api, name)
        if model is not base_model.ApiModel:
            example = make_example(model)
            assert model.model_validate(example | {"brand_new": 1}).model_dump(mode="json") == example | {
                key: value
                for key, value in model.model_validate(example).model_dump(mode="json").items()
                if key not in example
            }, name


# -- docs ---------------------------------------------------------------------------------------


async def test_operations_that_the_docs_name_exist(document: dict[str, Any]) -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    named_operations = {
        f"{method} {_remove_parameters(path)}"
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/(?:api(?!/v2/)|-)/[^\s`?]*)[^`]*`", pages)
    }
    assert len(named_operations) > 10
    assert (
        sorted(named_operations - {_remove_parameters(name) for name, _ in list_operations(document)}) == []
    )


async def test_paths_in_the_overview_of_the_api_page_exist(document: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    overview = page.partition("## What there is")[2].partition("\n## ")[0]
    paths = [_remove_parameters(name.partition(" ")[2]) for name, _ in list_operations(document)]

    named_paths = re.findall(r"`(/[^`…]*)", overview)

    assert len(named_paths) > 20
    for path in named_paths:
        assert path == "/metrics" or any(_is_below(document_path, path) for document_path in paths), path
    for document_path in paths:
        assert any(_is_below(document_path, path) for path in named_paths), document_path


def _is_below(path: str, base: str) -> bool:
    return f"{path}/".startswith(f"{_remove_parameters(base).rstrip('/')}/")


def _remove_parameters(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


@pytest.mark.parametrize("method", INTERFACE_ROUTES)
async def test_each_method_of_the_health_monitoring_service_has_a_route(
    document: dict[str, Any], method: str
) -> None:
    """002 §6: each method of the service's interface has a route, by its name."""
    assert INTERFACE_ROUTES[method] in dict(list_operations(document))


# -- filters ------------------------------------------------------------------------------------


async def list_rows(http: httpx.AsyncClient, path: str, key: str, **filters: Any) -> list[dict[str, Any]]:
    response = await http.get(path, params=filters)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()[key]
    return rows


async def test_agents_can_be_filtered_by_state_and_name(http: httpx.AsyncClient) -> None:
    terminated_rows = await list_rows(http, "/api/agents", "agents", state="terminated", agent_id="looper")
    assert terminated_rows == []
    [walker] = await list_rows(http, "/api/agents", "agents", agent_id="team/walker")
    same_state_rows = await list_rows(http, "/api/agents", "agents", state=walker["state"], limit=1000)
    assert walker["agent_id"] in {row["agent_id"] for row in same_state_rows}
    assert {row["state"] for row in same_state_rows} == {walker["state"]}
    error = await http.get("/api/agents", params={"state": "sleepy"})
    assert error.status_code == 422
    assert "healthy" in error.json()["title"]


async def test_tickets_can_be_filtered_by_worker_status_severity_and_time(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """003: a worker's escalations can be listed and read one by one."""
    await until(
        lambda: running.service.tickets.open_tickets(),
        "the looping worker has a ticket",
    )
    [ticket] = await list_rows(http, "/api/tickets", "tickets", agent_id="looper")
    matching_filters = {
        "agent_id": "looper",
        "severity": ticket["severity"],
        "status": ["dismissed", ticket["status"]],
        "since": 1,
    }
    assert [
        response["ticket_id"]
        for response in await list_rows(http, "/api/tickets", "tickets", **matching_filters)
    ] == [ticket["ticket_id"]]
    other_filters: tuple[dict[str, Any], ...] = (
        {"agent_id": "nobody"},
        {"status": "worker_gone"},
        {"since": 4e9},
        {"severity": "low"},
    )
    for filters in other_filters:
        assert await list_rows(http, "/api/tickets", "tickets", **filters) == []

    [escalation_row] = await list_rows(http, "/api/agents/looper/escalations", "tickets")
    assert escalation_row["ticket_id"] == ticket["ticket_id"]
    response = await http.get(f"/api/agents/looper/escalations/{ticket['ticket_id']}")
    assert response.json()["cause"] == ticket["cause"]
    other_ticket = await http.get(f"/api/agents/team%2Fwalker/escalations/{ticket['ticket_id']}")
    assert other_ticket.status_code == 404
    assert "looper" in other_ticket.json()["title"]


async def test_interventions_and_recoveries_can_be_filtered(http: httpx.AsyncClient) -> None:
    nudge_response = await http.post("/api/agents/team%2Fwalker/nudge", json={})
    intervention = nudge_response.json()
    filters = {"agent_id": "team/walker", "kind": "nudge", "outcome": intervention["outcome"]}
    rows = await list_rows(http, "/api/interventions", "interventions", **filters)
    assert intervention["intervention_id"] in {row["intervention_id"] for row in rows}
    assert await list_rows(http, "/api/interventions", "interventions", **filters | {"kind": "recover"}) == []
    assert (
        await list_rows(http, "/api/interventions", "interventions", **filters | {"outcome": "expired"}) == []
    )
    assert await list_rows(http, "/api/recoveries", "recoveries", state="succeeded") == []


async def test_code_in_descriptions_is_rendered_as_code() -> None:
    assert split_code_spans("Those with ``open``, or `all`.") == [
        ("Those with ", False),
        ("open", True),
        (", or ", False),
        ("all", True),
        (".", False),
    ]
