"""Circuit breakers: one that opens, half-opens and closes, one that stays open, and one that never opens."""

from __future__ import annotations

import asyncio

from queenright.runtime.breaker_protocols import BreakerKind, CallRefusedError
from queenright.server.service import Service
from tests.waiting import until


async def open_and_close_breakers(service: Service) -> None:
    """Let the calls of two agents fail until their breakers open, and those of one agent succeed again."""
    weather = service.breakers.get(BreakerKind.EXTERNAL_API, "courier", "api.weather.example")
    printer = service.breakers.get(BreakerKind.TOOL_EXECUTION, "typesetter", "print")
    catalogue = service.breakers.get(BreakerKind.TOOL_EXECUTION, "librarian", "search")
    catalogue.admit().record_success()
    # The first scrape must see them closed, as in a fleet that has run for a minute.
    await asyncio.sleep(2)
    for breaker in (weather, printer):
        for _ in range(3):
            breaker.admit().record_failure(ConnectionError("503 from the other side"))

    def is_admitted() -> bool:
        try:
            weather.admit().record_success()
        except CallRefusedError:
            return False
        return True

    await until(is_admitted, "the breaker allows a trial call")
