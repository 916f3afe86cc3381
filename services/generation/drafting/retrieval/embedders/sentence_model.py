"""Passages and requests by a sentence-transformers model, where an operator prefers one to the base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from ledger.documents.named_file import NamedFile
from ledger.encoding.cid import cid_of_json
from services.generation.drafting.retrieval.datastore_error import EmbedderInvalid
from services.generation.drafting.retrieval.embedders.embedder import Embedding, Float32
from services.generation.target.folders.digests import FileDigests

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_FILES = (".json", ".txt", ".model", ".safetensors")  # what a model is made of; the rest is about it
_MODULES = ("Transformer", "Pooling", "Normalize", "Dense")
_BATCH = 32
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


class SentenceModel:
    """Maps texts to vectors of length 1. Nothing of the directory is run, and nothing is fetched."""

    def __init__(self, cid: str, model: SentenceTransformer, dimensions: int) -> None:
        self.cid, self.dimensions = cid, dimensions
        self._model = model

    @classmethod
    def load(cls, directory: Path) -> SentenceModel:
        """Raises EmbedderInvalid: the package is not installed, or the directory is not one that it can use."""
        _check_modules(directory)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise EmbedderInvalid(
                f"{directory}: needs the package sentence-transformers; install kolm-serve[embedder]"
            ) from error
        try:
            model = SentenceTransformer(
                str(directory), device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True}
            )
            dimensions = len(model.encode(["a"], show_progress_bar=False)[0])
        except Exception as error:  # its modules raise errors of many kinds
            raise EmbedderInvalid(f"{directory}: does not load: {type(error).__name__}: {error}") from error
        return cls(directory_cid(directory), model, dimensions)

    def embed(self, texts: list[str]) -> Float32:
        """[texts, dimensions]."""
        vectors: Float32 = self._model.encode(
            texts, batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
        )
        return vectors.astype("float32", copy=False)


def directory_cid(directory: Path) -> str:
    """Digest of the names and bytes of the model's files."""
    digests = FileDigests()
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix in _FILES)
    parts = [
        NamedFile(path.relative_to(directory).as_posix(), path.stat().st_size, digests.digest(path)) for path in files
    ]
    return cid_of_json({"type": "kolm.embedder.v1", "files": [part.to_document() for part in parts]})


def _check_modules(directory: Path) -> None:
    """Only modules of the package itself with weights in safetensors: others would be code, or pickles."""
    path = directory / "modules.json"
    try:
        modules = json.loads(path.read_bytes())
    except OSError as error:
        raise EmbedderInvalid(
            f"{directory}: not a sentence-transformers directory, it has no modules.json ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise EmbedderInvalid(f"{path}: not JSON: {error}") from error
    if not isinstance(modules, list) or not modules:
        raise EmbedderInvalid(f"{path}: expected a list of modules")
    for module in modules:
        _check_module(directory, path, module)


def _check_module(directory: Path, path: Path, module: Any) -> None:
    match module:
        case {"type": str(kind), "path": str(folder)}:
            package, _, name = kind.rpartition(".")
            if package.partition(".")[0] != "sentence_transformers" or name not in _MODULES:
                raise EmbedderInvalid(f"{path}: module {kind!r} is not supported; supported: {', '.join(_MODULES)}")
            inside = (directory / folder).resolve()
            if not inside.is_relative_to(directory.resolve()):
                raise EmbedderInvalid(f"{path}: {folder!r} lies outside of the directory")
            if name in ("Transformer", "Dense") and not any(inside.glob("*.safetensors")):
                raise EmbedderInvalid(f"{inside}: no weights in safetensors; convert them, pickles are not read")
        case _:
            raise EmbedderInvalid(f"{path}: {module!r} is not a module with a type and a path")
