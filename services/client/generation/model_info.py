"""A generation server's description of itself, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HaltedScope:
    """A method on a base, with its head if it has one, that an audit has halted."""

    base_cid: str
    method: str
    head_cid: str | None


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A draft head of a server. Without a name it is an unpublished folder, for which nobody has signed."""

    head_cid: str
    name: str | None
    publication_index: int | None
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number from `least` to `most` that a request may set for a method."""

    name: str
    meaning: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """A method of speculation that a server can run."""

    name: str
    meaning: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model and methods of a server.

    `profile` is the parsed numerics profile, `adapters` their identifiers by name, `heads` the draft heads and
    `draft_methods` the methods that draft, the preferred one first.
    """

    model: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    profile: dict[str, Any]
    probe_passed: bool
    architecture: str
    vocab_size: int
    context_length: int
    methods: tuple[str, ...]
    halted_scopes: tuple[HaltedScope, ...]
    halt_epoch: int
    adapters: Mapping[str, str]
    heads: tuple[LoadedHead, ...]
    draft_methods: tuple[DraftMethod, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a server is: sequences, cache blocks, receipts the ledger has not confirmed, seconds up."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    outbox_pending: int
    uptime_seconds: float
