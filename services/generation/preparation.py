"""Preparation of a base from the settings: numerics profile, cost of a pass, heads, datastores and drafters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from services.client.ledger.ledger import key_entries
from services.generation.drafting.answered_tokens import AnsweredTokens, frequent_tokens
from services.generation.drafting.method_spec import DrafterInputs
from services.generation.drafting.methods import CannotDraft, build_drafters, method_of
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.manifest import DatastoreError
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Drafter
from services.generation.engine.numba_cache import compiling
from services.generation.engine.prefix_disk import PrefixDisk, PrefixFolder
from services.generation.engine.text.grammar_compiler import GrammarCompiler
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.requests.resolution import Identity
from services.generation.requests.served_heads import (
    HeadSources,
    HeadState,
    LoadedHeads,
    ServedHead,
    is_folder,
    load_beside,
    load_heads,
    load_own,
)
from services.generation.settings import GenerationSettings
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import explained, read_config
from services.generation.target.errors import TargetError, about
from services.generation.target.files.gguf_file import held_open
from services.generation.target.identity import one_version
from services.generation.target.kept_results import code_version, config_digest
from services.generation.target.model_path import default_head_for, default_store_for
from services.generation.target.probe import KeptProbes, NumericsProfile, measure_profile
from services.generation.target.target import LoadTarget, Target
from services.generation.target.timing import IdleTiming, KeptTimings, Timing, time_passes
from services.generation.warm_up import after_compiling, warm_up_greedy
from services.runtime.process import CannotStart
from services.runtime.trusted_directory import TrustedDirectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    target: Target
    tokenizer: Tokenizer
    profile: NumericsProfile
    cost: PassCost
    grammars: GrammarCompiler
    timing: Timing | None = None  # of an earlier start
    drafters: Mapping[str, Drafter] = field(default_factory=dict)  # by their names in the engine
    heads: tuple[ServedHead, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can run besides off, in the order of preference."""
        return tuple(dict.fromkeys(method_of(name) for name in self.drafters))


def with_drafters(model: Model, parts: DrafterInputs, heads: Sequence[ServedHead] = ()) -> Model:
    """The model with every drafter that can be built. Raises CannotDraft."""
    trees = compiling("trees") if parts.heads or parts.draft_model else nullcontext()
    copies = compiling("copies") if parts.defer is None else nullcontext()
    with copies, trees:  # so that two servers that start together do not compile twice
        return replace(model, drafters=build_drafters(parts), heads=tuple(heads))


def load_model(
    directory: Path,
    load: LoadTarget,
    *,
    context_length: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
) -> Model:
    """Load, probe and measure roughly, which takes seconds on the calling thread. Raises TargetError."""
    started = time.perf_counter()
    with held_open(directory), one_version(directory):  # configuration, digests, weights and tokenizer
        target = load(directory, context_length=context_length, cache_bytes=cache_bytes, adapters=adapters)
        _log.info(explained(target.config.context_length, read_config(directory).context_length, context_length))
        tokenizer = Tokenizer(directory)
    with compiling("copies"), compiling("greedy"):  # a probe takes twice as long while other processes compile
        warm_up_greedy()
    profile = measure_profile(target, KeptProbes())
    _say(profile)
    timing = KeptTimings().find(target)
    cost = _pass_cost(timing or Timing(time_passes(target, rough=True).samples))
    grammars = GrammarCompiler(tokenizer.fast.to_str, target.config.vocab_size, target.config.eos_token_ids)
    model = Model(target, tokenizer, profile, cost, grammars, timing)
    target.release_memory()
    _log.info(
        "loaded %s in %.1f s: a pass takes %.2f ms, a pass of four rows %.2f ms",
        directory, time.perf_counter() - started, 1e3 * cost.of(1), 1e3 * cost.of(4),
    )  # fmt: skip
    return model


def _pass_cost(timing: Timing) -> PassCost:
    return PassCost.measured(timing.passes, timing.key, timing.seen)


def idle_timing(model: Model, engine: EngineCore) -> IdleTiming:
    """Work for an idle engine: measure the cost of passes, or check the cost that an earlier start has measured."""

    def use(timing: Timing) -> None:
        engine.use_cost(cost := _pass_cost(timing))
        _log.info("timed passes: one row takes %.2f ms, four %.2f ms", 1e3 * cost.of(1), 1e3 * cost.of(4))
        KeptTimings().keep(model.target, timing)

    return IdleTiming(model.target, model.timing, use)


def _say(profile: NumericsProfile) -> None:
    if profile.passed:
        _log.info("proved numerics profile %s: %d rows bit for bit as alone", profile.cid, profile.report.compared)
        return
    _log.error(
        "numerics profile %s failed its probe: serving one sequence at a time, one row a pass, speculation off, "
        "and receipts that say so", profile.cid,
    )  # fmt: skip
    for failure in profile.report.failures[:5]:
        _log.error("probe: %s", failure)


def identity_of(model: Model, name: str) -> Identity:
    """The model's identity for receipts and callers."""
    config = model.target.config
    return Identity(
        name=name,
        architecture=config.architecture,
        base_cid=model.target.base_cid,
        tokenizer_cid=model.target.tokenizer_cid,
        profile_cid=model.profile.cid,
        profile=model.profile.document,
        probe_passed=model.profile.passed,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        drafters=model.methods,
        adapters=model.target.adapters,
        chat_template=model.tokenizer.chat_template_digest,
    )


def engine_of(model: Model, settings: EngineSettings, disk: PrefixDisk | None = None) -> EngineCore:
    """An engine over the model. Its bounds are `settings` if the profile is proven."""
    bounds = settings if model.profile.passed else _one_row_a_pass(settings)
    drafters, stream = model.drafters, model.tokenizer.stream
    return EngineCore(model.target, drafters, stream, model.cost, bounds, time.perf_counter, disk=disk)


def prefix_disk(model: Model, folder: PrefixFolder) -> PrefixDisk:
    """The store of the model's blocks in a folder. Raises CannotStart if the size limit is too small for two blocks."""
    block = len(model.target.block_content(0))
    if folder.most_bytes < 2 * block:
        raise CannotStart(
            f"--prefix-cache-bytes: {folder.most_bytes} bytes; this model needs {2 * block} for two blocks of {BLOCK} "
            "tokens at least"
        )
    target = model.target
    layout = f"{code_version()} {type(target).__qualname__}"  # targets have layouts of their own
    identity = target.base_cid, config_digest(target.config), model.profile.cid, layout
    return PrefixDisk(folder, identity, block, model.cost.of(BLOCK))


def _one_row_a_pass(settings: EngineSettings) -> EngineSettings:
    """The limits of an unproven profile, whose fingerprint covers only passes of one row. Replays run on this engine
    too, so that the same request gives the same bits, and rows that differ in a larger pass cause no false deviation.
    """
    return replace(settings, max_sequences=1, max_rows=1, prefill_rows=1, prefix_caching=False)


async def prepared(settings: GenerationSettings, load: LoadTarget) -> tuple[Model, HeadState]:
    """The model of the settings, and its heads, also refused heads. Raises CannotStart."""
    model = await _loaded(settings, load)
    answered = await asyncio.to_thread(_answered_tokens, settings, model)
    found = await _heads(settings, model, answered)
    stores = settings.datastores or await asyncio.to_thread(_default_store_for, settings, model)
    alone = not (found.loaded or stores or settings.draft_model)
    parts = DrafterInputs(
        base=settings.model,
        target=model.target,
        tokenizer=model.tokenizer,
        load=load,
        heads={head.served.drafter: head.head for head in found.loaded},
        datastores=stores,
        draft_model=settings.draft_model,
        answered=answered,
        defer=after_compiling("copies", settings.log_format) if alone else None,
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
            adapters=settings.adapters,
        )  # fmt: skip
    except TargetError as error:
        raise CannotStart(f"cannot serve {about(settings.model, error)}") from error


def _answered_tokens(settings: GenerationSettings, model: Model) -> AnsweredTokens:
    name = model.target.base_cid.rpartition(":")[2]
    return AnsweredTokens(settings.state_dir / "answered" / f"{name}.npy", model.target.config.vocab_size)


async def _heads(settings: GenerationSettings, model: Model, answered: AnsweredTokens) -> LoadedHeads:
    """Load the heads of the settings. Heads of the registry that may not be loaded are logged and skipped.

    Raises CannotStart for a folder that was given directly and is not a head for this base.
    """
    found = await _named_heads(settings, model) if settings.head_references else LoadedHeads()
    unnamed = settings.auto_discover and not settings.head and not found.loaded
    folder = default_head_for(settings.model) if unnamed else None
    if folder is not None:
        beside = await asyncio.to_thread(load_beside, folder, model.target.base_cid, model.target.config)
        found = replace(found, loaded=beside.loaded)
    own = await asyncio.to_thread(_own_head, settings, model, answered) if settings.own_head else LoadedHeads()
    return LoadedHeads((*found.loaded, *own.loaded), (*found.refused, *own.refused))


def _own_head(settings: GenerationSettings, model: Model, answered: AnsweredTokens) -> LoadedHeads:
    config, tokenizer = model.target.config, model.tokenizer.fast
    tokens = frequent_tokens(
        tokenizer, settings.own_head_tokens, config.vocab_size, config.eos_token_ids, answered.counts
    )
    return load_own(settings.model, config, tokens)


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
            raise CannotStart(f"--head: {refused.reference}: {refused.message}")
    return found


def _default_store_for(settings: GenerationSettings, model: Model) -> list[tuple[str | None, Path]]:
    """The datastore next to the model, for all tenants; none, with a log line, if it was built for another model."""
    folder = default_store_for(settings.model) if settings.auto_discover else None
    if folder is None:
        return []
    try:
        Datastore.open(folder, settings.model, model.target.tokenizer_cid, embedded_by=model.target.base_cid)
    except DatastoreError as error:
        _log.info("skipping the datastore in %s next to the model: %s", folder, error)
        return []
    _log.info("drafting from the datastore in %s next to the model, for every request", folder)
    return [(None, folder)]


def trusted_keys(settings: GenerationSettings) -> TrustedKeys:
    """Trusted keys, re-read when they change; none without a directory. Raises KeyFileError."""
    if settings.trusted_keys is None:
        return TrustedKeys()
    return TrustedDirectory(settings.trusted_keys, key_entries=partial(key_entries, settings.ledger)).trusted()
