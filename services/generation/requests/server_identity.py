"""The names and identifiers of what this server serves, as receipts and callers use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.generation.target.adapters.identity import AdapterIdentity


@dataclass(frozen=True, slots=True)
class Identity:
    """Fixed at start. `drafters` are the methods that can run besides off, in the order of preference."""

    name: str
    architecture: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    profile: dict[str, Any]
    probe_passed: bool
    vocab_size: int
    context_length: int
    drafters: tuple[str, ...]
    adapters: tuple[AdapterIdentity, ...] = ()
    chat_template: str | None = None  # its digest, `sha256:<hex>`
    eos_token_ids: tuple[int, ...] = ()

    def adapter_cid(self, reference: str) -> str | None:
        """The identifier of a loaded adapter by its name or identifier; None where there is no such adapter."""
        return next((each.cid for each in self.adapters if reference in (each.name, each.cid)), None)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can be served: off always, the others only if the profile passed its probe."""
        return ("off", *self.drafters) if self.probe_passed else ("off",)
