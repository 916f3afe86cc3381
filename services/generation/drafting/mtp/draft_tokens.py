"""The tokens that an MTP block drafts: the rows of the output matrix are most of the cost of a draft."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from services.generation.target.arrays import Int64

LEAST = 8
"""Answers that have a token before it is preferred: fewer would show what one of them was about."""


def frequent_tokens(
    tokenizer: FastTokenizer, count: int, vocab_size: int, ends: Iterable[int], answered: Int64 | None = None
) -> Int64 | None:
    """[count] ids, ascending: of tokens added to the vocabulary (markup), of `ends`, of tokens in at least LEAST
    answers (`answered` [vocabulary] of them), the most frequent ones first, and the lowest of all others. In a
    byte-pair vocabulary ids are ranks of merges: the lower, the more frequent in the text that it was made from.

    None if that is the whole vocabulary; a count of 0 asks for it.
    """
    if not 0 < count < vocab_size:
        return None
    rank = np.zeros(vocab_size, np.int64) if answered is None else np.where(answered < LEAST, 0, answered)
    always = [token for token in (*tokenizer.get_added_tokens_decoder(), *ends) if 0 <= token < vocab_size]
    rank[always] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-rank, kind="stable")[:count])
