"""The manifest of a base: the files that its identifier stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.named_file import NamedFile, named_files
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.cid import cid
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

_MOST_FILES = 4096


@dataclass(frozen=True, slots=True)
class BaseManifest:
    """A `kolm.base.v1` document: configuration and weights by name, size and digest, and the tokenizer's identifier.

    `base_cid` everywhere is the identifier of its canonical bytes. It needs no signature: the identifier is its digest.
    """

    TYPE: ClassVar[str] = "kolm.base.v1"

    config: tuple[NamedFile, ...]
    tokenizer_cid: str
    weights: tuple[NamedFile, ...]

    @property
    def cid(self) -> str:
        return cid(self.to_bytes())

    @property
    def model_config(self) -> NamedFile:
        """The file config.json. Raises FormatError where there is none."""
        for file in self.config:
            if file.name == "config.json":
                return file
        raise FormatError("config", "has no config.json")

    def to_bytes(self) -> bytes:
        return canonical(self.to_document())

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "config": [file.to_document() for file in self.config],
            "tokenizer": self.tokenizer_cid,
            "weights": [file.to_document() for file in self.weights],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> BaseManifest:
        """The manifest of canonical bytes. Raises FormatError."""
        fields = Fields(parse(data, "base_manifest"))
        fields.constant("type", cls.TYPE)
        manifest = cls(
            config=named_files(fields, "config", _MOST_FILES),
            tokenizer_cid=fields.cid("tokenizer"),
            weights=named_files(fields, "weights", _MOST_FILES),
        )
        fields.close()
        return manifest
