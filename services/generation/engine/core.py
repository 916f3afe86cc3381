"""The step loop: continuous batching over token trees, one pass of the target at a time. It has no threads."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, count
from weakref import ref

from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget, Drafter
from services.generation.engine.economics import breakeven
from services.generation.engine.events import Counts, Load, Sink
from services.generation.engine.prefill import Prompt, PromptRows
from services.generation.engine.prefix_disk import PrefixDisk
from services.generation.engine.prefixes import PrefixSharing
from services.generation.engine.request import EngineRequest, InvalidRequest
from services.generation.engine.sequence import Sequence, TokenDecoder
from services.generation.engine.speculation import Speculation
from services.generation.engine.tree import TokenTree, walk
from services.generation.engine.turns import Gains
from services.generation.engine.waiting import WaitingQueue
from services.generation.target.arrays import Float32
from services.generation.target.blocks import blocks_for, slot_of
from services.generation.target.errors import CacheFull
from services.generation.target.program.team import team
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import PassOutput, Target
from services.generation.target.unread import LogitRows

log = logging.getLogger(__name__)

_MOST_ENDED = 256  # deadlines of ended sequences that are kept, besides as many as there are sequences


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part of a pass: the next `chunk` of its pending tokens, or a tree under its one pending token."""

    sequence: Sequence
    chunk: list[int]
    tree: TokenTree | None

    @property
    def rows(self) -> int:
        return len(self.chunk) if self.tree is None else len(self.tree)

    @property
    def completes(self) -> bool:
        """Whether the pass yields logits for this sequence."""
        return self.tree is not None or len(self.chunk) == self.sequence.pending

    @property
    def logits(self) -> int:
        """Rows of logits that the pass yields."""
        return len(self.tree) if self.tree is not None else int(self.completes)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """None of these can change a token; hypothesis tests vary them all."""

    max_sequences: int = 32  # running at the same time
    max_waiting: int = 256  # of one tenant, queued beyond that
    max_rows: int = 256  # rows of a pass: prefill, roots and drafts together
    prefill_rows: int = 256  # of them for prompts while other sequences are decoding
    prefill_seconds: float = 0.05  # that such a pass may take beyond one over one row
    prefix_caching: bool = True  # whether sequences that begin alike share what was computed
    feature_bytes: int = 1 << 27  # of features kept with cached prefixes
    prefix_share: float = 0.25  # of the cache, `BlockPool.resident`


class EngineCore:
    """Runs sequences on one target. All calls from one thread, but for `load`.

    Guarantee: the tokens of a sequence depend on the target, its adapter, its prompt, its sampling parameters, its seed
    and its choice, and on nothing else. A row's logits depend on its own tokens and its adapter only (`Target`).
    Sampling depends on the row, its position and the sequence's earlier tokens (`Sampler`).
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        new_decoder: Callable[[tuple[int, ...]], TokenDecoder],
        cost: PassCost,
        settings: EngineSettings,
        clock: Callable[[], float],
        gains: Gains | None = None,
        disk: PrefixDisk | None = None,
    ) -> None:
        """`gains`: gains of drafts in earlier requests. `disk`: a store of prefixes that outlives this process."""
        self._target = target
        self._adapters = {adapter.cid: index for index, adapter in enumerate(target.adapters)}
        self._methods = ("off", *drafters)
        self._speculation = Speculation(
            drafters, target.config.vocab_size, target.config.hidden_size, clock, gains or Gains()
        )
        self._new_decoder = new_decoder
        self._cost = cost
        self._settings = settings
        self._clock = clock
        self._waiting = WaitingQueue(settings.max_waiting)
        self._prompt_rows = PromptRows(cost)
        self._running: list[Sequence] = []  # by arrival; the last is preempted first
        self._deadlines: list[tuple[float, int, ref[Sequence]]] = []  # a heap
        self._added = count()
        target.blocks.resident = int(settings.prefix_share * target.blocks.total)
        self._sharing = PrefixSharing(
            target, self._speculation, settings.feature_bytes, disk, on=settings.prefix_caching
        )
        self._preemptions = 0
        self.totals = Counts()  # of all sequences since the start

    def use_cost(self, cost: PassCost) -> None:
        """Expect these costs of passes from now on. Called while no sequence runs or waits."""
        self._cost, self._prompt_rows = cost, PromptRows(cost)
        self._speculation.begin_pace()

    @property
    def _most_running(self) -> int:
        return min(self._settings.max_sequences, self._settings.max_rows)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def load(self) -> Load:
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_used=self._target.blocks.used,
            blocks_total=self._target.blocks.total,
            preemptions=self._preemptions,
            reused_tokens=self._sharing.reused_tokens,
        )

    def add(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a sequence. Raises as `add_all` does."""
        self.add_all((request,), sink)

    def add_all(self, requests: Collection[EngineRequest], sink: Sink) -> None:
        """Queue the sequences of one tenant's request, or none of them.

        Raises:
            InvalidRequest: one can never be served; the error names the field.
            EngineFull: too many of the tenant are waiting.
        """
        team().keep_subnormals()  # biases are rounded to float32 here
        for request in requests:
            self._check(request)
        tenant = next(request.tenant for request in requests)
        free = 0 if self._waiting else self._most_running - len(self._running)
        self._waiting.check(tenant, len(requests), free)
        sequences = [self._sequence(request, sink) for request in requests]
        for sequence in sequences:
            self._waiting.add(sequence)
            if sequence.request.deadline < math.inf:
                heappush(self._deadlines, (sequence.request.deadline, next(self._added), ref(sequence)))
        if len(self._deadlines) > _MOST_ENDED + 2 * (len(self._running) + len(self._waiting)):
            self._deadlines = [each for each in self._deadlines if (found := each[-1]()) and not found.finished]
            heapify(self._deadlines)

    def _sequence(self, request: EngineRequest, sink: Sink) -> Sequence:
        decoder, ends = self._new_decoder(request.prompt), self._target.config.eos_token_ids
        return Sequence(request, sink, decoder, ends, self._clock(), self.totals)

    def _check(self, request: EngineRequest) -> None:
        config = self._target.config
        request.check(config.vocab_size, config.context_length)
        if blocks_for(len(request.prompt) + request.sampling.max_tokens) > self._target.blocks.total:
            raise InvalidRequest("max_tokens", "prompt and output together exceed the key/value cache of this server")
        for method in (request.method, *request.next_methods):
            if method not in self._methods or (method == "off" and request.next_methods):
                raise InvalidRequest("method", f"{method!r} is not loaded; loaded: {', '.join(self._methods)}")
        if request.adapter is not None and request.adapter not in self._adapters:
            raise InvalidRequest("adapter", f"{request.adapter!r} is not loaded; loaded: {list(self._adapters)}")

    def cancel(self, request_id: str) -> None:
        """End all choices of a request at the next step; unknown ids are ignored, the request may just have ended."""
        for sequence in (*self._running, *self._waiting):
            if sequence.request.request_id == request_id:
                self._cancel(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        """End it at the next step, or now if it only waits."""
        sequence.cancel()
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            self._end(sequence)

    def step(self) -> None:
        """One pass: admit, share, plan, compute, walk, stream, retire."""
        team().keep_subnormals()
        self._expire()
        self.retire()
        self._admit()
        started = self._clock()
        plan = self._plan(self._sharing.share(self._running))
        if plan:
            keys = sum(work.sequence.cached for work in plan)
            computed = self._forward(plan)
            self._learn_pace(plan, keys, self._clock() - started - self._speculation.drafting)
            logits, features = _parts([work.logits for work in plan]), _parts([work.rows for work in plan])
            for work, wanted, rows in zip(plan, logits, features, strict=True):
                self._advance(work, computed.rows[wanted], computed.features[rows])
        else:
            self._sharing.wait()
        self.retire()

    def _learn_pace(self, plan: list[Work], keys: int, seconds: float) -> None:
        """Compare a pass with the cost model, unless it computed prompts, which the model does not expect.

        `keys`: cached tokens of all sequences before the pass.
        """
        if any(work.tree is None for work in plan):
            self._speculation.pace.skipped()
            return
        plain, rows = self._cost.of(len(plan), keys, len(plan)), sum(work.rows for work in plan)
        self._speculation.pace.took(seconds, plain, self._cost.of(rows, keys, len(plan)) - plain)

    def _expire(self) -> None:
        """Cancel sequences past their deadlines: a caller may be gone before its cancellation arrives."""
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] < now:
            sequence = heappop(self._deadlines)[-1]()
            if sequence is not None and not sequence.finished:
                self._cancel(sequence)

    def _admit(self) -> None:
        while len(self._running) < self._most_running and self._waiting:
            sequence = self._waiting.next(self._running)
            self._speculation.begin(sequence)
            if self._running and self._sharing.room_for(sequence) > self._target.blocks.free:
                return
            self._waiting.take(sequence)
            self._running.append(sequence)
            sequence.tracker.admitted(self._clock())
            self._sharing.enter(sequence)

    def _plan(self, waiting: set[Sequence]) -> list[Work]:
        """Roots first, then prompts of sequences that wait for no other, then drafts with the remaining rows."""
        roots = [sequence for sequence in self._running if sequence.pending == 1]
        rows_left = self._settings.max_rows - len(roots)
        plan: list[Work] = []
        prefilling = [sequence for sequence in self._running if sequence.pending > 1 and sequence not in waiting]
        for sequence, rows in zip(prefilling, self._prefill_rows(prefilling, rows_left, len(roots)), strict=True):
            chunk = sequence.tokens[sequence.cached : sequence.cached + rows]
            if chunk and sequence in self._running and self._reserve(sequence, len(chunk)):
                plan.append(Work(sequence, chunk, None))
        prefill_rows = sum(work.rows for work in plan)
        rows_left -= prefill_rows
        trees = self._speculation.propose(self._budgets(roots, rows_left, prefill_rows))
        for sequence in roots:
            if sequence not in self._running:
                continue
            tree = trees[sequence] if sequence in trees else TokenTree.root(sequence.tokens[-1])
            if len(tree) > 1 and not self._reserve(sequence, len(tree), preempt=False):
                tree = TokenTree.root(sequence.tokens[-1])
            if len(tree) > 1 or self._reserve(sequence, 1):
                plan.append(Work(sequence, [], tree))
        return [work for work in plan if work.sequence in self._running]

    def _prefill_rows(self, sequences: list[Sequence], rows_left: int, decoding: int) -> list[int]:
        counter = self._waiting.counter_of
        prompts = {s: Prompt(s.pending, s.cached, counter(s.request.tenant), s.request.tenant) for s in sequences}
        most = min(rows_left, self._settings.prefill_rows) if decoding else rows_left
        return self._prompt_rows.of(prompts, most=most, seconds=self._settings.prefill_seconds, decoding=decoding)

    def _budgets(self, roots: list[Sequence], rows_left: int, prefill_rows: int) -> dict[Sequence, Budget]:
        """The budget of each sequence that drafts: an equal share of the rows, no deeper than it may still emit."""
        drafting = [s for s in roots if s in self._running and self._speculation.drafts_for(s, len(roots))]
        if not drafting or self._speculation.pace.due:
            return {}
        pass_cost = self._cost.of_drafts(
            rows_left // len(drafting), drafting=len(drafting), sequences=len(roots),
            prefill_rows=prefill_rows, keys=sum(sequence.cached for sequence in roots),
        )  # fmt: skip
        pass_cost = self._speculation.pace.of(pass_cost)
        least = breakeven(pass_cost)
        if least >= 1.0:  # not even a certain token would pay, and looking for one costs time
            return {}
        budgets = {}
        for sequence in drafting:
            depth = sequence.remaining - 1
            if sequence.request.k is not None:
                depth = min(depth, sequence.request.k)
            budgets[sequence] = Budget(depth, pass_cost, least)
        return budgets

    def _reserve(self, sequence: Sequence, rows: int, preempt: bool = True) -> bool:
        """Give `sequence` blocks for `rows` more rows, if need be by preempting younger sequences; False if it lost."""
        while True:
            try:
                self._target.blocks.extend(sequence.table, sequence.cached + rows)
                return True
            except CacheFull:
                if not preempt:
                    return False
                victim = self._running.pop()
                self._sharing.leave(victim)
                self._target.blocks.release(victim.table)
                victim.preempt()
                victim.tracker.preempted()
                self._speculation.preempted(victim)
                self._preemptions += 1
                self._waiting.put_back(victim)
                if victim is sequence:
                    return False

    def _forward(self, plan: list[Work]) -> PassOutput:
        builder = RowsBuilder()
        for work in plan:
            sequence, tree = work.sequence, work.tree
            adapter = -1 if sequence.request.adapter is None else self._adapters[sequence.request.adapter]
            if tree is None:
                builder.add_chunk(sequence.table, sequence.cached, work.chunk, work.completes, adapter)
            else:
                builder.add_tree(sequence.table, sequence.cached, tree.tokens, tree.parents, adapter)
        return self._target.forward(builder.build(), self._speculation.feature_layers)

    def _advance(self, work: Work, logits: LogitRows, features: Float32) -> None:
        """Commit what the pass computed for a sequence, and let its drafter see it."""
        sequence, tree, start = work.sequence, work.tree, work.sequence.cached
        if not work.completes or sequence.finished:
            sequence.cached += len(work.chunk)
            self._waiting.prefilled(sequence, len(work.chunk))
            self._read(sequence, start, features)
            return
        if tree is None:
            sequence.cached += len(work.chunk) - 1
            self._waiting.prefilled(sequence, len(work.chunk))
            tree = TokenTree.root(work.chunk[-1])
        before = sequence.output_length
        path = self._walked(sequence, tree, logits)
        self._keep(sequence, path)
        if emitted := path[: sequence.output_length - before]:  # not the node of a row that allows no token
            sequence.tracker.walked(self._speculation.method(sequence), tree, emitted, self._clock())
            self._waiting.emitted(sequence, len(emitted))
        sequence.stream()
        if not sequence.finished:
            self._read(sequence, start, features if work.tree is None else features[path])
        self._speculation.observe(sequence, tree, path, logits)

    def _read(self, sequence: Sequence, start: int, features: Float32) -> None:
        """Let the drafter and the prefix cache keep the features and blocks of tokens from `start` on."""
        self._speculation.read(sequence, start, features)
        self._sharing.computed(sequence, features)

    @staticmethod
    def _walked(sequence: Sequence, tree: TokenTree, logits: LogitRows) -> list[int]:
        """The accepted path. An error in sampling or decoding ends its own sequence and no other."""
        try:
            return walk(tree, lambda node: sequence.emit(logits[node]))
        except BaseException as error:  # a panic in the grammars' library is not an Exception
            log.exception("request %s ends with an error", sequence.request.request_id)
            sequence.fail(f"sampling failed: {error!r}")
            return [0]

    def _keep(self, sequence: Sequence, path: list[int]) -> None:
        """Make the accepted path part of the sequence: its keys and values go to the slots of their positions."""
        moved = [(node, place) for place, node in enumerate(path) if node != place]
        if moved:
            self._target.move(
                [slot_of(sequence.table, sequence.cached + node) for node, _ in moved],
                [slot_of(sequence.table, sequence.cached + place) for _, place in moved],
            )
        sequence.cached += len(path)

    def abandon(self, error: str | None) -> None:
        """End everything: as cancelled, or with `error`."""
        for sequence in (*self._running, *self._waiting):
            if error is not None and not sequence.finished:
                sequence.fail(error)
            self._cancel(sequence)
        self.retire()

    def release_memory(self) -> None:
        """Release what the next requests can allocate again; for an idle engine."""
        self._target.release_memory()

    def retire(self) -> None:
        """Remove ended sequences, free their cache, send their last events."""
        for sequence in [s for s in self._running if s.finished]:
            self._running.remove(sequence)
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self._sharing.leave(sequence)
        self._prompt_rows.forget(sequence)
        self._target.blocks.release(sequence.table)
        sequence.tracker.gains = self._speculation.end(sequence)
        sequence.finish(self._clock())


def _parts(counts: list[int]) -> list[slice]:
    """The first `counts[0]` rows, the next `counts[1]`, and so on."""
    return [slice(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]
