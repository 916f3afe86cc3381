"""What another arm would have brought to a sequence that one drafts for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.drafts import Drafts
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.tally import Tally
from services.generation.engine.drafter import Budget
from services.generation.engine.tree import TokenTree

_MOST = 64  # passes that are compared
_LAST = 4  # drafts that are made when the sequence has ended already
Float32 = NDArray[np.float32]

_NO_LOGITS = np.zeros((0, 0), np.float32)

Propose = Callable[[Drafts, list[int], Budget], tuple[TokenTree, float] | None]


class Shadow:
    """An arm that drafts behind a sequence, where it would have been asked had it been in use: what was emitted since
    is what its pass would have emitted, because no method changes a token. So arms are compared on the same text.
    """

    def __init__(
        self, arm: Arm, host: Arm, drafts: Drafts, propose: Propose, price: Callable[[str, Budget, float], Price]
    ) -> None:
        """`host` is in use. `propose` makes the arm's tree and says what that took; None where it could not, or where
        that says nothing; `price` is as `AutoDraft` takes it.
        """
        self.arm, self.host, self.drafts = arm, host, drafts
        self.over = False
        self._propose, self._priced = propose, price
        self._text: list[int] = []
        self._budget: Budget | None = None  # of the host when it was asked last, as deep as from the text's beginning
        self._at = 0  # tokens of it after which the arm drafts next, or has drafted
        self._waiting: tuple[TokenTree, Price] | None = None  # of what its pass will have emitted not all is known
        self._stopped = False  # a pass of the host was not seen
        self._own, self._hosts = [Tally()], [Tally()]  # sums after each pass

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """As `FeatureDraft.read`; nothing is read beyond where it drafts next."""
        self.drafts.read(tokens[: self._at] if self._at else tokens, start, features, None)

    def follow(self, tokens: list[int], budget: Budget) -> None:
        """The host is asked for its next draft: make one, too, behind it."""
        self._grow(tokens)
        self._budget = replace(budget, depth=budget.depth + len(tokens))
        self._at = self._at or len(tokens)
        self._draft()

    def beside(self, seen: Tally | None) -> None:
        """What the host's pass cost and brought; None where nobody knows, and comparing stops."""
        if not self._at or self._stopped:
            return
        if seen is None:
            self._stopped = True
        else:
            self._hosts.append(self._hosts[-1].plus(seen))

    def ended(self, tokens: list[int]) -> None:
        """The sequence is over."""
        self._grow(tokens)
        for _ in range(_LAST):
            if not (self.over or self.drafts.empty) and self._own[-1].tokens < self._hosts[-1].tokens:
                self._draft()
                self._judge(last=True)

    def _grow(self, tokens: list[int]) -> None:
        self._text += tokens[len(self._text) :]

    @property
    def goes_first(self) -> bool:
        """Before the host, in the pass that is being prepared."""
        return len(self._hosts) % 2 == 0

    @property
    def enough(self) -> bool:
        """Whether there is nothing more to compare."""
        return self.over or self.drafts.empty or self._stopped or len(self._own) > _MOST

    def _draft(self) -> None:
        self._judge()
        if self._waiting is not None or self._at >= len(self._text):
            return
        assert self._budget is not None
        budget = self.arm.within(replace(self._budget, depth=self._budget.depth - self._at))
        if budget.nodes < 1 or budget.depth < 1:
            return  # nobody would be asked
        found = self._propose(self.drafts, self._text[: self._at], budget)
        if found is None:
            self.over = True
            return
        tree, seconds = found
        self._waiting = tree, self._priced(self.arm.drafter, budget, seconds)
        self._judge()

    def _judge(self, *, last: bool = False) -> None:
        """See what the arm's pass would have emitted, as soon as that is known; `last`: no more will be."""
        if self._waiting is None:
            return
        tree, price = self._waiting
        path, at = [0], self._at
        while at < len(self._text) and (child := tree.child(path[-1], self._text[at])) is not None:
            path.append(child)
            at += 1
        if at == len(self._text) and not last:
            return
        emitted = min(len(path), len(self._text) - self._at)
        self._waiting, self._at = None, self._at + emitted
        self._own.append(self._own[-1].plus(price.tally(price.modelled(len(tree)), emitted)))
        if emitted == len(path):
            self.drafts.observe(self._text[: self._at], tree, path, _NO_LOGITS)

    def verdict(self) -> float | None:
        """How many times as fast as the host the arm would have been; None if nobody knows.

        As far as both have come: where that is inside a pass of one of them, in proportion.
        """
        tokens = min(self._own[-1].tokens, self._hosts[-1].tokens)
        return _cost(self._hosts, tokens) / _cost(self._own, tokens) if tokens else None


def _cost(sums: Sequence[Tally], tokens: float) -> float:
    return float(np.interp(tokens, [each.tokens for each in sums], [each.cost for each in sums]))
