"""Asking a running service."""

from __future__ import annotations

from typing import Any

import httpx

from queenright.instrumentation.errors import QueenrightError


def ask(url: str, path: str) -> dict[str, Any]:
    """
    Return the JSON that the service answers.

    Raises:
        QueenrightError: nothing answers there, or the answer is an error.
    """
    try:
        response = httpx.get(f"{url.rstrip('/')}{path}", timeout=10, trust_env=False)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
    except httpx.HTTPStatusError as error:
        raise QueenrightError(f"{url} answered {error.response.status_code} for {path}.") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise QueenrightError(
            f"No Queenright answers at {url} ({type(error).__name__}). "
            "Start one with `queenright up`, or name another with --url."
        ) from None
    return answer
