"""The canonical pass for CUDA: every pass is padded to one of a few row counts that give the same bits.

A GPU's matrix products choose their kernel, and with it their order of additions, by shape. So shapes are fixed:
a pass has one of `row_counts` rows, attention goes through each row's own keys in pieces of `KEYS`, and a piece that
a row does not have is an exact no-op for it. Runs on any torch device, which is how its tests run without a GPU.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import silu

from services.generation.target.adapters.adapter import Adapter
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.canonical.kernels.machine import cpus
from services.generation.target.config import TargetConfig
from services.generation.target.families.layers import LayerSpec, ModuleSpec, layer_specs
from services.generation.target.fixed_shape.masked_updates import KERNEL, MaskedSum
from services.generation.target.rotations import rotations
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Float32, KernelReport, PassOutput
from services.generation.target.weights.checkpoint import Checkpoint

KEYS = 256  # keys of a row that attention takes at a time
ROW_COUNTS = (16, 64, 256)
_CHECKED = 24  # tokens that row counts are compared over


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """y = x W^T + b by the device's own matrix product."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Updates:
    qkv: MaskedSum
    output: MaskedSum
    gate_up: MaskedSum
    down: MaskedSum


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: _Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: _Linear
    mlp_norm: torch.Tensor
    gate_up: _Linear
    down: _Linear
    updates: _Updates
    window: int


class FixedShapeTarget:
    """`Target` for CUDA, in bfloat16 or float32; norms, rotations and softmax in float32."""

    def __init__(
        self,
        config: TargetConfig,
        checkpoint: Checkpoint,
        cache_blocks: int,
        base_cid: str,
        tokenizer_cid: str,
        adapters: Sequence[Adapter] = (),
        *,
        device: str,
        dtype: torch.dtype,
        row_counts: Sequence[int] = ROW_COUNTS,
    ) -> None:
        self.config = config
        self.blocks = BlockPool(cache_blocks, resident=cache_blocks)  # a device's memory is taken at once
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters = tuple(adapter.identity for adapter in adapters)
        self._device, self._dtype = torch.device(device), dtype
        shape = (config.layers, cache_blocks * BLOCK, config.kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._embeddings = self._vector(checkpoint, "model.embed_tokens")
        specs = enumerate(layer_specs(config))
        self._layers = [self._load_layer(checkpoint, number, spec, adapters) for number, spec in specs]
        self._norm = self._vector(checkpoint, "model.norm")
        tied = config.tied_embeddings
        self._head = _Linear(self._embeddings if tied else self._vector(checkpoint, "lm_head"))
        tables = rotations(config.inverse_frequencies, config.rope_scaling, config.context_length)
        self._cos, self._sin = (torch.from_numpy(table).to(device) for table in tables)
        self._row_counts = tuple(sorted(row_counts))
        self._row_counts = self._agreeing_row_counts()
        self.threads = cpus()
        self.numerics: Mapping[str, Any] = {
            "arithmetic": f"kolm-fixed-shape/2, keys {KEYS}, {KERNEL}",
            "device": _device_name(self._device),
            "instruction_set": _instruction_set(self._device),
            "dtype": str(dtype).removeprefix("torch."),
            "row_counts": list(self._row_counts),
            "libraries": {name: version(name) for name in ("torch", "numpy")},
            "libc": " ".join(platform.libc_ver()),
        }

    def _vector(self, checkpoint: Checkpoint, name: str) -> torch.Tensor:
        return checkpoint.read(f"{name}.weight", self._dtype).to(self._device)

    def _load_layer(self, checkpoint: Checkpoint, number: int, spec: LayerSpec, adapters: Sequence[Adapter]) -> _Layer:
        def vector(name: str) -> torch.Tensor:
            return self._vector(checkpoint, spec.prefix + name)

        def linear(modules: Sequence[ModuleSpec]) -> _Linear:
            biases = [
                checkpoint.read(f"{spec.prefix}{module.name}.bias", self._dtype).to(self._device)
                if module.bias
                else torch.zeros(module.outputs, dtype=self._dtype, device=self._device)
                for module in modules
            ]
            some = any(module.bias for module in modules)
            return _Linear(torch.cat([vector(module.name) for module in modules]), torch.cat(biases) if some else None)

        def updates(modules: Sequence[ModuleSpec]) -> MaskedSum:
            return MaskedSum(adapters, number, modules, self._device, self._dtype)

        return _Layer(
            attention_norm=vector(spec.attention_norm),
            qkv=linear(spec.qkv),
            head_norms=(vector(spec.head_norms[0]), vector(spec.head_norms[1])) if spec.head_norms else None,
            output=linear(spec.output),
            mlp_norm=vector(spec.mlp_norm),
            gate_up=linear(spec.gate_up),
            down=linear(spec.down),
            updates=_Updates(*(updates(modules) for modules in spec.linears)),
            window=spec.window,
        )

    def _agreeing_row_counts(self) -> tuple[int, ...]:
        """Those row counts whose passes have the bits of the smallest one's, over a short stream for each adapter."""
        candidates, kept = self._row_counts, []
        table: list[int] = []
        self.blocks.extend(table, _CHECKED)
        reference = None
        for count in candidates:
            self._row_counts = (count,)
            streams = [self._short_stream(table, adapter) for adapter in range(-1, len(self.adapters))]
            reference = streams if reference is None else reference
            if streams == reference:
                kept.append(count)
        self.blocks.release(table)
        return tuple(kept)

    def _short_stream(self, table: list[int], adapter: int) -> bytes:
        rows = RowsBuilder()
        tokens = [token % self.config.vocab_size for token in range(_CHECKED)]
        rows.add_tree(table, 0, tokens, range(-1, _CHECKED - 1), adapter)
        return self.forward(rows.build()).logits.tobytes()

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """See `Target`. More rows than the largest count go through in several passes, earlier rows first."""
        most, count = self._row_counts[-1], len(rows)
        if count <= most:
            return self._forward(rows, feature_layers)
        parts = [self._forward(rows.part(at, min(at + most, count)), feature_layers) for at in range(0, count, most)]
        return PassOutput(
            np.concatenate([part.logits for part in parts]), np.concatenate([part.features for part in parts])
        )

    @torch.inference_mode()
    def _forward(self, rows: Rows, feature_layers: Sequence[int]) -> PassOutput:
        count = len(rows)
        padded = next(size for size in self._row_counts if size >= count)
        index = torch.zeros(padded, dtype=torch.int64)
        index[:count] = torch.from_numpy(rows.tokens)
        positions = torch.zeros(padded, dtype=torch.int64)
        positions[:count] = torch.from_numpy(rows.positions.astype(np.int64))
        places = positions.to(self._device)
        cos, sin = self._cos[places][:, None], self._sin[places][:, None]
        slots = torch.from_numpy(rows.slots.astype(np.int64)).to(self._device)
        seen = {window: self._seen(rows, padded, window) for window in set(self.config.windows)}
        hidden = self._embeddings[index.to(self._device)]
        stream, adapted = [hidden], self._adapted(rows, padded)
        for number, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.attention_norm)
            qkv = layer.updates.qkv.add(normed, adapted, layer.qkv(normed))
            mixed = self._attend(number, layer, qkv.view(padded, -1, self.config.head_dim), cos, sin, slots, seen)
            hidden = hidden + layer.updates.output.add(mixed, adapted, layer.output(mixed))
            normed = self._rms_norm(hidden, layer.mlp_norm)
            gate, up = layer.updates.gate_up.add(normed, adapted, layer.gate_up(normed)).chunk(2, dim=-1)
            inner = silu(gate) * up
            hidden = hidden + layer.updates.down.add(inner, adapted, layer.down(inner))
            stream.append(hidden)
        wanted = torch.from_numpy(rows.wanted.astype(np.int64))
        logits = self._head(self._rms_norm(hidden, self._norm)).float().cpu()[wanted].numpy()
        taken = [stream[layer][:count].float().cpu().numpy() for layer in feature_layers]
        return PassOutput(logits, np.concatenate(taken, axis=1) if taken else np.empty((count, 0), np.float32))

    def _adapted(self, rows: Rows, padded: int) -> dict[int, torch.Tensor]:
        """The adapters of a pass, each with its rows [padded, 1]; padding rows have none."""
        if rows.adapter_slots is None:
            return {}
        places = torch.full((padded, 1), -1, dtype=torch.int32)
        places[: len(rows), 0] = torch.from_numpy(rows.adapter_slots)
        return {
            adapter: (places == adapter).to(self._device) for adapter in sorted(set(rows.adapter_slots.tolist()) - {-1})
        }

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon)
        return weight * wide.to(self._dtype)

    def _attend(
        self,
        number: int,
        layer: _Layer,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]],
    ) -> torch.Tensor:
        """Rotate, store, attend: [rows, heads + 2 kv_heads, dim] to [rows, heads * dim]."""
        config = self.config
        last_key = config.heads + config.kv_heads
        queries, keys, values = qkv[:, : config.heads], qkv[:, config.heads : last_key], qkv[:, last_key:]
        if layer.head_norms is not None:
            queries, keys = self._rms_norm(queries, layer.head_norms[0]), self._rms_norm(keys, layer.head_norms[1])
        queries, keys = _rotate(queries.float(), cos, sin), _rotate(keys.float(), cos, sin).to(self._dtype)
        self._keys[number][slots] = keys[: len(slots)]
        self._values[number][slots] = values[: len(slots)]
        grouped = queries.reshape(len(qkv), config.kv_heads, -1, config.head_dim) * config.head_dim**-0.5
        largest = grouped.new_full((*grouped.shape[:3], 1), -torch.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(grouped)
        for places, hidden_keys in seen[layer.window]:
            piece = self._keys[number][places].float().permute(0, 2, 3, 1)
            scores = (grouped @ piece).masked_fill(hidden_keys[:, None, None], -torch.inf)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, fade = (scores - new).exp(), (largest - new).exp()
            total = total * fade + weights.sum(-1, keepdim=True)
            mixed = mixed * fade + weights @ self._values[number][places].float().transpose(1, 2)
            largest = new
        return (mixed / total).reshape(len(qkv), -1).to(self._dtype)

    def _seen(self, rows: Rows, padded: int, window: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The slots that each row sees, in order of position, in pieces of KEYS, each with what is padding in it.

        A padding row sees one slot, so that nothing it computes is a NaN.
        """
        histories = [_history(rows, row, window) for row in range(len(rows))]
        pieces = -(-max((len(history) for history in histories), default=1) // KEYS)
        slots = np.zeros((padded, pieces * KEYS), np.int64)
        hidden = np.ones((padded, pieces * KEYS), np.bool_)
        hidden[:, 0] = False
        for row, history in enumerate(histories):
            slots[row, : len(history)] = history
            hidden[row, : len(history)] = False
        placed, masked = torch.from_numpy(slots).to(self._device), torch.from_numpy(hidden).to(self._device)
        return list(zip(placed.chunk(pieces, dim=1), masked.chunk(pieces, dim=1), strict=True))

    def probe_kernels(self) -> KernelReport:
        """None: shapes are fixed, and whole passes of each are compared when the target is made."""
        return KernelReport(0, ())

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        rows: Float32 = self._embeddings[torch.from_numpy(tokens).to(self._device)].float().cpu().numpy()
        return rows

    def move(self, sources: list[int], targets: list[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._keys[:, target] = self._keys[:, source]
            self._values[:, target] = self._values[:, source]


def _history(rows: Rows, row: int, window: int) -> NDArray[np.int64]:
    run = int(rows.contiguous[row])
    logical = np.arange(run)
    table = rows.tables[rows.sequences[row]]
    straight = table[logical // BLOCK].astype(np.int64) * BLOCK + logical % BLOCK
    branch = rows.branches[rows.branch_starts[row] : rows.branch_starts[row + 1]]
    first = max(0, int(rows.positions[row]) + 1 - window) if window else 0
    return np.concatenate([straight, branch.astype(np.int64)])[first:]


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = heads.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _device_name(device: torch.device) -> str:
    return f"cuda/{torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def _instruction_set(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}/cuda-{torch.version.cuda}"
    return torch.backends.cpu.get_cpu_capability()
