"""Probe endless event streams by reading the start of each with several parameters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx

_TYPES: Final = (
    "",
    "all",
    "*",
    "execution_started",
    "tool_call_started,edge_traversed",
    "no_such",
    "%00",
    "a" * 5000,
)
_AGENTS: Final = ("", "researcher", "nobody", "../..", "%0d%0aX: y")
_LAST_EVENT_IDS: Final = ("", "no-such-id", "0" * 300, "\u00e4")
_PATH_NAMES: Final = ("researcher", "team%2Fsearcher", "nobody", "%2e%2e%2f", "docs_checker")


async def probe_streams(http: httpx.AsyncClient, document: Mapping[str, Any], pattern: str) -> list[str]:
    """
    Read the start of every stream in the OpenAPI document, and return the faults.

    Args:
        http: A client of the service.
        document: The OpenAPI document.
        pattern: A regular expression for the paths of streams.
    """
    faults: list[str] = []
    count = 0
    for path, operations in document["paths"].items():
        if re.search(pattern, path) is None or "get" not in operations:
            continue
        for request, headers in _list_requests(path):
            count += 1
            async with http.stream("GET", request, headers=headers) as response:
                if fault := await _find_fault(response, operations["get"]):
                    faults.append(f"GET {request[:200]} {headers}: {fault}")
    print(f"Streams: {count} requests, {len(faults)} faults.", flush=True)
    return faults


def _list_requests(path: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    names = _PATH_NAMES if "{" in path else ("",)
    for name, (types, agent, last_event_id) in itertools.product(names, _list_variants()):
        query = f"?types={types}&agent={agent}" if types or agent else ""
        yield (
            re.sub(r"\{[^}]*\}", name, path) + query,
            {b"Last-Event-ID": last_event_id.encode()} if last_event_id else {},
        )


def _list_variants() -> list[tuple[str, str, str]]:
    return [
        *((types, "", "") for types in _TYPES),
        *(("all", agent, "") for agent in _AGENTS),
        *(("all", "", last_event_id) for last_event_id in _LAST_EVENT_IDS),
    ]


async def _find_fault(response: httpx.Response, operation: dict[str, Any]) -> str:
    """Return how a response differs from the document, or an empty text."""
    documented_response = operation["responses"].get(str(response.status_code))
    kind = response.headers.get("content-type", "").partition(";")[0]
    if documented_response is None:
        return f"status {response.status_code} is not documented"
    if kind not in documented_response.get("content", {kind: {}}):
        return f"content type {kind!r} is not documented for {response.status_code}"
    if response.status_code == 200:
        async for _ in response.aiter_bytes():
            break
    return ""
