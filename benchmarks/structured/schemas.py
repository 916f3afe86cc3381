"""Schemas in the style of public ones, drawn from a seed: nested, enums, formats, bounds, unions, recursion."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_NAMES = (
    "id", "name", "title", "status", "kind", "owner", "email", "created_at", "updated_at", "due", "price", "amount",
    "currency", "quantity", "city", "street", "country", "code", "label", "score", "rating", "tags", "notes",
    "summary", "description", "address", "contact", "items", "steps", "reason", "priority", "enabled", "version",
    "host", "port", "path", "language", "author", "publisher", "pages", "weight", "height", "color", "shape",
    "latitude", "longitude", "start", "end",
)  # fmt: skip
_WORDS = (
    "open", "closed", "pending", "draft", "low", "medium", "high", "red", "green", "blue", "euro", "dollar",
    "small", "large", "public", "private",
)  # fmt: skip
_FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "hostname", "duration")
_PATTERNS = ("[A-Z]{2,3}-[0-9]{3,5}", "[a-z]+(_[a-z]+){0,2}", "#[0-9a-f]{6}", "v[0-9]+\\.[0-9]+")
_DEEPEST = 3


def schemas(count: int, seed: int = 0) -> list[Schema]:
    """So many, each an object."""
    return [_Drawn(random.Random(seed * 1_000_003 + number)).schema() for number in range(count)]


class _Drawn:
    """One schema, with definitions of its own."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._defs = dice, dict[str, Schema]()

    def schema(self) -> Schema:
        if self._dice.random() < 0.3:
            self._defs["thing"] = self._object(_DEEPEST - 1)
        if self._dice.random() < 0.2:  # a list, by recursion
            members = {"value": self._leaf(), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}
            required = ["value", "next"]
            self._defs["node"] = {
                "type": "object", "properties": members, "required": required, "additionalProperties": False,
            }  # fmt: skip
        found = self._object(0)
        return found | {"$defs": self._defs} if self._defs else found

    def _object(self, depth: int) -> Schema:
        dice = self._dice
        names = dice.sample(_NAMES, dice.randrange(2, 6 if depth == 0 else 4))
        required = [name for name in names if dice.random() < 0.85]
        return {
            "type": "object",
            "properties": {name: self._value(depth + 1) for name in names},
            "required": required or names[:1],
            "additionalProperties": False,
        }

    def _value(self, depth: int) -> Schema:
        if depth >= _DEEPEST or self._dice.random() < 0.6:
            return self._leaf()
        choices: list[Callable[[int], Schema]] = [self._object, self._array, self._union, self._both, self._map]
        if self._defs:
            choices += [self._reference] * 3
        return self._dice.choice(choices)(depth)

    def _leaf(self) -> Schema:
        dice = self._dice
        low = dice.randrange(-5, 50)
        return dice.choice(
            (
                {"type": "string", "maxLength": dice.randrange(5, 30)},
                {"type": "string", "minLength": 2, "maxLength": 12},
                {"enum": dice.sample(_WORDS, dice.randrange(2, 6))},
                {"const": dice.choice(_WORDS)},
                {"type": "string", "format": dice.choice(_FORMATS), "maxLength": 40},
                {"type": "string", "pattern": f"^{dice.choice(_PATTERNS)}$", "maxLength": 24},
                {"type": "integer", "minimum": low, "maximum": low + dice.choice((3, 50, 1000))},
                {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
                {"type": "boolean"},
                {"type": ["string", "null"], "maxLength": 10},
                {"enum": [1, "two", None, True]},
            )
        )

    def _array(self, depth: int) -> Schema:
        if self._dice.random() < 0.3:
            return {"type": "array", "prefixItems": [self._leaf(), self._leaf()], "items": False, "minItems": 2}
        most = self._dice.randrange(1, 4)
        least = self._dice.randrange(0, most + 1)
        return {"type": "array", "items": self._value(depth + 1), "minItems": least, "maxItems": most}

    def _union(self, depth: int) -> Schema:
        return {"anyOf": [self._value(depth + 1), self._leaf()]}

    def _both(self, depth: int) -> Schema:
        first, second = self._object(depth), self._object(depth)
        shared = {**first["properties"], **second["properties"]}
        parts = [{"required": part["required"]} for part in (first, second)]
        return {"type": "object", "properties": shared, "allOf": parts, "additionalProperties": False}

    def _map(self, depth: int) -> Schema:
        return {"type": "object", "additionalProperties": self._leaf(), "minProperties": 1, "maxProperties": 2}

    def _reference(self, depth: int) -> Schema:
        return {"$ref": f"#/$defs/{self._dice.choice(list(self._defs))}"}
