"""The number of answers that had each token, kept between starts."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ledger.durable_file import write_durably
from services.generation.target.arrays import Int64

_log = logging.getLogger(__name__)

_EVERY = 16  # answers between two writes of the file


class AnsweredTokens:
    """The number of answers that had each token, [vocabulary], kept in a file between starts. Used by one thread.

    Nothing else of an answer is kept. A file that is missing, damaged or of another vocabulary counts as no answers.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._path, self._new = path, 0
        self.counts: Int64 = _read(path, vocab_size)

    def add(self, tokens: Sequence[int]) -> None:
        """Count an answer."""
        self.counts[np.unique(np.array(tokens, np.int64))] += 1
        self._new += 1
        if self._new >= _EVERY:
            self._new = 0
            self._write()

    def _write(self) -> None:
        written = io.BytesIO()
        np.save(written, self.counts, allow_pickle=False)
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
