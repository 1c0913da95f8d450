"""A client for the query API of Prometheus: instant and range queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queenright.instrumentation.identity import NAME_LIMIT, clean_name
from queenright.judge.stack.http import InvalidQueryError, StackClient, StackUnavailableError

_LABEL_LIMIT: Final = 2_000
"""Longer label values are cut. A target with such a name cannot be queried."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of an answer: its labels, and points of (seconds since the epoch, value), oldest first."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.points[-1][1]


class Prometheus(StackClient):
    """A Prometheus server, or another server with its API (Mimir, Thanos, VictoriaMetrics)."""

    async def query(self, promql: str, at: float | None = None) -> list[Series]:
        """
        Run an instant query, by default at the current time.

        Raises:
            InvalidQueryError: Prometheus rejects the query.
            StackUnavailableError: There is no valid answer.
        """
        form = {"query": promql, "timeout": f"{self._timeout:g}s"}
        if at is not None:
            form["time"] = f"{at:.3f}"
        return self._parse_answer(await self._post("/api/v1/query", form))

    async def query_range(self, promql: str, start: float, end: float, step: float) -> list[Series]:
        """
        Run a range query from ``start`` to ``end``, every ``step`` seconds.

        Raises:
            InvalidQueryError: Prometheus rejects the query.
            StackUnavailableError: There is no valid answer.
        """
        form = {
            "query": promql,
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "step": f"{step:g}",
            "timeout": f"{self._timeout:g}s",
        }
        return self._parse_answer(await self._post("/api/v1/query_range", form))

    async def _post(self, path: str, form: Mapping[str, str]) -> Any:
        try:
            return await self.post(path, form)
        except InvalidQueryError as error:
            if not error.reason.startswith("404"):
                raise
            # Every Prometheus has these paths, so the address is wrong, or a proxy has no backend yet.
            raise StackUnavailableError(self.name, f"{error.reason}; check the address") from None

    def _parse_answer(self, answer: Any) -> list[Series]:
        try:
            if answer["status"] != "success":
                raise ValueError(str(answer["status"]))
            if answer.get("isPartial"):
                raise StackUnavailableError(self.name, "the response is partial: some storage is unavailable")
            data = answer["data"]
            return _READERS[data["resultType"]](data["result"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise StackUnavailableError(
                self.name, "it is not a Prometheus server; check the address"
            ) from None


def _parse_point(point: Any) -> tuple[float, float]:
    at, value = point
    return float(at), float(value)


def _parse_labels(row: Any) -> dict[str, str]:
    """Return labels without control characters, and with agent names normalized as in telemetry."""
    return {
        str(name): clean_name(str(value), NAME_LIMIT if name == "agent" else _LABEL_LIMIT)
        for name, value in row["metric"].items()
    }


def _parse_vector(result: Any) -> list[Series]:
    # A native histogram has no single value.
    return [Series(_parse_labels(row), (_parse_point(row["value"]),)) for row in result if "value" in row]


def _parse_matrix(result: Any) -> list[Series]:
    return [
        Series(_parse_labels(row), tuple(_parse_point(point) for point in row["values"]))
        for row in result
        if row.get("values")
    ]


def _parse_scalar(result: Any) -> list[Series]:
    return [Series({}, (_parse_point(result),))]


def _parse_string(result: Any) -> list[Series]:
    return [Series({"string": str(result[1])}, ((float(result[0]), float("nan")),))]


_READERS: Final = {
    "vector": _parse_vector,
    "matrix": _parse_matrix,
    "scalar": _parse_scalar,
    "string": _parse_string,
}
