"""Copies are what followed earlier places of the end, as somebody finds them who compares every place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.acceptance import NEAR, OWN
from services.generation.drafting.copies import END, LONGEST, Copies, OwnText, copies_from

TOKENS = st.lists(st.integers(0, 3), max_size=60)


def common_end(one: list[int], other: list[int]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return min(LONGEST, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))))


def plain(copies: Copies) -> list[tuple[int, list[int]]]:
    return list(zip(copies.lengths.tolist(), copies.tokens.tolist(), strict=True))


@given(TOKENS, st.integers(0, 8), st.integers(1, 40))
def test_own_text_is_copied_from_its_longest_matches_and_goes_round(tokens: list[int], most: int, depth: int) -> None:
    text = OwnText()
    text.extend(tokens)
    places = [place for place in range(len(tokens) - 1, 0, -1) if common_end(tokens[:place], tokens)]
    places.sort(key=lambda place: -common_end(tokens[:place], tokens))  # stable: the latest first among equals
    expected = [
        (common_end(tokens[:place], tokens), [tokens[place + i % (len(tokens) - place)] for i in range(depth)])
        for place in places[:most]
    ]
    found = text.copies(most, depth)
    assert plain(found) == expected
    assert found.source == OWN


@given(TOKENS, TOKENS)
def test_a_text_that_grows_is_that_of_a_new_one(tokens: list[int], more: list[int]) -> None:
    grown, fresh = OwnText(), OwnText()
    grown.extend(tokens)
    grown.extend(tokens + more)
    fresh.extend(tokens + more)
    assert plain(grown.copies(8)) == plain(fresh.copies(8))
    assert grown.end(5).tolist() == (tokens + more)[-5:]


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=4), TOKENS, st.integers(1, 3), st.integers(1, 6))
def test_no_match_and_no_copy_crosses_the_end_of_a_piece(
    pieces: list[list[int]], end: list[int], shortest: int, most: int
) -> None:
    text = [token for piece in pieces for token in (*piece, END)]
    expected = [
        (common_end(piece[:at], end), (piece[at : at + 5] + [END] * 5)[:5])
        for piece in reversed(pieces)
        for at in range(len(piece) - 1, 0, -1)
        if common_end(piece[:at], end) >= shortest
    ]
    expected.sort(key=lambda match: -match[0])
    found = copies_from(np.array(text, np.int64), NEAR, np.array(end, np.int64), shortest, most, 5)
    assert plain(found) == expected[:most]


@pytest.mark.parametrize("length", [1023, 1024, 1025, 5000])
def test_a_long_text_is_kept_whole(length: int) -> None:
    text, tokens = OwnText(), [7, *range(10, 10 + length), 7]
    text.extend(tokens)
    assert plain(text.copies(1, 3)) == [(1, [10, 11, 12])]
