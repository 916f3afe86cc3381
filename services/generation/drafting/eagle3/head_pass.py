"""The head's forward pass and its key/value cache, in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.drafting.eagle3.config import HeadConfig, layer_prefix
from services.generation.drafting.eagle3.growing import Int64
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.kernels import enter, rotate, step
from services.generation.drafting.eagle3.products import Panels, halved, multiply, panels_of, product_share
from services.generation.drafting.eagle3.rope import frequencies_of
from services.generation.drafting.eagle3.rounds import Growing, draft
from services.generation.target import kernels
from services.generation.target.attention import attend
from services.generation.target.blocks import BlockPool
from services.generation.target.linear import Linear, cpu_linear, padded_rows
from services.generation.target.rows import Rows
from services.generation.target.team import team_size

Float32 = NDArray[np.float32]
Embed = Callable[[NDArray[np.int64]], Float32]

_SMALL = 1 << 22  # weights of a step that stay in a core's caches; beyond, packed products are worth their calls
_TABLE = 1 << 24  # float32 values of an embedding table that is worth keeping twice
_AHEAD = 64  # positions past the context that draft entries may take


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Float32
    feature_norm: Float32  # of the first layer; empty in others
    queries: Linear
    keys_values: Linear
    head_norms: Float32
    output: Linear
    mlp_norm: Float32
    gate_up: Linear
    down: Linear
    keys: Float32  # [blocks, kv_heads, head_dim, BLOCK]
    values: Float32  # [blocks, kv_heads, BLOCK, head_dim]


@dataclass(frozen=True, slots=True)
class _Small:
    """Weights of a small head as `products.multiply` and `kernels.step` take them, all of one dtype."""

    fc: Panels
    linears: tuple[Panels, ...]
    norms: tuple[Float32, ...]


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """Of the rows wanted: `state` [wanted, hidden] is what the next draft step gets in place of the feature; logits
    [wanted, draft_vocab_size].
    """

    state: Float32
    logits: Float32


class HeadPass:
    """Computes entries of the head: entry i reads the feature of position i and the token at position i + 1.

    Used by one thread. Rows are those of `target.rows.Rows`, their tokens the following ones, over the head's own
    cache (`blocks`).
    """

    def __init__(self, head: Head, embed: Embed, cache_blocks: int, context_length: int) -> None:
        """`embed` reads the target's token embeddings, [rows] ids to [rows, hidden]; unused if the head has its own."""
        config = head.config
        self.head, self.config, self.blocks = head, config, BlockPool(cache_blocks)
        self.draft_ids = np.full(config.vocab_size, -1, np.int64)
        self.draft_ids[head.target_ids] = np.arange(len(head.target_ids))
        self._embeddings, self._embed = _table(head, embed), embed
        self._epsilon, self._scale = np.float32(config.norm_epsilon), np.float32(config.head_dim**-0.5)
        self._cos, self._sin = _rotations(config, context_length + _AHEAD)
        self._fc = cpu_linear(head.tensors["fc.weight"])
        self._layers = [self._load_layer(layer, cache_blocks) for layer in range(config.layers)]
        self._norm = head.tensors["norm.weight"].numpy()
        self._lm_head = cpu_linear(head.tensors["lm_head.weight"])
        self._small = self._in_panels() if self._is_small() else None
        self.drafts_in_one_call = self._small is not None and self._embeddings is not None  # so that `draft` can run

    def _load_layer(self, layer: int, cache_blocks: int) -> _Layer:
        config, tensors, prefix = self.config, self.head.tensors, layer_prefix(layer)

        def linear(*names: str) -> Linear:
            biases = [tensors[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in tensors]
            weight = torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])
            return cpu_linear(weight, torch.cat(biases) if biases else None)

        def vector(name: str) -> Float32:
            array: Float32 = tensors[f"{prefix}{name}.weight"].numpy()
            return array

        norms = [vector("self_attn.q_norm"), vector("self_attn.k_norm")] if config.head_norms else []
        shape = (cache_blocks, config.kv_heads, config.head_dim, kernels.BLOCK)
        return _Layer(
            input_norm=vector("input_layernorm"),
            feature_norm=vector("hidden_norm") if layer == 0 else np.empty(0, np.float32),
            queries=linear("self_attn.q_proj"),
            keys_values=linear("self_attn.k_proj", "self_attn.v_proj"),
            head_norms=np.array(norms, np.float32).reshape(len(norms), config.head_dim),
            output=linear("self_attn.o_proj"),
            mlp_norm=vector("post_attention_layernorm"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
            down=linear("mlp.down_proj"),
            keys=np.zeros(shape, np.float32),
            values=np.zeros((*shape[:2], kernels.BLOCK, config.head_dim), np.float32),
        )

    def _is_small(self) -> bool:
        config, sizes = self.config, {name: tensor.numel() for name, tensor in self.head.tensors.items()}
        plain = config.layers == 1 and not any("bias" in name for name in sizes)
        used = sum(size for name, size in sizes.items() if name not in ("fc.weight", "embed_tokens.weight"))
        return plain and used <= _SMALL

    def _in_panels(self) -> _Small:
        tensors, prefix, first = self.head.tensors, layer_prefix(0), self._layers[0]

        def stacked(*names: str) -> Float32:
            return panels_of(*(tensors[f"{name}.weight"] for name in names))

        linears = halved([
            stacked(f"{prefix}self_attn.k_proj", f"{prefix}self_attn.v_proj"), stacked(f"{prefix}self_attn.q_proj"),
            stacked(f"{prefix}self_attn.o_proj"), stacked(f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
            stacked(f"{prefix}mlp.down_proj"), stacked("lm_head"), stacked("fc"),
        ])  # fmt: skip
        return _Small(linears[-1], linears[:-1], (first.input_norm, first.feature_norm, first.mlp_norm, self._norm))

    def fuse(self, features: Float32) -> Float32:
        """[rows, feature layers * target hidden] to the [rows, hidden] that the first layer reads."""
        config, tensors = self.config, self.head.tensors
        if config.norm_before_fc:
            features = self._normed(features, tensors["input_norm.weight"].numpy())
        if config.fc_norm:
            streams = features.reshape(len(features), len(config.feature_layers), -1)
            normed = [
                self._normed(np.ascontiguousarray(streams[:, i]), tensors[f"fc_norm.{i}.weight"].numpy())
                for i in range(streams.shape[1])
            ]
            features = np.concatenate(normed, axis=1)
        if self._small is not None:
            fused = np.empty((len(features), config.hidden_size), np.float32)
            multiply(np.ascontiguousarray(features), self._small.fc, fused, product_share.address, team_size())
            return fused
        return _product(self._fc, np.ascontiguousarray(features))

    def _normed(self, hidden: Float32, weight: Float32) -> Float32:
        out = np.empty_like(hidden)
        kernels.rms_norm(hidden, weight, self._epsilon, out)
        return out

    def run(self, rows: Rows, feature: Float32) -> HeadOutput:
        """Compute entries and store their keys and values. `feature` [rows, hidden]: fused ones, or earlier states.

        Of rows that are not wanted, the last layer computes keys and values and no more: the only layer, mostly.
        """
        embedded = self._embed(rows.tokens) if self._embeddings is None else self._embeddings[rows.tokens]
        compute = self._run if self._small is None else self._step
        state, normed, logits = compute(rows, embedded, feature)
        return HeadOutput(normed if self.config.norm_output else state, logits)

    def draft(self, growing: Growing, rows: Rows, feature: Float32) -> Int64:
        """Compute `rows`, whose wanted ones are the last of each sequence, and grow all trees, see `rounds.draft`."""
        assert self._small is not None
        assert self._embeddings is not None
        config, layer = self.config, self._layers[0]
        firsts: Int64 = draft(
            growing.trees, growing.lengths, rows.tables, growing.sampling, growing.places, rows.tokens, rows.positions,
            rows.slots, rows.wanted, rows.sequences[rows.wanted], feature, self._small.linears, self._small.norms,
            layer.head_norms, self._epsilon, config.norm_before_residual, config.norm_output, config.heads, self._cos,
            self._sin, layer.keys, layer.values, self._scale, product_share.address, team_size(), self._embeddings,
            self.head.target_ids, self.draft_ids,
        )  # fmt: skip
        return firsts

    def _step(self, rows: Rows, embedded: Float32, feature: Float32) -> tuple[Float32, Float32, Float32]:
        assert self._small is not None
        layer, reading = self._layers[0], rows.only_wanted()
        state = np.empty((len(reading), self.config.hidden_size), np.float32)
        normed, logits = np.empty_like(state), np.empty((len(reading), self.config.draft_vocab_size), np.float32)
        step(
            embedded, feature, self._small.linears, self._small.norms, layer.head_norms, self._epsilon,
            self.config.norm_before_residual, self.config.heads, rows.positions, rows.slots, rows.wanted,
            reading.sequences, reading.positions, reading.contiguous, reading.branch_starts, reading.branches,
            rows.tables, self._cos, self._sin, layer.keys, layer.values, self._scale, product_share.address,
            team_size(), state, normed, logits,
        )  # fmt: skip
        return state, normed, logits

    def _run(self, rows: Rows, embedded: Float32, feature: Float32) -> tuple[Float32, Float32, Float32]:
        config, count, first = self.config, len(rows), self._layers[0]
        read, residual = np.empty((count, 2 * config.hidden_size), np.float32), np.empty_like(feature)
        enter(
            embedded, feature, first.input_norm, first.feature_norm, self._epsilon, config.norm_before_residual, read,
            residual,
        )  # fmt: skip
        normed = np.empty_like(residual)
        for number, layer in enumerate(self._layers):
            if number:
                kernels.rms_norm(residual, layer.input_norm, self._epsilon, normed)
                read = normed
            self._store(layer, read, rows)
            if layer is self._layers[-1]:
                read, residual, rows = read[rows.wanted], residual[rows.wanted], rows.only_wanted()
            if not len(rows):
                return residual, residual, np.empty((0, config.draft_vocab_size), np.float32)
            normed = self._mix(layer, read, residual, rows)
        return residual, normed, _product(self._lm_head, normed)

    def _store(self, layer: _Layer, read: Float32, rows: Rows) -> None:
        """Keys and values of all rows, into the cache."""
        computed = _product(layer.keys_values, read).reshape(len(rows), -1, self.config.head_dim)
        kernels.rotate_and_store(
            computed, 0, rows.positions, rows.slots, self._cos, self._sin, layer.head_norms, self._epsilon, layer.keys,
            layer.values,
        )  # fmt: skip

    def _mix(self, layer: _Layer, read: Float32, residual: Float32, rows: Rows) -> Float32:
        """Attention and MLP of a layer, added to `residual` in place; returns it through the final norm."""
        config = self.config
        queries = _product(layer.queries, read).reshape(len(rows), config.heads, config.head_dim)
        mixed, normed = np.empty_like(queries), np.empty_like(residual)
        inner = np.empty((len(rows), config.intermediate_size), np.float32)
        rotate(queries, rows.positions, self._cos, self._sin, layer.head_norms, self._epsilon)
        attend(
            queries, config.heads, layer.keys, layer.values, rows.tables, rows.sequences, rows.positions,
            rows.contiguous, rows.branch_starts, rows.branches, 0, self._scale, mixed,
        )  # fmt: skip
        update = _product(layer.output, mixed.reshape(len(rows), -1))
        kernels.add_rms_norm(residual, update, layer.mlp_norm, self._epsilon, normed)
        kernels.silu_multiply(_product(layer.gate_up, normed), inner)
        kernels.add_rms_norm(residual, _product(layer.down, inner), self._norm, self._epsilon, normed)
        return normed


@torch.inference_mode()
def _product(linear: Linear, x: Float32) -> Float32:
    """Rows are filled up as the target fills them up, for the same reason."""
    rows = len(x)
    if padded_rows(rows) != rows:
        x = np.concatenate([x, np.zeros((padded_rows(rows) - rows, x.shape[1]), np.float32)])
    out: Float32 = linear(torch.from_numpy(x)).numpy()
    return out[:rows]


def _table(head: Head, embed: Embed) -> Float32 | None:
    """The head's own embeddings, or the target's where they are worth keeping in float32."""
    own, vocab = head.tensors.get("embed_tokens.weight"), head.config.vocab_size
    if own is None and vocab * head.config.hidden_size > _TABLE:
        return None
    table: Float32 = embed(np.arange(vocab, dtype=np.int64)) if own is None else own.numpy()
    return table


def _rotations(config: HeadConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin of every position, [positions, head_dim / 2]; positions past the trained length go on alike."""
    frequencies, scaling = frequencies_of(config)
    angles = np.outer(np.arange(positions, dtype=np.float32), np.array(frequencies, np.float32))
    return np.cos(angles) * np.float32(scaling), np.sin(angles) * np.float32(scaling)
