"""Training-time test (EAGLE-3, arXiv 2503.01840, section 3.2): the head unrolled on its own outputs, as it drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from services.training.head.batches import Window
from services.training.head.module import HeadModule


def unroll(head: HeadModule, window: Window, steps: int) -> Iterator[Tensor]:
    """The layer's output at every start, [b, a, hidden], at steps 1, 2, … `steps`; `head.logits` reads the tokens off.

    At step 1 a start reads the target's fused feature; at later ones the layer's own output of the step before. It
    attends to the entries up to its own, which all hold target features, as they do once their tokens are accepted; and
    to its own earlier steps.
    """
    positions = torch.arange(window.following.shape[1], device=window.following.device)
    fused = head.fc(window.features).to(head.embeddings.dtype)
    x = head.midlayer.attention_input(head.embed(window.following), fused)
    starts = window.first_start[:, None] + torch.arange(window.starts, device=positions.device)
    starts = starts.clamp(max=len(positions) - 1)
    attention = _Attention(head, x, positions, starts)
    feature, x = _taken(fused, starts), _taken(x, starts)
    for step in range(1, steps + 1):
        if step > 1:
            embedded = head.embed(_shifted(window.said, step - 1, window.starts))
            x = head.midlayer.attention_input(embedded, feature)
        feature = head.midlayer.output(feature, attention.attend(x, step))
        yield feature


@dataclass(slots=True)
class _Attention:
    """Keys and values of the entries, and of the steps so far at each start."""

    head: HeadModule
    entries: Tensor  # [b, n, 2 * hidden] the attention's input at every entry
    positions: Tensor  # [n]
    starts: Tensor  # [b, a] entry of each start
    _keys: Tensor = field(init=False)  # [b, kv, head_dim, n]
    _values: Tensor = field(init=False)  # [b, kv, n, head_dim]
    _hidden: Tensor = field(init=False)  # [b, 1, 1, a, n] float: -inf for entries behind a start
    _step_keys: list[Tensor] = field(default_factory=list)  # each [b, kv, 1, a, head_dim]
    _step_values: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        projections = self.head.midlayer.self_attn
        keys = self.head.rotated(projections.keys(self.entries), self.positions[None])
        self._keys = keys.permute(0, 2, 3, 1)
        self._values = projections.values(self.entries).transpose(1, 2)
        behind = self.positions > self.starts[..., None]
        self._hidden = torch.zeros(behind.shape, device=behind.device).masked_fill(behind, -math.inf)[:, None, None]

    def attend(self, x: Tensor, step: int) -> Tensor:
        """Mixed values [b, a, heads * head_dim] for the starts' inputs x [b, a, 2 * hidden]."""
        projections, positions = self.head.midlayer.self_attn, self.starts + (step - 1)
        queries = _grouped(self.head.rotated(projections.queries(x), positions), self._keys.shape[1])
        if step > 1:
            self._step_keys.append(_grouped(self.head.rotated(projections.keys(x), positions), self._keys.shape[1]))
            self._step_values.append(_grouped(projections.values(x), self._keys.shape[1]))
        weights = self._weights(queries)
        entries = self._keys.shape[-1]
        mixed = _times(weights[..., :entries], self._values)
        for number, values in enumerate(self._step_values):
            mixed = mixed + weights[..., entries + number, None] * values
        return mixed.permute(0, 3, 1, 2, 4).flatten(2)

    def _weights(self, queries: Tensor) -> Tensor:
        """[b, kv, group, a, n + steps before this one]"""
        scores = [_times(queries, self._keys) + self._hidden]
        scores += [(queries * keys).sum(-1, keepdim=True) for keys in self._step_keys]
        scale = self.head.config.head_dim**-0.5
        weights: Tensor = (torch.cat(scores, dim=-1) * scale).softmax(dim=-1).to(self._values.dtype)
        return weights


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [b, kv, group, a, i] times matrix [b, kv, i, o]"""
    product = rows.flatten(2, 3) @ matrix
    return product.view(*rows.shape[:4], product.shape[-1])


def _grouped(heads: Tensor, kv_heads: int) -> Tensor:
    """[b, a, heads, d] to [b, kv_heads, group, a, d]"""
    batch, starts, _, size = heads.shape
    return heads.view(batch, starts, kv_heads, -1, size).permute(0, 2, 3, 1, 4)


def _taken(entries: Tensor, starts: Tensor) -> Tensor:
    """Entries [b, n, size] at starts [b, a]."""
    return entries.gather(1, starts[..., None].expand(-1, -1, entries.shape[-1]))


def _shifted(said: Tensor, by: int, count: int) -> Tensor:
    """said[:, by : by + count], padded with zeros."""
    return F.pad(said, (0, max(0, by + count - said.shape[1])))[:, by : by + count]
