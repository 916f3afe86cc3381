"""Drafts that consist of copies: text that followed the same words before, in sources of the method and in the tenant's
past outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
        self._acceptance, self._look, self._most = past.acceptance.begin(request), look, most
        self._expand = expand
        self._text, self._prediction = OwnText(), Prediction(request)
        self._tree: DraftTree | None = None  # in flight

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        self._text.extend(tokens)
        bounds, room = DraftShape(budget.depth, 0, budget.nodes), 0 if self._expand is None else _ROOM
        self._tree = DraftTree(tokens[-1], self._acceptance, bounds, Costs(budget.pass_cost), room=room)
        self._tree.add(self._prediction.copies(tokens), budget)
        self._tree.add([*self._look(self._text), self._past.copies(self._text)], budget, most=self._most)
        if self._expand is not None:
            self._tree.add_by(partial(self._expand, self._text), budget)
        return self._tree.token_tree()

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        drafted, self._tree = self._tree, None
        if drafted is not None and drafted.root == tree.tokens[0]:
            drafted.judge(tokens[-len(path) :])

    def finish(self, tokens: list[int]) -> None:
        self._past.add(self._request.key, tokens[len(self._request.prompt) :])
