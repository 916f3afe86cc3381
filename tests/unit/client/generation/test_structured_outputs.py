"""Constraints as callers write them: one of five, over the wire and back, its text as receipts commit to it."""

from __future__ import annotations

from typing import Any

import pytest

from services.client.errors import InvalidArgument
from services.client.generation.request import SamplingParams, StructuredOutputs
from services.client.generation.request_wire import (
    sampling_message,
    structured_outputs_message,
    structured_outputs_value,
)

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


def test_a_mapping_will_do() -> None:
    assert sampling_message(SamplingParams(structured_outputs={"regex": "a"})).structured_outputs.regex == "a"
    with pytest.raises(InvalidArgument, match="no such field"):
        SamplingParams(structured_outputs={"yaml": "a"})


def test_nothing_two_things_and_what_has_no_form_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    nowhere: tuple[dict[str, Any], ...] = ({"json": {"a": object()}}, {"json": {"a": deep}}, {"regex": "\ud800"})
    for members in ({}, {"regex": "a", "json_object": True}, *nowhere):
        with pytest.raises(InvalidArgument, match="structured_outputs: cannot be sent"):
            sampling_message(SamplingParams(structured_outputs=StructuredOutputs(**members)))
    for kind, text in (("yaml", ""), ("choice", "{")):
        with pytest.raises(ValueError, match=r"yaml|Expecting"):
            StructuredOutputs.of(kind, text)
