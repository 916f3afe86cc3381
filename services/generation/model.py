"""A loaded base with everything that start-up finds out about it: numerics profile, cost of a pass, drafters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.resemblance import of_tokens
from services.generation.drafting.draft_model import DraftModelDrafter
from services.generation.drafting.eagle3.confirmation import confirm_layers
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.history import History
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.embedders.models import Models
from services.generation.drafting.retrieval.embedders.sentence_model import SentenceModel
from services.generation.engine.core import EngineCore
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget
from services.generation.engine.engine import Engine
from services.generation.engine.logprobs import logprobs_of
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.row import Row
from services.generation.engine.sampler import Sampler
from services.generation.engine.settings import EngineSettings
from services.generation.engine.speculation import AnyDrafter
from services.generation.engine.tokenizer import Tokenizer
from services.generation.heads.head_loading import LoadedHead
from services.generation.heads.served_heads import ServedHead
from services.generation.requests.server_identity import Identity
from services.generation.target.blocks import BLOCK
from services.generation.target.calibration import time_keys, time_passes, time_seen
from services.generation.target.config import read_config
from services.generation.target.context_length import explained
from services.generation.target.errors import TokenizerMismatch
from services.generation.target.identity import tokenizer_cid
from services.generation.target.kept_probes import KeptProbes
from services.generation.target.profile import NumericsProfile, measure_profile
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

_PROBE = "The capital of France is Paris. Once upon a time, in a small town by the sea, there"
"""What the base continues where a published head's layers are to be confirmed."""


class LoadTarget(Protocol):
    """`services.generation.target.loading.load_target`, or what a test puts in its place."""

    def __call__(
        self,
        directory: Path,
        *,
        context_length: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        adapters: Mapping[str, Path] | None = None,
    ) -> Target: ...


@dataclass(frozen=True, slots=True)
class Model:
    target: Target
    tokenizer: Tokenizer
    profile: NumericsProfile
    cost: PassCost
    lookahead: LookaheadDrafter
    heads: tuple[ServedHead, ...] = ()
    eagle3: Mapping[str, Eagle3Drafter] = field(default_factory=dict)
    rest: RestDrafter | None = None
    draft: DraftModelDrafter | None = None
    auto: AutoDrafter | None = None

    @property
    def drafters(self) -> dict[str, AnyDrafter]:
        """By the names that the engine knows: lookahead, one for each head, and rest, draft and auto where they are
        loaded.
        """
        optional: dict[str, AnyDrafter | None] = {"rest": self.rest, "draft": self.draft, "auto": self.auto}
        loaded = {name: drafter for name, drafter in optional.items() if drafter is not None}
        return {"lookahead": self.lookahead, **self.eagle3, **loaded}

    @property
    def methods(self) -> frozenset[str]:
        """What can run besides off."""
        optional = {"eagle3": bool(self.eagle3), "rest": self.rest is not None, "draft": self.draft is not None}
        return frozenset({"lookahead", *(method for method, loaded in optional.items() if loaded)})


def with_heads(model: Model, heads: Sequence[LoadedHead]) -> Model:
    """The model with a drafter for each head, its layers confirmed and its steps timed: seconds, on the calling
    thread.
    """
    prompt, target = model.tokenizer.encode(_PROBE), model.target
    drafters = {
        head.served.drafter: Eagle3Drafter(confirm_layers(head.head, target, prompt), target, model.cost, copies=True)
        for head in heads
    }
    return replace(model, heads=tuple(head.served for head in heads), eagle3=drafters)


def with_corpora(
    model: Model, corpora: Sequence[tuple[str | None, Path]], directory: Path, embedder: Path | None = None
) -> Model:
    """The model with datastores by tenant (None is everybody); they speak the tokenizer of the base in `directory`.

    `embedder` is the sentence-transformers directory that some were built with. Every file is hashed: the search trusts
    what it maps. Raises DatastoreError.
    """
    sentences = None if embedder is None else SentenceModel.load(embedder)
    models = Models(directory, model.target, sentences, model.tokenizer.fast)
    stores: dict[str | None, list[Datastore]] = {}
    for tenant, folder in corpora:
        store = Datastore.open(folder, directory, model.target.tokenizer_cid, models)
        store.verify()
        stores.setdefault(tenant, []).append(store)
    if not stores:
        return model
    rest = RestDrafter(stores)
    for tenant in stores:
        _look_up_ahead(RestDrafter(stores), tenant)  # not by the one that serves: it learns from what it sees
    return replace(model, rest=rest)


def _look_up_ahead(rest: RestDrafter, tenant: str | None) -> None:
    """What a tenant's first request would wait for otherwise: what is compiled, and an index read from disk."""
    asked = EngineRequest("", (0, 0), SamplingParams(), method="rest", tenant=tenant)
    draft = rest.begin(asked)
    tree = draft.propose([0, 0], Budget(nodes=1, depth=1, breakeven=0.0))
    draft.observe([0, 0, 0], tree, [0], np.zeros((len(tree), 1), np.float32))


def with_draft_model(model: Model, directory: Path, load: LoadTarget) -> Model:
    """The model with a smaller one that drafts for it, its cache as long as the base's: seconds, on the calling thread.

    Raises TargetError, TokenizerMismatch where it has another tokenizer.
    """
    found, expected = tokenizer_cid(directory), model.target.tokenizer_cid
    if found != expected:
        raise TokenizerMismatch(
            f"{directory}: its tokenizer is {found}, the base's is {expected}; expected the same tokenizer files"
        )
    context = min(read_config(directory).context_length, model.target.config.context_length)
    drafting = load(directory, context_length=context, cache_tokens=model.target.blocks.total * BLOCK)
    step = PassCost.fit(time_passes(drafting))
    _log.info("%s drafts: a step takes %.2f ms and %.2f ms a row", directory, 1e3 * step.fixed, 1e3 * step.row)
    return replace(model, draft=DraftModelDrafter(drafting, model.target.config.vocab_size, model.cost, step))


def with_auto(model: Model) -> Model:
    """The model with a drafter that moves among all that are loaded by now."""
    resembles = partial(of_tokens, decode=model.tokenizer.decode_turns)
    auto = AutoDrafter(model.drafters, model.cost, model.target.config.hidden_size, resembles=resembles)
    return replace(model, auto=auto)


def load_model(
    directory: Path,
    load: LoadTarget,
    *,
    context_length: int | None = None,
    cache_bytes: int | None = None,
    threads: int | None = None,
    adapters: Mapping[str, Path] | None = None,
) -> Model:
    """Load, probe, measure: seconds, on the calling thread. Raises TargetError."""
    torch.set_num_threads(1)  # passes have a team of their own; torch's threads would spin beside it
    started = time.perf_counter()
    target = load(directory, context_length=context_length, cache_bytes=cache_bytes, adapters=adapters)
    _log.info(explained(target.config.context_length, read_config(directory).context_length, context_length))
    tokenizer = Tokenizer(directory)
    profile = measure_profile(target, KeptProbes())
    _say(profile)
    _compile_ahead()
    cost = PassCost.fit(time_passes(target), time_keys(target), time_seen(target))
    model = Model(target, tokenizer, profile, cost, LookaheadDrafter(cost))
    _log.info(
        "%s is ready after %.1f s: a pass takes %.2f ms and %.2f ms a row; lookahead %s",
        directory, time.perf_counter() - started, 1e3 * cost.fixed, 1e3 * cost.row, model.lookahead.shape,
    )  # fmt: skip
    return model


def _compile_ahead() -> None:
    """What the first requests would wait for otherwise, on the engine's thread: numba compiles at the first call."""
    logits = np.zeros(2, np.float32)
    plain = SamplingParams(temperature=1.0)
    for params in (plain, replace(plain, top_p=0.5), replace(plain, top_k=1, top_p=0.5, min_p=0.1)):
        Sampler(params, 0, (), frozenset(), 2).sample(logits, 0)
    logprobs_of(Row.of(logits), 0, 1)
    history = History()
    history.extend([0, 0])
    history.matches(1)


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
    config, shape = model.target.config, model.lookahead.shape
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
        lookahead=(shape.window, shape.ngram, shape.guesses),
        adapters=model.target.adapters,
    )


def engine_of(model: Model, settings: EngineSettings, clock: Callable[[], float] = time.perf_counter) -> Engine:
    """An engine over the model, not yet started; its bounds are `settings` where the profile is proven."""
    bounds = settings if model.profile.passed else _one_row_a_pass(settings)
    return Engine(EngineCore(model.target, model.drafters, model.tokenizer.stream, model.cost, bounds, clock))


def _one_row_a_pass(settings: EngineSettings) -> EngineSettings:
    """What an unproven profile may do: the one-row stream is all that its fingerprint stands for. Replays run on this
    engine too, so that the same request gives the same bits, and nobody is convicted of what their machine does to
    rows that are computed together.
    """
    return replace(settings, max_sequences=1, max_rows=1, prefill_rows=1, prefix_caching=False)
