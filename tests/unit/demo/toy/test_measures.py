"""The measures by which the model is judged, on answers whose verdict is known."""

from __future__ import annotations

import json

import pytest

from demo.toy.measures import (
    argument_faults,
    call_faults,
    copied_share,
    offered_tools,
    quotations,
    quotes_exactly,
    quotes_the_right_part,
    repeated_share,
)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "price": {"type": "number"},
    },
    "required": ["city"],
}
TOOLS = {"weather": {"name": "weather", "parameters": PARAMETERS}}


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([], 0.0), ([1, 2, 3], 0.0), ([1, 2, 3, 4, 5], 0.0), ([7] * 8, 0.8), ([1, 2, 3, 4, 1, 2, 3, 4], 0.2)],
)
def test_the_repeated_share_counts_fourgrams_that_occurred_before(tokens: list[int], share: float) -> None:
    assert repeated_share(tokens) == pytest.approx(share)


def test_the_copied_share_counts_fourgrams_of_the_prompt() -> None:
    assert copied_share([1, 2, 3, 4, 9], prompt=[0, 1, 2, 3, 4]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Riga"},
        {"city": "Riga", "days": 3, "unit": "celsius"},
        {"city": "Riga", "price": 3},
        {"city": "", "price": 0.5},
    ],
)
def test_arguments_that_follow_the_schema_have_no_faults(arguments: dict[str, object]) -> None:
    assert argument_faults(arguments, PARAMETERS) == []


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "missing: city"),
        ({"city": "Riga", "town": "Riga"}, "unknown: town"),
        ({"city": 3}, "city: 3 does not fit"),
        ({"city": "Riga", "days": 1.5}, "days: 1.5 does not fit"),
        ({"city": "Riga", "days": True}, "days: True does not fit"),
        ({"city": "Riga", "unit": "kelvin"}, "unit: 'kelvin' does not fit"),
    ],
)
def test_each_break_of_the_schema_is_named(arguments: dict[str, object], fault: str) -> None:
    assert argument_faults(arguments, PARAMETERS) == [fault]


@pytest.mark.parametrize(
    "answer", ["", "Sure!", '{"name": "weather"', "[]", '{"name": "weather"}', '{"name": "w", "arguments": {}}']
)
def test_an_answer_that_is_no_call_has_a_fault(answer: str) -> None:
    assert call_faults(answer, TOOLS)


def test_the_tools_of_a_system_message_are_its_json_lines() -> None:
    system = "Tools:\n" + json.dumps(TOOLS["weather"])
    assert offered_tools(system) == TOOLS
    assert call_faults('{"name": "weather", "arguments": {"city": "Riga"}}', offered_tools(system)) == []


def test_quotations_are_compared_letter_by_letter() -> None:
    passage = "The mill burned in 1801. It was rebuilt."
    assert quotes_exactly('It says: "The mill burned in 1801."', passage)
    assert not quotes_exactly('It says: "The mill burned in 1810."', passage)
    assert not quotes_exactly("The mill burned in 1801.", passage)


def test_an_open_quotation_counts_to_the_end() -> None:
    assert quotations('It says: "The mill bur') == ["The mill bur"]


def test_a_longer_quotation_of_the_same_part_is_right_and_another_part_is_not() -> None:
    assert quotes_the_right_part('"A b. C d."', '"A b."')
    assert not quotes_the_right_part('"C d."', '"A b."')
    assert not quotes_the_right_part('"A b." "C d."', '"A b."')
