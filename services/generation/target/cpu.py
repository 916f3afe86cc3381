"""The canonical pass on a CPU: float32, packed linears from oneDNN, every other operation in `kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.target import kernels
from services.generation.target.adapters.adapter import Adapter
from services.generation.target.adapters.low_rank import KERNEL, LayerUpdates, LowRankSum
from services.generation.target.adapters.pieces import pieces_of
from services.generation.target.blocks import BlockPool
from services.generation.target.checkpoint import Checkpoint
from services.generation.target.config import TargetConfig
from services.generation.target.linear import Linear, PackedLinear, cpu_linear, padded_rows
from services.generation.target.rows import Int32, Rows
from services.generation.target.target import Kernels, PassOutput
from services.generation.target.team_attention import attend

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Float32
    qkv: Linear
    head_norms: Float32  # [2, head_dim] for Qwen3, else [0, head_dim]
    output: Linear
    mlp_norm: Float32
    gate_up: Linear
    down: Linear
    window: int
    updates: LayerUpdates
    keys: Float32  # [blocks, kv_heads, head_dim, BLOCK]
    values: Float32  # [blocks, kv_heads, BLOCK, head_dim]


class _Features:
    """Copies of the residual stream at the layers asked for, side by side; the pass itself goes on undisturbed."""

    def __init__(self, layers: Sequence[int], rows: int, size: int) -> None:
        self._layers, self._size = layers, size
        self.taken = np.empty((rows, len(layers) * size), np.float32)

    def take(self, layer: int, hidden: Float32) -> None:
        for place, wanted in enumerate(self._layers):
            if wanted == layer:
                self.taken[:, place * self._size : (place + 1) * self._size] = hidden


class CpuTarget:
    """`Target` for the CPU. Rows are independent by construction in the kernels and by oneDNN's packed product.

    Token embeddings stay in the dtype they are stored in and are widened row by row: a model in bfloat16 then has one
    float32 copy of its weights in memory, the packed one.
    """

    def __init__(
        self,
        config: TargetConfig,
        checkpoint: Checkpoint,
        cache_blocks: int,
        base_cid: str,
        tokenizer_cid: str,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self.config = config
        self.blocks = BlockPool(cache_blocks)
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters = tuple(adapter.identity for adapter in adapters)
        self._keys = np.zeros(
            (config.layers, cache_blocks, config.kv_heads, config.head_dim, kernels.BLOCK), np.float32
        )
        self._values = np.zeros(
            (config.layers, cache_blocks, config.kv_heads, kernels.BLOCK, config.head_dim), np.float32
        )
        self._embeddings = checkpoint.stored("model.embed_tokens.weight").clone()
        self._layers = [self._load_layer(checkpoint, layer, adapters) for layer in range(config.layers)]
        self._norm = checkpoint.read("model.norm.weight").numpy()
        head = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
        self._head = cpu_linear(checkpoint.read(head))
        self._epsilon = np.float32(config.norm_epsilon)
        self._scale = np.float32(config.head_dim**-0.5)
        self._cos, self._sin = _rotations(config)
        self.kernels = Kernels(
            device="cpu",
            instruction_set=torch.backends.cpu.get_cpu_capability(),
            dtype="float32",
            linear="onednn-packed" if isinstance(self._head, PackedLinear) else "torch-linear",
            attention=f"kolm-cpu-v2/block={kernels.BLOCK}/lanes={kernels.LANES}",
            adapters=KERNEL,
            row_counts=(),
        )

    def _load_layer(self, checkpoint: Checkpoint, layer: int, adapters: Sequence[Adapter]) -> _Layer:
        config, prefix = self.config, f"model.layers.{layer}."

        def linear(names: tuple[str, ...], bias: bool) -> Linear:
            weight = torch.cat([checkpoint.read(f"{prefix}{name}.weight") for name in names])
            biases = [checkpoint.read(f"{prefix}{name}.bias") for name in names] if bias else []
            return cpu_linear(weight, torch.cat(biases) if biases else None)

        def vector(name: str) -> Float32:
            array: Float32 = checkpoint.read(f"{prefix}{name}.weight").numpy()
            return array

        norms = [vector("self_attn.q_norm"), vector("self_attn.k_norm")] if config.head_norms else []
        return _Layer(
            attention_norm=vector("input_layernorm"),
            qkv=linear(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), config.attention_bias),
            head_norms=np.array(norms, np.float32).reshape(len(norms), config.head_dim),
            output=linear(("self_attn.o_proj",), config.output_bias),
            mlp_norm=vector("post_attention_layernorm"),
            gate_up=linear(("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias),
            down=linear(("mlp.down_proj",), config.mlp_bias),
            window=config.windows[layer],
            updates=LayerUpdates.of(adapters, layer, pieces_of(config)),
            keys=self._keys[layer],
            values=self._values[layer],
        )

    @torch.inference_mode()
    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        config, room = self.config, _Room(len(rows), self.config)
        hidden = self.embed(rows.tokens)
        features = _Features(feature_layers, len(rows), config.hidden_size)
        kernels.rms_norm(hidden, self._layers[0].attention_norm, self._epsilon, room.normed)
        for index, layer in enumerate(self._layers):
            features.take(index, hidden)
            queries = self._queries(layer, rows, room)
            if index + 1 == config.layers and config.layers not in feature_layers and len(rows.wanted) < len(rows):
                # All that is left of the other rows is in the cache.
                hidden, queries, rows = hidden[rows.wanted], queries[rows.wanted], rows.only_wanted()
                room = _Room(len(rows), config)
            self._attend(layer, queries, rows, room)
            update = _adapted(layer.output(room.mixed_in), layer.updates.output, room.mixed, rows.wearing)
            kernels.add_rms_norm(hidden, update, layer.mlp_norm, self._epsilon, room.normed)
            self._mlp(layer, rows, room)
            update = _adapted(layer.down(room.inner_in), layer.updates.down, room.inner, rows.wearing)
            norm = self._norm if index + 1 == config.layers else self._layers[index + 1].attention_norm
            kernels.add_rms_norm(hidden, update, norm, self._epsilon, room.normed)
        features.take(config.layers, hidden)
        return PassOutput(self._logits(room.normed_in, rows.wanted), features.taken)

    def _logits(self, normed: torch.Tensor, wanted: Int32) -> Float32:
        """[wanted, vocab_size] of the rows `wanted` of normed [padded rows, hidden]."""
        if not len(wanted):
            return np.empty((0, self.config.vocab_size), np.float32)
        if padded_rows(len(wanted)) != len(normed):
            index = np.zeros(padded_rows(len(wanted)), np.int32)
            index[: len(wanted)] = wanted
            normed, wanted = normed[torch.from_numpy(index)], np.arange(len(wanted), dtype=np.int32)
        logits: Float32 = self._head(normed).numpy()
        return logits[: len(wanted)] if wanted[-1] == len(wanted) - 1 else logits[wanted]

    def _queries(self, layer: _Layer, rows: Rows, room: _Room) -> Float32:
        """[rows, heads + 2 kv_heads, head_dim], rotated; keys and values are in the cache from then on."""
        qkv = _adapted(layer.qkv(room.normed_in), layer.updates.qkv, room.normed, rows.wearing)
        queries = qkv.reshape(len(rows), -1, self.config.head_dim)
        kernels.rotate_and_store(
            queries, self.config.heads, rows.positions, rows.slots, self._cos, self._sin, layer.head_norms,
            self._epsilon, layer.keys, layer.values,
        )  # fmt: skip
        return queries

    def _attend(self, layer: _Layer, queries: Float32, rows: Rows, room: _Room) -> None:
        attend(
            queries, self.config.heads, layer.keys, layer.values, rows.tables, rows.sequences, rows.positions,
            rows.contiguous, rows.branch_starts, rows.branches, layer.window, self._scale,
            room.mixed.reshape(len(rows), self.config.heads, self.config.head_dim),
        )  # fmt: skip

    def _mlp(self, layer: _Layer, rows: Rows, room: _Room) -> None:
        gate_up = _adapted(layer.gate_up(room.normed_in), layer.updates.gate_up, room.normed, rows.wearing)
        kernels.silu_multiply(gate_up, room.inner)

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        rows: Float32 = self._embeddings[torch.from_numpy(tokens)].to(torch.float32).numpy()
        return rows

    def move(self, sources: list[int], targets: list[int]) -> None:
        kernels.move_slots(self._keys, self._values, np.array(sources, np.int32), np.array(targets, np.int32))


class _Room:
    """Memory for what a pass over so many rows hands to its linear layers."""

    def __init__(self, rows: int, config: TargetConfig) -> None:
        self.normed, self.normed_in = _padded(rows, config.hidden_size)
        self.mixed, self.mixed_in = _padded(rows, config.heads * config.head_dim)
        self.inner, self.inner_in = _padded(rows, config.intermediate_size)


def _padded(rows: int, size: int) -> tuple[Float32, torch.Tensor]:
    """Room for [rows, size], and the same memory with the rows that fill it up, as a linear layer takes it."""
    padded = np.zeros((padded_rows(rows), size), np.float32)
    return padded[:rows], torch.from_numpy(padded)


def _adapted(y: torch.Tensor, updates: LowRankSum, x: Float32, wearing: Int32 | None) -> Float32:
    """The first rows of y [padded rows, out], with the updates of the adapters that rows wear, for x [rows, in]."""
    out: Float32 = y.numpy()[: len(x)]
    if wearing is not None:
        updates.add(x, wearing, out)
    return out


def _rotations(config: TargetConfig) -> tuple[Float32, Float32]:
    """cos and sin of every position, [context_length, head_dim / 2], by the float32 operations that transformers
    uses.
    """
    frequencies = torch.tensor(config.inverse_frequencies, dtype=torch.float32)
    angles = torch.arange(config.context_length, dtype=torch.float32)[:, None] * frequencies[None]
    return (angles.cos() * config.rope_scaling).numpy(), (angles.sin() * config.rope_scaling).numpy()
