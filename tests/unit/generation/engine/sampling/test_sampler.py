"""From a row of logits to a token: candidates, processors, noise."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from services.generation.engine.request import SamplingParams, UnusableLogits
from services.generation.engine.sampling.processors import LogitsMask, LogitsProcessors, _Tokens, forbid
from services.generation.engine.sampling.race import Row, exp64, log64
from services.generation.engine.sampling.sampler import (
    Sampler,
    _limit,
    candidates,
    logprobs_of,
    total_weight,
    weights_of,
)
from services.generation.target.arrays import Float32
from tests.examples import examples
from tests.fakes.table_target import SIZES, rows
from tests.numerics import sampling_reference
from tests.numerics import sampling_reference as reference

FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((1e-6, 0.3, 1.0, 1.7, 100.0)),
    top_k=st.one_of(st.just(0), st.integers(1, 6), SIZES),
    top_p=st.sampled_from((1.0, 1.0 - 2.0**-53, 0.999, 0.9, 0.5, 0.1, 5e-324)),
    min_p=st.sampled_from((0.0, 5e-324, 1e-9, 0.05, 0.5, 1.0)),
)


@given(logits=rows(), params=FILTERS)
@settings(deadline=None, max_examples=examples(1000))
def test_the_reference_keeps_the_same(logits: Float32, params: SamplingParams) -> None:
    found = candidates(Row.of(logits), params)
    expected = sorted(sampling_reference.kept(logits.tolist(), params))
    assert (list(range(len(logits))) if found is None else found.tolist()) == expected
    assert int(Row.of(logits).token) in expected


@given(logits=rows(), temperature=st.sampled_from((1e-6, 0.7, 1.0, 100.0)))
@settings(deadline=None, max_examples=examples(300))
def test_weights_are_whole_numbers_of_2_to_the_minus_40(logits: Float32, temperature: float) -> None:
    row = Row.of(logits)
    found = weights_of(logits, np.arange(len(logits), dtype=np.int32), row.best, temperature).tolist()
    assert found == [sampling_reference.weight(logit, row.best, temperature) for logit in logits.tolist()]
    assert int(total_weight(logits, row.best, temperature)) == sum(found)
    assert found[row.token] == 2**40


def test_sums_over_a_million_ids_fit() -> None:
    logits = np.zeros(2**20, np.float32)
    assert int(total_weight(logits, 0.0, 1.0)) == 2**60
    kept = candidates(Row.of(logits), SamplingParams(temperature=1.0, top_p=0.25))
    assert kept is not None
    assert kept.tolist() == list(range(2**18))


@pytest.mark.parametrize("size", [4, 100, 1000])
@pytest.mark.parametrize("falls", [0.5, 3.0, 20.0])
def test_ids_that_are_looked_at_are_enough(size: int, falls: float) -> None:
    """One token far above equal ones, of which top-p needs the first: all of those have to be looked at."""
    logits = np.full(size, -falls, np.float32)
    logits[1] = 0.0
    total, best = int(total_weight(logits, 0.0, 1.0)), 2**40
    params = SamplingParams(temperature=1.0, top_p=(best + 0.5 * (total - best) / (size - 1)) / total)
    kept = candidates(Row.of(logits), params)
    assert kept is not None
    assert kept.tolist() == [0, 1] == sorted(sampling_reference.kept(logits.tolist(), params))


def test_top_p_keeps_nothing_without_weight() -> None:
    nearly = SamplingParams(temperature=1.0, top_p=1.0 - 2.0**-53)
    kept = candidates(Row.of(np.array([-27.8, -27.5, 0.0], np.float32)), nearly)
    assert kept is not None
    assert kept.tolist() == [1, 2]
    assert all(_limit(nearly.top_p, total) <= total for total in range(2**54, 2**54 + 16))


def test_min_p_keeps_what_is_exactly_at_its_bound() -> None:
    min_p = exp64(-0.5)
    assert log64(min_p) == -0.5
    kept = candidates(Row.of(np.array([1.0, 0.5, 0.49999], np.float32)), SamplingParams(temperature=1.0, min_p=min_p))
    assert kept is not None
    assert kept.tolist() == [0, 1]


def test_top_p_is_of_what_top_k_and_min_p_leave() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    kept = lambda **filters: candidates(Row.of(logits), SamplingParams(temperature=1.0, **filters))  # noqa: E731
    assert kept(top_p=0.72).tolist() == [0, 1, 2]
    assert kept(top_p=0.72, top_k=3).tolist() == [0, 1]  # of 0.9: 0.72 * 0.9 < 0.7
    assert kept(top_p=0.72, min_p=0.45).tolist() == [0, 1]
    assert math.isclose(float(np.exp(logits).sum()), 1.0, rel_tol=1e-6)


VOCAB = 16


def sampler(params: SamplingParams, prompt: Sequence[int] = (), ends: frozenset[int] = frozenset()) -> Sampler:
    return Sampler(params, 0, prompt, ends)


def row(seed: int = 0, spread: float = 1.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * spread).astype(np.float32)


@given(
    seed=st.integers(0, 10**6),
    top_k=st.sampled_from((0, 1, 5, VOCAB)),
    top_p=st.sampled_from((0.1, 0.5, 0.9, 1.0)),
    min_p=st.sampled_from((0.0, 0.05, 0.4)),
    temperature=st.sampled_from((0.5, 1.0, 2.0)),
)
@settings(deadline=None)
def test_the_filters_keep_what_transformers_keeps(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = row(seed)
    scores = torch.from_numpy(logits).double()[None] / temperature
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    expected = torch.isfinite(scores[0]).nonzero()[:, 0].tolist()
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    kept = candidates(Row.of(logits), params)
    assert (list(range(VOCAB)) if kept is None else kept.tolist()) == expected


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    logits, seen = row(3), [1, 4, 4, 7]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), torch.from_numpy(logits)[None].clone())[0]
    processors = LogitsProcessors(SamplingParams(repetition_penalty=1.3), seen[:2], frozenset())
    for token in seen[2:]:
        processors.accept(token)
    np.testing.assert_allclose(processors.apply(logits), expected.numpy(), rtol=1e-6)


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = np.zeros(VOCAB, np.float32)
    penalties = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    processors = LogitsProcessors(penalties, [2, 2, 2], frozenset())
    for token in (3, 3, 5):
        processors.accept(token)
    processed = processors.apply(logits)
    assert processed[2] == 0.0
    assert processed[3] == -1.0
    assert processed[5] == -0.75
    assert logits.any() == np.False_


def test_rows_of_some_tokens_in_another_order_are_processed_as_those_of_all() -> None:
    generator, params = np.random.default_rng(5), SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3, min_tokens=9,
        logit_bias=((2, 3.0), (6, -2.0)),
    )  # fmt: skip
    kept = generator.permutation(VOCAB)[: VOCAB // 2]
    columns = np.full(VOCAB, -1)
    columns[kept] = np.arange(len(kept))
    prompt, output, ends = ((*kept[:n].tolist(), 2, 3, 5) for n in (4, 2, 1))
    whole = LogitsProcessors(params, prompt, frozenset(ends))
    some = LogitsProcessors(params, prompt, frozenset(ends), columns)
    rows = generator.standard_normal((3, VOCAB)).astype(np.float32)
    for length in range(len(output)):
        whole.follow([*prompt, *output[: length + 1]])
        some.follow([*prompt, *output[: length + 1]])
        np.testing.assert_array_equal(some.apply(rows[:, kept]), whole.apply(rows)[:, kept])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_a_penalty_leaves_without_numbers_has_no_token(temperature: float) -> None:
    logits = row()
    logits[3] = 1e37
    params = SamplingParams(temperature=temperature, top_p=0.5, repetition_penalty=0.01)
    with pytest.raises(UnusableLogits, match="min_tokens"):
        sampler(params, prompt=[3]).sample(logits, 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_is_allowed_has_no_token(temperature: float) -> None:
    everything = frozenset(range(VOCAB))
    with pytest.raises(UnusableLogits, match="min_tokens"):
        sampler(SamplingParams(temperature=temperature, min_tokens=1), ends=everything).sample(row(), 1)


def test_logprobs_are_the_log_softmax_of_the_raw_row() -> None:
    logits = row(8)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0)
    found = logprobs_of(Row.of(logits), 5, 3)
    assert found.logprob == pytest.approx(float(expected[5]))
    assert [token for token, _ in found.top] == expected.argsort(descending=True)[:3].tolist()
    assert [value for _, value in found.top] == pytest.approx([float(expected[token]) for token, _ in found.top])


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
    """A grammar that allows the same tokens always. With `tells` it also names a single token."""

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
    params = replace(params, logit_bias=tuple(biased.items()))
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


@given(logits=rows(), token=st.integers(0, 2**20), count=st.integers(0, 20))
@settings(deadline=None, max_examples=examples(500))
def test_log_probabilities_are_those_of_the_reference(logits: Float32, token: int, count: int) -> None:
    token %= len(logits)
    found, expected = logprobs_of(Row.of(logits), token, count), reference.logprobs(logits.tolist(), token, count)
    assert repr(found) == repr(expected)  # repr distinguishes -0 from 0


@given(st.lists(st.integers(0, 300), max_size=300), st.lists(st.integers(0, 300), max_size=300))
def test_tokens_of_a_prompt_are_counted_as_one_after_the_other(prompt: list[int], output: list[int]) -> None:
    whole, single = _Tokens(prompt), _Tokens()
    single.add(prompt)
    for tokens in (whole, single):
        tokens.add(output)
    assert whole.ids.tolist() == single.ids.tolist() == list(dict.fromkeys([*prompt, *output]))
    assert whole.counts.tobytes() == single.counts.tobytes()
