"""Machine code of kernels, sampling and drafting, compiled before anybody asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.generation.compiled.compiled_parts import PARTS, Part, compiling, leave_mark
from services.generation.drafting.acceptance import Acceptance
from services.generation.drafting.draft_tree.candidates import Vocabulary, candidates
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.expansion import Speaking, expand
from services.generation.drafting.draft_tree.nodes import Costs
from services.generation.drafting.draft_tree.shape import DraftShape
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.suffix import SuffixDrafter
from services.generation.engine.cost import PassCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.row import Row
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.target.canonical.kernels.attention.cached import CACHED
from services.generation.target.canonical.kernels.compilation import compile_ahead, module_names
from services.generation.target.canonical.kernels.storages import STORAGES

_SOME_COST = PassCost(rows=(1, 2), seconds=(1.0, 1.5))


def compile_everything() -> None:
    """For this machine, whatever model comes: minutes where nothing is there yet, nothing where all is.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    wanted = (
        module_names(list(STORAGES), cached, arithmetic) for cached in CACHED for arithmetic in ("float32", "int8")
    )
    compile_ahead(list(dict.fromkeys(module for modules in wanted for module in modules)))
    for part in PARTS:
        with compiling(part):
            compile_part(part)
        leave_mark(part)


def compile_part(part: Part) -> None:
    """Code that numba compiles, whatever model comes; trees are for heads and smaller models that draft."""
    if part == "trees":
        return _compile_draft_trees()
    compile_sampling()
    LookaheadDrafter(_SOME_COST)
    SuffixDrafter()


def _compile_draft_trees() -> None:
    """Code that heads and smaller models draft with: one level below one root, by a model of two tokens."""
    ids, request = np.arange(2), EngineRequest("", (0,), SamplingParams())
    vocabulary, acceptance = Vocabulary(ids, ids), Acceptance().begin(request)
    speaking = Speaking.of(request, acceptance, (), vocabulary)
    tree = DraftTree(0, acceptance, DraftShape(depth=2, width=2, tree_tokens=8), Costs(np.ones(4)))
    speaking.begin(tree, (0, 0))
    tree.worth_expanding()
    expand([speaking], np.zeros((1, 2), np.float32), lambda logits, *asked: candidates(logits, vocabulary, *asked))
    tree.token_tree()
    speaking.observe(0, [0])


def compile_sampling() -> None:
    """Compiles before the first requests, which would wait for it on the engine's thread."""
    logits = np.zeros(2, np.float32)
    plain = SamplingParams(temperature=1.0)
    for params in (plain, replace(plain, top_p=0.5), replace(plain, top_k=1, top_p=0.5, min_p=0.1)):
        Sampler(params, 0, (), frozenset()).sample(logits, 0)
    logprobs_of(Row.of(logits), 0, 1)
