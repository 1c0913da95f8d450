"""Shared memory: what the nodes of a session know together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError

LARGEST_OUTPUT: Final = 1 << 20
"""Bytes of one output, as JSON: it is in every state and checkpoint that is written from then on."""


class MemoryAccessError(QueenrightError):
    """Raised for a value that cannot be remembered: it is no JSON, or too much of it."""


def check_sizes(outputs: Mapping[str, Any]) -> None:
    """
    Refuse outputs of a node that are too large.

    Args:
        outputs: JSON values.

    Raises:
        MemoryAccessError: One is; says the way out.
    """
    for key, value in outputs.items():
        size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if size > LARGEST_OUTPUT:
            raise MemoryAccessError(
                f"output {key!r} has {size / (1 << 20):.1f} MiB as JSON, and at most 1 MiB is kept; write it "
                "to a file in data_dir, and let the output be the file's name"
            )


class SharedMemory:
    """
    JSON values by key. What goes in and what comes out are copies: nobody changes another's value in place.

    Raises:
        MemoryAccessError: A value is no JSON.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {key: _copy(key, value) for key, value in (values or {}).items()}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"SharedMemory({sorted(self._values)})"  # values may be secret

    def read(self, key: str) -> Any:
        """
        Return one value.

        Raises:
            KeyError: Nobody has set it.
        """
        return _copy(key, self._values[key])

    def read_all(self) -> dict[str, Any]:
        """Return everything."""
        return self.view(self._values)

    def view(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return those of ``keys`` that are set."""
        return {key: self.read(key) for key in keys if key in self._values}

    def write(self, values: Mapping[str, Any]) -> None:
        """
        Set values; all of them or, if one is refused, none.

        Raises:
            MemoryAccessError: A value is no JSON.
        """
        self._values.update({key: _copy(key, value) for key, value in values.items()})


def _copy(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise MemoryAccessError(
            f"{key!r} cannot be remembered: {type(value).__name__} is no JSON ({error}); set text, numbers, "
            "true, false, null, lists or objects of these."
        ) from error
