"""The mask that a grammar lays over a row of logits."""

from __future__ import annotations

import numpy as np

from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.grammars.grammar import Grammar
from services.generation.engine.sampling.mask import UInt32, forbid
from services.generation.engine.sampling.processor import Float32, LogitsMask


class GrammarMask(LogitsMask):
    """-inf at every token that the grammar does not allow next (docs/numerics.md, Grammars).

    Its matcher is told the accepted tokens and asked for masks, in the same order whatever was drafted.
    """

    idle = False

    def __init__(self, grammar: Grammar, ends: frozenset[int]) -> None:
        """`ends`: the tokens that end the sequence, allowed exactly where the grammar may end."""
        self._grammar, self._matcher, self._ends = grammar, grammar.matcher(), ends
        self._mask = np.zeros(-(-grammar.vocab_size // 32), np.uint32)

    def apply(self, logits: Float32) -> None:
        forbid(logits, self.allowed())

    def allowed(self) -> UInt32:
        """[ceil(vocab_size / 32)] a bit for each token, the lowest first. Raises UnusableLogits where it has failed."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            self._grammar.failed = True
            raise UnusableLogits(f"the grammar leaves no token to choose: {self._matcher.get_error()}")
        may_end = self._matcher.is_accepting()
        for token in (self._grammar.eos, *self._ends):
            bit = np.uint32(1 << (token & 31))
            self._mask[token >> 5] = self._mask[token >> 5] & ~bit | (bit if may_end and token in self._ends else 0)
        return self._mask

    def allows(self, token: int) -> bool | None:
        """The token's bit of `allowed`, without the others: a tenth of the time. None where bytes are forced: there the
        mask holds less than the grammar allows.
        """
        if token in self._ends:
            return self._matcher.is_accepting()
        if token == self._grammar.eos or self._matcher.compute_ff_bytes():
            return None
        return self._matcher.validate_tokens([token]) == 1

    def accept(self, token: int) -> None:
        if token not in self._ends:
            self._matcher.consume_token(token)
