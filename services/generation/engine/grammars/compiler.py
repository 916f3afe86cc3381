"""From a constraint to a compiled grammar, within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from services.generation.engine.engine_error import InvalidRequest
from services.generation.engine.grammars.grammar import Grammar
from services.generation.engine.grammars.schema_fault import path_of_fault
from services.generation.engine.grammars.structured_outputs import MAX_TEXT, StructuredOutputs
from services.generation.engine.text.json_text import read_json

MAX_CHOICES = 10_000
KEPT = 64  # grammars
_SLOWEST = 1.0  # seconds that a grammar may take for its first mask; others follow in microseconds
_DEEPEST = 100  # levels of a schema
_MOST_JOINED = 16  # patterns that hold at once: each more doubles what compiling takes, which has no bound of its own
_LONGEST_MESSAGE = 400  # characters
_JSON = re.compile(r"%json\s*")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')

_LIMITS = LLParserLimits(
    initial_lexer_fuel=100_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""A lexer state takes 1 to 2 kB, fuel for a mask about 14 ms at most."""

JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python's `json.dumps` lays it out. A schema's own `x-guidance` may say otherwise."""


class GrammarCompiler:
    """For one tokenizer. From any thread; a caller waits while its grammar is compiled, the engine's thread never."""

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`tokenizer` gives tokenizer.json; it is asked for with the first grammar, which takes about a second."""
        self._source, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._compiling, self._keeping = threading.Lock(), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "grammars")  # of its own: who waits for it takes no thread from others

    async def compiled(self, source: StructuredOutputs) -> Grammar:
        """`compile` on a thread, unless it is kept from before. Raises InvalidRequest."""
        if (kept := self._find(source)) is not None:
            return kept
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, source)

    def compile(self, source: StructuredOutputs) -> Grammar:
        """The compiled grammar, perhaps kept from before. Raises InvalidRequest naming the field and what is wrong."""
        if (kept := self._find(source)) is not None:
            return kept
        _check_size(source)
        with self._compiling:  # one at a time: a bad grammar costs its time once
            if (kept := self._find(source)) is None:
                kept = self._compile(source)
                self._keep(kept)
            return kept

    def _find(self, source: StructuredOutputs) -> Grammar | None:
        """One that has failed is compiled anew: the states of its lexer may have reached a limit."""
        with self._keeping:
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
            return None if kept is None or kept.failed else kept

    def _keep(self, grammar: Grammar) -> None:
        with self._keeping:
            self._kept[grammar.source] = grammar
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _compile(self, source: StructuredOutputs) -> Grammar:
        tokenizer, field = self._loaded(), f"structured_outputs.{source.kind}"
        schema = _schema(source, field)
        _check_joined(source, schema, field)
        matcher = self._matcher(tokenizer, _written(source, schema, field))
        if error := matcher.get_error():
            if source.kind != "json":
                raise InvalidRequest(field, f"does not compile: {_plain(error)}")
            at = path_of_fault(schema, error, lambda s: self._matcher(tokenizer, _json_grammar(s)).get_error())
            raise InvalidRequest(field, f"at {at or 'its root'}: {_plain(error)}")
        _try(matcher.deep_copy(), field)
        return Grammar(source, tokenizer.eos_token, self._vocab_size, matcher)

    @staticmethod
    def _matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        return LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)

    def _loaded(self) -> LLTokenizer:
        if not self._eos_token_ids:
            raise InvalidRequest("structured_outputs", "this model has no end-of-sequence token to end an output with")
        if self._tokenizer is None:
            try:
                self._tokenizer = LLTokenizer(
                    self._source(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids[0]
                )
            except Exception as error:  # the library raises several kinds
                message = f"this model's tokenizer cannot be used with grammars: {_plain(str(error))}"
                raise InvalidRequest("structured_outputs", message) from error
        return self._tokenizer


def _check_size(source: StructuredOutputs) -> None:
    if len(source.text) > MAX_TEXT:
        message = f"has {len(source.text)} characters, at most {MAX_TEXT}"
        raise InvalidRequest(f"structured_outputs.{source.kind}", message)


def _check_joined(source: StructuredOutputs, schema: Any, field: str) -> None:
    schemas = _embedded(source.text) if source.kind == "grammar" else [schema]
    try:
        count = max(map(_joined, schemas), default=0)
    except RecursionError:
        raise InvalidRequest(field, f"nests schemas more than {_DEEPEST} levels deep") from None
    if source.kind == "grammar":
        count = max(count, _QUOTED.sub("", source.text).count("&"))
    if count > _MOST_JOINED:
        raise InvalidRequest(field, f"joins {count} patterns (allOf, $ref, &), at most {_MOST_JOINED} are taken")


def _joined(schema: Any) -> int:
    """Patterns of a schema, where some of them may have to hold at once."""
    objects = list(_objects(schema))
    joins = any("allOf" in each or {"$ref", "pattern"} <= each.keys() for each in objects)
    return sum("pattern" in each for each in objects) if joins else 0


def _embedded(grammar: str) -> Iterator[Any]:
    """The schemas inside of a Lark grammar. What is no JSON is refused by its compiler."""
    decoder = json.JSONDecoder()
    for found in _JSON.finditer(grammar):
        with suppress(ValueError):
            yield decoder.raw_decode(grammar, found.end())[0]


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
    try:
        schema = read_json(source.text)
    except ValueError as error:
        raise InvalidRequest(field, f"is not JSON: {_plain(str(error))}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(field, "expected a JSON schema: an object, true or false")
    if _depth(schema) > _DEEPEST:
        raise InvalidRequest(field, f"is nested deeper than {_DEEPEST} levels")
    if schema is False:
        raise InvalidRequest(field, "allows no output")
    schema = {} if schema is True else schema
    layout = schema.get("x-guidance", {})
    if not isinstance(layout, dict) or layout.keys() - JSON_LAYOUT.keys():  # others, as lenient, drop keywords
        raise InvalidRequest(field, f"at /x-guidance: expected an object of {', '.join(sorted(JSON_LAYOUT))}")
    return schema


def _written(source: StructuredOutputs, schema: Any, field: str) -> str:
    """As llguidance takes it."""
    if schema is not None:
        return _json_grammar(schema)
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind == "choice":
        choices = _choices(source.text, field)
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices)))
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(source.text))
    except Exception as error:  # GbnfToLarkError, and what a parser trips over
        raise InvalidRequest(field, f"is neither Lark nor GBNF: {_plain(str(error))}") from None


def _json_grammar(schema: Any) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_LAYOUT)  # type: ignore[arg-type]


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


def _try(matcher: LLMatcher, field: str) -> None:
    """Compute the first mask here and now: a grammar that allows nothing, or takes too long, is refused."""
    started = time.thread_time()
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(field, f"allows no output: {_plain(matcher.get_error())}")
    if time.thread_time() - started > _SLOWEST:
        raise InvalidRequest(field, "is too complex: its first token takes longer than a second")


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level and deepest <= _DEEPEST:
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for children in inner for child in children]
        deepest += 1
    return deepest


def _plain(message: str) -> str:
    message = " ".join(message.replace("<non-verbose/>", "").split())
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"
