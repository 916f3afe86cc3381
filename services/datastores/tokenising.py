"""Converts documents to token ids by the base's tokenizer, a batch at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from services.datastores.documents import Document
from services.generation.drafting.retrieval.input_layer import token_embeddings
from services.generation.drafting.retrieval.manifest import token_dtype
from services.generation.engine.text.markup import embedded_tokens
from services.generation.target.errors import ConfigInvalid, WeightsInvalid

_T = TypeVar("_T")
_BATCH_CHARACTERS = 1 << 19  # of text that is tokenised at a time
_PIECE_CHARACTERS = 1 << 18  # a longer text is cut at a line's or a word's end first: tokenizers slow down on long ones


@dataclass(frozen=True, slots=True)
class Tokenising:
    """Tokenises on all cores, in small batches, because an encoding needs fifty times the memory of its text."""

    tokenizer: FastTokenizer
    vocab_size: int
    """Tokens with larger ids are left out: the base has no embeddings for them."""

    @classmethod
    def of_base(cls, tokenizer: FastTokenizer, base: Path) -> Tokenising:
        """Raises TargetError if the base's token embeddings cannot be read, or do not fit its tokenizer."""
        try:
            return cls(tokenizer, embedded_tokens(tokenizer, token_embeddings(base).shape[0]))
        except ValueError as error:
            raise WeightsInvalid(f"{base}: {error}") from error

    def batches(self, documents: Iterable[Document]) -> Iterator[list[tuple[Document, NDArray[Any]]]]:
        """The documents with their tokens [n], uint16 or uint32."""
        for batch in _batches(documents, lambda document: len(document.text)):
            yield list(zip(batch, self._tokenised(batch), strict=True))

    def _tokenised(self, batch: list[Document]) -> Iterator[NDArray[Any]]:
        pieces = [list(_pieces(document.text)) for document in batch]
        encoded = self._encoded(piece for own in pieces for piece in own)
        for own in pieces:
            yield np.concatenate([next(encoded) for _ in own])

    def _encoded(self, pieces: Iterable[str]) -> Iterator[NDArray[Any]]:
        dtype = token_dtype(self.vocab_size)
        for batch in _batches(pieces, len):
            for encoding in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids = np.array(encoding.ids, np.uint32)
                yield ids[ids < self.vocab_size].astype(dtype)


def _batches(texts: Iterable[_T], length: Callable[[_T], int]) -> Iterator[list[_T]]:
    batch: list[_T] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += length(text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces that end with a line, with a word, or at the size limit."""
    first = 0
    while len(text) - first > _PIECE_CHARACTERS:
        end = first + _PIECE_CHARACTERS
        cut = text.rfind("\n", first, end) + 1 or text.rfind(" ", first, end) + 1 or end
        yield text[first:cut]
        first = cut
    yield text[first:]


def fast_tokenizer(directory: Path) -> FastTokenizer:
    """The fast tokenizer of `engine.text.tokenizer.Tokenizer` for the same directory.

    The transformers library may differ from tokenizer.json, so it makes the tokenizer, in a process of its own, which
    releases the memory, and without torch, which is not needed.

    Raises ConfigInvalid if the directory has no fast tokenizer that loads.
    """
    command, environment = (
        [sys.executable, "-P", "-m", __name__, str(directory)],
        {"PYTHONIOENCODING": "utf-8:backslashreplace"},
    )
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | environment, check=False)
    if done.returncode:
        reason = done.stdout.strip() or done.stderr.strip() or f"exit {done.returncode}"
        raise ConfigInvalid(
            reason if str(directory) in reason else f"{directory}: the tokenizer does not load: {reason}"
        )
    return FastTokenizer.from_str(done.stdout)


def _main(directory: Path) -> int:
    from services.generation.target.without_torch import hide_torch

    hide_torch()
    from services.generation.engine.text.tokenizer import Tokenizer

    try:
        print(Tokenizer(directory).fast.to_str())
    except ConfigInvalid as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
