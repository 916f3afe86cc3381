"""From a constraint to a compiled grammar, within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLTokenizer

from services.generation.engine.engine_error import InvalidRequest
from services.generation.engine.grammars.grammar import Grammar
from services.generation.engine.grammars.grammar_text import check_size, plain
from services.generation.engine.grammars.structured_outputs import StructuredOutputs
from services.generation.engine.grammars.trial import Trial, matcher_of, tokenizer_of

KEPT = 64  # grammars


class GrammarCompiler:
    """For one tokenizer. From any thread; a caller waits while its grammar is compiled, the engine's thread never."""

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`tokenizer` gives tokenizer.json; it is asked for with the first grammar, which takes about a second."""
        self._source, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._compiling, self._keeping = threading.Lock(), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "grammars")  # of its own: who waits for it takes no thread from others

    async def compiled(self, source: StructuredOutputs) -> Grammar:
        """`compile` on a thread, unless it is kept from before. Raises InvalidRequest."""
        if (kept := self._find(source)) is not None:
            return kept
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, source)

    def compile(self, source: StructuredOutputs) -> Grammar:
        """The compiled grammar, perhaps kept from before. Raises InvalidRequest naming the field and what is wrong."""
        if (kept := self._find(source)) is not None:
            return kept
        check_size(source)
        with self._compiling:  # one at a time: a bad grammar costs its time once
            if (kept := self._find(source)) is None:
                kept = self._compile(source)
                self._keep(kept)
            return kept

    def _find(self, source: StructuredOutputs) -> Grammar | None:
        """One that has failed is compiled anew: the states of its lexer may have reached a limit."""
        with self._keeping:
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
            return None if kept is None or kept.failed else kept

    def _keep(self, grammar: Grammar) -> None:
        with self._keeping:
            self._kept[grammar.source] = grammar
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _compile(self, source: StructuredOutputs) -> Grammar:
        tokenizer = self._loaded()
        self._trial.run(source)
        return Grammar(source, tokenizer.eos_token, self._vocab_size, matcher_of(tokenizer, source))

    def _loaded(self) -> LLTokenizer:
        if not self._eos_token_ids:
            raise InvalidRequest("structured_outputs", "this model has no end-of-sequence token to end an output with")
        if self._tokenizer is None:
            document = self._source()
            try:
                self._tokenizer = tokenizer_of(document, self._vocab_size, self._eos_token_ids[0])
            except Exception as error:  # the library raises several kinds
                message = f"this model's tokenizer cannot be used with grammars: {plain(str(error))}"
                raise InvalidRequest("structured_outputs", message) from error
            self._trial = Trial(document, self._vocab_size, self._eos_token_ids[0])
        return self._tokenizer
