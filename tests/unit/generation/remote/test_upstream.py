"""Refusals of an engine."""

import pytest

from services.generation.engine.request import InvalidRequest
from services.generation.remote.upstream import _refusal


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("min_tokens must be less than or equal to max_tokens=5, got 9.", "min_tokens"),
        ("Requested sample logprobs of 30; leave top_k out", "logprobs"),
        ("the server has stopped reading `top_logprobs`", "logprobs"),
        ("stop_token_ids[0] is 900", "stop_token_ids"),
        ("sampling_params.max_new_tokens is 0", "max_tokens"),
        ("Failed to compile regex grammar", "structured_outputs"),
        ("no memory", "prompt"),
    ],
)
def test_a_refusal_names_the_first_field_of_its_message(message: str, field: str) -> None:
    refused = _refusal("", 400, message.encode())
    assert isinstance(refused, InvalidRequest)
    assert refused.field == field
