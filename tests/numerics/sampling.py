"""`sampling.json`: the section Sampling of `docs/numerics.md`, by its reference and as it is served.

A binary64 number is sixteen hexadecimal digits, its bits.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling import race
from services.generation.engine.sampling.processors import LogitsProcessors
from services.generation.engine.sampling.race import Row, gumbel
from services.generation.engine.sampling.sampler import Sampler, candidates, logprobs_of
from services.generation.target.arrays import Float32
from tests.numerics import sampling_reference
from tests.numerics.vectors import array, values_of

Case = dict[str, Any]


def bits64(x: float) -> str:
    return struct.pack(">d", x).hex()


def params_of(written: Mapping[str, Any]) -> SamplingParams:
    members = {name: value for name, value in written.items() if name in {f.name for f in fields(SamplingParams)}}
    biases = tuple((token, bias) for token, bias in written.get("logit_bias", ()))
    return SamplingParams(**members | {"seed": int(written["seed"]), "logit_bias": biases})


class Sampling(Protocol):
    def exp64(self, x: float) -> float: ...

    def log64(self, x: float) -> float: ...

    def noise(self, seed: int, choice: int, position: int, token: int) -> float: ...

    def processed(
        self, logits: Float32, params: SamplingParams, prompt: list[int], output: list[int], ends: list[int]
    ) -> Float32: ...

    def kept(self, processed: Float32, params: SamplingParams) -> list[int]:
        """The ids that survive the filters, ascending."""
        ...

    def token(
        self, logits: Float32, params: SamplingParams, texts: tuple[list[int], list[int], list[int]], choice: int,
        position: int,
    ) -> int:  # fmt: skip
        """From the raw logits; `texts` are the prompt, the output so far, and ids that end it."""
        ...

    def logprobs(self, logits: Float32, token: int, count: int) -> TokenLogprobs: ...


class ReferenceSampling:
    exp64 = staticmethod(sampling_reference.exp64)
    log64 = staticmethod(sampling_reference.log64)
    noise = staticmethod(sampling_reference.noise)

    def processed(
        self, logits: Float32, params: SamplingParams, prompt: list[int], output: list[int], ends: list[int]
    ) -> Float32:
        return np.array(sampling_reference.processed(logits.tolist(), params, prompt, output, ends), np.float32)

    def kept(self, processed: Float32, params: SamplingParams) -> list[int]:
        return sorted(sampling_reference.kept(processed.tolist(), params))

    def token(
        self, logits: Float32, params: SamplingParams, texts: tuple[list[int], list[int], list[int]], choice: int,
        position: int,
    ) -> int:  # fmt: skip
        row = sampling_reference.processed(logits.tolist(), params, *texts)
        return sampling_reference.sample(row, params, choice, position)

    def logprobs(self, logits: Float32, token: int, count: int) -> TokenLogprobs:
        return sampling_reference.logprobs(logits.tolist(), token, count)


class EngineSampling:
    def exp64(self, x: float) -> float:
        return float(race.exp64(x))

    def log64(self, x: float) -> float:
        return float(race.log64(x))

    def noise(self, seed: int, choice: int, position: int, token: int) -> float:
        return float(gumbel(np.uint64(seed), choice, position, token))

    def processed(
        self, logits: Float32, params: SamplingParams, prompt: list[int], output: list[int], ends: list[int]
    ) -> Float32:
        processors = LogitsProcessors(params, prompt, frozenset(ends))
        for token in output:
            processors.accept(token)
        return processors.apply(logits)

    def kept(self, processed: Float32, params: SamplingParams) -> list[int]:
        found = candidates(Row.of(processed), params)
        return list(range(len(processed))) if found is None else found.tolist()

    def token(
        self, logits: Float32, params: SamplingParams, texts: tuple[list[int], list[int], list[int]], choice: int,
        position: int,
    ) -> int:  # fmt: skip
        prompt, output, ends = texts
        sampler = Sampler(params, choice, prompt, frozenset(ends))
        for token in output:
            sampler.accept(token)
        return sampler.sample(logits, position)

    def logprobs(self, logits: Float32, token: int, count: int) -> TokenLogprobs:
        return logprobs_of(Row.of(logits), token, count)


def functions(sampling: Sampling, points: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The values of exp64 and log64 at the points of each."""
    return {
        name: [bits64(getattr(sampling, name)(struct.unpack(">d", bytes.fromhex(x))[0])) for x in some]
        for name, some in points.items()
    }


def noises(sampling: Sampling, places: Sequence[Case]) -> list[str]:
    return [bits64(sampling.noise(int(p["seed"]), p["choice"], p["position"], p["token"])) for p in places]


def outcome(sampling: Sampling, case: Case) -> dict[str, Any]:
    """The results of a row: processed logits, survivors, the token at each position, log-probabilities of the first."""
    logits, params = values_of(case["logits"]), params_of(case["params"])
    texts = case["prompt"], case["output"], case["ends"]
    processed = sampling.processed(logits, params, *texts)
    tokens = [sampling.token(logits, params, texts, case["choice"], p) for p in case["positions"]]
    found = sampling.logprobs(logits, tokens[0], 3)
    return {
        "processed": array(processed),
        "kept": sampling.kept(processed, params) if params.temperature else [tokens[0]],
        "tokens": tokens,
        "logprob": bits64(found.logprob),
        "top": [[token, bits64(logprob)] for token, logprob in found.top],
    }
