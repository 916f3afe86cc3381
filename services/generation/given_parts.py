"""Checks of heads, adapters, datastores and draft models against the base by small files, before weights are loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from services.generation.target.errors import TargetError
from services.generation.target.identity import LARGE_BYTES, FileDigests, base_manifest, tokenizer_cid
from services.generation.target.weights import check_headers
from services.generation.target.without_torch import hide_torch

if TYPE_CHECKING:
    from services.generation.target.config.config import TargetConfig  # imports transformers


class WrongPart(Exception):
    """A part that does not fit the base; the message begins with its flag."""


@dataclass(frozen=True, slots=True)
class Part:
    """A folder or file given by a flag; `name`: of an adapter."""

    flag: str
    path: Path
    name: str = ""


def check_parts(
    base: Path,
    *,
    datastores: Iterable[Part] = (),
    heads: Iterable[Part] = (),
    adapters: Iterable[Part] = (),
    draft_models: Iterable[Part] = (),
) -> None:
    """Check configurations, tokenizers and manifests; loading the weights may still refuse a part. An unreadable base
    is left to its own check. Raises WrongPart.
    """
    known = _Base(base)
    checks: list[tuple[Part, Callable[[Part], None]]] = [
        *((part, partial(_check_datastore, known)) for part in datastores),
        *((part, partial(_check_adapter, known)) for part in adapters),
        *((part, partial(_check_head, known)) for part in heads),
        *((part, _check_draft_model) for part in draft_models),
    ]
    if checks and not known.readable:
        return
    for part, check in checks:
        check(part)


class _Base:
    """The base by its small files, each read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> TargetConfig:
        return _config_of(self.path)

    @cached_property
    def readable(self) -> bool:
        try:
            _ = self.config, self.tokenizer_cid
        except (TargetError, OSError):
            return False
        return True

    @cached_property
    def tokenizer_cid(self) -> str:
        return tokenizer_cid(self.path)

    @cached_property
    def cid(self) -> str | None:
        """The base's identifier; None if a large file would have to be hashed for it."""
        try:
            return base_manifest(self.path, _RememberedDigests()).cid
        except (_NotRemembered, TargetError, OSError):
            return None


def _config_of(path: Path) -> TargetConfig:
    hide_torch()
    from services.generation.target.config.config import read_config

    return read_config(path)


class _NotRemembered(Exception):
    """A large file would have to be hashed."""


class _RememberedDigests(FileDigests):
    def _hash(self, path: Path) -> str:
        if path.stat().st_size >= LARGE_BYTES:
            raise _NotRemembered
        return super()._hash(path)


def _check_datastore(base: _Base, part: Part) -> None:
    from services.generation.drafting.retrieval.manifest import DatastoreError, Manifest

    try:
        manifest = Manifest.read(part.path)
        for blob in manifest.blobs:
            blob.check(part.path, contents=False)
    except DatastoreError as error:
        raise WrongPart(f"{part.flag}: {error}") from error
    again = f"build it again with this model: kolm datastore build … --model {base.path}"
    if manifest.tokenizer_cid != base.tokenizer_cid:
        made = f"was built with the tokenizer {manifest.tokenizer_cid}, the model has {base.tokenizer_cid}"
        raise WrongPart(f"{part.flag}: {part.path} {made}; {again}")
    if base.cid is not None and manifest.embedding.cid != base.cid:
        made = f"was built with the model {manifest.embedding.cid}, and {base.cid} is served"
        raise WrongPart(f"{part.flag}: {part.path} {made}; {again}")


def _check_adapter(base: _Base, part: Part) -> None:
    from services.generation.target.adapters import read_adapter

    if base.cid is None and _names_a_base(part.path):
        return
    try:
        read_adapter(part.name, part.path, base.config, base.path, base.cid or "")
    except TargetError as error:
        raise WrongPart(f"{part.flag}: {part.name}: {error}") from error


def _names_a_base(adapter: Path) -> bool:
    """Whether the adapter names its base by an identifier."""
    try:
        return str(json.loads((adapter / "adapter_config.json").read_bytes()).get("revision")).startswith("cidv1:")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _check_head(base: _Base, part: Part) -> None:
    from services.generation.drafting.heads import HeadError
    from services.generation.drafting.methods import check_head

    try:
        check_head(part.path, base.config)
    except HeadError as error:
        raise WrongPart(f"{part.flag}: {part.path}: {error}") from error


def _check_draft_model(part: Part) -> None:
    try:
        check_headers(part.path)
        _ = _config_of(part.path), tokenizer_cid(part.path)
    except TargetError as error:
        raise WrongPart(f"{part.flag}: {error}") from error
