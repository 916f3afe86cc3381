"""One sequence: which method drafts for its next pass, and what its passes cost and brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.drafts import Drafts
from services.generation.drafting.auto.pace import Step, Timed
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.shadow import Shadow
from services.generation.engine.drafter import Ask, Budget
from services.generation.engine.tree import TokenTree

Float32 = NDArray[np.float32]


class Drafted(NamedTuple):
    """A draft that counts: what it might spend, the step, and the seconds that it took, this sequence's share."""

    budget: Budget
    step: Step
    seconds: float


class AutoDraft:
    """`FeatureDraft` over the drafts of several drafters, one of which is chosen for each pass.

    What passes cost and brought is written down as they come, and read once a turn: beside a small model, whatever is
    done between two passes finds the processor's caches full of other things, and takes its time.
    """

    def __init__(
        self,
        bandit: Bandit,
        price: Callable[[str, Budget, float], Price],
        drafts: Drafts,
        timed: Callable[[str, Sequence[Timed]], None],
        feature_layers: tuple[int, ...] = (),
        shadow: Shadow | None = None,
    ) -> None:
        """`price` is that of a pass for which a drafter may spend so much, and whose draft took so many seconds.
        `timed` is told of passes in a row with a drafter.
        """
        self.feature_layers = feature_layers
        self.drafts, self.shadow = drafts, shadow
        self._bandit, self._priced, self._timed = bandit, price, timed
        self._text: list[int] | None = None  # of a sequence that has ended
        self.over = False  # or interrupted
        self._shadowed = False  # in the pass in flight
        self.tree = TokenTree.root(0)  # of the last pass that one was asked for
        self._drafted: Drafted | None = None  # the pass in flight; None where nobody counts it
        self._passes: list[tuple[Drafted, int, int]] = []  # of this turn, with rows and tokens emitted

    @property
    def drafting(self) -> str:
        """The method that was asked last."""
        return self._bandit.arm.method

    def choose(self) -> Arm:
        """The arm for the next pass."""
        self.over = False
        if not self._bandit.left:
            self._settle()
        return self._bandit.next()

    def drafted(self, tree: TokenTree, counted: Drafted | None) -> None:
        """This is the tree for the next pass."""
        self.tree, self._drafted = tree, counted

    def follow(self, ask: Ask, *, first: bool, alone: bool) -> None:
        """Its tree is about to be made, or is made: have another arm draft, to compare them. Either goes first in every
        other pass, and finds the caches cold. Only where no other sequence is drafted for, which would share the time
        of one and not of the other.
        """
        shadow = self.shadow
        self._shadowed = self._shadowed or shadow is not None
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
        drafted, shadowed = self._drafted, self._shadowed
        self._drafted, self._shadowed = None, False
        if drafted is not None:
            self._passes.append((drafted, len(tree), len(path)))
        if drafted is None or shadowed:  # the next pass does not follow at once, or the shadow's took time, too
            self._settle()
        if drafted is None and self.shadow is not None:
            self.shadow.beside(None)

    def _settle(self) -> None:
        """Read what was written down."""
        timed, drafter = [], self._bandit.arm.drafter  # that all of them had
        for drafted, rows, emitted in self._passes:
            price = self._priced(drafter, drafted.budget, drafted.seconds)
            modelled = price.modelled(rows)
            seen = price.tally(modelled, emitted)
            self._bandit.saw(seen)
            timed.append(Timed(drafted.step, modelled, drafted.seconds))
            if self.shadow is not None:
                self.shadow.beside(seen)
        self._passes.clear()
        self._timed(drafter, timed)

    def release(self) -> None:
        """A shadow's last drafts are made now: the pass is done, and nobody waits for its tokens."""
        self._drafted, self.over = None, True
        self.drafts.release()
        self._settle()
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
