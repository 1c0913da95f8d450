"""The header of requests that the gateway of a cluster sends to several partitions."""

from __future__ import annotations

from typing import Final

GATEWAY_HEADER: Final = "x-queenright-gateway"
LOCATE_WORKER: Final = "locate"
"""Its value if a partition only returns the last activity of the worker, and changes nothing."""
FIND_KEY: Final = "key"
"""Its value if a partition only says whether it has the Idempotency-Key: 204, or 404."""
