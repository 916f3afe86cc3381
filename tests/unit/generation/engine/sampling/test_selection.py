"""top-k, min-p and top-p without a sort keep what the reference keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling import sampling_reference
from services.generation.engine.sampling.philox import exp64, log64
from services.generation.engine.sampling.race import Row
from services.generation.engine.sampling.selection import _limit, candidates, total_weight, weights_of
from tests.examples import examples
from tests.fakes.logits import SIZES, rows

VOCABULARY = 151_936
FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((1e-6, 0.3, 1.0, 1.7, 100.0)),
    top_k=st.one_of(st.just(0), st.integers(1, 6), SIZES),
    top_p=st.sampled_from((1.0, 1.0 - 2.0**-53, 0.999, 0.9, 0.5, 0.1, 5e-324)),
    min_p=st.sampled_from((0.0, 5e-324, 1e-9, 0.05, 0.5, 1.0)),
)


@given(logits=rows(), params=FILTERS)
@settings(deadline=None, max_examples=examples(1000))
def test_the_reference_keeps_the_same(logits: NDArray[np.float32], params: SamplingParams) -> None:
    found = candidates(Row.of(logits), params)
    expected = sorted(sampling_reference.kept(logits.tolist(), params))
    assert (list(range(len(logits))) if found is None else found.tolist()) == expected
    assert int(Row.of(logits).token) in expected


def test_no_filter_stands_for_all_ids() -> None:
    row = Row.of(np.zeros(5, np.float32))
    assert candidates(row, SamplingParams(temperature=1.0)) is None
    assert candidates(row, SamplingParams(temperature=1.0, top_k=5)) is None


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_a_whole_vocabulary_keeps_what_the_reference_keeps(temperature: float, top_p: float) -> None:
    logits = (np.random.default_rng(4).standard_normal(VOCABULARY) * 3).astype(np.float32)
    logits[:3] = 15.0
    params = SamplingParams(temperature=temperature, top_p=top_p)
    found = candidates(Row.of(logits), params)
    assert found is not None
    assert found.tolist() == sorted(sampling_reference.kept(logits.tolist(), params))


@given(logits=rows(), temperature=st.sampled_from((1e-6, 0.7, 1.0, 100.0)))
@settings(deadline=None, max_examples=examples(300))
def test_weights_are_whole_numbers_of_2_to_the_minus_40(logits: NDArray[np.float32], temperature: float) -> None:
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
