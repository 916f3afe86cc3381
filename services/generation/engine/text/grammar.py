"""A constraint on an output as a grammar that llguidance reads, within bounds by count."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from services.generation.engine.request import MAX_TEXT, InvalidRequest, StructuredOutputs
from services.generation.engine.text.json_schema import (
    JSON_ESCAPES,
    JSON_LAYOUT,
    SchemaDecoder,
    SchemaRefused,
    check_numbers,
    check_schema,
    dumped,
    exact_grammar,
    read_schema,
    schema_rule,
    with_options,
)

MAX_CHOICES = 10_000
_DEEPEST = 100  # levels of a schema
_MOST_JOINED = 16  # patterns of an intersection: each doubles the compile time, which has no bound of its own
_MOST_REMAINDERS = 100_000  # of `multipleOf`: a lexer state each, and their product in an intersection
_LONGEST_MESSAGE = 400  # characters
_MOST_GBNF_RULES = 1_000  # converting takes quadratic time
_GBNF_RULE = re.compile(r"(?m)^\s*[\w-]+\s*::=")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_LARK = re.compile(
    r"""
    "(?:\\.|[^"\\])*+"?          # a string; here and below, the compiler refuses one without an end
    | (?:\#|//)[^\n]*            # a comment
    | <[^<>]*+>?                 # a special token
    | (?P<regex>/(?:\\.|[^/\\])++/?)
    | (?P<json>%json\s*)
    """,
    re.DOTALL | re.VERBOSE,
)
_LARK_PLACE = re.compile(r"\Aat \d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n *\d+ \| ")


def grammar_text(source: StructuredOutputs) -> str:
    """The grammar in llguidance's form. Raises InvalidRequest naming the field and the problem."""
    schema, field = _checked_schema(source), field_of(source)
    if schema is not None:
        return _json_grammar(schema, field)
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind == "choice":
        choices = _choices(source.text, field)
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices)))
    try:
        return LLMatcher.grammar_from_lark(_as_lark(source.text))
    except Exception as error:  # GbnfToLarkError, and errors of its parser
        raise InvalidRequest(field, f"has ::= and is not valid GBNF: {plain(str(error))}") from None


def field_of(source: StructuredOutputs) -> str:
    return f"structured_outputs.{source.kind}"


def _checked_schema(source: StructuredOutputs) -> Any:
    """The schema of a JSON constraint, None for others. Raises InvalidRequest if a bound is exceeded."""
    check_size(source)
    field = field_of(source)
    schema = _schema(source, field)
    try:
        schemas = [each for _, each, _ in _embedded(source.text)] if source.kind == "grammar" else [schema]
        for each in schemas:
            check_schema(each)
            if source.kind == "grammar":
                check_numbers(each)
        _check_joined(source, schemas, field)
    except SchemaRefused as error:
        raise InvalidRequest(field, plain(str(error))) from None
    except RecursionError:
        raise InvalidRequest(field, f"nests schemas more than {_DEEPEST} levels deep") from None
    return schema


def check_size(source: StructuredOutputs) -> None:
    if len(source.text) > MAX_TEXT:
        raise InvalidRequest(field_of(source), f"has {len(source.text)} characters, at most {MAX_TEXT}")
    try:
        source.text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field_of(source), "has half of a surrogate pair, which is not a character") from None


def _check_joined(source: StructuredOutputs, schemas: list[Any], field: str) -> None:
    count, remainders = (max(map(most, schemas), default=0) for most in (_joined, _remainders))
    if source.kind == "grammar":
        count = max(count, _LARK.sub(lambda found: found["regex"] or "", source.text).count("&"))
    if count > _MOST_JOINED:
        raise InvalidRequest(field, f"joins {count} patterns (allOf, $ref, &), at most {_MOST_JOINED} are taken")
    if remainders > _MOST_REMAINDERS:
        raise InvalidRequest(
            field,
            f"has numbers of {remainders} remainders (multipleOf; joined by allOf or $ref, their product): "
            f"at most {_MOST_REMAINDERS} are taken",
        )


def _joined(schema: Any) -> int:
    """Count of a schema's patterns, 0 if it intersects none."""
    objects = list(_objects(schema))
    joins = any("allOf" in each or {"$ref", "pattern"} <= each.keys() for each in objects)
    return sum("pattern" in each for each in objects) if joins else 0


def _remainders(schema: Any) -> int:
    """Remainders by `multipleOf`, in units of the smallest decimal place; their product if they may intersect."""
    objects = list(_objects(schema))
    given = [each.get("multipleOf") for each in objects]
    steps = {Decimal(repr(step)) for step in given if isinstance(step, int | float) and not isinstance(step, bool)}
    joins = any("allOf" in each or "$ref" in each for each in objects)
    place = min((_exponent(step) for step in steps), default=0) if joins else 0
    counts = [int(abs(step).scaleb(-(place if joins else _exponent(step)))) for step in steps]
    return (math.prod if joins else max)(counts or [0])


def _exponent(number: Decimal) -> int:
    return min(int(number.normalize().as_tuple().exponent), 0)


def _embedded(grammar: str) -> Iterator[tuple[int, Any, int]]:
    """The schemas inside of a Lark grammar, each between its start and its end. Invalid JSON is left to the compiler,
    which refuses it.
    """
    decoder, end = SchemaDecoder(), 0
    while found := _LARK.search(grammar, end):
        end = found.end()
        if found["json"] is None:
            continue
        with suppress(ValueError):
            schema, end = decoder.raw_decode(grammar, found.end())
            yield found.end(), schema, end


def _with_escapes(grammar: str) -> str:
    """The Lark grammar with `JSON_ESCAPES` in its schemas."""
    pieces, place = list[str](), 0
    for start, schema, end in _embedded(grammar):
        if isinstance(schema, dict):
            with suppress(ValueError):  # a number beyond float64, which the compiler refuses
                pieces += [grammar[place:start], dumped(with_options(schema, JSON_ESCAPES))]
                place = end
    return "".join([*pieces, grammar[place:]])


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _objects(each)


def _schema(source: StructuredOutputs, field: str) -> Any:
    """The schema of a JSON constraint, None for others."""
    if source.kind == "json_object":
        return {"type": "object"}
    if source.kind != "json":
        return None
    schema = checked_json(source)
    if schema is False:
        raise InvalidRequest(field, "allows no output")
    schema = {} if schema is True else schema
    layout = schema.get("x-guidance", {})
    if not isinstance(layout, dict) or layout.keys() - JSON_LAYOUT.keys():  # others, such as lenient, drop keywords
        raise InvalidRequest(field, f"at /x-guidance: expected an object of {', '.join(sorted(JSON_LAYOUT))}")
    return schema


def checked_json(source: StructuredOutputs) -> Any:
    """The schema of a JSON constraint, of any keywords. Raises InvalidRequest, also if it is nested too deep."""
    field = field_of(source)
    try:
        schema = read_schema(source.text)
    except SchemaRefused as error:
        raise InvalidRequest(field, plain(str(error))) from None
    except ValueError as error:
        raise InvalidRequest(field, f"is not JSON: {plain(str(error))}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(field, "expected a JSON schema: an object, true or false")
    if _depth(schema) > _DEEPEST:
        raise InvalidRequest(field, f"is nested deeper than {_DEEPEST} levels")
    return schema


def _as_lark(text: str) -> str:
    """GBNF converted to Lark; a text without a rule of GBNF is Lark, whose schemas get the escapes of other schemas.
    Raises errors of the converter.
    """
    if not (rules := len(_GBNF_RULE.findall(text))):
        return _with_escapes(text)
    if rules > _MOST_GBNF_RULES:
        raise ValueError(f"has {rules} rules, at most {_MOST_GBNF_RULES} are taken")
    return gbnf_to_lark(_ESCAPE.sub(_character, text))


def _character(escape: re.Match[str]) -> str:
    """The character of an escape: the converter strips zeros of `\\u00e9`, and Lark reads `\\xe9` as a byte."""
    if (digits := escape[1] or escape[2] or escape[3]) is None:
        return escape[0]
    code = int(digits, 16)
    if 0xD800 <= code < 0xE000:
        raise ValueError(f"{escape[0]} is half of a surrogate pair, which is not a character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _json_grammar(schema: Any, field: str) -> str:
    try:
        exact = exact_grammar(schema)
    except SchemaRefused as error:
        raise InvalidRequest(field, plain(str(error))) from None
    if exact is not None:
        return LLMatcher.grammar_from_lark(exact)
    defaults: Any = JSON_LAYOUT | JSON_ESCAPES
    return LLMatcher.grammar_from_json_schema(dumped(schema), defaults=defaults)


def _choices(text: str, field: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequest(field, "expected texts that are not empty")
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequest(field, f"has {len(choices)} texts; expected 1 to {MAX_CHOICES}")
    return choices


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level and deepest <= _DEEPEST:
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for children in inner for child in children]
        deepest += 1
    return deepest


def plain(message: str) -> str:
    """A message in one line of bounded length."""
    message = " ".join(message.replace("<non-verbose/>", "").split())
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"


def compile_error(source: StructuredOutputs, error: str) -> str:
    """An error of the library in one line. Lark that kolm has generated, and places in it, are left out."""
    if source.kind != "grammar":
        error = _EXCERPT.split(_LARK_PLACE.sub("", error), maxsplit=1)[0]
    return f"does not compile: {plain(error)}"


def lark_rule(source: StructuredOutputs) -> str:
    """The body of a rule that matches `source`, which has compiled by itself."""
    match source.kind:
        case "json":
            return schema_rule(read_schema(source.text))
        case "json_object":
            return schema_rule({"type": "object"})
        case "choice":
            return "(" + " | ".join(map(json.dumps, json.loads(source.text))) + ")"
        case "regex":
            (grammar,) = json.loads(LLMatcher.grammar_from_regex(source.text))["grammars"]
            return f"%lark {{\n{grammar['lark_grammar']}\n}}"
    return f"%lark {{\n{_as_lark(source.text)}\n}}"
