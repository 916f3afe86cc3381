"""The embedding of a datastore's passages: its description in the manifest, and the protocol of an embedder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ledger.encoding.cid import parse_cid
from ledger.errors import FormatError

Float32 = NDArray[np.float32]
BASE, SENTENCES = "base", "sentence-transformers"


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors that can be compared: two stores have the same only if all of this is the same."""

    kind: str  # BASE: pooled hidden states; SENTENCES: a sentence-transformers model
    cid: str  # of the base, or of the model's directory
    layer: int | None  # decoder layers that the hidden states have passed, 0 is the input; None for SENTENCES

    @classmethod
    def from_document(cls, document: Any) -> Embedding:
        """Raises ValueError if it describes no embedding."""
        match document:
            case {"kind": "base", "cid": str(cid), "layer": int(layer)} if layer >= 0 and not isinstance(layer, bool):
                return cls(BASE, _checked(cid), layer)
            case {"kind": "sentence-transformers", "cid": str(cid)}:
                return cls(SENTENCES, _checked(cid), None)
        raise ValueError(f"embedding: {document!r} is neither a layer of a base nor a sentence-transformers model")

    def to_document(self) -> dict[str, Any]:
        layer = {} if self.layer is None else {"layer": self.layer}
        return {"kind": self.kind, "cid": self.cid, **layer}

    def __str__(self) -> str:
        return f"sentence-transformers model {self.cid}" if self.layer is None else f"layer {self.layer} of {self.cid}"


class Embedder(Protocol):
    """Maps token ids to vectors of length 1, [dimensions] float32. The same tokens get the same vector."""

    embedding: Embedding

    @property
    def dimensions(self) -> int: ...

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Iterator[Float32]:
        """[passages, dimensions] in parts, as they are done.

        table [passages, 3] as in a datastore: shard, first token, tokens (one or more).
        """
        ...

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        """[dimensions] of the end of a request. Raises CacheFull where the base has no room to compute it now."""
        ...


def unit(rows: Float32) -> Float32:
    """Rows [n, dimensions] at length 1."""
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    scaled: Float32 = rows / np.maximum(norms, np.float32(1e-12))
    return scaled


def _checked(cid: str) -> str:
    try:
        parse_cid(cid, "embedding.cid")
    except FormatError as error:
        raise ValueError(str(error)) from error
    return cid
