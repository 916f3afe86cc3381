"""JSON schemas: numbers that float64 does not have are kept or refused, keywords that are not known are refused."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.request import InvalidRequest, StructuredOutputs
from services.generation.engine.text.grammar import lark_rule
from services.generation.engine.text.grammar_compiler import matcher_of
from services.generation.engine.text.json_schema import ANNOTATIONS, _decimals, _integers
from services.generation.engine.text.tool_calls import PLAIN
from services.generation.requests.prompt import Tools, read_tools
from services.runtime.errors import InvalidArgument
from tests.examples import examples
from tests.fakes.grammars import compiler, encoded

BIG = 2**53 + 1
ID = 175928847299117063  # a float64 has ...056
WHOLE = st.one_of(
    st.integers(-(2**70), 2**70),
    st.builds(lambda power, more: 2**power + more, st.integers(50, 66), st.integers(-2, 2)),
    st.builds(lambda power, more: -(2**power) + more, st.integers(50, 66), st.integers(-2, 2)),
)


def allows(schema: Any, text: str, kind: str = "json") -> bool:
    """Raises InvalidRequest if the schema is refused."""
    matcher = _matcher(kind, schema if isinstance(schema, str) else json.dumps(schema)).deep_copy()
    return matcher.consume_tokens(encoded(text)) and matcher.is_accepting()


@lru_cache(maxsize=1)
def _matcher(kind: Any, schema: str) -> Any:
    return matcher_of(compiler()._loaded(), StructuredOutputs(kind, schema))


def refusal(schema: Any, kind: str = "json") -> str:
    source = StructuredOutputs(kind, schema if isinstance(schema, str) else json.dumps(schema))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as refused:
        matcher_of(compiler()._loaded(), source)
    assert refused.value.field == f"structured_outputs.{kind}"
    return refused.value.message


PLACES: list[Callable[[Any], tuple[Any, Any]]] = [
    lambda schema: (schema, None),
    lambda schema: ({"type": "object", "properties": {"id": schema}, "required": ["id"]}, {"id": ...}),
    lambda schema: ({"properties": {"a": {"type": "string"}, "id": schema}}, {"a": "b", "id": ..., "c": [1]}),
    lambda schema: ({"type": "object", "additionalProperties": schema}, {"x": ..., "y": ...}),
    lambda schema: ({"type": "array", "items": schema, "minItems": 1}, [..., ...]),
    lambda schema: ({"anyOf": [{"type": "null"}, {"type": "array", "items": schema, "maxItems": 1}]}, [...]),
    lambda schema: ({"$ref": "#/$defs/a~1b", "title": "t", "$defs": {"a/b": schema}}, None),
    lambda schema: (
        {
            "type": "object",
            "properties": {"id": schema, "next": {"$ref": "#"}, "name": {"$ref": "#/$defs/a~1b%2525"}},
            "required": ["id", "name"],
            "additionalProperties": False,
            "$defs": {"a/b%25": {"type": "string", "maxLength": 3}, "unused": {"const": BIG}},
        },
        {"id": ..., "next": {"id": ..., "name": "ab"}, "name": "c"},
    ),
]
"""Schemas that hold another one, and outputs that hold what it allows in the place of an ellipsis."""


def written(form: Any, value: str) -> str:
    if form in (None, ...):
        return value
    if isinstance(form, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {written(each, value)}" for name, each in form.items()) + "}"
    return "[" + ", ".join(written(each, value) for each in form) + "]" if isinstance(form, list) else json.dumps(form)


@given(number=WHOLE, place=st.sampled_from(PLACES), more=st.sampled_from([1, -1, 2, -2, 512]))
@settings(deadline=None, max_examples=examples(400))
def test_a_constant_is_the_number_that_was_written_and_no_neighbour(
    number: int, place: Callable[[Any], tuple[Any, Any]], more: int
) -> None:
    for constant in ({"const": number}, {"type": ["integer", "null"], "enum": ["x", number]}):
        schema, form = place(constant)
        assert allows(schema, written(form, str(number)))
        assert not allows(schema, written(form, str(number + more)))


@pytest.mark.parametrize(
    "text",
    [
        "0.10000000000000000555", "1e-400", "-0.0", "1.0", "1e22", "123456789012345678901234567890.5", "5e-324",
        "1.7976931348623157e308", "0.1",
    ],
)  # fmt: skip
def test_a_constant_of_any_digits_is_equal_to_the_number_that_was_written(text: str) -> None:
    matcher = matcher_of(compiler()._loaded(), StructuredOutputs("json", f'{{"const": {text}}}'))
    forced = bytes(matcher.compute_ff_bytes()).decode()
    assert Decimal(forced) == Decimal(text)


@pytest.mark.parametrize(
    "constant",
    [{"user": ID, "rest": [None, True, "ü\n\"", -BIG, {}]}, [ID, [ID]], [{"a": ID}]],
)  # fmt: skip
def test_numbers_within_a_constant_are_kept(constant: Any) -> None:
    text = json.dumps(constant, ensure_ascii=False)
    assert allows({"const": constant}, text)
    assert not allows({"const": constant}, text.replace("3", "4", 1))
    assert allows({"type": ["object", "array"], "enum": [constant, "another", {"user": 1}]}, text)


@given(
    bounds=st.tuples(WHOLE | st.none(), WHOLE | st.none()).filter(
        lambda pair: pair[0] is None or pair[1] is None or pair[0] + 4 <= pair[1]
    ),
    exclusive=st.booleans(),
    probes=st.lists(WHOLE, min_size=5, max_size=5),
    place=st.sampled_from(PLACES),
)
@settings(deadline=None, max_examples=examples(300))
def test_whole_numbers_keep_to_bounds_of_any_size(
    bounds: tuple[int | None, int | None], exclusive: bool, probes: list[int], place: Callable[[Any], tuple[Any, Any]]
) -> None:
    names = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    limited = {name: bound for name, bound in zip(names, bounds, strict=True) if bound is not None}
    schema, form = place({"type": "integer"} | limited)
    low, high = bounds
    edges = [bound + more for bound in bounds if bound is not None for more in (-1, 0, 1)]
    for number in (*edges, *probes):
        fits = (low is None or low + exclusive <= number) and (high is None or number <= high - exclusive)
        assert allows(schema, written(form, str(number))) is fits, number


INT64, UINT64 = (-(2**63), 2**63 - 1), (0, 2**64 - 1)


@pytest.mark.parametrize(("low", "high"), [INT64, UINT64, (-(2**64), 2**64), (-(2**63), None), (None, 2**64 - 1)])
@pytest.mark.parametrize("kind", ["integer", "number", ["number", "null"]])
def test_bounds_of_64_bits_hold_and_forbid_the_next_number(low: int | None, high: int | None, kind: Any) -> None:
    schema = {"type": kind, "format": "int64", "minimum": low, "maximum": high}
    schema = {name: value for name, value in schema.items() if value is not None}
    for bound, beyond in ((low, -1), (high, 1)):
        if bound is not None:
            assert allows(schema, str(bound))
            assert allows(schema, str(bound - beyond))
            assert not allows(schema, str(bound + beyond))
    assert allows(schema, "7")
    assert allows(schema, "7.25") is (kind != "integer")


@given(low=st.integers(-1200, 1200) | st.none(), high=st.integers(-1200, 1200) | st.none())
@settings(max_examples=examples(200))
def test_expressions_of_ranges_match_what_is_within(low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    whole, decimal = re.compile(_integers(low, high)), re.compile(_decimals(low, high))
    for number in range(-1300, 1300):
        fits = (low is None or low <= number) and (high is None or number <= high)
        assert (whole.fullmatch(str(number)) is not None) is fits
        for half in (number + 0.5, number - 0.5):
            within = (low is None or low <= half) and (high is None or half <= high)
            assert (decimal.fullmatch(str(half)) is not None) is within


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a/b": {"minimum": BIG, "multipleOf": 3}}}, "/properties/a~1b/minimum"),
        ({"oneOf": [{"const": BIG}, {"type": "null"}]}, "/oneOf/0/const"),
        ({"allOf": [{"enum": [1, [BIG]]}, {"type": "array"}]}, "/allOf/0/enum/1/0"),
        ({"x-guidance": {"item_separator": ","}, "const": BIG}, "/const"),
        ({"type": "number", "exclusiveMaximum": 2**60}, "/exclusiveMaximum"),
        ({"type": "integer", "minimum": 0.5, "maximum": 2**63}, "/maximum"),
        ({"type": "array", "prefixItems": [{"const": BIG}]}, "/prefixItems/0/const"),
        ({"$ref": "#/x-own/deep", "x-own": {"deep": {"allOf": [{"const": BIG}, {}]}}}, "/x-own/deep/allOf/0/const"),
        ('{"multipleOf": 0.10000000000000000555}', "/multipleOf"),
        ('{"const": 1e400}', "/const"),
        ('{"const": Infinity}', "/const"),
        ('{"minimum": 1e-9999999999999999999}', "/minimum"),
        ('{"properties": {"a": {"enum": [1, -1e400]}}}', "/properties/a/enum/1"),
        (f'{{"default": {"9" * 400}}}', "/default"),
        ({"properties": {"a": {"items": [{"const": BIG}]}}}, "/properties/a/items"),
        ({"type": "array", "minItems": 1, "items": [{"minimum": BIG}]}, "/items"),
        ('{"type": "number", "minimum": 0.10000000000000000555}', "/minimum"),
    ],
)
def test_a_number_that_cannot_be_kept_is_refused_by_its_path(schema: Any, path: str) -> None:
    message = refusal(schema)
    assert message.startswith(f"at {path}: ")


def test_a_number_beyond_float64_in_a_tool_is_refused_by_its_path() -> None:
    tool = pb.Tool(name="ban", parameters='{"properties": {"user": {"maximum": 1e400}}}')
    with pytest.raises(InvalidArgument) as refused:
        read_tools(pb.ChatMessages(tools=[tool]))
    assert str(refused.value).startswith("messages.tools[0].parameters: at /properties/user/maximum: ")


def test_a_reference_to_a_number_of_any_length_is_refused() -> None:
    for digits in (1, 5000):
        assert refusal({"anyOf": [{"const": BIG}], "$ref": f"#/anyOf/{'1' * digits}"})


@pytest.mark.parametrize("other", [{"items": 5}, {"additionalProperties": "x"}, {"anyOf": [1]}])
def test_a_subschema_that_is_no_schema_is_refused_by_its_path(other: dict[str, Any]) -> None:
    (keyword,) = other
    assert refusal(other).startswith(f"at /{keyword}")
    assert refusal({"properties": {"a": {"const": BIG}, "b": other}}).startswith(f"at /properties/b/{keyword}")


def test_an_error_of_the_library_shows_no_generated_lark() -> None:
    message = refusal({"properties": {"a": {"const": BIG}, "b": {"format": "ean"}}})
    assert "ean" in message
    assert "%json" not in message


def test_a_number_within_a_grammar_is_refused_by_its_path() -> None:
    grammar = 'start: "id: " x\nx: %json {"properties": {"id": {"const": 9007199254740993}}}'
    for number in ("9007199254740993", "1e-9999999999999999999"):
        refused = refusal(grammar.replace("9007199254740993", number), "grammar")
        assert refused.startswith("at /properties/id/const: ")
    assert allows(grammar.replace("993", "992"), 'id: {"id": 9007199254740992}', "grammar")


@pytest.mark.parametrize(
    ("grammar", "output"),
    [
        ('start: "%json {}"', "%json {}"),
        ('start: "a" // %json {"const": 1}', "a"),
        ('start: "a" # don\'t "%json {}', "a"),
        (r'start: "\"%json {}"', '"%json {}'),
        ('start: /"/ x\nx: %json {"const": "a"}', '""a"'),
    ],
)
def test_a_schema_within_a_literal_or_a_comment_is_text(grammar: str, output: str) -> None:
    assert allows(grammar, output, "grammar")


@pytest.mark.parametrize("before", ['/"/', '<\x1c">', '"\\\\"', '//"\nX: '])
def test_no_literal_hides_the_bounds_of_what_follows_it(before: str) -> None:
    joined = " & ".join(f"/.*a{n}.*/" for n in range(18))
    assert "at most 16" in refusal(f'start: X\nX: {before} {joined} /"/', "grammar")
    assert "/divisibleBy" in refusal(f'start: {before} %json {{"divisibleBy": 2}} "', "grammar")


def test_numbers_that_constrain_nothing_may_be_of_any_size() -> None:
    told = {"default": BIG, "examples": [BIG], "description": "big", "x-most": 2**64}
    assert allows(told | {"type": "integer"}, "7")
    assert allows(told | {"const": BIG}, str(BIG))


def test_arguments_of_a_tool_are_the_numbers_of_its_schema() -> None:
    schema = {"type": "object", "properties": {"user": {"enum": [ID]}}, "required": ["user"]}
    tool = pb.Tool(name="ban", parameters=json.dumps(schema | {"additionalProperties": False}))
    grammar = Tools((tool,), required=True, held=True).grammar(PLAIN, {})
    assert allows(grammar, PLAIN.written([("ban", f'{{"user": {ID}}}')]), "grammar")
    assert not allows(grammar, PLAIN.written([("ban", f'{{"user": {int(float(ID))}}}')]), "grammar")


@pytest.mark.parametrize(
    "keyword", ["maxLenght", "if", "not", "uniqueItems", "divisibleBy", "strict", "nullable", "a/b"]
)
@pytest.mark.parametrize("draft", [{}, {"$schema": "http://json-schema.org/draft-04/schema#"}])
def test_a_keyword_that_is_not_known_is_refused_by_name(keyword: str, draft: dict[str, str]) -> None:
    inner = {"type": "string", keyword: True}
    schema = draft | {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/inner"}], "$defs": {"inner": inner}}
    assert refusal(schema).startswith(f"at /$defs/inner/{keyword.replace('/', '~1')}: ")
    assert keyword.replace("/", "~1") in refusal(f"start: %json {json.dumps(schema)}", "grammar")


def test_annotations_and_names_that_begin_with_x_are_taken() -> None:
    told = dict.fromkeys(ANNOTATIONS - {"$id", "id", "$schema", "$anchor", "$defs", "definitions"}, "t")
    assert allows(told | {"const": "a", "nullable": False, "x-order": 3, "$id": "https://a.example/b"}, '"a"')
    assert refusal({"items": {"x-guidance": {}}}).startswith("at /items/x-guidance: ")


@pytest.mark.parametrize(
    "rest",
    [
        {"properties": {"a": {"const": 1}}},
        {"properties": {"a": {"const": 1}}, "x-guidance": {"item_separator": ", "}},
        {"patternProperties": {"^a": {"const": 1}}},
    ],
)
def test_no_additional_member_has_a_name_of_the_schema_in_another_spelling(rest: dict[str, Any]) -> None:
    schema = json.dumps({"type": "object"} | rest)
    rule = lark_rule(StructuredOutputs("json", schema))
    for text, kind in ((schema, "json"), (f"start: {rule}", "grammar"), (f"start: %json {schema} //", "grammar")):
        assert allows(text, r'{"a": 1, "\n": 2}', kind)
        assert not allows(text, r'{"a": 1, "\u0061": 2}', kind)


@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_a_constant_that_outputs_cannot_spell_is_refused_by_its_path(keyword: str) -> None:
    for character in "\0\x1f\x7f":
        constants = [{"a": ["b", character]}]
        assert refusal({"items": {keyword: constants}}).startswith(f"at /items/{keyword}: has a control character")
    assert allows({"const": {"\0": "\n"}}, json.dumps({"\0": "\n"}))
