"""The resolved sampling parameters of a receipt: with base, adapter and prompt they determine every output token."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ledger.documents.structured_outputs import StructuredOutputsPart
from ledger.encoding.fields import Fields, checked_integer, checked_number
from ledger.encoding.seed import seed_from_json, seed_to_json
from ledger.errors import FormatError

MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters after defaults and clamping; `choice` is the receipt's place among the `n` of its request.

    Names and defaults are those of the engine's SamplingParams. `logprobs` is not here: it does not change tokens. Of
    `structured_outputs` the receipt has a commitment; documents without a constraint lack the member.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    n: int = 1
    choice: int = 0
    structured_outputs: StructuredOutputsPart | None = None

    def to_document(self) -> dict[str, Any]:
        constraint = self.structured_outputs
        return ({} if constraint is None else {"structured_outputs": constraint.to_document()}) | {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": seed_to_json(self.seed),
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": [[token, bias] for token, bias in self.logit_bias],
            "n": self.n,
            "choice": self.choice,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Sampling:
        sampling = cls(
            temperature=fields.number("temperature", 0.0),
            top_p=fields.number("top_p", 0.0, 1.0),
            top_k=fields.integer("top_k"),
            min_p=fields.number("min_p", 0.0, 1.0),
            seed=seed_from_json(fields.read("seed"), fields.path("seed")),
            max_tokens=fields.integer("max_tokens", 1),
            min_tokens=fields.integer("min_tokens"),
            stop=_stop(fields),
            stop_token_ids=_stop_token_ids(fields),
            ignore_eos=fields.boolean("ignore_eos"),
            presence_penalty=fields.number("presence_penalty"),
            frequency_penalty=fields.number("frequency_penalty"),
            repetition_penalty=fields.number("repetition_penalty", 0.0),
            logit_bias=_logit_bias(fields),
            n=fields.integer("n", 1),
            choice=fields.integer("choice"),
            structured_outputs=_structured_outputs(fields),
        )
        fields.close()
        if sampling.choice >= sampling.n:
            raise FormatError(fields.path("choice"), f"expected less than n = {sampling.n}")
        return sampling


def _structured_outputs(fields: Fields) -> StructuredOutputsPart | None:
    if not fields.has("structured_outputs"):
        return None
    return StructuredOutputsPart.from_fields(fields.part("structured_outputs"))


def _stop(fields: Fields) -> tuple[str, ...]:
    strings = fields.array("stop")
    for place, text in enumerate(strings):
        if not isinstance(text, str) or not text:
            raise FormatError(f"{fields.path('stop')}[{place}]", "expected non-empty text")
    return tuple(strings)


def _stop_token_ids(fields: Fields) -> tuple[int, ...]:
    path = fields.path("stop_token_ids")
    ids = fields.array("stop_token_ids")
    return tuple(checked_integer(token, f"{path}[{place}]", 0, MAX_TOKEN_ID) for place, token in enumerate(ids))


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    path = fields.path("logit_bias")
    pairs = tuple(_biased_token(pair, f"{path}[{place}]") for place, pair in enumerate(fields.array("logit_bias")))
    if any(left[0] >= right[0] for left, right in pairwise(pairs)):
        raise FormatError(path, "expected token ids in ascending order, each once")
    return pairs


def _biased_token(pair: object, path: str) -> tuple[int, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise FormatError(path, "expected [token id, bias]")
    return checked_integer(pair[0], f"{path}[0]", 0, MAX_TOKEN_ID), checked_number(pair[1], f"{path}[1]")
