"""Drafts of the running sequences. If a drafter fails, its drafts end and the sequences continue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from services.generation.engine.cost import MARGIN, Pace
from services.generation.engine.drafter import Budget, Draft, Drafter, DraftRequest
from services.generation.engine.economics import seconds_saved
from services.generation.engine.grammar_guide import GrammarGuide
from services.generation.engine.request import EngineRequest
from services.generation.engine.sequence import Sequence
from services.generation.engine.tree import TokenTree
from services.generation.engine.turns import Gains, Turns
from services.generation.target.arrays import Float32
from services.generation.target.unread import LogitRows

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(slots=True)
class _Drafts:
    """Drafts of one sequence, one by each of its methods, and the turns of these methods."""

    by_method: dict[str, Draft]
    turns: Turns
    guide: GrammarGuide | None  # None without a grammar
    method: str  # the method asked last, at first the preferred one; tokens that a grammar forces count as its draft
    budget: Budget | None = None  # budget of the draft in flight
    seconds: float = 0.0  # drafting time since the last pass
    once: float = 0.0  # time of a method's first draft, which reads the whole prompt
    warm: set[str] = field(default_factory=set)  # methods that have read the prompt


class Speculation:
    """The drafts of all sequences. If a drafter fails, its sequence continues without it and gets the same tokens."""

    def __init__(
        self, drafters: Mapping[str, Drafter], vocab_size: int, hidden_size: int, clock: Callable[[], float],
        gains: Gains,
    ) -> None:  # fmt: skip
        """`clock`: seconds, to time drafting."""
        self._drafters, self._clock = drafters, clock
        self.feature_layers = tuple(dict.fromkeys(layer for each in drafters.values() for layer in each.feature_layers))
        """Layers whose features any drafter reads. They are computed for every sequence: otherwise a prefix that was
        cached without features would have to be computed again for a head.
        """
        self._vocab_size, self._hidden_size = vocab_size, hidden_size
        self._drafts: dict[Sequence, _Drafts] = {}
        self._gains, self.pace = gains, gains.pace
        self.drafting = 0.0  # seconds of the last `propose`

    def begin_pace(self) -> None:
        """Reset the comparison of recent passes with the cost model, after the model was replaced."""
        self.pace = self._gains.pace = Pace()

    def begin(self, sequence: Sequence) -> None:
        """Begin a sequence's drafts. Later calls do nothing: a preempted sequence keeps its drafts, if it has any."""
        request = sequence.request
        if request.method == "off" or sequence.draft_begun:
            return
        sequence.draft_begun = True
        named = dict.fromkeys((request.method, *request.next_methods))
        methods = tuple(name for name in named if self._drafters[name].ready)
        if not methods:
            return
        turns = self._gains.begin(request, methods)
        self._drafts[sequence] = drafts = _Drafts({}, turns, _guide(sequence), methods[0])
        for name in methods:
            self._call_guarded(sequence, name, self._start, drafts, name, request)

    def _start(self, drafts: _Drafts, method: str, request: EngineRequest) -> None:
        drafts.by_method[method] = self._drafters[method].begin(request)

    def drafts_for(self, sequence: Sequence, together: int) -> bool:
        """Whether a method or the grammar may draft for the sequence's next pass, in which `together` sequences run.

        May change the method whose turn it is (`Turns.under`).
        """
        drafts = self._drafts.get(sequence)
        return drafts is not None and (drafts.turns.under(together) is not None or drafts.guide is not None)

    def reads_features(self, sequence: Sequence) -> bool:
        """Whether one of its drafts reads features."""
        drafts = self._drafts.get(sequence)
        return drafts is not None and any(self._drafters[name].feature_layers for name in drafts.by_method)

    def propose(self, budgets: Mapping[Sequence, Budget]) -> dict[Sequence, TokenTree]:
        """A tree for each sequence, within its budget; the bare root if no method drafts."""
        self.drafting = 0.0
        trees = {sequence: TokenTree.root(sequence.tokens[-1]) for sequence in budgets}
        together: dict[str, list[Sequence]] = {}
        drafting = [s for s, budget in budgets.items() if s in self._drafts and budget.nodes > 0 and budget.depth > 0]
        for sequence in drafting:
            if (method := self._method_to_ask(sequence)) is not None:
                together.setdefault(method, []).append(sequence)
        for method, sequences in together.items():
            self._propose(method, sequences, budgets, trees)
        for sequence in drafting:
            self._fit(sequence, budgets[sequence], trees)
        return trees

    def _fit(self, sequence: Sequence, budget: Budget, trees: dict[Sequence, TokenTree]) -> None:
        """Cut tokens that the grammar forbids, add tokens that it forces, whatever the method."""
        fitted = self._ask_guide(sequence, lambda guide: guide.fit(trees[sequence], budget.nodes + 1, budget.depth))
        if fitted is not None:
            trees[sequence] = fitted

    def _method_to_ask(self, sequence: Sequence) -> str | None:
        """The method to ask for a draft. None if no method has its turn, or if the grammar forces the next token and
        the method costs time.
        """
        drafts = self._drafts[sequence]
        method = drafts.turns.method
        if method is None or self._drafters[method].negligible_cost:
            return method
        if not self._ask_guide(sequence, lambda guide: guide.forces):
            return method
        drafts.method = method
        return None

    def _ask_guide(self, sequence: Sequence, ask: Callable[[GrammarGuide], T]) -> T | None:
        """Call `ask` with the guide of the sequence's grammar, at its last token. Returns None without a guide, or if
        the guide fails. The sampler has its own matcher; if that fails, the request ends.
        """
        drafts = self._drafts[sequence]
        if drafts.guide is not None:
            try:
                drafts.guide.follow(sequence.tokens)
                return ask(drafts.guide)
            except BaseException:
                log.exception("drafting without the failed grammar guide of request %s", sequence.request.request_id)
                drafts.guide = None
        return None

    def _propose(
        self,
        method: str,
        sequences: list[Sequence],
        budgets: Mapping[Sequence, Budget],
        trees: dict[Sequence, TokenTree],
    ) -> None:
        """Ask for the drafts of all sequences together; if that fails, for each alone, so that only the sequence at
        fault loses the method.
        """
        try:
            self._ask(method, sequences, budgets, trees)
        except BaseException:  # a panic in a library is not an Exception
            for sequence in sequences:  # time before the failure does not count
                trees[sequence], self._drafts[sequence].budget = TokenTree.root(sequence.tokens[-1]), None
            if len(sequences) == 1:
                self._drop_failed_method(sequences[0], method)
                return
            log.exception("drafting with %s failed for %d sequences: trying each alone", method, len(sequences))
            for sequence in sequences:
                self._propose(method, [sequence], budgets, trees)

    def _ask(
        self,
        method: str,
        sequences: list[Sequence],
        budgets: Mapping[Sequence, Budget],
        trees: dict[Sequence, TokenTree],
    ) -> None:
        started = self._clock()
        asks = [DraftRequest(self._drafts[s].by_method[method], s.tokens, budgets[s], s.table) for s in sequences]
        proposed = self._drafters[method].propose(asks)
        for sequence, tree in zip(sequences, proposed, strict=True):
            budget, drafts = budgets[sequence], self._drafts[sequence]
            drafts.budget, drafts.method = budget, method
            plain = TokenTree(tuple(map(int, tree.tokens)), tuple(map(int, tree.parents)), tree.predicted)
            if plain.tokens[0] == sequence.tokens[-1]:
                trees[sequence] = plain.cut(budget.nodes + 1, budget.depth, self._vocab_size)
        seconds = self._clock() - started
        self.drafting, share = self.drafting + seconds, seconds / len(sequences)
        for drafts in (self._drafts[sequence] for sequence in sequences):
            if method in drafts.warm:
                drafts.seconds += share
            else:
                drafts.once += share
                drafts.warm.add(method)

    def read(self, sequence: Sequence, start: int, features: Float32) -> None:
        """Pass features [rows, feature layers * hidden] of committed tokens from position `start` on to the drafts."""
        if sequence not in self._drafts:
            return
        drafts, started = self._drafts[sequence], self._clock()
        for name, draft in list(drafts.by_method.items()):
            if wanted := self._drafters[name].feature_layers:
                own = self._select_layers(features, wanted)
                self._call_guarded(sequence, name, draft.read, sequence.tokens, start, own)
        drafts.seconds += self._clock() - started

    def _select_layers(self, features: Float32, wanted: tuple[int, ...]) -> Float32:
        layers = self.feature_layers
        if wanted == layers:
            return features
        streams = features.reshape(len(features), len(layers), self._hidden_size)
        own: Float32 = streams[:, [layers.index(layer) for layer in wanted]].reshape(len(features), -1)
        return own

    def observe(self, sequence: Sequence, tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        """Show the pass to the method that drafted for it, and count its gain."""
        drafts = self._drafts.get(sequence)
        if drafts is None:
            return
        method = drafts.turns.method if drafts.budget is None else drafts.method
        draft = None if method is None else drafts.by_method.get(method)
        if method is not None and draft is not None:
            started = self._clock()
            self._call_guarded(sequence, method, draft.observe, sequence.tokens, tree, path, logits)
            drafts.seconds += self._clock() - started
        budget, seconds, once = drafts.budget, drafts.seconds, drafts.once
        drafts.budget, drafts.seconds, drafts.once = None, 0.0, 0.0
        if drafts.turns.method is None:
            drafts.turns.passed(0.0)
        elif budget is not None and method == drafts.turns.method and self.pace.known:
            price, spent = float(budget.pass_cost[0]), MARGIN * seconds
            if len(tree) > 1:
                spent += self.pace.last * float(budget.pass_cost[len(tree) - 1]) - price
            drafts.turns.passed(seconds_saved(len(path) - 1, spent, price) / price, once / price)

    def method(self, sequence: Sequence) -> str:
        """The method whose draft the pass in flight verifies, if it has one; "off" for a sequence without drafts."""
        return self._drafts[sequence].method.partition("/")[0] if sequence in self._drafts else "off"

    def preempted(self, sequence: Sequence) -> None:
        """Release the memory of the sequence's drafts: its tokens are computed, and their features read, again."""
        if sequence in self._drafts:
            drafts = self._drafts[sequence]
            drafts.warm.clear()
            drafts.budget = None
            for name, draft in list(drafts.by_method.items()):
                self._call_guarded(sequence, name, draft.release)

    def end(self, sequence: Sequence) -> dict[str, float]:
        """End a sequence's drafts. Returns the mean gain of a pass by method."""
        drafts = self._drafts.get(sequence)
        if drafts is None:
            return {}
        for name, draft in list(drafts.by_method.items()):
            self._call_guarded(sequence, name, draft.finish, sequence.tokens)
        for name, draft in drafts.by_method.items():
            self._release(sequence, name, draft)
        del self._drafts[sequence]
        return drafts.turns.gains

    def _call_guarded(
        self, sequence: Sequence, method: str, call: Callable[P, None], *given: P.args, **named: P.kwargs
    ) -> None:
        """Call `call`; if it raises, the sequence continues without this method."""
        try:
            call(*given, **named)
        except BaseException:
            self._drop_failed_method(sequence, method)

    def _drop_failed_method(self, sequence: Sequence, method: str) -> None:
        """Log the exception that is being handled, and continue the sequence without this method."""
        request_id = sequence.request.request_id
        log.exception("%s failed; request %s goes on without it", method, request_id)  # noqa: LOG004
        drafts = self._drafts[sequence]
        drafts.turns.drop(method)
        draft = drafts.by_method.pop(method, None)
        if draft is not None:
            self._release(sequence, method, draft)

    @staticmethod
    def _release(sequence: Sequence, method: str, draft: Draft) -> None:
        try:
            draft.release()
        except BaseException:
            log.exception("%s failed to release its resources for request %s", method, sequence.request.request_id)


def _guide(sequence: Sequence) -> GrammarGuide | None:
    """A guide for the sequence's grammar; None without a grammar, or if the guide cannot be created."""
    grammar = sequence.request.grammar
    try:
        return None if grammar is None else GrammarGuide(grammar, sequence.ends, len(sequence.request.prompt))
    except BaseException:
        log.exception("drafting without a grammar guide for request %s", sequence.request.request_id)
        return None
