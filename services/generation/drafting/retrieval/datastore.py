"""A datastore, opened: mapped from disk, searched for what continues a context."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.backoff import LONGEST
from services.generation.drafting.retrieval.datastore_error import StoreInvalid, StoreMismatch
from services.generation.drafting.retrieval.embedders.embedder import Embedder
from services.generation.drafting.retrieval.embedders.models import Models
from services.generation.drafting.retrieval.manifest import Manifest
from services.generation.drafting.retrieval.passage_index import PassageIndex
from services.generation.drafting.retrieval.shard import Shard

SHORTEST = 2  # tokens of the context's end that are looked up, at least
_HITS = 64  # occurrences looked at

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hits:
    """Occurrences of an end of the context: continuations [hits, depth], with -1 after a document's end, and how many
    tokens matched [hits].
    """

    continuations: Int64
    lengths: Int64


@dataclass(frozen=True, slots=True)
class _Nearness:
    embedder: Embedder
    index: PassageIndex


class Datastore:
    """Searches are safe from any thread."""

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
        cls, folder: Path, base: Path, tokenizer_cid: str, models: Models | None = None, *, near: bool = True
    ) -> Datastore:
        """Map a datastore's files. Sizes are checked, contents are not (`verify` does that).

        `models` are those to embed requests with, by default the input layer of `base` alone. Without `near` none is
        needed, and no passage is ever near.

        Raises:
            StoreInvalid: a file is missing, cut short or not what the manifest says.
            StoreMismatch: it was built with another tokenizer, or with a model that is not among these.
        """
        manifest = Manifest.read(folder)
        if manifest.tokenizer_cid != tokenizer_cid:
            raise StoreMismatch(
                f"{folder}: built with tokenizer {manifest.tokenizer_cid}, the base has {tokenizer_cid}; build it "
                "again with this base"
            )
        files = {blob.path: blob.check(folder, contents=False) for blob in manifest.blobs}
        weights: NDArray[np.float32] = _table(files[manifest.weights.path], (manifest.vocab_size,), np.float32)
        shards = [Shard.open(files[t.path], files[s.path], manifest.vocab_size) for t, s in manifest.shards]
        passages: Int64 = _table(files[manifest.passages.path], (-1, 3), np.int64)
        if not near:
            return cls(folder, manifest, shards, passages, None)
        try:
            embedder = (models or Models(base)).embedder(manifest.embedding, weights, manifest.passage_tokens)
        except StoreMismatch as error:
            raise StoreMismatch(f"{folder}: {error}") from error
        index = PassageIndex(files[manifest.index.path], embedder.dimensions, len(passages))
        return cls(folder, manifest, shards, passages, _Nearness(embedder, index))

    def verify(self) -> None:
        """Hash every file. Raises StoreInvalid naming the first whose bytes have changed."""
        for blob in self.manifest.blobs:
            blob.check(self.folder, contents=True)

    def nearest_passages(self, tokens: Int64, count: int) -> Int64:
        """Indexes of the `count` passages nearest to the tokens, best first.

        Raises CacheFull where the base is to embed them and has no room for it now.
        """
        if self._near is None:
            return np.zeros(0, np.int64)
        known = tokens[tokens < self.manifest.vocab_size]
        return self._near.index.nearest(self._near.embedder.request(known), count)

    def passage(self, index: int) -> Int64:
        """The tokens of a passage."""
        shard, first, count = self._passages[index].tolist()
        tokens: Int64 = self.shards[shard].tokens[first : first + count].astype(np.int64)
        return tokens

    def search(self, context: Int64, depth: int) -> Hits:
        """Occurrences of the longest ends of `context`, in all shards, longest first, at most 64.

        The same call always gives the same answer.
        """
        found = [shard.search(context[-LONGEST:], (LONGEST, SHORTEST), _HITS, depth) for shard in self.shards]
        if len(found) == 1:
            return Hits(*found[0])
        continuations, lengths = map(np.concatenate, zip(*found, strict=True))
        best = np.argsort(-lengths, kind="stable")[:_HITS]
        return Hits(continuations[best], lengths[best])


def _table(path: Path, shape: tuple[int, ...], dtype: type[np.generic]) -> Any:
    try:
        table = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise StoreInvalid(f"{path}: {error}; build the datastore again") from error
    fits = table.dtype == dtype and len(table.shape) == len(shape)
    if not fits or any(want not in (-1, have) for want, have in zip(shape, table.shape, strict=True)):
        raise StoreInvalid(f"{path}: {table.dtype} {table.shape}, expected {np.dtype(dtype)} {shape}")
    return table
