"""Fitting of draft trees to the grammar of their sequence."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from llguidance import LLMatcher

from services.generation.engine.request import Grammar
from services.generation.engine.tree import TokenTree


@dataclass(frozen=True, slots=True)
class _Frontier:
    """A node of the tree under construction, and its node in the proposed tree, if any.

    `forced`: tokens that must follow.
    """

    node: int
    proposed: int | None
    depth: int
    matcher: LLMatcher
    forced: list[int] = field(default_factory=list)


class GrammarGuide:
    """Fits draft trees to the grammar of one sequence. It decides the rows of a pass and never a token.

    It has its own matcher, so that drafts do not change the sampler's.
    """

    def __init__(self, grammar: Grammar, ends: frozenset[int], prompt_length: int) -> None:
        self._matcher, self._ends = grammar.matcher(), ends
        self._end = grammar.eos if grammar.eos in ends else min(ends)
        self._followed = prompt_length

    def follow(self, tokens: list[int]) -> None:
        """Advance to `tokens`, the prompt and the output so far."""
        for token in tokens[self._followed :]:
            self._matcher.consume_token(token)
        self._followed = len(tokens)

    @property
    def forces(self) -> bool:
        """Whether only one token is allowed next."""
        return len(self._forced(self._matcher)) > 0

    def fit(self, proposed: TokenTree, nodes: int, depth: int) -> TokenTree:
        """The proposed tree without forbidden tokens and with forced tokens, of at most `nodes` and `depth`."""
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
        """The forced next tokens, including the grammar's end."""
        return [self._end] if matcher.is_stopped() else matcher.compute_ff_tokens()
