"""Manifests of bases and draft heads: their files by name, size and digest, behind one identifier."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from msgspec import Meta, field

from ledger.encoding.document import Cid, Count, Digest, Document, FileName, Part, Positive, form, written
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError

MAX_MANIFEST_BYTES = 256 * 1024
HEAD_KINDS = ("eagle3", "block", "mtp")
CONFIG_TYPES, WEIGHTS_TYPES = (
    {kind: f"application/vnd.kolm.{kind}.{part}" for kind in HEAD_KINDS}
    for part in ("config.v1+json", "weights.v1+safetensors")
)
"""Media types of the files, by the kind of head."""

_MOST_LAYERS = 1024
_MOST_WORDS = 256

_Layer = Annotated[int, Meta(ge=0, le=_MOST_LAYERS)]


class NamedFile(Part, frozen=True):
    """One file. `digest` is `sha256:<hex>` of its bytes, `size` the number of bytes."""

    name: FileName
    size: Count
    digest: Digest

    @classmethod
    def of(cls, name: str, data: bytes) -> NamedFile:
        """The description of bytes in memory."""
        return cls(name, len(data), "sha256:" + hashlib.sha256(data).hexdigest())


_Files = Annotated[tuple[NamedFile, ...], Meta(min_length=1, max_length=4096)]
_WeightFiles = Annotated[tuple[NamedFile, ...], Meta(min_length=1, max_length=64)]


def _check_names(path: str, files: Iterable[NamedFile]) -> None:
    names = [file.name for file in files]
    if len(set(names)) != len(names):
        raise FormatError(path, "names a file twice")


class _Manifest(Document, frozen=True):
    @property
    def cid(self) -> str:
        """The identifier of the canonical bytes."""
        return cid(self.to_bytes())


class BaseManifest(_Manifest, tag="kolm.base.v1", frozen=True):
    """A `kolm.base.v1` document: configuration and weights by name, size and digest, and the tokenizer's identifier.

    `base_cid` everywhere is the identifier of its canonical bytes. It needs no signature: the identifier is its digest.
    """

    config: _Files
    tokenizer_cid: Cid = field(name="tokenizer")
    weights: _Files

    @property
    def model_config(self) -> NamedFile:
        """The file config.json. Raises FormatError if it is missing."""
        for file in self.config:
            if file.name == "config.json":
                return file
        raise FormatError("config", "has no config.json")

    def check(self) -> None:
        _check_names("config", self.config)
        _check_names("weights", self.weights)


def _media(types: Mapping[str, str]) -> Meta:
    return form("|".join(map(re.escape, types.values())), f"one of {', '.join(types.values())}")


class HeadConfig(Part, frozen=True):
    """The configuration of a draft head."""

    file: NamedFile
    media_type: Annotated[str, _media(CONFIG_TYPES)] = written(CONFIG_TYPES["eagle3"])


class HeadWeights(Part, frozen=True):
    """The weights of a draft head."""

    files: _WeightFiles
    media_type: Annotated[str, _media(WEIGHTS_TYPES)] = written(WEIGHTS_TYPES["eagle3"])


class Vocabulary(Part, frozen=True):
    """The sizes of a base's vocabulary and of a draft head's part of it."""

    size: Positive
    draft_size: Positive


class DraftHeadManifest(_Manifest, tag="kolm.head.v1", frozen=True):
    """A `kolm.head.v1` document. The identifier of a draft head is made from its manifest's canonical bytes.

    `subject` is the base_cid of the base that it was trained on. `feature_layers` are indexes of hidden states (0 =
    embeddings), low to high. `training` describes its training, `annotations` has any texts of its publisher; both are
    signed with the rest, and no program reads them.
    """

    subject: Cid
    config: HeadConfig
    weights: HeadWeights
    hidden_size: Positive
    feature_layers: Annotated[tuple[_Layer, ...], Meta(min_length=1, max_length=_MOST_LAYERS)]
    vocabulary: Vocabulary
    training: Mapping[str, Any] = written({})
    annotations: Annotated[Mapping[str, str], Meta(max_length=_MOST_WORDS)] = written({})

    @property
    def kind(self) -> str:
        """The method that drafts with it, one of `HEAD_KINDS`."""
        return next(kind for kind, media_type in CONFIG_TYPES.items() if media_type == self.config.media_type)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def draft_vocab_size(self) -> int:
        return self.vocabulary.draft_size

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """Every file of the draft head."""
        return (self.config.file, *self.weights.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The manifest of canonical bytes. Raises FormatError naming the first wrong field."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise FormatError("manifest", f"measures {len(data)} bytes, at most {MAX_MANIFEST_BYTES} are taken")
        return super().from_bytes(data)

    def check(self) -> None:
        _check_names("weights.files", self.files)
        if self.weights.media_type != WEIGHTS_TYPES[self.kind]:
            raise FormatError(
                "weights.media_type", f"expected {WEIGHTS_TYPES[self.kind]}, which belongs to config.media_type"
            )
        if self.vocabulary.draft_size > self.vocabulary.size:
            raise FormatError("vocabulary.draft_size", f"expected at most vocabulary.size = {self.vocabulary.size}")
