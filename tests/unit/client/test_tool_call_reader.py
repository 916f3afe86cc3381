"""Calls are found in an output however it is cut into pieces; what only looks like one is text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.client.generation.request import ToolCallSyntax
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text, ToolCallReader
from tests.examples import examples

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
CASES = [
    (HERMES, written(HERMES, *TWO), "", TWO),
    (HERMES, "Let me see. " + written(HERMES, TWO[0]) + " So", "Let me see.  So", TWO[:1]),
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


@pytest.mark.parametrize(("syntax", "output", "text", "calls"), CASES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_calls_and_text_do_not_depend_on_how_the_output_comes(
    syntax: ToolCallSyntax, output: str, text: str | None, calls: tuple[tuple[str, str], ...], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert read(syntax, pieces) == (output if text is None else text, list(calls))


def test_arguments_are_told_as_they_come() -> None:
    reader = ToolCallReader(HERMES, NAMES)
    assert reader.feed("Hm. <tool") == [Text("Hm. ")]
    assert reader.feed('_call>\n{"name": "get_time", "argum') == []
    assert reader.feed('ents": {"zo') == [CallBegins("get_time"), Arguments('{"zo')]
    assert reader.feed('ne": 1}}\n</tool') == [Arguments('ne": 1}')]
    assert reader.feed("_call>") == []
    assert reader.end() == []


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
