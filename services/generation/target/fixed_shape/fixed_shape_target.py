"""The canonical pass for CUDA: every pass is padded to one of a few row counts that give the same bits.

A GPU's matrix products choose their kernel, and with it their order of additions, by shape. So shapes are fixed:
a pass has one of `row_counts` rows, attention goes through each row's own keys in pieces of `KEYS`, and a piece that
a row does not have is an exact no-op for it. Runs on any torch device, which is how its tests run without a GPU.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.target.adapters.adapter import Adapter
from services.generation.target.blocks import BlockPool
from services.generation.target.canonical.kernels.machine import cpus
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import EMBEDDING, HEAD, NORM, layer_specs
from services.generation.target.errors import UnsupportedArchitecture
from services.generation.target.fixed_shape.attention import KEYS, AttentionMetadata, PagedAttention, capped
from services.generation.target.fixed_shape.layers import DeviceWeights, Layer, Linear
from services.generation.target.fixed_shape.masked_updates import KERNEL
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Float32, KernelReport, PassOutput
from services.generation.target.weights.checkpoint import Checkpoint

ROW_COUNTS = (16, 64, 256)
_CHECKED = 24  # tokens that row counts are compared over


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
        _check_supported(config)
        self.config = config
        self.blocks = BlockPool(cache_blocks, resident=cache_blocks)  # a device's memory is taken at once
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters = tuple(adapter.identity for adapter in adapters)
        self._device, self._dtype = torch.device(device), dtype
        specs = layer_specs(config)
        self._attention = PagedAttention(config, specs, cache_blocks, self._device, dtype)
        read = DeviceWeights(checkpoint, self._device, dtype, config.norm_offset)
        self._embeddings = read.tensor(EMBEDDING)
        self._layers = [read.layer(spec, number, adapters) for number, spec in enumerate(specs)]
        self._norm = read.norm(NORM)
        self._head = Linear(self._embeddings if config.tied_embeddings else read.tensor(HEAD))
        self._row_counts = tuple(sorted(row_counts))
        self._row_counts = self._agreeing_row_counts()
        self.threads = cpus()
        self.numerics: Mapping[str, Any] = {
            "arithmetic": f"kolm-fixed-shape/3, keys {KEYS}, {KERNEL}",
            "device": _device_name(self._device),
            "instruction_set": _instruction_set(self._device),
            "dtype": str(dtype).removeprefix("torch."),
            "row_counts": list(self._row_counts),
            "libraries": {name: version(name) for name in ("torch", "numpy")},
            "libc": " ".join(platform.libc_ver()),
        }

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
        metadata = self._attention.metadata(rows, padded)
        hidden = self._embeddings[index.to(self._device)] * self.config.embedding_scale
        stream, adapted = [hidden], self._adapted(rows, padded)
        for number, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.attention_norm)
            qkv = layer.updates.qkv.add(normed, adapted, layer.qkv(normed))
            mixed = self._attend(number, layer, qkv.view(padded, -1, self.config.head_dim), metadata)
            added = layer.updates.output.add(mixed, adapted, layer.output(mixed))
            hidden = hidden + self._after(added, layer.after_attention)
            normed = self._rms_norm(hidden, layer.mlp_norm)
            gate, up = layer.updates.gate_up.add(normed, adapted, layer.gate_up(normed)).chunk(2, dim=-1)
            inner = layer.activation(gate) * up
            hidden = hidden + self._after(layer.updates.down.add(inner, adapted, layer.down(inner)), layer.after_mlp)
            stream.append(hidden)
        wanted = torch.from_numpy(rows.wanted.astype(np.int64))
        logits = capped(self._head(self._rms_norm(hidden, self._norm)).float(), self.config.logit_cap)
        taken = [stream[layer][:count].float().cpu().numpy() for layer in feature_layers]
        return PassOutput(
            logits.cpu()[wanted].numpy(), np.concatenate(taken, axis=1) if taken else np.empty((count, 0), np.float32)
        )

    def _adapted(self, rows: Rows, padded: int) -> dict[int, torch.Tensor]:
        """The adapters of a pass, each with its rows [padded, 1]; padding rows have none."""
        if rows.adapter_slots is None:
            return {}
        slots = torch.full((padded, 1), -1, dtype=torch.int32)
        slots[: len(rows), 0] = torch.from_numpy(rows.adapter_slots)
        return {
            adapter: (slots == adapter).to(self._device) for adapter in sorted(set(rows.adapter_slots.tolist()) - {-1})
        }

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon)
        return (weight * wide).to(self._dtype)

    def _after(self, added: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return added if norm is None else self._rms_norm(added, norm)

    def _attend(self, number: int, layer: Layer, qkv: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """[rows, heads + 2 kv_heads, dim] to [rows, heads * dim]."""
        heads, last_key = self.config.heads, self.config.heads + self.config.kv_heads
        queries, keys, values = qkv[:, :heads], qkv[:, heads:last_key], qkv[:, last_key:]
        if layer.head_norms is not None:
            queries, keys = self._rms_norm(queries, layer.head_norms[0]), self._rms_norm(keys, layer.head_norms[1])
        return self._attention.attend(number, queries, keys, values, metadata)

    def probe_kernels(self) -> KernelReport:
        """None: shapes are fixed, and whole passes of each are compared when the target is made."""
        return KernelReport(0, ())

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        rows: Float32 = self._embeddings[torch.from_numpy(tokens).to(self._device)].float().cpu().numpy()
        return rows

    def move(self, sources: list[int], targets: list[int]) -> None:
        self._attention.move(sources, targets)


def _check_supported(config: TargetConfig) -> None:
    parts = {
        "experts": config.experts,
        "attention in chunks": any(config.chunks),
        "heads that turn by neighbours": any(rotation.neighbours for rotation in config.rotations),
        "tempered attention": config.temperature,
        "sinks": config.sinks,
        "heads of several sizes": config.head_sizes,
    }
    if found := [name for name, there in parts.items() if there]:
        raise UnsupportedArchitecture(f"{', '.join(found)}: not supported on this device; use device cpu")


def _device_name(device: torch.device) -> str:
    return f"cuda/{torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def _instruction_set(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}/cuda-{torch.version.cuda}"
    return torch.backends.cpu.get_cpu_capability()
