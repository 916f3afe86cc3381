"""Passes over the entries of a head that drafts a token at a time: entry i reads the target's hidden state of position
i and the token at position i + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.generation.drafting.draft_tree.candidates import Vocabulary
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BlockPool
from services.generation.target.program.buffers import Buffers
from services.generation.target.program.team import Passes
from services.generation.target.rows import Rows

AHEAD = 64  # positions past the context that draft entries may take
MOST_ROWS = 256  # of a pass; more go through in several, earlier rows first
_KEPT = 4096  # embeddings

Embed = Callable[[Int64], Float32]
"""Token embeddings, [n] ids to [n, hidden]."""
Unembed = Callable[[Float32], Float32]
"""Logits of normed states, [n, hidden] to [n, vocabulary]."""


class EntryPrograms(Protocol):
    """Three programs: `stores` keys and values of entries from the target's streams, `reads` goes on to their logits,
    `steps` computes entries from earlier states. They work in `buffers`.
    """

    buffers: Buffers
    stores: Int64
    reads: Int64
    steps: Int64
    streams: Float32
    """Lines [rows, streams * target hidden], input of `stores` and `reads`."""
    carried: Float32
    """Lines [rows, hidden], input of `steps` in place of streams."""
    embedded: Float32
    """Lines [rows, hidden], embeddings of the following tokens."""
    states: Float32
    """Lines, output: states that the next step reads, of wanted rows or of all (`EntrySizes.states_of_wanted`)."""
    logits: Float32
    """Lines [wanted, padded draft vocabulary], output; no lines if the target's output matrix gives them."""


@dataclass(frozen=True, slots=True)
class EntrySizes:
    """`hidden`: of states and embeddings. `states_of_wanted`: states are computed for wanted rows alone."""

    hidden: int
    draft_vocabulary: int
    states_of_wanted: bool


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """A pass's output, which the next pass overwrites: `states` [wanted, hidden], which the next draft step gets in
    place of features; logits [wanted, draft_vocab_size].
    """

    states: Float32
    logits: Float32


class Entries(Protocol):
    """Passes over a head's entries and a cache of its own, on the CPU (`EntryPass`) or on a target's device."""

    blocks: BlockPool
    vocabulary: Vocabulary

    def read(self, rows: Rows, features: Float32) -> HeadOutput:
        """See `EntryPass`."""
        ...

    def step(self, rows: Rows, states: Float32) -> HeadOutput:
        """See `EntryPass`."""
        ...


class EntryPass:
    """Computes entries of a head over a cache of its own (`blocks`).

    Used by one thread. The tokens of its `target.rows.Rows` are those at the positions after the entries'.
    """

    def __init__(
        self, programs: EntryPrograms, sizes: EntrySizes, vocabulary: Vocabulary, embed: Embed, *, cache_blocks: int,
        threads: int, unembed: Unembed | None = None,
    ) -> None:  # fmt: skip
        """`unembed` is for a head without an output matrix."""
        self.blocks, self.vocabulary = BlockPool(cache_blocks), vocabulary
        self._programs, self._sizes, self._unembed = programs, sizes, unembed
        self._embeddings, self._passes = KeptEmbeddings(embed, sizes.hidden), Passes(threads)

    def read(self, rows: Rows, features: Float32) -> HeadOutput:
        """Compute entries of committed tokens. `features` [rows, feature layers * target hidden], the target's streams.

        If no row is wanted, the last layer computes keys and values and no more: the only layer, mostly.
        """
        programs = self._programs
        program = programs.reads if len(rows.wanted) else programs.stores
        return self._in_pieces(program, rows, programs.streams, features)

    def step(self, rows: Rows, states: Float32) -> HeadOutput:
        """Compute draft entries that go on from `states` [rows, hidden]."""
        return self._in_pieces(self._programs.steps, rows, self._programs.carried, states)

    def _in_pieces(self, program: Int64, rows: Rows, lines: Float32, inputs: Float32) -> HeadOutput:
        """Run a program over as many rows at a time as there is room for; `inputs` go to `lines`."""
        if len(rows) <= MOST_ROWS:
            lines[: len(rows), : inputs.shape[1]] = inputs
            return self._run(program, rows)
        cuts = [slice(at, min(at + MOST_ROWS, len(rows))) for at in range(0, len(rows), MOST_ROWS)]
        states, logits = list[Float32](), list[Float32]()
        for cut in cuts:
            piece = self._in_pieces(program, rows.part(cut.start, cut.stop), lines, inputs[cut])
            states.append(piece.states.copy())
            logits.append(piece.logits.copy())
        return HeadOutput(np.concatenate(states), np.concatenate(logits))

    def _run(self, program: Int64, rows: Rows) -> HeadOutput:
        """Compute entries and overwrite the keys and values in their slots.

        Raises:
            ValueError: a row's position is past a context and a draft.
        """
        self._programs.buffers.check(rows)
        programs, sizes, count = self._programs, self._sizes, len(rows.wanted)
        self._embeddings.read(rows.tokens, programs.embedded)
        self._passes.run(program, rows)
        states = programs.states[: count if sizes.states_of_wanted else len(rows)]
        if len(states) > count:
            states = states[rows.wanted]
        if self._unembed is None:
            logits = programs.logits[:count]
        else:
            logits = self._unembed(programs.buffers.normed[:count, : sizes.hidden])
        return HeadOutput(states[:, : sizes.hidden], np.ascontiguousarray(logits[:, : sizes.draft_vocabulary]))


class KeptEmbeddings:
    """A cache of embeddings. In a packed matrix the embedding of one token is spread among many others."""

    def __init__(self, embed: Embed, size: int) -> None:
        self._embed = embed
        self._tokens, self._rows = np.full(_KEPT, -1, np.int64), np.empty((_KEPT, size), np.float32)

    def read(self, tokens: Int64, out: Float32) -> None:
        """[n] ids into `out` [n, size or more]."""
        new = _copy_kept(tokens, self._tokens, self._rows, out)
        if len(new):
            places, found = tokens[new] % _KEPT, self._embed(tokens[new])
            out[new, : found.shape[1]] = found
            self._tokens[places], self._rows[places] = tokens[new], found


@relaxed
def _copy_kept(tokens: Int64, kept: Int64, rows: Float32, out: Float32) -> Int64:
    """Copy the rows of kept tokens; returns the places of the other tokens."""
    missing, count = np.empty(len(tokens), np.int64), 0
    for i in range(len(tokens)):
        place = tokens[i] % len(kept)
        if kept[place] == tokens[i]:
            for j in range(rows.shape[1]):
                out[i, j] = rows[place, j]
        else:
            missing[count] = i
            count += 1
    return missing[:count]
