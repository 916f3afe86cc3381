"""The drafts of the sequences that are running, and what keeps a drafter's failures away from them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from llguidance import LLMatcher

from services.generation.engine.drafter import Budget, Draft, Drafter, DraftRequest
from services.generation.engine.request import Grammar
from services.generation.engine.sequence import Sequence
from services.generation.engine.tree import TokenTree
from services.generation.engine.turns import Gains, Turns
from services.generation.target.arrays import Float32


@dataclass(frozen=True, slots=True)
class _Frontier:
    """A node of the tree that is being built; the node of the proposed tree that it stands for, if any; tokens that
    have to follow it, if that is known already.
    """

    node: int
    proposed: int | None
    depth: int
    matcher: LLMatcher
    forced: list[int] = field(default_factory=list)


class GrammarGuide:
    """Fits draft trees to the grammar of one sequence. It decides which rows a pass has, never a token: what it gets
    wrong costs time.

    Its matcher is not the sampler's, so that no draft touches that one.
    """

    def __init__(self, grammar: Grammar, ends: frozenset[int], prompt_length: int) -> None:
        self._matcher, self._ends = grammar.matcher(), ends
        self._end = grammar.eos if grammar.eos in ends else min(ends)
        self._told = prompt_length

    def follow(self, tokens: list[int]) -> None:
        """Tell all tokens so far, prompt and output."""
        for token in tokens[self._told :]:
            self._matcher.consume_token(token)
        self._told = len(tokens)

    @property
    def forces(self) -> bool:
        """Whether only one token can come next."""
        return len(self._forced(self._matcher)) > 0

    def fit(self, proposed: TokenTree, nodes: int, depth: int) -> TokenTree:
        """The proposed tree without what is forbidden and with what is forced, of at most `nodes` and `depth`."""
        children: dict[int | None, dict[int, int]] = {}
        for node in reversed(range(1, len(proposed))):  # of two children with one token, the first counts
            children.setdefault(proposed.parents[node], {})[proposed.tokens[node]] = node
        tokens, parents, predicted = [proposed.tokens[0]], [-1], set[int]()
        places = deque([_Frontier(0, 0, 0, self._matcher)])
        while places:
            at = places.popleft()
            forced = at.forced or self._forced(at.matcher)
            below = children.get(at.proposed, {})
            for token in forced[:1] or [token for token in reversed(below) if self._allows(at.matcher, token)]:
                if len(tokens) >= nodes:
                    return TokenTree(tuple(tokens), tuple(parents), frozenset(predicted))
                if below.get(token) in proposed.predicted:
                    predicted.add(len(tokens))
                tokens.append(token)
                parents.append(at.node)
                if token not in self._ends and at.depth + 1 < depth:
                    matcher = at.matcher.deep_copy()
                    matcher.consume_token(token)
                    places.append(_Frontier(len(tokens) - 1, below.get(token), at.depth + 1, matcher, forced[1:]))
        return TokenTree(tuple(tokens), tuple(parents), frozenset(predicted))

    def _allows(self, matcher: LLMatcher, token: int) -> bool:
        return matcher.is_accepting() if token in self._ends else matcher.validate_tokens([token]) == 1

    def _forced(self, matcher: LLMatcher) -> list[int]:
        """The tokens that have to come next, the grammar's end included."""
        return [self._end] if matcher.is_stopped() else matcher.compute_ff_tokens()


log = logging.getLogger(__name__)


_UNSEEN = 0.1  # tokens a draft: what it takes beside drafting and its pass, and of the caches, a control's too

T = TypeVar("T")


@dataclass(slots=True)
class _Drafts:
    """The drafts of one sequence, one by each of its methods, and the method that has its turn."""

    by_method: dict[str, Draft]
    layers: tuple[int, ...]  # whose features they read
    turns: Turns
    guide: GrammarGuide | None  # where its output follows a grammar
    drafter: str  # that was asked last, at first the preferred one: what a grammar forces counts as its draft
    budget: Budget | None = None  # of the draft in flight
    seconds: float = 0.0  # that drafting has taken since the last pass
    once: float = 0.0  # the same, but for a method's first draft, which reads what there is
    warm: set[str] = field(default_factory=set)  # methods that have read what there was to read when they began


class Speculation:
    """Drafts by sequence. A drafter's bug costs no request: its sequence goes on without it, to the same tokens."""

    def __init__(
        self, drafters: Mapping[str, Drafter], vocab_size: int, hidden_size: int, clock: Callable[[], float],
        gains: Gains,
    ) -> None:  # fmt: skip
        """`clock` in seconds, for what drafting takes."""
        self._drafters, self._clock = drafters, clock
        self._vocab_size, self._hidden_size = vocab_size, hidden_size
        self._drafts: dict[Sequence, _Drafts] = {}
        self._gains, self.pace = gains, gains.pace
        self.drafting = 0.0  # seconds that drafters took for the last `propose`

    def begin(self, sequence: Sequence) -> None:
        """Once in a sequence's life: one that was preempted keeps its drafts, or its lack of them."""
        request = sequence.request
        if request.method == "off" or sequence.draft_begun:
            return
        sequence.draft_begun = True
        methods = tuple(dict.fromkeys((request.method, *request.next_methods)))
        layers = tuple(dict.fromkeys(layer for name in methods for layer in self._drafters[name].feature_layers))
        turns = self._gains.begin(request, methods)
        self._drafts[sequence] = drafts = _Drafts({}, layers, turns, _guide(sequence), methods[0])
        for name in methods:

            def start(name: str = name) -> None:
                drafts.by_method[name] = self._drafters[name].begin(request)

            self._guarded(sequence, name, start)

    def drafts_for(self, sequence: Sequence, together: int) -> bool:
        """Whether a method, or its grammar, may draft for its next pass, of `together` sequences."""
        drafts = self._drafts.get(sequence)
        return drafts is not None and (drafts.turns.under(together) is not None or drafts.guide is not None)

    def feature_layers(self, sequences: Iterable[Sequence]) -> tuple[int, ...]:
        """The layers whose features somebody among them reads."""
        return tuple(dict.fromkeys(layer for s in sequences if s in self._drafts for layer in self._drafts[s].layers))

    def propose(self, budgets: Mapping[Sequence, Budget]) -> dict[Sequence, TokenTree]:
        """A tree for each sequence, within its budget; the bare root where nothing can or does draft."""
        self.drafting = 0.0
        trees = {sequence: TokenTree.root(sequence.tokens[-1]) for sequence in budgets}
        together: dict[str, list[Sequence]] = {}
        drafting = [s for s, budget in budgets.items() if s in self._drafts and budget.nodes > 0 and budget.depth > 0]
        for sequence in drafting:
            if (method := self._asked(sequence)) is not None:
                together.setdefault(method, []).append(sequence)
        for method, sequences in together.items():
            self._propose(method, sequences, budgets, trees)
        for sequence in drafting:
            self._fit(sequence, budgets[sequence], trees)
        return trees

    def _fit(self, sequence: Sequence, budget: Budget, trees: dict[Sequence, TokenTree]) -> None:
        """Cut what the grammar forbids, draft what it forces: here, whatever the method."""

        def fit(guide: GrammarGuide) -> None:
            guide.follow(sequence.tokens)
            trees[sequence] = guide.fit(trees[sequence], budget.nodes + 1, budget.depth)

        self._guided(sequence, fit)

    def _asked(self, sequence: Sequence) -> str | None:
        """The method whose turn it is, unless the grammar says what comes next and asking the method costs time."""
        drafts = self._drafts[sequence]
        method = drafts.turns.method
        if method is None or self._drafters[method].negligible_cost:
            return method

        def forces(guide: GrammarGuide) -> bool:
            guide.follow(sequence.tokens)
            return guide.forces

        if not self._guided(sequence, forces):
            return method
        drafts.drafter = method
        return None

    def _guided(self, sequence: Sequence, ask: Callable[[GrammarGuide], T]) -> T | None:
        """What the guide of its grammar says; None without one, and from when on it fails. The sampler has a matcher
        of its own, which ends the request if it fails too.
        """
        drafts = self._drafts[sequence]
        if drafts.guide is not None:
            try:
                return ask(drafts.guide)
            except BaseException:  # a panic in the library is not an Exception
                log.exception("request %s drafts on without its grammar", sequence.request.request_id)
                drafts.guide = None
        return None

    def _propose(
        self,
        method: str,
        sequences: list[Sequence],
        budgets: Mapping[Sequence, Budget],
        trees: dict[Sequence, TokenTree],
    ) -> None:
        """All at once; if that fails, one by one, so that only the one at fault loses its draft."""
        try:
            self._ask(method, sequences, budgets, trees)
        except Exception:
            for sequence in sequences:  # time before the failure does not count
                trees[sequence], self._drafts[sequence].budget = TokenTree.root(sequence.tokens[-1]), None
            if len(sequences) == 1:
                self._failed(sequences[0], method)
                return
            log.exception("%s failed for %d sequences at once; trying each alone", method, len(sequences))
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
        asks = [DraftRequest(self._drafts[s].by_method[method], s.tokens, budgets[s]) for s in sequences]
        proposed = self._drafters[method].propose(asks)
        for sequence, tree in zip(sequences, proposed, strict=True):
            budget, drafts = budgets[sequence], self._drafts[sequence]
            drafts.budget, drafts.drafter = budget, method
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

    def read(self, sequence: Sequence, start: int, features: Float32, layers: tuple[int, ...]) -> None:
        """Hand over features [rows, layers * hidden] of committed tokens from position `start` on."""
        if sequence not in self._drafts:
            return
        drafts, started = self._drafts[sequence], self._clock()
        for name, draft in list(drafts.by_method.items()):
            if wanted := self._drafters[name].feature_layers:
                own = self._of_layers(features, layers, wanted)
                self._guarded(sequence, name, lambda d=draft, own=own: d.read(sequence.tokens, start, own))  # type: ignore[misc]
        drafts.seconds += self._clock() - started

    def own(self, sequence: Sequence, features: Float32, layers: tuple[int, ...]) -> Float32 | None:
        """The part of the features of `layers` that the sequence's drafts read; None where they read none."""
        wanted = self._drafts[sequence].layers if sequence in self._drafts else ()
        return self._of_layers(features, layers, wanted) if wanted else None

    def _of_layers(self, features: Float32, layers: tuple[int, ...], wanted: tuple[int, ...]) -> Float32:
        if wanted == layers:
            return features
        streams = features.reshape(len(features), len(layers), self._hidden_size)
        own: Float32 = streams[:, [layers.index(layer) for layer in wanted]].reshape(len(features), -1)
        return own

    def observe(self, sequence: Sequence, tree: TokenTree, path: list[int], logits: Float32) -> None:
        """The pass is done: the method that drafted for it sees what came of it, and is judged by it."""
        drafts = self._drafts.get(sequence)
        if drafts is None:
            return
        method = drafts.turns.method if drafts.budget is None else drafts.drafter
        draft = None if method is None else drafts.by_method.get(method)
        if method is not None and draft is not None:
            started = self._clock()
            self._guarded(sequence, method, lambda: draft.observe(sequence.tokens, tree, path, logits))
            drafts.seconds += self._clock() - started
        budget, seconds, once = drafts.budget, drafts.seconds, drafts.once
        drafts.budget, drafts.seconds, drafts.once = None, 0.0, 0.0
        if drafts.turns.method is None:
            drafts.turns.passed(0.0)
        elif budget is not None and method == drafts.turns.method and self.pace.known:
            plain = float(budget.cost_by_nodes[0])
            gain = -seconds / plain
            if len(tree) > 1:
                took = self.pace.last * (plain + budget.seconds_of(len(tree) - 1))
                gain += len(path) - took / plain - _UNSEEN
            drafts.turns.passed(gain, once / plain)

    def method(self, sequence: Sequence) -> str:
        """The method whose draft the pass in flight verifies, if it verifies one."""
        return self._drafts[sequence].drafter.partition("/")[0] if sequence in self._drafts else "off"

    def preempted(self, sequence: Sequence) -> None:
        """Its tokens will be computed, and their features read, again."""
        if sequence in self._drafts:
            drafts = self._drafts[sequence]
            drafts.warm.clear()
            drafts.budget = None
            for name, draft in list(drafts.by_method.items()):
                self._guarded(sequence, name, draft.release)

    def end(self, sequence: Sequence) -> dict[str, float]:
        """The sequence is over. Returns what a pass has gained by each drafter that it had."""
        drafts = self._drafts.get(sequence)
        if drafts is None:
            return {}
        for name, draft in list(drafts.by_method.items()):
            self._guarded(sequence, name, lambda d=draft: d.finish(sequence.tokens))  # type: ignore[misc]
        for name, draft in drafts.by_method.items():
            self._release(sequence, name, draft)
        del self._drafts[sequence]
        return drafts.turns.gains

    def _guarded(self, sequence: Sequence, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._failed(sequence, method)

    def _failed(self, sequence: Sequence, method: str) -> None:
        """Called while its exception is handled: the sequence goes on without this method."""
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
        except Exception:
            log.exception("%s failed to release what request %s held", method, sequence.request.request_id)


def _guide(sequence: Sequence) -> GrammarGuide | None:
    """None where its output is free; also where the grammar has no matcher to give, without which a draft does."""
    grammar = sequence.request.grammar
    try:
        return None if grammar is None else GrammarGuide(grammar, sequence.ends, len(sequence.request.prompt))
    except BaseException:
        log.exception("request %s drafts without its grammar", sequence.request.request_id)
        return None
