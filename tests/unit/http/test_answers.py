"""Answers of all four endpoints: the accumulated stream is the whole answer, wherever the output ends."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from services.client.generation.completion import Choice, Chunk, Completion, Finished, Metrics, Resolved, Usage
from services.client.generation.output_reader import with_calls
from services.client.generation.request import Request, ThoughtSyntax, ToolCallSyntax
from services.http.answer import TextOffsets, speculative_decoding
from services.http.calls import Dialect
from services.http.completions import ChatDialect, ChatFields
from services.http.message_answer import MessageDialect
from services.http.message_fields import MessageFields
from services.http.response_answer import ResponseDialect
from services.http.response_fields import ResponseFields
from tests.examples import examples

HERMES = ToolCallSyntax(
    '<tool_call>\n{"name": "', '", "arguments": ', '}\n</tool_call>\n<tool_call>\n{"name": "', "}\n</tool_call>"
)
MISTRAL = ToolCallSyntax('[{"name": "', '", "arguments": ', '}, {"name": "', "}]")
THOUGHTS = ThoughtSyntax("<think>", ("</think>",))
ARGUMENTS = ("{}", '{"city": "Bern"}', '{"city": "a}\\"]{", "at": [{"x": 1}]}')
SCHEMA = {"type": "object"}
USAGE = Usage(3, 5)
METRICS = Metrics(0, 0, 0, 0.0, 0.0, (), 0, 0.0, 0.0, None, "", "off", "off", None, {})


DRAFTED = Metrics(20, 40, 20, 0.5, 2.0, (14, 6), 20, 0.0, 0.0, None, "", "engine", "auto", None, {})
TOKENS = {"draft_acceptance_rate", "num_accepted_draft_tokens", "num_draft_tokens"}
VLLM = {
    "mean_acceptance_length": 2.0, "draft_acceptance_rate": 0.5, "acceptance_histogram": [6, 8, 6],
    "num_spec_steps": 20, "num_accepted_draft_tokens": 20, "num_draft_tokens": 40, "num_spec_tokens": 2,
}  # fmt: skip
"""Counts of the same answer as vLLM has them."""


@dataclass(frozen=True)
class Written:
    """An output: where each call's text, and its arguments, begin and end."""

    text: str
    calls: tuple[tuple[int, int, int], ...] = ()

    def then(self, text: str) -> "Written":
        return Written(self.text + text, self.calls)

    def calling(self, syntax: ToolCallSyntax, arguments: str, *, again: bool) -> "Written":
        begun = len(self.text)
        opened = self.then((syntax.between or "" if again else syntax.open) + "look" + syntax.middle)
        at = len(opened.text)
        return Written(opened.text + arguments, (*self.calls, (begun, at, at + len(arguments))))


@st.composite
def outputs(draw: st.DrawFn, syntax: ToolCallSyntax) -> Written:
    """Perhaps a thought, text, calls, text, calls, text."""
    output = Written(draw(st.sampled_from(["", "<think>\nHm, 1 < 2.\n</think>\n\n"])))
    for _ in range(draw(st.integers(1, 2))):
        output = output.then(draw(st.sampled_from(["", "\n", "Let me see.\n", "a < b {", "So. "])))
        for number in range(draw(st.integers(0, 3))):
            output = output.calling(syntax, draw(st.sampled_from(ARGUMENTS)), again=number > 0)
        if output.calls and output.text.endswith("}"):
            output = output.then(syntax.close)
    return output.then(draw(st.sampled_from(["", "\n", " So.\n"])))


def resolved(syntax: ToolCallSyntax, thoughts: ThoughtSyntax | None = THOUGHTS) -> Resolved:
    return Resolved(
        "r-1", "cidv1:b", "cidv1:t", "cidv1:p", True, None, {"max_tokens": 9}, "off", "off", None, None, None, 0, 3,
        (1, 2, 3), bytes(32), syntax, thoughts,
    )  # fmt: skip


def chat(required: str) -> Dialect:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    return ChatDialect(ChatFields(messages=[{"role": "user", "content": "x"}], tools=tools, tool_choice=required))  # type: ignore[list-item]


def responses(required: str) -> Dialect:
    tools: Any = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    return ResponseDialect(ResponseFields(input="x", tools=tools, tool_choice=required))


def messages(required: str) -> Dialect:
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "tool_choice": {"type": {"required": "any"}.get(required, required)},
        "thinking": {"type": "adaptive"},
    }
    return MessageDialect(MessageFields.model_validate(body))


def chatted(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice that a client puts together."""
    content, thoughts, calls, reason = "", "", list[dict[str, Any]](), None
    for choice in (choice for event in events for choice in event["choices"]):
        content += choice["delta"].get("content") or ""
        thoughts += choice["delta"].get("reasoning_content") or ""
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    message: dict[str, Any] = {"role": "assistant", "refusal": None, "content": content}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return {"message": message, "finish_reason": reason}


def responded(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response of the last event, after a check that its items are the items of the events."""
    response, items = events[-1]["response"], dict[int, dict[str, Any]]()
    written: dict[int, str] = {}
    for event in events:
        place, kind = event.get("output_index", -1), event["type"].removeprefix("response.")
        if kind in ("output_text.delta", "function_call_arguments.delta"):
            written[place] = written.get(place, "") + event["delta"]
        elif kind == "output_item.done":
            items[place] = event["item"]
    assert list(items.values()) == response["output"]
    for place, item in items.items():
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert text == written.get(place, "")
    assert events[-1]["type"] == f"response.{response['status']}"
    return {name: response[name] for name in ("output", "status", "incomplete_details", "usage")}


def messaged(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together, its calls' inputs as text."""
    blocks, ended = list[dict[str, Any]](), {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "text": ""})
            case "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["text"] += next(value for name, value in delta.items() if name != "type")
            case "message_delta":
                ended = event["delta"]
    return {"blocks": blocks, **ended}


def whole_message(answer: dict[str, Any]) -> dict[str, Any]:
    """The same of a whole message, but for inputs."""
    blocks = [{**block, "text": block.get("text", block.get("thinking"))} for block in answer["content"]]
    return {"blocks": blocks, "stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}


def streamed_and_whole(
    dialect: Callable[[], Dialect],
    pieces: Sequence[str],
    syntax: ToolCallSyntax,
    why: str,
    stop: str | None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events, and the whole answer to the same request."""
    ended: Any = {"finish_reason": why, "stop_reason": stop, "receipt": None, "metrics": METRICS}
    resolution, streaming, at_once = resolved(syntax), dialect(), dialect()
    asked: Request = streaming.request()
    answer = streaming.answer(asked, resolution, None)
    events = answer.openings()
    for piece in pieces:
        events += answer.piece(Chunk(0, piece, (), ()))
    finished = Finished(0, usage=USAGE, **ended)
    events += answer.closing(finished)
    choice = Choice(0, "".join(pieces), (), logprobs=(), **ended)
    completion = with_calls(Completion((choice,), USAGE, METRICS, resolution), asked)
    return events, at_once.answer(asked, resolution, None).whole(completion)


ENDS = [("length", None), ("stop", None), ("stop", "END")]


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL], ids=["Hermes", "Mistral"])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_a_stream_adds_up_to_the_whole_answer_wherever_it_ends(syntax: ToolCallSyntax, data: st.DataObject) -> None:
    written = data.draw(outputs(syntax))
    end = data.draw(st.integers(0, len(written.text)))
    output = written.text[:end]
    cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=6)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, end], strict=True)]
    (why, stop), choice = data.draw(st.sampled_from(ENDS)), data.draw(st.sampled_from(["auto", "required"]))

    begun = [(at, min(done, end)) for _, at, done in written.calls if at < end]
    is_open = any(at < end < done for _, at, done in written.calls)
    arguments = [output[at:done] for at, done in begun]

    events, whole = streamed_and_whole(lambda: chat(choice), pieces, syntax, why, stop)
    made = chatted(events)
    assert made == {name: whole["choices"][0][name] for name in ("message", "finish_reason")}
    assert [call["function"]["arguments"] for call in made["message"].get("tool_calls", ())] == arguments
    if why == "length" or is_open or not begun:
        assert made["finish_reason"] == why
    elif end == len(written.text):
        assert made["finish_reason"] == "tool_calls"
    is_whole = made["finish_reason"] == "tool_calls"

    events, whole = streamed_and_whole(lambda: responses(choice), pieces, syntax, why, stop)
    response = responded(events)
    assert response == {name: whole[name] for name in response}
    items = response["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [item["arguments"] for item in calls] == arguments
    assert [item["status"] == "completed" for item in calls] == [True] * (len(calls) - is_open) + [False] * is_open
    assert response["status"] == "incomplete" or is_whole or not calls
    assert response["status"] == "completed" or why == "length" or not is_whole
    texts = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    assert texts.split() == (made["message"]["content"] or "").split() or len(items) > 2

    events, whole = streamed_and_whole(lambda: messages(choice), pieces, syntax, why, stop)
    message, at_once = messaged(events), whole_message(whole)
    inputs = [block for block in message["blocks"] if block["type"] == "tool_use"]
    assert [block["text"] for block in inputs] == arguments
    assert message["stop_reason"] == at_once["stop_reason"]
    assert message["stop_sequence"] == at_once["stop_sequence"] == stop
    for block, same in zip(message["blocks"], at_once["blocks"], strict=True):
        assert (block["type"], block.get("id")) == (same["type"], same.get("id"))
        assert block["type"] == "tool_use" or block["text"] == same["text"]
    ended = "tool_use" if is_whole else "stop_sequence" if stop else {"stop": "end_turn", "length": "max_tokens"}[why]
    assert message["stop_reason"] == ended


def test_the_tokens_of_thoughts_are_none_or_not_counted() -> None:
    completion = Completion((Choice(0, "x", (), "stop", None, (), None, METRICS),), USAGE, METRICS, resolved(HERMES))
    for thoughts, details in ((THOUGHTS, None), (None, {"reasoning_tokens": 0})):
        dialect = responses("auto")
        answer = dialect.answer(dialect.request(), resolved(HERMES, thoughts), None).whole(completion)
        assert answer["usage"].get("output_tokens_details") == details


@pytest.mark.parametrize(
    ("counts", "unknown"),
    [
        (METRICS, set()),
        (replace(METRICS, method="engine"), {*VLLM}),
        (replace(DRAFTED, num_drafts=0, num_accepted_tokens_per_pos=()), {*VLLM} - TOKENS),
        (replace(DRAFTED, num_accepted_tokens_per_pos=()), {"acceptance_histogram", "num_spec_tokens"}),
        (DRAFTED, set()),
    ],
    ids=["off", "nothing reported", "tokens alone", "no positions", "all"],
)
def test_counts_that_an_engine_does_not_report_are_left_out(counts: Metrics, unknown: set[str]) -> None:
    found = speculative_decoding(counts).get("speculative_decoding", {})
    assert set(found) == {*VLLM} - unknown
    assert {name: value for name, value in VLLM.items() if name in found} == found or counts is METRICS


CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Bern"}}\n</tool_call>'


@pytest.mark.parametrize("required", ["auto", "required"])
@pytest.mark.parametrize(
    ("output", "calls", "reason"),
    [
        (CALL, 1, "tool_calls"),
        (CALL.removesuffix("</tool_call>"), 1, "tool_calls"),
        (CALL[: CALL.index("Bern")], 1, "stop"),
        (CALL[: CALL.index("}}")], 1, "stop"),
        (CALL + "\n<tool_call>\n", 1, "stop"),
        (CALL + "\n" + CALL[:-20], 2, "stop"),
    ],
)
def test_calls_are_told_as_whole_only_if_the_last_one_is(output: str, calls: int, reason: str, required: str) -> None:
    _, whole = streamed_and_whole(lambda: chat(required), [output], HERMES, "stop", "END")
    (choice,) = whole["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == (reason, calls)
    assert choice["message"]["content"] is None
    _, response = streamed_and_whole(lambda: responses(required), [output], HERMES, "stop", "END")
    assert response["status"] == ("completed" if reason == "tool_calls" else "incomplete")
    assert [item["type"] for item in response["output"]] == ["function_call"] * calls
    _, message = streamed_and_whole(lambda: messages(required), [output], HERMES, "stop", "END")
    assert message["stop_reason"] == ("tool_use" if reason == "tool_calls" else "stop_sequence")


@pytest.mark.parametrize(("choice", "content"), [("auto", CALL[:20]), ("required", "")])
def test_the_beginning_of_a_call_is_text_unless_the_output_is_calls_only(choice: str, content: str) -> None:
    _, whole = streamed_and_whole(lambda: chat(choice), [CALL[:20]], HERMES, "length", None)
    assert whole["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize("output", ["final", "analysis", " finally agreed"])
@pytest.mark.parametrize("members", [{"structured_outputs": {"regex": ".*"}}, {"continue_final_message": True}])
def test_an_output_that_can_have_no_thought_is_the_answer_whole(members: dict[str, Any], output: str) -> None:
    asked = ChatDialect(ChatFields.model_validate({"messages": [{"role": "assistant", "content": "x"}]} | members))
    harmony = ThoughtSyntax("analysis", ("assistantfinal",), "final")
    resolution = replace(resolved(HERMES), tool_calls=None, thoughts=harmony)
    choice = Choice(0, output, (), "stop", None, (), None, METRICS)
    read = with_calls(Completion((choice,), USAGE, METRICS, resolution), asked.request()).choices[0]
    assert (read.content, read.thoughts) == (output, "")


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud83d"}', '{"x": ' + "[" * 3000])
def test_arguments_that_no_json_can_hold_are_an_empty_input(arguments: str) -> None:
    output = CALL.replace('{"city": "Bern"}', arguments)
    _, whole = streamed_and_whole(lambda: messages("auto"), [output], HERMES, "stop", None)
    assert json.loads(JSONResponse(whole).body)["content"][0]["input"] == {}


@settings(max_examples=examples(100), deadline=None)
@given(text=st.text(max_size=8), cuts=st.lists(st.integers(0, 30)))
def test_an_offset_is_the_place_of_the_character_that_a_token_begins_in(text: str, cuts: list[int]) -> None:
    data, offsets = text.encode(), TextOffsets()
    places = [place for place, character in enumerate(text) for _ in character.encode()]
    starts = sorted({0, *(cut for cut in cuts if cut < len(data))})
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        assert offsets.next(data[start:end]) == (places[start] if places else 0)
    assert offsets.next(b"") == len(text)


def test_bytes_of_no_character_have_their_places_too() -> None:
    offsets = TextOffsets()
    tokens = [b"a", b"\xf0\x9f", b"\x98", b"b", b"\xf0\x9f", b"\x98\x80c", b"d"]
    assert [offsets.next(token) for token in tokens] == [0, 1, 1, 2, 3, 3, 5]
    assert b"".join(tokens).decode("utf-8", "replace") == "a\ufffdb\U0001f600cd"
