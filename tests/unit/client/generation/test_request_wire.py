from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolm.generation.v1 import sampling_pb2, speculation_pb2
from services.client.errors import InvalidArgument
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig
from services.client.generation.request_wire import generate_request, sampling_message, spec_decode_message


def test_the_published_call_arrives_as_written() -> None:
    head = "tiny@sha256:" + "ab" * 8
    config = SpecDecodeConfig(method="eagle3", eagle_head=head, k=4, accept_threshold=0.0)
    message = generate_request(Request(prompt="def add("), config).spec_decode
    assert (message.method, message.eagle_head, message.k) == ("eagle3", head, 4)
    assert message.HasField("accept_threshold")
    assert not message.HasField("verify")


def test_what_nobody_set_stays_absent() -> None:
    message = generate_request(Request(prompt="x"), None)
    assert [field.name for field, _ in message.ListFields()] == ["prompt", "sampling"]
    assert message.sampling.ListFields() == []
    assert not message.HasField("spec_decode")


def test_zero_is_sent_and_is_not_absent() -> None:
    message = sampling_message(SamplingParams(temperature=0.0, seed=0, logprobs=0))
    assert {field.name for field, _ in message.ListFields()} == {"temperature", "seed", "logprobs"}


def test_every_sampling_parameter_of_the_wire_can_be_set() -> None:
    wire = {field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields}
    assert wire == set(SamplingParams.__dataclass_fields__)
    config = {field.name for field in speculation_pb2.SpecDecodeConfig.DESCRIPTOR.fields}
    assert config == set(SpecDecodeConfig.__dataclass_fields__)


def test_one_stop_string_may_stand_alone() -> None:
    assert list(sampling_message(SamplingParams(stop="END")).stop) == ["END"]
    assert list(sampling_message(SamplingParams(stop=["END", "\n"])).stop) == ["END", "\n"]


def test_illegal_values_are_left_to_the_server() -> None:
    assert math.isnan(sampling_message(SamplingParams(temperature=math.nan)).temperature)
    assert spec_decode_message(SpecDecodeConfig(accept_threshold=0.3)).accept_threshold == 0.3
    assert spec_decode_message(SpecDecodeConfig(method="guess")).method == "guess"
    assert spec_decode_message(SpecDecodeConfig(k=10**6)).k == 10**6


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
        (Request(prompt="x", sampling=SamplingParams(seed=2**64)), None, "sampling.seed"),
        (Request(prompt="x", sampling=SamplingParams(top_k=-1)), None, "sampling.top_k"),
        (Request(prompt="x", sampling=SamplingParams(stop_token_ids=[-5])), None, "sampling.stop_token_ids"),
        (Request(prompt="x", sampling=SamplingParams(logit_bias={-1: 0.5})), None, "sampling.logit_bias"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_name(
    request_: Request, config: SpecDecodeConfig | None, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request(request_, config)
    assert caught.value.fields == (field,)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(prompt="x", sampling=SamplingParams(seed=-1)), f"a whole number from 0 to {2**64 - 1}"),
        (Request(token_ids=[-1]), f"a whole number from 0 to {2**32 - 1}"),
        (Request(prompt="\ud800"), "text in UTF-8"),
        (Request(prompt="x", sampling=SamplingParams(temperature="hot")), "a number"),  # type: ignore[arg-type]
        (Request(prompt="x", sampling=SamplingParams(stop=(1,))), "text in UTF-8"),  # type: ignore[arg-type]
        (Request(prompt="x", sampling=SamplingParams(ignore_eos="yes")), "true or false"),  # type: ignore[arg-type]
        (Request(prompt="x", sampling=SamplingParams(logit_bias={-1: 0.5})), "numbers by token id"),
    ],
)
def test_a_refusal_says_what_the_wire_can_carry(request_: Request, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=f"(is -1|cannot be sent: .*); expected {expected}$"):
        generate_request(request_, None)


@given(st.floats(allow_nan=False), st.integers(0, 2**64 - 1))
def test_numbers_arrive_exactly(temperature: float, seed: int) -> None:
    message = sampling_message(SamplingParams(temperature=temperature, seed=seed))
    assert (message.temperature, message.seed) == (temperature, seed)


def test_a_priority_is_sent_and_one_of_more_than_32_bits_is_refused_by_its_name() -> None:
    assert generate_request(Request(prompt="x", priority=-3), None).priority == -3
    with pytest.raises(InvalidArgument, match="priority: is 2147483648; expected a whole") as refused:
        generate_request(Request(prompt="x", priority=2**31), None)
    assert refused.value.fields == ("priority",)
