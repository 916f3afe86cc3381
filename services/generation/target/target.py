"""The interface between the engine and a model: rows in, logits out, whose bits do not depend on other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from services.generation.target.adapters import AdapterIdentity
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BlockPool
from services.generation.target.config.config import TargetConfig
from services.generation.target.program.buffers import Cache
from services.generation.target.program.kernel_probe import KernelReport
from services.generation.target.rows import Rows
from services.generation.target.unread import LogitRows


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Results of a pass, float32. Reading features changes no bit of the logits."""

    rows: LogitRows  # [wanted rows, vocab_size]; those of a device can be read until its next pass
    features: Float32  # [rows, feature layers * hidden_size], of all rows

    @property
    def logits(self) -> Float32:
        """All of `rows`, as an array."""
        return np.asarray(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Parts of a target for a drafter that computes on its cache, which never writes them."""

    cache: Cache
    norm: Float32  # [hidden] weights of the final norm


class Target(Protocol):
    """A loaded model with its key/value cache. Used by one thread.

    The probe checks this guarantee: the logits of a row depend only on the tokens that the row sees and on the adapter
    of its sequence. Loaded adapters do not change the bits of rows without an adapter.
    """

    config: TargetConfig
    blocks: BlockPool
    base_cid: str
    tokenizer_cid: str
    adapters: tuple[AdapterIdentity, ...]  # the loaded ones; `Rows.adapter_slots` are indexes into them
    threads: int  # of the CPU, for a pass and for drafters
    device: str  # that computes: cpu, or a device's description
    numerics: Mapping[str, Any]  # the arithmetic, as JSON values of the profile

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """Compute a pass; store keys and values of all rows.

        Feature layer i is the residual stream after i decoder layers, not normalised: 0 are the embeddings, and up to
        `config.layers` - 1 it is transformers' `hidden_states[i]`. Features are concatenated in the given order.
        """
        ...

    def probe_kernels(self) -> KernelReport:
        """Compare single operations at all sizes of a pass; uses a free part of the cache."""
        ...

    def abridged(self) -> Target:
        """A target of one layer of each kind and a few of the logits, over the same weights and cache; or this one."""
        ...

    def embed(self, tokens: Int64) -> Float32:
        """Token embeddings for drafters, [n] ids to [n, hidden_size] float32."""
        ...

    def unembed(self, states: Float32) -> Float32:
        """Logits of normalised states, [n, hidden_size] to [n, vocab_size] float32, for drafters without an output
        matrix.
        """
        ...

    def shared(self) -> Shared:
        """The cache and the final norm."""
        ...

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Copy cache slots, in the order given: the accepted path of a tree becomes the sequence."""
        ...

    def release_memory(self) -> None:
        """Return freed memory, and that of free cache blocks without kept content, to the system. For an idle target:
        its next passes have to allocate memory again.
        """
        ...

    def block_content(self, block: int) -> bytes:
        """The bytes of a block in the cache, equally many for every block."""
        ...

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        """Write bytes from `block_content` of a target with the same numerics into a block."""
        ...


class LoadTarget(Protocol):
    """`services.generation.target.cpu.load_target`, or a fake of it."""

    def __call__(
        self,
        directory: Path,
        *,
        context_length: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        adapters: Mapping[str, Path] | None = None,
    ) -> Target: ...
