"""The number of answers that had each token, kept between starts, and the tokens that an MTP block drafts by it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from ledger.durable_file import write_durably
from services.generation.target.arrays import Int64

_log = logging.getLogger(__name__)

LEAST = 8
"""Answers that have a token before it is preferred: fewer would show what one of them was about."""
_EVERY = 16  # answers between two writes of the file


class AnsweredTokens:
    """The number of answers that had each token, [vocabulary], kept in a file between starts. Used by one thread, which
    does not wait for the disk.

    Nothing else of an answer is kept. A file that is missing, damaged or of another vocabulary counts as no answers.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._path, self._new = path, 0
        self._writing: Thread | None = None
        self.counts: Int64 = _read(path, vocab_size)

    def add(self, tokens: Sequence[int]) -> None:
        """Count an answer."""
        self.counts[np.unique(np.array(tokens, np.int64))] += 1
        self._new += 1
        if self._new >= _EVERY and (self._writing is None or not self._writing.is_alive()):
            self._new = 0
            self._writing = Thread(target=self._write, args=(self.counts.copy(),), name="answered tokens")
            self._writing.start()

    def _write(self, counts: Int64) -> None:
        written = io.BytesIO()
        np.save(written, counts, allow_pickle=False)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, written.getvalue())
        except OSError as error:
            _log.warning("cannot write the counts of answered tokens to %s: %s", self._path, error)


def _read(path: Path, vocab_size: int) -> Int64:
    try:
        found = np.load(path, allow_pickle=False)
        if (found.dtype, found.shape) == (np.int64, (vocab_size,)) and (found >= 0).all():
            return np.array(found, np.int64)
        _log.warning("ignoring %s: expected the counts of %d tokens", path, vocab_size)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError) as error:
        _log.warning("ignoring the counts of answered tokens in %s: %s", path, error)
    return np.zeros(vocab_size, np.int64)


def frequent_tokens(
    tokenizer: FastTokenizer, count: int, vocab_size: int, ends: Iterable[int], answered: Int64 | None = None
) -> Int64 | None:
    """[count] ids, ascending: of tokens added to the vocabulary (markup), of `ends`, of tokens in at least LEAST
    answers (`answered` [vocabulary] of them), the most frequent ones first, and the lowest of all others. In a
    byte-pair vocabulary ids are ranks of merges: the lower, the more frequent in the text that it was made from.

    Fewer make a draft cheaper, of which the rows of the output matrix are most. None if that is the whole vocabulary; a
    count of 0 asks for it.
    """
    if not 0 < count < vocab_size:
        return None
    rank = np.zeros(vocab_size, np.int64) if answered is None else np.where(answered < LEAST, 0, answered)
    always = [token for token in (*tokenizer.get_added_tokens_decoder(), *ends) if 0 <= token < vocab_size]
    rank[always] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-rank, kind="stable")[:count])
