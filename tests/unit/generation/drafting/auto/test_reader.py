"""A head that does not draft is not made to read; once it drafts it has read all that there was."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from services.generation.drafting.auto import reader as module
from services.generation.drafting.auto.reader import Reader
from services.generation.engine.tree import TokenTree

Float32 = NDArray[np.float32]
HIDDEN = 4
TOKENS = list(range(500))


class _Reads:
    """A `FeatureDraft` that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Float32]] = []
        self.released = 0

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        assert len(tokens) > start + len(features) - 1
        self.seen.append((start, features.copy()))

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        raise NotImplementedError

    def release(self) -> None:
        self.released += 1


def features(rows: int, layers: int = 3) -> Float32:
    return np.arange(rows * layers * HIDDEN, dtype=np.float32).reshape(rows, -1)


def reader_of(places: list[int]) -> tuple[Reader, list[_Reads]]:
    begun: list[_Reads] = []

    def begin() -> _Reads:
        begun.append(_Reads())
        return begun[-1]

    return Reader(begin, places, HIDDEN), begun


def test_nothing_is_begun_or_read_until_it_is_wanted_and_then_all_of_it_in_order() -> None:
    reader, begun = reader_of([2, 0])
    prompt, later = features(100), features(2)
    reader.read(TOKENS, 0, prompt, drafting=False)
    reader.read(TOKENS, 100, later, drafting=False)
    reader.release()
    assert not begun
    reader.read(TOKENS, 0, prompt, drafting=False)  # as after a preemption
    reader.read(TOKENS, 100, later, drafting=False)
    later[:] = 0.0  # what is held is its own
    draft = reader.ready(TOKENS)
    assert begun == [draft]
    own = [part.reshape(-1, 3, HIDDEN)[:, [2, 0]].reshape(len(part), -1) for part in (prompt, features(2))]
    assert [start for start, _ in begun[0].seen] == [0, 100]
    for (_, read), expected in zip(begun[0].seen, own, strict=True):
        np.testing.assert_array_equal(read, expected)
    assert reader.ready(TOKENS) is draft
    assert len(begun[0].seen) == 2
    reader.release()
    assert begun[0].released == 1


def test_features_of_all_layers_in_order_are_handed_on_as_they_are() -> None:
    reader, begun = reader_of([0, 1, 2])
    given, few = features(60), features(2)
    reader.read(TOKENS, 0, given, drafting=False)
    reader.read(TOKENS, 60, few, drafting=False)
    assert reader._held[0][1] is given
    few[:] = 0.0  # a few are copied: they are a part of a whole pass's
    reader.ready(TOKENS)
    np.testing.assert_array_equal(begun[0].seen[0][1], given)
    np.testing.assert_array_equal(begun[0].seen[1][1], features(2))


def test_what_is_drafting_reads_at_once_and_never_out_of_order() -> None:
    reader, begun = reader_of([0, 1, 2])
    reader.read(TOKENS, 0, features(100), drafting=True)
    assert not begun  # it has not drafted yet
    reader.ready(TOKENS)
    reader.read(TOKENS, 100, features(2), drafting=True)
    assert [start for start, _ in begun[0].seen] == [0, 100]
    reader.read(TOKENS, 102, features(1), drafting=False)
    reader.read(TOKENS, 103, features(1), drafting=True)
    assert len(begun[0].seen) == 2
    reader.ready(TOKENS)
    assert [start for start, _ in begun[0].seen] == [0, 100, 102, 103]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10 * 3 * HIDDEN * 4)
    reader, begun = reader_of([0, 1, 2])
    for start in range(0, 15, 5):
        reader.read(TOKENS, start, features(5), drafting=False)
    assert [start for start, _ in begun[0].seen] == [0, 5, 10]
    reader.read(TOKENS, 15, features(1), drafting=False)
    assert len(begun[0].seen) == 3


def test_who_reads_no_layer_is_not_read_to() -> None:
    assert not reader_of([])[0].listens
    assert reader_of([1])[0].listens
