"""Building a datastore: documents in, a folder out, whole or not at all.

The FAISS index of passages is flat if they are few, then a graph mapped from disk, then codes.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import faiss
import numpy as np
import pydivsufsort
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from ledger.durable_file import move_durably
from services.datastores.documents import Document, DocumentsInvalid
from services.datastores.tokenising import Tokenising
from services.generation.drafting.retrieval.input_layer import Embedding, InputLayer
from services.generation.drafting.retrieval.manifest import NAME, Blob, DatastoreError, Manifest, token_dtype
from services.generation.state_folder import only_one
from services.generation.target.arrays import Bytes, Float32, Int32, Int64
from services.generation.target.identity import base_cid, one_version

FLAT_UP_TO = 50_000
HNSW_UP_TO = 2_000_000
_LINKS = 32  # of a node of the graph (M of Malkov & Yashunin 2018)
_CODE_BYTES = 32
_TRAINED = 64  # training vectors for the centre of each list
_BLOCK = 4096  # vectors handed on at a time
_COMMON = 1e-3  # a token as frequent as this counts half (Arora et al. 2017, "a simple but tough-to-beat baseline")
_PIECE = 1 << 20  # entries of the sorted array in one step
_COUNTED = 1 << 18  # tokens that are counted at a time: counting widens them


@dataclass(frozen=True, slots=True)
class PassageVectors:
    """`tokens` are the shards' files, `table` [passages, 3] as in a datastore: shard, first token, tokens."""

    embedder: InputLayer
    tokens: list[Path]
    table: Int64
    embedded: Callable[[int, int], None]
    """Takes the number of embedded passages, and of all."""

    def __len__(self) -> int:
        return len(self.table)

    def blocks(self, step: int = 1) -> Iterator[Float32]:
        """[4096 or, at the end, fewer; dimensions] of every passage, or of each `step`-th."""
        table = self.table[::step]
        waiting: list[Float32] = []
        done = held = 0
        for part in self._parts(table):
            done, held = done + len(part), held + len(part)
            self.embedded(done, len(table))
            waiting.append(part)
            while held >= _BLOCK:
                ready = np.concatenate(waiting)
                yield ready[:_BLOCK]
                waiting, held = [ready[_BLOCK:]], held - _BLOCK
        if held:
            yield np.concatenate(waiting)

    def _parts(self, table: Int64) -> Iterator[Float32]:
        for number, path in enumerate(self.tokens):
            yield from self.embedder.passages(np.load(path, mmap_mode="r"), table[table[:, 0] == number])


def build_index(vectors: PassageVectors) -> faiss.Index:
    """Inner product over the vectors, which have length 1. The same vectors give the same bytes.

    A flat search reads every vector for each request, and takes as long as its bytes do: in half precision, where
    products of such vectors keep three digits, half as long.
    """
    index: faiss.Index
    dimensions, count = vectors.embedder.dimensions, len(vectors)
    if count <= FLAT_UP_TO:
        index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    elif count <= HNSW_UP_TO:
        index = faiss.IndexHNSWFlat(dimensions, _LINKS, faiss.METRIC_INNER_PRODUCT)
    else:
        lists = int(4 * count**0.5)
        index = faiss.index_factory(dimensions, f"IVF{lists},PQ{_code_bytes(dimensions)}", faiss.METRIC_INNER_PRODUCT)
        index.train(np.concatenate(list(vectors.blocks(max(1, count // (_TRAINED * lists))))))
    for block in vectors.blocks():
        index.add(block)
    return index


def _code_bytes(dimensions: int) -> int:
    return next(size for size in range(min(_CODE_BYTES, dimensions), 0, -1) if dimensions % size == 0)


class BuildFailed(DatastoreError):
    """A datastore could not be written: no room, no permission, or an existing path."""


@dataclass(frozen=True, slots=True)
class BuildParameters:
    """Sizes of shards and passages; part of the manifest."""

    shard_tokens: int = 4_000_000
    passage_tokens: int = 128


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Callbacks of a build."""

    read: Callable[[int], None] = lambda _: None
    """Takes the number of characters that were tokenised since the last call."""
    embedded: Callable[[int, int], None] = lambda _, __: None
    """Takes the number of embedded passages, and of all."""


@dataclass(frozen=True, slots=True)
class DatastoreBuilder:
    """Writes shards as they fill up: memory is bounded by one shard, the passage table and the index."""

    base: Path
    tokenizer: FastTokenizer
    tokenizer_cid: str
    parameters: BuildParameters = field(default_factory=BuildParameters)

    def build(self, documents: Iterable[Document], out: Path, progress: BuildProgress | None = None) -> Manifest:
        """Write the datastore of `documents` to the folder `out`.

        Raises:
            BuildFailed: `out` exists, cannot be written, or is being built; no part of it is kept.
            DocumentsInvalid: there is no text.
            TargetError: the base's directory is not one whose token embeddings can be read.
        """
        try:
            with alone(out):
                check_out(out)
                manifest = self._build(documents, out, progress or BuildProgress())
        except OSError as error:
            raise BuildFailed(f"{out}: cannot be written: {error.strerror or error}; nothing was kept") from error
        except RuntimeError as error:  # FAISS writes by itself
            reason = str(error).splitlines()[0]
            raise BuildFailed(f"{out}: cannot be written: {reason}; nothing was kept") from error
        return manifest

    def _build(self, documents: Iterable[Document], out: Path, progress: BuildProgress) -> Manifest:
        folder = out.with_name(f".{out.name}.partial")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            manifest = self._write(documents, folder, progress)
            move_durably(folder, out)
            return manifest
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, documents: Iterable[Document], folder: Path, progress: BuildProgress) -> Manifest:
        tokenising, sizes = Tokenising.of_base(self.tokenizer, self.base), self.parameters
        shards = ShardWriter(folder, tokenising.vocab_size, sizes.shard_tokens, sizes.passage_tokens)
        count = 0
        with (folder / "sources.jsonl").open("w") as sources:
            for batch in tokenising.batches(documents):
                for document, tokens in batch:
                    sources.write(json.dumps({"source": document.source, "tokens": len(tokens)}) + "\n")
                    shards.take(tokens)
                count += len(batch)
                progress.read(sum(len(document.text) for document, _ in batch))
        shards.end()
        if not shards.shards:
            raise DocumentsInvalid("the corpus holds no text; name files with text in them")
        return self._finish(folder, shards, count, progress)

    def _finish(self, folder: Path, shards: ShardWriter, documents: int, progress: BuildProgress) -> Manifest:
        passages, weights = shards.passages, _token_weights(shards.counts)
        np.save(folder / "passages.npy", passages)
        np.save(folder / "weights.npy", weights)
        with one_version(self.base):
            embedding, embedder = Embedding(base_cid(self.base)), InputLayer.of_base(self.base, weights)
            tokens = [folder / blob.path for blob, _ in shards.shards]
            vectors = PassageVectors(embedder, tokens, passages, progress.embedded)
            faiss.write_index(build_index(vectors), str(folder / "passages.faiss"))
        manifest = Manifest(
            tokenizer_cid=self.tokenizer_cid,
            vocab_size=len(weights),
            documents=documents,
            tokens=int(shards.counts.sum()),
            shards=tuple(shards.shards),
            sources=Blob.of(folder, "sources.jsonl"),
            passages=Blob.of(folder, "passages.npy"),
            index=Blob.of(folder, "passages.faiss"),
            weights=Blob.of(folder, "weights.npy"),
            embedding=embedding,
            parameters=asdict(self.parameters),
        )
        (folder / NAME).write_bytes(manifest.to_bytes())
        return manifest


def alone(path: Path) -> AbstractContextManager[None]:
    """A block that one process at a time is in to write `path`. Raises BuildFailed if another one is, OSError."""
    refused = BuildFailed(f"{path}: another process writes it; wait until it ends, or choose another --out")
    return only_one(path.with_name(f".{path.name}.lock"), refused)


def check_out(out: Path) -> None:
    """Raises BuildFailed for an existing path."""
    if os.path.lexists(out):
        raise BuildFailed(f"{out} exists already; choose another --out or remove it")


def _token_weights(counts: Int64) -> Float32:
    """The weight of each token in a mean, [vocab], from how often it occurs in the corpus."""
    share = counts / max(int(counts.sum()), 1)
    return (_COMMON / (_COMMON + share)).astype(np.float32)


class ShardWriter:
    """Writes shards of documents laid out one after another; each is sorted and written when it is full."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int, passage_tokens: int) -> None:
        self._folder, self._separator = folder, vocab_size
        self._room, self._passage_tokens = shard_tokens, passage_tokens
        self._flat: NDArray[Any] = np.empty(shard_tokens + shard_tokens // 8 + 1, token_dtype(vocab_size))
        self._end = 0  # of its used part, separators included
        self._tokens = 0  # of them, without separators
        self._starts, self._lengths = array("q"), array("q")  # of the documents in it
        self._passages: list[Int64] = []
        self.shards: list[tuple[Blob, Blob]] = []
        self.counts: Int64 = np.zeros(vocab_size, np.int64)
        """How often each token occurs in the shards that are written, [vocab]."""

    @property
    def passages(self) -> Int64:
        """Passages of the shards that are written, [count, 3]: shard, first token, tokens."""
        return np.concatenate(self._passages)

    def take(self, tokens: NDArray[Any]) -> None:
        """A document; one longer than a shard is continued in the next. Raises OSError."""
        for first in range(0, max(len(tokens), 1), self._room):
            part = tokens[first : first + self._room]
            if self._tokens + len(part) > self._room:
                self.end()
            self._lay(part)

    def _lay(self, part: NDArray[Any]) -> None:
        after = self._end + len(part)
        while after >= len(self._flat):
            self._flat = np.concatenate([self._flat, np.empty_like(self._flat)])
        self._flat[self._end : after] = part
        self._flat[after] = self._separator
        self._starts.append(self._end)
        self._lengths.append(len(part))
        self._end, self._tokens = after + 1, self._tokens + len(part)

    def end(self) -> None:
        """Write the shard, if it has a token. Raises OSError."""
        if not self._tokens:
            return
        number, flat = len(self.shards), self._flat[: self._end]
        names = f"tokens-{number:05}.npy", f"suffixes-{number:05}.npy"
        np.save(self._folder / names[0], flat)
        with (self._folder / names[1]).open("wb") as file:
            _write_suffixes(flat, file)
        self.shards.append((Blob.of(self._folder, names[0]), Blob.of(self._folder, names[1])))
        self._passages.append(self._cut(number))
        for first in range(0, len(flat), _COUNTED):
            counted = np.bincount(flat[first : first + _COUNTED], minlength=self._separator + 1)
            self.counts += counted[: self._separator]
        self._starts, self._lengths = array("q"), array("q")
        self._end = self._tokens = 0

    def _cut(self, shard: int) -> Int64:
        """Passages of the shard's documents; none of an empty document."""
        size, starts, lengths = self._passage_tokens, np.array(self._starts), np.array(self._lengths)
        counts = -(-lengths // size)
        owner = np.repeat(np.arange(len(counts)), counts)
        firsts = size * (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts))
        tokens = np.minimum(size, lengths[owner] - firsts)
        return np.stack([np.full(len(owner), shard, np.int64), starts[owner] + firsts, tokens], axis=1)


def _write_suffixes(tokens: NDArray[Any], file: BinaryIO) -> None:
    """The array is written as `numpy.save` does; a mapping would end the process on a full disk."""
    header = {"descr": "<i4", "fortran_order": False, "shape": tokens.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in sorted_suffixes(tokens):
        file.write(piece.astype("<i4", copy=False).data)


def sorted_suffixes(tokens: NDArray[Any]) -> Iterator[Int32]:
    """Positions in the order of the suffixes of `tokens` [n], one after another in pieces: int32, n in all.

    The suffixes of the tokens' bytes are sorted, highest byte first, and positions within a token left out: the
    array of a shard of uint16 tokens takes eight bytes a token while it is made.
    """
    width = max(1, (int(tokens.max()).bit_length() + 7) // 8)
    in_bytes = pydivsufsort.divsufsort(_big_endian(tokens, width))
    for first in range(0, len(in_bytes), _PIECE):
        piece = in_bytes[first : first + _PIECE]
        yield (piece[piece % width == 0] // width).astype(np.int32, copy=False)


def _big_endian(tokens: NDArray[Any], width: int) -> Bytes:
    size = tokens.dtype.itemsize
    all_bytes = tokens.astype(tokens.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, size)
    return np.ascontiguousarray(all_bytes[:, size - width :]).reshape(-1)
