"""Requests of a caller, on the wire, with their constraints; outputs divided into thoughts, text and calls."""

from dataclasses import fields
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolm.generation.v1 import sampling_pb2, speculation_pb2
from services.client.errors import InvalidArgument
from services.client.generation.output_reader import Thought, output_reader
from services.client.generation.request import (
    Message,
    Request,
    SamplingParams,
    SpecDecodeConfig,
    StructuredOutputs,
    ThoughtSyntax,
    Tool,
    ToolCallSyntax,
    Tools,
    as_config,
    as_request,
)
from services.client.generation.request_wire import (
    generate_request,
    sampling_message,
    structured_outputs_message,
    structured_outputs_value,
)
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text, ToolCallReader
from services.generation.engine.request import ThoughtSyntax as ServedSyntax
from services.generation.engine.text.thoughts import known_thoughts
from services.generation.engine.text.tool_calls import HARMONY_CALLS
from tests.examples import examples

ODD: tuple[Any, ...] = (None, 5, -1, 1.5, "x", b"x", [], [None], [[1]], {}, {"a": object()}, {1: "x"}, object(), True)


def test_messages_sampling_and_config_may_be_mappings() -> None:
    turns = [{"role": "system", "content": "Be brief."}, Message("user", "Why?")]
    request = as_request({"messages": turns, "sampling": {"max_tokens": 4, "stop": "END"}})
    assert request.turns == (Message("system", "Be brief."), Message("user", "Why?"))
    wire = generate_request(request, as_config({"method": "lookahead", "k": 4}))
    assert [(each.role, each.content) for each in wire.messages.messages] == [("system", "Be brief."), ("user", "Why?")]
    assert (wire.sampling.max_tokens, list(wire.sampling.stop), wire.spec_decode.k) == (4, ["END"], 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"messages": [{"role": "user", "contnt": "x"}]}, "messages[0].contnt: there is no such field"),
        ({"messages": [Message("user", "x"), {"role": "user"}]}, "messages[1].content: is missing"),
        (
            {"messages": ["Why?"]},
            "messages[0]: expected a Message, or a mapping with role, content, tool_calls, tool_call_id, "
            "reasoning_content, got str",
        ),
        ({"messages": "Why?"}, "messages: expected a list of messages, got str"),
        ({"messages": {"role": "user", "content": "x"}}, "messages: expected a list of messages, got dict"),
        ({"prompt": "x", "sampling": {"max_token": 4}}, "sampling.max_token: there is no such field"),
        ({"promt": "x"}, "request.promt: there is no such field"),
        (None, "request: expected a Request, or a mapping with prompt"),
        ([{"role": "user", "content": "x"}], "request: expected a Request"),
    ],
)
def test_another_form_is_refused_by_the_name_of_its_field(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        as_request(given)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("kind", [Request, SamplingParams, SpecDecodeConfig])
def test_no_value_of_any_field_raises_anything_else(kind: type[Any]) -> None:
    for each in fields(kind):
        for odd in ODD:
            try:
                value = kind(**{each.name: odd})
                request = value if kind is Request else Request(prompt="x")
                if kind is SamplingParams:
                    request = Request(prompt="x", sampling=value)
                generate_request(request, value if kind is SpecDecodeConfig else None)
            except InvalidArgument as error:
                assert error.violations, (each.name, odd)  # noqa: PT017 (some of these values are right)


def test_the_published_call_arrives_as_written() -> None:
    head = "tiny@sha256:" + "ab" * 8
    config = SpecDecodeConfig(method="eagle3", eagle_head=head, k=4, accept_threshold=0.0)
    message = generate_request(Request(prompt="def add("), config).spec_decode
    assert (message.method, message.eagle_head, message.k) == ("eagle3", head, 4)
    assert message.HasField("accept_threshold")
    assert not message.HasField("verify")


def test_an_unset_field_stays_absent() -> None:
    message = generate_request(Request(prompt="x"), None)
    assert [field.name for field, _ in message.ListFields()] == ["prompt", "sampling"]
    assert message.sampling.ListFields() == []
    assert not message.HasField("spec_decode")


def test_every_sampling_parameter_of_the_wire_can_be_set() -> None:
    wire = {field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields}
    assert wire == set(SamplingParams.__dataclass_fields__)
    config = {field.name for field in speculation_pb2.SpecDecodeConfig.DESCRIPTOR.fields}
    assert config == set(SpecDecodeConfig.__dataclass_fields__)


def sampled(**parameters: Any) -> Request:
    return Request(prompt="x", sampling=SamplingParams(**parameters))


@pytest.mark.parametrize(
    ("request_", "config", "field"),
    [
        (Request(prompt="x"), SpecDecodeConfig(k=-1), "spec_decode.k"),
        (Request(prompt="x"), SpecDecodeConfig(verify="sometimes"), "spec_decode.verify"),
        (Request(prompt="x"), SpecDecodeConfig(parameters={"window": -1}), "spec_decode.parameters"),
        (Request(prompt="x", workload="fun"), None, "workload"),
        (Request(prompt="\ud800"), None, "prompt"),
        (Request(prompt="x", token_ids=[1]), None, "prompt"),
        (Request(token_ids=[-1]), None, "token_ids"),
        (Request(token_ids=[2**32]), None, "token_ids"),
        (Request(messages=[Message("user", "x"), Message("user", "\udfff")]), None, "messages[1].content"),
        (sampled(seed=2**64), None, "sampling.seed"),
        (sampled(seed=10**5000), None, "sampling.seed"),
        (sampled(top_k=-1), None, "sampling.top_k"),
        (sampled(stop_token_ids=[-5]), None, "sampling.stop_token_ids"),
        (sampled(logit_bias={-1: 0.5}), None, "sampling.logit_bias"),
        (sampled(temperature="hot"), None, "sampling.temperature"),
        (sampled(stop=(1,)), None, "sampling.stop"),
        (sampled(ignore_eos="yes"), None, "sampling.ignore_eos"),
        (Request(prompt="x", priority=2**31), None, "priority"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_name(
    request_: Request, config: SpecDecodeConfig | None, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request(request_, config)
    assert caught.value.fields == (field,)


@given(st.floats(allow_nan=False), st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1))
def test_numbers_arrive_exactly(temperature: float, seed: int, priority: int) -> None:
    sampling = SamplingParams(temperature=temperature, seed=seed)
    message = generate_request(Request(prompt="x", sampling=sampling, priority=priority), None)
    assert (message.sampling.temperature, message.sampling.seed, message.priority) == (temperature, seed, priority)


CASES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"json": {"b": 1, "a": "ö"}}, '{"b": 1, "a": "ö"}'),
    ({"json": '{ "type":"object"}'}, '{ "type":"object"}'),
    ({"json": True}, "true"),
    ({"regex": "[0-9]+"}, "[0-9]+"),
    ({"choice": ["b", 'a "ö"']}, '["b","a \\"ö\\""]'),
    ({"grammar": "start: x"}, "start: x"),
    ({"json_object": True}, ""),
)


@pytest.mark.parametrize(("members", "text"), CASES)
def test_kind_and_text_say_all(members: dict[str, Any], text: str) -> None:
    asked = StructuredOutputs(**members)
    assert (asked.kind, asked.text) == (next(iter(members)), text)
    again = structured_outputs_value(structured_outputs_message(asked))
    assert again is not None
    assert (again.kind, again.text) == (asked.kind, asked.text)
    opened = StructuredOutputs.of(asked.kind, asked.text)
    assert (opened.kind, opened.text) == (asked.kind, asked.text)


def test_nothing_two_things_and_what_has_no_form_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    nowhere: tuple[dict[str, Any], ...] = ({"json": {"a": object()}}, {"json": {"a": deep}}, {"regex": "\ud800"})
    for members in ({}, {"regex": "a", "json_object": True}, *nowhere):
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("sampling.structured_outputs",)):
            sampling_message(SamplingParams(structured_outputs=StructuredOutputs(**members)))
    for kind, text in (("yaml", ""), ("choice", "{")):
        with pytest.raises(ValueError):  # noqa: PT011
            StructuredOutputs.of(kind, text)


HERMES = ToolCallSyntax(
    '<tool_call>\n{"name": "', '", "arguments": ', '}\n</tool_call>\n<tool_call>\n{"name": "', "}\n</tool_call>"
)
MISTRAL = ToolCallSyntax('[{"name": "', '", "arguments": ', '}, {"name": "', "}]")
LLAMA = ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")
NAMES = ["get_time", "get_time_zone"]
ZONE = '{"zone": "a}\\"]{", "at": [{"x": 1}]}'


def read(syntax: ToolCallSyntax, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Text, and calls."""
    reader, text, calls = ToolCallReader(syntax, NAMES), "", list[list[str]]()
    for part in [part for piece in pieces for part in reader.feed(piece)] + reader.end():
        match part:
            case Text():
                text += part.text
            case CallBegins():
                calls.append([part.name, ""])
            case Arguments():
                calls[-1][1] += part.text
    return text, [(name, arguments) for name, arguments in calls]


def written(syntax: ToolCallSyntax, *calls: tuple[str, str]) -> str:
    assert syntax.between or len(calls) == 1
    return syntax.open + (syntax.between or "").join(n + syntax.middle + a for n, a in calls) + syntax.close


TWO = (("get_time", ZONE), ("get_time_zone", "{}"))
LOOSE = written(HERMES, TWO[1]).replace("\n", " \n\t").replace(": ", ":")
OUTPUTS_WITH_CALLS = [
    (HERMES, written(HERMES, *TWO), "", TWO),
    (HERMES, "Let me see. " + written(HERMES, TWO[0]) + " So", "Let me see. So", TWO[:1]),
    (HERMES, " " + written(HERMES, TWO[0]) + "\nSo\n", "So\n", TWO[:1]),
    (HERMES, "So " + written(HERMES, TWO[0]) + "\n" * 999, "So", TWO[:1]),
    (HERMES, written(HERMES, TWO[0]) + "\n<tool_call>\n{", "", TWO[:1]),
    (HERMES, written(HERMES, TWO[0]) + " 3 <", "3 <", TWO[:1]),
    (HERMES, written(HERMES, TWO[0])[:-3], "", TWO[:1]),
    (MISTRAL, written(MISTRAL, TWO[0])[:-1] + ', {"name', "", TWO[:1]),
    (HERMES, LOOSE, "", TWO[1:]),
    (HERMES, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>', None, ()),
    (HERMES, "a <tool_call> of nothing < 3", None, ()),
    (HERMES, '<tool_call>{"name": "get_time", "arguments": "zone"}', None, ()),
    (HERMES, '<tool_call>{"name": "get_time", "arguments": {"zone"', "", (("get_time", '{"zone"'),)),
    (MISTRAL, written(MISTRAL, *TWO), "", TWO),
    (LLAMA, written(LLAMA, TWO[0]), "", TWO[:1]),
    (LLAMA, '{"name": "Ada"}', None, ()),
]
PIECES = ["<tool_call>", "\n", '{"name": "', "get_time", '", "arguments": ', "{", "}", '"', "x", "</tool_call>"]


@pytest.mark.parametrize(("syntax", "output", "text", "calls"), OUTPUTS_WITH_CALLS)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_calls_and_text_do_not_depend_on_how_the_output_comes(
    syntax: ToolCallSyntax, output: str, text: str | None, calls: tuple[tuple[str, str], ...], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert read(syntax, pieces) == (output if text is None else text, list(calls))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_any_output_is_read_to_its_end(pieces: list[str]) -> None:
    assert read(HERMES, pieces) == read(HERMES, ["".join(pieces)])


def test_an_output_under_a_constraint_calls_from_its_beginning_or_not_at_all() -> None:
    call = written(HERMES, TWO[0])
    for output, begins in ((call, True), (f"[{call}]", False)):
        for pieces in ([output], list(output)):
            reader = ToolCallReader(HERMES, NAMES, anywhere=False)
            parts = [part for piece in pieces for part in reader.feed(piece)] + reader.end()
            assert any(isinstance(part, CallBegins) for part in parts) == begins
            text = "".join(part.text for part in parts if isinstance(part, Text))
            assert text == ("" if begins else output)


TAGS = ThoughtSyntax("<think>", ("</think>",))
BEGUN = ThoughtSyntax("<think>", ("</think>",), begun=True)
HARMONY = ThoughtSyntax("analysis", ("assistantfinal", "assistantcommentary", "assistant to="), "final")
CALLS = HARMONY_CALLS.without(["<|channel|>", "<|message|>"])
CALL = ("look", '{"a": 1}')


def sorted_out(syntax: ThoughtSyntax | None, text: str, size: int) -> tuple[str, str, str, str]:
    """Thought, text, name and arguments; without thoughts a call is required."""
    tools = Tools([Tool("look")], choice="auto" if syntax else "required")
    request = Request(messages=[Message("user", "x")], tools=tools)
    reader = output_reader(Mock(tool_calls=CALLS, thoughts=syntax), request)
    assert reader is not None
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])] + reader.end()
    kinds = (Thought, Text, Arguments)
    thought, answer, arguments = ("".join(p.text for p in parts if isinstance(p, kind)) for kind in kinds)
    return thought, answer, "".join(p.name for p in parts if isinstance(p, CallBegins)), arguments


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("syntax", "text", "found"),
    [
        (TAGS, "<think>\nLet me see, 1 < 2.\n</think>\n\nYes.", ("Let me see, 1 < 2.", "Yes.", "", "")),
        (TAGS, "<think>\n\n</think>\n\nYes.", ("", "Yes.", "", "")),
        (TAGS, "Yes, <think> is a tag.", ("", "Yes, <think> is a tag.", "", "")),
        (TAGS, "<thin", ("", "<thin", "", "")),
        (TAGS, "<think>cut </thi", ("cut </thi", "", "", "")),
        (BEGUN, "I see.\n</think>\nYes.", ("I see.", "Yes.", "", "")),
        (BEGUN, "I see", ("I see", "", "", "")),
        (HARMONY, "analysisAs an assistant I say.assistantfinalYes.", ("As an assistant I say.", "Yes.", "", "")),
        (HARMONY, "finalYes.", ("", "Yes.", "", "")),
        (HARMONY, 'analysisLook.assistant to=functions.lookcommentary json{"a": 1}', ("Look.", "", *CALL)),
        (HARMONY, 'analysisLook.assistantcommentary to=functions.look json{"a": 1}', ("Look.", "", *CALL)),
        (HARMONY, 'analysisLook.assistantanalysis to=functions.look code{"a": 1}', ("Look.", "", *CALL)),
        (HARMONY, 'commentary to=functions.look{"a": 1}', ("", "", *CALL)),
        (HARMONY, ' to=functions.lookcommentary json{"a": 1}', ("", "", *CALL)),
        (HARMONY, 'commentaryI look.assistantcommentary to=functions.look json{"a": 1}', ("", "I look.", *CALL)),
        (HARMONY, "commentaryI look.assistantanalysisHm.assistantfinalYes.", ("Hm.", "I look.Yes.", "", "")),
        (None, ' to=functions.lookcommentary json{"a": 1}', ("", "", *CALL)),
        (None, ' to=functions.look json{"a": 1}', ("", "", *CALL)),
        (HARMONY, "analysisLook.assistantanalysisHm. assistantanalyses", ("Look.Hm. assistantanalyses", "", "", "")),
        (HARMONY, "analysisAn assistant", ("An assistant", "", "", "")),
        (HARMONY, "finalSay assistantfinal.", ("", "Say assistantfinal.", "", "")),
        (HARMONY, "analyses", ("", "analyses", "", "")),
        (HARMONY, "commentary to=functions.other json{}", ("", "to=functions.other json{}", "", "")),
    ],
)
def test_thoughts_are_separated_from_the_answer(
    syntax: ThoughtSyntax | None, text: str, found: tuple[str, str, str, str], size: int
) -> None:
    assert sorted_out(syntax, text, size) == found


def test_templates_say_how_their_models_think() -> None:
    for tags in ("<think> </think>", "<seed:think> </seed:think>", "[THINK] [/THINK]"):
        opened, closed = tags.split()
        assert known_thoughts(f"{{{{ '{opened}' }}}} … {closed}") == ServedSyntax(opened, (closed,))
        assert known_thoughts(tags, hidden={closed}) is None
    harmony = known_thoughts("<|channel|>analysis<|message|>")
    assert harmony is not None
    assert (harmony.open, harmony.bare) == ("analysis", "final")
    assert known_thoughts("{{ messages }}") is None
