"""Merge the summaries of all partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, Final

from queenright import api
from queenright.alerting.peer_silences import PeerView, describe_unknown_peers
from queenright.server.views.attention_parts import AttentionPart, merge_attention
from queenright.server.views.fleet_list import WORST_FIRST
from queenright.server.views.incident_parts import IncidentPart, join_parts

Json = dict[str, Any]

_EARLIEST_FIELDS: Final = frozenset(
    {"started_at", "first_seen", "oldest", "failing_since", "next_attempt_at", "since"}
)
_LATEST_FIELDS: Final = frozenset(
    {
        "at",
        "last_seen",
        "free_at",
        "limited_until",
        "last_success",
        "last_failure",
        "seconds_p95",
        "changed_at",
    }
)
_ROW_KEYS: Final[dict[str, Callable[[Json], Hashable]]] = {
    "peers": lambda row: row["peer"],
    "sources": lambda row: (row["service"], row["dialect"]),
    "unused": lambda row: (row["dialect"], row["reason"], row["rejected"]),
    "refused": lambda row: (row["path"], row["status"]) if "path" in row else tuple(row["ticket_ids"]),
    "providers": lambda row: (row["provider"], row["model"]),
    "errors": lambda row: row["error_type"],
}
"""Keys of rows, by list. Rows of several partitions with the same key are merged."""
_STATE_RANK: Final = {state.value: rank for rank, state in enumerate(WORST_FIRST)}
_MAX_AGENTS: Final = 200
_MAX_TICKETS: Final = 100
_MAX_FEED_ITEMS: Final = 200


def merge_fields(values: Sequence[Json]) -> Json:
    """
    Merge several objects with the same fields.

    Numbers are added. Times are the earliest or latest. Lists are concatenated. Other fields come from the
    first object that has them.
    """
    names = dict.fromkeys(name for value in values for name in value)
    return {name: _merge(name, [value[name] for value in values if name in value]) for name in names}


def _merge(name: str, values: list[Any]) -> Any:
    known_values = [value for value in values if value is not None]
    if not known_values:
        return None
    first_value = known_values[0]
    if isinstance(first_value, dict):
        return merge_fields(known_values)
    if isinstance(first_value, list):
        rows = [row for value in known_values for row in value]
        key = _ROW_KEYS.get(name)
        return list(dict.fromkeys(rows)) if rows and isinstance(rows[0], str) else _merge_rows(rows, key)
    if isinstance(first_value, bool):
        return all(known_values) if name == "ok" else any(known_values)
    if isinstance(first_value, str):
        return next((value for value in known_values if value), "")
    if name in _EARLIEST_FIELDS:
        return min(known_values)
    return max(known_values) if name in _LATEST_FIELDS else sum(known_values)


def _merge_rows(rows: list[Json], key: Callable[[Json], Hashable] | None) -> list[Json]:
    if key is None:
        return rows
    groups: dict[Hashable, list[Json]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [group[0] if len(group) == 1 else merge_fields(group) for group in groups.values()]


def _merge_status(values: Sequence[Json]) -> Json:
    status = merge_fields(values)
    agents = sorted(status["agents"], key=lambda row: _STATE_RANK.get(row["state"], len(_STATE_RANK)))
    acting = status["acting"]
    parts = [value["acting"] for value in values]
    acting |= {
        # Every partition reports the state of the fleet; take the latest change and the highest count.
        "emergency_stop": max(
            (part["emergency_stop"] for part in parts), key=lambda stop: stop["changed_at"] or 0.0
        ),
        "storm": max((part["storm"] for part in parts), key=lambda storm: storm["workers"]),
        "budget": max((part["budget"] for part in parts), key=lambda budget: budget["used"]),
    }
    return status | {
        "agents": agents[:_MAX_AGENTS],
        "agents_left_out": status["agents_left_out"] + len(agents[_MAX_AGENTS:]),
        # Ids are ordered by time.
        "tickets": sorted(status["tickets"], reverse=True)[:_MAX_TICKETS],
        "feed": _sort_newest_first(status["feed"], "at")[:_MAX_FEED_ITEMS],
        "paged": _sort_newest_first(status["paged"], "at"),
    }


def _merge_attention_lists(values: Sequence[Json]) -> Json:
    return merge_attention([AttentionPart.model_validate(value) for value in values]).model_dump(mode="json")


def _merge_incidents(values: Sequence[Json]) -> Json:
    parts = [IncidentPart.model_validate(row) for value in values for row in value["incidents"]]
    newest = reversed(join_parts(parts))
    return api.Incidents(incidents=[api.Incident.of(incident) for incident in newest]).model_dump(mode="json")


def _merge_telemetry(values: Sequence[Json]) -> Json:
    merged = merge_fields(values)
    return merged | {"sources": _sort_newest_first(merged["sources"], "last_seen")}


def _merge_providers(values: Sequence[Json]) -> Json:
    merged = {}
    rows = [row for value in values for row in value["providers"]]
    for key in sorted({(row["provider"], row["model"]) for row in rows}):
        same_model_rows = [row for row in rows if (row["provider"], row["model"]) == key]
        merged[key] = (
            same_model_rows[0] if len(same_model_rows) == 1 else _merge_provider_rows(same_model_rows)
        )
    return {"providers": list(merged.values())}


def _merge_provider_rows(rows: list[Json]) -> Json:
    """Merge the health of a model: the worst status, and the median latency of the busiest partition."""
    errors: Counter[str] = Counter()
    for row in rows:
        errors.update({error["error_type"]: error["count"] for error in row["errors"]})
    busiest = max(rows, key=lambda row: row["calls"] - row["failed"])
    worst = max(rows, key=lambda row: _PROVIDER_RANK.get(row["status"], -1))
    return merge_fields(rows) | {
        "status": worst["status"],
        "seconds_p50": busiest["seconds_p50"],
        "errors": [{"error_type": name, "count": count} for name, count in errors.most_common(3)],
    }


_PROVIDER_RANK: Final = {
    name: rank for rank, name in enumerate(("unknown", "ok", "degraded", "limited", "failing"))
}


def _merge_silences(values: Sequence[Json]) -> Json:
    """
    Merge the silences that the partitions have read from the same Alertmanagers.

    A silence may match tickets of several partitions, each of which has only its own tickets. The partition
    that read an Alertmanager last has its current silences. The others may be half a minute behind.
    """
    rows = [row for value in values for row in value["peers"]]
    latest = {row["peer"]: row["read_at"] for row in sorted(rows, key=_get_read_time)}
    silences: dict[str, Json] = {}
    for value in sorted(values, key=lambda value: max(map(_get_read_time, value["peers"]), default=0.0)):
        current_peers = {row["peer"] for row in value["peers"] if row["read_at"] == latest[row["peer"]]}
        for row in value["silences"]:
            earlier_row = silences.get(row["silence_id"], {"peers": set(), "tickets": set()})
            # The partition that read last has the current end time.
            silences[row["silence_id"]] = row | {
                "peers": earlier_row["peers"] | current_peers.intersection(row["peers"]),
                "tickets": earlier_row["tickets"] | set(row["tickets"]),
            }
    # If a partition cannot read a peer, the matching tickets of that partition are unknown.
    rows_by_peer: dict[str, list[Json]] = {}
    for row in rows:
        rows_by_peer.setdefault(row["peer"], []).append(row)
    peers = [
        min(peer_rows, key=lambda row: (not row["error"], _get_read_time(row)))
        for peer_rows in rows_by_peer.values()
    ]
    views = [PeerView(peer=row["peer"], error=row["error"] or "") for row in peers]
    return {
        "silences": [
            row | {name: sorted(row[name]) for name in ("peers", "tickets")}
            for row in sorted(silences.values(), key=itemgetter("ends_at", "silence_id"))
            if row["peers"]
        ],
        "unknown": describe_unknown_peers(views),
        "peers": peers,
    }


def _get_read_time(row: Json) -> float:
    return row["read_at"] or 0.0


def find_worst_breaker(values: Sequence[Json]) -> Json:
    """Return the breaker with the most severe state, of breakers with the same name."""
    return max(values, key=lambda value: _BREAKER_RANK.get(value["state"], -1))


_BREAKER_RANK: Final = {name: rank for rank, name in enumerate(("closed", "half_open", "open"))}


def get_merge(path: str) -> Callable[[Sequence[Json]], Json]:
    """Return the function that merges the responses to a path."""
    return (
        find_worst_breaker if path.startswith("/api/breakers/") else MERGE_FUNCTIONS.get(path, merge_fields)
    )


def _sort_newest_first(rows: list[Json], name: str) -> list[Json]:
    return sorted(rows, key=lambda row: row.get(name) or 0.0, reverse=True)


MERGE_FUNCTIONS: Final[dict[str, Callable[[Sequence[Json]], Json]]] = {
    "/api/status": _merge_status,
    "/api/attention": _merge_attention_lists,
    "/api/incidents": _merge_incidents,
    "/api/telemetry": _merge_telemetry,
    "/api/providers": _merge_providers,
    "/api/silences": _merge_silences,
}
"""The function that merges the responses of all partitions, by path."""
