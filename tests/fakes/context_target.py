"""A target without a model whose rows depend on all that they see, through a cache as a real one has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.generation.target.adapters import AdapterIdentity
from services.generation.target.arrays import Float32, Int32, Int64, UInt64
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.table_target import TableTarget

_ROWS = 997  # of logits to choose among


class ContextTarget:
    """Logits and features of a row follow from the tokens in the slots that it sees, their positions and its adapter.

    A slot holds what was stored there last: a sequence that reads another one's slots, or its own before they were
    written, gets other tokens. `rows` counts what was computed.
    """

    def __init__(
        self, *, vocab: int = 64, context: int = 4096, blocks: int | None = None, adapters: tuple[str, ...] = ()
    ) -> None:
        rng = np.random.default_rng(0)
        self._logits = rng.standard_normal((_ROWS, vocab)).astype(np.float32)
        self._weights = rng.integers(1, 2**63, context + 1024, np.uint64)
        bare = TableTarget(self._logits[:vocab, :vocab], context=context)
        self.config, self.numerics, self.threads = replace(bare.config, layers=4), bare.numerics, bare.threads
        self.base_cid, self.tokenizer_cid = bare.base_cid, bare.tokenizer_cid
        self.adapters = tuple(AdapterIdentity(name, name) for name in adapters)
        self.blocks = BlockPool(blocks or 4 * context // BLOCK)
        self._slots = np.zeros(self.blocks.total * BLOCK, np.uint64)
        self.rows = self.moves = 0

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        self.rows += len(rows)
        self._slots[rows.slots] = _stored(rows.tokens, rows.positions)
        adapters = np.full(len(rows), -1) if rows.adapter_slots is None else rows.adapter_slots
        sums = np.array([self._sum(rows, row) + 7 * (int(adapters[row]) + 1) for row in range(len(rows))], np.int64)
        return PassOutput(self._logits[sums[rows.wanted] % _ROWS], self._features(sums, feature_layers))

    def _sum(self, rows: Rows, row: int) -> int:
        table = rows.tables[rows.sequences[row]].astype(np.int64)
        straight = np.arange(rows.contiguous[row])
        branch = rows.branches[rows.branch_starts[row] : rows.branch_starts[row + 1]]
        seen = np.concatenate([table[straight // BLOCK] * BLOCK + straight % BLOCK, branch])
        return self._total(self._slots[seen])

    def _total(self, seen: UInt64) -> int:
        return int((seen * self._weights[: len(seen)]).sum() >> np.uint64(33))

    @staticmethod
    def _features(sums: Int64, layers: Sequence[int]) -> Float32:
        return (sums[:, None] % (1009 + np.array(layers, np.int64))).astype(np.float32)

    def features_of(self, tokens: Sequence[int], layers: Sequence[int]) -> Float32:
        """The result of a pass for each of `tokens`, the first ones of a sequence without an adapter."""
        stored = _stored(np.array(tokens), np.arange(len(tokens)))
        sums = [self._total(stored[: end + 1]) for end in range(len(stored))]
        return self._features(np.array(sums, np.int64), layers)

    def embed(self, tokens: Int64) -> Float32:
        return tokens[:, None].astype(np.float32)

    def unembed(self, states: Float32) -> Float32:
        raise NotImplementedError

    def move(self, sources: list[int], targets: list[int]) -> None:
        self.moves += len(sources)
        for source, target in zip(sources, targets, strict=True):
            self._slots[target] = self._slots[source]


def _stored(tokens: Int64, positions: Int64 | Int32) -> UInt64:
    return (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(1 << 20) + positions.astype(np.uint64)
