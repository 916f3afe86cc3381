"""The head's forward pass on the target's kernels: one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.draft_tree.candidates import Vocabulary
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.head_parts import HeadParts
from services.generation.drafting.eagle3.head_programs import HeadPrograms
from services.generation.target.blocks import BlockPool, blocks_for
from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.embedding_table import EmbeddingTable
from services.generation.target.canonical.program.memory import ReusedMemory
from services.generation.target.canonical.program.team import Passes
from services.generation.target.rows import Rows

Float32 = NDArray[np.float32]
Embed = Callable[[NDArray[np.int64]], Float32]

_AHEAD = 64  # positions past the context that draft entries may take
_DRAFT_BLOCKS = 8  # of a table behind those of a context: twice what the widest of the deepest drafts takes
_MOST_ROWS = 256  # of a pass; more go through in several, earlier rows first


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """Of the rows wanted: `states` [wanted, hidden] are what the next draft step gets in place of features; logits
    [wanted, draft_vocab_size].
    """

    states: Float32
    logits: Float32


class HeadPass:
    """Computes entries of the head: entry i reads the feature of position i and the token at position i + 1.

    Used by one thread. Rows are those of `target.rows.Rows`, their tokens the following ones, over the head's own
    cache (`blocks`).
    """

    def __init__(
        self, head: Head, embed: Embed, cache_blocks: int, context_length: int, *, threads: int = 1,
        arithmetic: str = "float32",
    ) -> None:  # fmt: skip
        """`embed` reads the target's token embeddings, [rows] ids to [rows, hidden]; unused if the head has its own.
        `arithmetic`: of linear layers; for int8 their weights are rounded to 8 bits.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        config = head.config
        self.config, self.blocks = config, BlockPool(cache_blocks)
        draft_ids = np.full(config.vocab_size, -1, np.int64)
        draft_ids[head.target_ids] = np.arange(len(head.target_ids))
        self.vocabulary = Vocabulary(head.target_ids, draft_ids)
        parts = HeadParts.of(head, arithmetic, cache_blocks, context_length + _AHEAD)
        own = parts.embedding
        self._embed = embed if own is None else EmbeddingTable(own, config.hidden_size).rows
        self._passes = Passes(threads)
        self._most_blocks = min(cache_blocks, blocks_for(context_length) + _DRAFT_BLOCKS)
        self._programs = HeadPrograms(parts, _MOST_ROWS, threads, self._most_blocks)
        self._logits = ReusedMemory()

    def read(self, rows: Rows, features: Float32) -> HeadOutput:
        """Compute entries of committed tokens. `features` [rows, feature layers * target hidden], the target's streams.

        Where no row is wanted, the last layer computes keys and values and no more: the only layer, mostly.
        """
        programs = self._programs
        program = programs.reads if len(rows.wanted) else programs.stores
        return self._in_pieces(program, rows, programs.streams, features)

    def step(self, rows: Rows, states: Float32) -> HeadOutput:
        """Compute draft entries that go on from `states` [rows, hidden]."""
        return self._in_pieces(self._programs.steps, rows, self._programs.buffers.x, states)

    def _in_pieces(self, program: NDArray[np.int64], rows: Rows, lines: Float32, inputs: Float32) -> HeadOutput:
        """Run a program over as many rows at a time as there is room for; `inputs` go to `lines`."""
        if len(rows) <= _MOST_ROWS:
            lines[: len(rows), : inputs.shape[1]] = inputs
            return self._run(program, rows)
        cuts = [slice(at, min(at + _MOST_ROWS, len(rows))) for at in range(0, len(rows), _MOST_ROWS)]
        pieces = [self._in_pieces(program, rows.part(cut.start, cut.stop), lines, inputs[cut]) for cut in cuts]
        return HeadOutput(
            np.concatenate([piece.states for piece in pieces]), np.concatenate([piece.logits for piece in pieces])
        )

    def _run(self, program: NDArray[np.int64], rows: Rows) -> HeadOutput:
        """Compute entries and store their keys and values, in place of what was in their slots.

        Raises:
            ValueError: a table is longer than a context and a draft.
        """
        if rows.tables.shape[1] > self._most_blocks:
            raise ValueError(f"a table of {rows.tables.shape[1]} blocks; there is room for {self._most_blocks}")
        config, programs, count = self.config, self._programs, len(rows.wanted)
        programs.embedded[: len(rows), : config.hidden_size] = self._embed(rows.tokens)
        logits = self._logits.take(count, padded(config.draft_vocab_size, PANEL))
        programs.give(logits)
        self._passes.run(program, rows)
        buffers = programs.buffers
        states = buffers.normed[:count].copy() if config.norm_output else buffers.x[rows.wanted]
        return HeadOutput(states[:, : config.hidden_size], np.ascontiguousarray(logits[:, : config.draft_vocab_size]))
