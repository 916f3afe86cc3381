"""Verification of a recorded output on a target: by prefill, or by decoding with speculation off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams, ThoughtSyntax
from services.generation.engine.sequence import TokenDecoder
from services.generation.engine.text.grammar_compiler import REPLAY_SECONDS, GrammarCompiler
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.cpu import load_target
from services.generation.target.identity import one_version
from services.generation.target.probe import KeptProbes, NumericsProfile, measure_profile
from services.generation.target.program.packed_files import PackedFolder
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.target.unread import LogitRows

ROWS = 128
"""Default rows of a pass: enough that weights are rarely read, and 25 MB of logits for 50,000 tokens."""
_RECORD = "record"  # name of the only drafter
_CHEAP_ROWS = PassCost.line(fixed=1.0, row=1e-6)  # every recorded token is worth its row


@dataclass(frozen=True, slots=True)
class Record:
    """A request as it was served, and the output tokens that were recorded for it."""

    request: EngineRequest
    output: tuple[int, ...]


class RecordDrafter(Drafter):
    """A drafter that proposes the recorded output of one request, whether or not the target accepts it."""

    negligible_cost = True

    def __init__(self, output: Sequence[int]) -> None:
        self._output = tuple(output)
        self.draft: RecordDraft | None = None

    @property
    def left(self) -> bool:
        """Whether the target has sampled another token than the recorded token, or a token after the last."""
        return self.draft is not None and self.draft.left

    def begin(self, request: EngineRequest) -> RecordDraft:
        self.draft = RecordDraft(len(request.prompt), self._output)
        return self.draft


class RecordDraft(Draft):
    """A chain of the next recorded tokens; empty if the target has left the record."""

    def __init__(self, prompt_length: int, output: tuple[int, ...]) -> None:
        self._prompt_length, self._output = prompt_length, output
        self.left = False

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        done = len(tokens) - self._prompt_length
        return TokenTree.chain((tokens[-1], *self._output[done : done + budget.nodes]))

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        emitted = tuple(tokens[self._prompt_length :])
        self.left = emitted != self._output[: len(emitted)]


class Stopped(Exception):
    """The verification was stopped without a result."""


class Verifier:
    """Verifies one record at a time, on the calling thread. Keeps nothing between records."""

    def __init__(
        self,
        target: Target,
        new_decoder: Callable[[tuple[int, ...]], TokenDecoder],
        profile: NumericsProfile,
        rows: int = ROWS,
        stopping: Callable[[], bool] = lambda: False,
        grammars: GrammarCompiler | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`rows`: most rows of a pass; `stopping` is called after each pass; `grammars` compiles constraints."""
        self.target, self.profile, self._grammars, self._tokenizer = target, profile, grammars, tokenizer
        self._new_decoder = new_decoder
        self._settings = EngineSettings(max_sequences=1, max_rows=rows, prefix_caching=False)
        self._stopping = stopping

    @classmethod
    def load(
        cls,
        model: Path,
        *,
        adapters: Mapping[str, Path] | None = None,
        context_length: int | None = None,
        cache_dtype: str | None = None,
        arithmetic: str | None = None,
        threads: int | None = None,
        packed: PackedFolder | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Verifier:
        """Load and probe a model on the CPU, which takes seconds; options as in `load_target`.

        Raises TargetError.
        """
        with one_version(model):
            target = load_target(
                model, adapters=adapters, context_length=context_length, cache_dtype=cache_dtype, arithmetic=arithmetic,
                threads=threads, packed=packed,
            )  # fmt: skip
            tokenizer = Tokenizer(model)
        grammars = GrammarCompiler(
            tokenizer.fast.to_str, target.config.vocab_size, target.config.eos_token_ids, seconds=REPLAY_SECONDS
        )
        profile = measure_profile(target, KeptProbes())
        target.release_memory()
        return cls(target, tokenizer.stream, profile, stopping=stopping, grammars=grammars, tokenizer=tokenizer)

    def is_syntax(self, stated: ThoughtSyntax, prompt: tuple[int, ...]) -> bool:
        """Whether an answer of this model to this prompt may have thoughts of the `stated` syntax."""
        return self._tokenizer is not None and self._tokenizer.is_syntax(stated, prompt)

    def release_memory(self) -> None:
        """Release what the next replay can allocate again."""
        self.target.release_memory()

    def prefill(self, record: Record) -> Outcome:
        """The outcome along the record, in passes of many rows. It ends with the first token that differs from the
        record, or with tokens after it that a grammar has put into the same pass; `cancelled` unless the last token
        ends the sequence by itself.

        Meaningful only if the profile has passed: otherwise rows may depend on other rows of the pass.
        Raises InvalidRequest for a request that this target cannot run, EngineBusy if a constraint takes too long to
        compile, Stopped.
        """
        drafter = RecordDrafter(record.output)
        core = self._core({_RECORD: drafter})
        request = replace(record.request, method=_RECORD, next_methods=(), k=None)
        return self._run(core, request, lambda: drafter.left)

    def decode(self, request: EngineRequest) -> Outcome:
        """The outcome with speculation off, one row a token. Raises as `prefill` does."""
        return self._run(self._core({}), replace(request, method="off", next_methods=()), lambda: False)

    def text(self, prompt: tuple[int, ...], output: Sequence[int]) -> str:
        """The text of an output, with the text of its special tokens left out."""
        decoder = self._new_decoder(prompt)
        return "".join(map(decoder.feed, output)) + decoder.flush()

    def logits(self, record: Record) -> Iterator[Float32]:
        """The raw logits [vocab_size] of each token of the output, whatever the target itself would have chosen: one
        pass over prompt and output. Raises InvalidRequest, Stopped.
        """
        request, target = record.request, self.target
        asked = replace(request, prompt=(*request.prompt, *record.output), sampling=SamplingParams(max_tokens=1))
        asked.check(target.config.vocab_size, target.config.context_length + 1)
        adapters = {adapter.cid: index for index, adapter in enumerate(target.adapters)}
        if request.adapter is not None and request.adapter not in adapters:
            raise InvalidRequest("adapter", f"{request.adapter} is not loaded")
        adapter = -1 if request.adapter is None else adapters[request.adapter]
        tokens, first = (*request.prompt, *record.output[:-1]), len(request.prompt) - 1
        with target.blocks.lent(len(tokens)) as table:
            for start, end in _spans(first, len(tokens), self._settings.max_rows):
                rows, part = RowsBuilder(), tokens[start:end]
                if start < first:
                    rows.add_chunk(table, start, part, want_last=False, adapter=adapter)
                else:
                    rows.add_tree(table, start, part, range(-1, len(part) - 1), adapter)
                yield from target.forward(rows.build()).logits
                if self._stopping():
                    raise Stopped

    def _core(self, drafters: Mapping[str, RecordDrafter]) -> EngineCore:
        return EngineCore(self.target, drafters, self._new_decoder, _CHEAP_ROWS, self._settings, time.perf_counter)

    def _compiled(self, request: EngineRequest) -> EngineRequest:
        source = request.sampling.structured_outputs
        if source is None or self._grammars is None:
            return request
        return replace(request, grammar=self._grammars.compile(source))

    def _run(self, core: EngineCore, request: EngineRequest, is_decided: Callable[[], bool]) -> Outcome:
        events: list[Event] = []
        core.add(self._compiled(request), events.append)
        while not core.idle:
            core.step()
            if is_decided():
                core.abandon(None)
            if not core.idle and self._stopping():
                core.abandon(None)
                raise Stopped
        (finished,) = (event for event in events if isinstance(event, Finished))
        return finished.outcome


def _spans(first: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Positions [0, end) in spans of at most `most`, one of which begins at `first`."""
    for start, stop in ((0, first), (first, end)):
        for at in range(start, stop, most):
            yield at, min(at + most, stop)
