"""Drafts of a shard: tokens that followed the longest ends of a text, by frequency, then those of shorter ends."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.drafting.acceptance import RequestAcceptance
from services.generation.drafting.draft_tree.candidates import sampling_of
from services.generation.drafting.draft_tree.nodes import NODE, NONE, Bounds
from services.generation.drafting.retrieval.backoff import Suffixes, expand
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.race import gumbel
from tests.examples import examples

VOCABULARY = 40


def shard_of(*documents: list[int]) -> Suffixes:
    tokens = np.array([token for document in documents for token in (*document, VOCABULARY)], np.uint16)
    suffixes = np.array(sorted(range(len(tokens)), key=lambda at: tokens[at:].tolist()), np.int32)
    return Suffixes(tokens, suffixes, np.full(VOCABULARY + 2, -1, np.int64), VOCABULARY)


def drafted(shard: Suffixes, end: list[int], *, depth: int = 1, least: float = 0.0, **sampling: float) -> np.ndarray:
    """The nodes below the root."""
    nodes = np.empty(400, NODE)
    nodes[0] = (end[-1], -1, 0, NONE, 0, 0, NONE, NONE, 0, 1.0, 1.0)
    request = EngineRequest("", (0,), SamplingParams(**sampling))  # type: ignore[arg-type]
    how = sampling_of(request)
    how["position"] = len(end)
    rates = RequestAcceptance().rates()
    return nodes[1 : expand(nodes, 1, shard, np.array(end, np.int64), how, Bounds(400, depth, least), rates)]


@pytest.mark.slow
@given(
    document=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    end=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
@settings(max_examples=examples(60), deadline=None)
def test_each_token_that_followed_is_drafted_once_those_of_the_longest_end_first(
    document: list[int], end: list[int]
) -> None:
    def following(length: int) -> Counter[int]:
        places = (at for at in range(length, len(document)) if document[at - length : at] == end[len(end) - length :])
        return Counter(document[at] for at in places)

    def occurs(length: int) -> bool:
        return any(document[at : at + length] == end[len(end) - length :] for at in range(len(document) - length + 1))

    expected: list[set[int]] = []
    longest = max((length for length in range(len(end) + 1) if occurs(length)), default=0)
    for length in [longest, *range(min(3, longest - 1), 0, -1)] if longest else []:
        known = set().union(*expected)
        expected += [group for group in [set(following(length)) - known] if group]
    tokens = drafted(shard_of(document), end)["token"].tolist()
    for group in expected:
        assert set(tokens[: len(group)]) == group
        tokens = tokens[len(group) :]
    assert tokens == []


@pytest.mark.parametrize("end", [[VOCABULARY + 3, 1], [1, VOCABULARY + 3, 1]])
def test_ids_beyond_the_tokenizers_are_no_context(end: list[int]) -> None:
    shard = shard_of([1, 2], [VOCABULARY - 1, 1, 3])
    assert set(drafted(shard, end)["token"].tolist()) == {2, 3}
    assert len(drafted(shard, [1, VOCABULARY + 3])) == 0


def test_above_temperature_0_the_samplers_noise_says_which_comes_first() -> None:
    shard, firsts = shard_of([1, 2], [1, 3], [1, 4], [1, 5]), set()
    for seed in range(20):
        first = drafted(shard, [9, 1], temperature=1.0, seed=seed)["token"][0]
        assert first == max((2, 3, 4, 5), key=lambda token: gumbel(np.uint64(seed), 0, 2, token))
        firsts.add(int(first))
    assert firsts == {2, 3, 4, 5}
    assert len(drafted(shard, [9, 8], temperature=1.0)) == 0
