"""Hooks of Schemathesis, loaded by its configuration."""

from __future__ import annotations

import re
from typing import Any

import schemathesis

from queenright.instrumentation.identity import new_id


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Give each request with a valid idempotency key a unique one, because all requests differ."""
    headers = case.headers or {}
    if re.fullmatch(r"[\x21-\x7e]{1,255}", str(headers.get("Idempotency-Key", ""))):
        headers["Idempotency-Key"] = new_id()
