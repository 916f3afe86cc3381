"""Prepares a model and its drafters from the settings. Every obstacle ends the start with its reason."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from services.client.ledger.key_entries import key_entries
from services.generation.drafting.method_spec import Parts
from services.generation.drafting.methods import CannotDraft
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.manifest import DatastoreError
from services.generation.heads.head_loading import (
    HeadSources,
    LoadedHeads,
    is_folder,
    load_beside,
    load_heads,
    says_weak,
)
from services.generation.heads.served_heads import HeadState
from services.generation.model import Model, load_model, with_drafters
from services.generation.settings import GenerationSettings
from services.generation.target.errors import TargetError, about
from services.generation.target.folders.beside import head_beside, store_beside
from services.generation.target.target import LoadTarget
from services.runtime.process import CannotStart
from services.runtime.trusted_directory import TrustedDirectory

_log = logging.getLogger(__name__)


async def prepared(settings: GenerationSettings, load: LoadTarget) -> tuple[Model, HeadState]:
    """The model that the settings describe, and its heads, the refused ones too. Raises CannotStart."""
    model = await _loaded(settings, load)
    found = await _heads(settings, model)
    parts = Parts(
        base=settings.model,
        target=model.target,
        tokenizer=model.tokenizer,
        cost=model.cost,
        load=load,
        heads={head.served.drafter: head.head for head in found.loaded},
        datastores=settings.datastores or await asyncio.to_thread(_store_beside, settings, model),
        draft_model=settings.draft_model,
    )
    try:
        model = await asyncio.to_thread(with_drafters, model, parts, [head.served for head in found.loaded])
    except CannotDraft as error:
        raise CannotStart(f"cannot draft by {error}") from error
    weak = frozenset(head.served.cid for head in found.loaded if says_weak(head.served.folder))
    return model, HeadState(model.heads, found.refused, weak=weak)


async def _loaded(settings: GenerationSettings, load: LoadTarget) -> Model:
    try:
        _log.info("loading %s", settings.model)
        return await asyncio.to_thread(
            load_model, settings.model, load, context_length=settings.context_length, cache_bytes=settings.cache_bytes,
            adapters=settings.adapters,
        )  # fmt: skip
    except TargetError as error:
        raise CannotStart(f"cannot serve {about(settings.model, error)}") from error


async def _heads(settings: GenerationSettings, model: Model) -> LoadedHeads:
    """Loads what the settings ask for. Heads of the registry that may not be loaded are named in the log and left out.

    Raises CannotStart for a folder that was given directly and is no head for this base.
    """
    found = await _named_heads(settings, model) if settings.head_references else LoadedHeads()
    folder = head_beside(settings.model) if settings.beside and not settings.head and not found.loaded else None
    if folder is None:
        return found
    beside = await asyncio.to_thread(load_beside, folder, model.target.base_cid, model.target.config)
    return LoadedHeads(beside.loaded, found.refused)


async def _named_heads(settings: GenerationSettings, model: Model) -> LoadedHeads:
    try:
        trusted = trusted_keys(settings)
    except LedgerError as error:
        raise CannotStart(f"cannot tell which heads to trust: {error}") from error
    sources = HeadSources(
        settings.head_references, settings.registry or "", settings.ledger, settings.heads_cache, trusted
    )
    found = await asyncio.to_thread(load_heads, sources, model.target.base_cid, model.target.config)
    for refused in found.refused:
        if is_folder(refused.reference):
            raise CannotStart(f"cannot draft with the head in {refused.reference}: {refused.message}")
    return found


def _store_beside(settings: GenerationSettings, model: Model) -> list[tuple[None, Path]]:
    """The datastore beside the model, for everybody; none where it was built for another, as the log then says."""
    folder = store_beside(settings.model) if settings.beside else None
    if folder is None:
        return []
    try:
        Datastore.open(folder, settings.model, model.target.tokenizer_cid, embedded_by=model.target.base_cid)
    except DatastoreError as error:
        _log.info("the datastore in %s, beside the model, is left out: %s", folder, error)
        return []
    _log.info("every request draws on the datastore in %s, which lies beside the model", folder)
    return [(None, folder)]


def trusted_keys(settings: GenerationSettings) -> TrustedKeys:
    """Followed as they change; none where no directory was named. Raises KeyFileError."""
    if settings.trusted_keys is None:
        return TrustedKeys()
    return TrustedDirectory(settings.trusted_keys, key_entries=partial(key_entries, settings.ledger)).trusted()
