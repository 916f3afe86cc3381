"""Tokens, processed logits and log-probabilities are those of the reference, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.request import SamplingParams, UnusableLogits
from services.generation.engine.sampling import sampling_reference as reference
from services.generation.engine.sampling.processors import LogitsMask, LogitsProcessors, forbid
from services.generation.engine.sampling.race import Row
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.target.arrays import Float32
from tests.examples import examples
from tests.fakes.logits import rows

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 1e-6, 0.6, 1.0, 2.0, 100.0)),
    top_k=st.sampled_from((0, 1, 3, 50)),
    top_p=st.sampled_from((1.0, 0.95, 0.5, 0.01)),
    min_p=st.sampled_from((0.0, 0.02, 0.5)),
    seed=st.integers(0, 2**64 - 1),
    min_tokens=st.integers(0, 6),
    presence_penalty=st.sampled_from((0.0, 0.1, -2.0)),
    frequency_penalty=st.sampled_from((0.0, 0.3, 2.0)),
    repetition_penalty=st.sampled_from((1.0, 0.01, 1.1, 10.0)),
)
TEXTS = st.lists(st.integers(0, 2**20), max_size=8)


class Mask(LogitsMask):
    """A grammar that allows the same tokens always. `tells`: of a single one, too."""

    idle = False

    def __init__(self, allowed: set[int], size: int, tells: bool) -> None:
        self._allowed, self._tells = allowed, tells
        self._words = np.zeros(-(-size // 32), np.uint32)
        for token in allowed:
            self._words[token >> 5] |= np.uint32(1 << (token & 31))

    def apply(self, logits: Float32) -> None:
        forbid(logits, self._words)

    def allows(self, token: int) -> bool | None:
        return token in self._allowed if self._tells else None

    def accept(self, token: int) -> None:
        pass


@given(
    logits=rows(), params=PARAMS, biases=st.dictionaries(st.integers(0, 2**20), st.floats(-100, 100), max_size=4),
    prompt=TEXTS, output=TEXTS, ends=TEXTS, choice=st.integers(0, 5), position=st.integers(0, 2**20),
    allowed=st.none() | st.sets(st.integers(0, 2**20), min_size=1), tells=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(1000))
def test_the_token_is_that_of_the_reference(
    logits: Float32, params: SamplingParams, biases: dict[int, float],
    prompt: list[int], output: list[int], ends: list[int], choice: int, position: int, allowed: set[int] | None,
    tells: bool,
) -> None:  # fmt: skip
    size = len(logits)
    prompt, output, ends = ([token % size for token in tokens] for tokens in (prompt, output, ends))
    biased = {token % size: bias for token, bias in biases.items()}
    params = _with(params, tuple(biased.items()))
    allowed = None if allowed is None else {token % size for token in allowed}
    mask = None if allowed is None else Mask(allowed, size, tells)
    processors = LogitsProcessors(params, prompt, frozenset(ends))
    sampler = Sampler(params, choice, prompt, frozenset(ends), mask)
    for token in output:
        processors.accept(token)
        sampler.accept(token)
    expected = reference.processed(logits.tolist(), params, prompt, output, ends, allowed)
    processed = processors.apply(logits).copy()
    if mask is not None:
        mask.apply(processed)
    assert np.array_equal(processed, np.array(expected, np.float32), equal_nan=True)
    try:
        token = reference.sample(expected, params, choice, position)
    except UnusableLogits:
        with pytest.raises(UnusableLogits):
            sampler.sample(logits, position)
    else:
        assert sampler.sample(logits, position) == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_tells_of_one_token_chooses_as_the_whole_mask(temperature: float) -> None:
    rng, params = np.random.default_rng(5), SamplingParams(temperature=temperature, seed=3)
    for position in range(50):
        logits, allowed = rng.standard_normal(64).astype(np.float32), set(rng.choice(64, 20).tolist())
        mask = Mask(allowed, 64, tells=True)
        masked = logits.copy()
        mask.apply(masked)
        expected = Sampler(params, 0, (), frozenset()).sample(masked, position)
        assert Sampler(params, 0, (), frozenset(), mask).sample(logits, position) == expected


def _with(params: SamplingParams, biases: tuple[tuple[int, float], ...]) -> SamplingParams:
    return replace(params, logit_bias=biases)


@given(logits=rows(), token=st.integers(0, 2**20), count=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(500))
def test_log_probabilities_are_those_of_the_reference(logits: Float32, token: int, count: int) -> None:
    token %= len(logits)
    found, expected = logprobs_of(Row.of(logits), token, count), reference.logprobs(logits.tolist(), token, count)
    assert repr(found) == repr(expected)  # which tells -0 from 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=50),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.05),
    ],
)
def test_a_whole_vocabulary(params: SamplingParams) -> None:
    logits = (np.random.default_rng(0).standard_normal(20_000) * 3).astype(np.float32)
    sampler = Sampler(params, 1, (), frozenset())
    for position in range(3):
        assert sampler.sample(logits, position) == reference.sample(logits.tolist(), params, 1, position)
