"""What a datastore is: its files by digest, its tokenizer, what it was built with. Its digest is the store's name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.encoding.canonical import canonical
from ledger.encoding.cid import cid
from services.generation.drafting.retrieval.blobs import Blob
from services.generation.drafting.retrieval.embedding import Embedding
from services.generation.drafting.retrieval.errors import StoreInvalid

TYPE = "kolm.datastore.v1"
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Canonical JSON (RFC 8785); `cid` is the digest of those bytes.

    Shards are pairs of tokens and suffixes. `passages` is [count, 3] int64: shard, first token, tokens; `index` is
    FAISS's over their embeddings, `weights` [vocab] float32 what a token counts in an embedding of the base's own.
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
    def passage_tokens(self) -> int:
        return int(self.parameters["passage_tokens"])

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
        """Raises StoreInvalid if the folder has none, or one that is not a datastore's."""
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
            str(document["tokenizer_cid"]),
            vocab_size,
            documents,
            tokens,
            tuple((blob(shard["tokens"]), blob(shard["suffixes"])) for shard in document["shards"]),
            blob(document["sources"]),
            blob(document["passages"]),
            blob(document["index"]),
            blob(document["weights"]),
            Embedding.from_document(document["embedding"]),
            dict(document["parameters"]),
        )
