"""From settings to a model with all that drafts for it; whatever stands against it ends the start with its reason."""

from __future__ import annotations

import asyncio
import logging

from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from services.generation.drafting.method_spec import Parts
from services.generation.drafting.methods import CannotDraft
from services.generation.heads.head_loading import HeadSources, LoadedHeads, is_folder, load_heads
from services.generation.heads.served_heads import HeadState
from services.generation.model import Model, load_model, with_drafters
from services.generation.settings import GenerationSettings
from services.generation.target.errors import TargetError
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
        corpora=settings.corpora,
        embedder=settings.embedder,
        draft_model=settings.draft_model,
    )
    try:
        model = await asyncio.to_thread(with_drafters, model, parts, [head.served for head in found.loaded])
    except CannotDraft as error:
        raise CannotStart(f"cannot draft by {error}") from error
    return model, HeadState(model.heads, found.refused)


async def _loaded(settings: GenerationSettings, load: LoadTarget) -> Model:
    try:
        _log.info("loading %s", settings.model)
        return await asyncio.to_thread(
            load_model, settings.model, load, context_length=settings.context_length, cache_bytes=settings.cache_bytes,
            threads=settings.threads, adapters=settings.adapters,
        )  # fmt: skip
    except TargetError as error:
        raise CannotStart(f"cannot serve {settings.model}: {error}") from error


async def _heads(settings: GenerationSettings, model: Model) -> LoadedHeads:
    """What the settings ask for. Heads of the registry that may not be loaded are named in the log and left out.

    Raises CannotStart for a folder that was given directly and is no head for this base.
    """
    if not settings.head_references:
        return LoadedHeads()
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


def trusted_keys(settings: GenerationSettings) -> TrustedKeys:
    """Followed as they change; none where no directory was named. Raises KeyFileError."""
    return TrustedDirectory(settings.trusted_keys).trusted() if settings.trusted_keys else TrustedKeys()
