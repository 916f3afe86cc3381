"""Shards being written: every token in order, every suffix sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.datastores import shard_writer
from services.datastores.shard_writer import ShardWriter
from tests.examples import examples


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**24), min_size=1, max_size=60), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_suffixes_are_sorted_in_whatever_pieces(tokens: list[int], piece: int) -> None:
    before, shard_writer._PIECE = shard_writer._PIECE, piece
    try:
        for dtype in (np.uint32, np.uint16):
            some = np.array(tokens, np.uint32).astype(dtype)
            found = np.concatenate(list(shard_writer.sorted_suffixes(some)))
            assert found.dtype == np.int32
            assert found.tolist() == sorted(range(len(some)), key=lambda at, s=some: s[at:].tolist())  # type: ignore[misc]
    finally:
        shard_writer._PIECE = before


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=25), min_size=1, max_size=40).filter(any),
    st.integers(1, 12),
    st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
def test_shards_hold_every_token_in_order_and_passages_tell_where(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], room: int, size: int
) -> None:
    folder, counted = tmp_path_factory.mktemp("shards"), shard_writer._COUNTED
    shard_writer._COUNTED = 3
    try:
        writer = ShardWriter(folder, 10, room, size)
        for text in texts:
            writer.take(np.array(text, np.uint16))
        writer.end()
    finally:
        shard_writer._COUNTED = counted
    shards = [np.load(folder / tokens.path) for tokens, _ in writer.shards]
    spelt = [shards[shard][first : first + count].tolist() for shard, first, count in writer.passages.tolist()]
    assert [token for passage in spelt for token in passage] == [token for text in texts for token in text]
    assert all(0 < len(passage) <= size for passage in spelt)
    assert all(10 not in passage and (shard != 10).sum() <= room for shard in shards for passage in spelt)
    assert writer.counts.tolist() == [sum(text.count(token) for text in texts) for token in range(10)]
    for shard, (_, blob) in zip(shards, writer.shards, strict=True):
        expected = sorted(range(len(shard)), key=lambda at, s=shard: s[at:].tolist())  # type: ignore[misc]
        assert np.load(folder / blob.path).tolist() == expected
