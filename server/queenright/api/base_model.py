"""The base of all models of the API: lenient when read, strict in the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

NEXT: Final = "The cursor of the next page; null on the last one."
"""The description of the cursor of a page."""


@dataclass(frozen=True, init=False)
class KnownValues:
    """
    The values of a text field, as an enum in the schema.

    Other values are accepted when read: a newer service may know more than this client.

    >>> State = Annotated[str, KnownValues("open", "closed")]
    """

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of a field: an enum."""
        return handler(core) | {"enum": list(self.words)}


class ApiModel(BaseModel):
    """
    Base of the models of the API.

    A reader ignores unknown fields, which a newer service may send. The schema allows none, so that a test
    finds a field that it does not document. A field without a default is in every response.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    @classmethod
    def of(cls, value: object, **fields: Any) -> Self:
        """Return the model of an object with attributes of the same names; ``fields`` override them."""
        for name in cls.model_fields:
            if name not in fields and hasattr(value, name):
                fields[name] = getattr(value, name)
        return cls.model_validate(fields, from_attributes=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the model, without additional keys."""
        schema = handler(core)
        handler.resolve_ref_schema(schema)["additionalProperties"] = False
        return schema
