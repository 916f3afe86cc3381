"""The tokens that an MTP block drafts: the rows of the output matrix are most of the cost of a draft."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from services.generation.target.arrays import Int64


def frequent_tokens(tokenizer: FastTokenizer, count: int, vocab_size: int, ends: Iterable[int]) -> Int64 | None:
    """[count] ids, ascending: of tokens added to the vocabulary (markup), of `ends`, and the lowest of all others. In a
    byte-pair vocabulary ids are ranks of merges: the lower, the more frequent in the text that it was made from.

    None if that is the whole vocabulary; a count of 0 asks for it.
    """
    if not 0 < count < vocab_size:
        return None
    always = {token for token in (*tokenizer.get_added_tokens_decoder(), *ends) if 0 <= token < vocab_size}
    others = np.setdiff1d(np.arange(vocab_size), np.array(sorted(always), np.int64))
    chosen = np.concatenate([np.array(sorted(always), np.int64)[:count], others])[:count]
    return np.sort(chosen)
