"""Probes of endless event streams: the start of each is read in several ways."""

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
_LAST: Final = ("", "no-such-id", "0" * 300, "\u00e4")
_NAMES: Final = ("researcher", "team%2Fsearcher", "nobody", "%2e%2e%2f", "docs_checker")


async def probe_streams(http: httpx.AsyncClient, document: Mapping[str, Any], pattern: str) -> list[str]:
    """
    Read the start of every stream in the OpenAPI document; return the faults, one per line.

    Args:
        http: A client of the service.
        document: The OpenAPI document.
        pattern: Matches the paths of streams.
    """
    wrong: list[str] = []
    count = 0
    for path, operations in document["paths"].items():
        if re.search(pattern, path) is None or "get" not in operations:
            continue
        for request, headers in _requests(path):
            count += 1
            async with http.stream("GET", request, headers=headers) as answer:
                if fault := await _find_fault(answer, operations["get"]):
                    wrong.append(f"GET {request[:200]} {headers}: {fault}")
    print(f"Streams: {count} requests, {len(wrong)} faults.", flush=True)
    return wrong


def _requests(path: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    names = _NAMES if "{" in path else ("",)
    for name, (types, agent, last) in itertools.product(names, _header_variants()):
        query = f"?types={types}&agent={agent}" if types or agent else ""
        yield re.sub(r"\{[^}]*\}", name, path) + query, {b"Last-Event-ID": last.encode()} if last else {}


def _header_variants() -> list[tuple[str, str, str]]:
    return [
        *((types, "", "") for types in _TYPES),
        *(("all", agent, "") for agent in _AGENTS),
        *(("all", "", last) for last in _LAST),
    ]


async def _find_fault(answer: httpx.Response, operation: dict[str, Any]) -> str:
    """Return how a response differs from the document; empty if it does not."""
    documented = operation["responses"].get(str(answer.status_code))
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if documented is None:
        return f"status {answer.status_code} is not documented"
    if kind not in documented.get("content", {kind: {}}):
        return f"content type {kind!r} is not documented for {answer.status_code}"
    if answer.status_code == 200:
        async for _ in answer.aiter_bytes():
            break
    return ""
