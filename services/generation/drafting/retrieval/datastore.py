"""An open datastore, mapped from disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from services.generation.drafting.retrieval.backoff import Suffixes, Tokens
from services.generation.drafting.retrieval.input_layer import InputLayer
from services.generation.drafting.retrieval.manifest import Manifest, StoreInvalid, StoreMismatch, token_dtype
from services.generation.target.arrays import Float32, Int32, Int64
from services.generation.target.identity import base_cid

_PROBES = 16  # inverted lists read by a search


@dataclass(frozen=True, slots=True)
class Shard:
    """Concatenated documents, each followed by a separator that is not a token, so that matches and continuations do
    not cross documents.

    tokens [n] uint16 or uint32; suffixes [n] int32, positions in the order of the suffixes that begin there (Manber &
    Myers 1993), tokens compared as numbers, a suffix before its own extensions.
    """

    tokens: Tokens
    suffixes: Int32
    separator: int
    _edges: Int64 = field(init=False, repr=False)
    """By token, the first suffix that begins with it or with a greater token; -1 before its first lookup."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", np.full(self.separator + 2, -1, np.int64))

    @classmethod
    def open(cls, tokens: Path, suffixes: Path, separator: int) -> Shard:
        """Map both files. Raises StoreInvalid if they are not a shard's."""
        shard = cls(_mapped(tokens), _mapped(suffixes), separator)
        if shard.tokens.dtype != token_dtype(separator) or shard.suffixes.dtype != np.int32:
            raise StoreInvalid(f"{tokens}: tokens of {shard.tokens.dtype} with suffixes of {shard.suffixes.dtype}")
        if shard.tokens.shape != shard.suffixes.shape or shard.tokens.ndim != 1:
            raise StoreInvalid(f"{suffixes}: {shard.suffixes.shape} suffixes for {shard.tokens.shape} tokens")
        return shard

    def check(self, path: Path) -> None:
        """Raises StoreInvalid naming the file of suffixes if the search, which has no bounds checks, would read outside
        of the shard.
        """
        least, greatest = self.suffixes.min(initial=0), self.suffixes.max(initial=-1)
        if least < 0 or greatest >= len(self.tokens):
            raise StoreInvalid(
                f"{path}: suffixes from {least} to {greatest}, expected 0 to {len(self.tokens) - 1}; build the "
                "datastore again"
            )

    @property
    def arrays(self) -> Suffixes:
        return Suffixes(self.tokens, self.suffixes, self._edges, self.separator)


def _mapped(path: Path) -> Any:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))  # compiled code accepts a subclass slowly
    except (OSError, ValueError, EOFError) as error:
        raise StoreInvalid(f"{path}: {error}; build the datastore again") from error


class PassageIndex:
    """An index file. Reads are safe from any thread."""

    def __init__(self, path: Path, dimensions: int, passages: int) -> None:
        """Raises StoreInvalid if the file is not an index of `passages` passages in `dimensions` dimensions."""
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise StoreInvalid(f"{path}: not an index: {str(error).splitlines()[0]}") from error
        if (self._index.d, self._index.ntotal) != (dimensions, passages):
            raise StoreInvalid(
                f"{path}: {self._index.ntotal} vectors of {self._index.d} dimensions; the embedder's have "
                f"{dimensions} and the store has {passages} passages; build the datastore again"
            )
        if isinstance(self._index, faiss.IndexIVF):
            self._index.nprobe = _PROBES

    def nearest(self, embedding: Float32, count: int) -> Int64:
        """The `count` nearest passages, best first; fewer if the index has fewer.

        Runs on the calling thread only. OpenMP's threads spin: if one of their cores is busy, a search takes sixteen
        milliseconds instead of one.
        """
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            _, found = self._index.search(embedding[None], count)
        finally:
            faiss.omp_set_num_threads(threads)
        nearest: Int64 = found[0][found[0] >= 0]
        return nearest


@dataclass(frozen=True, slots=True)
class _Nearness:
    embedder: InputLayer
    index: PassageIndex


class Datastore:
    """A datastore. Reads are safe from any thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, shards: list[Shard], passages: Int64, near: _Nearness | None
    ) -> None:
        self.manifest = manifest
        self.folder = folder
        self.shards = shards
        self._passages = passages
        self._near = near

    @classmethod
    def open(
        cls, folder: Path, base: Path, tokenizer_cid: str, *, embedded_by: str | None = None, near: bool = True
    ) -> Datastore:
        """Map a datastore's files. Sizes are checked, contents are not (`verify` does that).

        `embedded_by`: the identifier of `base`, if it is known. Without `near` passages cannot be searched, and the
        base may be another.

        Raises:
            StoreInvalid: a file is missing, truncated or differs from the manifest.
            StoreMismatch: it was built with another tokenizer or base.
        """
        manifest = Manifest.read(folder)
        if manifest.tokenizer_cid != tokenizer_cid:
            raise StoreMismatch(
                f"{folder}: built with tokenizer {manifest.tokenizer_cid}, the base has {tokenizer_cid}; build it "
                "again with this base"
            )
        files = {blob.path: blob.check(folder, contents=False) for blob in manifest.blobs}
        weights: Float32 = _table(files[manifest.weights.path], (manifest.vocab_size,), np.float32)
        shards = [Shard.open(files[t.path], files[s.path], manifest.vocab_size) for t, s in manifest.shards]
        passages: Int64 = _table(files[manifest.passages.path], (-1, 3), np.int64)
        if not near:
            return cls(folder, manifest, shards, passages, None)
        if manifest.embedding.cid != (found := embedded_by or base_cid(base)):
            raise StoreMismatch(
                f"{folder}: embedding: made by {manifest.embedding.cid}, the base is {found}; build it again with "
                "this base"
            )
        embedder = InputLayer.of_base(base, weights)
        index = PassageIndex(files[manifest.index.path], embedder.dimensions, len(passages))
        return cls(folder, manifest, shards, passages, _Nearness(embedder, index))

    def verify(self) -> None:
        """Hash every file, and check what the search takes for granted, whoever wrote the manifest. Raises StoreInvalid
        naming the first file that was changed or is not a datastore's.
        """
        for blob in self.manifest.blobs:
            blob.check(self.folder, contents=True)
        for shard, (_, suffixes) in zip(self.shards, self.manifest.shards, strict=True):
            shard.check(self.folder / suffixes.path)
        sizes = np.array([len(shard.tokens) for shard in self.shards], np.int64)
        shards, firsts, counts = self._passages.T
        if not (
            np.isin(shards, np.arange(len(sizes))).all()
            and (firsts >= 0).all()
            and (counts >= 0).all()
            and (counts <= sizes[shards] - firsts).all()
        ):
            path = self.folder / self.manifest.passages.path
            raise StoreInvalid(f"{path}: a passage outside of its shard; build the datastore again")

    def nearest_passages(self, tokens: Int64, count: int) -> Int64:
        """Indexes of the `count` passages nearest to the tokens, best first."""
        if self._near is None:
            return np.zeros(0, np.int64)
        known = tokens[tokens < self.manifest.vocab_size]
        return self._near.index.nearest(self._near.embedder.request(known), count)

    def passage(self, index: int) -> Int64:
        """The tokens of a passage."""
        shard, first, count = self._passages[index].tolist()
        tokens: Int64 = self.shards[shard].tokens[first : first + count].astype(np.int64)
        return tokens


def _table(path: Path, shape: tuple[int, ...], dtype: type[np.generic]) -> Any:
    table = _mapped(path)
    fits = table.dtype == dtype and len(table.shape) == len(shape)
    if not fits or any(want not in (-1, have) for want, have in zip(shape, table.shape, strict=True)):
        raise StoreInvalid(f"{path}: {table.dtype} {table.shape}, expected {np.dtype(dtype)} {shape}")
    return table
