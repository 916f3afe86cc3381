"""The description of a draft method: nothing else has to know the method by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from services.generation.drafting.past_outputs import Pasts
from services.generation.engine.drafter import Drafter

if TYPE_CHECKING:  # a method of copies is compiled ahead without torch
    from services.generation.drafting.answered_tokens import AnsweredTokens
    from services.generation.drafting.heads import DraftHead, HeadKind
    from services.generation.engine.text.tokenizer import Tokenizer
    from services.generation.target.target import LoadTarget, Target


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """The parts from which a server builds drafters."""

    base: Path  # the directory or file of the base
    target: Target
    tokenizer: Tokenizer
    load: LoadTarget
    heads: Mapping[str, DraftHead] = field(default_factory=dict)  # of all kinds, by the names that engines know them by
    datastores: Sequence[tuple[str | None, Path]] = ()  # by tenant; None for all tenants
    draft_model: Path | None = None
    answered: AnsweredTokens | None = None  # counts answers for the choice of an MTP block's tokens
    pasts: Pasts = field(default_factory=Pasts)  # one set for all methods that copy
    defer: Callable[[Callable[[], None]], None] | None = None
    """Calls its argument, which reads the code of copies, once that is compiled; None if it is compiled."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number that a request may set for a method, within bounds."""

    name: str
    least: int
    most: int
    meaning: str


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A line of the table of methods (`methods.METHODS`)."""

    name: str
    meaning: str
    build: Callable[[DrafterInputs], Mapping[str, Drafter]]
    """Its drafters by the names that the engine knows: the method's, or "method/…" for each of several. Empty if the
    server lacks its parts. Seconds, on the calling thread. Raises TargetError, DatastoreError, HeadError.
    """
    missing: str | None = None  # reason in receipts if nothing could be built; None for a method that needs nothing
    flag: str = ""  # the server's flag that the method needs
    workloads: tuple[str, ...] = ()  # declared workloads that prefer it
    depth: int | None = None  # in tokens, if a request names no k; None if drafts have no such bound
    parameters: tuple[Parameter, ...] = ()
    by_name_only: bool = False  # whether `auto` passes it over
    heads: HeadKind | None = None  # of the published heads that it drafts with, one drafter each
    own_head: bool = False  # whether it drafts with a head that comes inside the base's files

    @property
    def has_heads(self) -> bool:
        return self.heads is not None or self.own_head
