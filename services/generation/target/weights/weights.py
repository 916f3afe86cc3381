"""The weights of one model, whatever file they came in."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from services.generation.target.config.config_document import named_family
from services.generation.target.files.gguf_file import GgufFile, is_gguf
from services.generation.target.files.safetensors_file import SafetensorsFiles
from services.generation.target.files.stored_tensor import StoredTensor


class Weights(Protocol):
    """Open weights by the names of transformers' model. Safe from any thread; nothing is read before it is asked for.

    `shape`, `storage` and `tensor` raise KeyError for a name that is not in `names`.
    """

    @property
    def path(self) -> Path:
        """The file, or the directory of several."""
        ...

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """In weights, [out, in] or [size]."""
        ...

    def storage(self, name: str) -> str:
        """As in `StoredTensor`. Raises WeightsInvalid where it is none of those."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """Mapped from disk, or copied where it has to be put into transformers' order. Raises as `storage` does."""
        ...


def open_weights(path: Path) -> Weights:
    """The weights of a transformers directory or of a GGUF file; names and shapes are not held against a configuration.

    Raises:
        ModelNotFound: there is no such GGUF file.
        WeightsInvalid: a file is missing, truncated or contradicts itself, or a GGUF file holds an unsupported type.
    """
    return GgufFile.open(path) if is_gguf(path) else SafetensorsFiles.open(path, named_family(path))
