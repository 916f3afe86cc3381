"""A target without a model, for tests of what lies above it. It implements the production Protocol."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.rope import NO_ROTATION
from services.generation.target.rows import Rows
from services.generation.target.target import KernelReport, PassOutput

VOID = np.zeros((2, 2), np.float32)  # a table for who needs a target's shapes only


class TableTarget:
    """No model at all: the logits of a row are a given function of its token. Quick, for tests of what lies above."""

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
        self.adapters = ()
        self.threads, self.numerics = 1, {"arithmetic": "none"}

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        features = np.repeat(rows.tokens[:, None].astype(np.float32), len(feature_layers), axis=1)
        return PassOutput(self._table[rows.tokens[rows.wanted]], features)

    def probe_kernels(self) -> KernelReport:
        return KernelReport(0, ())

    def embed(self, tokens: Int64) -> Float32:
        return tokens[:, None].astype(np.float32)

    def unembed(self, states: Float32) -> Float32:
        raise NotImplementedError

    def move(self, sources: list[int], targets: list[int]) -> None:
        pass
