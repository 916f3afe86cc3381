"""Parameters of requests for samplers, processors and prompts: take it: sampling parameters and tools."""

import json
from dataclasses import fields
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from ledger.documents.receipt import Sampling
from ledger.encoding.canonical import canonical
from ledger.errors import FormatError
from services.generation.engine.request import (
    EngineBusy,
    EngineRequest,
    InvalidRequest,
    SamplingParams,
    StructuredOutputs,
    grammar_engine,
)
from services.generation.engine.text.tenant_threads import TenantThreads
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax
from services.generation.remote.answer import Answer
from services.generation.remote.dialects import DIALECTS
from services.generation.remote_preparation import PassedOn
from services.generation.requests.parameters import read_sampling, receipt_sampling, sampling_message
from services.generation.requests.prompt import Tools, chat_turns, read_tools
from services.generation.requests.resolution import TenantGrammars, calls_held, engine_errors, refusal
from services.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable
from tests.fakes.grammars import CONSTRAINTS, compiler, encoded

PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 300),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.integers(1, 400),
    min_tokens=st.integers(0, 400),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 300), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.dictionaries(st.integers(0, 300), st.floats(-100, 100)).map(lambda d: tuple(sorted(d.items()))),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 10),
    structured_outputs=st.none()
    | st.builds(StructuredOutputs, st.sampled_from(("json", "regex", "grammar")), st.text(max_size=5))
    | st.lists(st.text(max_size=3)).map(lambda texts: StructuredOutputs("choice", canonical(texts).decode()))
    | st.just(StructuredOutputs("json_object")),
)
SALT = bytes(32)


@given(PARAMS)
def test_resolved_parameters_read_back_as_themselves_from_the_wire(params: SamplingParams) -> None:
    message = sampling_message(params, 3)
    assert message.n == 3
    assert read_sampling(sampling_pb2.SamplingParams.FromString(message.SerializeToString()), 128) == params


@given(PARAMS)
def test_resolved_parameters_read_back_as_themselves_from_the_receipt(params: SamplingParams) -> None:
    stated = receipt_sampling(params, 3, 2, SALT)
    assert Sampling.from_document(stated.to_document()) == stated
    for field in fields(params):
        if field.name not in ("logprobs", "structured_outputs"):
            assert getattr(stated, field.name) == getattr(params, field.name)


def test_an_absent_field_takes_its_default_and_a_zero_is_a_zero() -> None:
    assert read_sampling(sampling_pb2.SamplingParams(), 1000) == SamplingParams()
    assert read_sampling(sampling_pb2.SamplingParams(max_tokens=0), 1000).max_tokens == 0


def test_a_seed_is_drawn_only_where_something_is_random() -> None:
    drawn = {read_sampling(sampling_pb2.SamplingParams(temperature=0.7), 100).seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(seed < 2**53 for seed in drawn)
    assert read_sampling(sampling_pb2.SamplingParams(temperature=0.0), 100).seed == 0
    assert read_sampling(sampling_pb2.SamplingParams(temperature=0.7, seed=0), 100).seed == 0


def test_without_max_tokens_the_output_takes_what_the_context_leaves() -> None:
    assert read_sampling(sampling_pb2.SamplingParams(), 12).max_tokens == 12
    assert read_sampling(sampling_pb2.SamplingParams(max_tokens=50), 12).max_tokens == 50


def test_the_receipt_commits_to_the_constraint_and_names_who_decides() -> None:
    source = StructuredOutputs("regex", "[0-9]+")
    part = receipt_sampling(SamplingParams(structured_outputs=source), 1, 0, SALT).structured_outputs
    assert part is not None
    assert (part.kind, part.engine) == ("regex", grammar_engine())
    part.check_text("[0-9]+", SALT)
    for text, salt in (("[0-9]*", SALT), ("[0-9]+", bytes([1, *SALT[1:]]))):
        with pytest.raises(FormatError):
            part.check_text(text, salt)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (sampling_pb2.StructuredOutputs(), "sampling.structured_outputs: set exactly one of"),
        (sampling_pb2.StructuredOutputs(json_object=False), "sampling.structured_outputs: set exactly one of"),
        (sampling_pb2.StructuredOutputs(regex="a", engine="llguidance/0.1"), "not llguidance/0.1"),
        (sampling_pb2.StructuredOutputs(choice={"texts": ["a"] * 10_001}), "sampling.structured_outputs.choice: has"),
    ],
)
def test_a_constraint_that_says_nothing_or_needs_another_library_is_refused(
    message: sampling_pb2.StructuredOutputs, error: str
) -> None:
    with pytest.raises((InvalidArgument, FailedPrecondition), match=error):
        read_sampling(sampling_pb2.SamplingParams(structured_outputs=message), 100)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LLAMA = ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")
NATION = {"type": "object", "properties": {"nation": {"type": "string"}}, "required": ["nation"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXTS = ("the ledger 2026", "signed and sent", "1+20", "((guess))", '{"nation": 3}')


def tools(*, required: bool = False, strict: bool = True, parallel: bool = True) -> Tools:
    told = [pb.Tool(name=name, parameters=json.dumps(CITY), strict=strict) for name in ("get", "get_all")]
    choice = pb.TOOL_CHOICE_REQUIRED if required else pb.TOOL_CHOICE_AUTO
    read = read_tools(pb.ChatMessages(tools=told, tool_choice=choice, parallel_tool_calls=parallel))
    assert read is not None
    return read


def allows(grammar: str, output: str) -> bool:
    matcher, tokens = compiler().compile(StructuredOutputs("grammar", grammar)).matcher(), encoded(output)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("syntax", [PLAIN, LLAMA])
def test_without_parallel_calls_the_first_one_ends_the_output(syntax: ToolCallSyntax) -> None:
    asked, call = tools(strict=False, parallel=False), ("get", '{"town": 7}')
    assert asked.held
    grammar, written = asked.grammar(syntax, {}), syntax.written([call])
    for output in ("Well.", written, f"Well. {written}"):
        assert allows(grammar, output)
    for output in (syntax.written([call, call]), f"{written}\n{written}", f"{written} Well."):
        assert not allows(grammar, output)


@pytest.mark.parametrize("syntax", [PLAIN, LLAMA])
@pytest.mark.parametrize("schema", [NATION, NAME])
def test_an_answer_is_calls_or_json_that_begins_like_one(syntax: ToolCallSyntax, schema: dict[str, object]) -> None:
    """llguidance's lexer takes the longest symbol: calls and schemas have to be made of the same ones."""
    grammar = tools().grammar(syntax, {}, (), StructuredOutputs("json", json.dumps(schema)))
    (member,) = schema["properties"]  # type: ignore[misc]
    assert allows(grammar, json.dumps({member: "get"}))
    assert allows(grammar, syntax.written([("get", '{"city": "Bern"}')]))
    assert allows(grammar, syntax.written([("get_all", '{"city": "Bern"}')]))
    assert not allows(grammar, "Hello.")
    assert not allows(grammar, "Hello." + syntax.written([("get", '{"city": "Bern"}')]))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_any_constraint_stands_beside_tools(constraint: StructuredOutputs) -> None:
    grammar, alone = tools(strict=False).grammar(PLAIN, {}, (), constraint), compiler().compile(constraint)
    assert allows(grammar, PLAIN.written([("get", '{"town": 1}'), ("get_all", "{}")]))
    for text in TEXTS:
        matcher, tokens = alone.matcher(), encoded(text)
        fits = matcher.validate_tokens(tokens) == len(tokens)
        fits = fits and matcher.consume_tokens(tokens) and matcher.is_accepting()
        assert allows(grammar, text) == fits


def test_required_calls_leave_no_text_and_free_ones_any() -> None:
    call, held = PLAIN.written([("get", '{"city": "Bern"}')]), StructuredOutputs("choice", '["no"]')
    required = tools(required=True).grammar(PLAIN, {}, (), held)
    assert (allows(required, call), allows(required, "no")) == (True, False)
    free = tools().grammar(PLAIN, {})
    assert (allows(free, "Let me see. " + call), allows(free, "no")) == (True, True)
    assert not allows(free, PLAIN.written([("get", '{"town": 1}')]))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (tools(required=True), "messages.tools"),
        (tools(parallel=False), "messages.tools"),
        (tools(strict=False, parallel=False), "messages.parallel_tool_calls"),
    ],
)
async def test_calls_that_another_engine_has_no_grammar_for_are_refused_by_their_field(
    asked: Tools, field: str
) -> None:
    codec = cast(TextCodec, SimpleNamespace(tool_calls=PLAIN, markup={}, hidden=()))
    grammars = TenantGrammars(PassedOn(DIALECTS["llama-server"]), "acme", None)
    with pytest.raises(InvalidArgument) as caught:
        await calls_held(asked, None, codec, grammars, TenantThreads(1))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "odd",
    [r'"\ud800"', "NaN", "-1e999", "9" * 400, "[" * 5000 + "]" * 5000],
    ids=["half", "NaN", "inf", "long", "deep"],
)
def test_what_only_python_reads_as_json_is_refused_by_its_field(odd: str) -> None:
    tool = pb.Tool(name="get", parameters=f'{{"type": "object", "default": {odd}}}')
    with pytest.raises(InvalidArgument, match=r"messages.tools\[0\].parameters: "):
        read_tools(pb.ChatMessages(tools=[tool]))
    call = pb.ToolCall(id="1", name="get", arguments=f'{{"a": {odd}}}')
    with pytest.raises(InvalidArgument, match=r"messages.messages\[0\].tool_calls\[0\].arguments"):
        chat_turns([pb.Message(role="assistant", tool_calls=[call])])


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("odd", ['"\\ud800"', "NaN", "1e999", "[" * 500 + "]" * 500, "0.10000000000000000000001"])
async def test_a_schema_is_sent_to_another_engine_as_it_is_written_or_refused(kind: str, odd: str) -> None:
    source, dialect = StructuredOutputs("json", f'{{"const": {odd}}}'), DIALECTS[kind]
    asked = EngineRequest("r", (1,), SamplingParams(structured_outputs=source))
    if not odd.startswith("0.1"):
        with pytest.raises(InvalidRequest):
            await PassedOn(dialect).compiled(source)
        return
    await PassedOn(dialect).compiled(source)
    assert odd.encode() in msgspec.json.encode(dialect.body(asked, "m", None, stream=False))


@pytest.mark.parametrize("kind", ["vllm", "llama-server"])
def test_a_text_of_several_values_adds_no_member_to_what_is_sent(kind: str) -> None:
    asked = SamplingParams(structured_outputs=StructuredOutputs("json", '{}, "seed": 7'))
    with pytest.raises(InvalidRequest):
        DIALECTS[kind].body(EngineRequest("r", (1,), asked), "m", None, stream=False)


def test_top_p_and_min_p_are_shares_of_what_the_temperature_leaves_at_llama_server_too() -> None:
    asked = EngineRequest("r", (1,), SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05, top_k=40))
    order = DIALECTS["llama-server"].body(asked, "m", None, stream=False)["samplers"]
    assert order.index("penalties") < order.index("temperature") < order.index("min_p") < order.index("top_p")


@pytest.mark.parametrize("incremental", [False, True])
def test_sglang_streams_the_whole_answer_or_what_is_new_and_log_probabilities_are_of_each_token(
    incremental: bool,
) -> None:
    ids, words = [5, 6, 7, 8], ["a", "b", "c", "d"]
    logprobs = [[-token / 10, token, None] for token in ids]
    answer = Answer()
    for start, end in ((0, 1), (1, 3), (3, 4)):  # tokens of one event, drafted ones among them
        since = start if incremental else 0
        told = {
            "completion_tokens": end,
            "output_token_logprobs": logprobs[since:end],
            "output_top_logprobs": [[each] for each in logprobs[since:end]],
            "finish_reason": {"type": "length", "length": 4} if end == 4 else None,
        }
        text, new = "".join(words[since:end]), ids[since:end]
        DIALECTS["sglang"].read({"text": text, "output_ids": new, "meta_info": told}, answer)
    assert (answer.ids, answer.text, answer.finish) == (ids, "abcd", "length")
    assert [(each.token_id, each.logprob) for each in answer.logprobs] == [(each[1], each[0]) for each in logprobs]


def test_a_constraint_that_was_not_compiled_in_time_is_unavailable_and_says_when_to_come_back() -> None:
    with pytest.raises(Unavailable) as caught, engine_errors("prompt"):
        raise EngineBusy("structured_outputs.regex", "took longer than 3 s to compile")
    assert caught.value.reason == "GRAMMAR_TIMEOUT"
    assert refusal(EngineBusy("structured_outputs.regex", "took longer")) == "grammar_timeout"
