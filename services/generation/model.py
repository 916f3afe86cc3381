"""A loaded base with everything that start-up finds out about it: numerics profile, cost of a pass, drafters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.generation.drafting.method_spec import Parts
from services.generation.drafting.methods import build_drafters, method_of
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Drafter
from services.generation.engine.engine import Engine
from services.generation.engine.grammars.compiler import GrammarCompiler
from services.generation.engine.numba_cache import compiling
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.heads.served_heads import ServedHead
from services.generation.requests.resolution import Identity
from services.generation.target.config.capacity import explained
from services.generation.target.config.config import read_config
from services.generation.target.files.gguf_file import held_open
from services.generation.target.probing.calibration import time_keys, time_passes, time_seen
from services.generation.target.probing.probe import KeptProbes, NumericsProfile, measure_profile
from services.generation.target.target import LoadTarget, Target
from services.generation.warm_up import warm_up_sampling

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    target: Target
    tokenizer: Tokenizer
    profile: NumericsProfile
    cost: PassCost
    grammars: GrammarCompiler
    drafters: Mapping[str, Drafter] = field(default_factory=dict)  # by the names that the engine knows
    heads: tuple[ServedHead, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can run besides off, in the order of preference."""
        return tuple(dict.fromkeys(method_of(name) for name in self.drafters))


def with_drafters(model: Model, parts: Parts, heads: Sequence[ServedHead] = ()) -> Model:
    """The model with every drafter that can be built. Raises CannotDraft."""
    trees = compiling("trees") if parts.heads or parts.draft_model else nullcontext()
    with compiling("sampling"), trees:  # two servers that start together compile nothing twice
        return replace(model, drafters=build_drafters(parts), heads=tuple(heads))


def load_model(
    directory: Path,
    load: LoadTarget,
    *,
    context_length: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
) -> Model:
    """Load, probe, measure: seconds, on the calling thread. Raises TargetError."""
    started = time.perf_counter()
    with held_open(directory):  # the configuration, digests, weights and tokenizer of one file
        target = load(directory, context_length=context_length, cache_bytes=cache_bytes, adapters=adapters)
        _log.info(explained(target.config.context_length, read_config(directory).context_length, context_length))
        tokenizer = Tokenizer(directory)
    profile = measure_profile(target, KeptProbes())
    _say(profile)
    with compiling("sampling"):
        warm_up_sampling()
    _log.info("timing passes, for the width of drafts")
    cost = PassCost.measured(time_passes(target), time_keys(target), time_seen(target))
    grammars = GrammarCompiler(tokenizer.fast.to_str, target.config.vocab_size, target.config.eos_token_ids)
    model = Model(target, tokenizer, profile, cost, grammars)
    _log.info(
        "%s is loaded after %.1f s: a pass takes %.2f ms, one of four rows %.2f ms",
        directory, time.perf_counter() - started, 1e3 * cost.of(1), 1e3 * cost.of(4),
    )  # fmt: skip
    return model


def _say(profile: NumericsProfile) -> None:
    if profile.passed:
        _log.info("numerics profile %s: %d rows bit for bit as alone", profile.cid, profile.report.compared)
        return
    _log.error(
        "numerics profile %s failed its probe: serving one sequence at a time, one row a pass, speculation off, "
        "and receipts that say so", profile.cid,
    )  # fmt: skip
    for failure in profile.report.failures[:5]:
        _log.error("probe: %s", failure)


def identity_of(model: Model, name: str) -> Identity:
    """As receipts and callers name it."""
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
        eos_token_ids=config.eos_token_ids,
    )


def engine_of(model: Model, settings: EngineSettings, clock: Callable[[], float] = time.perf_counter) -> Engine:
    """An engine over the model, not yet started; its bounds are `settings` where the profile is proven."""
    bounds = settings if model.profile.passed else _one_row_a_pass(settings)
    return Engine(EngineCore(model.target, model.drafters, model.tokenizer.stream, model.cost, bounds, clock))


def _one_row_a_pass(settings: EngineSettings) -> EngineSettings:
    """The limits of an unproven profile: the one-row stream is all that its fingerprint stands for. Replays run on this
    engine too, so that the same request gives the same bits, and nobody is convicted of what their machine does to
    rows that are computed together.
    """
    return replace(settings, max_sequences=1, max_rows=1, prefill_rows=1, prefix_caching=False)
