"""Targets without a model: logits from a table, or from the last tokens."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from services.generation.target.adapters import AdapterIdentity
from services.generation.target.arrays import Float32, Int32, Int64, UInt64
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.rope import NO_ROTATION
from services.generation.target.program.kernel_probe import KernelReport
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput, Shared, Target

SIZES = st.one_of(st.integers(1, 5), st.integers(6, 300), st.sampled_from((127, 128, 129, 255, 256, 257, 511, 700)))
"""Vocabularies; a group has 128 ids, a tile 256."""
KINDS = ("normal", "peaked", "near", "flat", "ties", "zeros", "huge", "subnormal")


@st.composite
def rows(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> Float32:
    """Logits [vocab_size], float32, without NaN and +inf, one of them finite at least; some of them -inf at times."""
    rng, size, kind = np.random.default_rng(draw(st.integers(0, 2**32))), draw(sizes), draw(st.sampled_from(KINDS))
    row = _row(kind, rng, size)
    if draw(st.booleans()):
        holes = rng.random(size) < draw(st.sampled_from((0.1, 0.9, 1.0)))
        holes[rng.integers(size)] = False
        row[holes] = -np.inf
    return row


def _row(kind: str, rng: np.random.Generator, size: int) -> Float32:
    normal = rng.standard_normal(size)
    if kind == "peaked":
        normal[rng.integers(size, size=3)] += (9.0, 8.0, 7.9)
    made = {
        "normal": normal * 3.0,
        "peaked": normal,
        "near": 1.0 + np.round(normal * 3) * 2.0**-23,
        "flat": np.full(size, normal[0]),
        "ties": rng.choice([-1.5, 0.25, 2.0, 2.5], size),
        "zeros": rng.choice([0.0, -0.0, -1e-30], size),
        "huge": rng.choice([3.4e38, -3.4e38, 3.39e38, 1e30, 5.0], size),
        "subnormal": normal * 1e-40,
    }
    return made[kind].astype(np.float32)


VOID = np.zeros((2, 2), np.float32)  # a table for who needs a target's shapes only


class TableTarget:
    """A target without a model: the logits of a row are a given function of its token. Quick, for tests of its
    users.
    """

    def __init__(self, table: Float32, *, context: int = 4096, eos: tuple[int, ...] = ()) -> None:
        """`table` [vocab, vocab]: row t holds the logits after token t."""
        self._table = table
        vocab = len(table)
        self.config = TargetConfig(
            architecture="table", vocab_size=vocab, hidden_size=1, intermediate_size=1, layers=1, heads=1, kv_heads=1,
            head_dim=2, norm_epsilon=1e-6, context_length=context, tied_embeddings=True, attention_bias=False,
            output_bias=False, mlp_bias=False, head_norms=False, windows=(0,), rotations=(NO_ROTATION,),
            query_scale=1.0, eos_token_ids=eos,
        )  # fmt: skip
        self.blocks = BlockPool(4 * context // BLOCK)
        self.base_cid = self.tokenizer_cid = "cidv1:sha256:" + "0" * 64
        self.adapters: tuple[AdapterIdentity, ...] = ()
        self.threads, self.device, self.numerics = 1, "cpu", {"arithmetic": "none"}

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        features = np.repeat(rows.tokens[:, None].astype(np.float32), len(feature_layers), axis=1)
        return PassOutput(self._table[rows.tokens[rows.wanted]], features)

    def probe_kernels(self) -> KernelReport:
        return KernelReport(0, ())

    def abridged(self) -> Target:
        raise NotImplementedError

    def embed(self, tokens: Int64) -> Float32:
        return tokens[:, None].astype(np.float32)

    def unembed(self, states: Float32) -> Float32:
        raise NotImplementedError

    def shared(self) -> Shared:
        raise NotImplementedError

    def move(self, sources: list[int], targets: list[int]) -> None:
        pass

    def release_memory(self) -> None:
        pass

    def block_content(self, block: int) -> bytes:
        return b""

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        pass


_ROWS = 997  # of logits to choose among


class ContextTarget(TableTarget):
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
        super().__init__(self._logits[:vocab, :vocab], context=context)
        self.config = replace(self.config, layers=4)
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

    def move(self, sources: list[int], targets: list[int]) -> None:
        self.moves += len(sources)
        for source, target in zip(sources, targets, strict=True):
            self._slots[target] = self._slots[source]

    def block_content(self, block: int) -> bytes:
        return self._slots[block * BLOCK : (block + 1) * BLOCK].tobytes()

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        self._slots[block * BLOCK : (block + 1) * BLOCK] = np.frombuffer(content, np.uint64)


def _stored(tokens: Int64, positions: Int64 | Int32) -> UInt64:
    return (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(1 << 20) + positions.astype(np.uint64)
