"""Passages and requests by a sentence-transformers model, as the text that their tokens spell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from services.generation.drafting.retrieval.embedding import Embedding, Float32
from services.generation.drafting.retrieval.sentence_model import SentenceModel

_TEXTS = 256  # decoded at a time


class SentenceEmbedder:
    """`Embedder`. The model itself cuts off the end of what is longer than its own limit."""

    def __init__(self, embedding: Embedding, model: SentenceModel, tokenizer: FastTokenizer, window: int) -> None:
        """`window` is how many tokens of a request's end are read."""
        self.embedding = embedding
        self._model, self._tokenizer, self._window = model, tokenizer, window

    @property
    def dimensions(self) -> int:
        return self._model.dimensions

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Iterator[Float32]:
        for at in range(0, len(table), _TEXTS):
            ids = [tokens[first : first + count].tolist() for _, first, count in table[at : at + _TEXTS].tolist()]
            yield self._model.embed(self._tokenizer.decode_batch(ids, skip_special_tokens=False))

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        text = self._tokenizer.decode(tokens[-self._window :].tolist(), skip_special_tokens=False)
        embedding: Float32 = self._model.embed([text])[0]
        return embedding
