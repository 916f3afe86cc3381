"""Building a datastore: documents in, a folder out that is whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from services.generation.drafting.retrieval.blobs import Blob
from services.generation.drafting.retrieval.documents import Document
from services.generation.drafting.retrieval.embedding import token_weights
from services.generation.drafting.retrieval.errors import BuildFailed, CorpusInvalid
from services.generation.drafting.retrieval.index import build_index
from services.generation.drafting.retrieval.manifest import NAME, Manifest
from services.generation.drafting.retrieval.models import Models
from services.generation.drafting.retrieval.shard import Shard, token_dtype

_T = TypeVar("_T")
_BATCH_CHARACTERS = 1 << 19  # of text that is tokenised at a time
_PIECE_CHARACTERS = 1 << 18  # a longer text is cut at a line's or a word's end first: tokenizers slow down on long ones


@dataclass(frozen=True, slots=True)
class BuildParameters:
    """How a datastore is cut; part of its manifest."""

    shard_tokens: int = 4_000_000
    passage_tokens: int = 128
    layer: int = 0  # of the base, whose hidden states are pooled; its embedding is named by the manifest itself

    def to_document(self) -> dict[str, Any]:
        return {"shard_tokens": self.shard_tokens, "passage_tokens": self.passage_tokens}


@dataclass(slots=True)
class DatastoreBuilder:
    """Writes shards as they fill up: memory is bounded by one shard, the passage table and the index."""

    base: Path
    tokenizer: FastTokenizer
    tokenizer_cid: str
    parameters: BuildParameters = field(default_factory=BuildParameters)
    models: Models | None = None  # to embed with, where the base's input layer is not to do it
    _shards: list[tuple[Blob, Blob]] = field(default_factory=list)
    _passages: list[NDArray[np.int64]] = field(default_factory=list)
    _pending: list[NDArray[Any]] = field(default_factory=list)
    _pending_tokens: int = 0
    _documents: int = 0
    _tokens: int = 0

    @property
    def vocab_size(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def build(self, documents: Iterable[Document], out: Path, progress: Callable[[int], None]) -> Manifest:
        """Write the datastore of `documents` to the folder `out`; `progress` hears of characters as they are done.

        Raises:
            BuildFailed: `out` stands already, or cannot be written; nothing is left of it then.
            CorpusInvalid: there is no text.
        """
        if os.path.lexists(out):
            raise BuildFailed(f"{out} stands already; choose another --out or remove it")
        folder = out.with_name(f".{out.name}.partial")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            manifest = self._write(documents, folder, progress)
            folder.rename(out)
            return manifest
        except OSError as error:
            raise BuildFailed(f"{out}: cannot be written: {error.strerror or error}; nothing was kept") from error
        except RuntimeError as error:  # FAISS writes by itself
            reason = str(error).splitlines()[0]
            raise BuildFailed(f"{out}: cannot be written: {reason}; nothing was kept") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, documents: Iterable[Document], folder: Path, progress: Callable[[int], None]) -> Manifest:
        with (folder / "sources.jsonl").open("w") as sources:
            for batch in _batches(documents, lambda document: len(document.text)):
                for document, tokens in zip(batch, self._tokenised(batch), strict=True):
                    self._documents += 1
                    self._tokens += len(tokens)
                    sources.write(json.dumps({"source": document.source, "tokens": len(tokens)}) + "\n")
                    self._take(tokens, folder)
                progress(sum(len(document.text) for document in batch))
        if not self._tokens:
            raise CorpusInvalid("the corpus holds no text; name files with text in them")
        self._end_shard(folder)
        return self._finish(folder)

    def _tokenised(self, batch: list[Document]) -> Iterator[NDArray[Any]]:
        pieces = [list(_pieces(document.text)) for document in batch]
        encoded = self._encoded(piece for own in pieces for piece in own)
        for own in pieces:
            yield np.concatenate([next(encoded) for _ in own])

    def _encoded(self, pieces: Iterable[str]) -> Iterator[NDArray[Any]]:
        """A few at a time: an encoding takes fifty times the room of its text."""
        for batch in _batches(pieces, len):
            for encoding in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(encoding.ids, token_dtype(self.vocab_size))

    def _take(self, tokens: NDArray[Any], folder: Path) -> None:
        """A document longer than a shard is continued in the next one."""
        room = self.parameters.shard_tokens
        for first in range(0, max(len(tokens), 1), room):
            part = tokens[first : first + room]
            if self._pending_tokens + len(part) > room:
                self._end_shard(folder)
            self._pending.append(part)
            self._pending_tokens += len(part)

    def _end_shard(self, folder: Path) -> None:
        if not self._pending_tokens:
            return
        separator, number = self.vocab_size, len(self._shards)
        flat: NDArray[Any] = np.empty(self._pending_tokens + len(self._pending), token_dtype(separator))
        passages, at = [], 0
        for part in self._pending:
            flat[at : at + len(part)] = part
            flat[at + len(part)] = separator
            passages.append(self._cut(number, at, len(part)))
            at += len(part) + 1
        shard = Shard.build(flat, separator)
        names = f"tokens-{number:05}.npy", f"suffixes-{number:05}.npy"
        np.save(folder / names[0], shard.tokens)
        np.save(folder / names[1], shard.suffixes)
        self._shards.append((Blob.of(folder, names[0]), Blob.of(folder, names[1])))
        self._passages.append(np.concatenate(passages))
        self._pending, self._pending_tokens = [], 0

    def _cut(self, shard: int, start: int, tokens: int) -> NDArray[np.int64]:
        """Passages of a document, [count, 3]: shard, first token, tokens."""
        size = self.parameters.passage_tokens
        firsts = np.arange(0, tokens, size, dtype=np.int64)
        counts = np.minimum(size, tokens - firsts)
        return np.stack([np.full(len(firsts), shard, np.int64), start + firsts, counts], axis=1)

    def _finish(self, folder: Path) -> Manifest:
        passages = np.concatenate(self._passages)
        shards = [np.load(folder / tokens.path, mmap_mode="r") for tokens, _ in self._shards]
        counts = sum(np.bincount(tokens, minlength=self.vocab_size + 1)[: self.vocab_size] for tokens in shards)
        weights = token_weights(np.asarray(counts))
        models = self.models or Models(self.base)
        embedding = models.embedding(self.parameters.layer)
        embedder = models.embedder(embedding, weights, self.parameters.passage_tokens)
        embeddings = (embedder.passages(tokens, passages[passages[:, 0] == n]) for n, tokens in enumerate(shards))
        index = build_index(embeddings, len(passages), embedder.dimensions)
        np.save(folder / "passages.npy", passages)
        np.save(folder / "weights.npy", weights)
        faiss.write_index(index, str(folder / "passages.faiss"))
        manifest = Manifest(
            tokenizer_cid=self.tokenizer_cid,
            vocab_size=self.vocab_size,
            documents=self._documents,
            tokens=self._tokens,
            shards=tuple(self._shards),
            sources=Blob.of(folder, "sources.jsonl"),
            passages=Blob.of(folder, "passages.npy"),
            index=Blob.of(folder, "passages.faiss"),
            weights=Blob.of(folder, "weights.npy"),
            embedding=embedding,
            parameters=self.parameters.to_document(),
        )
        (folder / NAME).write_bytes(manifest.to_bytes())
        return manifest


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
    """A text in pieces that end with a line, or with a word, or where they must."""
    first = 0
    while len(text) - first > _PIECE_CHARACTERS:
        end = first + _PIECE_CHARACTERS
        cut = text.rfind("\n", first, end) + 1 or text.rfind(" ", first, end) + 1 or end
        yield text[first:cut]
        first = cut
    yield text[first:]
