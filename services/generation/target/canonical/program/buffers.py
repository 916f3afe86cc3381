"""Buffers of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.target.blocks import blocks_for
from services.generation.target.canonical.kernels.attention import layout
from services.generation.target.canonical.kernels.linear import linear
from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.expert_layer import ExpertBuffers
from services.generation.target.canonical.program.memory import on_huge_pages
from services.generation.target.config.layer_specs import LayerSizes, LayerSpec
from services.generation.target.families import Experts
from services.generation.target.rows import Rows
from services.generation.target.sizes import MOST_RANK

Float32 = NDArray[np.float32]


class Buffers:
    """What passes of up to `rows` rows by up to `members` threads work in; rows have positions below `positions`.

    Lines begin at multiples of 64 bytes and are padded with zeros.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        rows: int,
        members: int,
        positions: int,
        *,
        widest: int = 0,
        experts: Experts | None = None,
        layers: Sequence[LayerSpec],
    ) -> None:
        """`widest`: inputs of linear layers beside those of decoder layers, the most that one has."""
        dim = max(padded(layer.head_dim, layout.LANES) for layer in layers)
        sharing = max(layer.heads // max(layer.kv_heads, 1) for layer in layers)
        attended = max(layer.output[0].inputs for layer in layers)
        widest_mlp = max(sizes.intermediate_size, experts.shared if experts else 0)
        inner = padded(widest_mlp, PANEL)
        self.rows, self.members, self.positions = rows, members, positions
        self.x, self.normed, self.update = (self.lines(sizes.hidden_size) for _ in range(3))
        self.qkv = self.lines(max((layer.heads + 2 * layer.kv_heads) * layer.head_dim for layer in layers))
        queries = max(layer.heads * padded(layer.head_dim, layout.LANES) for layer in layers)
        self.queries = on_huge_pages(4 * rows * queries).view(np.float32).reshape(rows, queries)
        self._mixed: dict[int, Float32] = {}
        self.gate_up, self.inner = self.lines(2 * inner), self.lines(inner)
        self.experts = ExpertBuffers(experts, sizes.hidden_size, rows, _lines) if experts else None
        widest = max(widest, experts.size if experts else 0, sizes.hidden_size, attended, widest_mlp)
        attending = layout.scratch_bytes(sharing, dim)
        adapting = 4 * (MOST_RANK + padded(max(2 * inner, self.qkv.shape[1]), PANEL))
        self.scratch_size = padded(max(linear.scratch_bytes(widest), attending, adapting), 4096)
        self.scratch = on_huge_pages(self.scratch_size * members)
        self.blocks = blocks_for(positions)  # that a row sees at most: a table has more, where a tree hangs at its end
        self.partial = on_huge_pages(layout.most_split(members) * self.blocks * sharing * layout.result_bytes(dim))

    def check(self, rows: Rows) -> None:
        """Refuse, before any kernel runs, a pass that would write behind a buffer.

        Raises:
            ValueError: it has too many rows, or a row's position is past the last one.
        """
        if len(rows) > self.rows:
            raise ValueError(f"a pass of {len(rows)} rows; there is room for {self.rows}")
        if len(rows) and not 0 <= rows.positions.min() <= rows.positions.max() < self.positions:
            raise ValueError(f"a row at position {rows.positions.max()}; expected 0 to {self.positions - 1}")

    @property
    def own(self) -> dict[str, object]:
        """The fields of a record that name a member's scratch."""
        return {"scratch": self.scratch, "scratch_size": self.scratch_size}

    def mixed(self, size: int) -> Float32:
        """Results of attention: lines of so many values, which nothing longer was ever written into."""
        if size not in self._mixed:
            self._mixed[size] = self.lines(size)
        return self._mixed[size]

    def lines(self, size: int) -> Float32:
        """A line of at least so many values for each row."""
        return _lines(self.rows, size)


def _lines(count: int, size: int) -> Float32:
    size = padded(size, PANEL)
    return on_huge_pages(4 * count * size).view(np.float32).reshape(count, size)
