"""A base's token embeddings, read straight from its weights: torch would cost more memory than all of a build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.config_document import architecture_of, read_document
from services.generation.target.errors import WeightsInvalid
from services.generation.target.gguf_sizes import gguf_sizes
from services.generation.target.weights.gguf_file import GgufFile, is_gguf
from services.generation.target.weights.stored_tensor import StoredTensor
from services.generation.target.weights.weights import open_weights

_NAME = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The table [vocab, hidden] as it is stored."""

    stored: StoredTensor

    @classmethod
    def of_base(cls, base: Path) -> TokenVectors:
        """Raises TargetError if there is no base in this directory or file, or its table is not as it is configured."""
        expected, weights = _expected(base), open_weights(base)
        if _NAME not in weights.names():
            raise WeightsInvalid(f"{base}: no tensor {_NAME} in its weights")
        if weights.shape(_NAME) != expected:
            raise WeightsInvalid(
                f"{base}: {_NAME} is {list(weights.shape(_NAME))}; expected {list(expected)}, as it is configured"
            )
        return cls(weights.tensor(_NAME))

    @property
    def count(self) -> int:
        return self.stored.shape[0]

    @property
    def dimensions(self) -> int:
        return self.stored.shape[1]

    def rows(self, which: NDArray[Any] | slice) -> NDArray[np.float32]:
        """[which, hidden], exact; a copy."""
        return self.stored.rows(which)


def _expected(base: Path) -> tuple[Any, Any]:
    """Of a directory whatever config.json says, which is compared and nothing else."""
    if is_gguf(base):
        sizes = gguf_sizes(GgufFile.open(base).metadata)
        return sizes["vocab_size"], sizes["hidden_size"]
    document = read_document(base)
    architecture_of(document)
    return document.get("vocab_size"), document.get("hidden_size")
