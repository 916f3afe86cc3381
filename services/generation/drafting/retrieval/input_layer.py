"""Embeddings of passages and requests: means of the base's token embeddings, with larger weights of rare tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.encoding.text_forms import parse_cid
from ledger.errors import FormatError
from services.generation.target.architectures import architecture_of
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config_document import family_of, read_document
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.gguf_file import GgufFile, is_gguf
from services.generation.target.files.gguf_header import gguf_sizes
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.weights import open_weights

_NAME = "model.embed_tokens.weight"
_PASSAGES = 1024  # tokens embedded at a time


@dataclass(frozen=True, slots=True)
class Embedding:
    """The base whose input layer has embedded a datastore's passages. Vectors of two bases are not comparable."""

    cid: str

    @classmethod
    def from_document(cls, document: Any) -> Embedding:
        """The embedding of a manifest. Raises ValueError if it describes none."""
        match document:
            case {"kind": "base", "cid": str(cid), "layer": int(layer)} if layer == 0 and not isinstance(layer, bool):
                try:
                    parse_cid(cid, "embedding.cid")
                except FormatError as error:
                    raise ValueError(str(error)) from error
                return cls(cid)
        raise ValueError(f"embedding: {document!r} is not the input layer of a base; build the datastore again")

    def to_document(self) -> dict[str, Any]:
        return {"kind": "base", "cid": self.cid, "layer": 0}


class InputLayer:
    """Embeds passages and requests: the base's hidden states before its first layer, pooled, as vectors of length 1.

    The same tokens get the same vector. A datastore of ten million tokens takes seconds, while the layers above would
    take an hour (ADR 0083).
    """

    def __init__(self, table: StoredTensor, weights: Float32) -> None:
        """`table` [vocab, hidden]: token embeddings as stored; torch would take more memory than a build. `weights`
        [vocab]: of tokens.
        """
        self._table, self._weights = table, weights

    @classmethod
    def of_base(cls, base: Path, weights: Float32) -> InputLayer:
        """Raises TargetError if the base's directory has no table of token embeddings that fits its configuration."""
        table = token_embeddings(base)
        if table.shape[0] < len(weights):
            raise WeightsInvalid(
                f"{base}: its tokenizer has {len(weights)} tokens, its weights have embeddings for {table.shape[0]}"
            )
        return cls(table, weights)

    @property
    def dimensions(self) -> int:
        return self._table.shape[1]

    def passages(self, tokens: NDArray[Any], table: Int64) -> Iterator[Float32]:
        """Embeddings [passages, dimensions], in parts.

        table [passages, 3] as in a datastore: shard, first token, tokens (one or more).
        """
        weighted = self._table.rows(slice(len(self._weights)))
        weighted *= self._weights[:, None]
        for at in range(0, len(table), _PASSAGES):
            part = table[at : at + _PASSAGES].tolist()
            out = np.empty((len(part), self.dimensions), np.float32)
            for row, (_, first, count) in enumerate(part):
                weighted.take(tokens[first : first + count], axis=0).sum(axis=0, out=out[row])
            yield _unit(out)

    def request(self, tokens: Int64) -> Float32:
        """The embedding [dimensions] of the end of a request."""
        rows = self._table.rows(tokens) * self._weights[tokens][:, None]
        embedding: Float32 = _unit(rows.sum(axis=0)[None])[0]
        return embedding


def token_embeddings(base: Path) -> StoredTensor:
    """A base's token embeddings [vocab, hidden], as stored.

    Raises TargetError if there is no base in this directory or file, or the table does not fit its configuration.
    """
    sizes, weights = _sizes(base), open_weights(base)
    if _NAME not in weights.names():
        raise WeightsInvalid(f"{base}: no tensor {_NAME} in its weights")
    shape = weights.shape(_NAME)
    expected = [sizes.get(name, size) for name, size in zip(("vocab_size", "hidden_size"), shape, strict=True)]
    if list(shape) != expected:
        raise WeightsInvalid(f"{base}: {_NAME} is {list(shape)}; expected {expected} by its configuration")
    return weights.tensor(_NAME)


def _sizes(base: Path) -> Mapping[str, Any]:
    """Sizes by their names in config.json, which may leave out defaults; read without transformers."""
    if is_gguf(base):
        return gguf_sizes(GgufFile.open(base).metadata)
    document = read_document(base)
    is_nested = family_of(document).multimodal == architecture_of(document)
    return document["text_config"] if is_nested else document


def _unit(rows: Float32) -> Float32:
    """Rows [n, dimensions] at length 1."""
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    scaled: Float32 = rows / np.maximum(norms, np.float32(1e-12))
    return scaled
