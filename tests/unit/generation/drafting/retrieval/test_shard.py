"""Suffix lookups against a search that reads everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.datastores.shard_writer import sorted_suffixes
from services.generation.drafting.retrieval.backoff import range_of
from services.generation.drafting.retrieval.datastore import Shard
from services.generation.drafting.retrieval.manifest import StoreInvalid, token_dtype

SMALL = 5  # tokens in a vocabulary where everything repeats
LARGE = 70_000  # more than 16 bits hold


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Documents of 0, 1 and more tokens, some of them twice, token id 0 among them; and the vocabulary's size."""
    vocabulary = draw(st.sampled_from([SMALL, LARGE]))
    token = (
        st.integers(0, SMALL - 1) if vocabulary == SMALL else st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 69_999])
    )
    documents = draw(st.lists(st.lists(token, max_size=30), min_size=1, max_size=6))
    return documents + draw(st.lists(st.sampled_from(documents), max_size=2)), vocabulary


def build(documents: list[list[int]], vocabulary: int) -> Shard:
    flat = [token for document in documents for token in (*document, vocabulary)]
    tokens = np.array(flat, token_dtype(vocabulary))
    return Shard(tokens, np.concatenate(list(sorted_suffixes(tokens))), vocabulary)


def found_in(shard: Shard, pattern: list[int]) -> list[int]:
    first, last = range_of(*shard.arrays[:3], np.array(pattern, np.int64))
    return [int(at) for at in shard.suffixes[first:last]]


def occurrences(documents: list[list[int]], pattern: list[int]) -> list[int]:
    """Where a pattern begins in the documents laid out with one separator after each."""
    found, start = [], 0
    for document in documents:
        last = len(document) - len(pattern)
        found += [start + at for at in range(last + 1) if document[at : at + len(pattern)] == pattern]
        start += len(document) + 1
    return found


@pytest.mark.slow
@given(corpora(), st.data())
def test_occurrences_are_those_of_a_search_that_reads_everything(
    corpus: tuple[list[list[int]], int], data: st.DataObject
) -> None:
    documents, vocabulary = corpus
    shard = build(documents, vocabulary)
    document = data.draw(st.sampled_from(documents))
    begin = data.draw(st.integers(0, len(document)))
    pattern = document[begin : begin + data.draw(st.integers(1, 8))] or [data.draw(st.integers(0, SMALL - 1))]
    assert sorted(found_in(shard, pattern)) == occurrences(documents, pattern)


def test_a_mapped_shard_finds_what_it_found_before(tmp_path: Path) -> None:
    shard = build([[3, 1, 4, 1, 5], [9, 2, 6]], SMALL * 10)
    np.save(tmp_path / "tokens.npy", shard.tokens)
    np.save(tmp_path / "suffixes.npy", shard.suffixes)
    again = Shard.open(tmp_path / "tokens.npy", tmp_path / "suffixes.npy", SMALL * 10)
    assert isinstance(again.tokens.base, np.memmap)
    assert found_in(again, [1]) == found_in(shard, [1]) != []


@pytest.mark.parametrize("damage", ["cut", "shorter", "pickle", "absent"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    shard = build([[3, 1, 4]], 50)
    tokens, suffixes = tmp_path / "tokens.npy", tmp_path / "suffixes.npy"
    np.save(tokens, shard.tokens)
    np.save(suffixes, shard.suffixes)
    if damage == "cut":
        suffixes.write_bytes(suffixes.read_bytes()[:-3])
    elif damage == "shorter":
        np.save(suffixes, shard.suffixes[:-1])
    elif damage == "pickle":
        np.save(suffixes, np.array([object()]), allow_pickle=True)
    else:
        suffixes.unlink()
    with pytest.raises(StoreInvalid, match=r"suffixes\.npy"):
        Shard.open(tokens, suffixes, 50)
