"""Shared memory of the nodes of a session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError

MAX_OUTPUT_BYTES: Final = 1 << 20
"""Maximum size of one output as JSON, in bytes: it is part of every later state and checkpoint."""


class MemoryAccessError(QueenrightError):
    """Raised for a value that cannot be stored: it is not JSON, or too large."""


def check_output_sizes(outputs: Mapping[str, Any]) -> None:
    """
    Check the sizes of a node's outputs.

    Raises:
        MemoryAccessError: An output is too large.
    """
    for key, value in outputs.items():
        size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if size > MAX_OUTPUT_BYTES:
            raise MemoryAccessError(
                f"output {key!r} has {size / (1 << 20):.1f} MiB as JSON, but the limit is "
                f"{MAX_OUTPUT_BYTES >> 20} MiB; write it to a file in data_dir and output the file's name"
            )


class SharedMemory:
    """
    JSON values by key. Values are copied on creation and on read, so that they cannot be changed in place.

    Raises:
        MemoryAccessError: A value is not JSON.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {key: _copy(key, value) for key, value in (values or {}).items()}

    def __repr__(self) -> str:
        return f"SharedMemory({sorted(self._values)})"  # values may be secret

    def read_all(self) -> dict[str, Any]:
        """Return all values."""
        return self.view(self._values)

    def view(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of ``keys`` that are set."""
        return {key: _copy(key, self._values[key]) for key in keys if key in self._values}


def _copy(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise MemoryAccessError(
            f"{key!r} cannot be stored: {type(value).__name__} is not JSON ({error}); use text, numbers, "
            "true, false, null, lists or objects of these."
        ) from error
