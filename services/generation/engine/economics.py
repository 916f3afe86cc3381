"""The one judge of whether a draft pays: the seconds that it saves, by measured costs and measured acceptance.

A pass over a tree of draft tokens emits more tokens and takes longer. A token is worth its price, the seconds in which
the best known alternative emits one. Growth and pruning of trees, the length of chains, look-ahead windows, the choice
among methods and the decision to draft at all ask the functions of this module.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.generation.engine.cost import EXPLORE_EVERY, DraftPace, StepCost
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float64

MEMORY, SHARED_MEMORY = 0.99, 0.998
"""Weight that an observation leaves to earlier ones of its own request, and of all requests: 100 and 500 count. A rate
follows the text."""
EVIDENCE = 5.0
"""Observations that a prior weighs: the shared rate against a request's own, and the assumed one against the shared."""
TEMPERATURE_BANDS = (0.0, 0.4, 0.85)
"""Temperatures up to which observations are counted together: acceptance falls as the temperature rises."""


class Costs(NamedTuple):
    """Seconds of a pass by draft rows, and of the model that drafts: once for a draft, and for each of its steps, a
    level of the tree each.
    """

    pass_cost: Float64  # [draft rows + 1] this sequence's share of the pass
    step: float = 0.0  # this sequence's share
    step_row: float = 0.0  # of a further row in a step
    draft: float = 0.0  # before the first step


class Economics(NamedTuple):
    """Measured costs and measured acceptance of one sequence's draft in one pass."""

    costs: Costs
    rates: Float64  # [kinds] chance that a token of a kind is accepted (`drafting.acceptance`)


class Pass(NamedTuple):
    """A possible pass: its draft tokens, the tokens that it is expected to emit, and its seconds with drafting."""

    drafted: int
    emitted: float
    seconds: float


@relaxed
def seconds_saved(emitted: float, seconds: float, price: float) -> float:
    """The value of a pass, or of a change to it: `emitted` tokens at a `price` of seconds each, less its time."""
    return emitted * price - seconds


@relaxed
def best_pass(chances: Float64, steps: int, costs: Costs) -> Pass:
    """The pass over the first draft tokens that emits most a second. `chances` [tokens] that all of a token's path is
    accepted, falling; a model has taken `steps`.

    Every number of tokens is tried: if the second row costs more than later ones, two may pay although one does not.
    """
    pass_cost = costs.pass_cost
    drafting = steps * costs.step + (costs.draft if steps else 0.0)
    best, emitted = Pass(0, 1.0, pass_cost[0] + drafting), 1.0
    for drafted in range(1, min(len(chances), len(pass_cost) - 1) + 1):
        emitted += chances[drafted - 1]
        seconds = pass_cost[drafted] + drafting
        if seconds_saved(emitted, seconds, best.seconds / best.emitted) > 0.0:
            best = Pass(drafted, emitted, seconds)
    return best


@relaxed
def best_depth(rates: Float64, chance: float, before: Pass, costs: Costs) -> int:
    """The length of the chain that saves most in place of the pass `before`, 0 if none saves any.

    `rates` [tokens]: how often a token is accepted after those above it. `chance` that the pass before does not emit
    the chain's tokens itself.
    """
    pass_cost, price = costs.pass_cost, before.seconds / before.emitted
    best, most, accepted, emitted = 0, 0.0, chance, 0.0
    for depth in range(1, min(len(rates), len(pass_cost) - 1) + 1):
        accepted *= rates[depth - 1]
        emitted += accepted
        drafting = costs.draft + depth * (costs.step + costs.step_row)
        saved = seconds_saved(emitted, pass_cost[depth] - pass_cost[0] + drafting, price)
        if saved > most:
            best, most = depth, saved
    return best


@relaxed
def nodes_to_expand(chances: Float64, first_choice: float, before: Pass, costs: Costs) -> int:
    """How many of a level's likeliest nodes a model goes on from; 0 if its next step does not pay.

    `chances` [nodes], falling. `first_choice`: how often a model's first choice is accepted there. Each node has to
    save its row of the model and of the pass, and all together the step.
    """
    price, row = before.seconds / before.emitted, costs.step_row + next_row(costs.pass_cost, before.drafted)
    saved, count = 0.0, 0
    while count < len(chances):
        more = seconds_saved(chances[count] * first_choice, row, price)
        if more <= 0.0:
            break
        saved += more
        count += 1
    return count if saved > costs.step else 0


@relaxed
def next_row(pass_cost: Float64, taken: int) -> float:
    """The lowest average cost of a further row after `taken` draft rows; after the last row, the cost of that one."""
    least, before = np.inf, min(taken, len(pass_cost) - 2)
    for rows in range(before + 1, len(pass_cost)):
        least = min(least, (pass_cost[rows] - pass_cost[before]) / (rows - before))
    return least


@relaxed
def breakeven(pass_cost: Float64) -> float:
    """Chance of acceptance below which no number of draft tokens saves time, by [rows] costs: the least that a row
    costs among any number of them, beside the cost of a token without drafts.
    """
    return min(1.0, next_row(pass_cost, 0) / pass_cost[0]) if len(pass_cost) > 1 else 1.0


class DraftCost:
    """Seconds of a model's drafts: as measured at start, and as recent drafts compare with that."""

    def __init__(self, once: StepCost, step: StepCost) -> None:
        """`once` is the cost of a draft at any depth, `step` of each of its steps, by sequences that draft together."""
        self.once, self.step, self.pace = once, step, DraftPace()
        self._refused = 0

    def of(self, pass_cost: Float64, together: int) -> Costs:
        """The costs of one of `together` sequences in a pass."""
        once, step, pace = self.once, self.step, self.pace
        return Costs(
            pass_cost, pace.step * step.fixed / together, pace.step * step.row,
            pace.once * (once.fixed / together + once.row),
        )  # fmt: skip

    def took(self, seconds: float, sequences: int, steps: int) -> None:
        """Learn from a draft for some sequences, the deepest in so many steps."""
        once, step = self.once, self.step
        self.pace.took(seconds, once.fixed + sequences * once.row, steps * (step.fixed + sequences * step.row))

    def stepped(self, seconds: float, rows: int) -> None:
        """Learn from one step of a model, over `rows`."""
        self.pace.took(seconds, 0.0, self.step.fixed + rows * self.step.row)

    def refused(self) -> bool:
        """Count a draft that does not seem to pay. Returns whether to make it nevertheless: only a draft shows that
        drafts have become cheaper or better.
        """
        self._refused += 1
        return self._refused % EXPLORE_EVERY == 0
