"""The manifest of a base: what exactly its identifier stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.manifest_file import Part, parts
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.cid import cid
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

_MOST_FILES = 4096


@dataclass(frozen=True, slots=True)
class BaseManifest:
    """A `kolm.base.v1` document: configuration and weights by name, size and digest, and the tokenizer's identifier.

    `base_cid` everywhere is the identifier of its canonical bytes. Nobody signs it: it names itself.
    """

    TYPE: ClassVar[str] = "kolm.base.v1"

    config: tuple[Part, ...]
    tokenizer_cid: str
    weights: tuple[Part, ...]

    @property
    def cid(self) -> str:
        return cid(self.to_bytes())

    @property
    def model_config(self) -> Part:
        """The part that is config.json. Raises FormatError where there is none."""
        for part in self.config:
            if part.name == "config.json":
                return part
        raise FormatError("config", "has no config.json")

    def to_bytes(self) -> bytes:
        return canonical(self.to_document())

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "config": [part.to_document() for part in self.config],
            "tokenizer": self.tokenizer_cid,
            "weights": [part.to_document() for part in self.weights],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> BaseManifest:
        """The manifest of canonical bytes. Raises FormatError."""
        fields = Fields(parse(data, "base_manifest"))
        fields.constant("type", cls.TYPE)
        manifest = cls(
            config=parts(fields, "config", _MOST_FILES),
            tokenizer_cid=fields.cid("tokenizer"),
            weights=parts(fields, "weights", _MOST_FILES),
        )
        fields.close()
        return manifest
