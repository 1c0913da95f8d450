"""Circuit breakers: one that opens, half-opens and closes, one that stays open, and one that never minded."""

from __future__ import annotations

import asyncio

from queenright.runtime.breaker_protocols import BreakerKind, CallRefusedError
from queenright.server.service import Service
from tests.waiting import until


async def break_and_mend(service: Service) -> None:
    """Let the calls of two agents fail until nobody is let through; those of one of them get well again."""
    weather = service.breakers.get(BreakerKind.EXTERNAL_API, "courier", "api.weather.example")
    printer = service.breakers.get(BreakerKind.TOOL_EXECUTION, "typesetter", "print")
    catalogue = service.breakers.get(BreakerKind.TOOL_EXECUTION, "librarian", "search")
    catalogue.admit().record_success()
    # So that the first scrape has seen them closed, as in a fleet that runs for longer than a minute.
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

    await until(is_admitted, "the breaker lets a call through to see how it goes")
