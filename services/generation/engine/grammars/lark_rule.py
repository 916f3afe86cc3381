"""A constraint as part of a larger Lark grammar."""

from __future__ import annotations

import json

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from services.generation.engine.grammars.grammar_text import JSON_LAYOUT
from services.generation.engine.grammars.structured_outputs import StructuredOutputs


def lark_rule(source: StructuredOutputs) -> str:
    """The body of a rule that matches what `source` allows; `source` has compiled by itself."""
    match source.kind:
        case "json":
            return json_rule(json.loads(source.text))
        case "json_object":
            return json_rule({"type": "object"})
        case "choice":
            return "(" + " | ".join(map(json.dumps, json.loads(source.text))) + ")"
        case "regex":
            (grammar,) = json.loads(LLMatcher.grammar_from_regex(source.text))["grammars"]
            return f"%lark {{\n{grammar['lark_grammar']}\n}}"
    return f"%lark {{\n{any_to_lark(source.text)}\n}}"


def json_rule(schema: object) -> str:
    """The same for a JSON schema."""
    given = schema if isinstance(schema, dict) else {}
    layout = JSON_LAYOUT | given.get("x-guidance", {})
    return f"%json {json.dumps(given | {'x-guidance': layout})}"
