"""Sampling parameters as the wire, the engine and the receipt have them."""

from __future__ import annotations

import secrets
from dataclasses import fields
from typing import Any

import ledger.documents.sampling
from kolm.generation.v1 import sampling_pb2
from ledger.documents.structured_outputs import StructuredOutputsPart
from services.generation.engine.grammars.structured_outputs import StructuredOutputs, grammar_engine
from services.generation.engine.request import SamplingParams
from services.generation.requests.structured_outputs import read_structured_outputs, structured_outputs_message
from services.runtime.errors import InvalidArgument

MAX_CHOICES = 16
MAX_STOP_TOKEN_IDS = 64
MAX_BIASES = 300  # keeps a receipt, which lists them all, within an entry of the ledger
_SEED_BITS = 53  # a drawn seed is a number that every JSON reader keeps exactly


def read_sampling(message: sampling_pb2.SamplingParams, room: int) -> SamplingParams:
    """The engine's parameters with defaults filled in. Lengths of lists are checked here, other ranges by the engine.

    `room` is what the context leaves for output. Without max_tokens it is the default where it is under 128. Without
    a seed one is drawn, unless nothing is random.
    """
    given = {field.name: _plain(message, field.name) for field in fields(SamplingParams) if _given(message, field.name)}
    _check_lists(message)
    given.setdefault("max_tokens", max(1, min(SamplingParams().max_tokens, room)))
    if given.get("temperature", 0.0) != 0.0:
        given.setdefault("seed", secrets.randbits(_SEED_BITS))
    return SamplingParams(**given)


def read_choices(message: sampling_pb2.SamplingParams) -> int:
    """The number of choices that the request asks for."""
    count = message.n if message.HasField("n") else 1
    if not 1 <= count <= MAX_CHOICES:
        raise InvalidArgument("sampling.n", f"is {count}; expected a whole number from 1 to {MAX_CHOICES}")
    return count


def sampling_message(sampling: SamplingParams, choices: int) -> sampling_pb2.SamplingParams:
    """The message with every field set."""
    message = sampling_pb2.SamplingParams(n=choices)
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if field.name == "logit_bias":
            message.logit_bias.update(dict(value))
        elif field.name in ("stop", "stop_token_ids"):
            getattr(message, field.name).extend(value)
        elif isinstance(value, StructuredOutputs):
            message.structured_outputs.CopyFrom(structured_outputs_message(value))
        elif value is not None:
            setattr(message, field.name, value)
    return message


def receipt_sampling(
    sampling: SamplingParams, choices: int, choice: int, prompt_salt: bytes
) -> ledger.documents.sampling.Sampling:
    """As the receipt states it: without logprobs, which change no token, and with a commitment to the constraint."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling) if field.name != "logprobs"}
    if (source := sampling.structured_outputs) is not None:
        part = StructuredOutputsPart.of(source.kind, source.text, prompt_salt, grammar_engine())
        values["structured_outputs"] = part
    return ledger.documents.sampling.Sampling(**values, n=choices, choice=choice)


def _given(message: sampling_pb2.SamplingParams, name: str) -> bool:
    if name in ("stop", "stop_token_ids", "logit_bias"):
        return bool(getattr(message, name))
    return message.HasField(name)  # type: ignore[arg-type]


def _plain(message: sampling_pb2.SamplingParams, name: str) -> Any:
    value = getattr(message, name)
    if name == "structured_outputs":
        return read_structured_outputs(value)
    if name == "logit_bias":
        return tuple(sorted((token, float(bias)) for token, bias in value.items()))
    return tuple(value) if name in ("stop", "stop_token_ids") else value


def _check_lists(message: sampling_pb2.SamplingParams) -> None:
    for name, most in (("stop_token_ids", MAX_STOP_TOKEN_IDS), ("logit_bias", MAX_BIASES)):
        if len(getattr(message, name)) > most:
            raise InvalidArgument(f"sampling.{name}", f"has {len(getattr(message, name))} entries, at most {most}")
