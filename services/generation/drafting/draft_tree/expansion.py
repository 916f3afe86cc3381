"""A draft model expands draft trees, a level of all trees at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.acceptance import Int64, RequestAcceptance
from services.generation.drafting.draft_tree.candidates import (
    SAMPLING,
    UNCOUPLED,
    Candidates,
    Float32,
    RankedFirst,
    Samplings,
    Vocabulary,
    better_rule,
    record_rules,
    sampling_of,
)
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.nodes import Level
from services.generation.engine.request import EngineRequest
from services.generation.engine.sampling.processors import LogitsProcessors, end_ids

Say = Callable[[Float32, Samplings, Int64, int], Candidates]  # `candidates`, its vocabulary given


@dataclass(slots=True)
class Speaking:
    """The state of a draft model for one request: how the request samples, and how often drafts were accepted.

    `coupled`: the model draws with the sampler's own noise.
    """

    request: EngineRequest
    acceptance: RequestAcceptance
    processors: LogitsProcessors
    coupled: bool = True
    tree: DraftTree | None = None  # in flight
    length: int = 0  # of the sequence, when the tree was begun
    ranked: RankedFirst | None = None  # below the root of the tree in flight

    @classmethod
    def of(
        cls, request: EngineRequest, acceptance: RequestAcceptance, eos: Collection[int], vocabulary: Vocabulary,
        *, coupled: bool = True,
    ) -> Speaking:  # fmt: skip
        ends = end_ids(request.sampling, eos)
        processors = LogitsProcessors(request.sampling, request.prompt, ends, vocabulary.draft_ids)
        return cls(request, acceptance, processors, coupled)

    def begin(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """`tree` is to be verified after `tokens`."""
        self.tree, self.length, self.ranked = tree, len(tokens), None
        self.processors.follow(tokens)

    def observe(self, root: int, emitted: Sequence[int]) -> None:
        """A pass emitted these tokens under a root. The tree in flight is judged and dropped."""
        tree, self.tree = self.tree, None
        if tree is None or tree.root != root:
            return
        tree.judge(emitted)
        if self.ranked is not None:
            record_rules(self.acceptance, self.ranked, emitted[0])


def expand(speaking: Sequence[Speaking], logits: Float32, say: Say) -> None:
    """Add the model's tokens below the frontiers of all trees. logits [rows, draft vocabulary], rows in the order of
    the trees and, in each, of its frontier.

    Logits are processed as the target's are before its sampler draws, but by the committed tokens alone.
    """
    trees = [each.tree for each in speaking if each.tree is not None]
    rows = [len(tree.frontier) for tree in trees]
    samplings, at = np.empty(len(logits), SAMPLING), 0
    for each, tree, count in zip(speaking, trees, rows, strict=True):
        part = slice(at, at + count)
        rule = better_rule(each.acceptance) if each.coupled else UNCOUPLED
        samplings[part] = sampling_of(each.request, rule)
        samplings["position"][part] = each.length + tree.steps
        if not each.processors.idle:
            logits[part] = each.processors.apply(logits[part])
        at += count
    asked = np.concatenate([tree.asked() for tree in trees])
    found, at = say(logits, samplings, asked, max(tree.shape.width for tree in trees)), 0
    for each, tree, count in zip(speaking, trees, rows, strict=True):
        part, width = slice(at, at + count), tree.shape.width
        level = found.level
        if each.ranked is None:
            each.ranked = RankedFirst(int(found.whole[at]), int(found.doubted[at]))
        tree.expand(
            Level(
                np.ascontiguousarray(level.tokens[part, :width]),
                np.ascontiguousarray(level.shares[part, :width]),
                level.asked[part],
                level.asked_shares[part],
            )
        )
        at += count
