"""Grammars over tokenizers with markup: a caller's text is written in text's tokens, a template's markup in its own."""

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from tokenizers import Tokenizer as FastTokenizer

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.request import StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.text.gguf_tokenizer import gguf_tokenizer
from services.generation.engine.text.grammar_compiler import matcher_of
from services.generation.engine.text.grammar_tokens import GrammarTokens, grammar_tokenizer
from services.generation.engine.text.markup import Markup
from services.generation.requests.prompt import Tools
from tests.fakes.grammars import ids
from tests.fakes.marked import FAMILIES, VOCAB, Family, library_of, marked_grammar, markup_of, opening_of, tokenizer_of
from tests.fakes.tiny_model import tiny_tokenizer

NAMES = tuple(FAMILIES)


def mask_of(name: str, source: StructuredOutputs) -> GrammarMask:
    return GrammarMask(marked_grammar(FAMILIES[name], source), frozenset((FAMILIES[name].end,)))


def walked(name: str, mask: GrammarMask, rng: random.Random, begun: tuple[int, ...] = ()) -> list[int]:
    """An output of random tokens that the grammar allows, up to its end, which is taken if it is allowed."""
    tokens = list[int]()
    for token in (*begun, *(None for _ in range(2000))):
        allowed = ids(mask)
        assert allowed
        if token is None and FAMILIES[name].end in allowed:
            return tokens
        tokens.append(rng.choice(allowed) if token is None else token)
        assert tokens[-1] in allowed
        mask.accept(tokens[-1])
    raise AssertionError("does not end")


@pytest.fixture(scope="module", params=[*NAMES, "tiny", "smollm2"])
def real(request: pytest.FixtureRequest) -> Iterator[tuple[FastTokenizer, int]]:
    """A tokenizer, and an id for the end."""
    if request.param in FAMILIES:
        yield tokenizer_of(FAMILIES[request.param]), FAMILIES[request.param].end
    elif request.param == "tiny":
        yield tiny_tokenizer(VOCAB).backend_tokenizer, 1
    else:
        yield gguf_tokenizer(request.getfixturevalue("smollm2")).backend_tokenizer, 2


def test_every_token_is_markup_for_the_library_that_is_markup_here(real: tuple[FastTokenizer, int]) -> None:
    fast, end = real
    size = fast.get_vocab_size() + 3
    built = grammar_tokenizer(fast.to_str(), size, end)
    marks = Markup(fast).ids
    for index, token in fast.get_added_tokens_decoder().items():
        assert built.is_special_token(index) is (token.content in marks)
    assert all(built.is_special_token(index) for index in (end, size - 1, size - 2))
    without = LLTokenizer(fast.to_str(), n_vocab=size)
    assert [built.decode_bytes([index]) for index in range(size)] == [without.decode_bytes([i]) for i in range(size)]


def test_any_text_is_encoded_without_markup_to_tokens_of_its_bytes(real: tuple[FastTokenizer, int]) -> None:
    fast, end = real
    tokens = GrammarTokens(fast.to_str(), fast.get_vocab_size(), end)
    marks = sorted(token.content for token in fast.get_added_tokens_decoder().values())
    parts = st.sampled_from([*marks, " ", "\n", "to", "e\u0301", "\u1100\u1161"]) | st.text("xé漢😀", max_size=3)

    @settings(deadline=None)
    @given(st.lists(parts, max_size=8).map("".join))
    def check(text: str) -> None:
        found = tokens(text)
        data = b"".join(tokens.tokens[index] for index in found)
        assert text.encode().startswith(data)
        assert data == text.encode() or tokens(text.encode()[len(data) :].decode(errors="ignore")[:1]) == []
        assert tokens.text_ids.issuperset(found)

    check()


def test_a_text_is_encoded_once_for_all_who_ask(
    real: tuple[FastTokenizer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, end = real
    tokens, encoded = GrammarTokens(fast.to_str(), fast.get_vocab_size(), end), list[str]()
    plain = Markup.encode_plain
    monkeypatch.setattr(Markup, "encode_plain", lambda self, text: (encoded.append(text), plain(self, text))[1])
    first = tokens("to the ledger")
    expected = list(first)
    first.clear()
    assert tokens("to the ledger") == expected
    assert encoded == ["to the ledger"]


def test_markup_alone_may_be_beyond_the_model_s_tokens(real: tuple[FastTokenizer, int]) -> None:
    fast, end = real
    size = fast.get_vocab_size()
    more = FastTokenizer.from_str(fast.to_str())
    more.add_special_tokens(["<image_soft_token>"])
    assert GrammarTokens(more.to_str(), size, end).tokens == GrammarTokens(fast.to_str(), size, end).tokens
    more.add_tokens(["a word"])
    with pytest.raises(ValueError, match=str(size + 1)):
        GrammarTokens(more.to_str(), size, end)


def spelled(text: str) -> list[tuple[StructuredOutputs, str]]:
    """Constraints of which this text is a forced or a free part, with the output that they allow."""
    quoted, escaped = json.dumps(text, ensure_ascii=False), "".join(f"\\x{{{ord(each):x}}}" for each in text)
    member = {"type": "object", "properties": {text: {"const": 1}}, "required": [text], "additionalProperties": False}
    return [
        (StructuredOutputs("choice", json.dumps([text])), text),
        (StructuredOutputs("choice", json.dumps([f"a{text}b"])), f"a{text}b"),
        (StructuredOutputs("regex", f"{escaped}[0]"), f"{text}0"),
        (StructuredOutputs("json", json.dumps({"const": f"a{text}"})), json.dumps(f"a{text}")),
        (StructuredOutputs("json", json.dumps({"enum": [{text: 2**53 + 1}]})), f"{{{quoted}: {2**53 + 1}}}"),
        (StructuredOutputs("json", json.dumps(member)), f"{{{quoted}: 1}}"),
        (StructuredOutputs("grammar", f'start: "x" {quoted} /[0]/'), f"x{text}0"),
        (StructuredOutputs("grammar", f'root ::= {quoted} "y"'), f"{text}y"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_text_that_spells_markup_is_written_byte_for_byte_in_tokens_of_text(name: str) -> None:
    family, rng = FAMILIES[name], random.Random(name)
    fast, marks = tokenizer_of(family), set(markup_of(family).ids.values())
    for text in (*family.special, *family.plain, "e\u0301<tool_call>"):
        for source, expected in spelled(text):
            tokens = walked(name, mask_of(name, source), rng)
            written = b"".join(library_of(FAMILIES[name]).decode_bytes([token]) for token in tokens).decode()
            assert written == expected or json.loads(written) == json.loads(expected)
            assert marks.isdisjoint(tokens)
            if not family.pieces:  # whose decoder takes a blank off the beginning
                assert fast.decode(tokens, skip_special_tokens=True) == written


CITIES = {"enum": ["Bern", "a</tool_call>b", "<think>"]}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": CITIES, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
)
GET = pb.Tool(name="get", parameters=SCHEMA)
STRICT = pb.Tool(name="get", parameters=SCHEMA, strict=True)
ALL = pb.Tool(name="get_all", parameters='{"type": "object", "maxProperties": 0}')
HELD = {
    "required": (Tools((GET, ALL), required=True, held=True), None),
    "named": (Tools((GET,), required=True, held=True), None),
    "single": (Tools((GET,), required=True, held=True, parallel=False), None),
    "strict beside auto": (Tools((STRICT,), held=True), None),
    "beside a format": (Tools((STRICT,), held=True), StructuredOutputs("json", '{"const": {"name": 7}}')),
}


def tool_grammar(family: Family, tools: Tools, text: StructuredOutputs | None) -> StructuredOutputs:
    markup = markup_of(family)
    return StructuredOutputs("grammar", tools.grammar(family.calls, markup.ids, markup.hidden, text))


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", NAMES)
def test_calls_of_tools_run_to_their_end_in_the_markup_of_the_template(name: str, held: str) -> None:
    family, (tools, text) = FAMILIES[name], HELD[held]
    fast, markup, rng = tokenizer_of(family), markup_of(family), random.Random(held)
    source = tool_grammar(family, tools, text)
    for _ in range(3):
        tokens = walked(name, mask_of(name, source), rng, opening_of(family))
        shown = fast.decode(tokens, skip_special_tokens=False).strip()
        assert shown.startswith(family.calls.open.strip())
        assert shown.endswith(family.calls.close.strip())
        for mark, index in markup.ids.items():
            in_arguments = shown.count(f'"{mark}"') + shown.count(f"a{mark}b")
            assert tokens.count(index) == shown.count(mark) - in_arguments, mark


@pytest.mark.parametrize("name", NAMES)
def test_free_text_beside_strict_tools_may_have_any_markup_and_no_call_that_breaks_the_schema(name: str) -> None:
    family, (tools, _) = FAMILIES[name], HELD["strict beside auto"]
    markup, opening = markup_of(family), opening_of(family)
    mask = mask_of(name, tool_grammar(family, tools, None))
    allowed = ids(mask)
    assert {family.end, *library_of(FAMILIES[name]).tokenize_str("a"), opening[0]} <= {*allowed}
    assert {*markup.ids.values()} <= {*allowed}
    thought = [index for index in markup.ids.values() if index not in (family.end, opening[0])][:2]
    for token in (*thought, *library_of(FAMILIES[name]).tokenize_str("Let me see."), *opening):
        assert token in ids(mask)
        mask.accept(token)
    assert family.end not in ids(mask)
    visible = family.calls.without(markup.hidden)
    matcher = matcher_of(library_of(FAMILIES[name]), tool_grammar(family, tools, None))
    bad = library_of(FAMILIES[name]).tokenize_str(f"Well: {visible.open}get{visible.middle}7")
    assert matcher.validate_tokens(bad) < len(bad) or visible.open in ("", "function")


def test_a_model_that_writes_the_blank_between_two_calls_may_end_behind_it() -> None:
    """Qwen2.5-Coder does: held to a further call, it would call until the output is cut off."""
    family = FAMILIES["qwen2.5"]
    mask = mask_of("qwen2.5", tool_grammar(family, HELD["required"][0], None))
    call, (newline,) = family.calls.written([("get_all", "{}")]), library_of(family).tokenize_str("\n")
    for token in tokenizer_of(family).encode(call, add_special_tokens=False).ids:
        mask.accept(token)
    assert {newline, family.end} <= {*ids(mask)}
    mask.accept(newline)
    assert {*opening_of(family), family.end} == {*ids(mask)}
