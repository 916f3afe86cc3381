"""A compiled grammar."""

from __future__ import annotations

from dataclasses import dataclass, field

from llguidance import LLMatcher

from services.generation.engine.grammars.structured_outputs import StructuredOutputs


@dataclass(slots=True)
class Grammar:
    """A constraint compiled by `GrammarCompiler`. From any thread.

    Sequences share what its lexer has learned, which changes their speed and nothing else. `eos` is the model's
    end-of-sequence token that stands for the end of the grammar. Grammars of one constraint are equal.
    """

    source: StructuredOutputs
    eos: int
    vocab_size: int
    fresh: LLMatcher = field(repr=False, compare=False)
    failed: bool = field(default=False, compare=False)  # some sequence reached a limit with it

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning, for one thread."""
        return self.fresh.deep_copy()
