"""Drafts that consist of copies: text that followed the same words before, in sources of the method and in the tenant's
past outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from services.generation.drafting.acceptance import RequestAcceptance
from services.generation.drafting.copies import Copies, OwnText
from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.nodes import Bounds, Nodes
from services.generation.drafting.past_outputs import Past
from services.generation.drafting.prediction import Prediction
from services.generation.engine.drafter import Budget, Draft
from services.generation.engine.economics import Costs
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float64
from services.generation.target.unread import LogitRows

MOST = 64  # copies with different ends
_ROOM = 256  # nodes besides copies

Expand = Callable[[OwnText, Nodes, int, Bounds, Float64], int]  # see `DraftTree.add_by`


class CopiesTree:
    """The draft tree of one sequence. It begins with the caller's prediction."""

    def __init__(self, request: EngineRequest, acceptance: RequestAcceptance) -> None:
        self._acceptance, self._prediction = acceptance, Prediction(request)
        self._in_flight: DraftTree | None = None

    def begin(self, tokens: list[int], budget: Budget, room: int = 0) -> DraftTree:
        """A new tree under the last of `tokens`. `room`: nodes besides copies."""
        bounds = DraftShape(budget.depth, 0, budget.nodes)
        tree = DraftTree(tokens[-1], self._acceptance, bounds, Costs(budget.pass_cost), room=room)
        tree.add(self._prediction.copies(tokens), budget)
        self._in_flight = tree
        return tree

    def judge(self, tokens: list[int], verified: TokenTree, path: list[int]) -> None:
        """Compare the tree with the tokens of the accepted path, if it is the tree that was verified."""
        drafted = self._in_flight
        self.drop()
        if drafted is not None and drafted.root == verified.tokens[0]:
            drafted.judge(tokens[-len(path) :])

    def drop(self) -> None:
        self._in_flight = None


class TextDraft(Draft):
    """The draft of one sequence: the caller's prediction, then copies for the end of the text, at most `most` with
    different ends: those that `look` finds, the best sources first, and those from `past` outputs. Then `expand` adds
    nodes. Only nodes that pay for their rows are drafted.
    """

    def __init__(
        self,
        request: EngineRequest,
        past: Past,
        look: Callable[[OwnText], Sequence[Copies]],
        most: int = MOST,
        expand: Expand | None = None,
    ) -> None:
        self._request, self._past = request, past
        self._look, self._most, self._expand = look, most, expand
        self._text, self._tree = OwnText(), CopiesTree(request, past.acceptance.begin(request))

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        self._text.extend(tokens)
        tree = self._tree.begin(tokens, budget, room=0 if self._expand is None else _ROOM)
        tree.add([*self._look(self._text), self._past.copies(self._text)], budget, most=self._most)
        if self._expand is not None:
            tree.add_by(partial(self._expand, self._text), budget)
        return tree.token_tree()

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self._tree.judge(tokens, tree, path)

    def finish(self, tokens: list[int]) -> None:
        self._past.add(self._request.key, tokens[len(self._request.prompt) :])
