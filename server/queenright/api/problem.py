"""An error, as every route answers it."""

from __future__ import annotations

from pydantic import Field

from queenright.api.wire import Wire, shown


class Problem(Wire):
    """What is wrong, and the way out: `application/problem+json`."""

    model_config = shown(
        {
            "type": "about:blank",
            "title": "cannot nudge 'researcher': it waits (user_input)",
            "status": 409,
            "reason": "it waits (user_input)",
        }
    )

    type: str = Field(description="Always `about:blank`: the status and the words say it all.")
    title: str = Field(description="What is wrong, with the value that is refused, and the way out.")
    status: int = Field(description="The HTTP status.")
    reason: str = Field("", description="Why an action is refused, alone; not with every error.")
    field: str = Field("", description="The field of an agent's input that is refused, where it is one.")
