"""One sequence: which method drafts for its next pass, and what its passes cost and brought."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.drafts import Drafts
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.shadow import Shadow
from services.generation.engine.drafter import Ask, Budget
from services.generation.engine.tree import TokenTree

Float32 = NDArray[np.float32]


class AutoDraft:
    """`FeatureDraft` over the drafts of several drafters, one of which is chosen for each pass."""

    def __init__(
        self, bandit: Bandit, price: Callable[[Budget, float], Price], drafts: Drafts, shadow: Shadow | None = None
    ) -> None:
        """`price` is that of a pass in which the sequence may spend so much, and whose draft took so many seconds."""
        self.drafts = drafts
        self.spent: float | None = None  # see `Paced`
        self.shadow = shadow
        self._bandit, self._priced = bandit, price
        self._text: list[int] | None = None  # of a sequence that has ended
        self._budget: Budget | None = None  # of the pass in flight; None where no tree was asked for
        self._drafting = 0.0  # seconds that its tree took

    @property
    def drafting(self) -> str:
        """The method that was asked last."""
        return self._bandit.arm.method

    def choose(self, budget: Budget) -> Arm:
        """The arm for the next pass, in which the sequence may spend that."""
        self._budget, self._drafting = budget, 0.0
        return self._bandit.next()

    def drafted(self, seconds: float, *, counts: bool) -> None:
        """The tree took so long, this sequence's share. The first one that a drafter ever makes does not count: pages
        come from disk and code is compiled.
        """
        self._drafting = seconds
        if not counts:
            self._budget = None

    def follow(self, ask: Ask, *, first: bool, alone: bool) -> None:
        """Its tree is about to be made, or is made: have another arm draft, to compare them. Either goes first in every
        other pass, and finds the caches cold. Only where no other sequence is drafted for, which would share the time
        of one and not of the other.
        """
        shadow = self.shadow
        if shadow is None or shadow.goes_first != first:
            return
        if alone and self._bandit.arm == shadow.host and not shadow.enough:
            shadow.follow(ask.tokens, ask.budget)
        if not alone or self._bandit.arm != shadow.host or shadow.enough:
            self._compare()

    def budget(self, ask: Ask) -> Budget:
        """What the chosen arm may spend."""
        return self._bandit.arm.within(ask.budget)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        self.drafts.read(tokens, start, features, self._bandit.arm.drafter)
        if self.shadow is not None:
            self.shadow.read(tokens, start, features)

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        self.drafts.observe(tokens, tree, path, logits)
        self._saw(tree, path)

    def ended(self, tokens: list[int], tree: TokenTree, path: list[int]) -> None:
        self._saw(tree, path)
        self._text = tokens

    def _saw(self, tree: TokenTree, path: list[int]) -> None:
        budget, self._budget = self._budget, None
        seen = self.spent = None
        if budget is not None:
            price = self._priced(budget, self._drafting)
            self.spent = price.modelled(len(tree))
            seen = price.tally(self.spent, len(path))
            self._bandit.saw(seen)
        if self.shadow is not None:
            self.shadow.beside(seen)

    def release(self) -> None:
        """A shadow's last drafts are made now: the pass is done, and nobody waits for its tokens."""
        self._budget = None
        self.drafts.release()
        if self.shadow is not None and self._text is not None:
            self.shadow.ended(self._text)
            self._compare()
        self._let_go()
        self._bandit.tell()

    def _compare(self) -> None:
        """Have the record know what the shadow saw, and let it go."""
        if self.shadow is not None and (verdict := self.shadow.verdict()) is not None:
            self._bandit.compared(self.shadow.arm, self.shadow.host, verdict)
        self._let_go()

    def _let_go(self) -> None:
        shadow, self.shadow = self.shadow, None
        if shadow is not None:
            shadow.over = True
            shadow.drafts.release()
