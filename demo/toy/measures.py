"""Measures of a model's answers; plain values in, plain values out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def repeated_share(tokens: Sequence[int], n: int = 4) -> float:
    """Share of a text's n-grams that occurred in it before; 0.0 for a text of fewer than n tokens."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def copied_share(tokens: Sequence[int], prompt: Sequence[int], n: int = 4) -> float:
    """Share of a text's n-grams that occur in its prompt."""
    known = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return sum(gram in known for gram in grams) / len(grams) if grams else 0.0


def offered_tools(system: str) -> dict[str, dict[str, Any]]:
    """The schemas that a system message lists, one JSON object a line, by name."""
    schemas = [json.loads(line) for line in system.splitlines() if line.startswith("{")]
    return {schema["name"]: schema for schema in schemas}


def call_faults(answer: str, tools: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The faults of a tool call; empty for JSON that names an offered tool and follows its schema."""
    try:
        call = json.loads(answer)
    except json.JSONDecodeError as error:
        return [f"not JSON: {error}"]
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"} or not isinstance(call["arguments"], dict):
        return ["not an object with name and arguments"]
    if call["name"] not in tools:
        return [f"no such tool: {call['name']}"]
    return argument_faults(call["arguments"], tools[call["name"]]["parameters"])


def argument_faults(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Where `arguments` break the schema `parameters`: missing, unknown, of another type, outside the enum."""
    properties = parameters["properties"]
    faults = [f"missing: {name}" for name in parameters["required"] if name not in arguments]
    faults += [f"unknown: {name}" for name in arguments if name not in properties]
    known = ((name, value, properties[name]) for name, value in arguments.items() if name in properties)
    return faults + [f"{name}: {value!r} does not fit" for name, value, schema in known if not _fits(value, schema)]


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    # JSON's true is an int to Python.
    if isinstance(value, bool) and schema["type"] != "boolean":
        return False
    return isinstance(value, _JSON_TYPES[schema["type"]]) and value in schema.get("enum", [value])


def quotations(answer: str) -> list[str]:
    """The texts between double quotes; one that the answer leaves open counts to its end."""
    return [quote for quote in re.findall(r'"([^"]*)"?', answer) if quote]


def quotes_exactly(answer: str, passage: str) -> bool:
    """True where the answer quotes at least once and every quotation is word for word in the passage."""
    quotes = quotations(answer)
    return bool(quotes) and all(quote in passage for quote in quotes)


def quotes_the_right_part(answer: str, reference: str) -> bool:
    """True where each quotation begins with the reference's one or the other way round.

    Which of the two is longer is chance: the corpus often adds the sentence after the one asked for.
    """
    pairs = zip(quotations(answer), quotations(reference), strict=False)
    same_number = len(quotations(answer)) == len(quotations(reference))
    return same_number and all(a.startswith(b) or b.startswith(a) for a, b in pairs)
