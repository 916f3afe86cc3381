"""Attention in passes of a fixed shape: each row goes through its own keys in pieces of the same size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import LayerSpec
from services.generation.target.config.rope import Rotation
from services.generation.target.rotations import rotations
from services.generation.target.rows import Rows

KEYS = 256  # keys of a row that attention takes at a time
Piece = tuple[torch.Tensor, torch.Tensor]
"""Slots that the rows see [rows, KEYS], and which of them are padding."""
CosSin = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Of the rows of a pass: cos and sin of their positions [rows, 1, frequencies] by rotation, the slots that they
    fill [rows that are no padding], and the pieces that they see by window.
    """

    cos_sin: Mapping[Rotation, CosSin]
    slots: torch.Tensor
    seen: dict[int, list[Piece]]


class PagedAttention:
    """Keys and values of all layers, [layers, slots, kv_heads, dim], and attention over them."""

    def __init__(
        self,
        config: TargetConfig,
        layers: Sequence[LayerSpec],
        cache_blocks: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config, self._layers, self._device, self._dtype = config, layers, device, dtype
        self._cos_sin = {each: self._table(each, config.context_length) for each in set(config.rotations)}
        shape = (config.layers, cache_blocks * BLOCK, config.kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def _table(self, rotation: Rotation, context: int) -> CosSin:
        cos, sin = rotations(rotation.within(context), rotation.factor, context)
        return torch.from_numpy(cos).to(self._device), torch.from_numpy(sin).to(self._device)

    def metadata(self, rows: Rows, padded: int) -> AttentionMetadata:
        """Of a pass that is filled up to `padded` rows."""
        positions = torch.zeros(padded, dtype=torch.int64)
        positions[: len(rows)] = torch.from_numpy(rows.positions.astype(np.int64))
        positions = positions.to(self._device)
        tables = self._cos_sin.items()
        cos_sin = {each: (cos[positions][:, None], sin[positions][:, None]) for each, (cos, sin) in tables}
        slots = torch.from_numpy(rows.slots.astype(np.int64)).to(self._device)
        seen = {window: self._seen(rows, padded, window) for window in set(self._config.windows)}
        return AttentionMetadata(cos_sin, slots, seen)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Rotate, store, attend: queries [rows, heads, dim] to [rows, heads * dim]."""
        config, slots, spec = self._config, metadata.slots, self._layers[layer]
        cos_sin = metadata.cos_sin[config.rotations[layer]]
        queries = _rotate(queries.float(), cos_sin)
        self._keys[layer][slots] = _rotate(keys.float(), cos_sin).to(self._dtype)[: len(slots)]
        self._values[layer][slots] = values[: len(slots)]
        grouped = queries.reshape(len(queries), config.kv_heads, -1, config.head_dim) * spec.scale
        largest = grouped.new_full((*grouped.shape[:3], 1), -torch.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(grouped)
        for seen, hidden in metadata.seen[spec.window]:
            piece = self._keys[layer][seen].float().permute(0, 2, 3, 1)
            scores = capped(grouped @ piece, spec.cap).masked_fill(hidden[:, None, None], -torch.inf)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, fade = (scores - new).exp(), (largest - new).exp()
            total = total * fade + weights.sum(-1, keepdim=True)
            mixed = mixed * fade + weights @ self._values[layer][seen].float().transpose(1, 2)
            largest = new
        return (mixed / total).reshape(len(queries), -1).to(self._dtype)

    def _seen(self, rows: Rows, padded: int, window: int) -> list[Piece]:
        """The slots that each row sees, in order of position, in pieces of KEYS, each with a mask of its padding.

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


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap); 0 is no cap."""
    return torch.tanh(x / cap) * cap if cap else x


def _rotate(heads: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
    cos, sin = cos_sin
    half = cos.shape[-1]
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)
