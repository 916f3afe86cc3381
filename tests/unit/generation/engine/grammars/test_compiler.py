"""Compilation: refusals name field and place, bombs are bounded, what was compiled is kept."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from services.generation.engine.engine_error import InvalidRequest
from services.generation.engine.grammars import compiler as module
from services.generation.engine.grammars import trial
from services.generation.engine.grammars.compiler import GrammarCompiler
from services.generation.engine.grammars.grammar import Grammar
from services.generation.engine.grammars.grammar_text import grammar_text
from services.generation.engine.grammars.structured_outputs import MAX_TEXT, Kind, StructuredOutputs
from tests.fakes.grammars import VOCAB, compiler

JOINED = json.dumps({"allOf": [{"pattern": f"a{n}z"} for n in range(17)]})


def refusal(kind: Kind, text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(StructuredOutputs(kind, text))
    assert caught.value.field == f"structured_outputs.{kind}"
    return caught.value.message


def rule_chain(count: int) -> str:
    rules = (f'r{n}: r{n + 1} | "a"' for n in range(count))
    return "\n".join(["start: r0", *rules, f'r{count}: "b"'])


def multiple(*steps: float) -> str:
    """A schema of numbers that are multiples of all of these."""
    return json.dumps({"type": "number", "allOf": [{"multipleOf": step} for step in steps]})


def references(count: int, **each: Any) -> str:
    """A schema that refers to the next one, and so on."""
    chain = {f"d{n}": each | {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "null"}}})


def schema_of(deep: Any) -> str:
    """`deep` two levels down, beside members without fault."""
    members = {"fine": {"type": "string"}, "a/b": {"type": "array", "items": deep}}
    return json.dumps({"type": "object", "properties": members, "required": ["fine"]})


@pytest.mark.parametrize(
    ("schema", "place", "why"),
    [
        (schema_of({"type": "string", "format": "nonsense"}), "/properties/a~1b/items/format", "Unknown format"),
        (schema_of({"type": "strin"}), "/properties/a~1b/items/type", "Invalid type"),
        (schema_of({"type": "string", "pattern": "(?=x)y"}), "/properties/a~1b/items/pattern", "look-around"),
        (schema_of({"unevaluatedProperties": False}), "/properties/a~1b/items/unevaluatedProperties", "Unimplemented"),
        (schema_of({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "/properties/a~1b/items/oneOf", "oneOf"),
        ('{"type": "string", "minLength": 5, "maxLength": 2}', "/minLength", "greater than"),
        (schema_of({"$ref": "https://example.com/other.json"}), "/properties/a~1b/items/$ref", "example.com"),
        (
            json.dumps({"$ref": "#/$defs/id", "$defs": {"id": {"type": "string", "format": "ean"}}}),
            "/$defs/id/format",
            "Unknown format",
        ),
        ('{"x-guidance": []}', "/x-guidance", "expected an object of item_separator"),
        ('{"x-guidance": {"lenient": true}}', "/x-guidance", "expected an object of item_separator"),
    ],
)
def test_a_schema_that_does_not_compile_is_refused_with_the_place_in_it(schema: str, place: str, why: str) -> None:
    message = refusal("json", schema)
    assert message.startswith(f"at {place}: ")
    assert why in message


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json", "{", "is not JSON"),
        ("json", "3", "expected a JSON schema"),
        ("json", r'{"const": "\ud800"}', "is not JSON"),
        ("json", '{"const": NaN}', "is not JSON"),
        ("json", '{"maximum": -1e999}', "is not JSON"),
        ("json", '{"minimum": ' + "9" * 400 + "}", "is not JSON: a number of 400 digits"),
        ("json", "[" * 5000 + "]" * 5000, "is not JSON"),
        ("json", '{"not": ' * 101 + "{}" + "}" * 101, "nested deeper than 100"),
        ("json", "false", "allows no output"),
        ("json", '{"$ref": "#"}', "allows no output"),
        ("json", '"' + "x" * MAX_TEXT + '"', f"at most {MAX_TEXT}"),
        ("json", JOINED, "joins 17 patterns"),
        ("grammar", "start: X\nX: " + " & ".join(f"/.*a{n}.*/" for n in range(18)), "joins 17 patterns"),
        ("grammar", "start: %json " + JOINED, "joins 17 patterns"),
        ("grammar", 'start: "[" x "]"\nx: %json  ' + JOINED + ' | %json {"type": "null"}', "joins 17 patterns"),
        ("grammar", "start: %json " + "[" * 9000, "more than 100 levels deep"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, "does not compile"),
        ("choice", "[]", "expected 1 to 10000"),
        ("choice", '["a", ""]', "not empty"),
        ("choice", '"a"', "expected texts"),
        ("grammar", "start: missing", "unknown name"),
        ("grammar", "nothing at all", "neither Lark nor GBNF"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "deeply nested"),
        ("json", json.dumps({"enum": [f"{n * n:x} and {n:o}" for n in range(9000)]}), "too big"),
    ],
)
def test_what_does_not_compile_is_refused_in_words(kind: Kind, text: str, why: str) -> None:
    message = refusal(kind, text)
    assert why in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("grammar", rule_chain(4000)),
        ("grammar", rule_chain(4000).replace("r", "T").replace("staTt", "start")),
        ("grammar", rule_chain(4000).replace(": ", " ::= ").replace("start", "root")),
        ("json", references(4000)),
        ("json", references(3900, type="strin")),  # the search for its fault would compile the chain
    ],
)
def test_a_chain_that_overflows_the_librarys_stack_costs_one_request(kind: Kind, text: str) -> None:
    refusal(kind, text)
    assert compiler().compile(StructuredOutputs("regex", f"after [0-9]{{{len(text)}}}"))


def test_a_chain_of_three_hundred_rules_compiles() -> None:
    assert compiler().compile(StructuredOutputs("grammar", rule_chain(300)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"type": "integer", "multipleOf": 9999999}'),
        ("json", '{"type": "integer", "multipleOf": 1000000}'),
        ("json", '{"type": "number", "multipleOf": 99.99999}'),
        ("json", multiple(97, 101, 103)),
        ("json", multiple(0.001, 997)),
        ("json", '{"multipleOf": 997, "$ref": "#/$defs/a", "$defs": {"a": {"multipleOf": 991}}}'),
        ("grammar", 'start: %json {"multipleOf": 9999999}'),
    ],
)
def test_multiples_of_too_many_remainders_are_refused_before_the_library_sees_them(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidRequest, match="remainders"):
        grammar_text(StructuredOutputs(kind, text))


@pytest.mark.parametrize("text", ['{"multipleOf": 0.01}', '{"multipleOf": 0.0000001}', multiple(97, 101), multiple(60)])
def test_multiples_of_few_remainders_compile(text: str) -> None:
    assert compiler().compile(StructuredOutputs("json", text))


def test_a_grammar_whose_trial_does_not_end_is_refused_and_the_next_one_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = GrammarCompiler(compiler()._source, VOCAB, (1,))
    fresh.compile(StructuredOutputs("regex", "a"))
    process = fresh._trial._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(trial, "_PATIENCE", 0.1)
    with pytest.raises(InvalidRequest, match="longer than"):
        fresh.compile(StructuredOutputs("regex", "b"))
    monkeypatch.undo()
    assert fresh.compile(StructuredOutputs("regex", "b"))


def test_a_process_that_computes_or_takes_memory_without_end_is_ended_by_the_system() -> None:
    """The bounds that the process lays upon itself, where nothing else stops it."""
    for endless, ended in (("\nwhile True: pass", -signal.SIGXCPU), ("bytearray(2 << 30)", 1)):
        code = f"from services.generation.engine.grammars import trial; trial._CPU = 0; trial._limit(); {endless}"
        assert subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode == ended


def test_half_of_a_surrogate_pair_is_refused() -> None:
    assert "surrogate" in refusal("regex", "a\ud800")


def test_a_grammar_that_takes_too_long_for_its_first_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_SLOWEST", 1e-9)
    with pytest.raises(InvalidRequest, match="too complex"):
        trial.try_out(compiler()._loaded(), StructuredOutputs("regex", "a slow start"))


def test_what_was_compiled_is_kept_and_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    fresh = GrammarCompiler(compiler()._source, VOCAB, (1,))
    first, second, third = (StructuredOutputs("regex", text) for text in ("a+", "b+", "c+"))
    compiled = fresh.compile(first)
    fresh.compile(second)
    assert fresh.compile(first) is compiled
    fresh.compile(third)
    assert fresh.compile(first) is compiled
    assert second not in fresh._kept


def test_a_grammar_that_reached_a_limit_is_compiled_anew() -> None:
    source = StructuredOutputs("regex", "[0-9]{3}")
    spent = compiler().compile(source)
    spent.failed = True
    assert compiler().compile(source) is not spent
    assert compiler().compile(source) == spent


def test_a_model_without_an_end_or_with_a_tokenizer_that_cannot_be_read_takes_no_grammar() -> None:
    source = StructuredOutputs("regex", "a")
    with pytest.raises(InvalidRequest, match="no end-of-sequence token"):
        GrammarCompiler(compiler()._source, VOCAB, ()).compile(source)
    with pytest.raises(InvalidRequest, match="cannot be used with grammars"):
        GrammarCompiler(lambda: "{}", VOCAB, (1,)).compile(source)


async def test_who_waits_for_a_slow_grammar_takes_no_thread_from_others() -> None:
    class Slow(GrammarCompiler):
        def _compile(self, source: StructuredOutputs) -> Grammar:
            slow.wait(20)
            raise InvalidRequest("structured_outputs", "was slow")

    slow = threading.Event()
    grammars = Slow(str, 8, (0,))
    waiting = [asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", f"a{n}"))) for n in range(64)]
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10) == "free"
        assert not any(each.done() for each in waiting)
    finally:
        slow.set()
        await asyncio.gather(*waiting, return_exceptions=True)
