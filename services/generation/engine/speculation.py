"""The drafts of the sequences that are running, and what keeps a drafter's failures away from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.drafter import Ask, Budget, Choosing, Draft, Drafter, FeatureDraft, FeatureDrafter
from services.generation.engine.sequence import Sequence
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

Float32 = NDArray[np.float32]
AnyDrafter = Drafter | FeatureDrafter
Computed = tuple[int, Float32, tuple[int, ...]]  # from which position on, features, and of which layers


class Speculation:
    """Drafts by sequence. A drafter's bug must not cost a request: its sequence goes on alone, to the same tokens."""

    def __init__(self, drafters: Mapping[str, AnyDrafter], vocab_size: int, hidden_size: int) -> None:
        self._drafters = drafters
        self._vocab_size, self._hidden_size = vocab_size, hidden_size
        self._drafts: dict[Sequence, Draft] = {}
        self._reading: dict[Sequence, tuple[FeatureDrafter, FeatureDraft]] = {}
        self._layers: dict[Sequence, tuple[int, ...]] = {}  # whose features they read
        self._choosing: dict[Sequence, Choosing] = {}  # of those, the drafts that choose among methods

    def begin(self, sequence: Sequence) -> None:
        """Once in a sequence's life: one that was preempted keeps its draft, or its lack of one."""
        if sequence.request.method == "off" or sequence.draft_begun:
            return
        sequence.draft_begun = True
        drafter = self._drafters[sequence.request.method]

        def start() -> None:
            if isinstance(drafter, FeatureDrafter):
                draft = drafter.begin(sequence.request)
                self._reading[sequence], self._layers[sequence] = (drafter, draft), drafter.feature_layers
                if isinstance(draft, Choosing):
                    self._choosing[sequence], self._layers[sequence] = draft, draft.feature_layers
            else:
                self._drafts[sequence] = drafter.begin(sequence.request)

        self._guarded(sequence, start)

    def drafts_for(self, sequence: Sequence) -> bool:
        return sequence in self._drafts or sequence in self._reading

    def feature_layers(self, sequences: Iterable[Sequence]) -> tuple[int, ...]:
        """The layers whose features somebody among them reads."""
        return tuple(dict.fromkeys(layer for s in sequences for layer in self._layers.get(s, ())))

    def propose(self, budgets: Mapping[Sequence, Budget]) -> dict[Sequence, TokenTree]:
        """A tree for each sequence, within its budget; the bare root where nothing can or does draft."""
        trees = {sequence: TokenTree.root(sequence.tokens[-1]) for sequence in budgets}
        together: dict[int, list[Sequence]] = {}
        for sequence, budget in budgets.items():
            if budget.nodes < 1 or budget.depth < 1:
                continue
            if sequence in self._reading:
                together.setdefault(id(self._reading[sequence][0]), []).append(sequence)
            elif sequence in self._drafts:
                self._guarded(sequence, lambda s=sequence, b=budget: self._propose_one(s, b, trees))  # type: ignore[misc]
        for sequences in together.values():
            self._propose_together(sequences, budgets, trees)
        return trees

    def _propose_one(self, sequence: Sequence, budget: Budget, trees: dict[Sequence, TokenTree]) -> None:
        self._take(sequence, self._drafts[sequence].propose(sequence.tokens, budget), budget, trees)

    def _propose_together(
        self, sequences: list[Sequence], budgets: Mapping[Sequence, Budget], trees: dict[Sequence, TokenTree]
    ) -> None:
        """All at once; if that fails, one by one, so that only the one at fault loses its draft."""
        drafter = self._reading[sequences[0]][0]

        def asked(some: list[Sequence]) -> None:
            asks = [Ask(self._reading[s][1], s.tokens, budgets[s]) for s in some]
            for sequence, tree in zip(some, drafter.propose_all(asks), strict=True):
                self._take(sequence, tree, budgets[sequence], trees)

        try:
            asked(sequences)
        except Exception:
            log.exception("drafting for %d sequences at once failed; trying each alone", len(sequences))
            for sequence in sequences:
                self._guarded(sequence, lambda s=sequence: asked([s]))  # type: ignore[misc]

    def _take(self, sequence: Sequence, tree: TokenTree, budget: Budget, trees: dict[Sequence, TokenTree]) -> None:
        if tree.tokens[0] == sequence.tokens[-1]:
            trees[sequence] = tree.cut(budget.nodes + 1, budget.depth, self._vocab_size)

    def read(self, sequence: Sequence, start: int, features: Float32, layers: tuple[int, ...]) -> None:
        """Hand over features [rows, layers * hidden] of committed tokens from position `start` on."""
        own = self.own(sequence, features, layers)
        if own is not None:
            draft = self._reading[sequence][1]
            self._guarded(sequence, lambda: draft.read(sequence.tokens, start, own))

    def own(self, sequence: Sequence, features: Float32, layers: tuple[int, ...]) -> Float32 | None:
        """Of features of `layers` those that the sequence's drafter reads; None where it reads none."""
        wanted = self._layers.get(sequence, ())
        if not wanted:
            return None
        if wanted == layers:
            return features
        streams = features.reshape(len(features), len(layers), self._hidden_size)
        own: Float32 = streams[:, [layers.index(layer) for layer in wanted]].reshape(len(features), -1)
        return own

    def observe(self, sequence: Sequence, tree: TokenTree, path: list[int], logits: Float32) -> None:
        draft = self._reading[sequence][1] if sequence in self._reading else self._drafts.get(sequence)
        if draft is not None:
            self._guarded(sequence, lambda: draft.observe(sequence.tokens, tree, path, logits))

    def method(self, sequence: Sequence) -> str:
        """Whose draft the pass in flight verifies, if it verifies one."""
        choosing = self._choosing.get(sequence)
        return sequence.request.method.partition("/")[0] if choosing is None else choosing.drafting

    def ended(self, sequence: Sequence, tree: TokenTree, path: list[int], last: Computed) -> None:
        """Its last pass is done: for who keeps count of what passes bring. `last` is as `read` takes it."""
        choosing = self._choosing.get(sequence)
        if choosing is not None:
            self.read(sequence, *last)
            self._guarded(sequence, lambda: choosing.ended(sequence.tokens, tree, path))

    def preempted(self, sequence: Sequence) -> None:
        """Its tokens will be computed, and their features read, again."""
        if sequence in self._reading:
            self._guarded(sequence, self._reading[sequence][1].release)

    def end(self, sequence: Sequence) -> None:
        """The sequence is over, or its drafter has failed."""
        self._drafts.pop(sequence, None)
        self._choosing.pop(sequence, None)
        self._layers.pop(sequence, None)
        _, draft = self._reading.pop(sequence, (None, None))
        if draft is not None:
            try:
                draft.release()
            except Exception:
                log.exception("drafter failed to release what request %s held", sequence.request.request_id)

    def _guarded(self, sequence: Sequence, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("drafter failed; request %s goes on without speculation", sequence.request.request_id)
            self.end(sequence)
