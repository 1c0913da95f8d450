"""The header of requests that the gateway of a cluster sends to several partitions."""

from __future__ import annotations

from typing import Final

GATEWAY_HEADER: Final = "x-queenright-gateway"
LOCATE_WORKER: Final = "locate"
"""Header value that asks a partition only for the last activity of a worker."""
FIND_KEY: Final = "key"
"""Header value that asks a partition only whether it has the Idempotency-Key. It responds 204 or 404."""
