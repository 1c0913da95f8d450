"""Errors of the API."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import ApiModel


class Problem(ApiModel):
    """An error, as `application/problem+json`: what is wrong and what to do."""

    type: str = Field(description="Always `about:blank`.")
    title: str = Field(description="What is wrong, the value, and what to do.")
    status: int = Field(description="The HTTP status.")
    reason: str = Field("", description="Why an action was refused, without the rest of the title.")
    field: str = Field("", description="The field of an agent's input that was refused.")
