"""Hooks of Schemathesis, loaded by its configuration."""

from __future__ import annotations

import re
from typing import Any

import schemathesis

from queenright.instrumentation.identity import new_id


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Replace valid idempotency keys with unique ones, because no two requests are the same action."""
    headers = case.headers or {}
    if re.fullmatch(r"[\x21-\x7e]{1,255}", str(headers.get("Idempotency-Key", ""))):
        headers["Idempotency-Key"] = new_id()
