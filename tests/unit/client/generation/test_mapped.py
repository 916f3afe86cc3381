"""Every value of a request is sent, or refused by its name; no other error comes out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from services.client.errors import InvalidArgument
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig, as_config, as_request
from services.client.generation.request_wire import generate_request

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
            "messages[0]: expected a Message, or a mapping with role, content, tool_calls, tool_call_id, got str",
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
