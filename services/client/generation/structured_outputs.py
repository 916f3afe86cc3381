"""A constraint on the output, as a caller writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """A constraint on the output, by exactly one of its members; vLLM's names.

    `json` is a JSON schema, written out or as a Python value, `regex` matches the whole output, `choice` are the texts
    of which it is one, `grammar` is Lark or GBNF, `json_object` any JSON object. `engine` is for replays: the library
    that the receipt names.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    engine: str = ""

    @classmethod
    def of(cls, kind: str, text: str, engine: str = "") -> StructuredOutputs:
        """The reverse of `kind` and `text`, as receipts and contents have them. Raises ValueError for what has none."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of constraint that this client knows")
        value: Any = json.loads(text) if kind == "choice" else True if kind == "json_object" else text
        return cls(**{kind: value}, engine=engine)

    @property
    def kind(self) -> str:
        """The member that is set. Raises ValueError unless it is one."""
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}")
        return given[0]

    @property
    def text(self) -> str:
        """The constraint's text, which receipts commit to."""
        from ledger.encoding.canonical import canonical

        value = getattr(self, self.kind)
        if self.kind == "json":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.kind == "choice":
            return canonical(list(value)).decode()
        return "" if self.kind == "json_object" else str(value)
