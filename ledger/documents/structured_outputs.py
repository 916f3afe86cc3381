"""The constraint that a receipt's output followed: its kind, a commitment to its text, the engine of its rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ledger.encoding.commitment import STRUCTURED_OUTPUTS_DOMAIN, commit_text
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

_ENGINE = re.compile(r"[a-z][a-z0-9_.-]{0,31}/[0-9a-zA-Z.+-]{1,31}")


@dataclass(frozen=True, slots=True)
class StructuredOutputsPart:
    """`commitment` is to the constraint's text, with the prompt's salt. `engine` is the library, with its version, that
    decided which tokens were allowed: a replay needs the same one.
    """

    kind: str
    commitment: str
    engine: str

    @classmethod
    def of(cls, kind: str, text: str, prompt_salt: bytes, engine: str) -> StructuredOutputsPart:
        return cls(kind, commit_text(STRUCTURED_OUTPUTS_DOMAIN, prompt_salt, text), engine)

    def check(self, text: str, prompt_salt: bytes) -> None:
        """Raises FormatError unless this is the constraint's text."""
        if commit_text(STRUCTURED_OUTPUTS_DOMAIN, prompt_salt, text) != self.commitment:
            raise FormatError("content.structured_outputs", "with this salt, is not what the receipt commits to")

    def to_document(self) -> dict[str, Any]:
        return {"kind": self.kind, "commitment": self.commitment, "engine": self.engine}

    @classmethod
    def from_fields(cls, fields: Fields) -> StructuredOutputsPart:
        part = cls(fields.name("kind"), fields.digest("commitment"), fields.text("engine", longest=64))
        if not _ENGINE.fullmatch(part.engine):
            raise FormatError(fields.path("engine"), "expected a library and its version, as llguidance/1.9.1")
        fields.close()
        return part
