"""The manifest of a datastore: files by digest, tokenizer, build parameters. Its digest is the store's name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ledger.encoding.canonical import canonical
from ledger.encoding.text_forms import cid
from services.generation.drafting.retrieval.input_layer import Embedding

TYPE = "kolm.datastore.v1"
NAME = "manifest.json"
_CHUNK = 1 << 20  # bytes hashed at a time


class DatastoreError(Exception):
    """Root of the errors of datastores; `services.datastores` adds the errors of a build."""


class StoreInvalid(DatastoreError):
    """A datastore's folder is incomplete, changed or not a datastore; the message names the file."""


class StoreMismatch(DatastoreError):
    """A datastore was built with another tokenizer, or its passages were embedded by another base."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of a datastore, as described in its manifest."""

    path: str  # inside the datastore's folder
    digest: str  # sha256:<64 hex>
    size: int  # bytes

    @classmethod
    def of(cls, folder: Path, path: str) -> Blob:
        return cls(path, _digest(folder / path), (folder / path).stat().st_size)

    @classmethod
    def from_document(cls, document: Any) -> Blob:
        """The entry of a file. Raises StoreInvalid if it is not an entry, or names a file outside of the folder."""
        match document:
            case {"path": str(path), "digest": str(digest), "size": int(size)} if "/" not in path and path[:1] != ".":
                return cls(path, digest, size)
        raise StoreInvalid(f"manifest.json: {document!r} is not a file of a datastore")

    def to_document(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.digest, "size": self.size}

    def check(self, folder: Path, *, contents: bool) -> Path:
        """The path of the file. Raises StoreInvalid if its size (with `contents`, its bytes) is not the manifest's."""
        path = folder / self.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise StoreInvalid(f"{path}: {error.strerror}; build the datastore again") from error
        if size != self.size:
            raise StoreInvalid(f"{path}: {size} bytes, expected {self.size} by the manifest; build the datastore again")
        if contents and _digest(path) != self.digest:
            raise StoreInvalid(f"{path}: its bytes have changed since the manifest; build the datastore again")
        return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Canonical JSON (RFC 8785); `cid` is the digest of those bytes.

    Shards are pairs of tokens and suffixes. `passages` is [count, 3] int64: shard, first token, tokens; `index`:
    FAISS's index of their embeddings; `weights` [vocab] float32: of tokens in an embedding by the base's input layer.
    """

    tokenizer_cid: str
    vocab_size: int
    documents: int
    tokens: int
    shards: tuple[tuple[Blob, Blob], ...]
    sources: Blob
    passages: Blob
    index: Blob
    weights: Blob
    embedding: Embedding
    parameters: dict[str, Any]

    @property
    def cid(self) -> str:
        return cid(self.to_bytes())

    @property
    def blobs(self) -> list[Blob]:
        return [
            *(blob for shard in self.shards for blob in shard),
            self.sources,
            self.passages,
            self.index,
            self.weights,
        ]

    def to_bytes(self) -> bytes:
        return canonical({
            "type": TYPE,
            "tokenizer_cid": self.tokenizer_cid,
            "vocab_size": self.vocab_size,
            "documents": self.documents,
            "tokens": self.tokens,
            "shards": [{"tokens": t.to_document(), "suffixes": s.to_document()} for t, s in self.shards],
            "sources": self.sources.to_document(),
            "passages": self.passages.to_document(),
            "index": self.index.to_document(),
            "weights": self.weights.to_document(),
            "embedding": self.embedding.to_document(),
            "parameters": self.parameters,
        })  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder. Raises StoreInvalid if it is missing or not a datastore's."""
        try:
            return cls._from_document(json.loads((folder / NAME).read_bytes()))
        except OSError as error:
            raise StoreInvalid(f"{folder}: not a datastore, it has no {NAME} ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreInvalid(f"{folder / NAME}: not a {TYPE} document: {error!r}") from error

    @classmethod
    def _from_document(cls, document: Any) -> Manifest:
        if document["type"] != TYPE:
            raise ValueError(f"type is {document['type']!r}")
        vocab_size, documents, tokens = counts = [document[name] for name in ("vocab_size", "documents", "tokens")]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError(f"vocab_size, documents and tokens are {counts}")
        passage_tokens = document["parameters"]["passage_tokens"]
        if type(passage_tokens) is not int or passage_tokens < 1:
            raise ValueError(f"parameters.passage_tokens is {passage_tokens!r}")
        blob = Blob.from_document
        return cls(
            tokenizer_cid=str(document["tokenizer_cid"]),
            vocab_size=vocab_size,
            documents=documents,
            tokens=tokens,
            shards=tuple((blob(shard["tokens"]), blob(shard["suffixes"])) for shard in document["shards"]),
            sources=blob(document["sources"]),
            passages=blob(document["passages"]),
            index=blob(document["index"]),
            weights=blob(document["weights"]),
            embedding=Embedding.from_document(document["embedding"]),
            parameters=dict(document["parameters"]),
        )


def token_dtype(separator: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type for every token and the separator after a document, which is not a token."""
    return np.uint16 if separator <= np.iinfo(np.uint16).max else np.uint32
